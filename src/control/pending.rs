// SPDX-License-Identifier: GPL-2.0

//! Accounting of packets that wait for a path or a group.

/// Bounds of a pending queue; both hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets.
    pub packets: u32,
    /// Octets, counted as the caller counts them (packet length or memory used).
    pub bytes: u32,
}

impl Limits {
    /// Per destination: holds a burst of 100 packets of the largest datagram MTU with room to spare (B50).
    pub const DESTINATION: Self = Self {
        packets: 256,
        bytes: 512 << 10,
    };

    /// Per destination, packets too large for a datagram that wait for a connection: 16 of the largest.
    pub const LARGE: Self = Self {
        packets: 256,
        bytes: 1 << 20,
    };

    /// Per interface, all destinations together: what unreachable peers may pin at most.
    pub const INTERFACE: Self = Self {
        packets: 16384,
        bytes: 16 << 20,
    };
}

/// What is queued at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: Limits,
    packets: u32,
    bytes: u32,
}

impl Budget {
    /// Nothing queued.
    #[inline]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            packets: 0,
            bytes: 0,
        }
    }

    /// Charges a packet of `len` octets; `false` (and nothing charged) when it would exceed a limit. An empty
    /// queue takes any packet whose length alone is within the limit.
    #[inline]
    #[must_use]
    pub fn admit(&mut self, len: u32) -> bool {
        let packets = self.packets.saturating_add(1);
        let Some(bytes) = self.bytes.checked_add(len) else {
            return false;
        };
        let fits = packets <= self.limits.packets && bytes <= self.limits.bytes;
        if fits {
            self.packets = packets;
            self.bytes = bytes;
        }
        fits
    }

    /// Forgets everything charged.
    #[inline]
    pub fn clear(&mut self) {
        self.packets = 0;
        self.bytes = 0;
    }

    /// Packets queued.
    #[inline]
    pub const fn packets(&self) -> u32 {
        self.packets
    }

    /// Octets queued.
    #[inline]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether nothing is queued.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }
}
