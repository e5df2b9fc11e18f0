// SPDX-License-Identifier: GPL-2.0

//! Receive buffers for messages of up to 64 KiB: a small first part for the headers and short packets,
//! then single pages.
//!
//! A message takes the first part and as many pages as it fills; those are replaced, the others stay.
//! So a buffer that is lent to the hardware again always has its full length, and short packets cost
//! no page.

use core::ptr::NonNull;

use super::{
    device::Device,
    napi::Context,
    pages::{
        Pages,
        RxPage, //
    },
    rxbuf::HARD_LEN,
    skb::SkBuff, //
};
use crate::{
    base::buf::{
        Message,
        PagedBuffer, //
    },
    sys::bindings, //
};

/// Octets of the first part.
const HEAD: usize = 384;
/// Octets of the encapsulation header, with which a message starts.
const ENCAP_LEN: usize = 4;
/// Octets of the pseudo header, which is made up in front of it.
const PSEUDO_LEN: usize = HARD_LEN - ENCAP_LEN;
/// Room before the message: chosen so that the IP header is 64-byte aligned.
const HEADROOM: usize = bindings::IPOIB_CONST_NET_SKB_PAD as usize + 64 - ENCAP_LEN;
/// The fragment that the first part lies in, with the shared info.
const FRAGMENT: usize =
    (HEADROOM + HEAD).next_multiple_of(64) + bindings::IPOIB_CONST_SKB_SHARED_INFO as usize;

/// Octets of a page.
const PAGE: usize = kernel::page::PAGE_SIZE;
/// The most pages of a buffer.
pub(crate) const MAX_PAGES: usize = 16;

const _: () = assert!(MAX_PAGES <= bindings::IPOIB_CONST_MAX_SKB_FRAGS as usize);

/// How many octets a buffer of `regions` regions holds.
pub(crate) const fn capacity(regions: usize) -> usize {
    HEAD + regions.saturating_sub(1) * PAGE
}

/// How many regions a buffer needs for messages of `octets`.
pub(crate) const fn regions(octets: usize) -> usize {
    1 + octets.saturating_sub(HEAD).div_ceil(PAGE)
}

/// A fragment for the first part.
///
/// # Invariants
///
/// Owned memory of [`FRAGMENT`] octets.
struct Head(NonNull<u8>);

impl Head {
    /// Process or softirq context; does not sleep.
    fn new() -> Option<Self> {
        // SAFETY: no preconditions; picks the per-CPU cache that fits the context.
        let mem = unsafe { bindings::__netdev_alloc_frag_align(FRAGMENT as u32, u32::MAX) };
        // INVARIANT: a non-null result is a fragment of that size, ours alone.
        NonNull::new(mem.cast()).map(Self)
    }

    /// The same for a poll, from the cache that polls have for themselves.
    #[inline]
    fn in_poll(_: &Context<'_>) -> Option<Self> {
        // SAFETY: softirq context, as whoever has a poll's context is in.
        let mem = unsafe { bindings::__napi_alloc_frag_align(FRAGMENT as u32, u32::MAX) };
        // INVARIANT: a non-null result is a fragment of that size, ours alone.
        NonNull::new(mem.cast()).map(Self)
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        // SAFETY: a fragment that we own.
        unsafe { bindings::page_frag_free(self.0.as_ptr().cast()) }
    }
}

/// An owned receive buffer.
///
/// # Invariants
///
/// The first `count` of `pages` are there.
pub(crate) struct BigBuf {
    head: Head,
    pages: [Option<RxPage>; MAX_PAGES],
    count: usize,
}

// SAFETY: owned memory.
unsafe impl Send for BigBuf {}

impl BigBuf {
    /// Allocates a buffer of `regions` regions, 1 to [`MAX_PAGES`] and one. Process or softirq context;
    /// does not sleep.
    pub(crate) fn new(regions: usize) -> Option<Self> {
        let count = regions.saturating_sub(1).min(MAX_PAGES);
        let mut pages = [const { None }; MAX_PAGES];
        for page in pages.iter_mut().take(count) {
            *page = Some(RxPage::new()?);
        }
        // INVARIANT: as many pages as are counted.
        Some(Self {
            head: Head::new()?,
            pages,
            count,
        })
    }

