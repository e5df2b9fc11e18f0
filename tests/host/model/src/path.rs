// SPDX-License-Identifier: GPL-2.0

//! The world around one path machine.

use ipoib_host::control::path::{Action, Event, Path, Policy, Status};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

use crate::{span, Clock};

/// What can happen to a path.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// The data path sends a packet; on a miss it queues it and posts an event.
    Send,
    /// A sender that looked for the handle just before it was published queues its packet only now.
    SendLate,
    /// The worker takes the posted event.
    Deliver,
    /// Admission lets the query through.
    Admit,
    /// The query is answered.
    Resolve,
    /// The query fails.
    Fail {
        /// As in the event.
        retryable: bool,
    },
    /// An answer to a query given up earlier arrives.
    Stale {
        /// Which of them.
        which: u8,
        /// Success or failure.
        good: bool,
    },
    /// As in the event.
    Refresh(Millis),
    /// As in the event.
    Suspect,
    /// As in the event.
    Heard,
    /// As in the event.
    Invalidate,
    /// As in the event.
    Flush,
    /// Time passes.
    Pass(Millis),
    /// A tick without reason.
    EarlyTick,
}

impl Op {
    /// The operation for a code and an argument.
    pub fn decode(code: u8, argument: u8) -> Self {
        match code % 16 {
            0 if argument % 4 == 0 => Self::SendLate,
            0 | 1 => Self::Send,
            2 | 3 => Self::Deliver,
            4 => Self::Admit,
            5 => Self::Resolve,
            6 => Self::Fail {
                retryable: argument % 3 != 0,
            },
            7 => Self::Stale {
                which: argument >> 1,
                good: argument % 2 == 0,
            },
            8 => Self::Refresh(span(argument)),
            9 => Self::Suspect,
            10 => Self::Heard,
            11 => Self::Invalidate,
            12 => Self::Flush,
            13 => Self::EarlyTick,
            _ => Self::Pass(span(argument)),
        }
    }
}

/// A path machine, the driver around it, and what both are expected to agree on.
#[derive(Debug)]
pub struct World {
    path: Path,
    policy: Policy,
    seq: Seq,
    clock: Clock,
    published: bool,
    pending: u32,
    /// A miss was posted and not delivered yet.
    posted: bool,
    /// When the oldest packet that the machine knows of began to wait.
    waiting_since: Option<Millis>,
    /// The query that is out, and whether it was admitted.
    query: Option<(u64, bool)>,
    given_up: Vec<u64>,
    /// The event just delivered is a good answer to the query that is out.
    answering: bool,
    /// Queries handed to the resolver.
    pub asked: u32,
}

impl World {
    /// A new path at time zero.
    pub fn new(seed: u64) -> Self {
        let policy = Policy::DEFAULT;
        Self {
            path: Path::new(policy),
            policy,
            seq: Seq::new(seed),
            clock: Clock::default(),
            published: false,
            pending: 0,
            posted: false,
            waiting_since: None,
            query: None,
            given_up: Vec::new(),
            answering: false,
            asked: 0,
        }
    }

    /// Packets that wait.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// The machine.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present moment.
    pub fn now(&self) -> Millis {
        self.clock.now
    }

