// SPDX-License-Identifier: GPL-2.0

//! Atomics, counts and read sections.

use core::ops::Deref;

use crate::alloc::{AllocError, Flags};
use crate::Result;

pub mod atomic;

/// Read sections.
pub mod rcu {
    use crate::bindings;

    /// A read section, which ends with this.
    pub struct Guard(u64);

    /// Begins a read section.
    pub fn read_lock() -> Guard {
        Guard(bindings::enter())
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            bindings::leave(self.0);
        }
    }
}

/// Device references, which nothing here is made of.
pub mod aref {
    use core::marker::PhantomData;

    /// A counted reference to something that lives for ever here.
    pub struct ARef<T>(PhantomData<T>);

    impl<T> From<&T> for ARef<T> {
        fn from(_: &T) -> Self {
            Self(PhantomData)
        }
    }
}

/// A counted reference; the count is not of interest here.
pub struct Arc<T>(std::sync::Arc<T>);

impl<T> Arc<T> {
    /// Moves `value` there.
    pub fn new(value: T, _: Flags) -> Result<Self, AllocError> {
        Ok(Self(std::sync::Arc::new(value)))
    }

    /// Whether both are the same.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        std::sync::Arc::ptr_eq(&a.0, &b.0)
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// `refcount_t`.
pub struct Refcount(atomic::Atomic<i32>);

impl Refcount {
    /// Starts with `n`.
    pub const fn new(n: i32) -> Self {
        Self(atomic::Atomic::new(n))
    }

    /// One more.
    pub fn inc(&self) {
        let _ = self.0.fetch_add(1, atomic::Relaxed);
    }

    /// One less; whether it was the last.
    pub fn dec_and_test(&self) -> bool {
        self.0.fetch_sub(1, atomic::Full) == 1
    }

    /// The number.
    pub fn as_atomic(&self) -> &atomic::Atomic<i32> {
        &self.0
    }
}

impl crate::init::Touch for Refcount {
    fn touch(&self) {
        self.0.touch();
    }
}
