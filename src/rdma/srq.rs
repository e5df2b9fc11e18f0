// SPDX-License-Identifier: GPL-2.0

//! Buffers for messages that come over connections, and shared receive queues: there whichever connection
//! needs a buffer takes one.
//!
//! Requests of different queue pairs complete in any order, so buffers are found by slot, not by
//! sequence.

use core::{
    cell::UnsafeCell,
    mem::ManuallyDrop,
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::{flags::GFP_KERNEL, KVVec},
    error::{from_err_ptr, to_result},
    ffi::c_int,
    prelude::*,
    sync::Arc,
};

use super::{
    device::DeviceHandle,
    dma::{Direction, DmaDevice},
    pd::Pd,
    qp::{Kept, Qp},
    wc::{Wc, WrTag},
};
use crate::{
    base::buf::{Message, PagedBuffer},
    sys::{bindings as sys, compat::unsupported},
};

/// The most scatter entries of a request: the regions that a buffer may have.
pub(crate) const REGIONS: usize = 17;

/// Bits of a request's number that name its slot; the others count the uses of that slot.
const SLOT_BITS: u32 = 16;

type PostSrqRecv = unsafe extern "C" fn(
    *mut sys::ib_srq,
    *const sys::ib_recv_wr,
    *mut *const sys::ib_recv_wr,
) -> c_int;

/// A buffer that is lent, or has come back.
///
/// # Invariants
///
/// If `buffer` is there, it has `regions` regions, which is at most [`REGIONS`]. Those from number `open` on are mapped
/// for the hardware to write, as their entries in `sges` say; the others are not mapped. While it is lent, `open` is 0.
struct Slot<B> {
    buffer: Option<B>,
    regions: usize,
    open: usize,
    uses: u32,
    sges: [sys::ib_sge; REGIONS],
}

impl<B: PagedBuffer> Slot<B> {
    fn new() -> Self {
        Self {
            buffer: None,
            regions: 0,
            open: 0,
            uses: 0,
            sges: core::array::from_fn(|_| sys::ib_sge::default()),
        }
    }

    /// Unmaps the regions that the first `octets` octets lie in.
    ///
    /// # Safety
    ///
    /// `dma` must be what the buffer was mapped with, and the hardware must be done with it.
    unsafe fn open(&mut self, dma: DmaDevice, octets: usize) {
        let mut reached = 0_usize;
        for (i, sge) in self.sges.iter().enumerate().take(self.regions) {
            if reached >= octets {
                break;
            }
            let len = sge.length as usize;
            reached = reached.saturating_add(len);
            if i < self.open {
                continue;
            }
            // SAFETY: By the safety requirements, and mapped by the type invariants.
            unsafe { dma.unmap(sge.addr, len, Direction::FromDevice) };
            // INVARIANT: One more that is not mapped.
            self.open = i + 1;
        }
    }

    /// Takes the buffer back.
    ///
    /// # Safety
    ///
    /// As for [`Slot::open`].
    unsafe fn take(&mut self, dma: DmaDevice) -> Option<B> {
        // SAFETY: By the safety requirements.
        unsafe { self.open(dma, usize::MAX) };
        self.buffer.take()
    }

    /// Puts a buffer in, of which nothing is mapped yet. The slot must have none.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it has no regions, or more than `most` or [`REGIONS`]; then it is dropped.
    fn put(&mut self, buffer: B, lkey: u32, most: usize) -> Result {
        let mut regions = 0;
        for (i, sge) in self.sges.iter_mut().enumerate() {
            let Some((_, len)) = buffer.region(i) else {
                break;
            };
            sge.length = u32::try_from(len).map_err(|_| EINVAL)?;
            sge.lkey = lkey;
            regions = i + 1;
        }
        if regions == 0 || regions > most || buffer.region(regions).is_some() {
            return Err(EINVAL);
        }
        // INVARIANT: Counted, and none is mapped.
        self.regions = regions;
        self.open = regions;
        self.buffer = Some(buffer);
        Ok(())
    }

