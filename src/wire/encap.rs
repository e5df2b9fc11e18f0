// SPDX-License-Identifier: GPL-2.0

//! The 4-octet encapsulation header and the pseudo header in front of it.
//!
//! On the wire a datagram is preceded by a 16-bit ethertype and 16 reserved bits, zero when sent and
//! ignored when received (RFC 4391 section 6, FMT-2). Inside the host a 20-octet pseudo header with the
//! destination address precedes that; it never reaches the wire (TX-1, TX-4).

use core::fmt;

use super::addr::HwAddr;
use super::octets;

/// Octets of the encapsulation header.
pub const LEN: usize = 4;

/// Octets of the pseudo header.
pub const PSEUDO_LEN: usize = HwAddr::LEN;

/// Octets of pseudo and encapsulation header together: the interface's `hard_header_len`.
pub const HARD_LEN: usize = PSEUDO_LEN + LEN;

/// Octets at the start of every datagram receive buffer, reserved for the global routing header.
pub const GRH_LEN: usize = 40;

/// An ethertype in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// Reverse ARP.
    pub const RARP: Self = Self(0x8035);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// TIPC, which the in-tree driver carries as well (FMT-8).
    pub const TIPC: Self = Self(0x88ca);

    /// The smallest value that is an ethertype; smaller ones are lengths in IEEE 802.3 and mean nothing here.
    pub const MIN: u16 = 0x0600;

    /// Whether the value is in the range of ethertypes.
    #[inline]
    pub const fn is_ethertype(self) -> bool {
        self.0 >= Self::MIN
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// The ethertype at the start of an encapsulation header; the reserved half is ignored. `None` when the
/// header is not complete.
#[inline]
pub fn parse(bytes: &[u8]) -> Option<EtherType> {
    let [a, b, _, _] = octets::<LEN>(bytes, 0)?;
    Some(EtherType(u16::from_be_bytes([a, b])))
}

/// The encapsulation header for an ethertype.
#[inline]
pub const fn build(ethertype: EtherType) -> [u8; LEN] {
    let [a, b] = ethertype.0.to_be_bytes();
    [a, b, 0, 0]
}

/// The headers in front of an outgoing packet.
#[inline]
pub const fn build_hard(to: HwAddr, ethertype: EtherType) -> [u8; HARD_LEN] {
    let mut header = [0; HARD_LEN];
    if let Some(at) = header.first_chunk_mut() {
        *at = to.0;
    }
    if let Some(at) = header.last_chunk_mut() {
        *at = build(ethertype);
    }
    header
}

/// Splits the headers in front of an outgoing packet into destination and ethertype. `None` when fewer than
/// [`HARD_LEN`] octets are there, as a raw packet socket may send.
#[inline]
pub fn parse_hard(bytes: &[u8]) -> Option<(HwAddr, EtherType)> {
    let header = bytes.get(..HARD_LEN)?;
    Some((
        HwAddr::from_slice(header)?,
        parse(header.get(PSEUDO_LEN..)?)?,
    ))
}

/// How the transmit path treats an ethertype (TX-5, TX-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxClass {
    /// IPv4, IPv6, TIPC: multicast allowed; unicast goes through the neighbour table.
    Data,
    /// ARP and RARP: multicast allowed; unicast goes to the path of the destination GID without a
    /// neighbour, because the queue pair may be one that no data will ever use.
    Resolution,
    /// Everything else: dropped, whatever the destination (FMT-8).
    Refused,
}

/// The transmit class of an ethertype.
#[inline]
pub const fn tx_class(ethertype: EtherType) -> TxClass {
    match ethertype {
        EtherType::IPV4 | EtherType::IPV6 | EtherType::TIPC => TxClass::Data,
        EtherType::ARP | EtherType::RARP => TxClass::Resolution,
        _ => TxClass::Refused,
    }
}

/// Whether a packet of IP, encapsulation header first, is for one host: not for an IPv4 or IPv6 group. One that is too
/// short to tell, or of another protocol, is not.
#[inline]
pub fn is_for_one_host(bytes: &[u8]) -> bool {
    match parse(bytes) {
        Some(EtherType::IPV4) => {
            octets::<1>(bytes, LEN + 16).is_some_and(|[first]| !matches!(first, 224..=239))
        }
        Some(EtherType::IPV6) => octets::<1>(bytes, LEN + 24).is_some_and(|[first]| first != 0xff),
        _ => false,
    }
}

/// Where an ARP packet behind an encapsulation header says what it is.
const ARP_OPERATION: usize = LEN + 6;

/// The same for an IPv6 packet's next header, and for the type of an ICMPv6 message right behind the header.
const NEXT_HEADER: usize = LEN + 6;
const ICMPV6_TYPE: usize = LEN + 40;
/// ICMPv6 as a next header, and its neighbour advertisement (RFC 4861, section 4.4).
const ICMPV6: u8 = 58;
const ADVERTISEMENT: u8 = 136;

/// Whether an outgoing packet, encapsulation header first, does nothing but tell our address: an answer by ARP or a
/// neighbour advertisement. The stack sends such to whoever asks, under whatever address.
#[inline]
pub fn is_answer(bytes: &[u8]) -> bool {
    match parse(bytes) {
        Some(EtherType::ARP) => octets(bytes, ARP_OPERATION) == Some([0, 2]),
        Some(EtherType::IPV6) => {
            octets(bytes, NEXT_HEADER) == Some([ICMPV6])
                && octets(bytes, ICMPV6_TYPE) == Some([ADVERTISEMENT])
        }
        _ => false,
    }
}

/// Whether an outgoing packet of [`TxClass::Resolution`], encapsulation header first, asks for an address.
#[inline]
pub fn is_request(bytes: &[u8]) -> bool {
    parse(bytes) == Some(EtherType::ARP) && octets(bytes, ARP_OPERATION) == Some([0, 1])
}
