// SPDX-License-Identifier: GPL-2.0

//! Ports of RDMA devices: state, identifiers, partition keys.

use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*};

use super::device::DeviceHandle;
use crate::{
    sys::bindings as sys,
    wire::{gid::Gid, pkey::PKey},
};

/// What runs on the wire of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    /// InfiniBand, with a subnet administrator.
    Ib,
    /// RDMA over UDP on Ethernet (RoCE v2).
    RoceV2Udp,
    /// Something IPoIB cannot use.
    Other,
}

/// State of a port (`enum ib_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortState {
    /// No link.
    Down,
    /// Link, waiting for the subnet manager.
    Init,
    /// Configured, not yet enabled.
    Armed,
    /// Data may flow.
    Active,
    /// Link lost for the moment, may come back by itself.
    ActiveDefer,
    /// A value this driver does not know.
    Unknown,
}

impl From<sys::ib_port_state> for PortState {
    fn from(state: sys::ib_port_state) -> Self {
        match state {
            sys::ib_port_state::IB_PORT_DOWN => Self::Down,
            sys::ib_port_state::IB_PORT_INIT => Self::Init,
            sys::ib_port_state::IB_PORT_ARMED => Self::Armed,
            sys::ib_port_state::IB_PORT_ACTIVE => Self::Active,
            sys::ib_port_state::IB_PORT_ACTIVE_DEFER => Self::ActiveDefer,
            _ => Self::Unknown,
        }
    }
}

/// Attributes of a port (`struct ib_port_attr`); numbers in host order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAttr {
    /// State of the link.
    pub(crate) state: PortState,
    /// Largest MTU of the port, in bytes.
    pub(crate) max_mtu: u32,
    /// Present MTU of the port, in bytes: the largest payload of a datagram, without headers.
    pub(crate) active_mtu: u32,
    /// Local identifier; 0 on Ethernet.
    pub(crate) lid: u32,
    /// Local identifier of the subnet manager; 0 on Ethernet.
    pub(crate) sm_lid: u32,
    /// Number of low bits of the LID that are free for path selection.
    pub(crate) lmc: u8,
    /// Service level for messages to the subnet manager.
    pub(crate) sm_sl: u8,
    /// Size of the GID table.
    pub(crate) gid_table_len: u32,
    /// Size of the partition key table.
    pub(crate) pkey_table_len: u16,
    /// Link width (`enum ib_port_width`, a bit).
    pub(crate) active_width: u8,
    /// Link speed (`enum ib_port_speed`, a bit).
    pub(crate) active_speed: u16,
}

/// MTU code of the InfiniBand architecture to bytes; 0 for an unknown code.
fn mtu_bytes(mtu: sys::ib_mtu) -> u32 {
    match mtu {
        sys::ib_mtu::IB_MTU_256 => 256,
        sys::ib_mtu::IB_MTU_512 => 512,
        sys::ib_mtu::IB_MTU_1024 => 1024,
        sys::ib_mtu::IB_MTU_2048 => 2048,
        sys::ib_mtu::IB_MTU_4096 => 4096,
        _ => 0,
    }
}

/// One port of a device. Holds the device.
#[derive(Clone)]
pub(crate) struct Port {
    device: DeviceHandle,
    number: u32,
}

impl Port {
    /// Port `number` of `device`, which must have it.
    pub(super) fn new(device: DeviceHandle, number: u32) -> Self {
        Self { device, number }
    }

