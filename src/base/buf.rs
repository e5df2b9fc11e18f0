// SPDX-License-Identifier: GPL-2.0

//! What the verbs layer needs to know of a buffer it lends to the hardware.
//!
//! The network layer implements these traits; the verbs layer uses nothing else of a packet. That
//! keeps each of the two ignorant of the other.

use kernel::bindings::page;

/// A receive buffer: one or two contiguous regions of kernel memory, filled one after the other.
///
/// # Safety
///
/// As long as the value exists, moved or not, the regions must be memory of the kernel's direct map
/// (not on a stack, not from vmalloc), valid for writes, and owned by the value alone. The answers
/// must not change. The memory must not be freed before the value is dropped.
pub(crate) unsafe trait DmaBuffer: Send {
    /// Start and length in bytes (1 to `u32::MAX`) of the first region.
    fn head(&self) -> (*mut u8, usize);

    /// Start and length in bytes (1 to `u32::MAX`) of the second region, if there is one.
    fn tail(&self) -> Option<(*mut u8, usize)>;
}

/// A receive buffer of many contiguous regions of kernel memory, filled one after the other.
///
/// # Safety
///
/// As for [`DmaBuffer`]; but the memory of regions may be replaced as [`Message::buffer_mut`] allows.
pub(crate) unsafe trait PagedBuffer: Send {
    /// Start and length in bytes (1 to `u32::MAX`) of region `i`; `None` behind the last one.
    fn region(&self, i: usize) -> Option<(*mut u8, usize)>;
}

/// A message in a buffer that stays where it is and is lent again.
///
/// # Invariants
///
/// The hardware is done with the buffer. The regions that its first `octets` octets lie in are not mapped; those behind
/// may be.
pub(crate) struct Message<'a, B> {
    buffer: &'a mut B,
    octets: usize,
}

impl<'a, B: PagedBuffer> Message<'a, B> {
    /// # Safety
    ///
    /// The invariants must hold as long as the value lives.
    #[inline]
    pub(crate) unsafe fn new(buffer: &'a mut B, octets: usize) -> Self {
        // INVARIANT: by the safety requirements.
        Self { buffer, octets }
    }

    /// Its length, as the hardware says: may be more than the buffer holds.
    #[inline]
    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    /// # Safety
    ///
    /// Nothing may be changed but the memory of the regions that the octets lie in, and nothing but that: each must keep
    /// its length.
    #[inline]
    pub(crate) unsafe fn buffer_mut(&mut self) -> &mut B {
        self.buffer
    }
}

impl<B> core::ops::Deref for Message<'_, B> {
    type Target = B;

    #[inline]
    fn deref(&self) -> &B {
        self.buffer
    }
}

/// A payload to be sent: an optional linear part, then page fragments, in the order of the bytes
/// on the wire.
///
/// # Safety
///
/// As long as the value exists, moved or not, what these functions describe must be memory that is
/// valid for reads, and the answers must not change. Others may write to that memory meanwhile (user
/// space does, to pages sent with MSG_ZEROCOPY): nothing of it may be read through a reference. The
/// linear part must be in the kernel's direct map. The memory must not be freed before the value is
/// dropped.
pub(crate) unsafe trait Segments: Send {
    /// Start and length in bytes of the linear part; `None` when it is empty.
    fn linear(&self) -> Option<(*const u8, usize)>;

    /// Number of page fragments.
    fn nr_frags(&self) -> usize;

    /// Page, offset and length in bytes of fragment `i`; `None` when there is no such fragment.
    ///
    /// The offset may reach into the following pages of a compound page.
    fn frag(&self, i: usize) -> Option<(*mut page, usize, usize)>;
}
