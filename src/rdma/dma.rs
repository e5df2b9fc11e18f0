// SPDX-License-Identifier: GPL-2.0

//! DMA mappings of payloads and buffers.

use core::ptr::NonNull;
use kernel::{bindings::page, prelude::*};

use super::device::DeviceHandle;
use crate::{base::buf::Segments, sys::bindings as sys};

/// Most segments of a payload: a linear part and 18 fragments.
pub(crate) const MAX_SEGMENTS: usize = 19;

/// Direction of a mapping.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    /// The hardware reads.
    ToDevice,
    /// The hardware writes.
    FromDevice,
}

impl Direction {
    fn raw(self) -> sys::dma_data_direction {
        match self {
            Self::ToDevice => sys::dma_data_direction::DMA_TO_DEVICE,
            Self::FromDevice => sys::dma_data_direction::DMA_FROM_DEVICE,
        }
    }
}

/// A device as the target of DMA.
///
/// A copyable pointer, so that a mapping costs no reference count: whoever keeps a copy also keeps
/// a [`DeviceHandle`], directly or through a queue pair.
#[derive(Clone, Copy)]
pub(super) struct DmaDevice {
    raw: NonNull<sys::ib_device>,
    /// The device takes kernel addresses for DMA addresses, so that there is nothing to map
    /// (`ib_uses_virt_dma`).
    virt: bool,
}

// SAFETY: Mapping and unmapping work in any context on any CPU.
unsafe impl Send for DmaDevice {}
// SAFETY: As above.
unsafe impl Sync for DmaDevice {}

impl DmaDevice {
    /// The DMA side of `device`.
    pub(super) fn new(device: &DeviceHandle) -> Result<Self> {
        let raw = NonNull::new(device.as_ptr()).ok_or(ENODEV)?;
        Ok(Self {
            raw,
            // SAFETY: The handle keeps the device valid.
            virt: unsafe { sys::ipoib_h_ib_uses_virt_dma(raw.as_ptr()) },
        })
    }

    /// Fails for the address that says that mapping did not work.
    fn check(self, addr: u64) -> Result<u64> {
        // SAFETY: Valid device, see `map`.
        if unsafe { sys::ipoib_h_ib_dma_mapping_error(self.raw.as_ptr(), addr) } != 0 {
            return Err(ENOMEM);
        }
        Ok(addr)
    }

    /// Maps `len` bytes of the direct map at `ptr`. Any context.
    ///
    /// # Safety
    ///
    /// The device must be valid, and the memory too until it is unmapped. While the hardware may
    /// access it, nobody else may in a conflicting way.
    #[inline]
    pub(super) unsafe fn map(self, ptr: *mut u8, len: usize, dir: Direction) -> Result<u64> {
        if self.virt {
            return Ok(ptr as u64);
        }
        // SAFETY: By the safety requirements.
        self.check(unsafe {
            sys::ipoib_h_ib_dma_map_single(self.raw.as_ptr(), ptr.cast(), len, dir.raw())
        })
    }

    /// Undoes [`DmaDevice::map`]. Any context.
    ///
    /// # Safety
    ///
    /// The device must be valid, and the arguments must be those of a successful `map` that has not
    /// been undone, of which the hardware is done.
    #[inline]
    pub(super) unsafe fn unmap(self, addr: u64, len: usize, dir: Direction) {
        if !self.virt {
            // SAFETY: By the safety requirements.
            unsafe { sys::ipoib_h_ib_dma_unmap_single(self.raw.as_ptr(), addr, len, dir.raw()) };
        }
    }

    /// Maps `len` bytes at `offset` of `page` for the hardware to read. Any context.
    ///
    /// # Safety
    ///
    /// As for [`DmaDevice::map`].
    unsafe fn map_page(self, page: *mut page, offset: usize, len: usize) -> Result<u64> {
        // SAFETY: By the safety requirements.
        self.check(unsafe {
            sys::ipoib_h_ib_dma_map_page(
                self.raw.as_ptr(),
                page,
                offset,
                len,
                Direction::ToDevice.raw(),
            )
        })
    }

    /// Undoes [`DmaDevice::map_page`]. Any context.
    ///
    /// # Safety
    ///
    /// As for [`DmaDevice::unmap`].
    unsafe fn unmap_page(self, addr: u64, len: usize) {
        if !self.virt {
            // SAFETY: By the safety requirements.
            unsafe {
                sys::ipoib_h_ib_dma_unmap_page(
                    self.raw.as_ptr(),
                    addr,
                    len,
                    Direction::ToDevice.raw(),
                )
            };
        }
    }
}

/// Why a payload cannot be mapped.
pub(super) enum MapError {
    /// It has no bytes.
    Empty,
    /// It has more segments than a request may have.
    TooManySegments,
    /// The DMA layer has no room, or a segment is longer than a request can say.
    Failed,
}

/// A mapped segment, in as little room as it can be told in: rings have as many as a payload may have
/// in each slot.
#[derive(Clone, Copy, Default)]
struct Part {
    low: u32,
    high: u32,
    len: u32,
}

impl Part {
    #[inline]
    fn new(addr: u64, len: u32) -> Self {
        Self {
            low: addr as u32,
            high: (addr >> 32) as u32,
            len,
        }
    }

