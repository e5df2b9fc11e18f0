// SPDX-License-Identifier: GPL-2.0

//! Why an outgoing packet was dropped.

/// Why an outgoing packet was dropped. Each reason has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TxDrop {
    /// Shorter than pseudo and encapsulation header (TX-3).
    Short,
    /// An ethertype that IPoIB does not carry (FMT-8).
    EtherType,
    /// Longer than the MTU of the path or group (TX-10).
    TooLong,
    /// The destination's pending queue, or the interface's share of all of them, was full.
    QueueFull,
    /// No broadcast group, or interface not running: nothing can be resolved (SA-3, MC-16).
    NotReady,
    /// The destination's path could not be resolved.
    NoPath,
    /// The destination failed shortly before and the next try is not near (negative cache).
    Unreachable,
    /// The multicast group could not be joined.
    NoGroup,
    /// Waited too long for a path or a group.
    Expired,
    /// Thrown away by a flush, a port that went down, or the interface going down.
    Flushed,
    /// Could not be made to fit the scatter list (TX-11).
    Linearize,
    /// Could not be mapped for the device (TX-12).
    Map,
    /// The device refused the work request (TX-15).
    Post,
    /// No memory for control state.
    NoMemory,
    /// The table of destinations, paths or groups was full ([`super::room`]).
    TableFull,
}

impl TxDrop {
    /// Number of reasons; every [`TxDrop::index`] is below it.
    pub const COUNT: usize = 15;

    /// All reasons in index order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Short,
        Self::EtherType,
        Self::TooLong,
        Self::QueueFull,
        Self::NotReady,
        Self::NoPath,
        Self::Unreachable,
        Self::NoGroup,
        Self::Expired,
        Self::Flushed,
        Self::Linearize,
        Self::Map,
        Self::Post,
        Self::NoMemory,
        Self::TableFull,
    ];

    /// The reason's place in an array of counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The counter's name in `ethtool -S`: lower case, no prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::EtherType => "ethertype",
            Self::TooLong => "too_long",
            Self::QueueFull => "queue_full",
            Self::NotReady => "not_ready",
            Self::NoPath => "no_path",
            Self::Unreachable => "unreachable",
            Self::NoGroup => "no_group",
            Self::Expired => "expired",
            Self::Flushed => "flushed",
            Self::Linearize => "linearize",
            Self::Map => "map",
            Self::Post => "post",
            Self::NoMemory => "no_memory",
            Self::TableFull => "table_full",
        }
    }
}
