// SPDX-License-Identifier: GPL-2.0

//! A spinlock that excludes bottom halves, for data shared between softirq and process context.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use kernel::{
    ffi::c_char,
    sync::lock::{
        Backend,
        Lock, //
    },
};

use crate::sys::bindings;

/// The backend of [`SpinLockBh`].
pub(crate) struct SpinLockBhBackend;

/// A spinlock taken with bottom halves disabled.
///
/// May be taken in process and softirq context, not in hard interrupts. Sleeping while it is held
/// is a bug.
pub(crate) type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

// SAFETY: `spin_lock_bh` gives mutual exclusion between all its users, and the state is owned by
// the thread that returned from `lock` until it calls `unlock`.
unsafe impl Backend for SpinLockBhBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: the caller guarantees that `ptr` is valid for writes and that `name` and `key`
        // live for ever.
        unsafe { kernel::bindings::__spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: the caller guarantees that `ptr` was initialised by `init`.
        unsafe { bindings::ipoib_h_spin_lock_bh(ptr) }
    }

    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: the caller guarantees that this thread holds the lock.
        unsafe { bindings::ipoib_h_spin_unlock_bh(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: the caller guarantees that `ptr` was initialised by `init`.
        unsafe { bindings::ipoib_h_spin_trylock_bh(ptr) }.then_some(())
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: the caller guarantees that `ptr` was initialised by `init`.
        unsafe { kernel::bindings::spin_assert_is_held(ptr) }
    }
}

/// Creates a [`SpinLockBh`] initialiser with a lock class of its own.
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::base::lock::SpinLockBh::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_spinlock_bh;
