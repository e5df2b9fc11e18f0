// SPDX-License-Identifier: GPL-2.0

//! A cap on outstanding queries, and whose turn it is.

use super::backoff::{self, Backoff};
use super::time::Millis;

/// Answers this fast let the window grow.
const QUICK: Millis = Millis(40);

/// Answers this slow let it shrink: soon the request would be repeated, as happens every 100 ms (SA-2), and the
/// administrator would have to work twice.
const SLOW: Millis = Millis(80);

/// How long no query goes out after one that got no answer. Each is repeated ten times within a second, so that nodes
/// that go on asking one thing at a time still ask ten times a second, and an administrator with many of them, or one
/// that is slow, would never get out from under its queue.
const PAUSE: backoff::Config = backoff::Config::new(1000, 8000);

/// How long a node that has one query out at a time, and whose answers are slow all the same, waits between two of them:
/// as long as the answer took, then twice as long each time, but not longer than this many times.
const GAP_TIMES: u64 = 4;

/// Joins that an interface has out at the same time, besides the broadcast group's: with its queries
/// ([`QueryCap::SA_LIMIT`]) 16 requests, so that eight interfaces of a port find room below. Thousands of groups can be
/// sent to at once, and when all of them were asked for at once no query would get through, and most joins would be given
/// up as unanswered long before their turn.
pub const JOIN_LIMIT: usize = 3;

/// On whose behalf a path is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Our own traffic goes there.
    Ourselves,
    /// Somebody asked for our address, under an address that anybody can make up, and waits for the answer.
    Stranger,
}

/// Whose query goes out next, when both kinds wait. Of four, three are our own: whoever makes our stack answer
/// addresses that nobody has does not keep us from our peers, and peers that we have not heard of yet get an
/// answer while we are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turns {
    /// Our own queries since the last one for a stranger, while one waited.
    own: u32,
}

impl Turns {
    /// Our own queries for each one of a stranger's.
    pub const OWN: u32 = 3;

    /// Nobody had a turn.
    pub const fn new() -> Self {
        Self { own: 0 }
    }

    /// Who is next, given who has a query waiting; `None` when nobody has. To be called once for each query.
    #[must_use]
    pub fn next(&mut self, ourselves: bool, stranger: bool) -> Option<Asker> {
        if !stranger {
            self.own = 0;
            return ourselves.then_some(Asker::Ourselves);
        }
        if ourselves && self.own < Self::OWN {
            self.own = self.own.saturating_add(1);
            return Some(Asker::Ourselves);
        }
        self.own = 0;
        Some(Asker::Stranger)
    }
}

/// Counts the queries an interface has outstanding at the subnet administrator. Who has to wait stands in one of
/// the caller's two first-in first-out lists, of which [`Turns`] picks one; each [`QueryCap::release`] lets the next
/// one in.
///
/// An adaptive cap is a window below the limit. It follows the time that answers take, so that an administrator
/// has no more to do than it can do before requests are repeated, and one that is silent is asked one thing at a
/// time, with pauses that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCap {
    limit: u32,
    outstanding: u32,
    window: u32,
    adaptive: bool,
    quick: u32,
    slow: u32,
    silences: Backoff,
    /// The time between two queries while one at a time is too many, in milliseconds.
    gap: u64,
    /// When the last pause began.
    began: Option<Millis>,
    /// When the pause ends, if there is one.
    pause: Option<Millis>,
}

impl QueryCap {
    /// The limit where answers come from the peers themselves and nobody is asked twice.
    pub const DEFAULT_LIMIT: u32 = 64;

    /// The limit for a subnet administrator. The MAD layer lets 128 requests out at a time for all users of a port
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
            silences: Backoff::new(),
            gap: 0,
            began: None,
            pause: None,
        }
    }

    /// As [`QueryCap::new`], with a window that [`QueryCap::answered`] and [`QueryCap::unanswered`] move.
    #[inline]
    pub const fn adaptive(limit: u32) -> Self {
        let cap = Self::new(limit);
        Self {
            window: 1,
            adaptive: true,
            ..cap
        }
    }

    /// Takes a place; `false` when all are taken, or there is a pause, and the query has to wait.
    #[inline]
    #[must_use]
    pub fn try_acquire(&mut self, now: Millis) -> bool {
        self.pause = self.pause.filter(|until| !until.reached(now));
        let free = self.pause.is_none() && self.outstanding < self.window;
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
    /// answers. Where one query at a time is too many, because many nodes ask, a gap after each takes its place.
    pub fn answered(&mut self, latency: Millis, now: Millis) {
        if !self.adaptive {
            return;
        }
        self.resume();
        if self.window == 1 {
            self.gap = if latency >= SLOW {
                let longer = self.gap.saturating_mul(2).max(latency.0);
                longer.min(latency.0.saturating_mul(GAP_TIMES))
            } else if latency <= QUICK {
                self.gap / 2
            } else {
                self.gap
            };
            if self.gap != 0 {
                self.pause = Some(now.saturating_add(Millis(self.gap)));
                return;
            }
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

    /// A query that went out at `since` got no answer, although it was repeated. What went out before the last pause
    /// began says nothing new.
    pub fn unanswered(&mut self, since: Millis, now: Millis, random: u32) {
        if !self.adaptive || self.began.is_some_and(|began| since <= began) {
            return;
        }
        self.settle(self.window / 2);
        let pause = self.silences.next(&PAUSE, random);
        self.began = Some(now);
        self.pause = Some(now.saturating_add(pause));
    }

    /// The administrator answers, or is said to be there again: no pause.
    pub fn resume(&mut self) {
        self.silences.reset();
        self.began = None;
        self.pause = None;
        if self.window > 1 {
            self.gap = 0;
        }
    }

    /// When the pause ends, if there is one. None once [`QueryCap::try_acquire`] has seen the end.
    #[inline]
    pub const fn deadline(&self) -> Option<Millis> {
        self.pause
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
