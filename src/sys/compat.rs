// SPDX-License-Identifier: GPL-2.0

//! Where kernels differ: the one place that knows of versions. Each item says what is different and
//! since when, so that it can go with the last kernel that needs it.

use kernel::{
    bindings,
    prelude::*, //
};

/// A limit of a device (a field of `struct ib_device_attr`), which is signed before 7.3. None is
/// negative; one that is reads as 0, which offers nothing.
pub(crate) fn limit(raw: impl TryInto<u32>) -> u32 {
    raw.try_into().unwrap_or(0)
}

/// The error `EOPNOTSUPP`, which the kernel crate has no name for before 7.3.
pub(crate) fn unsupported() -> Error {
    error(bindings::EOPNOTSUPP)
}

/// The error `ENOTUNIQ`, which the kernel crate has no name for before 7.3.
pub(crate) fn not_unique() -> Error {
    error(bindings::ENOTUNIQ)
}

fn error(errno: u32) -> Error {
    Error::from_errno(-(errno as kernel::ffi::c_int))
}

/// A full memory barrier among CPUs. Any context. The kernel crate's own takes an argument since 7.3.
#[inline(always)]
pub(crate) fn smp_mb() {
    // SAFETY: A barrier has no conditions.
    unsafe { bindings::smp_mb() };
}

/// Waits until all RCU callbacks queued so far have run. Sleeps. The kernel crate has it since 7.3.
pub(crate) fn rcu_barrier() {
    // SAFETY: Wherever one may sleep, which callers do; outside RCU callbacks and read sections.
    unsafe { bindings::rcu_barrier() };
}
