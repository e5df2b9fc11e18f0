// SPDX-License-Identifier: GPL-2.0

//! The world around one queue's recovery machine.

use ipoib_host::control::recovery::{
    restored, Action, Event, Finding, Policy, QueuePair, QueueRecovery, State,
};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

use crate::{span, Clock};

/// What can happen to a queue.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// The queue is opened.
    Open,
    /// The queue is closed.
    Close,
    /// The queue pair goes to ERR, which is reported now and perhaps again later.
    Break,
    /// The queue pair goes to SQE.
    BreakSend,
    /// A post fails: the send ring takes nothing more. The worker has not looked yet.
    BreakRing,
    /// The worker looks at the queue.
    Look,
    /// The device reports a failure that does not show in the queue pair's state.
    Fatal,
    /// The watchdog fires.
    Stall,
    /// The last outstanding work requests come back.
    Return,
    /// The transition asked for succeeds.
    Succeed,
    /// The transition asked for fails.
    Fail,
    /// Time passes.
    Pass(Millis),
    /// A tick without reason.
    EarlyTick,
}

impl Op {
    /// The operation for a code and an argument.
    pub fn decode(code: u8, argument: u8) -> Self {
        match code % 15 {
            0 => Self::Open,
            1 if argument % 4 == 0 => Self::Close,
            1 | 2 => Self::Break,
            3 => Self::BreakSend,
            4 => Self::Stall,
            5 | 6 => Self::Return,
            7 => Self::Succeed,
            8 => Self::Fail,
            9 => Self::EarlyTick,
            10 => Self::BreakRing,
            11 => Self::Look,
            12 => Self::Fatal,
            _ => Self::Pass(span(argument)),
        }
    }
}

/// A recovery machine, the queue it cares for, and what both are expected to agree on.
#[derive(Debug)]
pub struct World {
    machine: QueueRecovery,
    policy: Policy,
    seq: Seq,
    clock: Clock,
    open: bool,
    /// The transmit queue runs.
    posting: bool,
    /// A drain was asked for and work requests have not all come back.
    outstanding: bool,
    /// A post has failed since the last reset.
    broken: bool,
    draining_since: Option<Millis>,
    resetting: bool,
    restoring: bool,
    /// Resets carried out or tried.
    pub resets: u32,
}

impl World {
    /// A closed queue at time zero.
    pub fn new(seed: u64) -> Self {
        let policy = Policy::DEFAULT;
        Self {
            machine: QueueRecovery::new(policy),
            policy,
            seq: Seq::new(seed),
            clock: Clock::default(),
            open: false,
            posting: false,
            outstanding: false,
            broken: false,
            draining_since: None,
            resetting: false,
            restoring: false,
            resets: 0,
        }
    }

    /// The machine.
    pub fn machine(&self) -> &QueueRecovery {
        &self.machine
    }

    /// Lets one thing happen and checks every rule.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Open if !self.open => {
                self.open = true;
                self.posting = true;
                self.step(Event::Up);
            }
            Op::Open => {}
            Op::Close => {
                self.step(Event::Down);
                self.open = false;
                self.posting = false;
                self.outstanding = false;
                self.broken = false;
                self.draining_since = None;
                self.resetting = false;
                self.restoring = false;
            }
            Op::Break => self.look(QueuePair::Error, false),
            Op::BreakSend => self.look(QueuePair::SendError, false),
            // Nothing is posted, so nothing fails, while the queue is stopped.
            Op::BreakRing => self.broken |= self.posting,
            Op::Look => self.look(QueuePair::Ready, false),
            Op::Fatal => self.look(QueuePair::Ready, true),
            Op::Stall => self.step(Event::Stalled),
            Op::Return => {
                if std::mem::take(&mut self.outstanding) {
                    self.step(Event::Drained);
                }
            }
            Op::Succeed => self.outcome(true),
            Op::Fail => self.outcome(false),
            Op::Pass(time) => self.pass(time),
            Op::EarlyTick => self.step(Event::Tick),
        }
        assert_eq!(self.machine.is_running(), self.posting);
    }

    /// The worker looks at the queue. The ring may have broken without a report.
    fn look(&mut self, queue_pair: QueuePair, fatal: bool) {
        let finding = Finding {
            queue_pair,
            broken: self.broken,
            fatal,
        };
        if let Some(event) = finding.event() {
            self.step(event);
        }
    }

    fn outcome(&mut self, good: bool) {
        if std::mem::take(&mut self.restoring) {
            self.step(restored(good, self.broken));
        } else if std::mem::take(&mut self.resetting) {
            if good {
                self.outstanding = false;
                self.broken = false;
            }
            self.step(if good {
                Event::ResetDone
            } else {
                Event::ResetFailed
            });
        }
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
        let actions = self.machine.step(event, self.clock.now, &mut self.seq);
        assert!(!actions.overflowed(), "{event:?} lost an action");
        for action in actions {
            self.carry_out(event, action);
        }
        if let Some(at) = self.machine.deadline() {
            assert!(self.clock.timer.is_some_and(|timer| timer <= at));
        }
    }

    fn carry_out(&mut self, event: Event, action: Action) {
        assert!(self.open, "{event:?} worked on a closed queue");
        match action {
            Action::Quiesce => {
                assert!(self.posting, "{event:?} stopped twice");
                self.posting = false;
            }
            Action::RestoreSend => {
                assert!(!self.posting);
                self.restoring = true;
            }
            Action::Drain => {
                assert!(!self.posting, "{event:?} drains a queue that fills");
                self.restoring = false;
                self.outstanding = true;
                self.draining_since = Some(self.clock.now);
            }
            Action::Reset { forced } => {
                assert!(!self.posting && !self.resetting);
                assert_eq!(forced, self.outstanding, "{event:?}");
                if forced {
                    let since = self.draining_since.expect("a drain before a reset");
                    let waited = self.clock.now.saturating_sub(since);
                    assert!(waited >= self.policy.drain_limit, "forced too early");
                }
                self.resetting = true;
                self.resets += 1;
            }
            Action::Resume => {
                assert!(!self.posting && !self.outstanding && !self.broken);
                self.posting = true;
            }
            Action::ArmTimer(at) => self.clock.timer = Some(at),
        }
    }

    /// From here on every transition succeeds, though work requests may never come back: an open queue must run
    /// again within the drain limit and the longest back-off.
    pub fn finish(&mut self) {
        let end = self
            .clock
            .now
            .saturating_add(self.policy.drain_limit)
            .saturating_add(self.policy.retry.cap());
        while self.clock.now < end {
            self.apply(Op::Look);
            self.apply(Op::Succeed);
            self.pass(Millis(50));
        }
        self.apply(Op::Succeed);
        assert_eq!(self.posting, self.open, "the queue did not come back");
        assert!(!self.broken, "the queue runs and takes nothing");
        let state = self.machine.state();
        assert!(matches!(state, State::Running | State::Down));
    }
}
