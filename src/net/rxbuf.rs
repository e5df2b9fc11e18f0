// SPDX-License-Identifier: GPL-2.0

//! Receive buffers: bare memory that turns into socket buffers without a copy.
//!
//! A buffer starts as bare memory, so that an idle ring costs no `sk_buff`s; the packet is built
//! around it when a frame has arrived.

use core::ptr::NonNull;

use super::{
    device::Device,
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

/// Room before the GRH: chosen so that the IP header, 44 octets behind, is 64-byte aligned.
const HEADROOM: usize = bindings::IPOIB_CONST_NET_SKB_PAD as usize + 20;

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

/// An owned receive buffer.
///
/// # Invariants
///
/// `mem` is memory of at least `size` octets that this value owns: a page fragment if `size` is at
/// most a page, else slab memory. `area` octets from [`HEADROOM`] on are for the hardware, and the
/// shared info of an `sk_buff` fits behind them.
pub(crate) struct RxBuf {
    mem: NonNull<u8>,
    size: u32,
    area: u32,
}

// SAFETY: owned memory.
unsafe impl Send for RxBuf {}

impl RxBuf {
    /// The size of the fragment for a hardware area of `area` octets.
    pub(crate) fn fragment_size(area: usize) -> usize {
        (HEADROOM + area).next_multiple_of(64) + bindings::IPOIB_CONST_SKB_SHARED_INFO as usize
    }

    /// Allocates a buffer whose hardware area has `area` octets (GRH, encapsulation, payload).
    /// Process or softirq context; does not sleep.
    pub(crate) fn new(area: usize) -> Option<Self> {
        let size = u32::try_from(Self::fragment_size(area)).ok()?;
        let mem = if Self::is_fragment(size) {
            // SAFETY: no preconditions; picks the per-CPU cache that fits the context.
            unsafe { bindings::__netdev_alloc_frag_align(size, u32::MAX) }
        } else {
            // The fragment cache does not serve more than a page.
            // SAFETY: no preconditions.
            unsafe { bindings::ipoib_h_kmalloc_rx(size as usize) }
        };
        // INVARIANT: a non-null result is memory of that size and kind, ours alone.
        Some(Self {
            mem: NonNull::new(mem.cast())?,
            size,
            area: area as u32,
        })
    }

    /// Whether memory of `size` octets is a page fragment.
    #[inline]
    const fn is_fragment(size: u32) -> bool {
        size as usize <= kernel::page::PAGE_SIZE
    }

    /// The hardware area.
    #[inline]
    pub(crate) fn area(&self) -> &[u8] {
        // SAFETY: within the memory by the type invariant. It may hold stale octets from the
        // memory's former use, which are initialised memory all the same.
        unsafe { core::slice::from_raw_parts(self.mem.as_ptr().add(HEADROOM), self.area as usize) }
    }

    /// Turns a filled buffer into a packet for `dev`, positioned behind the link-layer header.
    /// Softirq context.
    ///
    /// The stack sees a 24-octet link-layer header of 20 zero octets and the encapsulation header,
    /// as with `ib_ipoib` (RX-10).
    ///
    /// # Errors
    ///
    /// Gives the buffer back if there is no memory or the payload exceeds the area.
    pub(crate) fn into_skb(
        self,
        dev: &Device,
        info: &FrameInfo,
    ) -> core::result::Result<SkBuff, Self> {
        let fits = info
            .payload
            .checked_add(GRH_LEN + HARD_LEN - PSEUDO_LEN)
            .is_some_and(|n| n <= self.area as usize);
        if !fits {
            return Err(self);
        }
        // SAFETY: the memory is ours and of the kind that each function wants, and it ends with
        // room for the shared info by the type invariant.
        let skb = unsafe {
            if Self::is_fragment(self.size) {
                bindings::napi_build_skb(self.mem.as_ptr().cast(), self.size)
            } else {
                bindings::slab_build_skb(self.mem.as_ptr().cast())
            }
        };
        let Some(ptr) = NonNull::new(skb) else {
            return Err(self);
        };
        // The packet owns the memory now.
        core::mem::forget(self);
        // SAFETY: a new buffer that nobody else knows.
        let skb = unsafe { SkBuff::from_raw(ptr) };
        let pkt_type = match info.cast {
            Cast::Host => bindings::PACKET_HOST,
            Cast::Broadcast => bindings::PACKET_BROADCAST,
            Cast::Multicast => bindings::PACKET_MULTICAST,
        };
        // SAFETY: the linear room is HEADROOM + area, of which we use HEADROOM + 20 + 24 + payload,
        // within it as checked above; the 20 octets before the encapsulation header belong to the
        // GRH, which has been read.
        unsafe {
            bindings::ipoib_h_skb_reserve(ptr.as_ptr(), (HEADROOM + GRH_LEN - PSEUDO_LEN) as i32);
            let head = bindings::ipoib_h_skb_put(ptr.as_ptr(), (HARD_LEN + info.payload) as u32);
            head.cast::<u8>().write_bytes(0, PSEUDO_LEN);
            bindings::ipoib_h_skb_rx_frame(
                ptr.as_ptr(),
                dev.as_ptr(),
                info.protocol.to_be(),
                pkt_type as u8,
                info.checked,
                info.queue,
            );
            bindings::skb_pull(ptr.as_ptr(), HARD_LEN as u32);
        }
        Ok(skb)
    }
}

impl Drop for RxBuf {
    fn drop(&mut self) {
        // SAFETY: memory that we own, of the kind that its size says.
        unsafe {
            if Self::is_fragment(self.size) {
                bindings::page_frag_free(self.mem.as_ptr().cast());
            } else {
                bindings::kfree(self.mem.as_ptr().cast());
            }
        }
    }
}

// SAFETY: the area is exclusively owned and does not move while the value lives.
unsafe impl DmaBuffer for RxBuf {
    fn ptr(&self) -> *mut u8 {
        // SAFETY: within the memory by the type invariant.
        unsafe { self.mem.as_ptr().add(HEADROOM) }
    }

    fn len(&self) -> usize {
        self.area as usize
    }
}
