// SPDX-License-Identifier: GPL-2.0

//! A view of a network device, as callbacks and holders of a reference see it.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use core::ptr::NonNull;

use kernel::{
    error::to_result,
    prelude::*,
    sync::aref::{
        ARef,
        AlwaysRefCounted, //
    },
    types::Opaque, //
};

use super::rtnl::Rtnl;
use crate::{
    base::{
        netdev::HeldNetdev,
        netns::Net, //
    },
    sys::bindings, //
};

/// Length of an InfiniBand link-layer address in octets.
pub(crate) const ALEN: usize = bindings::INFINIBAND_ALEN as usize;

/// Why the stack is told of a change (`call_netdevice_notifiers`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The device address changed.
    ChangeAddr,
    /// Peers should be told of our address anew (gratuitous ARP, unsolicited NA).
    Peers,
    /// The link-layer addresses of groups are about to change: forget them.
    AddressesGo,
    /// They have changed: make them anew.
    AddressesCome,
}

/// A `struct net_device` that exists as long as the reference to this view.
///
/// # Invariants
///
/// Points into an allocated `net_device`; whoever made the reference guarantees that it is not
/// freed while the reference lives (a counted reference, or a callback of that device).
#[repr(transparent)]
pub(crate) struct Device(Opaque<bindings::net_device>);

// SAFETY: a `net_device` may be used from any thread; the methods below either read single words
// or call functions that lock by themselves or demand a token.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

// SAFETY: `dev_hold` and `dev_put` count references; `free_netdev` waits for them.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // SAFETY: the device is live by the type invariant.
        unsafe { bindings::ipoib_h_dev_hold(self.as_ptr()) }
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: the caller gives up a reference that it owns.
        unsafe { bindings::ipoib_h_dev_put(obj.as_ptr().cast()) }
    }
}

impl From<ARef<Device>> for HeldNetdev {
    fn from(dev: ARef<Device>) -> Self {
        // SAFETY: the reference that the value owned, to a valid device.
        unsafe { Self::from_raw(ARef::into_raw(dev).cast()) }
    }
}

