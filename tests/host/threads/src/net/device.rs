// SPDX-License-Identifier: GPL-2.0

//! A device with one queue.

use crate::sys::bindings;

/// A device.
pub(crate) struct Device(pub(crate) Box<bindings::net_device>);

impl Device {
    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        core::ptr::from_ref(&*self.0).cast_mut()
    }
}
