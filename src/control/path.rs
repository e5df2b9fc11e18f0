// SPDX-License-Identifier: GPL-2.0

//! The path to one destination GID: query, use, refresh, failure.
//!
//! # Rules
//!
//! - At most one query is outstanding, however many packets wait (SA-4, TRAP-16).
//! - A handle once published stays in use while a newer one is asked for, and also when that query gets no
//!   answer; it goes when the answer is that there is no path, by `Invalidate`, or by `Flush`.
//! - After a failure the next query waits for an exponential back-off with jitter (negative cache). A packet
//!   may wait only if the next try comes within its lifetime ([`Policy::pending_life`]); otherwise it is dropped
//!   at once as `Unreachable`. A definite failure (there is no such path) drops what waited.
//! - Whatever happens, packets that wait are sent or dropped within the lifetime, counted from the first one.
//! - A frame received from the destination (`Heard`) ends the negative cache: it is there after all. Frames can be
//!   forged, so that this makes for one query in [`Policy::heard_gap`] at most.
//! - A query that waits for admission keeps its place in the line while packets come. When there was none for a
//!   lifetime it is given up, so that the line holds no more than what was asked for within two lifetimes.

use super::actions;
use super::backoff::{self, Backoff};
use super::reason::TxDrop;
use super::seq::Seq;
use super::time::Millis;

/// The times of the path machine.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Delay between failed queries.
    pub retry: backoff::Config,
    /// Delay before a query that could not be handed over is tried again.
    pub defer: backoff::Config,
    /// How long packets may wait for a path.
    pub pending_life: Millis,
    /// How long a started query may go without an answer before it is given up. The SA layer answers within
    /// about a second by itself (SA-2, SA-11); this only guards against an answer that never comes.
    pub query_limit: Millis,
    /// The least age of an answer that a mere suspicion may have checked again.
    pub suspect_age: Millis,
    /// The least time between two frames of the destination that end the negative cache.
    pub heard_gap: Millis,
}

impl Policy {
    /// The driver's values. Packets are refused only in the first three seconds of the longest back-off: those after
    /// them wait, and go out with the next try.
    pub const DEFAULT: Self = Self {
        retry: backoff::Config::new(1000, 8000),
        defer: backoff::Config::new(10, 1000),
        pending_life: Millis::from_secs(5),
        query_limit: Millis::from_secs(5),
        suspect_age: Millis::from_secs(1),
        heard_gap: Millis::from_secs(1),
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The data path put a packet on the pending queue, or wants a handle.
    Wanted,
    /// The query `id` was handed to the resolver (it may have waited for admission before).
    Started {
        /// The id of [`Action::StartQuery`].
        id: u64,
    },
    /// The query `id` was answered, and a handle could be made from the answer.
    Resolved {
        /// The id of [`Action::StartQuery`].
        id: u64,
    },
    /// The query `id` could not be handed over for a reason that passes by itself, such as a subnet
    /// administrator whose place is just being looked up.
    Deferred {
        /// The id of [`Action::StartQuery`].
        id: u64,
    },
    /// The query `id` failed, could not be started, or no handle could be made from its answer.
    Failed {
        /// The id of [`Action::StartQuery`].
        id: u64,
        /// `false` when the answer is definite: no such path.
        retryable: bool,
    },
    /// Something in the fabric changed: ask anew within `spread`, keep what there is meanwhile.
    Refresh {
        /// The span over which many paths spread their queries.
        spread: Millis,
    },
    /// The stack doubts this peer (it resolves the address again); ask anew unless that was done just now.
    Suspect,
    /// A frame came from this destination.
    Heard,
    /// The handle must not be used any longer (our GID or P_Key changed).
    Invalidate,
    /// Forget everything: the interface or port goes down, or the destination is removed.
    Flush,
    /// The deadline armed has come.
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Withdraw the handle from the data path.
    Unpublish,
    /// Give up the query, whether it was handed over or still waits for admission. An answer that comes
    /// nevertheless is ignored by its id.
    CancelQuery {
        /// Which query.
        id: u64,
    },
    /// Ask the resolver as soon as admission lets it.
    StartQuery {
        /// To be given back with the answer.
        id: u64,
    },
    /// Give the handle made from the answer just reported to the data path, in place of an older one.
    Publish,
    /// Send what waits; the data path has a handle.
    SendPending,
    /// Drop what waits and count it.
    DropPending(TxDrop),
    /// Send a `Tick` at this moment; replaces an earlier `ArmTimer`.
    ArmTimer(Millis),
}

/// The actions of one step.
pub type Actions = actions::Actions<Action, 6>;

/// For people who look at the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No handle and no interest.
    Idle,
    /// No handle; a query waits for admission.
    Queued,
    /// No handle; a query is out.
    Asking,
    /// No handle; failed, and not tried again before the moment given.
    BackedOff(Millis),
    /// A handle is in use.
    Ready,
    /// A handle is in use and a newer one is asked for.
    Refreshing,
}