    /// The device.
    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.device
    }

    /// The port number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What runs on the wire. Any context.
    pub(crate) fn link(&self) -> PortKind {
        let device = self.device.as_ptr();
        // SAFETY: The device is valid and has this port.
        unsafe {
            if sys::ipoib_h_rdma_protocol_ib(device, self.number) {
                PortKind::Ib
            } else if sys::ipoib_h_rdma_protocol_roce_udp_encap(device, self.number) {
                PortKind::RoceV2Udp
            } else {
                PortKind::Other
            }
        }
    }

    /// Where in the GID table the port's own GID is that this driver uses. Any context.
    ///
    /// Entry 0 on InfiniBand. On RoCE the link-local one of version 2: the core reserves the first
    /// entries for the link-local GIDs, version 1 before version 2 where the port speaks both.
    pub(crate) fn own_gid_index(&self) -> u8 {
        // SAFETY: The device is valid and has this port.
        let both = unsafe {
            let device = self.device.as_ptr();
            sys::ipoib_h_rdma_protocol_roce_eth_encap(device, self.number)
                && sys::ipoib_h_rdma_protocol_roce_udp_encap(device, self.number)
        };
        both.into()
    }

    /// Asks the device for the port's attributes.
    ///
    /// Sleeps, and **may take the RTNL lock** (rxe and other Ethernet drivers do): must not be
    /// called with RTNL held, nor from a work item that someone flushes while holding it.
    pub(crate) fn query(&self) -> Result<PortAttr> {
        let mut attr = sys::ib_port_attr::default();
        // SAFETY: The device is valid, `attr` is writable.
        to_result(unsafe { sys::ib_query_port(self.device.as_ptr(), self.number, &mut attr) })?;
        Ok(PortAttr {
            state: attr.state.into(),
            max_mtu: mtu_bytes(attr.max_mtu),
            active_mtu: mtu_bytes(attr.active_mtu),
            lid: attr.lid,
            sm_lid: attr.sm_lid,
            lmc: attr.lmc,
            sm_sl: attr.sm_sl,
            gid_table_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_table_len: attr.pkey_tbl_len,
            active_width: attr.active_width,
            active_speed: attr.active_speed,
        })
    }

    /// Entry `index` of the GID table, from the core's cache.
    ///
    /// Does not sleep. Fails with `EINVAL` when there is no such port or entry, with `ENOENT` when the entry
    /// is empty.
    pub(crate) fn gid(&self, index: u16) -> Result<Gid> {
        let mut gid = sys::ib_gid::default();
        // SAFETY: The device is valid, `gid` is writable; the core checks port and index.
        to_result(unsafe {
            sys::rdma_query_gid(self.device.as_ptr(), self.number, index.into(), &mut gid)
        })?;
        // SAFETY: All 16 bytes of the union are plain bytes in either view.
        Ok(Gid(unsafe { gid.raw }))
    }

    /// Entry `index` of the partition key table, read from the device. May sleep.
    pub(crate) fn pkey(&self, index: u16) -> Result<PKey> {
        let mut pkey = 0u16;
        // SAFETY: The device is valid, `pkey` is writable; the core checks port, the driver the
        // index.
        to_result(unsafe {
            sys::ib_query_pkey(self.device.as_ptr(), self.number, index, &mut pkey)
        })?;
        Ok(PKey(pkey))
    }

    /// Index of the partition of `pkey`: of its full-member entry if there is one, else of its
    /// limited-member entry. The membership bit of `pkey` is not looked at.
    ///
    /// Reads the table from the device; may sleep. Fails with `ENOENT`.
    pub(crate) fn find_pkey(&self, pkey: PKey) -> Result<u16> {
        let mut index = 0u16;
        // SAFETY: The device is valid, `index` is writable.
        to_result(unsafe {
            sys::ib_find_pkey(self.device.as_ptr(), self.number, pkey.0, &mut index)
        })?;
        Ok(index)
    }

    /// Whether somebody on this host has joined `group` on this port through the subnet
    /// administrator, us included. `false` on ports without one. Does not sleep.
    pub(crate) fn group_joined(&self, group: &Gid) -> bool {
        let mut mgid = sys::ib_gid { raw: group.0 };
        let mut record = sys::ib_sa_mcmember_rec::default();
        // SAFETY: The device is valid, both are writable.
        let found = unsafe {
            sys::ib_sa_get_mcmember_rec(self.device.as_ptr(), self.number, &mut mgid, &mut record)
        };
        found == 0
    }

    /// The network device beneath an Ethernet port, if there is one now. May sleep.
    ///
    /// Holding the answer blocks the unregistration of that network device: drop it soon.
    pub(crate) fn netdev(&self) -> Option<UnderlyingNetdev> {
        // SAFETY: The device is valid.
        let netdev = unsafe { sys::ib_device_get_netdev(self.device.as_ptr(), self.number) };
        // INVARIANT: The core took a reference for us.
        NonNull::new(netdev).map(UnderlyingNetdev)
    }
}

/// A counted reference to the network device beneath an Ethernet port.
///
/// # Invariants
///
/// This value owns one reference of the device.
pub(crate) struct UnderlyingNetdev(NonNull<sys::net_device>);

// SAFETY: A reference to a network device may be used and given up on any thread.
unsafe impl Send for UnderlyingNetdev {}
// SAFETY: As above; the functions below lock what they touch.
unsafe impl Sync for UnderlyingNetdev {}

impl UnderlyingNetdev {
    /// The C object, for comparison; valid as long as `self`.
    pub(crate) fn as_ptr(&self) -> *mut sys::net_device {
        self.0.as_ptr()
    }

    /// Interface index, unique in its network namespace.
    pub(crate) fn ifindex(&self) -> i32 {
        // SAFETY: By the type invariants the device is valid; a torn read is impossible for an
        // aligned int.
        unsafe { (&raw const (*self.as_ptr()).ifindex).read_volatile() }
    }

    /// Joins the IPv6 group whose address is `mgid`, so that the host's IPv6 receives it.
    ///
    /// Joins are counted; each needs an [`UnderlyingNetdev::ipv6_mc_leave`]. Sleeps; takes no RTNL.
    /// Fails with `EINVAL` when the device has no IPv6.
    pub(crate) fn ipv6_mc_join(&self, mgid: &Gid) -> Result {
        // SAFETY: By the type invariants the device is valid; `struct in6_addr` is 16 bytes that
        // C only reads, with the alignment provided below.
        to_result(unsafe { sys::ipv6_dev_mc_inc(self.as_ptr(), &in6_addr(mgid)) })
    }

    /// Takes back one join. Sleeps; takes no RTNL. Fails with `ENOENT` when there was none.
    pub(crate) fn ipv6_mc_leave(&self, mgid: &Gid) -> Result {
        // SAFETY: As above.
        to_result(unsafe { sys::ipv6_dev_mc_dec(self.as_ptr(), &in6_addr(mgid)) })
    }
}

impl Drop for UnderlyingNetdev {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours to give up.
        unsafe { sys::ipoib_h_dev_put(self.0.as_ptr()) };
    }
}

/// The address as IPv6 has it; both are 16 bytes in wire order.
fn in6_addr(gid: &Gid) -> sys::in6_addr {
    let mut addr = sys::in6_addr::default();
    addr.in6_u.u6_addr8 = gid.0;
    addr
}
