// SPDX-License-Identifier: GPL-2.0
//! stand-in until the rdma branch lands
use crate::sys::bindings;
pub(crate) unsafe trait DmaBuffer: Send { fn ptr(&self) -> *mut u8; fn len(&self) -> usize; }
pub(crate) unsafe trait Segments: Send {
    fn linear(&self) -> Option<(*const u8, usize)>;
    fn nr_frags(&self) -> usize;
    fn frag(&self, i: usize) -> Option<(*mut bindings::page, usize, usize)>;
}
