// SPDX-License-Identifier: GPL-2.0

//! Partition keys.

use core::fmt;

/// A partition key in host order: bit 15 is the membership (set = full), the low 15 bits name the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The bit that says "full member".
    pub const FULL_MEMBER: u16 = 0x8000;

    /// The default partition with full membership, which every port has unless a subnet manager took it away.
    pub const DEFAULT: Self = Self(0xffff);

    /// The key with the full-membership bit set, as the broadcast group and all joins carry it
    /// (RFC 4391 section 4, SA-1, MC-8).
    #[inline]
    pub const fn full(self) -> Self {
        Self(self.0 | Self::FULL_MEMBER)
    }

    /// Whether the key has full membership.
    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 & Self::FULL_MEMBER != 0
    }

    /// The partition without the membership bit, `0..=0x7fff`.
    #[inline]
    pub const fn base(self) -> u16 {
        self.0 & !Self::FULL_MEMBER
    }

    /// Whether the key names a partition at all: 0 and 0x8000 do not.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.base() != 0
    }

    /// Whether both keys name the same partition, whatever the membership.
    #[inline]
    pub const fn same_partition(self, other: Self) -> bool {
        self.base() == other.base()
    }

    /// Whether holders of the two keys may talk to each other: same valid partition, and at least one of
    /// them a full member.
    #[inline]
    pub const fn may_talk(self, other: Self) -> bool {
        self.is_valid() && self.same_partition(other) && (self.is_full() || other.is_full())
    }

    /// The key from two octets in wire order.
    #[inline]
    pub const fn from_octets(octets: [u8; 2]) -> Self {
        Self(u16::from_be_bytes(octets))
    }

    /// The two octets in wire order.
    #[inline]
    pub const fn octets(self) -> [u8; 2] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}