    /// Maps the regions that are not.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if one cannot be mapped, `EINVAL` if there is no buffer.
    ///
    /// # Safety
    ///
    /// As for [`Slot::open`]; the buffer must stay in the slot until it is unmapped.
    unsafe fn map(&mut self, dma: DmaDevice) -> Result {
        let buffer = self.buffer.as_ref().ok_or(EINVAL)?;
        // Backwards, so that what is mapped is always the end.
        for (i, sge) in self.sges.iter_mut().enumerate().take(self.open).rev() {
            let (ptr, len) = buffer.region(i).ok_or(EINVAL)?;
            // SAFETY: By the contract of `PagedBuffer` the memory is valid and exclusive as long as the buffer, which
            // stays in its slot until it is unmapped; the length never changes.
            sge.addr = unsafe { dma.map(ptr, len, Direction::FromDevice) }?;
            // INVARIANT: One more that is mapped.
            self.open = i;
        }
        Ok(())
    }
}

/// The slots, kept until the queue is destroyed that takes from them.
///
/// # Invariants
///
/// Only the [`Lender`] that made the value accesses `slots`, while it exists.
struct Slots<B: PagedBuffer> {
    slots: UnsafeCell<KVVec<Slot<B>>>,
    dma: DmaDevice,
}

// SAFETY: By the type invariants there is no concurrent access; buffers may move between threads.
unsafe impl<B: PagedBuffer> Send for Slots<B> {}
// SAFETY: As above.
unsafe impl<B: PagedBuffer> Sync for Slots<B> {}

impl<B: PagedBuffer> Drop for Slots<B> {
    fn drop(&mut self) {
        for slot in self.slots.get_mut().iter_mut() {
            // SAFETY: The queue keeps this value until it is destroyed.
            drop(unsafe { slot.take(self.dma) });
        }
    }
}

impl<B: PagedBuffer + 'static> Kept for Slots<B> {}

/// # Invariants
///
/// `raw` is a shared receive queue in `pd`. Whatever memory is posted to it is in `kept`.
struct Inner {
    raw: NonNull<sys::ib_srq>,
    kept: ManuallyDrop<Arc<dyn Kept>>,
    pd: Pd,
}

// SAFETY: A shared receive queue may be used from any thread; there is one that posts.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: The queue is valid, and every queue pair on it held this value.
        let ret = unsafe { sys::ib_destroy_srq_user(self.raw.as_ptr(), null_mut()) };
        if ret != 0 {
            // The hardware may still write to what is kept: leak it, and hold the device.
            pr_err!(
                "{}: cannot destroy a shared receive queue, its memory is lost\n",
                self.pd.device().name()
            );
            core::mem::forget(self.pd.clone());
            return;
        }
        // SAFETY: Not used any more, and dropped this once.
        unsafe { ManuallyDrop::drop(&mut self.kept) };
    }
}

/// A counted reference to a shared receive queue, needed to create queue pairs on it.
///
/// Dropping the last reference destroys the queue, frees the buffers in it, and may sleep.
#[derive(Clone)]
pub(crate) struct Srq(Arc<Inner>);

impl Srq {
    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut sys::ib_srq {
        self.0.raw.as_ptr()
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Pd {
        &self.0.pd
    }
}

/// Where buffers are lent to.
enum Taker {
    /// A shared receive queue, by the device's own method.
    Shared(Srq, PostSrqRecv),
    /// The receive queue of one connection.
    Own(Qp),
}

/// The one who lends buffers to a shared receive queue, or to that of a single connection. Lives with the
/// poll; nothing but the creation and the drop sleeps.
///
/// # Invariants
///
/// - `slots` is the array of `count` slots in `_kept`, which `taker` keeps.
/// - `free` holds the numbers of all slots without a buffer, and has room for all.
pub(crate) struct Lender<B: PagedBuffer + 'static> {
    slots: NonNull<Slot<B>>,
    count: u16,
    free: KVVec<u16>,
    regions: usize,
    lkey: u32,
    dma: DmaDevice,
    tag: WrTag,
    _kept: Arc<Slots<B>>,
    taker: Taker,
}

// SAFETY: The pointer is to memory that only this value uses; everything else is `Send`.
unsafe impl<B: PagedBuffer> Send for Lender<B> {}