impl Device {
    /// Makes a view of a raw pointer.
    ///
    /// # Safety
    ///
    /// `ptr` is a valid `net_device` that is not freed during `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::net_device) -> &'a Self {
        // SAFETY: `Device` is a transparent wrapper; validity is the caller's promise.
        unsafe { &*ptr.cast::<Self>() }
    }

    /// The C object.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// The interface name now; it may change as soon as this returns unless RTNL is held.
    pub(crate) fn name(&self) -> Name {
        let mut name = Name([0; bindings::IFNAMSIZ as usize]);
        // SAFETY: `name` is an array in a live device; a concurrent rename can at worst give a
        // mixture of both names, and the last octet stays 0 in our copy.
        let src = unsafe { core::ptr::addr_of!((*self.as_ptr()).name).read() };
        for (to, from) in name
            .0
            .iter_mut()
            .zip(src)
            .take(bindings::IFNAMSIZ as usize - 1)
        {
            *to = from;
        }
        name
    }

    /// Whether the device has InfiniBand link-layer addresses.
    pub(crate) fn is_infiniband(&self) -> bool {
        // SAFETY: a plain word of a live device.
        u32::from(unsafe { (*self.as_ptr()).type_ }) == bindings::ARPHRD_INFINIBAND
    }

    /// Whether checksums that the hardware has found good count. Any context.
    #[inline]
    pub(crate) fn takes_checksums(&self) -> bool {
        // SAFETY: an aligned word of a live device.
        let features = unsafe { core::ptr::addr_of!((*self.as_ptr()).features).read_volatile() };
        features & bindings::IPOIB_CONST_NETIF_F_RXCSUM != 0
    }

    /// Has the core ask the driver anew which features it offers.
    pub(crate) fn update_features(&self, _rtnl: &Rtnl) {
        // SAFETY: live device, RTNL held.
        unsafe { bindings::netdev_update_features(self.as_ptr()) }
    }

    /// Switches carrier; does nothing if it is so already. Process or softirq context, no RTNL
    /// needed.
    pub(crate) fn set_carrier(&self, on: bool) {
        // SAFETY: the device is live; both functions are safe before and after registration.
        unsafe {
            if on {
                bindings::netif_carrier_on(self.as_ptr());
            } else {
                bindings::netif_carrier_off(self.as_ptr());
            }
        }
    }

    /// Overwrites the device address from octet `offset` on. Tells nobody; see [`Device::notify`].
    pub(crate) fn set_addr(&self, _rtnl: &Rtnl, offset: usize, octets: &[u8]) -> Result {
        if offset
            .checked_add(octets.len())
            .is_none_or(|end| end > ALEN)
        {
            return Err(EINVAL);
        }
        // SAFETY: the range lies within the address, and RTNL serialises writers.
        unsafe {
            bindings::dev_addr_mod(
                self.as_ptr(),
                offset as u32,
                octets.as_ptr().cast(),
                octets.len(),
            )
        };
        Ok(())
    }

    /// The broadcast address. Its octets are single bytes that the administrator may change meanwhile.
    pub(crate) fn broadcast(&self) -> [u8; ALEN] {
        let mut addr = [0; ALEN];
        // SAFETY: the array is part of a live device; no reference is made to it.
        let octets = unsafe { &raw const (*self.as_ptr()).broadcast };
        for (at, octet) in addr.iter_mut().enumerate() {
            // SAFETY: `at` is below ALEN, and the array is not shorter (asserted below). Writers may tear the
            // address, but no octet.
            *octet = unsafe { octets.cast::<u8>().add(at).read_volatile() };
        }
        addr
    }

    /// Sets octets 8 and 9 of the broadcast address.
    pub(crate) fn set_broadcast_pkey(&self, _rtnl: &Rtnl, pkey: [u8; 2]) {
        // SAFETY: the array is part of a live device; no reference is made to it.
        let octets = unsafe { &raw mut (*self.as_ptr()).broadcast }.cast::<[u8; 2]>();
        // SAFETY: octets 8 and 9 of at least ALEN, and RTNL serialises writers.
        unsafe { octets.add(4).write_volatile(pkey) };
    }

    /// Whether the administrator has set the interface up.
    pub(crate) fn is_up(&self, _rtnl: &Rtnl) -> bool {
        // SAFETY: a word of a live device, written under RTNL.
        unsafe { (*self.as_ptr()).flags & bindings::net_device_flags_IFF_UP != 0 }
    }

    /// Sets the MTU as `ip link set mtu` does, through `ndo_change_mtu`. May sleep.
    ///
    /// # Errors
    ///
    /// What `ndo_change_mtu` or a notifier says.
    pub(crate) fn set_mtu(&self, _rtnl: &Rtnl, mtu: u32) -> Result {
        // SAFETY: RTNL is held; `dev_set_mtu` takes the instance lock by itself.
        to_result(unsafe { bindings::dev_set_mtu(self.as_ptr(), mtu as i32) })
    }

    /// Writes the MTU without a check or notification: only from inside `ndo_change_mtu`.
    pub(crate) fn store_mtu(&self, _rtnl: &Rtnl, mtu: u32) {
        // SAFETY: an aligned word; RTNL serialises writers, readers take it volatile.
        unsafe { core::ptr::addr_of_mut!((*self.as_ptr()).mtu).write_volatile(mtu) }
    }

    /// Brings the interface up or takes it down as `ip link set up` and `down` do. May sleep.
    ///
    /// Not by `dev_change_flags`: that takes the flags of a promiscuous socket for the
    /// administrator's, and the device would stay promiscuous after the socket is closed.
    ///
    /// # Errors
    ///
    /// What `ndo_open` or a notifier says.
    pub(crate) fn set_up(&self, _rtnl: &Rtnl, up: bool) -> Result {
        // SAFETY: RTNL is held and the device is live; the instance lock is taken by the callees,
        // which do nothing if it is so already.
        unsafe {
            if up {
                to_result(bindings::dev_open(self.as_ptr(), core::ptr::null_mut()))
            } else {
                bindings::dev_close(self.as_ptr());
                Ok(())
            }
        }
    }

    /// The interface index, unique in the device's network namespace. Any context.
    pub(crate) fn ifindex(&self) -> i32 {
        // SAFETY: an aligned word of a live device.
        unsafe { core::ptr::addr_of!((*self.as_ptr()).ifindex).read_volatile() }
    }

    /// The network namespace that the device is in, which it does not leave while RTNL is held.
    pub(crate) fn net<'a>(&'a self, _rtnl: &'a Rtnl) -> Net<'a> {
        // SAFETY: a live device is in a namespace, and moves need RTNL.
        unsafe {
            let net = bindings::ipoib_h_dev_net(self.as_ptr());
            Net::from_raw(NonNull::new_unchecked(net))
        }
    }

    /// How many transmit and receive queues the device was allocated with.
    pub(crate) fn allocated_queues(&self) -> (u32, u32) {
        // SAFETY: both are fixed when the device is allocated.
        unsafe {
            (
                (*self.as_ptr()).num_tx_queues,
                (*self.as_ptr()).num_rx_queues,
            )
        }
    }

    /// Tells the stack of a change. May sleep.
    pub(crate) fn notify(&self, _rtnl: &Rtnl, what: Notify) {
        let event = match what {
            Notify::ChangeAddr => bindings::netdev_cmd::NETDEV_CHANGEADDR,
            Notify::Peers => bindings::netdev_cmd::NETDEV_NOTIFY_PEERS,
            // To the stack any new way to make them is a new type of device.
            Notify::AddressesGo => bindings::netdev_cmd::NETDEV_PRE_TYPE_CHANGE,
            Notify::AddressesCome => bindings::netdev_cmd::NETDEV_POST_TYPE_CHANGE,
        };
        // SAFETY: RTNL is held and the device is live.
        unsafe { bindings::call_netdevice_notifiers(event.0 as usize, self.as_ptr()) };
    }

    /// Whether the device is registered (between `register_netdev` and `unregister_netdev`).
    pub(crate) fn registered(&self, _rtnl: &Rtnl) -> bool {
        // SAFETY: a byte of a live device, written under RTNL.
        unsafe { (*self.as_ptr()).reg_state == bindings::netdev_reg_state_NETREG_REGISTERED as u8 }
    }

    /// Lets all transmit queues run.
    pub(crate) fn start_all_queues(&self) {
        // SAFETY: the device is live.
        unsafe { bindings::ipoib_h_tx_start_all_queues(self.as_ptr()) }
    }

    /// Stops all transmit queues and waits until no transmit function runs. Process context; the
    /// caller holds no transmit lock.
    pub(crate) fn disable_tx(&self) {
        // SAFETY: the device is live; takes each transmit lock in turn with BH disabled.
        unsafe { bindings::ipoib_h_tx_disable(self.as_ptr()) }
    }
}

/// A copy of an interface name.
#[derive(Clone, Copy)]
pub(crate) struct Name([u8; bindings::IFNAMSIZ as usize]);

impl Name {
    /// The name as a C string.
    pub(crate) fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"?")
    }
}

impl kernel::fmt::Display for Name {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        kernel::fmt::Display::fmt(self.as_cstr(), f)
    }
}

const _: () = assert!(bindings::MAX_ADDR_LEN as usize >= ALEN);
