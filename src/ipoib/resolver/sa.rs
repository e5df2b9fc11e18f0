// SPDX-License-Identifier: GPL-2.0

//! Resolution on InfiniBand ports: the subnet administrator knows paths and groups.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    super::interface::Interface,
    JoinReply,
    PathReply, //
};
use crate::{
    control::join::{
        Failure,
        JoinState,
        Params, //
    },
    rdma::{
        cm::Hop,
        sa::{
            PathQuery,
            SaMembership, //
        },
        AhAttr,
        CmPath,
        Grh,
        GroupRecord,
        JoinHandler,
        JoinRequest,
        PathHandler,
        PathRecord,
        PathRequest,
        SaClient, //
    },
    wire::{
        gid::Gid,
        pkey::PKey, //
    },
};

/// Index of the source GID: the interface's GID is the port's first.
const SGID_INDEX: u8 = 0;

/// A path query that is out.
pub(super) type Query = Pin<KBox<PathQuery<PathReply>>>;

/// A membership of the port.
pub(super) type Membership = Pin<KBox<SaMembership<JoinReply>>>;

/// The partition of the interface that a port has by itself: that of the first P_Key (PK-1).
pub(super) fn first_pkey(port: &crate::rdma::Port) -> Result<PKey> {
    Ok(port.pkey(0)?.full())
}

/// Asks for the path to `gid`.
pub(super) fn query(
    client: &Arc<SaClient>,
    iface: &Interface,
    gid: &Gid,
    reply: Arc<PathReply>,
) -> Result<Query> {
    let request = PathRequest {
        dgid: *gid,
        sgid: iface.port().seen().gid,
        pkey: iface.pkey(),
        traffic_class: iface.traffic_class(),
    };
    PathQuery::start(client, iface.port().rdma(), &request, reply)
}

impl PathHandler for PathReply {
    fn answered(&self, result: Result<PathRecord>) {
        self.put(result.map(super::Route::Ib));
    }
}

/// The address handle's attributes for a path record. The global route goes with each datagram only
/// where the record asks for one, which is how it says that routers are on the way.
pub(super) fn unicast(iface: &Interface, path: &PathRecord) -> AhAttr {
    let port = iface.port();
    let bits = path.slid & ((1 << port.seen().lmc.min(7)) - 1);
    let attr =
        AhAttr::ib(port.rdma().number(), path.dlid, path.sl, path.rate).with_path_bits(bits as u8);
    if path.hop_limit == 0 {
        return attr;
    }
    attr.with_grh(Grh {
        dgid: path.dgid,
        sgid_index: SGID_INDEX,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
    })
}

/// The path of a connection, as the record has it.
pub(super) fn connection(iface: &Interface, path: &PathRecord) -> CmPath {
    CmPath {
        dgid: path.dgid,
        sgid: iface.port().seen().gid,
        pkey: iface.pkey(),
        hop: Hop::Ib {
            dlid: path.dlid,
            slid: path.slid,
        },
        sl: path.sl,
        mtu: path.mtu,
        rate: path.rate,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        life_time: Some(path.life_time),
    }
}

/// The address handle's attributes for a group (MC-11).
pub(super) fn multicast(port: u32, group: &Gid, params: &Params) -> AhAttr {
    AhAttr::ib(port, params.mlid.into(), params.sl, params.rate).with_grh(Grh {
        dgid: *group,
        sgid_index: SGID_INDEX,
        hop_limit: params.hop_limit,
        flow_label: params.flow_label,
        traffic_class: params.traffic_class,
    })
}

/// Asks for a membership. `basis` is what groups other than the broadcast group must be like, and are
/// created with (MC-8).
pub(super) fn join(
    client: &Arc<SaClient>,
    iface: &Interface,
    group: &Gid,
    state: JoinState,
    basis: Option<Params>,
    reply: Arc<JoinReply>,
) -> Result<Membership> {
    let request = JoinRequest {
        mgid: *group,
        port_gid: iface.port().seen().gid,
        pkey: iface.pkey(),
        join_state: state.bits(),
        create: basis.map(|params| GroupRecord {
            mlid: params.mlid,
            qkey: params.qkey,
            mtu: params.mtu,
            rate: params.rate,
            sl: params.sl,
            traffic_class: params.traffic_class,
            hop_limit: params.hop_limit,
            flow_label: params.flow_label,
        }),
    };
    SaMembership::join(client, iface.port().rdma(), &request, reply)
}

impl JoinHandler for JoinReply {
    fn joined(&self, result: Result<GroupRecord>) {
        self.put(result.map(|record| Params {
            mlid: record.mlid,
            qkey: record.qkey,
            mtu: record.mtu,
            rate: record.rate,
            sl: record.sl,
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
            flow_label: record.flow_label,
        }));
    }

    fn lost(&self) {
        self.lose();
    }
}

/// Why a join failed, from the error that the core reports.
pub(super) fn join_failure(error: Error) -> Failure {
    if error == ETIMEDOUT {
        Failure::Timeout
    } else if error == EINVAL {
        Failure::Refused
    } else if error == EAGAIN || error == EINTR || error == EIO {
        Failure::Busy
    } else {
        Failure::Local
    }
}

/// Whether a path query's error is the subnet administrator's own word, which may be "no such path"
/// as well as "busy".
pub(super) fn refused(error: Error) -> bool {
    error == EINVAL
}
