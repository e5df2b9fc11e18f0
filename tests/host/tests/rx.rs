// SPDX-License-Identifier: GPL-2.0

//! The checks on received datagrams (RX-5 to RX-8, RX-14).

use ipoib_host::wire::addr::HwAddr;
use ipoib_host::wire::encap::EtherType;
use ipoib_host::wire::gid::Gid;
use ipoib_host::wire::grh::NetworkHeader;
use ipoib_host::wire::mgid;
use ipoib_host::wire::pkey::PKey;
use ipoib_host::wire::qpn::Qpn;
use ipoib_host::wire::rx::{classify, sender, Cast, Completion, Frame, Identity, RxDrop, HEAD_LEN};
use proptest::prelude::*;

const OWN_LID: u32 = 17;
const OWN_QPNS: [u32; 2] = [0x50, 0x51];
const BUFFER: u32 = 2048 + 40;

fn gid(last: u8) -> Gid {
    let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    gid[15] = last;
    Gid(gid)
}

fn me() -> Identity {
    Identity {
        gid: gid(1),
        broadcast: mgid::broadcast(2, PKey::DEFAULT),
        lid: Some(OWN_LID),
    }
}

fn is_own(qpn: Qpn) -> bool {
    OWN_QPNS.contains(&qpn.get())
}

/// A frame as it lies in the buffer.
struct Sample {
    head: [u8; 44],
    byte_len: u32,
    network: NetworkHeader,
    src_qp: u32,
    slid: u32,
}

impl Sample {
    /// 100 octets of IPv4 with an IPv6-shaped routing header.
    fn new(network: NetworkHeader, source: Gid, destination: Gid) -> Self {
        let mut head = [0u8; 44];
        head[0] = 0x60;
        head[8..24].copy_from_slice(&source.0);
        head[24..40].copy_from_slice(&destination.0);
        head[40..42].copy_from_slice(&[0x08, 0x00]);
        Self {
            head,
            byte_len: 144,
            network,
            src_qp: 0x99,
            slid: 3,
        }
    }

    fn run_as(&self, me: &Identity) -> Result<Frame, RxDrop> {
        let completion = Completion {
            byte_len: self.byte_len,
            buffer_len: BUFFER,
            network: self.network,
            head: &self.head,
            src_qp: Qpn::new(self.src_qp),
            slid: self.slid,
        };
        classify(&completion, me, is_own)
    }

    fn run(&self) -> Result<Frame, RxDrop> {
        self.run_as(&me())
    }
}

fn roce(source: Gid, destination: Gid) -> Sample {
    let mut sample = Sample::new(NetworkHeader::Ipv6, source, destination);
    sample.slid = 0;
    sample
}

#[test]
fn unicast_for_us() {
    let frame = roce(gid(2), gid(1)).run().unwrap();
    assert_eq!(
        frame,
        Frame {
            ethertype: EtherType::IPV4,
            payload_len: 100,
            cast: Cast::Host,
            source: Some(gid(2)),
        }
    );
}

#[test]
fn kinds_of_destination() {
    let cast = |destination| roce(gid(2), destination).run().map(|frame| frame.cast);
    assert_eq!(cast(me().broadcast), Ok(Cast::Broadcast));
    let group = mgid::ipv4([224, 0, 0, 1], 2, PKey::DEFAULT);
    assert_eq!(cast(group), Ok(Cast::Multicast));
    // RX-7: the exact MGID decides, so these are plain multicast.
    assert_eq!(cast(mgid::broadcast(5, PKey::DEFAULT)), Ok(Cast::Multicast));
    assert_eq!(cast(mgid::broadcast(2, PKey(0x8001))), Ok(Cast::Multicast));
}

#[test]
fn lengths() {
    let with_len = |byte_len| {
        let mut sample = roce(gid(2), gid(1));
        sample.byte_len = byte_len;
        sample.run().map(|frame| frame.payload_len)
    };
    for len in 0..44 {
        assert_eq!(with_len(len), Err(RxDrop::TooShort), "{len}");
    }
    assert_eq!(with_len(44), Err(RxDrop::Empty));
    assert_eq!(with_len(45), Ok(1));
    assert_eq!(with_len(BUFFER), Ok(BUFFER - 44));
    assert_eq!(with_len(BUFFER + 1), Err(RxDrop::TooLong));
    assert_eq!(with_len(u32::MAX), Err(RxDrop::TooLong));
}

