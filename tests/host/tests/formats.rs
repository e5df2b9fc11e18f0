// SPDX-License-Identifier: GPL-2.0

//! Formats on the wire, against octets written out by hand from RFC 4391 and 4755.

use ipoib_host::wire::addr::HwAddr;
use ipoib_host::wire::cm::{self, PrivateData};
use ipoib_host::wire::encap::{self, EtherType, TxClass};
use ipoib_host::wire::gid::Gid;
use ipoib_host::wire::grh::{self, NetworkHeader, RouteError};
use ipoib_host::wire::mgid;
use ipoib_host::wire::mtu::{self, MtuError};
use ipoib_host::wire::pkey::PKey;
use ipoib_host::wire::qpn::Qpn;
use proptest::prelude::*;

const PORT_GID: Gid = Gid([
    0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56,
]);

/// Parses colon- or space-separated hex octets.
fn hex<const N: usize>(text: &str) -> [u8; N] {
    let octets: Vec<u8> = text
        .split([':', ' '])
        .map(|octet| u8::from_str_radix(octet, 16).expect("hex octet"))
        .collect();
    octets.try_into().expect("number of octets")
}

#[test]
fn address_layout() {
    let addr = HwAddr::new(HwAddr::FLAG_RC, Qpn::new(0x01_02_03), PORT_GID);
    let wire: [u8; 20] = hex("80:01:02:03:fe:80:00:00:00:00:00:00:50:54:00:ff:fe:12:34:56");
    assert_eq!(addr.0, wire);
    assert_eq!(addr.flags(), 0x80);
    assert_eq!(addr.qpn().get(), 0x01_02_03);
    assert_eq!(addr.gid(), PORT_GID);
    assert!(!addr.is_multicast());
    assert_eq!(
        addr.to_string(),
        "80:01:02:03:fe:80:00:00:00:00:00:00:50:54:00:ff:fe:12:34:56"
    );
}

#[test]
fn address_flags_are_no_part_of_the_identity() {
    let datagram = HwAddr::new(0, Qpn::new(77), PORT_GID);
    let connected = HwAddr::new(0x80, Qpn::new(77), PORT_GID);
    // RFC 4391: the first octet is ignored on receive; a peer may send anything there.
    let odd = HwAddr::new(0x3f, Qpn::new(77), PORT_GID);
    assert_ne!(datagram, connected);
    assert_eq!(datagram.key(), connected.key());
    assert_eq!(datagram.key(), odd.key());
    assert_eq!(connected.hash32(9), odd.hash32(9));
    let other = HwAddr::new(0, Qpn::new(78), PORT_GID);
    assert_ne!(other.key(), datagram.key());
}

#[test]
fn address_from_slice() {
    let bytes = [7u8; 21];
    assert_eq!(HwAddr::from_slice(&bytes[..19]), None);
    assert_eq!(HwAddr::from_slice(&bytes), Some(HwAddr([7; 20])));
}

#[test]
fn broadcast_address() {
    // FMT-3; the membership bit is forced on.
    let wire: [u8; 20] = hex("00:ff:ff:ff:ff:12:40:1b:80:01:00:00:00:00:00:00:ff:ff:ff:ff");
    assert_eq!(HwAddr::broadcast(PKey(0x0001)).0, wire);
    assert_eq!(HwAddr::broadcast(PKey(0x8001)).0, wire);
    let broadcast = HwAddr::broadcast(PKey(0x8001));
    assert!(broadcast.is_multicast());
    assert_eq!(broadcast.qpn(), Qpn::MULTICAST);
    assert_eq!(broadcast.pkey(), PKey(0x8001));
    assert_eq!(broadcast.scope(), 2);
}

#[test]
fn address_pkey_rewrite() {
    // What the stack built for one partition is sent in ours (TX-5).
    let group = HwAddr::multicast(mgid::ipv4([239, 1, 2, 3], 2, PKey(0xffff)));
    let ours = group.with_pkey(PKey(0x0012));
    let wire: [u8; 20] = hex("00:ff:ff:ff:ff:12:40:1b:80:12:00:00:00:00:00:00:0f:01:02:03");
    assert_eq!(ours.0, wire);
}

