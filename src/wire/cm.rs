// SPDX-License-Identifier: GPL-2.0

//! Connected mode on the wire: service id and private data (FMT-11, FMT-12).

use super::octets;
use super::qpn::Qpn;

/// The high part of the service id of the in-tree driver. RFC 4755 defines 0x01 in the top octet; what is
/// deployed, and what peers listen on, is 0x10.
const SERVICE_ID: u64 = 0x1000_0000_0000_0000;

/// The service id on which the owner of a datagram queue pair accepts connections.
#[inline]
pub const fn service_id(qpn: Qpn) -> u64 {
    SERVICE_ID | qpn.get() as u64
}

/// The private data of connection requests and replies: 8 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// The sender's datagram queue pair.
    pub qpn: Qpn,
    /// The largest message the sender receives, with the encapsulation header, in octets.
    pub mtu: u32,
}

impl PrivateData {
    /// Octets on the wire.
    pub const LEN: usize = 8;

    /// Reads the private data; the top octet of the queue pair word is ignored, and so is what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            qpn: Qpn::new(u32::from_be_bytes(octets(bytes, 0)?)),
            mtu: u32::from_be_bytes(octets(bytes, 4)?),
        })
    }

    /// The octets to send.
    #[inline]
    pub const fn build(&self) -> [u8; Self::LEN] {
        (((self.qpn.get() as u64) << 32) | self.mtu as u64).to_be_bytes()
    }
}
