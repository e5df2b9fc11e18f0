// SPDX-License-Identifier: GPL-2.0

//! Transmit queues that are stopped because a ring of connections is full, and their certain wake.
//!
//! One transmit queue serves all peers: a single one that takes nothing must not hold up the others. So no
//! stop lasts: room ends it, and where room does not come the worker does ([`Brake::overdue`]). From then on
//! what finds no room is dropped, until there is some.

use kernel::sync::atomic::{
    Atomic,
    Full,
    Relaxed, //
};

use crate::{
    base::{
        atomic::Word,
        flags::Flags,
        smp_mb, //
    },
    net::{
        device::Device,
        txq::{
            TxOps,
            TxQueue, //
        }, //
    },
};

/// The transmit queues that wait for room in one place.
pub(super) struct Brake {
    /// A bit for each queue that is stopped; an interface has 64 at most.
    stopped: Atomic<u64>,
    /// How often the first has been stopped.
    stops: Atomic<u32>,
    /// What the worker has last seen of `stops`.
    seen: Atomic<u32>,
    /// Room has been missing for too long.
    jammed: Flags,
}

impl Brake {
    pub(super) const fn new() -> Self {
        Self {
            stopped: Atomic::new(0),
            stops: Atomic::new(0),
            seen: Atomic::new(0),
            jammed: Flags::new(),
        }
    }

    /// Stops the queue `index`, whose lock is held, unless there is room after all, or has been none for too
    /// long. Returns whether it is stopped: then the worker must look at [`Brake::overdue`] from time to time.
    pub(super) fn stop(&self, ops: &mut TxOps, index: u16, room: impl Fn() -> bool) -> bool {
        if self.jammed.get() != 0 {
            return false;
        }
        ops.stop_unless(|| {
            // Behind the stop, so that whoever sees the bit can take the stop back; before the
            // second look, so that who frees room later sees the bit.
            let bit = 1_u64.rotate_left(index.into());
            let mut old = self.stopped.load(Relaxed);
            while let Err(now) = self.stopped.cmpxchg(old, old | bit, Full) {
                old = now;
            }
            if old == 0 {
                self.stops.fetch_add(1, Relaxed);
            }
            room()
        })
    }

    /// Lets all stopped queues go on, if there is room. To be called after room has been made.
    pub(super) fn release(&self, dev: &Device, room: impl FnOnce() -> bool) {
        // Either we see the bit, or its setter sees the room.
        smp_mb();
        if self.stopped.get() == 0 && self.jammed.get() == 0 || !room() {
            return;
        }
        self.jammed.clear(1);
        self.wake(dev);
    }

    fn wake(&self, dev: &Device) {
        let mut stopped = self.stopped.xchg(0, Full);
        while stopped != 0 {
            let index = stopped.trailing_zeros();
            stopped &= stopped.wrapping_sub(1);
            if let Some(txq) = TxQueue::new(dev, index as u16) {
                // Its own ring may be full: then it stops again with the next packet.
                txq.wake();
            }
        }
    }

    /// Whether queues are stopped, or would be if that had not lasted for too long. Only for the worker.
    pub(super) fn engaged(&self) -> bool {
        self.stopped.load(Relaxed) != 0 || self.jammed.get() != 0
    }

    /// Ends stops that began before the last call. Only for the worker.
    pub(super) fn overdue(&self, dev: &Device) {
        let stops = self.stops.load(Relaxed);
        let same = self.seen.xchg(stops, Relaxed) == stops;
        // One that was under way when the jam was noted is ended by the next call.
        if self.stopped.load(Relaxed) != 0 && (same || self.jammed.get() != 0) {
            self.jammed.set(1);
            self.wake(dev);
        }
    }
}