#[test]
fn multicast_mapping() {
    // RFC 4391 section 4: signature, P_Key, low 28 bits.
    let v4 = mgid::ipv4([239, 255, 255, 255], 2, PKey(0xffff));
    assert_eq!(v4.0, hex("ff 12 40 1b ff ff 00 00 00 00 00 00 0f ff ff ff"));
    assert_eq!(
        mgid::ipv4([239, 1, 2, 3], 0xe, PKey(0x8001)).0,
        hex("ff 1e 40 1b 80 01 00 00 00 00 00 00 0f 01 02 03")
    );
    // Low 80 bits of ff15::99, and of a group that differs only above them: the same MGID.
    let group = hex("ff 15 00 00 00 00 00 00 00 00 00 00 00 00 00 99");
    let twin = hex("ff 1e 12 34 56 78 00 00 00 00 00 00 00 00 00 99");
    let v6 = mgid::ipv6(group, 2, PKey(0xffff));
    assert_eq!(v6.0, hex("ff 12 60 1b ff ff 00 00 00 00 00 00 00 00 00 99"));
    assert_eq!(mgid::ipv6(twin, 2, PKey(0xffff)), v6);
    assert_eq!(mgid::signature(&v4), 0x401b);
    assert_eq!(mgid::signature(&v6), 0x601b);
    assert_eq!(mgid::scope(&v6), 2);
    assert_eq!(mgid::pkey(&v6), PKey(0xffff));
}

#[test]
fn acceptable_groups() {
    // MC-19: octets 0 to 5 and 7 to 9 decide, octet 6 is free.
    let broadcast = HwAddr::broadcast(PKey(0x8001));
    let good4 = HwAddr::multicast(mgid::ipv4([224, 0, 0, 1], 2, PKey(0x8001)));
    let good6 = HwAddr::multicast(mgid::ipv6([0xff; 16], 2, PKey(0x8001)));
    assert!(mgid::acceptable(&good4, &broadcast));
    assert!(mgid::acceptable(&good6, &broadcast));
    assert!(mgid::acceptable(&broadcast, &broadcast));
    for octet in 0..20 {
        let mut bad = good4;
        bad.0[octet] ^= 0x01;
        let decides = octet <= 5 || (7..=9).contains(&octet);
        assert_eq!(
            mgid::acceptable(&bad, &broadcast),
            !decides,
            "octet {octet}"
        );
    }
}

#[test]
fn queue_of_a_group() {
    let group = mgid::ipv4([224, 0, 0, 251], 2, PKey::DEFAULT);
    assert_eq!(mgid::queue_hash(&group, 0), 0);
    assert_eq!(mgid::queue_hash(&group, 1), 0);
    // Spread: 4096 groups over 8 queues, none more than a fifth off the mean.
    let mut load = [0u32; 8];
    for n in 0..4096u32 {
        let [_, _, a, b] = n.to_be_bytes();
        let group = mgid::ipv4([239, 0, a, b], 2, PKey::DEFAULT);
        load[mgid::queue_hash(&group, 8) as usize] += 1;
    }
    for queue in load {
        assert!((410..=614).contains(&queue), "{load:?}");
    }
    // Frozen: peers and reloads must agree, so a change of the function is a change of the protocol.
    assert_eq!(
        [2, 3, 8, 64].map(|n| mgid::queue_hash(&group, n)),
        FROZEN_QUEUES
    );
}

/// The queues of 224.0.0.251 in the default partition among 2, 3, 8 and 64.
const FROZEN_QUEUES: [u32; 4] = [1, 2, 7, 57];

#[test]
fn gid_text() {
    assert_eq!(PORT_GID.to_string(), "fe80:0:0:0:5054:ff:fe12:3456");
    assert_eq!(
        mgid::broadcast(2, PKey::DEFAULT).to_string(),
        "ff12:401b:ffff:0:0:0:ffff:ffff"
    );
    assert_eq!(Gid::ZERO.to_string(), "0:0:0:0:0:0:0:0");
}

#[test]
fn gid_parts() {
    assert_eq!(PORT_GID.subnet_prefix(), Gid::LINK_LOCAL_PREFIX);
    assert_eq!(
        PORT_GID.interface_id(),
        [0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56]
    );
    let prefix = [0xfe, 0xc0, 0, 0, 0, 0, 0, 1];
    let moved = PORT_GID.with_prefix(prefix);
    assert_ne!(moved, PORT_GID);
    assert_eq!(moved.subnet_prefix(), prefix);
    assert!(moved.same_interface(&PORT_GID));
    assert_eq!(
        Gid::v4_mapped([192, 0, 2, 1]).0,
        hex("00 00 00 00 00 00 00 00 00 00 ff ff c0 00 02 01")
    );
    assert!(Gid::ZERO.is_zero() && !PORT_GID.is_zero());
    assert!(!PORT_GID.is_multicast() && mgid::broadcast(2, PKey(1)).is_multicast());
}

