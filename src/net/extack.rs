// SPDX-License-Identifier: GPL-2.0

//! Messages that a netlink request is answered with, next to its errno.
//!
//! C header: [`include/linux/netlink.h`](srctree/include/linux/netlink.h)

use core::marker::PhantomData;

use kernel::prelude::*;

use crate::sys::bindings;

/// The place for a message about one request. The last message counts; with a request that succeeds
/// it is shown as a warning.
///
/// # Invariants
///
/// `ptr` is null, when nobody asked for messages, or valid and only used by this thread during `'a`.
pub(crate) struct ExtAck<'a> {
    ptr: *mut bindings::netlink_ext_ack,
    _life: PhantomData<&'a mut bindings::netlink_ext_ack>,
}

impl ExtAck<'_> {
    /// Wraps what a callback was given.
    ///
    /// # Safety
    ///
    /// `ptr` is null or valid, and nobody else uses it, during the lifetime that the caller chooses.
    pub(super) unsafe fn from_raw(ptr: *mut bindings::netlink_ext_ack) -> Self {
        // INVARIANT: the caller's promise.
        Self {
            ptr,
            _life: PhantomData,
        }
    }

    /// Says something. Below 80 octets are customary.
    pub(crate) fn say(&self, text: &'static CStr) {
        if !self.ptr.is_null() {
            // SAFETY: valid and ours by the type invariant; the text lives for ever.
            unsafe { (*self.ptr)._msg = text.as_char_ptr() };
        }
    }

    /// Says why a request is refused, and returns the error to refuse it with.
    pub(crate) fn refuse(&self, error: Error, text: &'static CStr) -> Error {
        self.say(text);
        error
    }
}
