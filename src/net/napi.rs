// SPDX-License-Identifier: GPL-2.0

//! NAPI instances that own the state which their poll function works on.
//!
//! The kernel never runs one instance twice at a time, so the poll function has exclusive access
//! to the state; and while the instance is disabled, whoever disabled it has.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomPinned,
    ptr::addr_of_mut, //
};

use kernel::{
    container_of,
    ffi::c_int,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        rcu::Guard,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

use super::{
    device::Device,
    ops::bottom_halves_off,
    skb::SkBuff, //
};
use crate::sys::bindings;

/// The most packets one poll may receive.
pub(crate) const WEIGHT: usize = 64;

/// How often one poll looks again after events slipped in while it was arming, before it hands
/// the rest to the next poll.
const REARM_TRIES: usize = 4;

/// What a NAPI instance does. Called in softirq context, never twice at a time.
pub(crate) trait Poll: Send {
    /// Whether completions are to gather for some microseconds before an event is asked for again, so that GRO finds
    /// more to put together: unless the user says otherwise, who does so for all instances of a device.
    const GATHERS: bool = true;

    /// Works off completions: all of the transmit side, and at most `budget` received packets.
    /// `budget` is 0 for netpoll, which wants the transmit side only. Returns the packets received.
    fn poll(&mut self, cx: &mut Context<'_>, budget: usize) -> usize;

    /// Asks the hardware for an event at the next completion. Returns whether completions may have
    /// arrived in between, so that it must poll again. `soon`: there is another poll within the time of
    /// [`Napi::schedule_in`], whatever the hardware does.
    fn arm(&mut self, soon: bool) -> bool;
}

/// What a poll function may do with its NAPI instance.
pub(crate) struct Context<'a> {
    napi: *mut bindings::napi_struct,
    budget: usize,
    _life: core::marker::PhantomData<&'a mut ()>,
}

impl<'a> Context<'a> {
    /// The read section that a poll is in anyway, as softirqs are.
    #[inline]
    pub(crate) fn reading(&self) -> &'a Guard {
        // SAFETY: we are inside a poll function, in softirq context, for as long as `'a` may be.
        unsafe { bottom_halves_off() }
    }

    /// Hands a packet to GRO and from there to the stack.
    #[inline]
    pub(crate) fn receive(&mut self, skb: SkBuff) {
        // SAFETY: we are inside this instance's poll function; ownership of the buffer moves.
        unsafe { bindings::gro_receive_skb(addr_of_mut!((*self.napi).gro), skb.into_raw()) };
    }

    /// The same for a packet that GRO can do nothing for: it goes to the stack at once, unless GRO holds what it must
    /// not overtake.
    #[inline]
    pub(crate) fn receive_alone(&mut self, skb: SkBuff) {
        // SAFETY: we are inside this instance's poll function, which alone changes what its GRO holds.
        let held = unsafe { (*self.napi).gro.bitmask != 0 || (*self.napi).gro.rx_count != 0 };
        if held {
            self.receive(skb);
        } else {
            // SAFETY: softirq context; ownership of the buffer moves.
            unsafe { bindings::ipoib_h_napi_receive(self.napi, skb.into_raw()) };
        }
    }

    /// Frees a sent packet, in bulk with others where the kernel can.
    #[inline]
    pub(crate) fn consume(&mut self, skb: SkBuff) {
        // SAFETY: ownership of the buffer moves; the budget is the one of this poll.
        unsafe { bindings::napi_consume_skb(skb.into_raw(), self.budget as c_int) };
    }
}

/// A NAPI instance with its state.
///
/// # Invariants
///
/// - `napi` is on `dev`'s list from `new` until `remove`; `registered` says whether it still is.
/// - The state is reached by the poll function while NAPI is enabled, and through [`Disabled`]
///   while it is not; `control` makes sure that there is one `Disabled` at most.
#[pin_data(PinnedDrop)]
pub(crate) struct Napi<P: Poll> {
    #[pin]
    napi: Opaque<bindings::napi_struct>,
    #[pin]
    timer: Opaque<bindings::timer_list>,
    state: UnsafeCell<P>,
    #[pin]
    control: Mutex<Control>,
    #[pin]
    _pin: PhantomPinned,
}

struct Control {
    enabled: bool,
    dev: Option<ARef<Device>>,
}

