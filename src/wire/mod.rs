// SPDX-License-Identifier: GPL-2.0

//! Bytes on the wire: addresses, headers, identifiers and the checks on received frames.
//!
//! Everything here is `core` only, allocates nothing, takes no lock and cannot panic, so every item
//! may be used in any context. The same files are compiled into the module and into the host tests.
//!
//! Multi-octet quantities on the wire are big endian (RFC 4391); the types hold either the raw octets
//! or the value in host order, as each one says.

#![forbid(unsafe_code)]
// The host tests and the simulator use items that the module does not, and the other way round; and the
// module is private to a crate that exports nothing.
#![allow(dead_code, unreachable_pub)]

pub mod addr;
pub mod cm;
pub mod encap;
pub mod gid;
pub mod grh;
pub mod mgid;
pub mod mtu;
pub mod pkey;
pub mod qpn;
pub mod rate;
pub mod rx;

/// Copies `N` octets that start at `offset` out of `bytes`; `None` when they are not all there.
#[inline]
pub(crate) fn octets<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes
        .get(offset..offset.checked_add(N)?)
        .and_then(|octets| octets.first_chunk::<N>())
        .copied()
}

/// Mixes one 64-bit word into a running hash (multiply and fold).
#[inline]
pub(crate) const fn mix(state: u64, word: u64) -> u64 {
    let h = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 32)
}