#[test]
fn pkeys() {
    assert!(!PKey(0).is_valid() && !PKey(0x8000).is_valid());
    assert!(PKey(1).is_valid() && PKey(0x8001).is_valid());
    assert_eq!(PKey(1).full(), PKey(0x8001));
    assert!(PKey(0x8001).is_full() && !PKey(1).is_full());
    assert!(PKey(1).same_partition(PKey(0x8001)));
    assert!(PKey(1).may_talk(PKey(0x8001)));
    // Two limited members may not talk to each other, nor may different partitions.
    assert!(!PKey(1).may_talk(PKey(1)));
    assert!(!PKey(0x8002).may_talk(PKey(0x8001)));
    assert_eq!(PKey::from_octets([0x80, 0x01]).octets(), [0x80, 0x01]);
    assert_eq!(PKey(0x12).to_string(), "0x0012");
}

#[test]
fn queue_pair_numbers() {
    assert_eq!(Qpn::new(0xab12_3456).get(), 0x12_3456);
    assert_eq!(Qpn::new(0x12_3456).octets(), [0x12, 0x34, 0x56]);
    assert_eq!(Qpn::from_octets([0x12, 0x34, 0x56]), Qpn::new(0x12_3456));
    assert_eq!(Qpn::MULTICAST.octets(), [0xff; 3]);
    assert_eq!(Qpn::new(0x17).to_string(), "0x000017");
}

#[test]
fn encapsulation() {
    assert_eq!(encap::build(EtherType::IPV6), [0x86, 0xdd, 0, 0]);
    // RFC 4391: the reserved half is ignored on receive.
    assert_eq!(
        encap::parse(&[0x08, 0x06, 0xff, 0xff, 9]),
        Some(EtherType::ARP)
    );
    assert_eq!(encap::parse(&[0x08, 0x06, 0xff]), None);
    assert_eq!(encap::parse(&[]), None);
    assert_eq!(encap::HARD_LEN, 24);

    let mut head = HwAddr::broadcast(PKey::DEFAULT).0.to_vec();
    head.extend_from_slice(&encap::build(EtherType::ARP));
    assert_eq!(
        encap::parse_hard(&head),
        Some((HwAddr::broadcast(PKey::DEFAULT), EtherType::ARP))
    );
    assert_eq!(encap::parse_hard(&head[..23]), None);
}

#[test]
fn transmit_classes() {
    // FMT-8, TX-5, TX-6.
    for data in [0x0800, 0x86dd, 0x88ca] {
        assert_eq!(encap::tx_class(EtherType(data)), TxClass::Data);
    }
    for resolution in [0x0806, 0x8035] {
        assert_eq!(encap::tx_class(EtherType(resolution)), TxClass::Resolution);
    }
    for refused in [0, 4, 0x0600, 0x8100, 0x88cc, 0xffff] {
        assert_eq!(encap::tx_class(EtherType(refused)), TxClass::Refused);
    }
    assert!(!EtherType(0x05ff).is_ethertype());
    assert!(EtherType(0x0600).is_ethertype());
}

#[test]
fn routing_headers() {
    let source = PORT_GID;
    let destination = mgid::broadcast(2, PKey::DEFAULT);
    let mut v6 = [0u8; 40];
    v6[0] = 0x60;
    v6[8..24].copy_from_slice(&source.0);
    v6[24..40].copy_from_slice(&destination.0);
    for kind in [NetworkHeader::Grh, NetworkHeader::Ipv6] {
        let route = grh::route(kind, &v6).unwrap().unwrap();
        assert_eq!((route.source, route.destination), (source, destination));
    }
    assert_eq!(grh::route(NetworkHeader::None, &v6), Ok(None));
    assert_eq!(
        grh::route(NetworkHeader::Ipv4, &v6),
        Err(RouteError::Version)
    );

    let mut v4 = [0u8; 40];
    v4[20] = 0x45;
    v4[32..36].copy_from_slice(&[10, 0, 0, 1]);
    v4[36..40].copy_from_slice(&[10, 0, 0, 2]);
    let route = grh::route(NetworkHeader::Ipv4, &v4).unwrap().unwrap();
    assert_eq!(route.source, Gid::v4_mapped([10, 0, 0, 1]));
    assert_eq!(route.destination, Gid::v4_mapped([10, 0, 0, 2]));
    assert_eq!(
        grh::route(NetworkHeader::Ipv6, &v4),
        Err(RouteError::Version)
    );
    for kind in [
        NetworkHeader::None,
        NetworkHeader::Grh,
        NetworkHeader::Ipv4,
        NetworkHeader::Ipv6,
    ] {
        assert_eq!(grh::route(kind, &v4[..39]), Err(RouteError::Short));
    }
}

