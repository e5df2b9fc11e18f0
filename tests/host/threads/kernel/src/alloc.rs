// SPDX-License-Identifier: GPL-2.0

//! Boxes and vectors.

use core::mem::ManuallyDrop;
use core::ops::{BitOr, Deref, DerefMut};
use core::pin::Pin;

use crate::init::PinInit;
use crate::Result;

/// No memory.
#[derive(Clone, Copy, Debug)]
pub struct AllocError;

/// How to allocate.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, _: Self) -> Self {
        self
    }
}

/// Names of flags.
pub mod flags {
    use super::Flags;

    /// May sleep.
    pub const GFP_KERNEL: Flags = Flags;
    /// May not.
    pub const GFP_ATOMIC: Flags = Flags;
    /// Silently.
    pub const __GFP_NOWARN: Flags = Flags;
}

/// A box whose memory is kept when its content is dropped.
pub struct KBox<T>(ManuallyDrop<Box<T>>);

impl<T> KBox<T> {
    /// Moves `value` there.
    pub fn new(value: T, _: Flags) -> Result<Self, AllocError> {
        Ok(Self(ManuallyDrop::new(Box::new(value))))
    }

    /// Makes a value there.
    pub fn pin_init(value: impl PinInit<T>, flags: Flags) -> Result<Pin<Self>> {
        let this = Self::new(value.make(), flags)?;
        // SAFETY: the content is never moved.
        Ok(unsafe { Pin::new_unchecked(this) })
    }

    /// Gives up the box, not the content.
    pub fn into_raw(this: Self) -> *mut T {
        let mut this = ManuallyDrop::new(this);
        &mut **this.0
    }

    /// Takes it over again.
    pub unsafe fn from_raw(ptr: *mut T) -> Self {
        // SAFETY: the caller's promise.
        Self(ManuallyDrop::new(unsafe { Box::from_raw(ptr) }))
    }
}

impl<T> Deref for KBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for KBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for KBox<T> {
    fn drop(&mut self) {
        // SAFETY: dropped once, here; the memory stays.
        unsafe { core::ptr::drop_in_place::<T>(&mut **self.0) };
    }
}

/// A vector.
pub struct KVec<T>(Vec<T>);

/// A vector.
pub type KVVec<T> = KVec<T>;

impl<T> KVec<T> {
    /// An empty one.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// An empty one with room.
    pub fn with_capacity(n: usize, _: Flags) -> Result<Self, AllocError> {
        Ok(Self(Vec::with_capacity(n)))
    }

    /// Appends a value.
    pub fn push(&mut self, value: T, _: Flags) -> Result<(), AllocError> {
        self.0.push(value);
        Ok(())
    }

    /// Appends a value where there is room.
    pub fn push_within_capacity(&mut self, value: T) -> Result<(), AllocError> {
        self.push(value, Flags)
    }
}

impl<T> Default for KVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for KVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