    /// The first part of the message, encapsulation header first; what is behind its end is stale.
    pub(crate) fn start(&self) -> &[u8] {
        // SAFETY: within the fragment, initialised memory of the kernel, owned by us.
        unsafe { core::slice::from_raw_parts(self.message(), HEAD) }
    }

    fn message(&self) -> *mut u8 {
        // SAFETY: within the fragment by the type invariant.
        unsafe { self.head.0.as_ptr().add(HEADROOM) }
    }

    /// Makes a packet for `dev` of `message`, encapsulation header included, and replaces the memory that goes with it,
    /// with used pages where there are some. The packet starts behind the link-layer header. `None` if there is no memory
    /// or the length is wrong: the message is lost, and the buffer stays whole.
    pub(crate) fn take(
        cx: &Context<'_>,
        mut message: Message<'_, Self>,
        dev: &Device,
        protocol: u16,
        queue: u16,
        store: &mut Pages,
    ) -> Option<SkBuff> {
        let len = message.octets();
        let linear = len.min(HEAD);
        let used = (len - linear).div_ceil(PAGE);
        if len < ENCAP_LEN || used > message.count {
            return None;
        }
        let fresh_head = Head::in_poll(cx)?;
        let rx = bindings::ipoib_h_rx {
            size: FRAGMENT as u32,
            start: (HEADROOM - PSEUDO_LEN) as u32,
            hard: HARD_LEN as u32,
            linear: (linear - ENCAP_LEN) as u32,
            protocol: protocol.to_be(),
            queue,
            pkt_type: bindings::PACKET_HOST as u8,
            ip_summed: bindings::CHECKSUM_NONE as u8,
        };
        // SAFETY: the fragment is ours, the size is its own, and it ends with room for the shared info. The linear
        // room is HEADROOM + HEAD, of which HEADROOM - 20 are reserved and 20 + linear used; the 20 octets before
        // the message are in the headroom.
        let skb =
            unsafe { bindings::ipoib_h_rx_skb(message.head.0.as_ptr().cast(), dev.as_ptr(), &rx) };
        let ptr = NonNull::new(skb)?;
        // SAFETY: what is replaced below is the first part, and the pages that the message reaches into, each by one of
        // its size.
        let this = unsafe { message.buffer_mut() };
        // The packet owns the fragment now.
        core::mem::forget(core::mem::replace(&mut this.head, fresh_head));
        // SAFETY: a new buffer that nobody else knows.
        let skb = unsafe { SkBuff::from_raw(ptr) };
        let mut rest = len - linear;
        for (i, place) in this.pages.iter_mut().take(used).enumerate() {
            // Page by page: what has been put into the packet so far goes with it when there is no more.
            let fresh = store.take()?;
            if let Some(page) = place.replace(fresh) {
                let part = rest.min(PAGE);
                store.keep(&page);
                // SAFETY: the packet has `i` fragments, below their greatest number, and takes over
                // the page's reference; `part` octets of it have been filled.
                unsafe {
                    bindings::ipoib_h_skb_add_rx_page(
                        ptr.as_ptr(),
                        i as i32,
                        page.into_raw(),
                        part as u32,
                    )
                };
                rest -= part;
            }
        }
        Some(skb)
    }
}

// SAFETY: all parts are exclusively owned and do not move while the value lives.
unsafe impl PagedBuffer for BigBuf {
    #[inline]
    fn region(&self, i: usize) -> Option<(*mut u8, usize)> {
        match i.checked_sub(1) {
            None => Some((self.message(), HEAD)),
            Some(i) if i < self.count => self
                .pages
                .get(i)?
                .as_ref()
                .map(|page| (page.address(), PAGE)),
            Some(_) => None,
        }
    }
}
