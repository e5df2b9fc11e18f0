// SPDX-License-Identifier: GPL-2.0

//! Hearing of changes of other network devices.
//!
//! The module has one notifier for as long as it is loaded. A notifier per RDMA device would have to go when the
//! device does; but to unregister one is to wait for the end of namespace clean-ups, and a clean-up waits for
//! RDMA devices to go whose network device is in the namespace.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use kernel::{
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
use crate::{
    base::once::Once,
    sys::bindings, //
};

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
    /// `dev` has changed. RTNL held; may sleep, but must not wait for anything that takes RTNL, nor begin or end
    /// to listen.
    fn changed(&self, dev: &Device, change: Change);
}

kernel::sync::global_lock! {
    // SAFETY: only used while a `Notifier` exists, whose initialiser comes first.
    unsafe(uninit) static LISTENERS: Mutex<KVec<Arc<dyn Listener>>> = KVec::new();
}

/// How far `LISTENERS` is.
static READY: Once = Once::new();

/// The module's notifier, for all net namespaces. Dropping it unregisters it.
///
/// # Invariants
///
/// `block` is registered from a successful `new` until the drop returns, and `LISTENERS` is initialised.
#[pin_data(PinnedDrop)]
pub(crate) struct Notifier {
    #[pin]
    block: Opaque<bindings::notifier_block>,
}

// SAFETY: registration and unregistration lock by themselves.
unsafe impl Send for Notifier {}
// SAFETY: no method on `&self`.
unsafe impl Sync for Notifier {}

impl Notifier {
    /// Registers the notifier. Takes RTNL and waits for namespaces that are being set up or cleaned up; may sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there has been one since the module was loaded.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _: {
                // SAFETY: called once.
                READY.call(|| unsafe { LISTENERS.init() })?;
            },
            block <- Opaque::try_ffi_init(|slot: *mut bindings::notifier_block| {
                // SAFETY: `slot` is pinned memory that stays until the drop.
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
    /// Called by the notifier chain for a `Notifier`, RTNL held, with a `netdev_notifier_info`.
    unsafe extern "C" fn callback(
        _block: *mut bindings::notifier_block,
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
        // SAFETY: the info names a live device.
        let dev = unsafe { Device::from_raw((*info.cast::<bindings::netdev_notifier_info>()).dev) };
        for listener in LISTENERS.lock().iter() {
            listener.changed(dev, change);
        }
        0
    }
}

#[pinned_drop]
impl PinnedDrop for Notifier {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: registered by the type invariant; waits for running callbacks.
        unsafe { bindings::unregister_netdevice_notifier(self.block.get()) };
        // The static itself is never dropped.
        let listeners = core::mem::take(&mut *LISTENERS.lock());
        drop(listeners);
    }
}

/// A listener that hears of changes until this is dropped.
///
/// The drop waits for a running [`Listener::changed`]; it takes neither RTNL nor anything that the clean-up of a
/// namespace holds.
pub(crate) struct Listening(Arc<dyn Listener>);

impl Listening {
    /// Lets `listener` hear of changes from now on. May sleep; not with RTNL held.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no [`Notifier`]; `ENOMEM`.
    pub(crate) fn new(listener: Arc<dyn Listener>) -> Result<Self> {
        if !READY.is_done() {
            return Err(ENODEV);
        }
        LISTENERS.lock().push(listener.clone(), GFP_KERNEL)?;
        Ok(Self(listener))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listeners = LISTENERS.lock();
        if let Some(i) = listeners
            .iter()
            .position(|other| Arc::ptr_eq(other, &self.0))
        {
            // It cannot fail: the position is one of the vector's.
            let _ = listeners.remove(i);
        }
    }
}
