// SPDX-License-Identifier: GPL-2.0

//! Receiving datagrams.

use core::{
    cell::UnsafeCell,
    mem::forget,
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::{flags::GFP_KERNEL, KVVec},
    prelude::*,
    sync::Arc,
};

use super::{
    dma::{Direction, DmaDevice},
    qp::{first_unposted, Kept, Qp, QpReset},
    wc::{Wc, WrTag},
};
use crate::{base::buf::DmaBuffer, sys::bindings as sys};

/// Requests that are posted with one call at most.
const CHAIN: usize = 32;

/// Scatter entries of a request: the regions that a buffer may have.
pub(crate) const REGIONS: usize = 2;

/// A lent buffer.
///
/// # Invariants
///
/// If `buffer` is there, its regions are mapped at `addrs` for the hardware to write.
#[repr(align(64))]
struct Slot<B> {
    buffer: Option<B>,
    /// Number of the request that lent the buffer.
    seq: u64,
    addrs: [u64; REGIONS],
}

impl<B: DmaBuffer> Slot<B> {
    /// Takes the buffer back.
    ///
    /// # Safety
    ///
    /// `dma` must be what it was mapped with, and the hardware must be done with it.
    #[inline]
    unsafe fn take(&mut self, dma: DmaDevice) -> Option<B> {
        let buffer = self.buffer.take()?;
        let [head, tail] = self.addrs;
        // SAFETY: By the safety requirements and the type invariants.
        unsafe { unmap(dma, &buffer, head, Some(tail)) };
        Some(buffer)
    }
}

/// Maps the regions of `buffer`, both or none. The address of a missing second region is 0.
///
/// # Safety
///
/// The device must be valid, and the buffer must stay until it is unmapped. While the hardware may
/// write to it, nobody else may access it.
#[inline]
unsafe fn map<B: DmaBuffer>(dma: DmaDevice, buffer: &B) -> Result<[u64; REGIONS]> {
    let (ptr, len) = buffer.head();
    // SAFETY: By the contract of `DmaBuffer` and the safety requirements.
    let head = unsafe { dma.map(ptr, len, Direction::FromDevice) }?;
    let Some((ptr, len)) = buffer.tail() else {
        return Ok([head, 0]);
    };
    // SAFETY: As above.
    match unsafe { dma.map(ptr, len, Direction::FromDevice) } {
        Ok(tail) => Ok([head, tail]),
        Err(e) => {
            // SAFETY: Mapped above, and the hardware was not told of it.
            unsafe { unmap(dma, buffer, head, None) };
            Err(e)
        }
    }
}

/// Undoes [`map`]; without `tail` only the first region.
///
/// # Safety
///
/// The addresses must be those of a successful mapping of `buffer` by `dma` that has not been
/// undone, and the hardware must be done with it.
#[inline]
unsafe fn unmap<B: DmaBuffer>(dma: DmaDevice, buffer: &B, head: u64, tail: Option<u64>) {
    // SAFETY: By the safety requirements.
    unsafe { dma.unmap(head, buffer.head().1, Direction::FromDevice) };
    if let (Some(addr), Some((_, len))) = (tail, buffer.tail()) {
        // SAFETY: As above.
        unsafe { dma.unmap(addr, len, Direction::FromDevice) };
    }
}

/// The slots of a queue, kept by the queue pair until it is destroyed.
///
/// # Invariants
///
/// Only the [`RecvQueue`] that made the value accesses `slots`, while it exists.
struct Slots<B: DmaBuffer> {
    slots: UnsafeCell<KVVec<Slot<B>>>,
    dma: DmaDevice,
}

// SAFETY: By the type invariants there is no concurrent access; buffers may move between threads.
unsafe impl<B: DmaBuffer> Send for Slots<B> {}
// SAFETY: As above.
unsafe impl<B: DmaBuffer> Sync for Slots<B> {}

impl<B: DmaBuffer> Drop for Slots<B> {
    fn drop(&mut self) {
        for slot in self.slots.get_mut().iter_mut() {
            // SAFETY: The queue pair keeps this value until it is destroyed, and it holds the
            // device until then.
            drop(unsafe { slot.take(self.dma) });
        }
    }
}

impl<B: DmaBuffer + 'static> Kept for Slots<B> {}

/// The requests under construction, with their scatter entries. Each request has its own ones and, but for the last of
/// all, names the next one, and all entries have the key: that stays from post to post.
struct Chain {
    wrs: [sys::ib_recv_wr; CHAIN],
    sges: [[sys::ib_sge; REGIONS]; CHAIN],
}