#[test]
fn header_kind_of_a_completion() {
    assert_eq!(
        NetworkHeader::from_completion(false, Some(3)),
        NetworkHeader::None
    );
    assert_eq!(
        NetworkHeader::from_completion(true, None),
        NetworkHeader::Grh
    );
    let kinds = [0, 1, 2, 3, 4].map(|kind| NetworkHeader::from_completion(true, Some(kind)));
    assert_eq!(
        kinds,
        [
            NetworkHeader::Grh,
            NetworkHeader::Grh,
            NetworkHeader::Ipv4,
            NetworkHeader::Ipv6,
            NetworkHeader::Grh
        ]
    );
}

#[test]
fn mtus() {
    let sizes: Vec<_> = (0..=6).map(mtu::from_code).collect();
    assert_eq!(
        sizes,
        [
            None,
            Some(256),
            Some(512),
            Some(1024),
            Some(2048),
            Some(4096),
            None
        ]
    );
    for code in 1..=5 {
        assert_eq!(mtu::to_code(mtu::from_code(code).unwrap()), Some(code));
    }
    assert_eq!(mtu::to_code(1500), None);
    assert_eq!(
        [1024, 2048, 4096].map(mtu::ipoib_mtu),
        [1020, 2044, 4092],
        "FMT-9"
    );
    assert_eq!(mtu::ipoib_mtu(3), 0);
    assert_eq!(mtu::rx_buffer(4096), 4136);
    // NET-18, B38.
    assert_eq!(mtu::check(0, 4096), Err(MtuError::TooSmall(72)));
    assert_eq!(mtu::check(71, 4096), Err(MtuError::TooSmall(72)));
    assert_eq!(mtu::check(72, 4096), Ok(()));
    assert_eq!(mtu::check(4092, 4096), Ok(()));
    assert_eq!(mtu::check(4093, 4096), Err(MtuError::TooLarge(4092)));
    assert_eq!(mtu::check(2045, 2048), Err(MtuError::TooLarge(2044)));
}

#[test]
fn connection_private_data() {
    // FMT-11, FMT-12.
    assert_eq!(cm::service_id(Qpn::new(0x12_3456)), 0x1000_0000_0012_3456);
    let data = PrivateData {
        qpn: Qpn::new(0x12_3456),
        mtu: 65524,
    };
    assert_eq!(data.build(), [0x00, 0x12, 0x34, 0x56, 0, 0, 0xff, 0xf4]);
    assert_eq!(PrivateData::parse(&data.build()), Some(data));
    // The top octet is ignored, as is the rest of the field that the CM pads.
    let mut padded = [0xee; 92];
    padded[1..8].copy_from_slice(&data.build()[1..]);
    assert_eq!(PrivateData::parse(&padded), Some(data));
    assert_eq!(PrivateData::parse(&padded[..7]), None);
}

#[test]
fn address_requests() {
    let mut packet = encap::build(EtherType::ARP).to_vec();
    packet.extend([0, 32, 8, 0, 20, 4, 0, 1]);
    assert!(encap::is_request(&packet));
    assert!(!encap::is_request(&packet[..11]));
    packet[11] = 2;
    assert!(!encap::is_request(&packet), "an answer");
    packet[..2].copy_from_slice(&[0x80, 0x35]);
    packet[11] = 1;
    assert!(!encap::is_request(&packet), "RARP asks for something else");
}

#[test]
fn packets_for_one_host() {
    let packet = |ethertype, at: usize, first: u8| {
        let mut packet = [0; 60];
        packet[..4].copy_from_slice(&encap::build(ethertype));
        packet[4 + at] = first;
        packet
    };
    for (first, one_host) in [
        (10, true),
        (223, true),
        (224, false),
        (239, false),
        (240, true),
    ] {
        let packet = packet(EtherType::IPV4, 16, first);
        assert_eq!(encap::is_for_one_host(&packet), one_host, "{first}");
        assert!(!encap::is_for_one_host(&packet[..20]), "too short to tell");
    }
    for (first, one_host) in [(0xfe, true), (0x20, true), (0xff, false)] {
        let packet = packet(EtherType::IPV6, 24, first);
        assert_eq!(encap::is_for_one_host(&packet), one_host, "{first}");
        assert!(!encap::is_for_one_host(&packet[..28]), "too short to tell");
    }
    assert!(!encap::is_for_one_host(&packet(EtherType::ARP, 16, 10)));
}

