// SPDX-License-Identifier: GPL-2.0

//! MTU arithmetic (NET-17 to NET-20, FMT-9). All sizes in octets.

use super::encap;

/// The smallest datagram-mode MTU accepted: an IPv4 minimum of 68 plus the encapsulation header (NET-18).
pub const MIN: u32 = 72;

/// The largest MTU of any mode: connected mode's 65520.
pub const CONNECTED_MAX: u32 = 65520;

/// The MTU below which the stack runs no IPv6 on an interface.
pub const IPV6_MIN: u32 = 1280;

/// The largest InfiniBand MTU.
pub const IB_MAX: u32 = 4096;

/// The size for an InfiniBand MTU code (`enum ib_mtu`: 1 = 256 ... 5 = 4096); `None` for other codes.
#[inline]
pub const fn from_code(code: u8) -> Option<u32> {
    match code {
        1 => Some(256),
        2 => Some(512),
        3 => Some(1024),
        4 => Some(2048),
        5 => Some(4096),
        _ => None,
    }
}

/// The InfiniBand MTU code for a size; `None` when it is not one of the five.
#[inline]
pub const fn to_code(size: u32) -> Option<u8> {
    match size {
        256 => Some(1),
        512 => Some(2),
        1024 => Some(3),
        2048 => Some(4),
        4096 => Some(5),
        _ => None,
    }
}

/// The IP MTU that an InfiniBand MTU leaves: 4 less (FMT-9).
#[inline]
pub const fn ipoib_mtu(ib_mtu: u32) -> u32 {
    ib_mtu.saturating_sub(encap::LEN as u32)
}

/// The octets a datagram receive buffer must have for a port whose InfiniBand MTU is `ib_mtu`.
#[inline]
pub const fn rx_buffer(ib_mtu: u32) -> u32 {
    ib_mtu.saturating_add(encap::GRH_LEN as u32)
}

/// Why an MTU was refused, with the bound for the message to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuError {
    /// Below the minimum given.
    TooSmall(u32),
    /// Above the maximum given.
    TooLarge(u32),
}

/// Checks a datagram-mode MTU asked for by the administrator against [`MIN`] and the port's InfiniBand MTU
/// `ib_limit` (NET-18). The group's MTU is not looked at: a larger request is accepted and then capped.
#[inline]
pub const fn check(requested: u32, ib_limit: u32) -> Result<(), MtuError> {
    let max = ipoib_mtu(ib_limit);
    if requested < MIN {
        Err(MtuError::TooSmall(MIN))
    } else if requested > max {
        Err(MtuError::TooLarge(max))
    } else {
        Ok(())
    }
}

/// Checks a connected-mode MTU asked for by the administrator against [`MIN`] and `most`, what connections
/// allow.
#[inline]
pub const fn check_connected(requested: u32, most: u32) -> Result<(), MtuError> {
    if requested < MIN {
        Err(MtuError::TooSmall(MIN))
    } else if requested > most {
        Err(MtuError::TooLarge(most))
    } else {
        Ok(())
    }
}
