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
    base::buf::PagedBuffer,
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

/// A lent buffer.
///
/// # Invariants
///
/// If `buffer` is there, its regions are mapped at `addrs` for the hardware to write.
struct Slot<B> {
    buffer: Option<B>,
    uses: u32,
    addrs: [u64; REGIONS],
}

impl<B: PagedBuffer> Slot<B> {
    /// Takes the buffer back.
    ///
    /// # Safety
    ///
    /// `dma` must be what it was mapped with, and the hardware must be done with it.
    unsafe fn take(&mut self, dma: DmaDevice) -> Option<B> {
        let buffer = self.buffer.take()?;
        // SAFETY: By the safety requirements and the type invariants.
        unsafe { unmap(dma, &buffer, &self.addrs) };
        Some(buffer)
    }
}

/// Undoes the mapping of as many regions of `buffer` as there are `addrs`.
///
/// # Safety
///
/// They must be mapped there, and the hardware must be done with them.
unsafe fn unmap<B: PagedBuffer>(dma: DmaDevice, buffer: &B, addrs: &[u64]) {
    for (i, addr) in addrs.iter().enumerate() {
        let Some((_, len)) = buffer.region(i) else {
            break;
        };
        // SAFETY: By the safety requirements.
        unsafe { dma.unmap(*addr, len, Direction::FromDevice) };
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
            let slot = Slot {
                buffer: None,
                uses: 0,
                addrs: [0; REGIONS],
            };
            array.push_within_capacity(slot).map_err(|_| ENOMEM)?;
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
    /// With the buffer: `ENOSPC` if there is no slot, `EINVAL` if it has too many regions, `ENOMEM`
    /// if it cannot be mapped, what the device says.
    pub(crate) fn push(&mut self, buffer: B) -> Result<(), (Error, B)> {
        let Some(index) = self.free.pop() else {
            return Err((ENOSPC, buffer));
        };
        let pushed = self.post_at(index, buffer);
        if pushed.is_err() {
            // INVARIANT: The slot stays without a buffer. There is room, as one was just popped.
            let _ = self.free.push_within_capacity(index);
        }
        pushed
    }

    fn post_at(&mut self, index: u16, buffer: B) -> Result<(), (Error, B)> {
        let (dma, lkey, regions) = (self.dma, self.lkey, self.regions);
        let tag = self.tag;
        if index >= self.count {
            return Err((EINVAL, buffer));
        }
        // SAFETY: By the type invariants and the check this is a slot, and only we access it.
        let slot = unsafe { &mut *self.slots.as_ptr().add(index.into()) };
        let mut sges: [sys::ib_sge; REGIONS] = core::array::from_fn(|_| sys::ib_sge::default());
        let mut used = 0;
        while let Some((ptr, len)) = buffer.region(used) {
            let place = sges.get_mut(used).zip(slot.addrs.get_mut(used));
            let mapped = match (place, u32::try_from(len)) {
                (Some(place), Ok(length)) if used < regions => {
                    // SAFETY: By the contract of `PagedBuffer` the memory is valid and exclusive as
                    // long as the buffer, which stays in its slot until it is unmapped.
                    unsafe { dma.map(ptr, len, Direction::FromDevice) }
                        .map(|addr| (place, addr, length))
                }
                _ => Err(EINVAL),
            };
            match mapped {
                Ok(((sge, place), addr, length)) => {
                    *place = addr;
                    *sge = sys::ib_sge { addr, length, lkey };
                    used += 1;
                }
                Err(e) => {
                    let done = slot.addrs.get(..used).unwrap_or(&[]);
                    // SAFETY: Mapped above, and the hardware was not told.
                    unsafe { unmap(dma, &buffer, done) };
                    return Err((e, buffer));
                }
            }
        }
        slot.uses = slot.uses.wrapping_add(1);
        let seq = u64::from(slot.uses) << SLOT_BITS | u64::from(index);
        let mut wr = sys::ib_recv_wr {
            sg_list: sges.as_mut_ptr(),
            num_sge: used as i32,
            ..Default::default()
        };
        wr.__bindgen_anon_1.wr_id = tag.wr_id(seq);
        slot.buffer = Some(buffer);
        let posted = match &self.taker {
            Taker::Shared(srq, post) => {
                let mut bad = core::ptr::null();
                // SAFETY: The queue is valid, the method is its device's own, the request is valid, and its
                // buffer is in a slot that the queue keeps until a completion or its destruction.
                to_result(unsafe { post(srq.as_ptr(), &wr, &mut bad) })
            }
            // SAFETY: As above.
            Taker::Own(qp) => unsafe { qp.post_recv(&wr) }.0,
        };
        match posted {
            Ok(()) => Ok(()),
            // SAFETY: The hardware did not take the request.
            Err(e) => match unsafe { slot.take(dma) } {
                Some(buffer) => Err((e, buffer)),
                None => Ok(()),
            },
        }
    }

    /// Takes back the buffer that `wc` completes, filled or, if the status is an error, not. `None` if
    /// `wc` is not a completion of a buffer that is lent.
    pub(crate) fn complete(&mut self, wc: &Wc) -> Option<B> {
        let seq = self.tag.seq(wc)?;
        let index = (seq & ((1 << SLOT_BITS) - 1)) as u16;
        let dma = self.dma;
        let slot = self.slot(index)?;
        if u64::from(slot.uses) != seq >> SLOT_BITS {
            return None;
        }
        // SAFETY: The hardware has completed this very use of the slot.
        let buffer = unsafe { slot.take(dma) }?;
        // INVARIANT: The slot has no buffer any more; it was not in the list, so there is room.
        let _ = self.free.push_within_capacity(index);
        Some(buffer)
    }

    /// Buffers that are lent.
    pub(crate) fn lent(&self) -> usize {
        usize::from(self.count).saturating_sub(self.free.len())
    }
}
