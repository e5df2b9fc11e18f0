// SPDX-License-Identifier: GPL-2.0

//! Queue pair numbers.

use core::fmt;

/// A 24-bit queue pair number in host order.
///
/// # Invariants
///
/// The value is at most `0xff_ffff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair number that addresses a multicast group (FMT-3).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Makes a number from the low 24 bits of `value`; the upper octet is ignored, as on the wire.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number in host order, `0..=0xff_ffff`.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number from three octets in wire order.
    #[inline]
    pub const fn from_octets(octets: [u8; 3]) -> Self {
        let [a, b, c] = octets;
        Self(u32::from_be_bytes([0, a, b, c]))
    }

    /// The three octets in wire order.
    #[inline]
    pub const fn octets(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
