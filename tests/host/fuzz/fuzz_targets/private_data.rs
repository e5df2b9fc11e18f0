// SPDX-License-Identifier: GPL-2.0

//! Connection private data from arbitrary octets.

#![no_main]

use ipoib_host::wire::cm::{self, PrivateData};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let parsed = PrivateData::parse(data);
    assert_eq!(parsed.is_some(), data.len() >= PrivateData::LEN);
    if let Some(parsed) = parsed {
        assert_eq!(&parsed.build()[1..], &data[1..8]);
        assert_eq!(parsed.build()[0], 0);
        assert_eq!(cm::service_id(parsed.qpn) >> 24, 0x10_0000_0000);
    }
});