#[test]
fn head_shorter_than_claimed() {
    let sample = roce(gid(2), gid(1));
    for len in 0..44 {
        let completion = Completion {
            byte_len: 100,
            buffer_len: BUFFER,
            network: NetworkHeader::Ipv6,
            head: &sample.head[..len],
            src_qp: Qpn::new(9),
            slid: 0,
        };
        assert_eq!(
            classify(&completion, &me(), is_own),
            Err(RxDrop::TooShort),
            "{len}"
        );
    }
}

#[test]
fn echo_on_roce() {
    let group = mgid::ipv6([0xff; 16], 2, PKey::DEFAULT);
    let mut sample = roce(gid(1), group);
    // Our GID alone: a sibling interface of the same port (B32: siblings must hear each other).
    assert!(sample.run().is_ok());
    for qpn in OWN_QPNS {
        sample.src_qp = qpn;
        assert_eq!(sample.run(), Err(RxDrop::OwnEcho));
    }
    // Our QPN alone: another node's queue pair of the same number.
    let mut other = roce(gid(2), group);
    other.src_qp = OWN_QPNS[0];
    assert!(other.run().is_ok());
}

#[test]
fn echo_on_infiniband() {
    let group = mgid::ipv6([0xff; 16], 2, PKey::DEFAULT);
    let mut sample = Sample::new(NetworkHeader::Grh, gid(1), group);
    sample.src_qp = OWN_QPNS[1];
    sample.slid = OWN_LID;
    assert_eq!(sample.run(), Err(RxDrop::OwnEcho));
    // Sent under the previous prefix, or before we knew our LID.
    let mut moved = me();
    moved.gid = moved.gid.with_prefix([0xfe, 0xc0, 0, 0, 0, 0, 0, 9]);
    moved.lid = None;
    assert_eq!(sample.run_as(&moved), Err(RxDrop::OwnEcho));
    // RX-8: another port that shares our LID and happens to use the same QPN.
    let mut sharer = Sample::new(NetworkHeader::Grh, gid(2), group);
    sharer.src_qp = OWN_QPNS[1];
    sharer.slid = OWN_LID;
    assert!(sharer.run().is_ok());
}

#[test]
fn echo_without_routing_header() {
    let mut sample = Sample::new(NetworkHeader::None, Gid::ZERO, Gid::ZERO);
    sample.src_qp = OWN_QPNS[0];
    sample.slid = OWN_LID;
    assert_eq!(sample.run(), Err(RxDrop::OwnEcho));
    let mut unknown = me();
    unknown.lid = None;
    assert!(sample.run_as(&unknown).is_ok());
    sample.slid = OWN_LID + 1;
    assert!(sample.run().is_ok());
}

#[test]
fn no_routing_header_is_unicast() {
    // The octets in front are garbage then, and must not be looked at (RFC 4391: with or without GRH).
    let mut sample = Sample::new(NetworkHeader::None, Gid([0xff; 16]), Gid([0xff; 16]));
    sample.head[..40].fill(0xff);
    let frame = sample.run().unwrap();
    assert_eq!(frame.cast, Cast::Host);
    assert_eq!(frame.source, None);
}

#[test]
fn other_destinations() {
    assert_eq!(roce(gid(2), gid(3)).run(), Err(RxDrop::WrongGid));
    // On InfiniBand the default prefix stays good beside the assigned one.
    let mut moved = me();
    moved.gid = moved.gid.with_prefix([0xfe, 0xc0, 0, 0, 0, 0, 0, 9]);
    let sample = Sample::new(NetworkHeader::Grh, gid(2), gid(1));
    assert!(sample.run_as(&moved).is_ok());
    assert_eq!(
        Sample::new(NetworkHeader::Grh, gid(2), gid(3)).run(),
        Err(RxDrop::WrongGid)
    );
}

