// SPDX-License-Identifier: GPL-2.0

//! Sends that are worked off when a poll comes anyway, and not each at once.
//!
//! Who posts sees to a poll within [`STAY_MS`]; and if so much is under way that it must go faster, and the device has
//! not been asked to tell, to one at once, which asks it.

use kernel::sync::atomic::Atomic;

use crate::base::{
    atomic::Word,
    smp_mb, //
};

/// The longest time, in milliseconds, that a packet stays after it was sent.
pub(super) const STAY_MS: u64 = 8;

/// Whether the device tells of the next send that completes.
pub(crate) struct Waking(Atomic<u32>);

impl Waking {
    /// It does not.
    pub(super) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Notes it. The poll only: `false` before it looks at what is under way, `true` before it asks the device.
    #[inline]
    pub(super) fn set(&self, on: bool) {
        if on {
            self.0.put(1);
        } else if self.0.get() != 0 {
            self.0.put(0);
            // Pairs with the barrier of a post: either the transmitter sees this, or the poll sees what it has posted
            // or stopped.
            smp_mb();
        }
    }

    /// Any context; behind a full barrier after what the poll is to see.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.0.get() != 0
    }
}
