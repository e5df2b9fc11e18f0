// SPDX-License-Identifier: GPL-2.0

//! The checks on a received datagram: what is delivered, as what, and what is dropped for which reason.
//!
//! Runs once per packet in the receive poll, before anything is allocated.

use super::addr::HwAddr;
use super::encap::{self, EtherType};
use super::gid::Gid;
use super::grh::{self, NetworkHeader};
use super::qpn::Qpn;

/// Octets in front of the IP or ARP packet: global routing header and encapsulation header.
pub const HEAD_LEN: usize = encap::GRH_LEN + encap::LEN;

/// What the hardware reports about one received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// `byte_len` of the completion, the 40 octets of the routing header included.
    pub byte_len: u32,
    /// Octets of the buffer that was posted.
    pub buffer_len: u32,
    /// What the first 40 octets of the buffer are.
    pub network: NetworkHeader,
    /// The start of the buffer, [`HEAD_LEN`] octets or more.
    pub head: &'a [u8],
    /// The sender's queue pair.
    pub src_qp: Qpn,
    /// The sender's local identifier; zero on RoCE.
    pub slid: u32,
}

/// Who we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The GID of the interface, as in its hardware address.
    pub gid: Gid,
    /// The GID of the broadcast group.
    pub broadcast: Gid,
    /// The port's local identifier, if there is one and it is known.
    pub lid: Option<u32>,
}

/// To whom a datagram was sent; decides `pkt_type` (RX-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// To us alone.
    Host,
    /// To the broadcast group.
    Broadcast,
    /// To another group. The comparison is on all 16 octets, so another partition's or scope's broadcast
    /// group counts as multicast.
    Multicast,
}

/// A datagram to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The ethertype; any value of the ethertype range, as in-tree (RX-10).
    pub ethertype: EtherType,
    /// Length of the IP or ARP packet in octets, at least 1. It starts at [`HEAD_LEN`] in the buffer.
    pub payload_len: u32,
    /// To whom it was sent.
    pub cast: Cast,
    /// The sender's GID, where a header carried it.
    pub source: Option<Gid>,
}

/// Why a received datagram was not delivered. Each reason has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RxDrop {
    /// Shorter than routing header and encapsulation header together (RX-6).
    TooShort,
    /// Reported as longer than its buffer.
    TooLong,
    /// Nothing after the encapsulation header.
    Empty,
    /// Sent by one of our own queue pairs and looped back (RX-8).
    OwnEcho,
    /// The IP header in place of the routing header has the wrong version.
    BadGrh,
    /// Unicast to a GID that is not ours.
    WrongGid,
    /// The type field is below the range of ethertypes.
    BadEtherType,
    /// No memory for a replacement buffer; the old one was posted again (RX-4).
    NoMemory,
    /// The completion had an error status other than a flush.
    CompletionError,
    /// The completion named no slot of the ring (RX-5).
    BadCompletion,
    /// Arrived at a queue that was being reset or closed.
    Flushed,
}

impl RxDrop {
    /// Number of reasons; every [`RxDrop::index`] is below it.
    pub const COUNT: usize = 11;

    /// All reasons in index order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::TooShort,
        Self::TooLong,
        Self::Empty,
        Self::OwnEcho,
        Self::BadGrh,
        Self::WrongGid,
        Self::BadEtherType,
        Self::NoMemory,
        Self::CompletionError,
        Self::BadCompletion,
        Self::Flushed,
    ];

    /// The reason's place in an array of counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The counter's name in `ethtool -S`: lower case, no prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::TooLong => "too_long",
            Self::Empty => "empty",
            Self::OwnEcho => "own_echo",
            Self::BadGrh => "bad_grh",
            Self::WrongGid => "wrong_gid",
            Self::BadEtherType => "bad_ethertype",
            Self::NoMemory => "no_memory",
            Self::CompletionError => "completion_error",
            Self::BadCompletion => "bad_completion",
            Self::Flushed => "flushed",
        }
    }

    /// Whether the drop counts in the interface's `rx_dropped`. Our own echo does not: nobody lost anything
    /// (RX-8).
    pub const fn is_loss(self) -> bool {
        !matches!(self, Self::OwnEcho)
    }
}

