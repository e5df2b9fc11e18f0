// SPDX-License-Identifier: GPL-2.0

//! Network devices, which the RDMA and the networking wrappers hand to each other.

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use crate::sys::bindings;

/// A reference to a network device of which nothing else is known here.
///
/// # Invariants
///
/// Owns one counted reference to the valid device `dev`.
pub(crate) struct HeldNetdev {
    dev: NonNull<bindings::net_device>,
}

impl HeldNetdev {
    /// Takes a reference over.
    ///
    /// # Safety
    ///
    /// `dev` is valid, and the caller gives up a reference that it owns.
    pub(crate) unsafe fn from_raw(dev: NonNull<bindings::net_device>) -> Self {
        // INVARIANT: the caller's promise.
        Self { dev }
    }

    /// The device, with the reference, which whoever gets it has to give back.
    pub(crate) fn into_raw(self) -> *mut bindings::net_device {
        ManuallyDrop::new(self).dev.as_ptr()
    }
}

impl Drop for HeldNetdev {
    fn drop(&mut self) {
        // SAFETY: the reference is ours by the type invariant.
        unsafe { bindings::ipoib_h_dev_put(self.dev.as_ptr()) }
    }
}
