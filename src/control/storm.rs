// SPDX-License-Identifier: GPL-2.0

//! Taking turns, when something makes every node of the fabric ask the subnet administrator at once.
//!
//! After a subnet manager restarts, all nodes are told to register again within moments of each other. A node
//! knows neither how many there are nor what the administrator can do, but two things tell it enough:
//!
//! - Subnet managers hand out local identifiers densely from 1. A node's LID is therefore its number in a queue
//!   that nobody has to manage, and that is as long as the fabric is large.
//! - The time in which an idle administrator answers is an upper bound of the time one request costs it.
//!
//! So the node with LID *n* waits *n* times the answer time. Small fabrics wait for milliseconds; in large ones
//! the requests come one after another instead of all together, no faster than they can be answered.

use super::time::Millis;

/// The shortest slot of a node, in microseconds: 10,000 nodes take 10 s.
const SLOT_MIN: u32 = 1000;

/// The slot while nothing was answered yet: it counts after joins that nobody answered, so that the administrator is
/// not an idle one.
const SLOT_UNKNOWN: u32 = 2000;

/// The longest slot: an administrator slower than that is in trouble, not merely slow.
const SLOT_MAX: u32 = 20_000;

/// The longest turn, in milliseconds. Fabrics whose LIDs are not dense, and large ones with a slow administrator,
/// wrap round there.
const TURN_MAX: u64 = 240_000;

/// When this node's turn is, and whether it waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The place in the queue.
    place: u32,
    /// The answer time of an administrator without load, smoothed, in microseconds.
    answer: u32,
    due: Option<Millis>,
}

impl Pace {
    /// A node without a LID, which takes its turn at once.
    pub const fn new() -> Self {
        Self {
            place: 0,
            answer: 0,
            due: None,
        }
    }

    /// The port's local identifier (host order, 0 for none) and its mask count, 0 to 7.
    pub fn set_lid(&mut self, lid: u32, lmc: u8) {
        self.place = lid >> lmc.min(7);
    }

    /// A request was answered after `latency`, its first attempt. Answers that took long because many asked say little
    /// of what a request costs, so that the estimate falls fast and rises slowly.
    pub fn answered(&mut self, latency: Millis) {
        let sample = u32::try_from(latency.0.saturating_mul(1000))
            .unwrap_or(u32::MAX)
            .clamp(1, SLOT_MAX.saturating_mul(2));
        self.answer = if self.answer == 0 {
            sample
        } else if sample < self.answer {
            self.answer
                .saturating_sub(self.answer.saturating_sub(sample) / 4)
        } else {
            self.answer
                .saturating_add(sample.saturating_sub(self.answer) / 16)
        };
    }

    /// The time that each node has for itself, in microseconds: the answer time and a quarter, so that the
    /// administrator keeps up.
    pub fn slot(&self) -> u32 {
        if self.answer == 0 {
            return SLOT_UNKNOWN;
        }
        self.answer
            .saturating_add(self.answer / 4)
            .clamp(SLOT_MIN, SLOT_MAX)
    }

    /// How long this node leaves the others to ask first.
    pub fn turn(&self) -> Millis {
        let micros = u64::from(self.place).saturating_mul(u64::from(self.slot()));
        Millis((micros / 1000).checked_rem(TURN_MAX).unwrap_or(0))
    }

    /// Everybody was called to ask. Called again before the turn has come, nothing changes.
    pub fn call(&mut self, now: Millis) {
        if self.due.is_none() {
            self.due = Some(now.saturating_add(self.turn()));
        }
    }

    /// Whether the turn has come; `true` once for each time.
    #[must_use]
    pub fn take_turn(&mut self, now: Millis) -> bool {
        let come = self.due.is_some_and(|at| at.reached(now));
        if come {
            self.due = None;
        }
        come
    }

    /// When the turn comes, if one is waited for.
    pub const fn deadline(&self) -> Option<Millis> {
        self.due
    }

    /// Ends the wait, as when the port goes down and everything is asked anew later anyway.
    pub fn cancel(&mut self) {
        self.due = None;
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}
