// SPDX-License-Identifier: GPL-2.0

//! `ipoib_rs`: IP over InfiniBand network interfaces (RFC 4391, RFC 4392, RFC 4755).

#![crate_name = "ipoib_rs"]

mod base;
mod net;
mod sys;

use kernel::prelude::*;

struct Ipoib;

impl kernel::Module for Ipoib {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let _ = sys::params::Params::load()?;
        Ok(Self)
    }
}

module! {
    type: Ipoib,
    name: "ipoib_rs",
    authors: ["The ipoib-rs developers"],
    description: "IP over InfiniBand in Rust",
    license: "GPL",
}
