// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use core::ptr::NonNull;
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
};

use super::device::DeviceHandle;
use crate::sys::bindings as sys;

/// # Invariants
///
/// `raw` is a protection domain of `device`; everything created in it holds this value.
struct Inner {
    raw: NonNull<sys::ib_pd>,
    device: DeviceHandle,
}

// SAFETY: A protection domain may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: By the type invariants nothing in the domain is left.
        let ret = unsafe { sys::ib_dealloc_pd_user(self.raw.as_ptr(), core::ptr::null_mut()) };
        if ret != 0 {
            pr_err!("{}: cannot free a protection domain\n", self.device.name());
        }
    }
}

/// A counted reference to a protection domain: what ties queue pairs, address handles and the
/// memory key together.
///
/// Dropping the last reference frees the domain and may sleep.
#[derive(Clone)]
pub(crate) struct Pd(Arc<Inner>);

impl Pd {
    /// Allocates a domain. Sleeps.
    pub(crate) fn new(device: &DeviceHandle) -> Result<Self> {
        // SAFETY: The device is valid; the caller name is a static string.
        let pd = from_err_ptr(unsafe {
            sys::__ib_alloc_pd(device.as_ptr(), 0, super::CALLER.as_char_ptr().cast())
        })?;
        // INVARIANT: The domain is new.
        let inner = Inner {
            raw: NonNull::new(pd).ok_or(ENODEV)?,
            device: device.clone(),
        };
        Ok(Self(Arc::new(inner, GFP_KERNEL)?))
    }

    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut sys::ib_pd {
        self.0.raw.as_ptr()
    }

    /// The device.
    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.0.device
    }

    /// The key that opens all DMA-mapped kernel memory to work requests of this domain.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: The domain is valid; the key is set when it is allocated.
        unsafe { (*self.as_ptr()).local_dma_lkey }
    }
}
