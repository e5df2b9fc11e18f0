// SPDX-License-Identifier: GPL-2.0

//! Work completions.

use kernel::prelude::*;

use crate::{sys::bindings as sys, wire::qpn::Qpn};

/// Outcome of a work request (`enum ib_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct WcStatus(sys::ib_wc_status);

impl WcStatus {
    /// Whether the request succeeded.
    #[inline]
    pub(crate) fn is_success(self) -> bool {
        self.0 == sys::ib_wc_status::IB_WC_SUCCESS
    }

    /// Whether the request was thrown out because the queue pair is in the error state; says
    /// nothing of the request itself.
    #[inline]
    pub(crate) fn is_flushed(self) -> bool {
        self.0 == sys::ib_wc_status::IB_WC_WR_FLUSH_ERR
    }

    /// The C value.
    pub(crate) fn code(self) -> u32 {
        self.0 .0
    }

    /// A few words for log messages.
    pub(crate) fn name(self) -> &'static str {
        // SAFETY: The function accepts any value and returns a static, zero-terminated string.
        let text = unsafe { CStr::from_char_ptr(sys::ib_wc_status_msg(self.0).cast()) };
        text.to_str().unwrap_or("?")
    }
}

/// A completion that [`CqPoller::poll`](super::CqPoller::poll) filled in.
///
/// Only polling produces one that names a request; there is no other way to make a queue believe
/// that the hardware is done with a buffer.
#[repr(transparent)]
pub(crate) struct Wc(sys::ib_wc);

// SAFETY: The value is plain data; the pointer to the queue pair is never followed.
unsafe impl Send for Wc {}
// SAFETY: As above.
unsafe impl Sync for Wc {}

impl Wc {
    /// An entry for polling to fill in. It completes nothing.
    pub(crate) fn blank() -> Self {
        Self(sys::ib_wc::default())
    }

    /// An array of blank entries.
    pub(crate) fn blanks<const N: usize>() -> [Self; N] {
        core::array::from_fn(|_| Self::blank())
    }

    /// The number that the queue gave to the request.
    #[inline]
    pub(super) fn wr_id(&self) -> u64 {
        // SAFETY: Both views of the union are 64 bits without invalid patterns.
        unsafe { self.0.__bindgen_anon_1.wr_id }
    }

    /// Which of the queues that share a completion queue this belongs to.
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        (self.wr_id() >> WrTag::SEQ_BITS) as u16
    }

    /// What [`Qp::key`](super::Qp::key) says of the queue pair.
    #[inline]
    pub(crate) fn qp_key(&self) -> usize {
        self.0.qp as usize
    }

    /// Outcome of the request. If it is an error, only [`Wc::vendor_err`] is meaningful besides.
    #[inline]
    pub(crate) fn status(&self) -> WcStatus {
        WcStatus(self.0.status)
    }

    /// A code of the hardware maker, for log messages.
    pub(crate) fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    /// Whether this completes a receive request. Meaningful only on success.
    #[inline]
    pub(crate) fn is_receive(&self) -> bool {
        self.0.opcode.0 & sys::ib_wc_opcode::IB_WC_RECV.0 != 0
    }

    /// Number of bytes received, the 40 bytes of the routing header included. The buffer may be
    /// shorter if the hardware lies; check it.
    #[inline]
    pub(crate) fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The queue pair that sent the datagram.
    #[inline]
    pub(crate) fn src_qp(&self) -> Qpn {
        Qpn::new(self.0.src_qp)
    }

    /// The port that sent the datagram; 0 on Ethernet.
    #[inline]
    pub(crate) fn slid(&self) -> u32 {
        self.0.slid
    }

    /// Service level of the datagram.
    #[inline]
    pub(crate) fn sl(&self) -> u8 {
        self.0.sl
    }

    /// Whether the first 40 bytes of the buffer hold a routing header; else they are undefined.
    #[inline]
    pub(crate) fn has_grh(&self) -> bool {
        self.flag(sys::ib_wc_flags::IB_WC_GRH)
    }

    /// Whether the hardware found IP, TCP and UDP checksums correct.
    #[inline]
    pub(crate) fn ip_csum_ok(&self) -> bool {
        self.flag(sys::ib_wc_flags::IB_WC_IP_CSUM_OK)
    }

    /// Kind of the routing header (`enum rdma_network_type`: 0 InfiniBand, 1 RoCE v1, 2 IPv4,
    /// 3 IPv6), if the device tells.
    #[inline]
    pub(crate) fn network_hdr_type(&self) -> Option<u8> {
        self.flag(sys::ib_wc_flags::IB_WC_WITH_NETWORK_HDR_TYPE)
            .then_some(self.0.network_hdr_type)
    }

    fn flag(&self, flag: sys::ib_wc_flags) -> bool {
        self.0.wc_flags as u32 & flag.0 != 0
    }
}

/// Tells apart the requests of different queues, so that a completion can only complete what it
/// belongs to.
///
/// The upper 16 bits of a `wr_id` name the queue, the lower 48 count its requests. Queues that
/// exist at the same time, or within 65534 creations of each other, have different tags, none is 0.
#[derive(Clone, Copy)]
pub(super) struct WrTag(u64);

impl WrTag {
    const SEQ_BITS: u32 = 48;
    const SEQ_MASK: u64 = (1 << Self::SEQ_BITS) - 1;

    /// A tag for a new queue.
    pub(super) fn new() -> Self {
        use kernel::sync::atomic::{Atomic, Relaxed};

        static NEXT: Atomic<u32> = Atomic::new(0);
        let n = NEXT.fetch_add(1, Relaxed) % 0xffff;
        Self(u64::from(n.wrapping_add(1)) << Self::SEQ_BITS)
    }

    /// The tag by itself.
    pub(super) fn get(self) -> u16 {
        (self.0 >> Self::SEQ_BITS) as u16
    }

    /// The number of the request of `wc`, if it is one of this queue.
    #[inline]
    pub(super) fn seq(self, wc: &Wc) -> Option<u64> {
        self.distance(wc, 0)
    }

    /// The `wr_id` of request `seq`.
    #[inline]
    pub(super) fn wr_id(self, seq: u64) -> u64 {
        self.0 | (seq & Self::SEQ_MASK)
    }

    /// How many requests after `head` the request of `wc` was made, if it is one of this queue.
    /// A request before `head` gives a huge number.
    #[inline]
    pub(super) fn distance(self, wc: &Wc, head: u64) -> Option<u64> {
        let id = wc.wr_id();
        (id & !Self::SEQ_MASK == self.0).then_some(id.wrapping_sub(head) & Self::SEQ_MASK)
    }
}
