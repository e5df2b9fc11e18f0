// SPDX-License-Identifier: GPL-2.0

//! Devices above a device (bonds, VRFs and the like), and whose an IP address is.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use core::{
    net::IpAddr,
    ptr::null_mut, //
};

use kernel::{
    ffi::c_int,
    sync::{
        aref::ARef,
        rcu, //
    }, //
};

use super::device::Device;
use crate::sys::bindings;

/// The device that stands for `dev` in its host: its master, if it has one that takes its frames over as
/// a bond does, else `dev` itself. A VRF takes over routes only, and so does not count. Any context.
pub(crate) fn face(dev: &Device) -> ARef<Device> {
    let _guard = rcu::read_lock();
    // SAFETY: the device is live; a master that is found stays until the guard is dropped, before which
    // it is held.
    unsafe {
        let master = bindings::netdev_master_upper_dev_get_rcu(dev.as_ptr());
        if master.is_null() || bindings::ipoib_h_is_l3_master(master) {
            dev.into()
        } else {
            Device::from_raw(master).into()
        }
    }
}

/// Whom a walk over devices looks for.
struct Search {
    ip: IpAddr,
    found: *mut bindings::net_device,
}

impl Search {
    /// Whether `dev` has the address.
    ///
    /// # Safety
    ///
    /// `dev` is live, and an RCU read lock is held.
    unsafe fn fits(&self, dev: *mut bindings::net_device) -> bool {
        // SAFETY: by the caller's promise; the addresses are only read during the calls.
        unsafe {
            match self.ip {
                IpAddr::V4(ip) => {
                    let ip = u32::from_ne_bytes(ip.octets());
                    let settings = bindings::ipoib_h_in_dev_get_rcu(dev);
                    let net = bindings::ipoib_h_dev_net(dev);
                    let host = bindings::rt_scope_t_RT_SCOPE_HOST as c_int;
                    !settings.is_null()
                        && bindings::inet_confirm_addr(net, settings, 0, ip, host) != 0
                }
                IpAddr::V6(ip) => {
                    let mut addr = bindings::in6_addr::default();
                    addr.in6_u.u6_addr8 = ip.octets();
                    bindings::ipoib_h_has_ipv6(dev, &addr)
                }
            }
        }
    }

    /// For `netdev_walk_all_upper_dev_rcu`: 1 ends the walk.
    ///
    /// # Safety
    ///
    /// `dev` is live, an RCU read lock is held, and the private data point to a `Search` that nobody else
    /// uses.
    unsafe extern "C" fn visit(
        dev: *mut bindings::net_device,
        private: *mut bindings::netdev_nested_priv,
    ) -> c_int {
        // SAFETY: by the caller's promise.
        unsafe {
            let search = &mut *(*private).data.cast::<Self>();
            if !search.fits(dev) {
                return 0;
            }
            search.found = dev;
        }
        1
    }
}

/// The device that has the address `ip`: `dev` itself or one that lies above it. Any context.
pub(crate) fn owner(dev: &Device, ip: IpAddr) -> Option<ARef<Device>> {
    let mut search = Search {
        ip,
        found: null_mut(),
    };
    let _guard = rcu::read_lock();
    // SAFETY: the device is live and the guard is held, also while what was found is held in turn; the
    // walk uses the private data as `visit` wants them.
    unsafe {
        if search.fits(dev.as_ptr()) {
            return Some(dev.into());
        }
        let mut private = bindings::netdev_nested_priv {
            data: core::ptr::addr_of_mut!(search).cast(),
            ..Default::default()
        };
        bindings::netdev_walk_all_upper_dev_rcu(dev.as_ptr(), Some(Search::visit), &mut private);
        (!search.found.is_null()).then(|| Device::from_raw(search.found).into())
    }
}