#[test]
fn answers_that_tell_our_address() {
    let mut arp = encap::build(EtherType::ARP).to_vec();
    arp.extend([0, 32, 8, 0, 20, 4, 0, 2]);
    assert!(encap::is_answer(&arp));
    assert!(!encap::is_answer(&arp[..11]));
    arp[11] = 1;
    assert!(!encap::is_answer(&arp), "a request");

    let mut ipv6 = encap::build(EtherType::IPV6).to_vec();
    ipv6.resize(encap::LEN + 41, 0);
    ipv6[encap::LEN + 6] = 58;
    ipv6[encap::LEN + 40] = 136;
    assert!(encap::is_answer(&ipv6));
    assert!(!encap::is_answer(&ipv6[..encap::LEN + 40]));
    ipv6[encap::LEN + 40] = 135;
    assert!(!encap::is_answer(&ipv6), "a solicitation");
    ipv6[encap::LEN + 40] = 136;
    ipv6[encap::LEN + 6] = 17;
    assert!(!encap::is_answer(&ipv6), "a datagram");
    ipv6[..2].copy_from_slice(&[0x08, 0x00]);
    assert!(!encap::is_answer(&ipv6), "IPv4");
}

proptest! {
    #[test]
    fn address_round_trip(octets: [u8; 20]) {
        let addr = HwAddr(octets);
        prop_assert_eq!(HwAddr::new(addr.flags(), addr.qpn(), addr.gid()), addr);
        prop_assert_eq!(addr.key().flags(), 0);
        prop_assert_eq!(addr.key().gid(), addr.gid());
        prop_assert_eq!(addr.is_multicast(), addr.gid().is_multicast());
    }

    #[test]
    fn pkey_rewrite_touches_nothing_else(octets: [u8; 20], pkey: u16) {
        let new = HwAddr(octets).with_pkey(PKey(pkey));
        prop_assert_eq!(new.pkey(), PKey(pkey).full());
        prop_assert_eq!(&new.0[..8], &octets[..8]);
        prop_assert_eq!(&new.0[10..], &octets[10..]);
    }

    #[test]
    fn gid_round_trip(octets: [u8; 16]) {
        let gid = Gid(octets);
        prop_assert_eq!(Gid::from_parts(gid.subnet_prefix(), gid.interface_id()), gid);
        let groups: Vec<u16> = gid
            .to_string()
            .split(':')
            .map(|group| u16::from_str_radix(group, 16).unwrap())
            .collect();
        let back: Vec<u8> = groups.iter().flat_map(|group| group.to_be_bytes()).collect();
        prop_assert_eq!(back, octets.to_vec());
    }

    #[test]
    fn mapped_groups_are_acceptable(v4: [u8; 4], v6: [u8; 16], scope in 0u8..16, pkey: u16) {
        let pkey = PKey(pkey);
        let broadcast = HwAddr::multicast(mgid::broadcast(scope, pkey));
        for group in [mgid::ipv4(v4, scope, pkey), mgid::ipv6(v6, scope, pkey)] {
            prop_assert!(mgid::acceptable(&HwAddr::multicast(group), &broadcast));
            prop_assert_eq!(group.0[1], 0x10 | scope);
            prop_assert!(mgid::pkey(&group).is_full());
            prop_assert_eq!(mgid::scope(&group), scope);
        }
    }

    #[test]
    fn queue_in_range(octets: [u8; 16], queues in 1u32..=u32::MAX) {
        prop_assert!(mgid::queue_hash(&Gid(octets), queues) < queues);
    }

    #[test]
    fn private_data_round_trip(qpn: u32, mtu: u32) {
        let data = PrivateData { qpn: Qpn::new(qpn), mtu };
        prop_assert_eq!(PrivateData::parse(&data.build()), Some(data));
    }
}

#[test]
fn hash_spreads_similar_peers() {
    // 10,000 ports of a cluster differ in few octets; in a table of 4096 buckets no chain gets long.
    let mut buckets = vec![0u32; 4096];
    for node in 0..10_000u32 {
        let [_, _, a, b] = node.to_be_bytes();
        let mut gid = PORT_GID;
        gid.0[14] = a;
        gid.0[15] = b;
        let addr = HwAddr::new(0, Qpn::new(0x40 + node % 3), gid);
        buckets[(addr.hash32(0x1234_5678) % 4096) as usize] += 1;
    }
    assert!(buckets.iter().max() <= Some(&14));
}