/// Puts into the requests of `chain` what stays.
///
/// # Safety
///
/// A valid chain that nobody else uses.
unsafe fn prepare(chain: *mut Chain, lkey: u32) {
    // SAFETY: By the safety requirements; all indices are below the length of the arrays.
    unsafe {
        let wrs = (&raw mut (*chain).wrs).cast::<sys::ib_recv_wr>();
        let sges = (&raw mut (*chain).sges).cast::<[sys::ib_sge; REGIONS]>();
        for i in 0..CHAIN {
            for entry in 0..REGIONS {
                (*sges.add(i).cast::<sys::ib_sge>().add(entry)).lkey = lkey;
            }
            (*wrs.add(i)).sg_list = sges.add(i).cast();
            if i + 1 < CHAIN {
                (*wrs.add(i)).next = wrs.add(i + 1);
            }
        }
    }
}

/// A queue of buffers lent to the hardware. Lives with the poll; nothing but the creation sleeps.
///
/// # Invariants
///
/// - `slots` is the array of the `mask + 1` slots in `_storage`, which `qp` keeps.
/// - Requests are numbered. Those from `head` to `tail` are lent, but for holes left by completions
///   out of order; the newest `filled` of them are on the chain and not posted. Request `seq` has
///   the slot `seq & mask`, and `tail - head <= mask + 1`. `lent` is the number of buffers in
///   slots.
/// - `chain` is a box of ours, prepared by [`prepare`].
/// - `posted` is what the last post returned.
pub(crate) struct RecvQueue<B: DmaBuffer + 'static> {
    slots: NonNull<Slot<B>>,
    mask: u64,
    head: u64,
    tail: u64,
    lent: usize,
    chain: NonNull<Chain>,
    filled: usize,
    failed: Option<Error>,
    /// Buffers are lent of which it is not known whether they were posted.
    unsure: bool,
    posted: u64,
    spurious: u64,
    dma: DmaDevice,
    tag: WrTag,
    _storage: Arc<Slots<B>>,
    qp: Qp,
}

// SAFETY: The pointers are to memory that only this value uses; everything else is `Send`.
unsafe impl<B: DmaBuffer> Send for RecvQueue<B> {}

impl<B: DmaBuffer> RecvQueue<B> {
    /// Makes an empty queue of `slots` slots on `qp`; `slots` is a power of two and not more than
    /// the receive requests the queue pair was created for. Sleeps.
    ///
    /// The completions of `qp`'s receive queue must all be given to this queue. Make one per queue
    /// pair: the memory of each stays until the queue pair is destroyed.
    pub(crate) fn new(qp: &Qp, slots: usize) -> Result<Self> {
        if !slots.is_power_of_two() {
            return Err(EINVAL);
        }
        let dma = DmaDevice::new(qp.device())?;
        let mut array = KVVec::with_capacity(slots, GFP_KERNEL)?;
        for _ in 0..slots {
            let slot = Slot {
                buffer: None,
                seq: 0,
                addrs: [0; REGIONS],
            };
            array.push_within_capacity(slot).map_err(|_| ENOMEM)?;
        }
        let storage = Arc::new(
            Slots {
                slots: UnsafeCell::new(array),
                dma,
            },
            GFP_KERNEL,
        )?;
        // SAFETY: Nobody else accesses the array; from here on only through this pointer.
        let first = unsafe { (*storage.slots.get()).as_mut_ptr() };
        qp.keep(storage.clone())?;
        let chain = KBox::into_raw(KBox::new(
            Chain {
                wrs: core::array::from_fn(|_| sys::ib_recv_wr::default()),
                sges: core::array::from_fn(|_| core::array::from_fn(|_| sys::ib_sge::default())),
            },
            GFP_KERNEL,
        )?);
        // SAFETY: A new box, which nobody else uses.
        unsafe { prepare(chain, qp.pd().local_dma_lkey()) };
        // INVARIANT: All slots are empty, nothing is on the chain, nothing was posted.
        Ok(Self {
            slots: NonNull::new(first).ok_or(EINVAL)?,
            mask: (slots as u64).wrapping_sub(1),
            head: 0,
            tail: 0,
            lent: 0,
            // SAFETY: `KBox::into_raw` returns a valid, hence non-null pointer.
            chain: unsafe { NonNull::new_unchecked(chain) },
            filled: 0,
            failed: None,
            unsure: false,
            posted: 0,
            spurious: 0,
            dma,
            tag: WrTag::new(),
            _storage: storage,
            qp: qp.clone(),
        })
    }

    /// The slot of request `seq`.
    #[inline]
    fn slot(&mut self, seq: u64) -> &mut Slot<B> {
        // SAFETY: By the type invariants the masked number is an index of the array, which lives as
        // long as `self`, and only we access it.
        unsafe { &mut *self.slots.as_ptr().add((seq & self.mask) as usize) }
    }

