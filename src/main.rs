// SPDX-License-Identifier: GPL-2.0

//! `ipoib_rs`: IP over InfiniBand network interfaces (RFC 4391, RFC 4392, RFC 4755).

#![crate_name = "ipoib_rs"]

mod base;
mod control;
mod ipoib;
mod net;
// Offers what a client of verbs needs; the driver does not use all of it yet.
#[allow(dead_code, unused_imports)]
mod rdma;
mod sys;
mod wire;

use kernel::prelude::*;

/// Everything the module has registered. Fields are dropped in this order.
#[pin_data]
struct Ipoib {
    #[pin]
    client: rdma::Registration<ipoib::client::Ipoib>,
    #[pin]
    notifier: net::notifier::Notifier,
    /// After the devices, which carry pointers to it.
    #[pin]
    kind: net::link::Kind<ipoib::interface::Interface>,
    debugfs: base::debugfs::Root,
    /// Last: code of ours may be waiting in RCU callbacks (MOD-7).
    rcu: base::rcu::Drain,
}

impl kernel::InPlaceModule for Ipoib {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _: {
                base::params::Params::load()?;
            },
            rcu: base::rcu::Drain,
            debugfs: base::debugfs::Root::new(c"ipoib_rs")?,
            notifier <- net::notifier::Notifier::new(),
            kind <- ipoib::netlink::kind(),
            client <- rdma::Registration::new(),
        })
    }
}

module! {
    type: Ipoib,
    name: "ipoib_rs",
    authors: ["The ipoib-rs developers"],
    description: "IP over InfiniBand in Rust",
    license: "GPL",
}
