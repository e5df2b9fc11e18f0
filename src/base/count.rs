// SPDX-License-Identifier: GPL-2.0

//! Counters that cost no atomic read-modify-write.

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use super::atomic::Word;

/// A 64-bit counter with one writer at a time, or only such as use `add_shared`, and any number of readers.
///
/// `add` is a plain load and store: two concurrent writers would lose counts, nothing worse. Every
/// user names the lock or the serialisation (NAPI, transmit queue lock) that makes it the only one.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    /// A counter at zero.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Adds `n`; wraps at 2^64. Any context, one writer at a time.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.put(self.0.get().wrapping_add(n));
    }

    /// Adds `n` atomically, for a counter of which every writer does so. Any context.
    pub(crate) fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The present value. Any context.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        Word::get(&self.0)
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}
