// SPDX-License-Identifier: GPL-2.0

//! The callbacks of a network device as a trait, and the adapters that C calls.
//!
//! Each adapter turns raw pointers into a view, the driver's data and tokens for the locks that
//! the kernel holds in that callback, and calls one trait method. No logic here.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::from_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::{
        rcu::Guard,
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    device::{
        Device,
        ALEN, //
    },
    ethtool::Ethtool,
    rtnl::Rtnl,
    skb::SkBuff,
    txq::TxLocked, //
};
use crate::sys::bindings;

/// Octets of the link-layer header that [`Ops::hard_header`] makes.
pub(crate) const HARD_HEADER: usize = super::rxbuf::HARD_LEN;

/// Sums for `ip -s link`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) rx_errors: u64,
    pub(crate) rx_length_errors: u64,
    pub(crate) multicast: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_dropped: u64,
    pub(crate) tx_errors: u64,
}

/// What a driver does for its network devices.
pub(crate) trait Ops: Send + Sync + Sized + 'static {
    /// Brings the interface up. RTNL held; may sleep.
    fn open(this: ArcBorrow<'_, Self>, dev: &Device, rtnl: &Rtnl) -> Result;

    /// Takes the interface down. RTNL held; may sleep; cannot fail.
    fn stop(this: ArcBorrow<'_, Self>, dev: &Device, rtnl: &Rtnl);

    /// The device is being unregistered and is down: gives back all that depends on it, among
    /// that every reference on `dev`. RTNL held; may sleep. May be called twice.
    fn uninit(this: ArcBorrow<'_, Self>, dev: &Device);

    /// Sends a packet whose data starts with the [`HARD_HEADER`] octets. Softirq or process
    /// context with BH off, transmit lock held, inside an RCU read section.
    fn transmit(this: ArcBorrow<'_, Self>, skb: SkBuff, lock: &mut TxLocked<'_>, reading: &Guard);

    /// Whether the hardware can cut `skb`, whose data starts with the [`HARD_HEADER`] octets; else the
    /// stack does it. Softirq or process context with BH off, inside an RCU read section.
    fn can_segment(this: ArcBorrow<'_, Self>, skb: &SkBuff) -> bool;

    /// Which of `wanted` the device offers now (`NETIF_F_*`). RTNL held.
    fn fix_features(this: ArcBorrow<'_, Self>, wanted: u64) -> u64;

    /// The link-layer header for a packet of ethertype `protocol` (host byte order) to `to`.
    fn hard_header(protocol: u16, to: &[u8; ALEN]) -> [u8; HARD_HEADER];

    /// Changes the MTU; on success the driver has stored it. RTNL held; may sleep.
    fn change_mtu(this: ArcBorrow<'_, Self>, dev: &Device, rtnl: &Rtnl, mtu: u32) -> Result;

    /// The multicast addresses that the stack wants; those of a wrong length are not shown. RTNL
    /// held; may sleep. An error makes the core try again later.
    fn set_multicast(
        this: ArcBorrow<'_, Self>,
        dev: &Device,
        addrs: &mut dyn Iterator<Item = [u8; ALEN]>,
    ) -> Result;

    /// The transmit queue `queue` has been stopped for the watchdog's time. Softirq context.
    fn tx_timeout(this: ArcBorrow<'_, Self>, dev: &Device, queue: u32);

    /// Sums of the counters. Any context that may not sleep.
    fn stats(this: ArcBorrow<'_, Self>) -> Stats;

    /// The index of the device that this one lies on, or its own. Any context that may not sleep.
    fn iflink(this: ArcBorrow<'_, Self>, dev: &Device) -> i32;

    /// The device is gone, or is given up before it was registered: nothing calls any more, and no
    /// reference to the device is left. May sleep; RTNL may be held.
    fn release(this: Arc<Self>);

    /// The tables of this driver; always the same ones, for a device is known by their address.
    fn tables() -> &'static Tables<Self>
    where
        Self: Ethtool;
}

/// The tables of callbacks that the devices of a driver share.
pub(crate) struct Tables<T> {
    pub(super) netdev: bindings::net_device_ops,
    pub(super) header: bindings::header_ops,
    pub(super) ethtool: bindings::ethtool_ops,
    _driver: PhantomData<fn() -> T>,
}

impl<T: Ethtool> Tables<T> {
    /// The tables, for a `static`.
    pub(crate) const fn new() -> Self {
        Self {
            netdev: Adapter::<T>::NETDEV_OPS,
            header: Adapter::<T>::HEADER_OPS,
            ethtool: Adapter::<T>::ETHTOOL_OPS,
            _driver: PhantomData,
        }
    }
}

// SAFETY: tables of functions, which nobody writes.
unsafe impl<T> Sync for Tables<T> {}

/// What the private area of the device holds.
///
/// # Invariants
///
/// `data` is null or came from `Arc::into_raw` and owns one reference.
#[repr(C)]
pub(super) struct PrivSlot<T> {
    data: *const T,
    /// No `Registration` owns the device: whoever deletes the link unregisters it.
    loose: bool,
}

/// The C side of [`Ops`].
pub(super) struct Adapter<T: Ops>(PhantomData<T>);

impl<T: Ops> Adapter<T> {
    pub(super) const NETDEV_OPS: bindings::net_device_ops = bindings::net_device_ops {
        ndo_uninit: Some(Self::uninit),
        ndo_open: Some(Self::open),
        ndo_stop: Some(Self::stop),
        ndo_start_xmit: Some(Self::start_xmit),
        ndo_features_check: Some(Self::features_check),
        ndo_fix_features: Some(Self::fix_features),
        ndo_change_mtu: Some(Self::change_mtu),
        ndo_set_rx_mode_async: Some(Self::set_rx_mode),
        ndo_tx_timeout: Some(Self::tx_timeout),
        ndo_get_stats64: Some(Self::get_stats64),
        ndo_get_iflink: Some(Self::get_iflink),
        ..pin_init::zeroed()
    };

    pub(super) const HEADER_OPS: bindings::header_ops = bindings::header_ops {
        create: Some(Self::create_header),
        ..pin_init::zeroed()
    };

    pub(super) const PRIV_SIZE: usize = size_of::<PrivSlot<T>>();

    /// Puts the driver's data into a new device.
    ///
    /// # Safety
    ///
    /// `dev` was allocated with [`Self::PRIV_SIZE`], its private area is zeroed and not in use.
    pub(super) unsafe fn install(dev: *mut bindings::net_device, data: Arc<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            let slot = bindings::ipoib_h_netdev_priv(dev).cast::<PrivSlot<T>>();
            (*slot).data = Arc::into_raw(data);
        }
    }

    /// The driver's data.
    ///
    /// # Safety
    ///
    /// `dev` is live, [`Self::install`] was called for it, and `priv_destructor` was not, nor will
    /// it be while `'a` lasts.
    pub(super) unsafe fn data<'a>(dev: *mut bindings::net_device) -> ArcBorrow<'a, T> {
        // SAFETY: by the invariant of `PrivSlot` and the caller's promise the pointer is that of a
        // live `Arc`.
        unsafe {
            let slot = (&raw mut (*dev).priv_).cast::<PrivSlot<T>>();
            ArcBorrow::from_raw((*slot).data)
        }
    }

    /// Drops the driver's data; harmless when repeated (TRAP-36).
    ///
    /// # Safety
    ///
    /// `dev` is live and no callback runs or will run for it.
    pub(super) unsafe extern "C" fn priv_destructor(dev: *mut bindings::net_device) {
        // SAFETY: by the invariant of `PrivSlot`; the slot is emptied before the reference goes.
        unsafe {
            let slot = bindings::ipoib_h_netdev_priv(dev).cast::<PrivSlot<T>>();
            let data = core::mem::replace(&mut (*slot).data, core::ptr::null());
            if !data.is_null() {
                T::release(Arc::from_raw(data));
            }
        }
    }

    /// Notes that no `Registration` will own the device.
    ///
    /// # Safety
    ///
    /// `dev` is an allocated device of this adapter that is not registered.
    pub(super) unsafe fn set_loose(dev: *mut bindings::net_device) {
        // SAFETY: the caller's promise.
        unsafe {
            let slot = bindings::ipoib_h_netdev_priv(dev).cast::<PrivSlot<T>>();
            (*slot).loose = true;
        }
    }

    /// Whether `dev` is registered and has no owner.
    ///
    /// # Safety
    ///
    /// `dev` is a live device of this adapter.
    pub(super) unsafe fn is_loose(dev: *mut bindings::net_device, rtnl: &Rtnl) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let slot = bindings::ipoib_h_netdev_priv(dev).cast::<PrivSlot<T>>();
            (*slot).loose && Device::from_raw(dev).registered(rtnl)
        }
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter.
    unsafe extern "C" fn open(dev: *mut bindings::net_device) -> c_int {
        // SAFETY: `__dev_open` calls with RTNL held and the device registered.
        let (this, view, rtnl) =
            unsafe { (Self::data(dev), Device::from_raw(dev), Rtnl::assume_held()) };
        from_result(|| T::open(this, view, &rtnl).map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter.
    unsafe extern "C" fn stop(dev: *mut bindings::net_device) -> c_int {
        // SAFETY: `__dev_close_many` calls with RTNL held and the device registered.
        let (this, view, rtnl) =
            unsafe { (Self::data(dev), Device::from_raw(dev), Rtnl::assume_held()) };
        T::stop(this, view, &rtnl);
        0
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter.
    unsafe extern "C" fn uninit(dev: *mut bindings::net_device) {
        // SAFETY: called from unregistration (or a failed registration), before the destructor.
        let (this, view) = unsafe { (Self::data(dev), Device::from_raw(dev)) };
        T::uninit(this, view);
    }

    /// # Safety
    ///
    /// Called by the core with the transmit lock of the packet's queue held.
    unsafe extern "C" fn start_xmit(
        skb: *mut bindings::sk_buff,
        dev: *mut bindings::net_device,
    ) -> bindings::netdev_tx_t {
        // SAFETY: the core passes a valid buffer and with it its ownership, holds the lock of the
        // queue that the buffer is mapped to (the device is not lockless) with bottom halves disabled, and keeps
        // the device registered meanwhile.
        unsafe {
            if let Some(ptr) = NonNull::new(skb) {
                let skb = SkBuff::from_raw(ptr);
                let txq = (*dev)._tx.add(skb.queue_mapping().into());
                if let Some(txq) = NonNull::new(txq) {
                    let mut lock = TxLocked::assume_held(txq);
                    T::transmit(Self::data(dev), skb, &mut lock, bottom_halves_off());
                }
            }
        }
        bindings::netdev_tx::NETDEV_TX_OK
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter, from its registration on.
    unsafe extern "C" fn fix_features(
        dev: *mut bindings::net_device,
        wanted: bindings::netdev_features_t,
    ) -> bindings::netdev_features_t {
        // SAFETY: the caller keeps the device.
        T::fix_features(unsafe { Self::data(dev) }, wanted)
    }

    /// # Safety
    ///
    /// Called by the core for a valid buffer on its way to a live device of this adapter.
    unsafe extern "C" fn features_check(
        skb: *mut bindings::sk_buff,
        dev: *mut bindings::net_device,
        features: bindings::netdev_features_t,
    ) -> bindings::netdev_features_t {
        let Some(ptr) = NonNull::new(skb) else {
            return features;
        };
        // SAFETY: the buffer is valid and stays the caller's: the value is not dropped.
        let skb = core::mem::ManuallyDrop::new(unsafe { SkBuff::from_raw(ptr) });
        // SAFETY: the core keeps the device registered meanwhile.
        if skb.is_gso() && !T::can_segment(unsafe { Self::data(dev) }, &skb) {
            features & !bindings::IPOIB_CONST_NETIF_F_GSO_MASK
        } else {
            features
        }
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter.
    unsafe extern "C" fn change_mtu(dev: *mut bindings::net_device, mtu: c_int) -> c_int {
        // SAFETY: `__netif_set_mtu` calls with RTNL held and the device registered.
        let (this, view, rtnl) =
            unsafe { (Self::data(dev), Device::from_raw(dev), Rtnl::assume_held()) };
        from_result(|| {
            let mtu = u32::try_from(mtu).map_err(|_| EINVAL)?;
            T::change_mtu(this, view, &rtnl, mtu).map(|()| 0)
        })
    }

    /// # Safety
    ///
    /// Called by the core in process context with RTNL held; the lists are snapshots.
    unsafe extern "C" fn set_rx_mode(
        dev: *mut bindings::net_device,
        _uc: *mut bindings::netdev_hw_addr_list,
        mc: *mut bindings::netdev_hw_addr_list,
    ) -> c_int {
        // SAFETY: the device is registered; the snapshot is ours to read during the call.
        let (this, view) = unsafe { (Self::data(dev), Device::from_raw(dev)) };
        // SAFETY: as above.
        let mut addrs = unsafe { McAddrs::new(mc) };
        from_result(|| T::set_multicast(this, view, &mut addrs).map(|()| 0))
    }

    /// # Safety
    ///
    /// Called by the watchdog timer for a registered device of this adapter.
    unsafe extern "C" fn tx_timeout(dev: *mut bindings::net_device, queue: c_uint) {
        // SAFETY: the watchdog runs only while the device is registered and up.
        let (this, view) = unsafe { (Self::data(dev), Device::from_raw(dev)) };
        T::tx_timeout(this, view, queue);
    }

    /// # Safety
    ///
    /// Called by the core for a live device of this adapter; `out` is zeroed or filled already.
    unsafe extern "C" fn get_stats64(
        dev: *mut bindings::net_device,
        out: *mut bindings::rtnl_link_stats64,
    ) {
        // SAFETY: the caller keeps the device registered.
        let s = T::stats(unsafe { Self::data(dev) });
        // SAFETY: `out` is the caller's.
        let out = unsafe { &mut *out };
        out.rx_packets = s.rx_packets;
        out.rx_bytes = s.rx_bytes;
        out.rx_dropped = s.rx_dropped;
        out.rx_errors = s.rx_errors;
        out.rx_length_errors = s.rx_length_errors;
        out.multicast = s.multicast;
        out.tx_packets = s.tx_packets;
        out.tx_bytes = s.tx_bytes;
        out.tx_dropped = s.tx_dropped;
        out.tx_errors = s.tx_errors;
    }

    /// # Safety
    ///
    /// Called by the core for a live device of this adapter.
    unsafe extern "C" fn get_iflink(dev: *const bindings::net_device) -> c_int {
        let dev = dev.cast_mut();
        // SAFETY: the caller keeps the device registered.
        unsafe { T::iflink(Self::data(dev), Device::from_raw(dev)) }
    }

    /// # Safety
    ///
    /// Called by the stack with a valid buffer that has [`HARD_HEADER`] octets of headroom
    /// (`hard_header_len`); `daddr` is null or a link-layer address of the device's length.
    unsafe extern "C" fn create_header(
        skb: *mut bindings::sk_buff,
        _dev: *mut bindings::net_device,
        protocol: u16,
        daddr: *const c_void,
        _saddr: *const c_void,
        _len: c_uint,
    ) -> c_int {
        // Packet sockets may send without a destination (TX-2): there is nothing to put there, as
        // the negative length says.
        if daddr.is_null() {
            return -(HARD_HEADER as c_int);
        }
        // SAFETY: the address has the device's 20 octets.
        let to = unsafe { &*daddr.cast::<[u8; ALEN]>() };
        let header = T::hard_header(protocol, to);
        // SAFETY: the stack has reserved the headroom; `skb_push` checks it.
        unsafe {
            let at = bindings::skb_push(skb, HARD_HEADER as u32).cast::<[u8; HARD_HEADER]>();
            at.write(header);
        }
        HARD_HEADER as c_int
    }
}

/// The read section that a context with bottom halves or interrupts disabled is in anyway (`synchronize_rcu`).
///
/// # Safety
///
/// Bottom halves, or interrupts as in netpoll, are disabled during `'a`.
#[inline]
pub(super) unsafe fn bottom_halves_off<'a>() -> &'a Guard {
    const { assert!(size_of::<Guard>() == 0 && align_of::<Guard>() == 1) };
    // SAFETY: a value without size may be anywhere. It stands for a read section, which there is as the caller
    // promises, and nothing drops it.
    unsafe { NonNull::<Guard>::dangling().as_ref() }
}

impl<T: Ethtool> Adapter<T> {
    /// Whether `dev` is a device of this adapter.
    pub(super) fn owns(dev: &Device) -> bool {
        // SAFETY: a word of a live device, fixed before registration.
        let ops = unsafe { (*dev.as_ptr()).netdev_ops };
        core::ptr::eq(ops, &T::tables().netdev)
    }
}

/// Walks a snapshot of a device's multicast list.
struct McAddrs<'a> {
    head: *mut bindings::list_head,
    at: *mut bindings::list_head,
    _life: PhantomData<&'a ()>,
}

impl McAddrs<'_> {
    /// # Safety
    ///
    /// `list` is a valid list that nobody changes while the result is used.
    unsafe fn new(list: *mut bindings::netdev_hw_addr_list) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let head = core::ptr::addr_of_mut!((*list).list);
            Self {
                head,
                at: (*head).next,
                _life: PhantomData,
            }
        }
    }
}

impl Iterator for McAddrs<'_> {
    type Item = [u8; ALEN];

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.head {
            return None;
        }
        // SAFETY: a member of the list, which nobody changes; entries hold MAX_ADDR_LEN octets.
        unsafe {
            let entry = kernel::container_of!(self.at, bindings::netdev_hw_addr, list);
            self.at = (*self.at).next;
            Some(
                core::ptr::addr_of!((*entry).addr)
                    .cast::<[u8; ALEN]>()
                    .read(),
            )
        }
    }
}
