// SPDX-License-Identifier: GPL-2.0

//! Socket buffers with one owner.
//!
//! C header: [`include/linux/skbuff.h`](srctree/include/linux/skbuff.h)

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*, //
};

use super::device::Device;
use crate::{
    base::buf::Segments,
    sys::bindings, //
};

/// Octets of a TCP header without options.
const TCP_HEADER: usize = 20;

/// How a packet is to be cut.
#[derive(Clone, Copy)]
pub(crate) struct Gso {
    /// Octets of headers at the start of the linear part, which each piece gets a copy of; 0 when
    /// they are not there.
    pub(crate) headers: usize,
    /// Octets behind the headers in each piece but the last.
    pub(crate) mss: u16,
    /// How many pieces it gives, at least 1.
    pub(crate) segments: u32,
}

/// An owned `struct sk_buff`. Dropping it frees the packet as a drop (not as consumed).
///
/// # Invariants
///
/// `ptr` is a valid buffer that nobody else frees; its data may be shared with clones, so only
/// the header that we make writable ourselves is written.
pub(crate) struct SkBuff {
    ptr: NonNull<bindings::sk_buff>,
}

// SAFETY: a buffer has one owner, who may be any thread.
unsafe impl Send for SkBuff {}
// SAFETY: the methods on `&self` only read.
unsafe impl Sync for SkBuff {}

impl SkBuff {
    /// The most pieces that a packet can lie in: linear part and fragments.
    pub(crate) const MAX_SEGMENTS: usize = bindings::IPOIB_CONST_MAX_SKB_FRAGS as usize + 1;

    /// Takes over a buffer.
    ///
    /// # Safety
    ///
    /// `ptr` is a valid buffer whose ownership passes to the result.
    pub(crate) unsafe fn from_raw(ptr: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: the caller's promise.
        Self { ptr }
    }

    /// Gives the buffer away.
    #[inline]
    pub(crate) fn into_raw(self) -> *mut bindings::sk_buff {
        ManuallyDrop::new(self).ptr.as_ptr()
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.ptr.as_ptr()
    }

    /// The part that clones share, behind the memory of the linear part.
    #[inline]
    fn shared(&self) -> *const bindings::skb_shared_info {
        // SAFETY: fields of a valid buffer; the shared part lies at the end of its memory.
        unsafe {
            let skb = self.as_ptr();
            (*skb).head.add((*skb).end as usize).cast()
        }
    }