    /// Lends a buffer: maps it and puts it on the chain, to be posted by [`RecvQueue::flush`] or
    /// when the chain is full.
    ///
    /// The queue pair must have been created for as many scatter entries as the buffer has regions.
    ///
    /// On failure the buffer comes back: `ENOSPC` if there is no slot for it, `EINVAL` if the length
    /// of a region is 0 or above `u32::MAX`, `ENOMEM` if it cannot be mapped. A failure of the
    /// automatic post is reported by the next `flush`.
    #[inline(always)]
    pub(crate) fn push(&mut self, buffer: B) -> Result<(), (Error, B)> {
        if self.tail.wrapping_sub(self.head) > self.mask {
            return Err((ENOSPC, buffer));
        }
        let (head, tail) = (buffer.head().1, buffer.tail().map(|(_, len)| len));
        let most = u32::MAX as usize;
        if head == 0 || head > most || tail.is_some_and(|tail| tail == 0 || tail > most) {
            return Err((EINVAL, buffer));
        }
        // SAFETY: By the contract of `DmaBuffer` the memory is valid and exclusive as long as the
        // buffer, which stays in its slot until it is unmapped.
        let addrs = match unsafe { map(self.dma, &buffer) } {
            Ok(addrs) => addrs,
            Err(e) => return Err((e, buffer)),
        };
        let [head_addr, tail_addr] = addrs;
        let seq = self.tail;
        let slot = self.slot(seq);
        slot.seq = seq;
        slot.addrs = addrs;
        // A free slot holds no buffer that would have to be dropped.
        forget(slot.buffer.replace(buffer));

        let filled = self.filled;
        let chain = self.chain.as_ptr();
        // SAFETY: `filled` is below `CHAIN` here, since a full chain is flushed at once; only we
        // access the chain.
        unsafe {
            let wrs = (&raw mut (*chain).wrs).cast::<sys::ib_recv_wr>();
            let sges = (&raw mut (*chain).sges).cast::<[sys::ib_sge; REGIONS]>();
            let entry = sges.add(filled).cast::<sys::ib_sge>();
            let wr = wrs.add(filled);
            (*entry).addr = head_addr;
            (*entry).length = head as u32;
            (*wr).num_sge = 1;
            if let Some(tail) = tail {
                (*entry.add(1)).addr = tail_addr;
                (*entry.add(1)).length = tail as u32;
                (*wr).num_sge = 2;
            }
            (*wr).__bindgen_anon_1.wr_id = self.tag.wr_id(seq);
        }
        // INVARIANT: One more request, on the chain.
        self.tail = self.tail.wrapping_add(1);
        self.lent = self.lent.wrapping_add(1);
        self.filled = filled.wrapping_add(1);
        if self.filled == CHAIN {
            self.make_room();
        }
        Ok(())
    }

    /// Posts a full chain.
    #[inline(never)]
    fn make_room(&mut self) {
        self.failed = self.post().err().or(self.failed);
    }

    /// Posts what is on the chain, with one call of the device driver.
    ///
    /// Fails with what the driver said, now or at an automatic post since the last call. Buffers
    /// that were not posted are dropped; they count as missing.
    pub(crate) fn flush(&mut self) -> Result {
        let result = self.post();
        match self.failed.take() {
            Some(e) => Err(e),
            None => result,
        }
    }

