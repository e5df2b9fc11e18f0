// SPDX-License-Identifier: GPL-2.0

//! The 20-octet link-layer address (RFC 4391 section 9.1.1, FMT-1).

use core::fmt;

use super::gid::Gid;
use super::pkey::PKey;
use super::qpn::Qpn;
use super::{mgid, mix, octets};

/// Octets in a link-layer address.
pub const LEN: usize = 20;

/// A link-layer address: flags (octet 0), queue pair number (1 to 3), GID (4 to 19).
///
/// Any 20 octets are a valid value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HwAddr(pub [u8; LEN]);

impl HwAddr {
    /// Octets in an address.
    pub const LEN: usize = LEN;

    /// Flag in octet 0: the owner accepts reliable connections (RFC 4755).
    pub const FLAG_RC: u8 = 0x80;

    /// Flag in octet 0: the owner accepts unreliable connections (RFC 4755).
    pub const FLAG_UC: u8 = 0x40;

    /// Puts an address together.
    #[inline]
    pub const fn new(flags: u8, qpn: Qpn, gid: Gid) -> Self {
        let [q0, q1, q2] = qpn.octets();
        Self::join([flags, q0, q1, q2], gid)
    }

    /// The flags with the queue pair number, and the GID. Addresses are taken apart and put together in these two
    /// pieces, which fit registers: octet by octet the data path would spend more on them than on the packet.
    #[inline]
    const fn split(&self) -> ([u8; 4], Gid) {
        match (self.0.first_chunk(), self.0.last_chunk()) {
            (Some(first), Some(gid)) => (*first, Gid(*gid)),
            // Both are shorter than an address.
            _ => ([0; 4], Gid::ZERO),
        }
    }

    #[inline]
    const fn join(first: [u8; 4], gid: Gid) -> Self {
        let mut octets = [0; LEN];
        if let Some(at) = octets.first_chunk_mut() {
            *at = first;
        }
        if let Some(at) = octets.last_chunk_mut() {
            *at = gid.0;
        }
        Self(octets)
    }

    /// The first 20 octets of a slice; `None` when it is shorter.
    #[inline]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        octets(bytes, 0).map(Self)
    }

    /// The broadcast address of a partition with link-local scope (FMT-3). The key's full-membership bit is
    /// forced on.
    #[inline]
    pub const fn broadcast(pkey: PKey) -> Self {
        Self::multicast(mgid::broadcast(mgid::SCOPE_LINK_LOCAL, pkey))
    }

    /// The address that stands for a multicast group.
    #[inline]
    pub const fn multicast(group: Gid) -> Self {
        Self::new(0, Qpn::MULTICAST, group)
    }

    /// Octet 0. Peers must ignore it when they extract the queue pair number.
    #[inline]
    pub const fn flags(&self) -> u8 {
        let [flags, ..] = self.split().0;
        flags
    }

    /// The queue pair number (octets 1 to 3).
    #[inline]
    pub const fn qpn(&self) -> Qpn {
        let [_, a, b, c] = self.split().0;
        Qpn::from_octets([a, b, c])
    }

    /// The GID (octets 4 to 19).
    #[inline]
    pub const fn gid(&self) -> Gid {
        self.split().1
    }

    /// Whether the address stands for a multicast group: octet 4 is 0xff (TX-4).
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.gid().is_multicast()
    }

    /// The P_Key field of a multicast address (octets 8 and 9); meaningless for a unicast one.
    #[inline]
    pub const fn pkey(&self) -> PKey {
        let [_, _, _, _, a, b, ..] = self.gid().0;
        PKey::from_octets([a, b])
    }

    /// The scope nibble of a multicast address (octet 5); meaningless for a unicast one.
    #[inline]
    pub const fn scope(&self) -> u8 {
        let [_, flags_scope, ..] = self.gid().0;
        flags_scope & 0x0f
    }

    /// The address with other flags.
    #[inline]
    pub const fn with_flags(self, flags: u8) -> Self {
        let ([_, q0, q1, q2], gid) = self.split();
        Self::join([flags, q0, q1, q2], gid)
    }

    /// The address with octet 0 cleared: what identifies a peer in tables. A peer that starts or stops to
    /// offer connections keeps its entry.
    #[inline]
    pub const fn key(self) -> Self {
        self.with_flags(0)
    }

    /// The address with octets 8 and 9 replaced by `pkey` with full membership: what the transmit path does
    /// to every multicast destination (TX-5).
    #[inline]
    pub const fn with_pkey(self, pkey: PKey) -> Self {
        let (first, gid) = self.split();
        Self::join(first, gid.with_pkey(pkey))
    }

    /// A hash of [`HwAddr::key`] for tables; `seed` should be random per table.
    #[inline]
    pub const fn hash32(&self, seed: u32) -> u32 {
        let h = mix(seed as u64, self.qpn().get() as u64);
        self.gid().hash32((h ^ (h >> 32)) as u32)
    }
}

/// Colon-separated hex octets, as `ip link` prints them.
impl fmt::Display for HwAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for octet in &self.0 {
            write!(f, "{separator}{octet:02x}")?;
            separator = ":";
        }
        Ok(())
    }
}

impl fmt::Debug for HwAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
