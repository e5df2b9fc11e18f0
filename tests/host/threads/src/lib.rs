// SPDX-License-Identifier: GPL-2.0

//! The module's lock-free pieces, the same source files, under loom: it runs each model in every order of steps, and with
//! every value a load may see, that the memory model allows.
//!
//! `kernel/` stands in for the kernel crate. What the pieces need from the rest of the module is stood in for here.

#![cfg(test)]
#![allow(dead_code, unused_imports)]

mod base {
    pub(crate) mod atomic;
    #[path = "../../../../../src/base/flags.rs"]
    pub(crate) mod flags;
    pub(crate) mod lock;
    #[path = "../../../../../src/base/rcu.rs"]
    pub(crate) mod rcu;
    #[path = "../../../../../src/base/rcuhash.rs"]
    pub(crate) mod rcuhash;
    #[path = "../../../../../src/base/ring.rs"]
    pub(crate) mod ring;
    pub(crate) mod time;
}

// Without a folder of its own here, so named.
#[path = "."]
mod ipoib {
    pub(crate) mod lane;
    #[path = "../../../../src/ipoib/neigh.rs"]
    pub(crate) mod neigh;
}

mod net {
    pub(crate) mod device;
    pub(crate) mod skb;
    #[path = "../../../../../src/net/txq.rs"]
    pub(crate) mod txq;
}

mod rdma {
    pub(crate) mod ah;
}

mod sys;

use ipoib_host::{control, wire};

impl<T: Send + Sync + 'static> kernel::init::Touch for base::rcu::RcuPtr<T> {
    fn touch(&self) {
        drop(self.swap(None));
    }
}

impl kernel::init::Touch for base::flags::Flags {
    fn touch(&self) {
        self.set(0);
    }
}

mod model;
mod neighbours;
mod ring_models;
mod snapshots;
