// SPDX-License-Identifier: GPL-2.0

//! Multicast group identifiers of IPoIB (RFC 4391 section 4, FMT-3 to FMT-5).
//!
//! Layout: 0xff; flags (1 = transient) and scope nibbles; 16-bit signature; 16-bit P_Key; 80 bits of group.

use super::addr::HwAddr;
use super::gid::Gid;
use super::pkey::PKey;

/// The scope nibble that RFC 4391 recommends and the in-tree driver uses by default.
pub const SCOPE_LINK_LOCAL: u8 = 2;

/// Signature of groups that carry IPv4, and of the broadcast group.
pub const SIGNATURE_IPV4: u16 = 0x401b;

/// Signature of groups that carry IPv6.
pub const SIGNATURE_IPV6: u16 = 0x601b;

/// Assembles an identifier from the low 80 bits of `group`.
#[inline]
const fn assemble(scope: u8, signature: u16, pkey: PKey, group: u128) -> Gid {
    let head = 0xff10_u128 | (scope & 0x0f) as u128;
    let value = (head << 112)
        | ((signature as u128) << 96)
        | ((pkey.full().0 as u128) << 80)
        | (group & ((1 << 80) - 1));
    Gid(value.to_be_bytes())
}

/// The broadcast group of a partition: IPv4 signature, 48 zero bits and 32 one bits (FMT-3). The key's
/// full-membership bit is forced on; only the low four bits of `scope` count.
#[inline]
pub const fn broadcast(scope: u8, pkey: PKey) -> Gid {
    assemble(scope, SIGNATURE_IPV4, pkey, 0xffff_ffff)
}

/// The group of an IPv4 multicast address (octets in wire order): its low 28 bits (FMT-4).
///
/// `255.255.255.255` is no multicast address; use [`broadcast`].
#[inline]
pub const fn ipv4(group: [u8; 4], scope: u8, pkey: PKey) -> Gid {
    let low = u32::from_be_bytes(group) & 0x0fff_ffff;
    assemble(scope, SIGNATURE_IPV4, pkey, low as u128)
}

/// The group of an IPv6 multicast address (octets in wire order): its low 80 bits (FMT-5).
#[inline]
pub const fn ipv6(group: [u8; 16], scope: u8, pkey: PKey) -> Gid {
    assemble(scope, SIGNATURE_IPV6, pkey, u128::from_be_bytes(group))
}

/// The signature field (octets 2 and 3).
#[inline]
pub const fn signature(group: &Gid) -> u16 {
    (u128::from_be_bytes(group.0) >> 96) as u16
}

/// The P_Key field (octets 4 and 5).
#[inline]
pub const fn pkey(group: &Gid) -> PKey {
    PKey((u128::from_be_bytes(group.0) >> 80) as u16)
}

/// The scope nibble (low half of octet 1).
#[inline]
pub const fn scope(group: &Gid) -> u8 {
    ((u128::from_be_bytes(group.0) >> 112) & 0x0f) as u8
}

/// Whether an interface whose broadcast address is `broadcast` may join the group that `addr` stands for:
/// octets 0 to 5 and 7 to 9 must agree, which leaves the signature's family octet free (MC-19).
#[inline]
pub fn acceptable(addr: &HwAddr, broadcast: &HwAddr) -> bool {
    addr.0.get(0..6) == broadcast.0.get(0..6) && addr.0.get(7..10) == broadcast.0.get(7..10)
}

/// The queue, `0..queues`, to which an interface attaches a group. The same group gives the same queue on
/// every node, after every reload. Zero queues count as one.
#[inline]
pub const fn queue_hash(group: &Gid, queues: u32) -> u32 {
    ((group.hash32(0) as u64 * queues as u64) >> 32) as u32
}
