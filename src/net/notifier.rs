// SPDX-License-Identifier: GPL-2.0

//! Hearing of changes of other network devices.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use core::marker::PhantomData;

use kernel::{
    container_of,
    error::to_result,
    ffi::{
        c_int,
        c_ulong,
        c_void, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::device::Device;
use crate::sys::bindings;

/// The changes that a listener may care about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The MTU has been changed.
    Mtu,
    /// The device may have a new name: it was renamed, or it came to another namespace, where a
    /// name that is taken is exchanged without an event of its own.
    Name,
    /// The device has come up.
    Up,
    /// An address of the device has changed.
    Addr,
}

/// What hears of changes.
pub(crate) trait Listener: Send + Sync + 'static {
    /// `dev` has changed. RTNL held; may sleep, but must not wait for anything that takes RTNL.
    fn changed(&self, dev: &Device, change: Change);
}

/// A registered notifier, for all net namespaces. Dropping it unregisters it.
///
/// # Invariants
///
/// `block` is registered from a successful `new` until the drop returns.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<L: Listener> {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    listener: Arc<L>,
    _listener: PhantomData<L>,
}

// SAFETY: registration and unregistration lock by themselves.
unsafe impl<L: Listener> Send for Registration<L> {}
// SAFETY: no method on `&self`.
unsafe impl<L: Listener> Sync for Registration<L> {}

impl<L: Listener> Registration<L> {
    /// Registers `listener`. Takes RTNL; may sleep.
    pub(crate) fn new(listener: Arc<L>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            listener,
            _listener: PhantomData,
            block <- Opaque::try_ffi_init(|slot: *mut bindings::notifier_block| {
                // SAFETY: `slot` is pinned memory that stays until the drop, and `listener`,
                // which the callback reads, is initialised before this field.
                unsafe {
                    slot.write(bindings::notifier_block {
                        notifier_call: Some(Self::callback),
                        ..pin_init::zeroed()
                    });
                    to_result(bindings::register_netdevice_notifier(slot))
                }
            }),
        })
    }

    /// # Safety
    ///
    /// Called by the notifier chain with the block of a live registration, RTNL held, and a
    /// `netdev_notifier_info`.
    unsafe extern "C" fn callback(
        block: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        let event = u32::try_from(event).unwrap_or(u32::MAX);
        let change = match bindings::netdev_cmd(event) {
            bindings::netdev_cmd::NETDEV_CHANGEMTU => Change::Mtu,
            bindings::netdev_cmd::NETDEV_CHANGENAME | bindings::netdev_cmd::NETDEV_REGISTER => {
                Change::Name
            }
            bindings::netdev_cmd::NETDEV_UP => Change::Up,
            bindings::netdev_cmd::NETDEV_CHANGEADDR => Change::Addr,
            _ => return 0,
        };
        // SAFETY: the block is a field of a live registration, and the info names a live device.
        unsafe {
            let this = &*container_of!(Opaque::cast_from(block), Self, block);
            let dev = (*info.cast::<bindings::netdev_notifier_info>()).dev;
            this.listener.changed(Device::from_raw(dev), change);
        }
        0
    }
}

#[pinned_drop]
impl<L: Listener> PinnedDrop for Registration<L> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: registered by the type invariant; waits for running callbacks.
        unsafe { bindings::unregister_netdevice_notifier(self.block.get()) };
    }
}
