// SPDX-License-Identifier: GPL-2.0

//! Virtual time: the queue of events, randomness from a seed, the network between nodes and administrator, and the
//! trace.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;

use ipoib_host::control::join::Params;
use ipoib_host::control::time::Millis;

/// A moment or a span in microseconds.
pub type Micros = u64;

/// One second.
pub const SECOND: Micros = 1_000_000;

/// The millisecond that a moment lies in.
pub fn millis(at: Micros) -> Millis {
    Millis(at / 1000)
}

/// Pseudo-random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw().checked_rem(n).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `true` in `permille` of 1000 cases.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// What a node asks the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The path to a node.
    Path {
        /// Its number.
        dst: u32,
    },
    /// Membership in a group.
    Join {
        /// The group; 0 is the broadcast group.
        group: u8,
        /// JoinState bits.
        state: u8,
    },
    /// The end of a membership.
    Leave {
        /// The group.
        group: u8,
        /// JoinState bits.
        state: u8,
    },
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Who asks.
    pub node: u32,
    /// Transaction id; repetitions keep it.
    pub tid: u64,
    /// What is asked.
    pub ask: Ask,
}

/// What the administrator answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A path.
    Path {
        /// The destination's LID.
        lid: u32,
    },
    /// A membership.
    Joined(Params),
    /// A membership is over.
    Left,
    /// No such path, or no membership for this node.
    Refused,
    /// Try again later. The core's SA layer hands it on as the same error as `Refused`.
    Busy,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ev {
    /// A request reaches the administrator.
    Request(Mad),
    /// The administrator has worked one off; the number tells restarts apart.
    Served(u32),
    /// An answer reaches a node.
    Answer(u32, u64, Reply),
    /// A request of a node may have to be repeated.
    MadTimer(u32, u64, u32),
    /// A node's worker runs.
    Work(u32),
    /// A node has read its port anew.
    Read(u32),
    /// A node's timer fires, if it is still set to this.
    Timer(u32, Micros),
    /// Something happens to a node's port.
    Notice(u32, Notice),
    /// The script's step of this number.
    Step(usize),
    /// The end of what the step of this number began.
    End(usize),
    /// A packet of the flow that a step began, and how many follow.
    Flow(usize, u32),
}

/// What a node's port reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// CLIENT_REREGISTER.
    Reregister,
    /// PORT_ACTIVE or PORT_ERR.
    Active(bool),
    /// PKEY_CHANGE: the interface's P_Key is in the table or not.
    PKey(bool),
    /// LID_CHANGE.
    Lid(u32),
    /// SM_CHANGE.
    Manager,
    /// GID_CHANGE.
    Gid,
}

struct Entry(Micros, u64, Ev);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// How messages travel between nodes and administrator. What is delayed by different times is reordered.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Lost messages of 1000.
    pub loss: u32,
    /// Messages of 1000 that arrive twice.
    pub twice: u32,
    /// The least time on the way.
    pub delay: Micros,
    /// What it takes longer at most.
    pub jitter: Micros,
}

/// Everything that is shared: time, events, randomness, network, trace.
pub struct Io {
    /// The present moment.
    pub now: Micros,
    /// The source of all randomness.
    pub rng: Rng,
    /// How messages travel.
    pub net: Net,
    /// What was found wrong first.
    pub failure: Option<String>,
    heap: BinaryHeap<Reverse<Entry>>,
    seq: u64,
    hash: u64,
    text: Option<Vec<String>>,
}

impl Io {
    /// Time zero, nothing to happen. `text` keeps the trace in words.
    pub fn new(seed: u64, net: Net, text: bool) -> Self {
        Self {
            now: 0,
            rng: Rng::new(seed),
            net,
            failure: None,
            heap: BinaryHeap::new(),
            seq: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            text: text.then(Vec::new),
        }
    }

    /// Lets `ev` happen at `at`, after what was put there before.
    pub fn at(&mut self, at: Micros, ev: Ev) {
        self.seq += 1;
        self.heap
            .push(Reverse(Entry(at.max(self.now), self.seq, ev)));
    }

    /// Lets `ev` happen after `span`.
    pub fn after(&mut self, span: Micros, ev: Ev) {
        self.at(self.now.saturating_add(span), ev);
    }

    /// Sends a message: it may be lost, delayed or doubled.
    pub fn send(&mut self, ev: Ev) {
        let copies = 1 + u32::from(self.rng.chance(self.net.twice));
        for _ in 0..copies {
            if self.rng.chance(self.net.loss) {
                self.note(|| format!("lost {ev:?}"));
                continue;
            }
            let span = self.net.delay + self.rng.below(self.net.jitter + 1);
            self.after(span, ev);
        }
    }

    /// The next event up to `end`, with the time moved there; `None` when there is none.
    pub fn next(&mut self, end: Micros) -> Option<Ev> {
        if self.heap.peek().is_none_or(|Reverse(entry)| entry.0 > end) {
            self.now = self.now.max(end);
            return None;
        }
        let Reverse(Entry(at, _, ev)) = self.heap.pop()?;
        self.now = at;
        Some(ev)
    }

    /// Adds to the trace.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            text.push(format!("{:>12.3} ms  {}", self.now as f64 / 1000.0, what()));
        }
    }

    /// Adds numbers to the trace's hash.
    pub fn mix(&mut self, values: &[u64]) {
        for value in values.iter().chain([&self.now]) {
            self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
            self.hash ^= self.hash >> 29;
        }
    }

    /// The trace's hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The trace in words, if it was kept.
    pub fn text(&self) -> &[String] {
        self.text.as_deref().unwrap_or(&[])
    }

    /// Notes a broken rule; the first one counts.
    pub fn fail(&mut self, what: impl fmt::Display) {
        if self.failure.is_none() {
            let now = self.now as f64 / 1000.0;
            self.failure = Some(format!("at {now:.3} ms: {what}"));
            self.note(|| format!("RULE BROKEN: {what}"));
        }
    }

    /// Notes a broken rule unless `kept`.
    pub fn rule(&mut self, kept: bool, what: impl FnOnce() -> String) {
        if !kept {
            self.fail(what());
        }
    }
}
