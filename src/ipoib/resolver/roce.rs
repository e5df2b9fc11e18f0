// SPDX-License-Identifier: GPL-2.0

//! Resolution on RoCE v2 ports, where there is no subnet administrator: paths come from the host's
//! neighbour tables, and groups exist by agreement on their parameters.
//!
//! A group's GID is a valid IPv6 multicast address, and its frames come in through the host's IPv6
//! layer, which delivers them only if it is a member, too.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    super::{
        interface::Interface,
        port::Port, //
    },
    Held, //
};
use crate::{
    control::join::{
        JoinState,
        Params, //
    },
    rdma::{
        self,
        cm::Hop,
        AhAttr,
        CmPath,
        Resolved, //
    },
    wire::{
        gid::Gid,
        mtu, //
    },
};

/// The Q_Key of all groups: what subnet managers give the default IPoIB broadcast group.
const QKEY: u32 = 0x0b1b;
/// A valid multicast local identifier; Ethernet ports ignore it.
const MLID: u16 = 0xc000;
/// Hop limit of group frames: they stay on the link (their scope is link-local).
const HOP_LIMIT: u8 = 1;

/// Membership of the port's netdev in an IPv6 group.
pub(crate) struct IpMembership {
    port: Arc<Port>,
    group: Gid,
}

impl IpMembership {
    fn new(port: &Arc<Port>, group: &Gid) -> Result<Self> {
        port.rdma().netdev().ok_or(ENODEV)?.ipv6_mc_join(group)?;
        Ok(Self {
            port: port.clone(),
            group: *group,
        })
    }
}

impl Drop for IpMembership {
    fn drop(&mut self) {
        // Without a netdev its memberships are gone as well.
        if let Some(netdev) = self.port.rdma().netdev() {
            // It fails when IPv6 was switched off on the netdev, which ended the membership.
            let _ = netdev.ipv6_mc_leave(&self.group);
        }
    }
}

/// Joins `group`: senders need nothing, listeners the IP layer's membership.
pub(super) fn join(port: &Arc<Port>, group: &Gid, state: JoinState) -> Result<(Held, Params)> {
    let membership = match state {
        JoinState::FullMember => Held::Roce {
            _membership: IpMembership::new(port, group)?,
        },
        JoinState::SendOnlyFullMember => Held::None,
    };
    let params = Params {
        mlid: MLID,
        qkey: QKEY,
        mtu: mtu::to_code(port.seen().mtu).ok_or(EINVAL)?,
        hop_limit: HOP_LIMIT,
        ..Params::default()
    };
    Ok((membership, params))
}

pub(super) fn unicast(port: &rdma::Port, gid: &Gid, answer: &Resolved) -> AhAttr {
    AhAttr::roce_unicast(
        port.number(),
        *gid,
        port.own_gid_index(),
        answer.dmac,
        answer.hop_limit.max(1),
    )
}

/// The path of a connection: as fast and as long as the port's.
pub(super) fn connection(iface: &Interface, gid: &Gid, answer: &Resolved) -> Option<CmPath> {
    let seen = iface.port().seen();
    Some(CmPath {
        dgid: *gid,
        sgid: seen.gid,
        pkey: iface.pkey(),
        hop: Hop::Roce { dmac: answer.dmac },
        sl: 0,
        mtu: mtu::to_code(seen.mtu)?,
        rate: 0,
        hop_limit: answer.hop_limit.max(1),
        flow_label: 0,
        traffic_class: 0,
        life_time: None,
    })
}

pub(super) fn multicast(port: &rdma::Port, group: &Gid, params: &Params) -> AhAttr {
    AhAttr::roce_multicast(
        port.number(),
        *group,
        port.own_gid_index(),
        params.hop_limit.max(1),
    )
}
