// SPDX-License-Identifier: GPL-2.0

//! IPoIB frames: the encapsulation header and what follows it.

use std::net::{Ipv4Addr, Ipv6Addr};

/// IPv4.
pub const IPV4: u16 = 0x0800;
/// ARP.
pub const ARP: u16 = 0x0806;
/// IPv6.
pub const IPV6: u16 = 0x86dd;

/// Octets of the encapsulation header.
pub const ENCAP_LEN: usize = 4;
/// The smallest number that is an ethertype.
const FIRST_ETHERTYPE: u16 = 0x0600;

/// Octets of a hardware address: flags, queue pair number, GID.
pub type HwAddr = [u8; 20];

/// The hardware address of a queue pair.
pub fn hw_addr(flags: u8, qpn: u32, gid: Ipv6Addr) -> HwAddr {
    let mut address = [0; 20];
    address[..4].copy_from_slice(&qpn.to_be_bytes());
    address[0] = flags;
    address[4..].copy_from_slice(&gid.octets());
    address
}

/// What a receiver has to make of a frame, by its length and type alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Not even an encapsulation header.
    TooShort,
    /// Its type is no ethertype.
    BadEthertype,
    /// An encapsulation header and nothing else.
    Empty,
    /// To be delivered.
    Whole,
}

/// The fate of a frame.
pub fn fate(frame: &[u8]) -> Fate {
    match *frame {
        [a, b, _, _, ref rest @ ..] => {
            if u16::from_be_bytes([a, b]) < FIRST_ETHERTYPE {
                Fate::BadEthertype
            } else if rest.is_empty() {
                Fate::Empty
            } else {
                Fate::Whole
            }
        }
        _ => Fate::TooShort,
    }
}

/// Puts the encapsulation header in front of a payload.
pub fn encap(ethertype: u16, reserved: u16, payload: &[u8]) -> Vec<u8> {
    [&ethertype.to_be_bytes(), &reserved.to_be_bytes(), payload].concat()
}

/// The Internet checksum of some octets.
pub fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in octets.chunks(2) {
        sum += (u32::from(pair[0]) << 8) | pair.get(1).map_or(0, |low| u32::from(*low));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An ARP packet. `operation` is 1 for a request, 2 for a reply.
pub fn arp(operation: u16, sender: (HwAddr, Ipv4Addr), target: (HwAddr, Ipv4Addr)) -> Vec<u8> {
    [
        &[0, 32, 0x08, 0x00, 20, 4][..],
        &operation.to_be_bytes(),
        &sender.0,
        &sender.1.octets(),
        &target.0,
        &target.1.octets(),
    ]
    .concat()
}

/// The addresses in an ARP reply: (sender's hardware address, sender, target).
pub fn arp_reply(frame: &[u8]) -> Option<(HwAddr, Ipv4Addr, Ipv4Addr)> {
    let (head, body) = frame.split_at_checked(ENCAP_LEN + 8)?;
    if head[..2] != ARP.to_be_bytes() || head[ENCAP_LEN..] != [0, 32, 0x08, 0x00, 20, 4, 0, 2] {
        return None;
    }
    let four = |at: usize| -> Option<Ipv4Addr> {
        let octets: [u8; 4] = body.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    };
    Some((body.get(..20)?.try_into().ok()?, four(20)?, four(44)?))
}

/// Puts the right checksum into the IPv4 header of a packet, if there is room for one.
pub fn fix_ipv4(packet: &mut [u8]) {
    let Some(header) = packet.get_mut(..20) else {
        return;
    };
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// An IPv4 packet without options.
pub fn ipv4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let mut packet = [
        &[0x45, 0][..],
        &length.to_be_bytes(),
        &[0x12, 0x34, 0, 0, 64, protocol, 0, 0],
        &from.octets(),
        &to.octets(),
        payload,
    ]
    .concat();
    fix_ipv4(&mut packet);
    packet
}

/// An IPv6 packet without extension headers. The hop limit is the one that neighbour discovery wants.
pub fn ipv6(next: u8, from: Ipv6Addr, to: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    [
        &[0x60, 0, 0, 0][..],
        &length.to_be_bytes(),
        &[next, 255],
        &from.octets(),
        &to.octets(),
        payload,
    ]
    .concat()
}

/// An ICMP echo request.
pub fn echo4(from: Ipv4Addr, to: Ipv4Addr, sequence: u16, data: &[u8]) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0, 0x55, 0xaa][..], &sequence.to_be_bytes(), data].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv4(1, from, to, &message)
}

