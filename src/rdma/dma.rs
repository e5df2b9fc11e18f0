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

/// The mapping of a payload, as the gather list of a send request.
///
/// # Invariants
///
/// The first `used` entries of `sges` are mapped for the hardware to read; the first of them as
/// linear memory if `linear`, the others as pages. If `used` is not 0, `device` is the device they
/// are mapped for.
pub(super) struct Mapping {
    device: Option<DmaDevice>,
    used: usize,
    linear: bool,
    sges: [sys::ib_sge; MAX_SEGMENTS],
}

impl Default for Mapping {
    fn default() -> Self {
        // INVARIANT: Nothing is mapped.
        Self {
            device: None,
            used: 0,
            linear: false,
            sges: core::array::from_fn(|_| sys::ib_sge::default()),
        }
    }
}

impl Mapping {
    /// Maps `payload` but for the first `skip` octets of its linear part; on failure nothing stays
    /// mapped. Any context.
    ///
    /// # Safety
    ///
    /// The mapping must be empty. `device` must stay valid until it is emptied, and `payload` must
    /// live as long.
    pub(super) unsafe fn map(
        &mut self,
        device: DmaDevice,
        lkey: u32,
        max_sges: usize,
        payload: &impl Segments,
        skip: usize,
    ) -> Result<(), MapError> {
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
        let mapped = unsafe { self.map_parts(device, lkey, payload, linear, frags) };
        if mapped.is_none() {
            // SAFETY: The hardware has not been told of any of it.
            unsafe { self.unmap() };
            return Err(MapError::Failed);
        }
        Ok(())
    }

    /// Maps part by part, and leaves what is mapped if a part cannot be.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::map`].
    unsafe fn map_parts(
        &mut self,
        device: DmaDevice,
        lkey: u32,
        payload: &impl Segments,
        linear: Option<(*const u8, usize)>,
        frags: usize,
    ) -> Option<()> {
        self.device = Some(device);
        if let Some((ptr, len)) = linear {
            let length = u32::try_from(len).ok()?;
            // SAFETY: By the contract of `Segments` the memory is valid as long as the payload, and
            // nobody writes to it.
            let addr = unsafe { device.map(ptr.cast_mut(), len, Direction::ToDevice) }.ok()?;
            self.linear = true;
            self.push(addr, length, lkey);
        }
        for i in 0..frags {
            let (page, offset, len) = payload.frag(i)?;
            let length = u32::try_from(len).ok()?;
            // SAFETY: As above.
            let addr = unsafe { device.map_page(page, offset, len) }.ok()?;
            self.push(addr, length, lkey);
        }
        Some(())
    }

    /// Notes one more mapped segment. The caller has checked that there is room.
    #[inline]
    fn push(&mut self, addr: u64, length: u32, lkey: u32) {
        if let Some(sge) = self.sges.get_mut(self.used) {
            *sge = sys::ib_sge { addr, length, lkey };
            // INVARIANT: The entry is the one just mapped.
            self.used = self.used.wrapping_add(1);
        }
    }

    /// The gather list, for a work request: start and number of entries.
    #[inline]
    pub(super) fn list(&mut self) -> (*mut sys::ib_sge, i32) {
        // The number is at most `MAX_SEGMENTS`.
        (self.sges.as_mut_ptr(), self.used as i32)
    }

    /// Undoes whatever is mapped. Any context.
    ///
    /// # Safety
    ///
    /// The device must be valid and the hardware must be done with the payload.
    #[inline]
    pub(super) unsafe fn unmap(&mut self) {
        let Some(device) = self.device.take() else {
            return;
        };
        if !device.virt {
            let mapped = self.sges.iter().take(self.used);
            for (i, sge) in mapped.enumerate() {
                // SAFETY: By the type invariants these are the mapped segments.
                unsafe {
                    if i == 0 && self.linear {
                        device.unmap(sge.addr, sge.length as usize, Direction::ToDevice);
                    } else {
                        device.unmap_page(sge.addr, sge.length as usize);
                    }
                }
            }
        }
        // INVARIANT: Nothing is mapped any more.
        self.used = 0;
        self.linear = false;
    }
}
