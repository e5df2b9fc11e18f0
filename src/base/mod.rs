// SPDX-License-Identifier: GPL-2.0

//! Safe wrappers for generic kernel services that the kernel crate does not offer (yet).
//!
//! Knows nothing of networking or RDMA; `net` and `rdma` build on it.

pub(crate) mod atomic;
pub(crate) mod buf;
pub(crate) mod count;
pub(crate) mod debugfs;
pub(crate) mod flags;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod netdev;
pub(crate) mod netns;
pub(crate) mod once;
pub(crate) mod params;
pub(crate) mod rcu;
pub(crate) mod rcuhash;
pub(crate) mod ring;
pub(crate) mod time;
pub(crate) mod work;

pub(crate) use crate::sys::compat::{not_unique, smp_mb, unsupported};
