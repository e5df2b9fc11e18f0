// SPDX-License-Identifier: GPL-2.0

//! Encapsulation and pseudo headers from arbitrary octets.

#![no_main]

use ipoib_host::wire::encap::{self, TxClass};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let ethertype = encap::parse(data);
    assert_eq!(ethertype.is_some(), data.len() >= encap::LEN);
    if let Some(ethertype) = ethertype {
        let built = encap::build(ethertype);
        assert_eq!(&built[..2], &data[..2]);
        assert_eq!(&built[2..], &[0, 0]);
        if encap::tx_class(ethertype) != TxClass::Refused {
            assert!(ethertype.is_ethertype());
        }
    }
    let hard = encap::parse_hard(data);
    assert_eq!(hard.is_some(), data.len() >= encap::HARD_LEN);
    if let Some((destination, ethertype)) = hard {
        assert_eq!(&destination.0[..], &data[..20]);
        assert_eq!(ethertype.0.to_be_bytes(), data[20..22]);
    }
});
