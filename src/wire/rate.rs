// SPDX-License-Identifier: GPL-2.0

//! Speed and width of a link as the verbs code them (`enum ib_port_speed`, `enum ib_port_width`).

/// Speed of one lane in Mb/s, by its code (ETH-5).
const fn lane(speed: u16) -> Option<u32> {
    Some(match speed {
        1 => 2_500,
        2 => 5_000,
        // QDR and FDR10.
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => return None,
    })
}

/// Number of lanes, by the code of the width.
const fn lanes(width: u8) -> Option<u32> {
    Some(match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    })
}

/// Speed of a link in Mb/s; `None` for a code that is not known.
pub const fn mbps(speed: u16, width: u8) -> Option<u32> {
    match (lane(speed), lanes(width)) {
        (Some(lane), Some(lanes)) => Some(lane.saturating_mul(lanes)),
        _ => None,
    }
}
