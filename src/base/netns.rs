// SPDX-License-Identifier: GPL-2.0

//! Network namespaces, which the RDMA and the networking wrappers hand to each other.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use crate::sys::bindings;

/// A network namespace that exists during `'a`.
///
/// # Invariants
///
/// `net` is a valid namespace during `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Net<'a> {
    net: NonNull<bindings::net>,
    _life: PhantomData<&'a ()>,
}

impl Net<'_> {
    /// Wraps a namespace.
    ///
    /// # Safety
    ///
    /// `net` is valid and stays so during the lifetime that the caller chooses.
    pub(crate) unsafe fn from_raw(net: NonNull<bindings::net>) -> Self {
        // INVARIANT: the caller's promise.
        Self {
            net,
            _life: PhantomData,
        }
    }

    /// The C object.
    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.net.as_ptr()
    }
}