    /// Octets in the packet, linear part and fragments, from the present start.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        // SAFETY: a field of a valid buffer.
        unsafe { (*self.as_ptr()).len }
    }

    /// The linear part from the present start.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        // SAFETY: `data` points to `len - data_len` linear octets of a valid buffer, which live
        // as long as the buffer.
        unsafe {
            let skb = self.as_ptr();
            let headlen = (*skb).len.wrapping_sub((*skb).data_len) as usize;
            core::slice::from_raw_parts((*skb).data, headlen)
        }
    }

    /// Cuts `n` octets off the start of the linear part. Returns whether there were so many.
    #[inline]
    pub(crate) fn pull(&mut self, n: usize) -> bool {
        if self.head().len() < n {
            return false;
        }
        // SAFETY: `n` linear octets are there.
        unsafe {
            let skb = self.as_ptr();
            (*skb).len = (*skb).len.wrapping_sub(n as u32);
            (*skb).data = (*skb).data.add(n);
        }
        true
    }

    /// Puts `octets` in front, copying the head first if clones share it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn push(&mut self, octets: &[u8]) -> Result {
        let n = octets.len() as u32;
        // SAFETY: valid buffer; makes the headroom private and big enough.
        to_result(unsafe { bindings::ipoib_h_skb_cow_head(self.as_ptr(), n) })?;
        // SAFETY: the headroom has `n` writable octets, as just established.
        unsafe {
            let at = bindings::skb_push(self.as_ptr(), n).cast::<u8>();
            core::ptr::copy_nonoverlapping(octets.as_ptr(), at, octets.len());
        }
        Ok(())
    }

    /// The transmit queue that the stack has chosen.
    #[inline]
    pub(crate) fn queue_mapping(&self) -> u16 {
        // SAFETY: a field of a valid buffer.
        unsafe { (*self.as_ptr()).queue_mapping }
    }

    /// Whether there is more than the linear part.
    #[inline]
    pub(crate) fn is_paged(&self) -> bool {
        // SAFETY: a field of a valid buffer.
        unsafe { (*self.as_ptr()).data_len != 0 }
    }

    /// How many pieces of memory the packet lies in.
    #[inline]
    pub(crate) fn segments(&self) -> usize {
        usize::from(!self.head().is_empty()) + self.nr_frags()
    }

    /// Gathers the packet into one piece. Any context (allocates with `GFP_ATOMIC`).
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn linearize(&mut self) -> Result {
        // SAFETY: valid buffer that we own.
        to_result(unsafe { bindings::ipoib_h_skb_linearize(self.as_ptr()) })
    }

    /// Whether the packet carries a list of further buffers, which hardware cannot gather.
    #[inline]
    pub(crate) fn has_frag_list(&self) -> bool {
        // SAFETY: a field of the shared part of a valid buffer.
        unsafe { !(*self.shared()).frag_list.is_null() }
    }

    /// Whether the stack has left the checksum behind IP to the hardware.
    #[inline]
    pub(crate) fn wants_checksum(&self) -> bool {
        // SAFETY: valid buffer.
        let summed = unsafe {
            (*self.as_ptr())
                .__bindgen_anon_4
                .__bindgen_anon_1
                .as_ref()
                .ip_summed()
        };
        u32::from(summed) == bindings::CHECKSUM_PARTIAL
    }

    /// Whether the packet is to be cut.
    #[inline]
    pub(crate) fn is_gso(&self) -> bool {
        // SAFETY: a field of the shared part of a valid buffer.
        unsafe { (*self.shared()).gso_size != 0 }
    }

    /// How the packet is to be cut, if it is to be: TCP, from the present start. A packet whose headers do not lie
    /// in the linear part has none there, as the zero says.
    #[inline]
    pub(crate) fn gso(&self) -> Option<Gso> {
        if self.is_gso() {
            Some(Self::pieces(self.ptr))
        } else {
            None
        }
    }

    /// What [`Self::gso`] says of a packet that is to be cut. By pointer, so that a packet that is not need not have
    /// an address.
    #[inline(never)]
    fn pieces(ptr: NonNull<bindings::sk_buff>) -> Gso {
        // The value is not dropped: the buffer stays the caller's.
        let this = ManuallyDrop::new(Self { ptr });
        let linear = this.head().len();
        // SAFETY: as above.
        let transport = unsafe { bindings::ipoib_h_skb_transport_offset(this.as_ptr()) };
        let readable = usize::try_from(transport)
            .is_ok_and(|offset| offset.saturating_add(TCP_HEADER) <= linear);
        let headers = if readable {
            // SAFETY: as above; the fixed part of the TCP header can be read, as was just seen.
            unsafe { bindings::ipoib_h_skb_tcp_all_headers(this.as_ptr()) as usize }
        } else {
            0
        };
        // SAFETY: as above.
        let (mss, segments) = unsafe {
            let shared = this.shared();
            ((*shared).gso_size, (*shared).gso_segs)
        };
        Gso {
            headers: if headers <= linear { headers } else { 0 },
            mss,
            segments: u32::from(segments).max(1),
        }
    }

    /// Packets and octets that the packet is on the wire, from the present start.
    #[inline]
    pub(crate) fn on_wire(&self) -> (u32, u32) {
        match self.gso() {
            None => (1, self.len()),
            Some(gso) => {
                let copies = (gso.segments - 1).saturating_mul(gso.headers as u32);
                (gso.segments, self.len().saturating_add(copies))
            }
        }
    }

    /// Frees the sender's account and the route, which must not wait for a late completion
    /// (TX-14), and takes the software timestamp. Call just before posting.
    #[inline]
    pub(crate) fn detach(&mut self) {
        // SAFETY: valid buffer that we own; its dst is not used after this.
        unsafe {
            bindings::ipoib_h_skb_detach(self.as_ptr());
        }
    }

    /// Tells the sender of this packet, whose data starts with the network header, that no packet longer
    /// than `mtu` octets goes this way: in the route, and by an ICMP message (CM-19). Drops the packet.
    /// Not with a transmit lock held.
    pub(crate) fn too_big(self, dev: &Device, mtu: u32) {
        let skb = self.as_ptr();
        // SAFETY: valid buffer that we own, with its route; `dev` is live while the messages are made.
        unsafe {
            (*skb)
                .__bindgen_anon_1
                .__bindgen_anon_1
                .__bindgen_anon_1
                .dev = dev.as_ptr();
            bindings::ipoib_h_skb_clear_cb(skb);
            bindings::ipoib_h_skb_update_pmtu(skb, mtu);
            match u32::from(u16::from_be(bindings::ipoib_h_skb_protocol(skb))) {
                bindings::ETH_P_IP => bindings::ipoib_h_icmp_frag_needed(skb, mtu),
                bindings::ETH_P_IPV6 => bindings::ipoib_h_icmpv6_too_big(skb, mtu),
                _ => {}
            }
        }
    }

    /// Sends the packet through `dev`'s queueing discipline, from the start. Not in hard
    /// interrupts.
    pub(crate) fn transmit(self, dev: &Device) {
        // SAFETY: ownership passes to the stack; `dev` is live, and the stack holds the packet on
        // its queues only while the device exists.
        unsafe {
            (*self.as_ptr())
                .__bindgen_anon_1
                .__bindgen_anon_1
                .__bindgen_anon_1
                .dev = dev.as_ptr();
            bindings::ipoib_h_dev_queue_xmit(self.into_raw());
        }
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: we own the buffer.
        unsafe { bindings::ipoib_h_kfree_skb_any(self.as_ptr()) }
    }
}

