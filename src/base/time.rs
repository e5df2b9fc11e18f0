// SPDX-License-Identifier: GPL-2.0

//! Clocks and random numbers for the control plane.

use crate::sys::bindings;

/// Milliseconds since an arbitrary start, from `jiffies`: coarse (4 ms at HZ=250), monotonic, free
/// to read in any context. Wraps with `jiffies` after hundreds of millions of years on 64 bits.
#[inline]
pub(crate) fn now_ms() -> u64 {
    jiffies().wrapping_mul(1000) / u64::from(hz())
}

/// The tick counter. Any context.
#[inline]
pub(crate) fn jiffies() -> u64 {
    // SAFETY: reads one global word.
    unsafe { (&raw const bindings::jiffies).read_volatile() as u64 }
}

/// Ticks per second.
#[inline]
pub(crate) const fn hz() -> u32 {
    bindings::IPOIB_CONST_HZ
}

/// Rounds milliseconds up to ticks.
#[inline]
pub(crate) const fn ms_to_jiffies(ms: u64) -> u64 {
    ms.saturating_mul(hz() as u64).div_ceil(1000)
}

/// A random number for jitter and hash seeds. Any context.
pub(crate) fn random_u32() -> u32 {
    // SAFETY: no preconditions.
    unsafe { bindings::get_random_u32() }
}

/// The number of CPUs that are online now.
pub(crate) fn online_cpus() -> u32 {
    // SAFETY: no preconditions.
    unsafe { bindings::ipoib_h_num_online_cpus() }
}
