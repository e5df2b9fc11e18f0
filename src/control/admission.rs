// SPDX-License-Identifier: GPL-2.0

//! A cap on outstanding queries.

use super::time::Millis;

/// Answers this fast let the window grow.
const QUICK: Millis = Millis(40);

/// Answers this slow let it shrink: soon the request would be repeated, as happens every 100 ms (SA-2), and the
/// administrator would have to work twice.
const SLOW: Millis = Millis(80);

/// Counts the queries an interface has outstanding at the subnet administrator. Who has to wait stands in a
/// first-in first-out list of the caller's; each [`QueryCap::release`] lets the next one in.
///
/// An adaptive cap is a window below the limit. It follows the time that answers take, so that an administrator
/// has no more to do than it can do before requests are repeated, and one that is silent is asked one thing at a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCap {
    limit: u32,
    outstanding: u32,
    window: u32,
    adaptive: bool,
    quick: u32,
    slow: u32,
}

impl QueryCap {
    /// The limit where answers come from the peers themselves and nobody is asked twice.
    pub const DEFAULT_LIMIT: u32 = 64;

    /// The limit for a subnet administrator. The MAD layer lets 16 requests out at a time for all users of a port
    /// together (`drivers/infiniband/core/mad.c`, as of 6.14); joins must not wait behind our queries.
    pub const SA_LIMIT: u32 = 12;

    /// Nothing outstanding; a limit of zero counts as one.
    #[inline]
    pub const fn new(limit: u32) -> Self {
        let limit = if limit == 0 { 1 } else { limit };
        Self {
            limit,
            outstanding: 0,
            window: limit,
            adaptive: false,
            quick: 0,
            slow: 0,
        }
    }

    /// As [`QueryCap::new`], with a window that [`QueryCap::answered`] and [`QueryCap::unanswered`] move.
    #[inline]
    pub const fn adaptive(limit: u32) -> Self {
        let cap = Self::new(limit);
        Self {
            window: cap.limit.div_ceil(3),
            adaptive: true,
            ..cap
        }
    }

    /// Takes a place; `false` when all are taken and the query has to wait.
    #[inline]
    #[must_use]
    pub fn try_acquire(&mut self) -> bool {
        let free = self.outstanding < self.window;
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

    /// A query was answered, in whatever way, after `latency`. The window moves by one for each window of
    /// answers.
    pub fn answered(&mut self, latency: Millis) {
        if !self.adaptive {
            return;
        }
        if latency <= QUICK {
            self.quick = self.quick.saturating_add(1);
            if self.quick >= self.window {
                self.settle(self.window.saturating_add(1));
            }
        } else if latency >= SLOW {
            self.slow = self.slow.saturating_add(1);
            if self.slow >= self.window {
                self.settle(self.window.saturating_sub(self.window.div_ceil(4)));
            }
        }
    }

    /// A query got no answer, although it was repeated.
    pub fn unanswered(&mut self) {
        if self.adaptive {
            self.settle(self.window / 2);
        }
    }

    fn settle(&mut self, window: u32) {
        self.window = window.min(self.limit).max(1);
        self.quick = 0;
        self.slow = 0;
    }

    /// Places left.
    #[inline]
    pub const fn free(&self) -> u32 {
        self.window.saturating_sub(self.outstanding)
    }

    /// Places taken.
    #[inline]
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Places there are at present.
    #[inline]
    pub const fn window(&self) -> u32 {
        self.window
    }
}