// SAFETY: the pieces are those of a buffer that we own and whose length and fragments do not
// change while the caller keeps the value: all methods that change them take it by `&mut`.
unsafe impl Segments for SkBuff {
    #[inline]
    fn linear(&self) -> Option<(*const u8, usize)> {
        let head = self.head();
        (!head.is_empty()).then_some((head.as_ptr(), head.len()))
    }

    #[inline]
    fn nr_frags(&self) -> usize {
        // SAFETY: a field of the shared part of a valid buffer.
        unsafe { (*self.shared()).nr_frags.into() }
    }

    #[inline]
    fn frag(&self, i: usize) -> Option<(*mut bindings::page, usize, usize)> {
        if i >= self.nr_frags() {
            return None;
        }
        // SAFETY: the shared part of a valid buffer, which nobody writes to while we have it.
        let frag = unsafe { (*self.shared()).frags.get(i) }?;
        let i = i as u32;
        // SAFETY: valid buffer, and the index is below its number of fragments.
        unsafe {
            Some((
                bindings::ipoib_h_skb_frag_page(self.as_ptr(), i),
                frag.offset as usize,
                frag.len as usize,
            ))
        }
    }
}

/// A chain of packets, first in first out, without allocation.
///
/// # Invariants
///
/// The buffers from `first` along their `next` links to `last` belong to this value.
pub(crate) struct SkbList {
    first: *mut bindings::sk_buff,
    last: *mut bindings::sk_buff,
    len: usize,
}

// SAFETY: owns its buffers, which may be freed by any thread.
unsafe impl Send for SkbList {}

impl SkbList {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self {
            first: core::ptr::null_mut(),
            last: core::ptr::null_mut(),
            len: 0,
        }
    }

    /// How many packets are in the list.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a packet.
    pub(crate) fn push(&mut self, skb: SkBuff) {
        let skb = skb.into_raw();
        // SAFETY: the buffer is ours now, so its link is unused; `last` is ours by the invariant.
        unsafe {
            (*skb).__bindgen_anon_1.__bindgen_anon_1.next = core::ptr::null_mut();
            if self.last.is_null() {
                self.first = skb;
            } else {
                (*self.last).__bindgen_anon_1.__bindgen_anon_1.next = skb;
            }
        }
        self.last = skb;
        self.len += 1;
    }

    /// Takes the first packet.
    pub(crate) fn pop(&mut self) -> Option<SkBuff> {
        let skb = NonNull::new(self.first)?;
        // SAFETY: ours by the type invariant.
        unsafe {
            let link = &mut (*skb.as_ptr()).__bindgen_anon_1.__bindgen_anon_1;
            self.first = link.next;
            link.next = core::ptr::null_mut();
        }
        if self.first.is_null() {
            self.last = core::ptr::null_mut();
        }
        self.len -= 1;
        // SAFETY: the buffer was ours and is off the list now.
        Some(unsafe { SkBuff::from_raw(skb) })
    }

    /// Takes the whole list, leaving none.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }
}

impl Drop for SkbList {
    fn drop(&mut self) {
        while let Some(skb) = self.pop() {
            drop(skb);
        }
    }
}
