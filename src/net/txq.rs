// SPDX-License-Identifier: GPL-2.0

//! Transmit queues: the queue lock as a token, state that only the lock's holder may touch, byte
//! queue limits, and the stop and wake protocol.
//!
//! C header: [`include/net/netdev_queues.h`](srctree/include/net/netdev_queues.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::sync::aref::ARef;

use super::device::Device;
use crate::sys::{
    bindings,
    compat::smp_mb, //
};

/// A transmit queue of a device that is kept alive.
///
/// # Invariants
///
/// `ptr` is a queue of the device.
pub(crate) struct TxQueue {
    /// Keeps the queue alive.
    _dev: ARef<Device>,
    ptr: NonNull<bindings::netdev_queue>,
}

// SAFETY: the queue is shared kernel state; every method locks or uses atomic bits.
unsafe impl Send for TxQueue {}
// SAFETY: as above.
unsafe impl Sync for TxQueue {}

impl TxQueue {
    /// Queue `index` of `dev`, if the device was allocated with that many.
    pub(crate) fn new(dev: &Device, index: u16) -> Option<Self> {
        // SAFETY: a plain word of a live device.
        let n = unsafe { (*dev.as_ptr()).num_tx_queues };
        if u32::from(index) >= n {
            return None;
        }
        // SAFETY: the index is in range.
        let ptr = unsafe { bindings::ipoib_h_get_tx_queue(dev.as_ptr(), u32::from(index)) };
        // INVARIANT: as just looked up.
        Some(Self {
            _dev: dev.into(),
            ptr: NonNull::new(ptr)?,
        })
    }

    /// Takes the transmit lock with bottom halves disabled.
    pub(crate) fn lock(&self) -> TxLocked<'_> {
        // SAFETY: the queue is live by the type invariant.
        unsafe { bindings::ipoib_h_tx_lock_bh(self.ptr.as_ptr()) };
        TxLocked {
            ops: TxOps(self.ptr),
            owned: true,
            _queue: PhantomData,
        }
    }

    /// Reports completed packets to the byte queue limits and wakes the queue if they had stopped
    /// it. One caller at a time (NAPI).
    #[inline]
    pub(crate) fn completed(&self, packets: u32, bytes: u32) {
        // SAFETY: live queue; serialised by the caller's NAPI.
        unsafe { bindings::ipoib_h_tx_completed_queue(self.ptr.as_ptr(), packets, bytes) }
    }

    /// Whether the driver has stopped the queue.
    #[inline]
    pub(crate) fn stopped(&self) -> bool {
        // Pairs with the barrier in `TxLocked::stop_unless`: either we see the stop, or the
        // stopper sees the slots that we freed before calling this.
        smp_mb();
        // SAFETY: reads one bit of a live queue.
        unsafe { bindings::ipoib_h_tx_queue_stopped(self.ptr.as_ptr()) }
    }

    /// Whether the driver or the byte queue limits have stopped the queue.
    #[inline]
    pub(crate) fn held(&self) -> bool {
        // SAFETY: reads the state word of a live queue.
        unsafe { bindings::ipoib_h_xmit_stopped(self.ptr.as_ptr()) }
    }

    /// Lets the stack transmit on the queue again.
    pub(crate) fn wake(&self) {
        // SAFETY: live queue; may be called from any context.
        unsafe { bindings::netif_tx_wake_queue(self.ptr.as_ptr()) }
    }

    /// Milliseconds since the last transmit was accepted.
    pub(crate) fn idle_ms(&self) -> u64 {
        // SAFETY: reads one word of a live queue.
        let then = unsafe { bindings::ipoib_h_trans_start(self.ptr.as_ptr()) } as u64;
        crate::base::time::jiffies().saturating_sub(then) * 1000
            / u64::from(bindings::IPOIB_CONST_HZ)
    }
}

/// Proof that this context holds the lock of one transmit queue.
pub(crate) struct TxLocked<'a> {
    ops: TxOps,
    owned: bool,
    _queue: PhantomData<(&'a TxQueue, *mut ())>,
}

/// How things stand after a packet.
#[derive(Clone, Copy)]
pub(crate) struct After {
    /// The stack promises another packet right away.
    pub(crate) more: bool,
    /// Driver or byte queue limits have stopped the queue.
    pub(crate) stopped: bool,
}

/// What the holder of a transmit lock may do with the queue.
///
/// # Invariants
///
/// Exists only inside a [`TxLocked`], so this context holds the queue's lock.
pub(crate) struct TxOps(NonNull<bindings::netdev_queue>);

