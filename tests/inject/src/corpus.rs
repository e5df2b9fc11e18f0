// SPDX-License-Identifier: GPL-2.0

//! The frames that no decent peer sends.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::frames::{self, HwAddr};

/// Both ends of the conversation.
pub struct Ends {
    /// Our hardware address, whose queue pair gets the answers.
    pub hw: HwAddr,
    /// Our addresses: nobody else's on the link.
    pub us: (Ipv4Addr, Ipv6Addr),
    /// Those of the interface under test.
    pub them: (Ipv4Addr, Ipv6Addr),
}

/// The names of the kinds.
pub const KINDS: [&str; 8] = [
    "empty",
    "short",
    "low-types",
    "other-types",
    "truncated-ip",
    "wrong-ip",
    "wrong-arp",
    "oversize",
];

/// The frames of one kind; `mtu` is the largest payload that the port takes.
pub fn kind(name: &str, ends: &Ends, mtu: usize) -> Option<Vec<Vec<u8>>> {
    Some(match name {
        "empty" => vec![Vec::new()],
        "short" => short(ends),
        "low-types" => [0, 1, 46, 0x05dc, 0x05ff]
            .into_iter()
            .map(|ethertype| frames::encap(ethertype, 0, &[0x45; 60]))
            .collect(),
        "other-types" => [
            0x0600, 0x1234, 0x6003, 0x8035, 0x8100, 0x8847, 0x88ca, 0x88cc, 0xffff,
        ]
        .into_iter()
        .map(|ethertype| frames::encap(ethertype, 0, &[0x45; 60]))
        .collect(),
        "truncated-ip" => truncated(ends),
        "wrong-ip" => wrong_ip(ends),
        "wrong-arp" => wrong_arp(ends),
        "oversize" => oversize(ends, mtu),
        _ => return None,
    })
}

fn echo4(ends: &Ends, octets: usize) -> Vec<u8> {
    frames::echo4(ends.us.0, ends.them.0, 7, &vec![0x5a; octets])
}

fn echo6(ends: &Ends, octets: usize) -> Vec<u8> {
    frames::echo6(ends.us.1, ends.them.1, 7, &vec![0x5a; octets])
}

/// The first 1 to 44 octets of good frames.
fn short(ends: &Ends) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for good in [
        frames::encap(frames::IPV4, 0, &echo4(ends, 56)),
        frames::encap(frames::IPV6, 0, &echo6(ends, 56)),
    ] {
        all.extend((1..=44).map(|n| good[..n].to_vec()));
    }
    all
}

/// Packets that end before their headers or lengths say so.
fn truncated(ends: &Ends) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (ethertype, packet) in [
        (frames::IPV4, echo4(ends, 20)),
        (frames::IPV4, frames::syn4(ends.us.0, ends.them.0, 9)),
        (
            frames::IPV4,
            frames::udp4(ends.us.0, ends.them.0, 9, b"abc"),
        ),
        (frames::IPV6, echo6(ends, 20)),
        (
            frames::IPV6,
            frames::solicitation(ends.us.1, ends.them.1, ends.hw, 0),
        ),
        (
            frames::ARP,
            frames::arp(1, (ends.hw, ends.us.0), ([0; 20], ends.them.0)),
        ),
    ] {
        all.extend((1..packet.len()).map(|n| frames::encap(ethertype, 0, &packet[..n])));
    }
    all
}

/// Headers that contradict themselves.
fn wrong_ip(ends: &Ends) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    // (octet, value) of an IPv4 header: version, header length, total length, fragment, protocol.
    for (at, value) in [
        (0, 0x05),
        (0, 0x65),
        (0, 0xf5),
        (0, 0x40),
        (0, 0x44),
        (0, 0x46),
        (0, 0x4f),
        (2, 0xff),
        (3, 0),
        (3, 19),
        (3, 21),
        (6, 0x3f),
        (6, 0xff),
        (7, 0xff),
        (8, 0),
        (9, 255),
    ] {
        let mut packet = echo4(ends, 56);
        packet[at] = value;
        all.push(frames::encap(frames::IPV4, 0, &packet));
        frames::fix_ipv4(&mut packet);
        all.push(frames::encap(frames::IPV4, 0, &packet));
    }
    // The same of an IPv6 header: version, payload length, every next header.
    for (at, value) in [
        (0, 0x00),
        (0, 0x40),
        (0, 0xf0),
        (4, 0xff),
        (5, 0),
        (5, 0xff),
        (7, 0),
    ]
    .into_iter()
    .chain((0..=255).map(|next| (6, next)))
    {
        let mut packet = echo6(ends, 56);
        packet[at] = value;
        all.push(frames::encap(frames::IPV6, 0, &packet));
    }
    // The other protocol's type.
    all.push(frames::encap(frames::IPV6, 0, &echo4(ends, 56)));
    all.push(frames::encap(frames::IPV4, 0, &echo6(ends, 56)));
    all
}