    fn addr(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// The gather list of a send request.
pub(super) type GatherList = [sys::ib_sge; MAX_SEGMENTS];

/// What must be undone of the mapping of a payload.
///
/// # Invariants
///
/// The first `used` of `parts` are mapped for the hardware to read; the first of them as linear
/// memory if `linear`, the others as pages. If `used` is not 0, `device` is the device they are mapped
/// for, and one that really maps.
#[derive(Default)]
pub(super) struct Mapping {
    device: Option<NonNull<sys::ib_device>>,
    used: u8,
    linear: bool,
    parts: [Part; MAX_SEGMENTS],
}

// SAFETY: Mapping and unmapping work in any context on any CPU.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `payload` but for the first `skip` octets of its linear part, and writes the gather list;
    /// returns its entries. On failure nothing stays mapped. Any context.
    ///
    /// # Safety
    ///
    /// The mapping must be empty. `device` must stay valid until it is emptied, and `payload` must
    /// live as long.
    #[inline(always)]
    pub(super) unsafe fn map(
        &mut self,
        device: DmaDevice,
        lkey: u32,
        max_sges: usize,
        payload: &impl Segments,
        skip: usize,
        list: &mut GatherList,
    ) -> Result<usize, MapError> {
        if let (0, 0, Some((ptr, len))) = (skip, payload.nr_frags(), payload.linear()) {
            // One piece, as small packets are.
            let (Ok(length), [entry, ..]) = (u32::try_from(len), list) else {
                return Err(MapError::Failed);
            };
            // SAFETY: By the contract of `Segments` the memory is valid as long as the payload, and
            // nobody writes to it.
            let addr = unsafe { device.map(ptr.cast_mut(), len, Direction::ToDevice) }
                .map_err(|_| MapError::Failed)?;
            self.note(device, addr, length, true);
            *entry = sys::ib_sge { addr, length, lkey };
            return Ok(1);
        }
        // SAFETY: As the safety requirements say.
        unsafe { self.map_pieces(device, lkey, max_sges, payload, skip, list) }
    }

    /// The same for any payload.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::map`].
    #[inline(never)]
    unsafe fn map_pieces(
        &mut self,
        device: DmaDevice,
        lkey: u32,
        max_sges: usize,
        payload: &impl Segments,
        skip: usize,
        list: &mut GatherList,
    ) -> Result<usize, MapError> {
        let mut linear = payload.linear();
        if skip != 0 {
            linear = match linear {
                // Without as many there would be nothing to skip them in.
                None => return Err(MapError::Empty),
                Some((start, len)) => match len.checked_sub(skip) {
                    None => return Err(MapError::Empty),
                    Some(0) => None,
                    // SAFETY: The linear part has more octets than that.
                    Some(rest) => Some((unsafe { start.add(skip) }, rest)),
                },
            };
        }
        let frags = payload.nr_frags();
        let needed = frags.saturating_add(usize::from(linear.is_some()));
        if needed == 0 {
            return Err(MapError::Empty);
        }
        if needed > max_sges.min(MAX_SEGMENTS) {
            return Err(MapError::TooManySegments);
        }
        // SAFETY: As the safety requirements say.
        let mapped = unsafe { self.map_parts(device, lkey, payload, linear, frags, list) };
        if mapped.is_none() {
            // SAFETY: The hardware has not been told of any of it.
            unsafe { self.undo() };
            return Err(MapError::Failed);
        }
        Ok(needed)
    }

    /// Maps part by part, and leaves what is mapped if a part cannot be.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::map`].
    #[inline]
    unsafe fn map_parts(
        &mut self,
        device: DmaDevice,
        lkey: u32,
        payload: &impl Segments,
        linear: Option<(*const u8, usize)>,
        frags: usize,
        list: &mut GatherList,
    ) -> Option<()> {
        let mut list = list.iter_mut();
        if let Some((ptr, len)) = linear {
            let length = u32::try_from(len).ok()?;
            // SAFETY: By the contract of `Segments` the memory is valid as long as the payload, and
            // nobody writes to it.
            let addr = unsafe { device.map(ptr.cast_mut(), len, Direction::ToDevice) }.ok()?;
            self.note(device, addr, length, true);
            *list.next()? = sys::ib_sge { addr, length, lkey };
        }
        for i in 0..frags {
            let (page, offset, len) = payload.frag(i)?;
            let length = u32::try_from(len).ok()?;
            // SAFETY: As above.
            let addr = unsafe { device.map_page(page, offset, len) }.ok()?;
            self.note(device, addr, length, false);
            *list.next()? = sys::ib_sge { addr, length, lkey };
        }
        Some(())
    }

    /// Notes one more mapped segment. The caller has checked that there is room.
    #[inline]
    fn note(&mut self, device: DmaDevice, addr: u64, length: u32, linear: bool) {
        if device.virt {
            return;
        }
        if let Some(part) = self.parts.get_mut(usize::from(self.used)) {
            *part = Part::new(addr, length);
            // INVARIANT: The part is the one just mapped, for this device. Only the first can be
            // linear memory.
            self.device = Some(device.raw);
            self.linear |= linear;
            self.used = self.used.wrapping_add(1);
        }
    }

    /// Undoes whatever is mapped. Any context.
    ///
    /// # Safety
    ///
    /// The device must be valid and the hardware must be done with the payload.
    #[inline]
    pub(super) unsafe fn unmap(&mut self) {
        if self.device.is_some() {
            // SAFETY: As the safety requirements say.
            unsafe { self.undo() };
        }
    }

    /// The same, for a mapping that most likely is not empty.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::unmap`].
    #[inline(never)]
    unsafe fn undo(&mut self) {
        let Some(raw) = self.device.take() else {
            return;
        };
        let device = DmaDevice { raw, virt: false };
        for (i, part) in self.parts.iter().take(self.used.into()).enumerate() {
            // SAFETY: By the type invariants these are the mapped segments.
            unsafe {
                if i == 0 && self.linear {
                    device.unmap(part.addr(), part.len as usize, Direction::ToDevice);
                } else {
                    device.unmap_page(part.addr(), part.len as usize);
                }
            }
        }
        // INVARIANT: Nothing is mapped any more.
        self.used = 0;
        self.linear = false;
    }
}
