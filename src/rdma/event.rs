// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events of a device and its ports.

use kernel::{container_of, prelude::*, sync::Arc, types::Opaque};

use super::device::DeviceHandle;
use crate::sys::bindings as sys;

/// What happened (`enum ib_event_type`, as far as device handlers see it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The device is dead.
    DeviceFatal,
    /// The port became active.
    PortActive,
    /// The port went down.
    PortError,
    /// The local identifier of the port changed.
    LidChange,
    /// The partition key table of the port changed.
    PKeyChange,
    /// Another subnet manager took over.
    SmChange,
    /// The subnet manager asks all clients to register anew.
    ClientReregister,
    /// The GID table of the port changed.
    GidChange,
    /// The speed of the port changed.
    SpeedChange,
    /// Something else; the number is the C value.
    Other(u32),
}

impl From<sys::ib_event_type> for EventKind {
    fn from(event: sys::ib_event_type) -> Self {
        match event {
            sys::ib_event_type::IB_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            sys::ib_event_type::IB_EVENT_PORT_ACTIVE => Self::PortActive,
            sys::ib_event_type::IB_EVENT_PORT_ERR => Self::PortError,
            sys::ib_event_type::IB_EVENT_LID_CHANGE => Self::LidChange,
            sys::ib_event_type::IB_EVENT_PKEY_CHANGE => Self::PKeyChange,
            sys::ib_event_type::IB_EVENT_SM_CHANGE => Self::SmChange,
            sys::ib_event_type::IB_EVENT_CLIENT_REREGISTER => Self::ClientReregister,
            sys::ib_event_type::IB_EVENT_GID_CHANGE => Self::GidChange,
            sys::ib_event_type::IB_EVENT_DEVICE_SPEED_CHANGE => Self::SpeedChange,
            other => Self::Other(other.0),
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// What happened.
    pub(crate) kind: EventKind,
    /// The port it happened to; `None` when it concerns the device or is of an unknown kind.
    pub(crate) port: Option<u32>,
}

/// A receiver of events.
pub(crate) trait EventHandler: Send + Sync + 'static {
    /// Called for every event of the device, of all its ports.
    ///
    /// Process context, but the core may hold its GID table lock: the only thing allowed here is
    /// to note the event and to queue work. Two events may be delivered concurrently and in
    /// another order than they happened: re-read the state, do not trust the order.
    fn event(&self, event: Event);
}

/// A registered event handler; events arrive until it is dropped.
///
/// The drop waits for a running callback, so it sleeps, must not happen inside of
/// [`EventHandler::event`], nor while holding anything the callback waits for.
///
/// # Invariants
///
/// `raw` is on the handler list of `device` from initialisation until the drop.
#[pin_data(PinnedDrop)]
pub(crate) struct EventRegistration<H: EventHandler> {
    #[pin]
    raw: Opaque<sys::ib_event_handler>,
    handler: Arc<H>,
    device: DeviceHandle,
}

// SAFETY: `H` is `Send + Sync`; the C part is only touched to register and unregister it.
unsafe impl<H: EventHandler> Send for EventRegistration<H> {}
// SAFETY: As above.
unsafe impl<H: EventHandler> Sync for EventRegistration<H> {}

impl<H: EventHandler> EventRegistration<H> {
    /// Registers `handler`. Sleeps.
    pub(crate) fn new(device: &DeviceHandle, handler: Arc<H>) -> impl PinInit<Self> {
        let device = device.clone();
        let target = device.as_ptr();
        // The initialisers run in this order: the callback may fire as soon as `raw` is set up, and
        // then finds the handler.
        pin_init!(Self {
            handler,
            device,
            raw <- Opaque::ffi_init(move |raw: *mut sys::ib_event_handler| {
                let init = sys::ib_event_handler {
                    device: target,
                    handler: Some(deliver::<H>),
                    ..Default::default()
                };
                // SAFETY: `raw` is valid for writes and pinned inside of a `Self`; the device is
                // valid, as `device` holds it; `PinnedDrop` unregisters.
                unsafe {
                    raw.write(init);
                    sys::ib_register_event_handler(raw);
                }
            }),
        })
    }
}

#[pinned_drop]
impl<H: EventHandler> PinnedDrop for EventRegistration<H> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants it is registered; when this returns no callback runs.
        unsafe { sys::ib_unregister_event_handler(self.raw.get()) };
    }
}

/// `ib_event_handler.handler`.
///
/// # Safety
///
/// Called by the core for a handler registered by [`EventRegistration<H>`], with a valid event.
unsafe extern "C" fn deliver<H: EventHandler>(
    raw: *mut sys::ib_event_handler,
    event: *mut sys::ib_event,
) {
    // SAFETY: `raw` is the field of a registered, hence initialised, `EventRegistration<H>`, whose
    // drop waits for us.
    let handler =
        unsafe { &(*container_of!(Opaque::cast_from(raw), EventRegistration<H>, raw)).handler };
    // SAFETY: The core passes a valid event.
    let event = unsafe { &*event };
    let kind = EventKind::from(event.event);
    let port = match kind {
        EventKind::DeviceFatal | EventKind::Other(_) => None,
        // SAFETY: For events of a port the union holds its number.
        _ => Some(unsafe { event.element.port_num }),
    };
    handler.event(Event { kind, port });
}