impl<B: PagedBuffer> Lender<B> {
    /// Creates a shared receive queue for `slots` buffers of up to `regions` regions, within the device's limits and
    /// [`REGIONS`]. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `EOPNOTSUPP`, `ENOMEM`, what the device says.
    pub(crate) fn shared(pd: &Pd, slots: u16, regions: usize) -> Result<Self> {
        let device = pd.device();
        // SAFETY: The device is valid; the method table does not change after registration.
        let post = unsafe { (*device.as_ptr()).ops.post_srq_recv }.ok_or_else(unsupported)?;
        let kept = Self::slots(device, slots, regions)?;
        let mut attr = sys::ib_srq_init_attr {
            attr: sys::ib_srq_attr {
                max_wr: slots.into(),
                max_sge: regions as u32,
                srq_limit: 0,
            },
            srq_type: sys::ib_srq_type::IB_SRQT_BASIC,
            ..Default::default()
        };
        // SAFETY: The domain is valid, and there is no user.
        let raw = from_err_ptr(unsafe {
            sys::ib_create_srq_user(pd.as_ptr(), &mut attr, null_mut(), null_mut())
        })?;
        let storage: Arc<dyn Kept> = kept.clone();
        let inner = Inner {
            raw: NonNull::new(raw).ok_or(ENODEV)?,
            kept: ManuallyDrop::new(storage),
            pd: pd.clone(),
        };
        let srq = Srq(Arc::new(inner, GFP_KERNEL)?);
        Self::new(pd, kept, Taker::Shared(srq, post), regions)
    }

    /// As [`Lender::shared`], for the receive queue of `qp`, which has room for `slots` requests. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ENOMEM`.
    pub(crate) fn own(qp: &Qp, slots: u16, regions: usize) -> Result<Self> {
        let kept = Self::slots(qp.device(), slots, regions)?;
        qp.keep(kept.clone())?;
        Self::new(qp.pd(), kept, Taker::Own(qp.clone()), regions)
    }

    /// Slots without buffers.
    fn slots(device: &DeviceHandle, slots: u16, regions: usize) -> Result<Arc<Slots<B>>> {
        if slots == 0 || regions == 0 || regions > REGIONS {
            return Err(EINVAL);
        }
        let dma = DmaDevice::new(device)?;
        let mut array = KVVec::with_capacity(slots.into(), GFP_KERNEL)?;
        for _ in 0..slots {
            array
                .push_within_capacity(Slot::new())
                .map_err(|_| ENOMEM)?;
        }
        let kept = Slots {
            slots: UnsafeCell::new(array),
            dma,
        };
        Ok(Arc::new(kept, GFP_KERNEL)?)
    }

    /// Lends from `kept`, which `taker` keeps and nobody else has.
    fn new(pd: &Pd, kept: Arc<Slots<B>>, taker: Taker, regions: usize) -> Result<Self> {
        // SAFETY: Nobody else accesses the array; from here on only through this pointer.
        let (first, count) = unsafe {
            let array = &mut *kept.slots.get();
            (array.as_mut_ptr(), array.len() as u16)
        };
        let mut free = KVVec::with_capacity(count.into(), GFP_KERNEL)?;
        for i in 0..count {
            free.push_within_capacity(i).map_err(|_| ENOMEM)?;
        }
        // INVARIANT: All slots are empty.
        Ok(Self {
            slots: NonNull::new(first).ok_or(EINVAL)?,
            count,
            free,
            regions,
            lkey: pd.local_dma_lkey(),
            dma: kept.dma,
            tag: WrTag::new(),
            _kept: kept,
            taker,
        })
    }

    /// What [`Wc::tag`] says of completions of these buffers.
    pub(crate) fn tag(&self) -> u16 {
        self.tag.get()
    }

    /// The shared receive queue, if it is one.
    pub(crate) fn srq(&self) -> Option<&Srq> {
        match &self.taker {
            Taker::Shared(srq, _) => Some(srq),
            Taker::Own(_) => None,
        }
    }

    fn slot(&mut self, index: u16) -> Option<&mut Slot<B>> {
        if index >= self.count {
            return None;
        }
        // SAFETY: By the type invariants and the check this is a slot, and only we access it.
        Some(unsafe { &mut *self.slots.as_ptr().add(index.into()) })
    }

    /// Lends a buffer: maps and posts it. Does not sleep.
    ///
    /// # Errors
    ///
    /// Then the buffer is dropped. `ENOSPC` if there is no slot, `EINVAL` if it has too many regions, `ENOMEM` if it
    /// cannot be mapped, what the device says.
    pub(crate) fn push(&mut self, buffer: B) -> Result {
        let index = self.free.pop().ok_or(ENOSPC)?;
        let (lkey, most) = (self.lkey, self.regions);
        let put = self
            .slot(index)
            .ok_or(EINVAL)
            .and_then(|slot| slot.put(buffer, lkey, most));
        put.and_then(|()| self.post_at(index))
            .inspect_err(|_| self.vacate(index))
    }

