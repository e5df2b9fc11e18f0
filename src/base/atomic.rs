// SPDX-License-Identifier: GPL-2.0

//! Loads, stores and counts of the kernel crate's atomics without a call.
//!
//! The kernel crate makes each access by a call of a C function, which on the data path costs more than the access: the
//! call, and the registers that have to be saved around it. These compile to the one instruction, with the ordering that
//! their names say. They may be mixed with the kernel crate's own on the same word.

use core::sync::atomic::{
    AtomicI32,
    AtomicI64,
    AtomicPtr,
    AtomicU32,
    AtomicU64,
    Ordering, //
};

use kernel::sync::atomic::Atomic;

/// Accesses of a word. Any context.
pub(crate) trait Word {
    /// What the word holds.
    type Value;

    /// The value, unordered.
    fn get(&self) -> Self::Value;

    /// The value; what was written before it was released is visible afterwards.
    fn get_acquire(&self) -> Self::Value;

    /// Replaces the value, unordered.
    fn put(&self, value: Self::Value);

    /// Replaces the value; what was written before is visible to whoever acquires it.
    fn put_release(&self, value: Self::Value);
}

macro_rules! word {
    ($([$($generic:ident)?] $type:ty => $atomic:ty),* $(,)?) => {$(
        impl$(<$generic>)? Word for Atomic<$type> {
            type Value = $type;

            #[inline(always)]
            fn get(&self) -> $type {
                // SAFETY: the word is aligned and lives as long as `self`, and is only accessed atomically.
                unsafe { <$atomic>::from_ptr(self.as_ptr()) }.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn get_acquire(&self) -> $type {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(self.as_ptr()) }.load(Ordering::Acquire)
            }

            #[inline(always)]
            fn put(&self, value: $type) {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(self.as_ptr()) }.store(value, Ordering::Relaxed);
            }

            #[inline(always)]
            fn put_release(&self, value: $type) {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(self.as_ptr()) }.store(value, Ordering::Release);
            }
        }
    )*};
}

word! {
    [] i32 => AtomicI32,
    [] u32 => AtomicU32,
    [] i64 => AtomicI64,
    [] u64 => AtomicU64,
    [T] *mut T => AtomicPtr<T>,
}

/// Accesses of a reference count. Any context.
pub(crate) trait Count {
    /// Replaces `old` by `new` if it is there, ordered before what follows; else says what is there.
    fn replace(&self, old: i32, new: i32) -> Result<i32, i32>;

    /// Takes one away, ordered after what comes before and, if it was the last, before what follows; returns the value
    /// before.
    fn take_one(&self) -> i32;
}

impl Count for Atomic<i32> {
    #[inline(always)]
    fn replace(&self, old: i32, new: i32) -> Result<i32, i32> {
        // SAFETY: as for `Word`.
        let word = unsafe { AtomicI32::from_ptr(self.as_ptr()) };
        word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)
    }

    #[inline(always)]
    fn take_one(&self) -> i32 {
        // SAFETY: as for `Word`.
        unsafe { AtomicI32::from_ptr(self.as_ptr()) }.fetch_sub(1, Ordering::AcqRel)
    }
}
