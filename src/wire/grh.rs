// SPDX-License-Identifier: GPL-2.0

//! The 40 octets in front of a received datagram: a global routing header, or on RoCE v2 the IP header that
//! stands in its place.

use super::encap::GRH_LEN;
use super::gid::Gid;
use super::octets;

/// What the completion says about the 40 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// No header: the octets are undefined. Only on InfiniBand, within a subnet.
    None,
    /// An InfiniBand global routing header (also RoCE v1, which uses the same form).
    Grh,
    /// RoCE v2 over IPv4: 20 octets without meaning, then the IPv4 header.
    Ipv4,
    /// RoCE v2 over IPv6: the IPv6 header, whose addresses sit where a GRH has its GIDs.
    Ipv6,
}

impl NetworkHeader {
    /// Translates a work completion: `grh` is the flag `IB_WC_GRH`, `kind` the field `network_hdr_type`
    /// (`enum rdma_network_type`) where the flag `IB_WC_WITH_NETWORK_HDR_TYPE` is set. Unknown kinds count
    /// as a GRH.
    #[inline]
    pub const fn from_completion(grh: bool, kind: Option<u8>) -> Self {
        match (grh, kind) {
            (false, _) => Self::None,
            (true, Some(2)) => Self::Ipv4,
            (true, Some(3)) => Self::Ipv6,
            (true, _) => Self::Grh,
        }
    }
}

/// Source and destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The sender's GID.
    pub source: Gid,
    /// The GID it was sent to: ours, or a multicast group.
    pub destination: Gid,
}

/// Why no route could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// Fewer than 40 octets.
    Short,
    /// The IP version does not fit the kind of header announced.
    Version,
}

/// Reads source and destination from the 40 octets. `Ok(None)` when there is no header.
///
/// The version of an InfiniBand GRH is left to the HCA to check, as the in-tree driver does.
#[inline]
pub fn route(kind: NetworkHeader, bytes: &[u8]) -> Result<Option<Route>, RouteError> {
    let head = bytes.get(..GRH_LEN).ok_or(RouteError::Short)?;
    let version = |offset: usize| head.get(offset).map(|octet| octet >> 4);
    match kind {
        NetworkHeader::None => Ok(None),
        NetworkHeader::Ipv6 if version(0) != Some(6) => Err(RouteError::Version),
        NetworkHeader::Ipv6 | NetworkHeader::Grh => {
            let source = octets(head, 8).ok_or(RouteError::Short)?;
            let destination = octets(head, 24).ok_or(RouteError::Short)?;
            Ok(Some(Route {
                source: Gid(source),
                destination: Gid(destination),
            }))
        }
        NetworkHeader::Ipv4 if version(20) != Some(4) => Err(RouteError::Version),
        NetworkHeader::Ipv4 => {
            let source = octets(head, 32).ok_or(RouteError::Short)?;
            let destination = octets(head, 36).ok_or(RouteError::Short)?;
            Ok(Some(Route {
                source: Gid::v4_mapped(source),
                destination: Gid::v4_mapped(destination),
            }))
        }
    }
}
