// SPDX-License-Identifier: GPL-2.0

//! The accesses without a call: the same as those with one.

use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release, Value};

pub(crate) trait Word {
    type Value;
    fn get(&self) -> Self::Value;
    fn get_acquire(&self) -> Self::Value;
    fn put(&self, value: Self::Value);
    fn put_release(&self, value: Self::Value);
}

impl<T: Value> Word for Atomic<T> {
    type Value = T;

    fn get(&self) -> T {
        self.load(Relaxed)
    }

    fn get_acquire(&self) -> T {
        self.load(Acquire)
    }

    fn put(&self, value: T) {
        self.store(value, Relaxed);
    }

    fn put_release(&self, value: T) {
        self.store(value, Release);
    }
}

pub(crate) trait Count {
    fn replace(&self, old: i32, new: i32) -> Result<i32, i32>;
    fn take_one(&self) -> i32;
}

impl Count for Atomic<i32> {
    fn replace(&self, old: i32, new: i32) -> Result<i32, i32> {
        self.cmpxchg(old, new, Acquire)
    }

    fn take_one(&self) -> i32 {
        self.fetch_sub(1, Full)
    }
}
