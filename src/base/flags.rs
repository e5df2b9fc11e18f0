// SPDX-License-Identifier: GPL-2.0

//! A word of flag bits that several contexts set and one consumer takes.

use kernel::sync::atomic::{
    Atomic,
    Full,
    Relaxed, //
};

use super::atomic::Word;

/// Thirty-two flags. All methods may be called from any context.
pub(crate) struct Flags(Atomic<u32>);

impl Flags {
    /// No flag set.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Sets the bits of `mask`; returns the bits that were set before.
    ///
    /// Fully ordered even when nothing changes: what the caller wrote before is visible to whoever
    /// takes the flag, so the fast path must not skip the barrier.
    pub(crate) fn set(&self, mask: u32) -> u32 {
        self.update(|old| old | mask)
    }

    /// Clears the bits of `mask`; returns the bits that were set before. Fully ordered.
    pub(crate) fn clear(&self, mask: u32) -> u32 {
        self.update(|old| old & !mask)
    }

    /// Takes all bits, leaving none. Fully ordered.
    pub(crate) fn take(&self) -> u32 {
        self.0.xchg(0, Full)
    }

    /// The present bits, unordered.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        Word::get(&self.0)
    }

    /// Replaces the bits by what `f` makes of them; returns the bits before. `f` may be called more than once. Fully
    /// ordered, also when nothing changes.
    pub(crate) fn update(&self, f: impl Fn(u32) -> u32) -> u32 {
        let mut old = self.0.load(Relaxed);
        loop {
            match self.0.cmpxchg(old, f(old), Full) {
                Ok(prev) => return prev,
                Err(now) => old = now,
            }
        }
    }
}