#[test]
fn ethertypes() {
    let with_type = |ethertype: u16| {
        let mut sample = roce(gid(2), gid(1));
        sample.head[40..42].copy_from_slice(&ethertype.to_be_bytes());
        // RFC 4391: reserved octets are ignored.
        sample.head[42..44].copy_from_slice(&[0xff, 0xff]);
        sample.run().map(|frame| frame.ethertype.0)
    };
    for known in [0x0800, 0x0806, 0x86dd, 0x1234] {
        assert_eq!(with_type(known), Ok(known), "RX-10: no filter");
    }
    for length in [0, 3, 4, 0x05ff] {
        assert_eq!(with_type(length), Err(RxDrop::BadEtherType));
    }
}

#[test]
fn wrong_ip_version() {
    let mut sample = roce(gid(2), gid(1));
    sample.head[0] = 0x45;
    assert_eq!(sample.run(), Err(RxDrop::BadGrh));
    sample.network = NetworkHeader::Ipv4;
    assert_eq!(sample.run(), Err(RxDrop::BadGrh));
    // The version of a GRH is the HCA's business, as in-tree.
    sample.network = NetworkHeader::Grh;
    assert!(sample.run().is_ok());
}

#[test]
fn reasons_are_a_dense_table() {
    let mut names: Vec<_> = RxDrop::ALL.map(RxDrop::name).to_vec();
    for (index, reason) in RxDrop::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), index);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RxDrop::COUNT);
    assert!(!RxDrop::OwnEcho.is_loss() && RxDrop::TooShort.is_loss());
}

fn any_network() -> impl Strategy<Value = NetworkHeader> {
    prop_oneof![
        Just(NetworkHeader::None),
        Just(NetworkHeader::Grh),
        Just(NetworkHeader::Ipv4),
        Just(NetworkHeader::Ipv6),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever arrives: what is delivered lies inside the buffer and is not empty.
    #[test]
    fn delivered_lies_in_the_buffer(
        head in proptest::collection::vec(any::<u8>(), 0..64),
        byte_len in prop_oneof![0u32..128, any::<u32>()],
        buffer_len in prop_oneof![0u32..128, Just(BUFFER), any::<u32>()],
        network in any_network(),
        src_qp: u32,
        slid: u32,
    ) {
        let completion = Completion {
            byte_len,
            buffer_len,
            network,
            head: &head,
            src_qp: Qpn::new(src_qp),
            slid,
        };
        if let Ok(frame) = classify(&completion, &me(), is_own) {
            let end = HEAD_LEN as u64 + u64::from(frame.payload_len);
            prop_assert!(frame.payload_len > 0);
            prop_assert_eq!(end, u64::from(byte_len));
            prop_assert!(end <= u64::from(buffer_len));
            prop_assert!(head.len() >= 44);
            prop_assert!(frame.ethertype.is_ethertype());
            prop_assert_eq!(frame.source.is_none(), network == NetworkHeader::None);
        }
    }
}

/// An ARP request from `address`, behind whatever routing header.
fn arp(address: &HwAddr) -> Vec<u8> {
    let mut head = vec![0; 40];
    head.extend([0x08, 0x06, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1]);
    head.extend(address.0);
    head.resize(100, 0);
    head
}

#[test]
fn the_sender_of_a_frame() {
    let head = arp(&HwAddr::new(0x80, Qpn::new(7), gid(9)));
    let frame = Frame {
        ethertype: EtherType::ARP,
        payload_len: 56,
        cast: Cast::Broadcast,
        source: Some(gid(2)),
    };
    // The address that an answer goes to, also where there is no routing header.
    assert_eq!(sender(&frame, &head), Some(gid(9)));
    let bare = Frame {
        source: None,
        ..frame
    };
    assert_eq!(sender(&bare, &head), Some(gid(9)));
    // Else the routing header's source: other types, and packets that are cut off.
    for frame in [
        Frame {
            ethertype: EtherType::IPV4,
            ..frame
        },
        Frame {
            payload_len: 55,
            ..frame
        },
    ] {
        assert_eq!(sender(&frame, &head), Some(gid(2)));
    }
    assert_eq!(sender(&frame, &head[..60]), Some(gid(2)));
    let nobody = Frame {
        ethertype: EtherType::IPV6,
        source: None,
        ..frame
    };
    assert_eq!(sender(&nobody, &head), None);
}
