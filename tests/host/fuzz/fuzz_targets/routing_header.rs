// SPDX-License-Identifier: GPL-2.0

//! Routing headers of every kind from arbitrary octets.

#![no_main]

use ipoib_host::wire::grh::{self, NetworkHeader, RouteError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [kind, flags, data @ ..] = data else {
        return;
    };
    let kind = NetworkHeader::from_completion(flags & 1 != 0, (flags & 2 != 0).then_some(*kind));
    match grh::route(kind, data) {
        Err(RouteError::Short) => assert!(data.len() < 40),
        Err(RouteError::Version) => {
            assert!(matches!(kind, NetworkHeader::Ipv4 | NetworkHeader::Ipv6));
        }
        Ok(None) => assert_eq!(kind, NetworkHeader::None),
        Ok(Some(route)) if kind == NetworkHeader::Ipv4 => {
            assert_eq!(data[20] >> 4, 4);
            assert_eq!(&route.source.0[12..], &data[32..36]);
            assert!(!route.destination.is_multicast());
        }
        Ok(Some(route)) => {
            assert_eq!(&route.source.0[..], &data[8..24]);
            assert_eq!(&route.destination.0[..], &data[24..40]);
        }
    }
});
