// SPDX-License-Identifier: GPL-2.0

//! A cap on outstanding queries.

/// Counts the queries an interface has outstanding at the subnet administrator. Who has to wait stands in a
/// first-in first-out list of the caller's; each [`QueryCap::release`] lets the next one in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCap {
    limit: u32,
    outstanding: u32,
}

impl QueryCap {
    /// The default limit per interface. Each query may keep ten management datagrams in flight within its
    /// second (SA-2), so this is about what one subnet administrator answers in that time.
    pub const DEFAULT_LIMIT: u32 = 64;

    /// Nothing outstanding; a limit of zero counts as one.
    #[inline]
    pub const fn new(limit: u32) -> Self {
        Self {
            limit: if limit == 0 { 1 } else { limit },
            outstanding: 0,
        }
    }

    /// Takes a place; `false` when all are taken and the query has to wait.
    #[inline]
    #[must_use]
    pub fn try_acquire(&mut self) -> bool {
        let free = self.outstanding < self.limit;
        if free {
            self.outstanding = self.outstanding.saturating_add(1);
        }
        free
    }

    /// Gives a place back: exactly once for each query that got one, when its answer came or when it was
    /// cancelled.
    #[inline]
    pub fn release(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Places left.
    #[inline]
    pub const fn free(&self) -> u32 {
        self.limit.saturating_sub(self.outstanding)
    }

    /// Places taken.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }
}
