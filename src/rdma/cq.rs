// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use core::ptr::NonNull;
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_void},
    prelude::*,
    sync::Arc,
};

use super::{device::DeviceHandle, wc::Wc};
use crate::sys::{bindings as sys, compat::unsupported};

/// Whom a completion queue calls.
pub(crate) trait CompletionHandler: Send + Sync + 'static {
    /// The armed queue has a completion.
    ///
    /// Called in any context, interrupts possibly off, and possibly with locks of the driver held:
    /// the only thing allowed is to schedule the poll. A handler must not own the [`Cq`], or
    /// neither would ever be freed.
    fn completed(&self);

    /// The queue is broken (it overflowed, or the hardware failed): completions are missing, and
    /// perhaps none will come any more. Any context, as above: only note it and queue work.
    fn failed(&self);
}

/// # Invariants
///
/// `raw` is a completion queue of `device` whose context is `context`, and `context` owns a
/// reference to the handler that `release` gives back.
struct Inner {
    raw: NonNull<sys::ib_cq>,
    context: *const c_void,
    release: unsafe fn(*const c_void),
    device: DeviceHandle,
}

// SAFETY: A completion queue may be used from any thread; the handler is `Send + Sync`.
unsafe impl Send for Inner {}
// SAFETY: As above. Only the one `CqPoller` polls and arms.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: The queue is valid, and every queue pair on it held this value.
        let ret = unsafe { sys::ib_destroy_cq_user(self.raw.as_ptr(), core::ptr::null_mut()) };
        if ret != 0 {
            // The hardware may still call the handler: leave it, and hold the device.
            pr_err!(
                "{}: cannot destroy a completion queue\n",
                self.device.name()
            );
            core::mem::forget(self.device.clone());
            return;
        }
        // SAFETY: By the type invariants; no callback runs any more.
        unsafe { (self.release)(self.context) };
    }
}

/// A counted reference to a completion queue, needed to create queue pairs on it.
///
/// Dropping the last reference (those of queue pairs and of the poller included) destroys the queue
/// and may sleep.
#[derive(Clone)]
pub(crate) struct Cq(Arc<Inner>);

impl Cq {
    /// Creates a queue with room for at least `entries` completions, on completion vector `vector`.
    ///
    /// It is not armed. `entries` is at least 1 and at most
    /// [`max_cqe`](super::DeviceAttrs::max_cqe); `vector` is taken modulo the number of vectors.
    /// Sleeps.
    pub(crate) fn create<H: CompletionHandler>(
        device: &DeviceHandle,
        entries: u32,
        vector: u32,
        handler: Arc<H>,
    ) -> Result<(Self, CqPoller)> {
        if entries == 0 || entries > device.attrs().max_cqe {
            return Err(EINVAL);
        }
        let attr = sys::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector.checked_rem(device.num_comp_vectors()).unwrap_or(0),
            ..Default::default()
        };
        // SAFETY: The device is valid; the method table does not change after registration.
        let ops = unsafe { &(*device.as_ptr()).ops };
        let poll = ops.poll_cq.ok_or_else(unsupported)?;
        let notify = ops.req_notify_cq.ok_or_else(unsupported)?;

        let context = Arc::into_raw(handler);
        // SAFETY: The device is valid, the callbacks fit the context, which lives until the queue
        // is destroyed.
        let created = from_err_ptr(unsafe {
            sys::__ib_create_cq(
                device.as_ptr(),
                Some(completed::<H>),
                Some(failed::<H>),
                context.cast_mut().cast(),
                &attr,
                super::CALLER.as_char_ptr().cast(),
            )
        })
        .and_then(|raw| NonNull::new(raw).ok_or(ENODEV));
        let raw = match created {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: The reference that was leaked above; C does not have it.
                unsafe { release::<H>(context.cast()) };
                return Err(e);
            }
        };
        // INVARIANT: `raw` is new and has the context; `release` fits it.
        let inner = Inner {
            raw,
            context: context.cast(),
            release: release::<H>,
            device: device.clone(),
        };
        let cq = Self(Arc::new(inner, GFP_KERNEL)?);
        let poller = CqPoller {
            cq: cq.clone(),
            poll,
            notify,
        };
        Ok((cq, poller))
    }

    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut sys::ib_cq {
        self.0.raw.as_ptr()
    }

    /// The device.
    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.0.device
    }

    /// Lets the hardware wait for `count` completions or `usecs` microseconds before it interrupts.
    ///
    /// May sleep. Fails with `EOPNOTSUPP` when the device cannot.
    pub(crate) fn set_moderation(&self, count: u16, usecs: u16) -> Result {
        // SAFETY: The queue is valid.
        to_result(unsafe { sys::rdma_set_cq_moderation(self.as_ptr(), count, usecs) })
    }
}

/// The one who takes completions out of a queue.
///
/// Polling and arming go straight to the device driver; they do not sleep and work in softirq
/// context.
pub(crate) struct CqPoller {
    cq: Cq,
    poll: unsafe extern "C" fn(*mut sys::ib_cq, c_int, *mut sys::ib_wc) -> c_int,
    notify: unsafe extern "C" fn(*mut sys::ib_cq, sys::ib_cq_notify_flags) -> c_int,
}

impl CqPoller {
    /// Takes up to `wcs.len()` completions and returns how many; fewer than asked for means that
    /// the queue was empty. An error of the driver counts as empty.
    #[inline]
    pub(crate) fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: The queue is valid and `Wc` is a transparent wrapper of `ib_wc`, of which there
        // are `room` at least. The pointer was this device's own method when the queue was created.
        let n = unsafe { (self.poll)(self.cq.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        usize::try_from(n).unwrap_or(0).min(wcs.len())
    }

    /// Asks for a callback at the next completion, and tells whether completions may have come
    /// since the last poll that will not cause one: then poll again. The same for a queue that cannot
    /// be armed, which would never call.
    #[inline]
    pub(crate) fn arm(&mut self) -> bool {
        let flags = sys::ib_cq_notify_flags::IB_CQ_NEXT_COMP
            | sys::ib_cq_notify_flags::IB_CQ_REPORT_MISSED_EVENTS;
        // SAFETY: The queue is valid, and the method is its device's own.
        let ret = unsafe { (self.notify)(self.cq.as_ptr(), flags) };
        ret != 0
    }

    /// The queue.
    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }
}

/// `ib_cq.comp_handler`.
///
/// # Safety
///
/// Called by the driver for a queue whose context is an `H` that an [`Inner`] owns.
unsafe extern "C" fn completed<H: CompletionHandler>(_cq: *mut sys::ib_cq, context: *mut c_void) {
    // SAFETY: By the safety requirements; the handler lives until the queue is destroyed.
    unsafe { &*context.cast::<H>() }.completed();
}

/// `ib_cq.event_handler`.
///
/// # Safety
///
/// As for [`completed`].
unsafe extern "C" fn failed<H: CompletionHandler>(
    _event: *mut sys::ib_event,
    context: *mut c_void,
) {
    // SAFETY: As above.
    unsafe { &*context.cast::<H>() }.failed();
}

/// Gives back the handler of a queue.
///
/// # Safety
///
/// `context` must come from [`Arc::<H>::into_raw`], and its reference must not be used again.
unsafe fn release<H: CompletionHandler>(context: *const c_void) {
    // SAFETY: By the safety requirements.
    drop(unsafe { Arc::from_raw(context.cast::<H>()) });
}
