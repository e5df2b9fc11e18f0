// SPDX-License-Identifier: GPL-2.0

//! Statics that are initialised once, while nobody may use them yet.

use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    },
};

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
        self.0.load(Acquire) == DONE
    }
}
