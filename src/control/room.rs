// SPDX-License-Identifier: GPL-2.0

//! How full the tables of an interface may get, and who goes to make room.
//!
//! Whoever can send to us makes entries here: our stack answers ARP requests and neighbour solicitations, whatever
//! address they give for their sender. So every table has a bound, and before it is reached those go of whom the
//! least is known: destinations that never answered, then the ones that were not used for longest.

use super::time::Millis;

/// The bound of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    max: u32,
}

impl Limit {
    /// Destinations of an interface, peers and groups together.
    pub const NEIGHBOURS: Self = Self::new(32768);
    /// Paths of an interface.
    pub const PATHS: Self = Self::new(32768);
    /// Groups of an interface beyond which it makes no send-only ones. With IPv6 a sender joins the solicited-node
    /// group of each peer that it looks for.
    pub const GROUPS: Self = Self::new(16384);

    /// At most `max` entries; less than 8 count as 8.
    #[inline]
    pub const fn new(max: u32) -> Self {
        Self {
            max: if max < 8 { 8 } else { max },
        }
    }

    /// The number of entries.
    #[inline]
    pub const fn max(self) -> u32 {
        self.max
    }

    /// Whether a table of `count` entries takes no further one.
    #[inline]
    pub const fn is_full(self, count: u32) -> bool {
        count >= self.max
    }

    /// Whether it is time to make room: seven eighths are taken.
    #[inline]
    pub const fn is_crowded(self, count: u32) -> bool {
        count >= self.max.saturating_sub(self.max / 8)
    }

    /// Whether there is enough room again: no more than three quarters are taken.
    #[inline]
    pub const fn is_roomy(self, count: u32) -> bool {
        count <= self.max.saturating_sub(self.max / 4)
    }
}

/// The least time between two attempts to make room: each looks at every entry, several times.
pub const INTERVAL: Millis = Millis::from_secs(1);

/// What is known of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// There is an address handle.
    pub resolved: bool,
    /// Packets wait for one.
    pub waiting: bool,
    /// Since a packet last went, or wanted to go, there.
    pub idle: Millis,
}

/// The rounds of making room: each takes more than the one before. They end with what was used within the last
/// second, which is traffic, and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    round: u32,
}

impl Rounds {
    /// The idle time, in seconds, that the first round over resolved destinations asks for; later ones halve it.
    const LONGEST: u64 = 32;
    /// Number of rounds.
    const COUNT: u32 = 8;

    /// Before the first round.
    pub const fn new() -> Self {
        Self { round: 0 }
    }

    /// Whether the destination goes in this round.
    pub const fn takes(&self, dest: &Use) -> bool {
        match self.round {
            0 => !dest.resolved && !dest.waiting,
            1 => !dest.resolved && dest.idle.0 >= 1000,
            n => dest.idle.0 >= (Self::LONGEST * 1000) >> (if n > 7 { 5 } else { n - 2 }),
        }
    }

    /// Goes on to the next round; `false` after the last.
    pub fn advance(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        self.round < Self::COUNT
    }
}

impl Default for Rounds {
    fn default() -> Self {
        Self::new()
    }
}
