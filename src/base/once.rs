// SPDX-License-Identifier: GPL-2.0

//! Statics that are initialised once, while nobody may use them yet.

use core::{
    cell::UnsafeCell,
    mem::MaybeUninit, //
};

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Full,
        Release, //
    },
};

use super::atomic::Word;

/// How far a static's one initialisation is, as `global_lock!` leaves it to its user.
pub(crate) struct Once(Atomic<u32>);

/// Nobody has begun.
const UNTOUCHED: u32 = 0;
/// Somebody is at it.
const BEGUN: u32 = 1;
/// It may be used.
const DONE: u32 = 2;

impl Once {
    /// Nobody has begun.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(UNTOUCHED))
    }

    /// Calls `init` if this is the first call ever; afterwards [`Once::is_done`] says so.
    ///
    /// # Errors
    ///
    /// `EBUSY` for every call but the first.
    pub(crate) fn call(&self, init: impl FnOnce()) -> Result {
        self.0.cmpxchg(UNTOUCHED, BEGUN, Full).map_err(|_| EBUSY)?;
        init();
        self.0.store(DONE, Release);
        Ok(())
    }

    /// Whether the initialisation has ended; what it wrote is then visible. Any context.
    pub(crate) fn is_done(&self) -> bool {
        self.0.get_acquire() == DONE
    }
}

/// A value that is put in place once, by whoever comes first, and read by anybody from then on.
///
/// # Invariants
///
/// While `state` is [`DONE`] the value is initialised and does not change. Only the one caller that has made it
/// [`BEGUN`] writes the value.
pub(crate) struct Late<T> {
    state: Atomic<u32>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value moves between threads, as `T: Send` permits.
unsafe impl<T: Send> Send for Late<T> {}
// SAFETY: readers share the value, and the first caller may hand it over from another thread.
unsafe impl<T: Send + Sync> Sync for Late<T> {}

impl<T> Late<T> {
    /// No value yet.
    pub(crate) const fn new() -> Self {
        Self {
            state: Atomic::new(UNTOUCHED),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Puts `value` in place; gives it back when another one came first. Any context.
    pub(crate) fn populate(&self, value: T) -> core::result::Result<(), T> {
        if self.state.cmpxchg(UNTOUCHED, BEGUN, Full).is_err() {
            return Err(value);
        }
        // SAFETY: by the type invariants only we write, and nobody reads before it is `DONE`.
        unsafe { (*self.value.get()).write(value) };
        // INVARIANT: the value is there.
        self.state.put_release(DONE);
        Ok(())
    }

    /// The value, if it is there. Any context.
    #[inline]
    pub(crate) fn as_ref(&self) -> Option<&T> {
        if self.state.get_acquire() != DONE {
            return None;
        }
        // SAFETY: initialised and not changed any more, by the type invariants.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }
}

impl<T> Drop for Late<T> {
    fn drop(&mut self) {
        if self.state.get_acquire() == DONE {
            // SAFETY: initialised by the type invariants, and not used again.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}
