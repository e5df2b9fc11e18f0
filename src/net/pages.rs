// SPDX-License-Identifier: GPL-2.0

//! Pages for received frames, which come back.
//!
//! A page that goes up with a packet is kept an eye on: with a reference of ours besides the packet's. Once the packet is
//! gone that is the only one, and the page serves again, without a way through the allocator, which would clear it.

use core::ptr::NonNull;

use kernel::prelude::*;

use crate::sys::bindings;

/// An owned page.
///
/// # Invariants
///
/// `page` is an order-0 page of which this value owns a reference, and nobody else writes to it; it lies at `address`.
pub(crate) struct RxPage {
    page: NonNull<bindings::page>,
    /// Where it lies.
    address: NonNull<u8>,
}

// SAFETY: owned memory.
unsafe impl Send for RxPage {}

impl RxPage {
    /// Any context; does not sleep.
    pub(super) fn new() -> Option<Self> {
        // SAFETY: no preconditions.
        let page = NonNull::new(unsafe { bindings::ipoib_h_alloc_rx_page() })?;
        // SAFETY: a valid page without highmem, which has an address.
        let address =
            unsafe { NonNull::new_unchecked(bindings::ipoib_h_page_address(page.as_ptr()).cast()) };
        // INVARIANT: a new page, ours alone.
        Some(Self { page, address })
    }

    #[inline]
    pub(super) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::page {
        core::mem::ManuallyDrop::new(self).page.as_ptr()
    }
}

impl Drop for RxPage {
    fn drop(&mut self) {
        // SAFETY: we own a reference.
        unsafe { bindings::ipoib_h_put_page(self.page.as_ptr()) }
    }
}

/// A page that others may use, too.
///
/// # Invariants
///
/// As for [`RxPage`], but that nobody else uses it holds only while the reference is the only one.
struct Kept(RxPage);

impl Kept {
    /// Whether the reference is the only one. Nobody can get another one then: all come from those that have one.
    #[inline]
    fn is_ours(&self) -> bool {
        // SAFETY: a valid page.
        unsafe { bindings::ipoib_h_page_ref_count(self.0.page.as_ptr()) == 1 }
    }
}

/// Where a queue's pages come from. Belongs to its poll.
///
/// # Invariants
///
/// The `len` entries from `first` on, counted round, are there, the others not; `len <= kept.len()`.
pub(crate) struct Pages {
    /// One that a frame did not need.
    spare: Option<RxPage>,
    /// Those that have gone up, the oldest at `first`.
    kept: KVec<Option<Kept>>,
    first: usize,
    len: usize,
}

impl Pages {
    /// Keeps an eye on `most` pages at most, which it so may keep from others. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(most: usize) -> Result<Self> {
        let mut kept = KVec::with_capacity(most, GFP_KERNEL)?;
        for _ in 0..most {
            kept.push(None, GFP_KERNEL)?;
        }
        // INVARIANT: none is there.
        Ok(Self {
            spare: None,
            kept,
            first: 0,
            len: 0,
        })
    }

    /// A page, a used one if there is one. Process or softirq context; does not sleep.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<RxPage> {
        if let Some(page) = self.spare.take() {
            return Some(page);
        }
        if let Some(oldest) = self.kept.get_mut(self.first) {
            let ours = oldest.as_ref().is_some_and(Kept::is_ours);
            // A full store lets the oldest go: others behind it may be free.
            if ours || self.len == self.kept.len() {
                let page = self.kept_out();
                if ours {
                    // INVARIANT: nobody else has it.
                    return page.map(|kept| kept.0);
                }
            }
        }
        RxPage::new()
    }

    /// Takes the oldest of those that have gone up.
    fn kept_out(&mut self) -> Option<Kept> {
        let page = self.kept.get_mut(self.first)?.take()?;
        self.first = self.next(self.first);
        self.len -= 1;
        Some(page)
    }

    #[inline]
    fn next(&self, index: usize) -> usize {
        if index + 1 < self.kept.len() {
            index + 1
        } else {
            0
        }
    }

    /// Takes back a page that was not needed.
    #[inline]
    pub(super) fn put(&mut self, page: RxPage) {
        self.spare = Some(page);
    }

    /// Notes that `page` is going up with a packet, which takes over its reference.
    #[inline]
    pub(super) fn keep(&mut self, page: &RxPage) {
        if self.len == self.kept.len() {
            return;
        }
        let at = self.first + self.len;
        let at = at.checked_sub(self.kept.len()).unwrap_or(at);
        if let Some(place) = self.kept.get_mut(at) {
            // SAFETY: a valid page, of which we have a reference.
            if unsafe { bindings::ipoib_h_page_keep(page.page.as_ptr()) } {
                // INVARIANT: the reference just taken; the entry is the next one.
                *place = Some(Kept(RxPage {
                    page: page.page,
                    address: page.address,
                }));
                self.len += 1;
            }
        }
    }

    /// Lets go of all pages.
    pub(crate) fn clear(&mut self) {
        self.spare = None;
        while self.kept_out().is_some() {}
    }
}
