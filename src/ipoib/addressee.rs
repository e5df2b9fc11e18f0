// SPDX-License-Identifier: GPL-2.0

//! Which interface a request of the RDMA connection manager is for (facts CMA-1 to CMA-4).

use core::net::IpAddr;

use kernel::{
    sync::aref::ARef, //
};

use super::port::Port;
use crate::{
    base::{
        log::warn_limited,
        netdev::HeldNetdev, //
    },
    net::{
        device::Device,
        upper, //
    },
    rdma::Addressee,
};

/// Calls `f` for the device of each interface on `port` that has the P_Key, until it says no.
fn each(port: &Port, to: &Addressee, mut f: impl FnMut(ARef<Device>) -> bool) {
    for iface in port.walk() {
        if !iface.pkey().same_partition(to.pkey) {
            continue;
        }
        if let Some(dev) = iface.device() {
            if !f(dev) {
                return;
            }
        }
    }
}

/// The device that has the address, of those on `port` with the P_Key and above them.
fn by_address(port: &Port, to: &Addressee, ip: IpAddr) -> Option<ARef<Device>> {
    let mut found: Option<ARef<Device>> = None;
    each(port, to, |dev| match (upper::owner(&dev, ip), &found) {
        (None, _) => true,
        (owner, None) => {
            found = owner;
            true
        }
        (Some(another), Some(first)) => {
            // Two interfaces of one bond have the same owner.
            if another.as_ptr() == first.as_ptr() {
                return true;
            }
            warn_limited!(
                "{}/{}: duplicate IP address: {} and {} have the one that a connection is asked for\n",
                port.rdma().device().name(),
                port.rdma().number(),
                first.name(),
                another.name()
            );
            false
        }
    });
    found
}

/// The device that the request is for: the one interface on `port` with the P_Key, or its bond; of
/// several the one that has the address. May sleep.
pub(super) fn find(port: &Port, to: &Addressee) -> Option<HeldNetdev> {
    if to.gid.is_some_and(|gid| gid != port.seen().gid) {
        return None;
    }
    let mut only: Option<ARef<Device>> = None;
    let mut several = false;
    each(port, to, |dev| {
        several = only.is_some();
        only.get_or_insert(dev);
        !several
    });
    let found = if several {
        by_address(port, to, to.ip?)?
    } else {
        upper::face(&*only?)
    };
    Some(found.into())
}
