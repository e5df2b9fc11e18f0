// SPDX-License-Identifier: GPL-2.0

//! Receive buffers: bare memory that turns into socket buffers without a copy.
//!
//! A buffer starts without an `sk_buff`, so that an idle ring costs none; the packet is built
//! around the memory when a frame has arrived. A frame that may be longer than fits a page with
//! its headroom is split: headers and first octets go to a small fragment, the rest to a page,
//! which a short frame leaves untouched for the next buffer. Nothing is bigger than a page.

use core::ptr::NonNull;

use kernel::ffi::c_void;

use super::{
    device::Device,
    napi::Context,
    pages::{
        Pages,
        RxPage, //
    },
    skb::SkBuff, //
};
use crate::{
    base::buf::DmaBuffer,
    sys::bindings, //
};

/// Octets of the global routing header in front of every UD payload (`include/rdma/ib_verbs.h`).
pub(crate) const GRH_LEN: usize = 40;
/// Octets of the link-layer header that the stack sees: pseudo header and encapsulation (RX-10).
pub(crate) const HARD_LEN: usize = 24;
/// Octets of the pseudo header; it takes the place of the tail of the GRH.
const PSEUDO_LEN: usize = 20;
/// Octets of the encapsulation header.
const ENCAP_LEN: usize = HARD_LEN - PSEUDO_LEN;

/// Room before the GRH: chosen so that the IP header, 44 octets behind, is 64-byte aligned.
const HEADROOM: usize = bindings::IPOIB_CONST_NET_SKB_PAD as usize + 20;

/// Octets of the first part of a split buffer: all headers, and small packets whole.
const SPLIT_AT: usize = 384;

/// How a frame was addressed, for `skb->pkt_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cast {
    /// To this interface.
    Host,
    /// To the broadcast group.
    Broadcast,
    /// To another multicast group.
    Multicast,
}

/// What the stack is told about a received frame.
pub(crate) struct FrameInfo {
    /// Ethertype, host byte order.
    pub(crate) protocol: u16,
    /// Octets after the encapsulation header.
    pub(crate) payload: usize,
    /// How it was addressed.
    pub(crate) cast: Cast,
    /// Whether the hardware has checked the checksums.
    pub(crate) checked: bool,
    /// Receive queue number.
    pub(crate) queue: u16,
}

/// How buffers for one size of frame are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Octets for the hardware in the first part.
    head: u16,
    /// Octets for the hardware in the page; 0 without one.
    tail: u16,
    /// Octets of the fragment that the first part lies in.
    fragment: u16,
}

impl Layout {
    /// The layout for `area` octets: GRH, encapsulation and the longest payload. Of one that does not fit a page
    /// behind the first part no buffer can be made.
    pub(crate) const fn new(area: usize) -> Self {
        let area = if area > u16::MAX as usize {
            u16::MAX as usize
        } else {
            area
        };
        let whole = Self::fragment(area);
        if whole <= kernel::page::PAGE_SIZE {
            return Self {
                head: area as u16,
                tail: 0,
                fragment: whole as u16,
            };
        }
        Self {
            head: SPLIT_AT as u16,
            tail: (area - SPLIT_AT) as u16,
            fragment: Self::fragment(SPLIT_AT) as u16,
        }
    }

    /// A fragment with headroom, `head` octets for the hardware, and the shared info.
    const fn fragment(head: usize) -> usize {
        (HEADROOM + head).next_multiple_of(64) + bindings::IPOIB_CONST_SKB_SHARED_INFO as usize
    }

    /// Octets that a buffer offers the hardware.
    pub(crate) const fn area(&self) -> usize {
        self.head as usize + self.tail as usize
    }
}

/// An owned receive buffer.
///
/// # Invariants
///
/// `mem` is a page fragment of `layout.fragment` octets that this value owns; there is a page
/// exactly if `layout.tail` is not 0, and it is at least that long.
pub(crate) struct RxBuf {
    mem: NonNull<u8>,
    page: Option<RxPage>,
    layout: Layout,
}

// SAFETY: owned memory.
unsafe impl Send for RxBuf {}

impl RxBuf {
    /// Allocates a buffer, with one of `pages` for its second part if it has one. Process or softirq
    /// context; does not sleep.
    pub(crate) fn new(layout: Layout, pages: &mut Pages) -> Option<Self> {
        Self::make(layout, pages, |octets| {
            // SAFETY: no preconditions; picks the per-CPU cache that fits the context.
            unsafe { bindings::__netdev_alloc_frag_align(octets, u32::MAX) }
        })
    }

    /// The same for a poll, from the cache that polls have for themselves.
    #[inline]
    pub(crate) fn in_poll(_: &Context<'_>, layout: Layout, pages: &mut Pages) -> Option<Self> {
        Self::make(layout, pages, |octets| {
            // SAFETY: softirq context, as whoever has a poll's context is in.
            unsafe { bindings::__napi_alloc_frag_align(octets, u32::MAX) }
        })
    }

