// SPDX-License-Identifier: GPL-2.0

//! Safe wrappers for network devices: registration and callbacks, transmit queues, NAPI, socket
//! buffers, receive buffers, notifiers.
//!
//! Written as if for the kernel crate: it names neither `rdma` nor `ipoib`.

pub(crate) mod bigbuf;
pub(crate) mod device;
pub(crate) mod ethtool;
pub(crate) mod extack;
pub(crate) mod link;
pub(crate) mod napi;
pub(crate) mod notifier;
pub(crate) mod ops;
pub(crate) mod pages;
pub(crate) mod registration;
pub(crate) mod rtnl;
pub(crate) mod rxbuf;
pub(crate) mod skb;
pub(crate) mod sysfs;
pub(crate) mod txq;
pub(crate) mod upper;