impl TxLocked<'_> {
    /// A token for the transmit callback.
    ///
    /// # Safety
    ///
    /// The caller's context holds the lock of queue `ptr` while the token lives.
    pub(crate) unsafe fn assume_held(ptr: NonNull<bindings::netdev_queue>) -> Self {
        // INVARIANT: the caller's promise.
        Self {
            ops: TxOps(ptr),
            owned: false,
            _queue: PhantomData,
        }
    }

    /// The queue's operations.
    pub(crate) fn ops(&mut self) -> &mut TxOps {
        &mut self.ops
    }
}

impl TxOps {
    /// How things stand, without a packet sent.
    #[inline(never)]
    pub(crate) fn now(&self) -> After {
        // SAFETY: reads a per-CPU word, with preemption off (a transmit lock is held).
        let more = unsafe { bindings::ipoib_h_xmit_more() };
        After {
            more,
            stopped: self.xmit_stopped(),
        }
    }

    /// Reports a packet of `bytes` to the byte queue limits, which may stop the queue.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u32) -> After {
        // SAFETY: the queue's lock is held.
        let state = unsafe { bindings::ipoib_h_tx_sent(self.0.as_ptr(), bytes) };
        After {
            more: state & bindings::IPOIB_CONST_MORE != 0,
            stopped: state & bindings::IPOIB_CONST_STOPPED != 0,
        }
    }

    /// Stops the queue; then looks again, and takes the stop back if `room` has appeared meanwhile.
    /// Returns whether the queue is stopped.
    ///
    /// Together with [`TxQueue::stopped`] after freeing slots this loses no wake-up: if the
    /// completion side misses the stop, the second look here sees its freed slots.
    pub(crate) fn stop_unless(&mut self, room: impl FnOnce() -> bool) -> bool {
        // SAFETY: the queue's lock is held.
        unsafe { bindings::ipoib_h_tx_stop_queue(self.0.as_ptr()) };
        smp_mb();
        if room() {
            // SAFETY: as above. `start`, not `wake`: we are inside the transmit function.
            unsafe { bindings::ipoib_h_tx_start_queue(self.0.as_ptr()) };
            return false;
        }
        true
    }

    /// Stops the queue.
    pub(crate) fn stop(&mut self) {
        // SAFETY: the queue's lock is held.
        unsafe { bindings::ipoib_h_tx_stop_queue(self.0.as_ptr()) }
    }

    /// Whether driver or byte queue limits have stopped the queue.
    #[inline]
    pub(crate) fn xmit_stopped(&self) -> bool {
        // SAFETY: reads the state word of a live queue.
        unsafe { bindings::ipoib_h_xmit_stopped(self.0.as_ptr()) }
    }

    /// Forgets what the byte queue limits hold as in flight. Only when nothing is in flight and
    /// completions cannot be reported concurrently.
    pub(crate) fn reset_limits(&mut self) {
        // SAFETY: the queue's lock is held.
        unsafe { bindings::ipoib_h_tx_reset_queue(self.0.as_ptr()) }
    }

    /// Starts the watchdog's clock anew.
    pub(crate) fn touch(&mut self) {
        // SAFETY: the queue's lock is held.
        unsafe { bindings::ipoib_h_txq_trans_update(self.0.as_ptr()) }
    }
}

impl Drop for TxLocked<'_> {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `TxQueue::lock` took it in this context.
            unsafe { bindings::ipoib_h_tx_unlock_bh(self.ops.0.as_ptr()) }
        }
    }
}

/// State that belongs to the holder of one queue's transmit lock.
pub(crate) struct TxCell<S> {
    queue: NonNull<bindings::netdev_queue>,
    state: UnsafeCell<S>,
}

// SAFETY: the state is only reached through `get`, by whoever holds the queue's lock.
unsafe impl<S: Send> Send for TxCell<S> {}
// SAFETY: as above; the lock serialises all users.
unsafe impl<S: Send> Sync for TxCell<S> {}

impl<S> TxCell<S> {
    /// Binds `state` to the lock of `queue`.
    pub(crate) fn new(queue: &TxQueue, state: S) -> Self {
        Self {
            queue: queue.ptr,
            state: UnsafeCell::new(state),
        }
    }

    /// The state and the queue's operations, for the holder of the right lock; `None` for a token
    /// of another queue.
    #[inline]
    pub(crate) fn get<'a>(
        &'a self,
        lock: &'a mut TxLocked<'_>,
    ) -> Option<(&'a mut S, &'a mut TxOps)> {
        if lock.ops.0 != self.queue {
            return None;
        }
        // SAFETY: the token proves that this context holds the lock that guards the state, and it
        // is borrowed mutably for as long as the result lives, so no second borrow can exist
        // (`TxOps` gives no access to the state).
        let state = unsafe { &mut *self.state.get() };
        Some((state, &mut lock.ops))
    }
}