    /// Empties a slot with a buffer that the hardware does not have.
    fn vacate(&mut self, index: u16) {
        let dma = self.dma;
        if let Some(slot) = self.slot(index) {
            // SAFETY: Not lent: it has come back, or was refused.
            drop(unsafe { slot.take(dma) });
            // INVARIANT: The slot has no buffer any more; it was not in the list, so there is room.
            let _ = self.free.push_within_capacity(index);
        }
    }

    /// Maps and posts the buffer of a slot, which must not be lent.
    fn post_at(&mut self, index: u16) -> Result {
        let (dma, tag) = (self.dma, self.tag);
        if index >= self.count {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants and the check this is a slot, and only we access it.
        let slot = unsafe { &mut *self.slots.as_ptr().add(index.into()) };
        // SAFETY: `dma` is what all buffers here are mapped with; this one is not lent, and stays until it has come back
        // or the queue is gone.
        unsafe { slot.map(dma) }?;
        slot.uses = slot.uses.wrapping_add(1);
        let seq = u64::from(slot.uses) << SLOT_BITS | u64::from(index);
        let mut wr = sys::ib_recv_wr {
            sg_list: slot.sges.as_mut_ptr(),
            num_sge: slot.regions as i32,
            ..Default::default()
        };
        wr.__bindgen_anon_1.wr_id = tag.wr_id(seq);
        match &self.taker {
            Taker::Shared(srq, post) => {
                let mut bad = core::ptr::null();
                // SAFETY: The queue is valid, the method is its device's own, the request is valid, and its
                // buffer is in a slot that the queue keeps until a completion or its destruction.
                to_result(unsafe { post(srq.as_ptr(), &wr, &mut bad) })
            }
            // SAFETY: As above.
            Taker::Own(qp) => unsafe { qp.post_recv(&wr) }.0,
        }
    }

    /// The buffer that `wc` completes, filled or, if the status is an error, not. `None` if `wc` is not a
    /// completion of a buffer that is lent.
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<Returned<'_, B>> {
        let seq = self.tag.seq(wc)?;
        let index = (seq & ((1 << SLOT_BITS) - 1)) as u16;
        let slot = self.slot(index)?;
        if slot.buffer.is_none() || u64::from(slot.uses) != seq >> SLOT_BITS {
            return None;
        }
        // A second completion of this use would be none of a lent buffer.
        slot.uses = slot.uses.wrapping_add(1);
        // INVARIANT: The hardware has completed this very use of the slot.
        Some(Returned {
            lender: self,
            index,
        })
    }

    /// Buffers that are lent.
    pub(crate) fn lent(&self) -> usize {
        usize::from(self.count).saturating_sub(self.free.len())
    }
}

/// A buffer that has come back, still in its slot. It is freed when this is dropped, unless it is lent again.
///
/// # Invariants
///
/// The slot `index` of `lender` has a buffer, and the hardware is done with it.
pub(crate) struct Returned<'a, B: PagedBuffer + 'static> {
    lender: &'a mut Lender<B>,
    index: u16,
}

impl<B: PagedBuffer> Returned<'_, B> {
    /// What is in the buffer: `octets` as the completion says. `None`: there is no buffer, which does not happen.
    pub(crate) fn message(&mut self, octets: usize) -> Option<Message<'_, B>> {
        let dma = self.lender.dma;
        let slot = self.lender.slot(self.index)?;
        // SAFETY: What all buffers here are mapped with; done by the type invariants.
        unsafe { slot.open(dma, octets) };
        // SAFETY: Done by the type invariants, the regions were just unmapped, and nothing is mapped while the buffer
        // is borrowed.
        Some(unsafe { Message::new(slot.buffer.as_mut()?, octets) })
    }

    /// Lends the buffer again.
    ///
    /// # Errors
    ///
    /// As for [`Lender::push`]; then it is freed.
    pub(crate) fn lend(self) -> Result {
        // From here on it is the hardware's, or freed at once.
        let mut this = ManuallyDrop::new(self);
        let index = this.index;
        let lender = &mut *this.lender;
        lender.post_at(index).inspect_err(|_| lender.vacate(index))
    }
}

impl<B: PagedBuffer + 'static> Drop for Returned<'_, B> {
    fn drop(&mut self) {
        self.lender.vacate(self.index);
    }
}
