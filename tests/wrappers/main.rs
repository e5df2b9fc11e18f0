// SPDX-License-Identifier: GPL-2.0

//! KUnit suites for the driver's `unsafe` wrappers, of which this module compiles the sources as they are: who
//! owns what, when it is dropped, in which order, and what cancelling leaves. Loading the module runs them, on a
//! kernel that is started with `kunit.enable=1`; results are below `/sys/kernel/debug/kunit`.
//!
//! What frees too late or never shows at unloading: by the checks here, or to kmemleak.

#![crate_name = "wrappers"]
// The suites use a part of it.
#![allow(dead_code, unused_imports, unused_macros)]
// The generated test functions take the kernel's word for their argument.
#![allow(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[path = "../../src/base/mod.rs"]
mod base;
#[path = "../../src/net/mod.rs"]
mod net;
#[path = "../../src/rdma/mod.rs"]
mod rdma;
#[path = "../../src/sys/mod.rs"]
mod sys;
#[path = "../../src/wire/mod.rs"]
mod wire;

mod common;
mod test_net;
mod test_queue;
mod test_rcu;
mod test_rdma;
mod test_small;

use kernel::prelude::*;

/// Stays until the module is unloaded, and waits for the last object of the suites then.
struct Wrappers(#[allow(dead_code)] base::rcu::Drain);

impl kernel::Module for Wrappers {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self(base::rcu::Drain))
    }
}

module! {
    type: Wrappers,
    name: "wrappers",
    authors: ["The ipoib-rs developers"],
    description: "KUnit suites for the wrappers of ipoib_rs (test only)",
    license: "GPL",
}
