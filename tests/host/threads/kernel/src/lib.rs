// SPDX-License-Identifier: GPL-2.0

//! What the module's lock-free pieces use of the kernel crate, over loom, so that the same source files run under it.
//!
//! Memory is never given back: an object is dropped in place and its memory kept, so that a test can tell from a mark in
//! it that it was used too late.

#![allow(clippy::missing_safety_doc, clippy::new_ret_no_self)]

pub mod alloc;
pub mod bindings;
pub mod fault;
pub mod init;
pub mod sync;
pub mod types;

/// The names that kernel code has without asking.
pub mod prelude {
    pub use crate::alloc::flags::{GFP_ATOMIC, GFP_KERNEL, __GFP_NOWARN};
    pub use crate::alloc::{Flags, KBox, KVVec, KVec};
    pub use crate::init::PinInit;
    pub use crate::{pin_init, pr_err, Error, Result, EAGAIN, EINVAL, ENOMEM, ENOSPC};
    pub use core::pin::Pin;
    pub use stand_in_macros::pin_data;
}

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(i32);

/// As in the kernel crate.
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

/// Try again.
pub const EAGAIN: Error = Error(11);
/// Out of memory.
pub const ENOMEM: Error = Error(12);
/// Invalid argument.
pub const EINVAL: Error = Error(22);
/// No room.
pub const ENOSPC: Error = Error(28);

impl From<alloc::AllocError> for Error {
    fn from(_: alloc::AllocError) -> Self {
        ENOMEM
    }
}

/// What the kernel would log is a failure here.
#[macro_export]
macro_rules! pr_err {
    ($($arg:tt)*) => { panic!($($arg)*) };
}
