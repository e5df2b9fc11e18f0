// SPDX-License-Identifier: GPL-2.0

//! Global identifiers.

use core::fmt;

use super::pkey::PKey;
use super::{mix, octets};

/// A 128-bit global identifier, octets in wire order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: no identifier.
    pub const ZERO: Self = Self([0; 16]);

    /// The link-local subnet prefix, in use until a subnet manager assigns another.
    pub const LINK_LOCAL_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

    /// Wraps 16 octets in wire order.
    #[inline]
    pub const fn new(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// The first 16 octets of a slice; `None` when it is shorter.
    #[inline]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        octets(bytes, 0).map(Self)
    }

    /// Joins a subnet prefix and an interface id (port GUID), both in wire order.
    #[inline]
    pub const fn from_parts(prefix: [u8; 8], id: [u8; 8]) -> Self {
        let value = ((u64::from_be_bytes(prefix) as u128) << 64) | (u64::from_be_bytes(id) as u128);
        Self(value.to_be_bytes())
    }

    /// The form in which RoCE carries an IPv4 address: `::ffff:a.b.c.d`.
    #[inline]
    pub const fn v4_mapped(addr: [u8; 4]) -> Self {
        Self((0xffff_0000_0000 | u32::from_be_bytes(addr) as u128).to_be_bytes())
    }

    /// The identifier as a number, first octet most significant.
    #[inline]
    const fn value(&self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Whether it names a multicast group: first octet 0xff.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.value() >> 120 == 0xff
    }

    /// Whether all octets are zero.
    #[inline]
    pub const fn is_zero(&self) -> bool {
        self.value() == 0
    }

    /// The lower eight octets, wire order: the port GUID of a unicast identifier.
    #[inline]
    pub const fn interface_id(&self) -> [u8; 8] {
        (self.value() as u64).to_be_bytes()
    }

    /// The upper eight octets, wire order.
    #[inline]
    pub const fn subnet_prefix(&self) -> [u8; 8] {
        ((self.value() >> 64) as u64).to_be_bytes()
    }

    /// The same interface id under another subnet prefix (EV-14).
    #[inline]
    pub const fn with_prefix(&self, prefix: [u8; 8]) -> Self {
        Self::from_parts(prefix, self.interface_id())
    }

    /// Whether the interface ids are equal, whatever the prefixes.
    #[inline]
    pub const fn same_interface(&self, other: &Self) -> bool {
        self.value() as u64 == other.value() as u64
    }

    /// The identifier of a group with octets 4 and 5 replaced by `pkey` with full membership.
    #[inline]
    pub const fn with_pkey(&self, pkey: PKey) -> Self {
        let field = (pkey.full().0 as u128) << 80;
        Self(((self.value() & !(0xffff << 80)) | field).to_be_bytes())
    }

    /// A hash for tables, spread over all 32 bits. `seed` should be random per table, so that peers cannot
    /// choose addresses that collide.
    #[inline]
    pub const fn hash32(&self, seed: u32) -> u32 {
        let v = self.value();
        let h = mix(mix(seed as u64, (v >> 64) as u64), v as u64);
        (mix(h, 0) >> 32) as u32
    }
}

/// Eight hex groups without zero padding and without `::` compression: the form of the in-tree driver's
/// debugfs files (DBG-2).
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for pair in self.0.chunks_exact(2) {
            if let Some(group) = octets::<2>(pair, 0) {
                write!(f, "{separator}{:x}", u16::from_be_bytes(group))?;
                separator = ":";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
