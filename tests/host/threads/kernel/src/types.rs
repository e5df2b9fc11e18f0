// SPDX-License-Identifier: GPL-2.0

//! Values that C code looks after.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// Memory for a value that Rust does not look at.
#[repr(transparent)]
pub struct Opaque<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Opaque<T> {
    /// Memory without a value.
    pub const fn uninit() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Its address.
    pub const fn get(&self) -> *mut T {
        self.0.get().cast()
    }
}