    #[inline]
    fn make(
        layout: Layout,
        pages: &mut Pages,
        alloc: impl FnOnce(u32) -> *mut c_void,
    ) -> Option<Self> {
        let page = if layout.tail == 0 {
            None
        } else if layout.tail as usize <= kernel::page::PAGE_SIZE {
            Some(pages.take()?)
        } else {
            return None;
        };
        let mem = alloc(layout.fragment.into());
        // INVARIANT: a non-null result is a fragment of that size, ours alone.
        Some(Self {
            mem: NonNull::new(mem.cast())?,
            page,
            layout,
        })
    }

    /// The layout.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// The first part of the hardware's area: the headers lie here.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        // SAFETY: within the fragment by the type invariant. It may hold stale octets from the
        // fragment's former use, which are initialised memory all the same.
        unsafe { core::slice::from_raw_parts(self.head_ptr(), self.layout.head as usize) }
    }

    #[inline]
    fn head_ptr(&self) -> *mut u8 {
        // SAFETY: within the fragment by the type invariant.
        unsafe { self.mem.as_ptr().add(HEADROOM) }
    }

    /// Turns a filled buffer into a packet for `dev`, positioned behind the link-layer header. The page
    /// goes back to `pages` if the frame did not reach it. Softirq context.
    ///
    /// The stack sees a 24-octet link-layer header of 20 zero octets and the encapsulation header,
    /// as with `ib_ipoib` (RX-10).
    ///
    /// # Errors
    ///
    /// Gives the buffer back if there is no memory or the payload exceeds the area.
    #[inline]
    pub(crate) fn into_skb(
        self,
        dev: &Device,
        info: &FrameInfo,
        pages: &mut Pages,
    ) -> core::result::Result<SkBuff, Self> {
        let room = self.layout.head as usize - GRH_LEN - ENCAP_LEN;
        let linear = info.payload.min(room);
        let rest = info.payload - linear;
        if rest > self.layout.tail as usize {
            return Err(self);
        }
        let pkt_type = match info.cast {
            Cast::Host => bindings::PACKET_HOST,
            Cast::Broadcast => bindings::PACKET_BROADCAST,
            Cast::Multicast => bindings::PACKET_MULTICAST,
        };
        let ip_summed = if info.checked {
            bindings::CHECKSUM_UNNECESSARY
        } else {
            bindings::CHECKSUM_NONE
        };
        let rx = bindings::ipoib_h_rx {
            size: self.layout.fragment.into(),
            start: (HEADROOM + GRH_LEN - PSEUDO_LEN) as u32,
            hard: HARD_LEN as u32,
            linear: linear as u32,
            protocol: info.protocol.to_be(),
            queue: info.queue,
            pkt_type: pkt_type as u8,
            ip_summed: ip_summed as u8,
        };
        // SAFETY: the fragment is ours, the size is its own, and it ends with room for the shared
        // info by the type invariant. The linear room is HEADROOM + head, of which we use
        // HEADROOM + 20 + 24 + linear, within it as computed above; the 20 octets before the
        // encapsulation header belong to the GRH, which has been read.
        let skb = unsafe { bindings::ipoib_h_rx_skb(self.mem.as_ptr().cast(), dev.as_ptr(), &rx) };
        let Some(ptr) = NonNull::new(skb) else {
            return Err(self);
        };
        // The packet owns the fragment now.
        let mut this = core::mem::ManuallyDrop::new(self);
        if let Some(page) = this.page.take() {
            if rest == 0 {
                pages.put(page);
            } else {
                pages.keep(&page);
                // SAFETY: the packet has no fragments yet, and takes over the page's reference;
                // `rest` octets of it have been filled.
                unsafe {
                    bindings::ipoib_h_skb_add_rx_page(ptr.as_ptr(), 0, page.into_raw(), rest as u32)
                };
            }
        }
        // SAFETY: a new buffer that nobody else knows.
        Ok(unsafe { SkBuff::from_raw(ptr) })
    }
}

impl Drop for RxBuf {
    fn drop(&mut self) {
        // SAFETY: a fragment that we own.
        unsafe { bindings::page_frag_free(self.mem.as_ptr().cast()) }
    }
}

// SAFETY: both parts are exclusively owned and do not move while the value lives.
unsafe impl DmaBuffer for RxBuf {
    #[inline]
    fn head(&self) -> (*mut u8, usize) {
        (self.head_ptr(), self.layout.head as usize)
    }

    #[inline]
    fn tail(&self) -> Option<(*mut u8, usize)> {
        self.page
            .as_ref()
            .map(|page| (page.address(), self.layout.tail as usize))
    }
}