    /// Lets one thing happen and checks every rule.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Send if self.published => {}
            Op::Send | Op::SendLate => {
                self.pending += 1;
                self.posted = true;
            }
            Op::Deliver => self.deliver(),
            Op::Admit => self.admit(),
            Op::Resolve => {
                if let Some((id, true)) = self.query {
                    self.query = None;
                    self.answering = true;
                    self.step(Event::Resolved { id });
                    self.answering = false;
                }
            }
            Op::Fail { retryable } => {
                // A query may also fail before it was started, for want of memory.
                if let Some((id, _)) = self.query.take() {
                    self.step(Event::Failed { id, retryable });
                }
            }
            Op::Stale { which, good } => self.stale(which, good),
            Op::Refresh(spread) => self.step(Event::Refresh { spread }),
            Op::Suspect => self.step(Event::Suspect),
            Op::Heard => self.step(Event::Heard),
            Op::Invalidate => {
                self.step(Event::Invalidate);
                assert!(!self.published, "an invalid handle stays in use");
            }
            Op::Flush => {
                self.step(Event::Flush);
                assert!(self.path.is_idle(), "something survived a flush");
            }
            Op::Pass(time) => self.pass(time),
            Op::EarlyTick => self.step(Event::Tick),
        }
    }

    fn deliver(&mut self) {
        if std::mem::take(&mut self.posted) {
            if self.pending > 0 && !self.path.is_waiting() {
                self.waiting_since = Some(self.clock.now);
            }
            self.step(Event::Wanted);
        }
    }

    fn admit(&mut self) {
        if let Some((id, admitted @ false)) = self.query.as_mut() {
            *admitted = true;
            self.asked += 1;
            let id = *id;
            self.step(Event::Started { id });
        }
    }

    /// An answer nobody waits for must change nothing that anybody sees.
    fn stale(&mut self, which: u8, good: bool) {
        let len = self.given_up.len().max(1);
        let Some(&id) = self.given_up.get(usize::from(which) % len) else {
            return;
        };
        let before = (self.path.status(), self.published, self.pending, self.query);
        self.step(if good {
            Event::Resolved { id }
        } else {
            Event::Failed {
                id,
                retryable: false,
            }
        });
        let after = (self.path.status(), self.published, self.pending, self.query);
        assert_eq!(before, after, "a stale answer had an effect");
    }

    /// Time passes; the timer fires on time.
    pub fn pass(&mut self, time: Millis) {
        let target = self.clock.now.saturating_add(time);
        while self.clock.forward(target) {
            self.step(Event::Tick);
            assert!(
                self.clock.timer.is_none_or(|at| at > self.clock.now),
                "the timer fires without end"
            );
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.path.step(event, self.clock.now, &mut self.seq);
        assert!(!actions.overflowed(), "{event:?} lost an action");
        for action in actions {
            self.carry_out(event, action);
        }
        self.check();
    }

    fn carry_out(&mut self, event: Event, action: Action) {
        match action {
            Action::Unpublish => {
                assert!(self.published, "{event:?} withdrew nothing");
                self.published = false;
            }
            Action::CancelQuery { id } => {
                let (out, _) = self.query.take().expect("a query to cancel");
                assert_eq!(out, id, "{event:?} cancelled another query");
                self.given_up.push(id);
            }
            Action::StartQuery { id } => {
                assert!(self.query.is_none(), "{event:?}: two queries at once");
                self.query = Some((id, false));
            }
            Action::Publish => {
                assert!(self.answering, "{event:?} published without an answer");
                self.published = true;
            }
            Action::SendPending => {
                assert!(self.published, "{event:?} sent without a handle");
                self.settle();
            }
            Action::DropPending(_) => self.settle(),
            Action::ArmTimer(at) => self.clock.timer = Some(at),
        }
    }

    fn settle(&mut self) {
        self.pending = 0;
        self.waiting_since = None;
    }

    fn check(&self) {
        let (path, now) = (&self.path, self.clock.now);
        assert_eq!(path.is_published(), self.published);
        assert_eq!(path.query_id(), self.query.map(|(id, _)| id));
        if self.pending > 0 && !self.posted {
            assert!(path.is_waiting(), "packets wait for nobody");
        }
        if path.is_waiting() && self.query.is_none() {
            let status = path.status();
            assert!(matches!(status, Status::BackedOff(_)), "waits for nothing");
        }
        if let (Some(since), true) = (self.waiting_since, self.pending > 0) {
            let end = since.saturating_add(self.policy.pending_life);
            let timer = self.clock.timer.expect("a timer for packets that wait");
            assert!(timer <= end, "packets wait longer than they live");
        }
        if let Some(at) = path.deadline() {
            let timer = self.clock.timer.expect("a timer for the deadline");
            assert!(timer <= at, "the timer comes after the deadline");
        }
        if let Status::BackedOff(at) = path.status() {
            let longest = now.saturating_add(self.policy.retry.cap());
            assert!(at <= longest, "backed off beyond the cap");
        }
    }

    /// From here on nothing answers any more: what waits must be dropped within its lifetime.
    pub fn finish_silent(&mut self) {
        self.deliver();
        self.pass(self.policy.pending_life);
        assert_eq!(self.pending, 0, "stranded packets");
    }

    /// From here on every query is admitted and answered: a packet sent now must be sent within the longest
    /// back-off.
    pub fn finish_answered(&mut self) {
        let end = self.clock.now.saturating_add(Millis::from_secs(40));
        while self.clock.now < end && !self.published {
            self.apply(Op::Send);
            self.apply(Op::Deliver);
            self.apply(Op::Admit);
            self.apply(Op::Resolve);
            self.pass(Millis(100));
        }
        assert!(self.published, "no path although every query is answered");
        self.deliver();
        assert_eq!(self.pending, 0, "packets left behind a good path");
    }
}