// SAFETY: the state moves between CPUs with the softirq that polls it, hence `P: Send`; all other
// fields are locked.
unsafe impl<P: Poll> Send for Napi<P> {}
// SAFETY: as above; the state is only reached exclusively (type invariant).
unsafe impl<P: Poll> Sync for Napi<P> {}

/// Exclusive access to the state of a disabled instance. Dropping it leaves NAPI disabled.
pub(crate) struct Disabled<'a, P: Poll> {
    napi: &'a Napi<P>,
    control: kernel::sync::lock::Guard<'a, Control, kernel::sync::lock::mutex::MutexBackend>,
}

impl<P: Poll> Napi<P> {
    /// Adds a disabled instance to `dev`. Process context; takes the device's instance lock.
    ///
    /// The instance holds a reference on the device until [`Disabled::remove`].
    pub(crate) fn new(dev: &Device, state: P) -> Result<Arc<Self>> {
        let napi = Arc::pin_init(
            pin_init!(Self {
                napi: Opaque::zeroed(),
                timer: Opaque::zeroed(),
                state: UnsafeCell::new(state),
                control <- new_mutex!(Control { enabled: false, dev: None }, "napi"),
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;
        napi.control.lock().dev = Some(dev.into());
        // SAFETY: the memory is zeroed, pinned (an `Arc` made by `pin_init`), and stays until
        // `remove` has taken the instance off the list: until then `control.dev` is set, and `Drop`
        // removes it.
        unsafe {
            bindings::ipoib_h_napi_add(
                dev.as_ptr(),
                napi.napi.get(),
                Some(Self::poll_callback),
                WEIGHT as c_int,
            )
        };
        if !P::GATHERS {
            // The user writes both at any time, and adding it has copied what was written so far.
            // SAFETY: aligned words of an initialised instance, which are written whole.
            unsafe {
                (&raw mut (*napi.napi.get()).defer_hard_irqs).write_volatile(0);
                (&raw mut (*napi.napi.get()).gro_flush_timeout).write_volatile(0);
            }
        }
        // SAFETY: zeroed and pinned memory, which stays until `Drop` has shut the timer down.
        unsafe { bindings::ipoib_h_timer_setup(napi.timer.get(), Some(Self::expired)) };
        Ok(napi)
    }

    /// Schedules a poll. Any context, also hard interrupts off.
    #[inline]
    pub(crate) fn schedule(&self) {
        // SAFETY: the instance is initialised. A removed or disabled instance has the scheduled
        // bit set, so `napi_schedule_prep` refuses.
        unsafe {
            if bindings::napi_schedule_prep(self.napi.get()) {
                bindings::__napi_schedule(self.napi.get());
            }
        }
    }

    /// Whether a poll of [`Napi::schedule_in`] is still to come. Any context.
    #[inline]
    fn is_soon(&self) -> bool {
        // SAFETY: an aligned word of an initialised timer, which others may write meanwhile.
        let link = unsafe { (&raw const (*self.timer.get()).entry.pprev).read_volatile() };
        !link.is_null()
    }

    /// Schedules a poll for `ticks` from now, if none is scheduled so yet. Any context.
    #[inline]
    pub(crate) fn schedule_in(&self, ticks: u64) {
        if !self.is_soon() {
            let at = crate::base::time::jiffies().wrapping_add(ticks);
            // SAFETY: an initialised timer; once it is shut down nothing happens.
            unsafe { bindings::mod_timer(self.timer.get(), at as usize) };
        }
    }

    /// # Safety
    ///
    /// Called by the kernel for a timer that [`Self::new`] has set up.
    unsafe extern "C" fn expired(timer: *mut bindings::timer_list) {
        // SAFETY: `timer` is the field of a live `Napi<P>`: it is shut down before that goes.
        let this = unsafe { &*container_of!(Opaque::cast_from(timer), Self, timer) };
        this.schedule();
    }

    /// Schedules a poll, which begins at once. Process context.
    pub(crate) fn kick(&self) {
        // A schedule from process context would otherwise wait for the next interrupt.
        // SAFETY: balanced by the call below, on the same CPU.
        unsafe { bindings::ipoib_h_local_bh_disable() };
        self.schedule();
        // SAFETY: balances the call above.
        unsafe { bindings::ipoib_h_local_bh_enable() };
    }

    /// Stops polling, waits for a running poll, and gives access to the state. May sleep.
    pub(crate) fn disable(&self) -> Disabled<'_, P> {
        let mut control = self.control.lock();
        if control.enabled {
            // SAFETY: process context; enabled, so this cannot wait for ever.
            unsafe { bindings::napi_disable(self.napi.get()) };
            control.enabled = false;
        }
        Disabled {
            napi: self,
            control,
        }
    }

    /// Whether `napi_complete_done` will start the timer that stands in for hardware events
    /// (`napi_defer_hard_irqs` and `gro_flush_timeout`, as the user has set them).
    ///
    /// # Safety
    ///
    /// `napi` is live, and its poll function runs on this CPU.
    unsafe fn deferred(napi: *const bindings::napi_struct, done: usize) -> bool {
        // SAFETY: the caller's promise; the words are aligned and read whole.
        unsafe {
            let rounds = if done > 0 {
                core::ptr::addr_of!((*napi).defer_hard_irqs).read_volatile()
            } else {
                (*napi).defer_hard_irqs_count
            };
            rounds > 0 && core::ptr::addr_of!((*napi).gro_flush_timeout).read_volatile() > 0
        }
    }

    /// # Safety
    ///
    /// Called by the kernel for an instance that [`Self::new`] added, in softirq context.
    unsafe extern "C" fn poll_callback(napi: *mut bindings::napi_struct, budget: c_int) -> c_int {
        // SAFETY: `napi` is the field of a live `Napi<P>`: it is removed before that goes.
        let this = unsafe { &*container_of!(Opaque::cast_from(napi), Self, napi) };
        // SAFETY: the kernel runs one poll of an instance at a time and none while it is disabled,
        // so the access is exclusive by the type invariant.
        let state = unsafe { &mut *this.state.get() };
        let budget = usize::try_from(budget).unwrap_or(0);
        let mut cx = Context {
            napi,
            budget,
            _life: core::marker::PhantomData,
        };

        if budget == 0 {
            state.poll(&mut cx, 0);
            return 0;
        }

        let mut done = 0;
        for _ in 0..REARM_TRIES {
            done += state
                .poll(&mut cx, budget.saturating_sub(done))
                .min(budget - done);
            if done >= budget {
                return budget as c_int;
            }
            // SAFETY: inside the poll function of a live instance; plain words that a user may set.
            if unsafe { Self::deferred(napi, done) } {
                // The timer polls again, and meanwhile completions gather.
                // SAFETY: inside the poll function, with work left in the budget.
                if unsafe { bindings::napi_complete_done(napi, done as c_int) } {
                    // The user has just switched that off: nothing is armed, so look again.
                    this.schedule();
                }
                return done as c_int;
            }
            // Armed while the instance is still ours: an event from now on marks it "missed", and
            // `napi_complete_done` schedules it again.
            if !state.arm(this.is_soon()) {
                // SAFETY: inside the poll function, with work left in the budget.
                unsafe { bindings::napi_complete_done(napi, done as c_int) };
                return done as c_int;
            }
        }
        // Completions keep slipping in: come back with a fresh budget.
        budget as c_int
    }
}

impl<P: Poll> Disabled<'_, P> {
    /// The state.
    pub(crate) fn state(&mut self) -> &mut P {
        // SAFETY: NAPI is disabled and `control` is locked, so the access is exclusive by the type
        // invariant of `Napi`.
        unsafe { &mut *self.napi.state.get() }
    }

    /// Lets the instance poll again, and schedules one poll at once, so that completions which
    /// arrived while it was disabled (and whose event is lost) are seen.
    pub(crate) fn enable(mut self) {
        if self.control.dev.is_none() {
            return;
        }
        // SAFETY: on the device's list and disabled, by the type invariant of `Napi`.
        unsafe { bindings::napi_enable(self.napi.napi.get()) };
        self.control.enabled = true;
        self.napi.kick();
    }

    /// Takes the instance off its device and drops the device reference. May sleep.
    pub(crate) fn remove(mut self) {
        if let Some(dev) = self.control.dev.take() {
            // SAFETY: added by `new` and not yet removed; disabled.
            unsafe { bindings::ipoib_h_napi_del(self.napi.napi.get()) };
            drop(dev);
        }
    }
}

#[pinned_drop]
impl<P: Poll> PinnedDrop for Napi<P> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: set up by `new`, or zeroed where that failed before; process context.
        unsafe { bindings::timer_shutdown_sync(self.timer.get()) };
        self.disable().remove();
    }
}