/// An ICMPv6 message; the checksum is filled in.
pub fn icmp6(from: Ipv6Addr, to: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let length = message.len() as u32;
    let pseudo = [
        &from.octets()[..],
        &to.octets(),
        &length.to_be_bytes(),
        &[0, 0, 0, 58],
        &message,
    ]
    .concat();
    message[2..4].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    ipv6(58, from, to, &message)
}

/// An ICMPv6 echo request.
pub fn echo6(from: Ipv6Addr, to: Ipv6Addr, sequence: u16, data: &[u8]) -> Vec<u8> {
    let message = [
        &[128, 0, 0, 0, 0x55, 0xaa][..],
        &sequence.to_be_bytes(),
        data,
    ]
    .concat();
    icmp6(from, to, message)
}

/// The group of all who may have an address.
fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let mut octets = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    octets[13..].copy_from_slice(&address.octets()[13..]);
    octets.into()
}

/// A neighbour solicitation for an address, sent to its group, or the answer would have no link-layer
/// address. The source link-layer address option has length 3, two octets of `pad`, the address.
pub fn solicitation(from: Ipv6Addr, target: Ipv6Addr, hw: HwAddr, pad: u16) -> Vec<u8> {
    let message = [
        &[135, 0, 0, 0, 0, 0, 0, 0][..],
        &target.octets(),
        &[1, 3],
        &pad.to_be_bytes(),
        &hw,
    ]
    .concat();
    icmp6(from, solicited(target), message)
}

/// A UDP datagram without checksum.
pub fn udp4(from: Ipv4Addr, to: Ipv4Addr, port: u16, data: &[u8]) -> Vec<u8> {
    let length = (8 + data.len()) as u16;
    let datagram = [
        &port.to_be_bytes()[..],
        &port.to_be_bytes(),
        &length.to_be_bytes(),
        &[0, 0],
        data,
    ]
    .concat();
    ipv4(17, from, to, &datagram)
}

/// A TCP segment that opens a connection, with a maximum segment size option and a right checksum.
pub fn syn4(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut segment = [
        &port.to_be_bytes()[..],
        &port.to_be_bytes(),
        &[
            0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4,
        ],
    ]
    .concat();
    let length = segment.len() as u16;
    let pseudo = [
        &from.octets()[..],
        &to.octets(),
        &[0, 6],
        &length.to_be_bytes(),
        &segment,
    ]
    .concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    ipv4(6, from, to, &segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
    const THEM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

    #[test]
    fn checksum_of_the_standard() {
        // RFC 1071, section 3.
        assert_eq!(
            checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            !0xddf2
        );
        assert_eq!(checksum(&[0x12]), !0x1200);
    }

    #[test]
    fn checksums_of_packets_are_right() {
        let packet = echo4(US, THEM, 1, b"odd");
        assert_eq!(checksum(&packet[..20]), 0);
        assert_eq!(checksum(&packet[20..]), 0);
        let from = Ipv6Addr::LOCALHOST;
        let packet = echo6(from, from, 1, b"odd");
        let length = (packet.len() - 40) as u32;
        let pseudo = [
            &packet[8..40],
            &length.to_be_bytes(),
            &[0, 0, 0, 58],
            &packet[40..],
        ]
        .concat();
        assert_eq!(checksum(&pseudo), 0);
    }

    #[test]
    fn fates() {
        for n in 0..4 {
            assert_eq!(fate(&[0x08; 4][..n]), Fate::TooShort);
        }
        assert_eq!(fate(&[0x05, 0xff, 0, 0]), Fate::BadEthertype);
        assert_eq!(fate(&[0x05, 0xff, 0, 0, 0]), Fate::BadEthertype);
        assert_eq!(fate(&[0x06, 0x00, 0, 0]), Fate::Empty);
        assert_eq!(fate(&[0x06, 0x00, 0xff, 0xff, 0]), Fate::Whole);
    }

    #[test]
    fn replies() {
        let (a, b) = ([0x11; 20], [0x22; 20]);
        let reply = encap(ARP, 0, &arp(2, (a, US), (b, THEM)));
        assert_eq!(arp_reply(&reply), Some((a, US, THEM)));
        assert_eq!(arp_reply(&encap(ARP, 0, &arp(1, (a, US), (b, THEM)))), None);
        for n in 0..reply.len() {
            assert_eq!(arp_reply(&reply[..n]), None);
        }
    }
}
