// SPDX-License-Identifier: GPL-2.0

//! When an unused neighbour, path or group goes.

use super::time::Millis;

/// The stack's default interval between two ageing passes (`arp_tbl.gc_interval`, NB-4).
pub const DEFAULT_INTERVAL: Millis = Millis::from_secs(30);

/// How an interface ages its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ageing {
    interval: Millis,
}

impl Ageing {
    /// Passes every `interval`; zero counts as one second.
    #[inline]
    pub const fn new(interval: Millis) -> Self {
        Self {
            interval: if interval.0 == 0 {
                Millis::from_secs(1)
            } else {
                interval
            },
        }
    }

    /// When to run the next pass.
    #[inline]
    pub const fn next_pass(&self, now: Millis) -> Millis {
        now.saturating_add(self.interval)
    }

    /// How long an entry may be unused: two intervals (NB-4).
    #[inline]
    pub const fn idle_limit(&self) -> Millis {
        self.interval.saturating_add(self.interval)
    }

    /// Whether a neighbour, or a send-only group, has been unused for too long. `busy` entries (packets wait
    /// on them, so that a machine will decide their fate) never are.
    #[inline]
    pub const fn expired(&self, last_used: Millis, now: Millis, busy: bool) -> bool {
        !busy && now.saturating_sub(last_used).0 > self.idle_limit().0
    }
}

impl Default for Ageing {
    fn default() -> Self {
        Self::new(DEFAULT_INTERVAL)
    }
}
