// SPDX-License-Identifier: GPL-2.0

//! Deliberate faults of the stand-ins: with each of them a model must fail, or it would not notice the real fault.

use std::cell::Cell;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `smp_mb` orders nothing.
    NoBarrier,
    /// Stores with `Release` are plain ones.
    NoRelease,
    /// Objects are freed without waiting for readers.
    NoGracePeriod,
    /// Locks exclude nobody.
    NoLock,
}

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether the stand-ins have `fault`. Loom runs all threads of a model on the thread that called it.
pub fn has(fault: Fault) -> bool {
    FAULT.with(|now| now.get() == Some(fault))
}

/// Gives the stand-ins a fault, or none.
pub fn set(fault: Option<Fault>) {
    FAULT.with(|now| now.set(fault));
}
