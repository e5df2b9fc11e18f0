// SPDX-License-Identifier: GPL-2.0

//! Making, registering and unregistering a network device.

use core::marker::PhantomData;

use kernel::{
    device,
    error::to_result,
    prelude::*,
    sync::Arc, //
};

use super::{
    device::{
        Device,
        ALEN, //
    },
    link::{
        Kind,
        LinkKind, //
    },
    ops::{
        Adapter,
        Ops,
        HARD_HEADER, //
    },
    rtnl::Rtnl,
    sysfs::Group, //
};
use crate::{
    base::netns::Net,
    sys::bindings,
    wire::mtu, //
};

/// Milliseconds that a stopped transmit queue may stay so before the watchdog calls (NET-7).
const WATCHDOG_MS: u32 = 10_000;
/// Packets in the default queueing discipline (NET-7).
const TX_QUEUE_LEN: u32 = 1000;

/// What hardware can do for the stack.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offloads {
    /// Gather a packet from several pieces.
    pub(crate) scatter: bool,
    /// Fill in and check TCP and UDP checksums of IPv4.
    pub(crate) checksum: bool,
    /// Cut TCP packets of IPv4; counts only with the two above.
    pub(crate) segmentation: bool,
}

impl Offloads {
    /// `features` without those that are left to the hardware packet by packet on the way out.
    pub(crate) const fn without(features: u64) -> u64 {
        features & !(bindings::IPOIB_CONST_NETIF_F_IP_CSUM | bindings::IPOIB_CONST_NETIF_F_TSO)
    }

    /// The features to offer, and those that users may switch.
    fn features(self) -> (u64, u64) {
        let mut switched = 0;
        if self.checksum {
            switched |=
                bindings::IPOIB_CONST_NETIF_F_IP_CSUM | bindings::IPOIB_CONST_NETIF_F_RXCSUM;
            if self.segmentation && self.scatter {
                switched |= bindings::IPOIB_CONST_NETIF_F_TSO;
            }
        }
        let mut features = switched
            | bindings::IPOIB_CONST_NETIF_F_VLAN_CHALLENGED
            | bindings::IPOIB_CONST_NETIF_F_HIGHDMA;
        if self.scatter {
            features |= bindings::IPOIB_CONST_NETIF_F_SG;
        }
        (features, switched)
    }
}

/// What the device looks like when it registers.
pub(crate) struct Config<'a> {
    /// Device address.
    pub(crate) addr: [u8; ALEN],
    /// Broadcast address.
    pub(crate) broadcast: [u8; ALEN],
    /// MTU at start, octets.
    pub(crate) mtu: u32,
    /// What the hardware can do.
    pub(crate) offloads: Offloads,
    /// Port number counted from 0, for udev's names.
    pub(crate) port: u16,
    /// The device that the interface hangs below in sysfs.
    pub(crate) parent: Option<&'a device::Device>,
    /// The network namespace to appear in; `None` leaves it as it is.
    pub(crate) net: Option<Net<'a>>,
    /// How many of the allocated transmit and receive queues are in use, at least 1.
    pub(crate) queues: u32,
    /// Files of the driver in the device's sysfs folder.
    pub(crate) files: &'static Group,
}

/// An allocated device that is not registered. Dropping it frees it.
///
/// # Invariants
///
/// `dev` is allocated, not registered, holds the driver's data, and is ours to free unless it is
/// `adopted`.
pub(crate) struct Unregistered<T: Ops> {
    dev: *mut bindings::net_device,
    /// Somebody else frees the memory.
    adopted: bool,
    _data: PhantomData<T>,
}

/// A registered device. Dropping it unregisters it (takes RTNL, may sleep) and frees it.
///
/// # Invariants
///
/// `dev` is registered by us and not yet unregistered.
pub(crate) struct Registration<T: Ops> {
    dev: *mut bindings::net_device,
    _data: PhantomData<T>,
}

// SAFETY: a device may be unregistered by any thread.
unsafe impl<T: Ops> Send for Registration<T> {}
// SAFETY: no method on `&self`.
unsafe impl<T: Ops> Sync for Registration<T> {}

