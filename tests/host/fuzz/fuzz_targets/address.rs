// SPDX-License-Identifier: GPL-2.0

//! Link-layer addresses and GIDs from arbitrary octets.

#![no_main]

use ipoib_host::wire::addr::HwAddr;
use ipoib_host::wire::gid::Gid;
use ipoib_host::wire::mgid;
use ipoib_host::wire::pkey::PKey;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let addr = HwAddr::from_slice(data);
    assert_eq!(addr.is_some(), data.len() >= 20);
    assert_eq!(Gid::from_slice(data).is_some(), data.len() >= 16);
    let Some(addr) = addr else { return };
    assert_eq!(HwAddr::new(addr.flags(), addr.qpn(), addr.gid()), addr);
    assert_eq!(addr.key().key(), addr.key());
    assert_eq!(addr.hash32(1), addr.key().hash32(1));
    assert_eq!(addr.with_pkey(addr.pkey()).pkey(), addr.pkey().full());

    let broadcast = HwAddr::multicast(mgid::broadcast(addr.scope(), addr.pkey()));
    if mgid::acceptable(&addr, &broadcast) {
        assert!(addr.is_multicast());
        assert_eq!(addr.scope(), broadcast.scope());
        assert_eq!(addr.pkey(), PKey(addr.pkey().0).full());
    }
    let queues = u32::from(data.get(20).copied().unwrap_or(1)).max(1);
    assert!(mgid::queue_hash(&addr.gid(), queues) < queues);
    assert_eq!(addr.to_string().len(), 59);
});