/// ARP packets with other lengths and kinds of addresses, and other operations.
fn wrong_arp(ends: &Ends) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (at, value) in [
        (0, 0xff),
        (1, 1),
        (2, 0x86),
        (4, 0),
        (4, 6),
        (4, 19),
        (4, 255),
        (5, 0),
        (5, 16),
        (5, 255),
        (6, 0xff),
        (7, 0),
        (7, 3),
        (7, 8),
        (7, 255),
    ] {
        let mut packet = frames::arp(1, (ends.hw, ends.us.0), ([0; 20], ends.them.0));
        packet[at] = value;
        all.push(frames::encap(frames::ARP, 0, &packet));
    }
    // Senders that no answer can reach: no queue pair, a group, nobody's GID.
    for hw in [
        [0; 20],
        [0xff; 20],
        frames::hw_addr(0, 0, Ipv6Addr::UNSPECIFIED),
    ] {
        all.push(frames::encap(
            frames::ARP,
            0,
            &frames::arp(1, (hw, ends.us.0), ([0; 20], ends.them.0)),
        ));
    }
    all
}

/// Frames around every size that could matter, up to what the port takes.
fn oversize(ends: &Ends, mtu: usize) -> Vec<Vec<u8>> {
    [1024, 2044, 2048, 4092, 4096]
        .into_iter()
        .flat_map(|n| n - 4..=n + 4)
        .filter(|n| *n <= mtu)
        .map(|n| frames::encap(frames::IPV4, 0, &echo4(ends, n - frames::ENCAP_LEN - 28)))
        .collect()
}

/// A generator of random numbers that a seed determines: the sequence of Weyl steps, mixed.
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn octets(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Changed copies of good frames, determined by the seed.
pub struct Mutator {
    random: Random,
    good: Vec<Vec<u8>>,
    mtu: usize,
}

impl Mutator {
    /// `mtu` is the largest payload that the port takes.
    pub fn new(seed: u64, ends: &Ends, mtu: usize) -> Self {
        let packets = [
            (
                frames::ARP,
                frames::arp(1, (ends.hw, ends.us.0), ([0; 20], ends.them.0)),
            ),
            (
                frames::ARP,
                frames::arp(2, (ends.hw, ends.us.0), ([0; 20], ends.them.0)),
            ),
            (frames::IPV4, echo4(ends, 56)),
            (frames::IPV4, echo4(ends, 1400)),
            (
                frames::IPV4,
                frames::udp4(ends.us.0, ends.them.0, 9, b"abc"),
            ),
            (frames::IPV4, frames::syn4(ends.us.0, ends.them.0, 9)),
            (frames::IPV6, echo6(ends, 56)),
            (
                frames::IPV6,
                frames::solicitation(ends.us.1, ends.them.1, ends.hw, 0),
            ),
        ];
        let good = packets
            .iter()
            .map(|(kind, packet)| frames::encap(*kind, 0, packet))
            .collect();
        Self {
            random: Random::new(seed),
            good,
            mtu,
        }
    }

    /// The next frame.
    pub fn frame(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let mut frame = self.good[random.below(self.good.len())].clone();
        for _ in 0..=random.below(4) {
            let n = frame.len();
            match random.below(8) {
                0 => frame.truncate(random.below(n + 1)),
                1 => {
                    let more = random.below(128);
                    frame.extend(random.octets(more));
                }
                2 => frame.resize(random.below(self.mtu + 1), random.next() as u8),
                3 if n > 0 => frame = random.octets(n),
                4 if n > 1 => frame[random.below(2)] = random.next() as u8,
                5 if n > 3 => frame[2 + random.below(2)] = random.next() as u8,
                6 if n > 0 => frame[random.below(n)] ^= 1 << random.below(8),
                _ if n > 0 => frame[random.below(n)] = random.next() as u8,
                _ => frame = random.octets(1),
            }
        }
        frame.truncate(self.mtu);
        // Half of the IPv4 headers with a right checksum, or the stack would look no further.
        if random.below(2) == 0 && frame.starts_with(&frames::IPV4.to_be_bytes()) {
            if let Some(packet) = frame.get_mut(frames::ENCAP_LEN..) {
                frames::fix_ipv4(packet);
            }
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Fate;

    fn ends() -> Ends {
        Ends {
            hw: frames::hw_addr(0, 0x12, "fe80::1".parse().unwrap()),
            us: (Ipv4Addr::new(10, 77, 0, 200), "fd77::200".parse().unwrap()),
            them: (Ipv4Addr::new(10, 77, 0, 1), "fd77::1".parse().unwrap()),
        }
    }

    #[test]
    fn every_kind_has_frames_that_fit() {
        for name in KINDS {
            let frames = kind(name, &ends(), 2048).unwrap();
            assert!(!frames.is_empty(), "{name}");
            assert!(frames.iter().all(|frame| frame.len() <= 2048), "{name}");
        }
        assert!(kind("no such", &ends(), 2048).is_none());
    }

    #[test]
    fn a_seed_determines_the_frames() {
        let frames = |seed| {
            let mut mutator = Mutator::new(seed, &ends(), 4096);
            (0..2000).map(|_| mutator.frame()).collect::<Vec<_>>()
        };
        let one = frames(1);
        assert_eq!(one, frames(1));
        assert_ne!(one, frames(2));
        assert!(one.iter().all(|frame| frame.len() <= 4096));
        for fate in [Fate::TooShort, Fate::BadEthertype, Fate::Empty, Fate::Whole] {
            assert!(
                one.iter().any(|frame| frames::fate(frame) == fate),
                "{fate:?}"
            );
        }
    }
}