impl<T: LinkKind> Unregistered<T> {
    /// Allocates a device named by `name` (with a `%d` for the number) with `queues` transmit and
    /// receive queues, and gives it `data`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(name: &CStr, queues: u32, data: Arc<T>) -> Result<Self> {
        // SAFETY: `name` is a C string; `setup` is sound for a new device.
        let dev = unsafe {
            bindings::alloc_netdev_mqs(
                Adapter::<T>::PRIV_SIZE as i32,
                name.as_char_ptr(),
                bindings::NET_NAME_UNKNOWN as u8,
                Some(Self::setup),
                queues,
                queues,
            )
        };
        if dev.is_null() {
            return Err(ENOMEM);
        }
        // SAFETY: a new device with a zeroed private area of the right size.
        let mut new = unsafe { Self::adopt(dev, data) };
        // INVARIANT: allocated above and known to nobody else.
        new.adopted = false;
        Ok(new)
    }

    /// Gives `data` to a device that somebody else has allocated, and frees if it is not registered.
    ///
    /// # Safety
    ///
    /// `dev` was allocated with [`Adapter::PRIV_SIZE`] and [`Self::setup`], is not registered, its
    /// private area is zeroed and not in use, and it outlives the result.
    pub(super) unsafe fn adopt(dev: *mut bindings::net_device, data: Arc<T>) -> Self {
        // Completions come one by one where the hardware moderates nothing, and GRO would end with
        // each of them: let it go on for 20 us. NAPI instances copy this when they are added.
        // SAFETY: a new device that is not registered.
        unsafe { bindings::netdev_sw_irq_coalesce_default_on(dev) };
        // SAFETY: the caller's promise.
        unsafe { Adapter::<T>::install(dev, data) };
        // INVARIANT: the caller's promise.
        Self {
            dev,
            adopted: true,
            _data: PhantomData,
        }
    }

    /// The view of the device.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: live by the type invariant.
        unsafe { Device::from_raw(self.dev) }
    }

    /// # Safety
    ///
    /// Called by `alloc_netdev_mqs` for a new device.
    pub(super) unsafe extern "C" fn setup(dev: *mut bindings::net_device) {
        let tables = T::tables();
        // SAFETY: a new device that nobody else knows.
        let dev = unsafe { &mut *dev };
        dev.type_ = bindings::ARPHRD_INFINIBAND as u16;
        dev.addr_len = ALEN as u8;
        dev.hard_header_len = HARD_HEADER as u16;
        dev.flags |=
            bindings::net_device_flags_IFF_BROADCAST | bindings::net_device_flags_IFF_MULTICAST;
        dev.tx_queue_len = TX_QUEUE_LEN;
        dev.watchdog_timeo = (WATCHDOG_MS / 1000 * bindings::IPOIB_CONST_HZ) as i32;
        // What the core lets through to `change_mtu` (NET-12). There is no least: that is the driver's
        // to judge.
        dev.max_mtu = mtu::CONNECTED_MAX;
        dev.netdev_ops = &tables.netdev;
        dev.header_ops = &tables.header;
        dev.ethtool_ops = &tables.ethtool;
        dev.needs_free_netdev = true;
        dev.priv_destructor = Some(Adapter::<T>::priv_destructor);
    }

    /// Registers the device under its name template. Takes RTNL; may sleep.
    ///
    /// # Errors
    ///
    /// What `register_netdev` says. The device comes back, and whatever holds a reference on it
    /// must give it up before it is dropped.
    pub(crate) fn register(
        self,
        config: &Config<'_>,
    ) -> core::result::Result<Registration<T>, (Error, Self)> {
        self.fill(config);
        // SAFETY: fully set up; takes RTNL by itself.
        if let Err(e) = to_result(unsafe { bindings::register_netdev(self.dev) }) {
            return Err((e, self));
        }
        let this = core::mem::ManuallyDrop::new(self);
        // INVARIANT: registered just now.
        Ok(Registration {
            dev: this.dev,
            _data: PhantomData,
        })
    }

    /// Registers the device as one without an owner: it is unregistered when its link is deleted,
    /// or by [`unregister`](super::link::unregister). May sleep.
    ///
    /// # Errors
    ///
    /// As for [`Self::register`].
    pub(crate) fn register_loose(
        self,
        config: &Config<'_>,
        _rtnl: &Rtnl,
    ) -> core::result::Result<(), (Error, Self)> {
        self.fill(config);
        // SAFETY: not registered yet, fully set up, and RTNL is held.
        let registered = unsafe {
            Adapter::<T>::set_loose(self.dev);
            to_result(bindings::register_netdevice(self.dev))
        };
        if let Err(e) = registered {
            return Err((e, self));
        }
        core::mem::forget(self);
        Ok(())
    }

    /// Fills in what registration needs.
    fn fill(&self, config: &Config<'_>) {
        // SAFETY: not registered, so nobody else reads or writes these fields yet.
        unsafe {
            let dev = &mut *self.dev;
            dev.mtu = config.mtu;
            let (features, switched) = config.offloads.features();
            dev.features = features;
            dev.hw_features |= switched;
            for (to, from) in dev.broadcast.iter_mut().zip(config.broadcast) {
                *to = from;
            }
            dev.dev_port = config.port;
            dev.dev_id = config.port;
            bindings::ipoib_h_keep_dst(self.dev);
            if let Some(net) = config.net {
                bindings::ipoib_h_dev_net_set(self.dev, net.as_ptr());
            }
            let ops = Kind::<T>::ops();
            if dev.rtnl_link_ops.is_null() && !ops.is_null() {
                dev.rtnl_link_ops = ops;
            }
            if let Some(group) = dev.sysfs_groups.first_mut() {
                *group = config.files.as_ptr();
            }
            bindings::dev_addr_mod(self.dev, 0, config.addr.as_ptr().cast(), ALEN);
            // Neither can fail: no more than there are, and before registration nothing is resized.
            let most = dev.num_tx_queues.min(dev.num_rx_queues);
            let queues = config.queues.min(most).max(1);
            bindings::netif_set_real_num_tx_queues(self.dev, queues);
            bindings::netif_set_real_num_rx_queues(self.dev, queues);
            if let Some(parent) = config.parent {
                // CAST: `Device` is a transparent wrapper of `struct device`.
                let parent = core::ptr::from_ref(parent).cast_mut().cast();
                bindings::ipoib_h_set_netdev_dev(self.dev, parent);
            }
        }
        // Carrier is the driver's to give: without this the stack would think it on.
        self.device().set_carrier(false);
    }
}

impl<T: Ops> Drop for Unregistered<T> {
    fn drop(&mut self) {
        // SAFETY: allocated and not registered by the type invariant; a failed registration may
        // have run the destructor already, which is harmless to repeat.
        unsafe {
            Adapter::<T>::priv_destructor(self.dev);
            if !self.adopted {
                bindings::free_netdev(self.dev);
            }
        }
    }
}

impl<T: Ops> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: registered by the type invariant. Unregistration takes the device down, calls
        // `uninit`, waits for all references, runs the destructor and frees the device.
        unsafe { bindings::unregister_netdev(self.dev) }
    }
}