/// Whether a datagram with a routing header came from ourselves, given that one of our queue pairs is its source.
///
/// The GID decides. The local identifier is not asked: a cached one may be stale, and would let our own neighbour
/// solicitations through as duplicates (TRAP-44); and ports that share a local identifier differ in the GID.
#[inline]
fn is_own(network: NetworkHeader, me: &Identity, route: &grh::Route) -> bool {
    match network {
        NetworkHeader::Ipv4 | NetworkHeader::Ipv6 => route.source == me.gid,
        _ => route.source.same_interface(&me.gid),
    }
}

/// Whether a unicast datagram that names a destination GID is for us. On InfiniBand the subnet prefix is not
/// compared: the default prefix stays valid beside the assigned one, and peers may still hold an older one.
#[inline]
fn is_for_us(network: NetworkHeader, me: &Identity, destination: &Gid) -> bool {
    match network {
        NetworkHeader::Ipv4 | NetworkHeader::Ipv6 => *destination == me.gid,
        NetworkHeader::None | NetworkHeader::Grh => destination.same_interface(&me.gid),
    }
}

/// Checks a successfully received datagram and tells what to do with it.
///
/// `is_own_qpn` says whether a queue pair is one of the interface's own.
#[inline]
pub fn classify(
    rx: &Completion<'_>,
    me: &Identity,
    is_own_qpn: impl FnOnce(Qpn) -> bool,
) -> Result<Frame, RxDrop> {
    if rx.byte_len > rx.buffer_len {
        return Err(RxDrop::TooLong);
    }
    let payload_len = rx
        .byte_len
        .checked_sub(HEAD_LEN as u32)
        .ok_or(RxDrop::TooShort)?;
    let encap_bytes = rx
        .head
        .get(encap::GRH_LEN..HEAD_LEN)
        .ok_or(RxDrop::TooShort)?;
    let ethertype = encap::parse(encap_bytes).ok_or(RxDrop::TooShort)?;
    // The cheaper question of two first: nearly all datagrams are of others.
    let (cast, source) = if rx.network != NetworkHeader::None {
        routed(rx.network, rx.head, rx.src_qp, me, is_own_qpn)?
    } else if me.lid == Some(rx.slid) && is_own_qpn(rx.src_qp) {
        // Only the local identifier tells.
        return Err(RxDrop::OwnEcho);
    } else {
        (Cast::Host, None)
    };
    if !ethertype.is_ethertype() {
        return Err(RxDrop::BadEtherType);
    }
    if payload_len == 0 {
        return Err(RxDrop::Empty);
    }
    Ok(Frame {
        ethertype,
        payload_len,
        cast,
        source,
    })
}

/// The part of [`classify`] that looks at a routing header.
#[inline(never)]
fn routed(
    network: NetworkHeader,
    head: &[u8],
    src_qp: Qpn,
    me: &Identity,
    is_own_qpn: impl FnOnce(Qpn) -> bool,
) -> Result<(Cast, Option<Gid>), RxDrop> {
    let route = grh::route(network, head).map_err(|error| match error {
        grh::RouteError::Short => RxDrop::TooShort,
        grh::RouteError::Version => RxDrop::BadGrh,
    })?;
    let Some(route) = route else {
        return Ok((Cast::Host, None));
    };
    if is_own(network, me, &route) && is_own_qpn(src_qp) {
        return Err(RxDrop::OwnEcho);
    }
    let cast = if route.destination == me.broadcast {
        Cast::Broadcast
    } else if route.destination.is_multicast() {
        Cast::Multicast
    } else if is_for_us(network, me, &route.destination) {
        Cast::Host
    } else {
        return Err(RxDrop::WrongGid);
    };
    Ok((cast, Some(route.source)))
}

/// Where the sender's link-layer address starts in an ARP packet (RFC 4391 section 9.1.1).
const ARP_SENDER: usize = HEAD_LEN + 8;

/// Octets of an ARP packet with 20-octet link-layer and 4-octet protocol addresses.
const ARP_LEN: u32 = 56;

/// Who sent a delivered datagram, if it tells: the address in an ARP packet, which is where the answer goes, else
/// the source in the routing header. `head` is the start of the buffer. Anybody can forge either.
#[inline]
pub fn sender(frame: &Frame, head: &[u8]) -> Option<Gid> {
    if frame.ethertype == EtherType::ARP && frame.payload_len >= ARP_LEN {
        if let Some(addr) = head.get(ARP_SENDER..).and_then(HwAddr::from_slice) {
            return Some(addr.gid());
        }
    }
    frame.source
}
