// SPDX-License-Identifier: GPL-2.0

//! The RTNL mutex as a token: functions that need it take `&Rtnl`.
//!
//! C header: [`include/linux/rtnetlink.h`](srctree/include/linux/rtnetlink.h)

use core::marker::PhantomData;

use crate::sys::bindings;

/// Proof that this thread holds RTNL.
pub(crate) struct Rtnl {
    owned: bool,
    _not_send: PhantomData<*mut ()>,
}

impl Rtnl {
    /// Takes RTNL and gives it back when dropped. May sleep.
    ///
    /// Never from work that somebody waits for with RTNL held (TRAP-5).
    pub(crate) fn lock() -> Self {
        // SAFETY: process context by this function's contract; no other precondition.
        unsafe { bindings::rtnl_lock() };
        Self {
            owned: true,
            _not_send: PhantomData,
        }
    }

    /// A token for code that the kernel calls with RTNL held.
    ///
    /// # Safety
    ///
    /// The calling thread holds RTNL, and goes on holding it while the token lives.
    pub(crate) unsafe fn assume_held() -> Self {
        Self {
            owned: false,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `lock` took it on this thread (the type is not `Send`).
            unsafe { bindings::rtnl_unlock() }
        }
    }
}
