// SPDX-License-Identifier: GPL-2.0

//! The spinlock.

use core::ops::{Deref, DerefMut};

use kernel::fault::{has, Fault};
use kernel::init::PinInit;
use loom::sync::{Mutex, MutexGuard};

/// A lock.
pub(crate) struct SpinLockBh<T> {
    lock: Mutex<()>,
    value: core::cell::UnsafeCell<T>,
}

// SAFETY: the value is reached by the holder of the lock only, but in models of a lock that excludes nobody.
unsafe impl<T: Send> Send for SpinLockBh<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SpinLockBh<T> {}

/// The lock held.
pub(crate) struct Locked<'a, T> {
    lock: &'a SpinLockBh<T>,
    _held: Option<MutexGuard<'a, ()>>,
}

impl<T> SpinLockBh<T> {
    pub(crate) fn init(value: T) -> impl PinInit<Self> {
        kernel::init::init(move || Self {
            lock: Mutex::new(()),
            value: value.into(),
        })
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let held = (!has(Fault::NoLock)).then(|| self.lock.lock());
        Locked {
            lock: self,
            _held: held.map(|held| held.expect("no holder panics")),
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.value.get() }
    }
}

macro_rules! new_spinlock_bh {
    ($value:expr $(, $name:literal)? $(,)?) => {
        $crate::base::lock::SpinLockBh::init($value)
    };
}
pub(crate) use new_spinlock_bh;