#[derive(Clone, Copy, Debug)]
struct Query {
    id: u64,
    /// When to give up; only once it was handed over.
    give_up: Option<Millis>,
    /// The fabric changed after it was handed over: its answer may be old.
    outdated: bool,
    /// When to give up waiting for admission, because nobody waits for the answer.
    forsaken: Option<Millis>,
}

/// The machine of one destination.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    policy: Policy,
    handle: bool,
    query: Option<Query>,
    /// Without a handle: no query before this. With one: a query then.
    next_try: Option<Millis>,
    /// Packets wait, at most until this.
    waiting: Option<Millis>,
    answered: Millis,
    /// When a frame last ended the negative cache.
    heard: Option<Millis>,
    backoff: Backoff,
    defers: Backoff,
    armed: Option<Millis>,
}

impl Path {
    /// A destination nothing is known about.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            handle: false,
            query: None,
            next_try: None,
            waiting: None,
            answered: Millis::ZERO,
            heard: None,
            backoff: Backoff::new(),
            defers: Backoff::new(),
            armed: None,
        }
    }

    /// Takes one event.
    pub fn step(&mut self, event: Event, now: Millis, seq: &mut Seq) -> Actions {
        let mut out = Actions::new();
        match event {
            Event::Wanted => self.wanted(now, seq, &mut out),
            Event::Started { id } => self.started(id, now),
            Event::Resolved { id } => self.resolved(id, now, seq, &mut out),
            Event::Deferred { id } => {
                if self.take_query(id).is_some() {
                    let delay = self.defers.next(&self.policy.defer, seq.random());
                    self.retry_at(now.saturating_add(delay), &mut out);
                }
            }
            Event::Failed { id, retryable } => {
                if self.take_query(id).is_some() {
                    self.failed(retryable, now, seq, &mut out);
                }
            }
            Event::Refresh { spread } => self.refresh(spread, now, seq, &mut out),
            Event::Suspect => {
                let age = now.saturating_sub(self.answered);
                if self.handle && self.next_try.is_none() && age >= self.policy.suspect_age {
                    self.ask(seq, &mut out);
                }
            }
            Event::Heard => self.heard(now, seq, &mut out),
            Event::Invalidate => {
                self.drop_handle(&mut out);
                self.cancel(&mut out);
                self.next_try = None;
                self.backoff.reset();
                if self.waiting.is_some() {
                    self.ask(seq, &mut out);
                }
            }
            Event::Flush => {
                self.drop_handle(&mut out);
                self.cancel(&mut out);
                self.next_try = None;
                self.backoff.reset();
                self.drop_pending(TxDrop::Flushed, &mut out);
            }
            Event::Tick => self.tick(now, seq, &mut out),
        }
        self.arm(&mut out);
        out
    }

    fn wanted(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        if self.handle {
            // Published between the miss and this event.
            self.waiting = None;
            out.push(Action::SendPending);
            return;
        }
        let until = now.saturating_add(self.policy.pending_life);
        let until = *self.waiting.get_or_insert(until);
        if let Some(query) = self.query.as_mut() {
            query.forsaken = None;
            return;
        }
        match self.next_try {
            Some(at) if !at.reached(now) => {
                if at > until {
                    self.drop_pending(TxDrop::Unreachable, out);
                }
            }
            _ => self.ask(seq, out),
        }
    }

    fn heard(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        let gap = self.policy.heard_gap;
        let soon = self
            .heard
            .is_some_and(|at| !at.saturating_add(gap).reached(now));
        if soon || !self.is_silent() {
            return;
        }
        self.heard = Some(now);
        // A query that is out may have begun before the destination was there; if it fails, the next comes soon.
        self.backoff.reset();
        if self.query.is_none() {
            self.next_try = None;
            if self.waiting.is_some() {
                self.ask(seq, out);
            }
        }
    }

    fn started(&mut self, id: u64, now: Millis) {
        let give_up = now.saturating_add(self.policy.query_limit);
        if let Some(query) = self.query.as_mut().filter(|query| query.id == id) {
            query.give_up = Some(give_up);
            query.forsaken = None;
            self.defers.reset();
        }
    }

    fn resolved(&mut self, id: u64, now: Millis, seq: &mut Seq, out: &mut Actions) {
        let Some(query) = self.take_query(id) else {
            return;
        };
        self.handle = true;
        self.waiting = None;
        self.next_try = None;
        self.answered = now;
        self.backoff.reset();
        out.push(Action::Publish);
        out.push(Action::SendPending);
        if query.outdated {
            self.ask(seq, out);
        }
    }

    fn failed(&mut self, retryable: bool, now: Millis, seq: &mut Seq, out: &mut Actions) {
        let delay = self.backoff.next(&self.policy.retry, seq.random());
        if !retryable {
            self.drop_handle(out);
            self.drop_pending(TxDrop::NoPath, out);
        }
        self.retry_at(now.saturating_add(delay), out);
    }

    fn retry_at(&mut self, at: Millis, out: &mut Actions) {
        self.next_try = Some(at);
        if self.waiting.is_some_and(|until| at > until) {
            self.drop_pending(TxDrop::NoPath, out);
        }
    }

    fn refresh(&mut self, spread: Millis, now: Millis, seq: &mut Seq, out: &mut Actions) {
        if let Some(query) = self.query.as_mut() {
            // One that still waits for admission will ask the changed fabric anyway.
            query.outdated = query.give_up.is_some();
            return;
        }
        self.backoff.reset();
        self.next_try = None;
        if !self.handle {
            if self.waiting.is_some() {
                self.ask(seq, out);
            }
            return;
        }
        let width = spread.0.min(u64::from(u32::MAX));
        let delay = width.saturating_mul(u64::from(seq.random())) >> 32;
        if delay == 0 {
            self.ask(seq, out);
        } else {
            self.next_try = Some(now.saturating_add(Millis(delay)));
        }
    }

    fn tick(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        self.armed = None;
        if self.waiting.is_some_and(|until| until.reached(now)) {
            self.drop_pending(TxDrop::Expired, out);
            let queued = self.query.as_mut().filter(|query| query.give_up.is_none());
            if let Some(query) = queued {
                query.forsaken = Some(now.saturating_add(self.policy.pending_life));
            }
        }
        if let Some(query) = self.query {
            if query.forsaken.is_some_and(|at| at.reached(now)) {
                self.cancel(out);
            }
            if query.give_up.is_some_and(|at| at.reached(now)) {
                self.cancel(out);
                self.failed(true, now, seq, out);
            }
        }
        if self.next_try.is_some_and(|at| at.reached(now)) {
            self.next_try = None;
            if self.handle || self.waiting.is_some() {
                self.ask(seq, out);
            }
        }
    }

    fn ask(&mut self, seq: &mut Seq, out: &mut Actions) {
        if self.query.is_some() {
            return;
        }
        self.next_try = None;
        let id = seq.id();
        self.query = Some(Query {
            id,
            give_up: None,
            outdated: false,
            forsaken: None,
        });
        out.push(Action::StartQuery { id });
    }

    fn take_query(&mut self, id: u64) -> Option<Query> {
        let query = self.query.filter(|query| query.id == id)?;
        self.query = None;
        Some(query)
    }

    fn cancel(&mut self, out: &mut Actions) {
        if let Some(query) = self.query.take() {
            out.push(Action::CancelQuery { id: query.id });
        }
    }

    fn drop_handle(&mut self, out: &mut Actions) {
        if self.handle {
            self.handle = false;
            out.push(Action::Unpublish);
        }
    }

    fn drop_pending(&mut self, reason: TxDrop, out: &mut Actions) {
        if self.waiting.take().is_some() {
            out.push(Action::DropPending(reason));
        }
    }

    fn arm(&mut self, out: &mut Actions) {
        let deadline = self.deadline();
        if deadline != self.armed {
            self.armed = deadline;
            if let Some(at) = deadline {
                out.push(Action::ArmTimer(at));
            }
        }
    }

    /// When the machine next wants a `Tick`.
    pub fn deadline(&self) -> Option<Millis> {
        let give_up = self
            .query
            .and_then(|query| query.give_up.or(query.forsaken));
        let next_try = self.next_try.filter(|_| self.query.is_none());
        Millis::earliest(self.waiting, Millis::earliest(give_up, next_try))
    }

    /// Whether packets wait or a query is out; such a machine must not be forgotten without a `Flush`.
    pub const fn is_busy(&self) -> bool {
        self.waiting.is_some() || self.query.is_some()
    }

    /// Whether packets wait.
    pub const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether nothing would be lost by forgetting the machine.
    pub const fn is_idle(&self) -> bool {
        !self.handle && !self.is_busy() && self.next_try.is_none()
    }

    /// Whether the data path has a handle.
    pub const fn is_published(&self) -> bool {
        self.handle
    }

    /// Whether the destination has not answered so far, so that a frame from it would be news (`Heard`).
    pub const fn is_silent(&self) -> bool {
        !self.handle && (self.next_try.is_some() || self.backoff.attempts() > 0)
    }

    /// The id of the query that is out or waits for admission.
    pub fn query_id(&self) -> Option<u64> {
        self.query.map(|query| query.id)
    }

    /// Failures since the last answer.
    pub const fn failures(&self) -> u32 {
        self.backoff.attempts()
    }

    /// What the machine is doing, for debugfs and traces.
    pub fn status(&self) -> Status {
        match (self.handle, self.query, self.next_try) {
            (true, Some(_), _) => Status::Refreshing,
            (true, None, _) => Status::Ready,
            (false, Some(query), _) if query.give_up.is_none() => Status::Queued,
            (false, Some(_), _) => Status::Asking,
            (false, None, Some(at)) => Status::BackedOff(at),
            (false, None, None) => Status::Idle,
        }
    }
}
