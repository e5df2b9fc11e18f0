// SPDX-License-Identifier: GPL-2.0

//! The RTNL mutex as a token: functions that need it take `&Rtnl`.
//!
//! C header: [`include/linux/rtnetlink.h`](srctree/include/linux/rtnetlink.h)

use core::marker::PhantomData;

use kernel::prelude::*;

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

    /// Takes RTNL unless somebody has it. For handlers of sysfs files, which the unregistration of
    /// the device waits for with RTNL held: on `None` they return [`restart_syscall`]. May sleep.
    pub(crate) fn try_lock() -> Option<Self> {
        // SAFETY: process context by this function's contract; no other precondition.
        let locked = unsafe { bindings::rtnl_trylock() } != 0;
        // Not `then_some`: the token that it makes in any case would give back what is not ours.
        locked.then(|| Self {
            owned: true,
            _not_send: PhantomData,
        })
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

/// Has the system call that runs now start over; its handler returns what this returns. Process
/// context.
pub(crate) fn restart_syscall() -> Error {
    // SAFETY: only marks the current task.
    Error::from_errno(unsafe { bindings::ipoib_h_restart_syscall() })
}

/// Whether the current task may administer networks, in the initial user namespace.
pub(crate) fn may_administer() -> bool {
    // SAFETY: reads the current task's credentials.
    unsafe { bindings::capable(bindings::IPOIB_CONST_CAP_NET_ADMIN as i32) }
}
