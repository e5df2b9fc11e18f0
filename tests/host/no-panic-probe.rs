// SPDX-License-Identifier: GPL-2.0

//! Compiled by `check-no-panic` alone: the module's pure code with its generic functions instantiated.

#![no_std]
#![allow(missing_docs)]

#[path = "../../src/control/mod.rs"]
pub mod control;
#[path = "../../src/wire/mod.rs"]
pub mod wire;

use wire::rx::{classify, Completion, Frame, Identity, RxDrop};

pub fn receive(rx: &Completion<'_>, me: &Identity, own: &[u32]) -> Result<Frame, RxDrop> {
    classify(rx, me, |qpn| own.iter().any(|&one| one == qpn.get()))
}

/// Shows that the check can fail.
#[cfg(must_panic)]
pub fn panics(bytes: &[u8], index: usize) -> u8 {
    bytes[index]
}
