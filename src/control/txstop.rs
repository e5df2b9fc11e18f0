// SPDX-License-Identifier: GPL-2.0

//! When a transmit ring stops its queue and when it wakes it.
//!
//! The protocol that loses no wake-up: the transmitter fills a slot, publishes its head, and when
//! [`Ring::must_stop`] it stops the queue, makes that visible (full barrier), reads the completion side's tail
//! again, and starts the queue itself if [`Ring::may_wake`]. The completion side publishes its tail, makes that
//! visible (full barrier), and wakes the queue if it is stopped and [`Ring::may_wake`].
//! Whichever of the two comes second sees what the other did.

/// Thresholds of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    size: u32,
    stop_below: u32,
    wake_at: u32,
}

impl Ring {
    /// A ring of `size` slots (at least 1) that stops when fewer than `stop_below` are free and wakes when half
    /// of them are. `stop_below` is at least 1 and at most `size`; the wake mark is never below it, so a queue
    /// that was just woken does not stop before it took a packet.
    #[inline]
    pub const fn new(size: u32, stop_below: u32) -> Self {
        let size = if size == 0 { 1 } else { size };
        let stop_below = if stop_below == 0 {
            1
        } else if stop_below > size {
            size
        } else {
            stop_below
        };
        let half = size.div_ceil(2);
        Self {
            size,
            stop_below,
            wake_at: if half < stop_below { stop_below } else { half },
        }
    }

    /// Slots in the ring.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Free slots, given the free-running counts of slots ever filled (`head`) and ever completed (`tail`).
    /// Counts may wrap. A tail read before the head may be behind; the answer is then too small, never too large.
    #[inline]
    pub const fn free(&self, head: u32, tail: u32) -> u32 {
        self.size.saturating_sub(head.wrapping_sub(tail))
    }

    /// Whether the transmitter must stop the queue after it filled a slot.
    #[inline]
    pub const fn must_stop(&self, free: u32) -> bool {
        free < self.stop_below
    }

    /// Whether a stopped queue may be woken.
    #[inline]
    pub const fn may_wake(&self, free: u32) -> bool {
        free >= self.wake_at
    }
}