    /// Whether so many buffers wait on the chain that posting them is worth a call, or so few are posted that it must
    /// not wait.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.filled >= CHAIN / 2 || self.filled > self.capacity() / 8
    }

    fn post(&mut self) -> Result {
        let Some(last) = self.filled.checked_sub(1) else {
            return Ok(());
        };
        let first = self.chain.as_ptr();
        // SAFETY: The last request in use, which nobody else uses; it is linked to the next one again below.
        let end =
            unsafe { &raw mut (*(&raw mut (*first).wrs).cast::<sys::ib_recv_wr>().add(last)).next };
        // SAFETY: As above.
        let next = unsafe { end.replace(null_mut()) };
        // SAFETY: By the type invariants the chain is linked; its buffers are in slots that the
        // queue pair keeps, and are given back only by a completion, or by `reset`, which asks for
        // a `QpReset` that covers this post.
        let (result, bad, posted) = unsafe { self.qp.post_recv((&raw const (*first).wrs).cast()) };
        // SAFETY: As above.
        unsafe { end.write(next) };
        self.posted = posted;
        let unposted = match result {
            Ok(()) => 0,
            Err(_) => self.unposted(bad),
        };
        // INVARIANT: The chain is empty.
        self.filled = 0;
        for _ in 0..unposted {
            // INVARIANT: The newest requests were not posted, so no completion can name them and
            // their numbers are free again.
            self.tail = self.tail.wrapping_sub(1);
            self.lent = self.lent.wrapping_sub(1);
            let (tail, dma) = (self.tail, self.dma);
            // SAFETY: The hardware was not told of this buffer.
            drop(unsafe { self.slot(tail).take(dma) });
        }
        result
    }

    /// How many requests at the end of the chain were not posted, `bad` being the first of them. If
    /// the driver did not say, none: the buffers then stay lent until a reset.
    fn unposted(&mut self, bad: *const sys::ib_recv_wr) -> usize {
        // SAFETY: The chain's first request, of which only the address is taken.
        let first = unsafe { &raw const (*self.chain.as_ptr()).wrs }.cast();
        match first_unposted::<sys::ib_recv_wr, _>(first, bad, self.filled) {
            Some(index) => self.filled.saturating_sub(index),
            None => {
                self.unsure = true;
                0
            }
        }
    }

    /// Whether a post failed since the last reset and the driver did not say how much of it. Buffers
    /// may then be lent that nothing will ever complete.
    #[inline]
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Takes back the buffer that `wc` completes, filled or, if the status is an error, not.
    ///
    /// The first bytes of the buffer may now be read, as many as [`Wc::byte_len`] says; the buffer
    /// type must see to it that no more is read than it has. `None`, and counted, if `wc` is not a
    /// completion of a buffer that is lent: of one from before a reset, or not of this queue.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<B> {
        let buffer = self.find(wc);
        if buffer.is_none() {
            self.refused();
        }
        buffer
    }

    /// Counts a completion that is none of a buffer that is lent.
    #[cold]
    #[inline(never)]
    fn refused(&mut self) {
        self.spurious = self.spurious.wrapping_add(1);
    }

    #[inline(always)]
    fn find(&mut self, wc: &Wc) -> Option<B> {
        let ahead = self.tag.distance(wc, self.head)?;
        let posted = self
            .tail
            .wrapping_sub(self.head)
            .wrapping_sub(self.filled as u64);
        if ahead >= posted {
            return None;
        }
        let seq = self.head.wrapping_add(ahead);
        let dma = self.dma;
        let slot = self.slot(seq);
        if slot.seq != seq {
            return None;
        }
        // SAFETY: The hardware has completed this very request, so it is done with the buffer.
        let buffer = unsafe { slot.take(dma) }?;
        let holes = self.tail.wrapping_sub(self.head) != self.lent as u64;
        // INVARIANT: One buffer less; the head moves over the hole, if it is at the front.
        self.lent = self.lent.wrapping_sub(1);
        if holes || ahead != 0 {
            self.pass_holes();
        } else {
            self.head = self.head.wrapping_add(1);
        }
        Some(buffer)
    }

    /// Moves the head to the oldest buffer that is lent.
    #[cold]
    #[inline(never)]
    fn pass_holes(&mut self) {
        while self.head != self.tail {
            let head = self.head;
            if self.slot(head).buffer.is_some() {
                break;
            }
            // INVARIANT: Only holes are passed.
            self.head = head.wrapping_add(1);
        }
    }

    /// Buffers that could be lent on top of those that are: the slots that a failed allocation or
    /// post left empty. A hole left by a completion out of order counts, but can be filled only
    /// when older buffers have completed.
    #[inline]
    pub(crate) fn missing(&self) -> usize {
        self.capacity().saturating_sub(self.lent)
    }

    /// Buffers that were posted and have not completed. Those on the chain do not count: nothing
    /// will complete them.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.lent.saturating_sub(self.filled)
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        (self.mask as usize).wrapping_add(1)
    }

    /// Completions that were refused.
    pub(crate) fn spurious(&self) -> u64 {
        self.spurious
    }

    /// Hands all lent buffers to `f`, posted or not.
    ///
    /// Fails with `EINVAL` if `proof` is of another queue pair, and with `EAGAIN` if a post raced
    /// with the reset: reset again. Completions that are still in the completion queue are
    /// recognised later and ignored.
    pub(crate) fn reset(&mut self, proof: &QpReset<'_>, mut f: impl FnMut(B)) -> Result {
        proof.covers(&self.qp, self.posted)?;
        // INVARIANT: The slots from `head` to `tail` are emptied one by one, those of the chain
        // among them.
        self.filled = 0;
        self.failed = None;
        self.unsure = false;
        let dma = self.dma;
        while self.head != self.tail {
            let head = self.head;
            // SAFETY: The request was never posted, or the hardware has forgotten it, as the proof
            // says.
            let buffer = unsafe { self.slot(head).take(dma) };
            self.head = head.wrapping_add(1);
            if let Some(buffer) = buffer {
                self.lent = self.lent.wrapping_sub(1);
                f(buffer);
            }
        }
        Ok(())
    }
}

impl<B: DmaBuffer> Drop for RecvQueue<B> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the box is ours; drivers do not refer to requests after a
        // post.
        drop(unsafe { KBox::from_raw(self.chain.as_ptr()) });
    }
}
