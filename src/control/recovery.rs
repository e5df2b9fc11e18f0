// SPDX-License-Identifier: GPL-2.0

//! Recovery of one queue whose queue pair went into an error state, without taking the interface down.
//!
//! SQE (only sends stopped) is left by one transition to RTS. ERR takes the long way: stop transmit, let every
//! outstanding work request come back, RESET, then up to RTS again and receives re-posted. Draining before the
//! RESET matters: a RESET may discard work requests without completions.

use super::actions;
use super::backoff::{self, Backoff};
use super::seq::Seq;
use super::time::Millis;

/// The times of the recovery.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long outstanding work requests may take to come back in ERR.
    pub drain_limit: Millis,
    /// A queue that fails again within this span after a recovery is not reset again at once.
    pub stable_after: Millis,
    /// Delay before the next attempt after a failed or short-lived one.
    pub retry: backoff::Config,
}

impl Policy {
    /// The driver's values.
    pub const DEFAULT: Self = Self {
        drain_limit: Millis::from_secs(5),
        stable_after: Millis::from_secs(1),
        retry: backoff::Config::new(20, 5000),
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
    /// The queue was opened: queue pair in RTS, receives posted.
    Up,
    /// The queue is being closed; whoever closes it drains it.
    Down,
    /// The queue pair is in SQE.
    SendError,
    /// The queue pair is in ERR.
    Error,
    /// The transmit watchdog found the queue stuck for no visible reason.
    Stalled,
    /// [`Action::RestoreSend`] succeeded.
    Restored,
    /// [`Action::RestoreSend`] failed.
    RestoreFailed,
    /// All outstanding work requests came back.
    Drained,
    /// [`Action::Reset`] succeeded.
    ResetDone,
    /// [`Action::Reset`] failed; the queue pair may be in any state.
    ResetFailed,
    /// The deadline armed has come.
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop the transmit queue; nothing may be posted from here to `Resume`.
    Quiesce,
    /// Move the queue pair from SQE to RTS.
    RestoreSend,
    /// Move the queue pair to ERR and report `Drained` once every outstanding work request came back.
    Drain,
    /// Move the queue pair to RESET and up to RTS, and post the receives. With `forced`, work requests are
    /// still outstanding after the drain limit: between RESET and INIT free their slots, since no completion
    /// will do it.
    Reset {
        /// Whether slots have to be freed without completions.
        forced: bool,
    },
    /// Start the transmit queue.
    Resume,
    /// Send a `Tick` at this moment; replaces an earlier `ArmTimer`.
    ArmTimer(Millis),
}

/// What state the queue pair is in, as far as the recovery cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePair {
    /// RTS.
    Ready,
    /// SQE.
    SendError,
    /// ERR.
    Error,
    /// Unreadable, or in a state in which it has no business.
    Astray,
}

/// What a look at a queue that complained has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The queue pair's state.
    pub queue_pair: QueuePair,
    /// A post has failed, so that the send ring takes nothing until it is reset.
    pub broken: bool,
    /// The device has reported a failure that does not show in the state.
    pub fatal: bool,
}

impl Finding {
    /// What to feed the machine; nothing if all is well.
    pub const fn event(self) -> Option<Event> {
        if self.fatal {
            return Some(Event::Error);
        }
        match self.queue_pair {
            QueuePair::Error => Some(Event::Error),
            QueuePair::Astray => Some(Event::Stalled),
            // Leaving SQE does not mend the ring.
            _ if self.broken => Some(Event::Stalled),
            QueuePair::SendError => Some(Event::SendError),
            QueuePair::Ready => None,
        }
    }
}

/// What [`Action::RestoreSend`] came to: `done` says whether the transition succeeded, `broken` whether a post failed
/// before, which the transition does not mend.
pub const fn restored(done: bool, broken: bool) -> Event {
    if done && !broken {
        Event::Restored
    } else {
        Event::RestoreFailed
    }
}

/// When receive slots that stayed empty for want of memory are tried again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refill {
    at: Option<Millis>,
}

impl Refill {
    /// How long to wait for memory.
    pub const INTERVAL: Millis = Millis(100);

    /// A queue is short of receives. A second report does not put the try off.
    pub fn starving(&mut self, now: Millis) {
        if self.at.is_none() {
            self.at = Some(now.saturating_add(Self::INTERVAL));
        }
    }

    /// Whether it is time to try; only once for each time.
    pub fn due(&mut self, now: Millis) -> bool {
        let due = self.at.is_some_and(|at| at.reached(now));
        if due {
            self.at = None;
        }
        due
    }

    /// When it is time to try.
    pub const fn deadline(&self) -> Option<Millis> {
        self.at
    }
}

/// The actions of one step.
pub type Actions = actions::Actions<Action, 4>;

/// Where the recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Closed.
    Down,
    /// In order.
    Running,
    /// On the way from SQE to RTS.
    Restoring,
    /// Waiting for outstanding work requests, at most until the moment given.
    Draining(Millis),
    /// Drained; waiting for the moment given before the reset.
    BackedOff {
        /// When to reset.
        until: Millis,
        /// Whether the reset will have to free slots by force.
        forced: bool,
    },
    /// On the way from RESET to RTS.
    Resetting {
        /// Whether slots are being freed by force.
        forced: bool,
    },
}

/// The recovery of one queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueRecovery {
    policy: Policy,
    state: State,
    backoff: Backoff,
    running_since: Millis,
    recoveries: u64,
    armed: Option<Millis>,
}

impl QueueRecovery {
    /// A closed queue.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            state: State::Down,
            backoff: Backoff::new(),
            running_since: Millis::ZERO,
            recoveries: 0,
            armed: None,
        }
    }

    /// Takes one event. Events that do not fit the state change nothing: errors of a queue pair are reported
    /// more than once, and late.
    pub fn step(&mut self, event: Event, now: Millis, seq: &mut Seq) -> Actions {
        let mut out = Actions::new();
        if event == Event::Tick {
            self.armed = None;
        }
        match (self.state, event) {
            (_, Event::Down) => {
                self.state = State::Down;
                self.backoff.reset();
            }
            (State::Down, Event::Up) => {
                self.state = State::Running;
                self.running_since = now;
            }
            (State::Running, Event::SendError) => {
                self.state = State::Restoring;
                out.push(Action::Quiesce);
                out.push(Action::RestoreSend);
            }
            (State::Running, Event::Error | Event::Stalled) => {
                if now.saturating_sub(self.running_since) >= self.policy.stable_after {
                    self.backoff.reset();
                }
                out.push(Action::Quiesce);
                self.drain(now, &mut out);
            }
            (State::Restoring, Event::Restored) => self.resume(now, &mut out),
            (State::Restoring, Event::RestoreFailed | Event::Error) => self.drain(now, &mut out),
            (State::Draining(_), Event::Drained) => self.drained(false, now, seq, &mut out),
            (State::Draining(limit), Event::Tick) if limit.reached(now) => {
                self.drained(true, now, seq, &mut out);
            }
            (State::BackedOff { until, forced }, Event::Tick) if until.reached(now) => {
                self.reset(forced, &mut out);
            }
            (State::BackedOff { until, .. }, Event::Drained) => {
                // The last completions came after the limit but before the reset.
                self.state = State::BackedOff {
                    until,
                    forced: false,
                };
            }
            (State::Resetting { .. }, Event::Drained) => {
                self.state = State::Resetting { forced: false };
            }
            (State::Resetting { .. }, Event::ResetDone) => self.resume(now, &mut out),
            (State::Resetting { forced }, Event::ResetFailed) => {
                self.wait(forced, now, seq);
            }
            _ => {}
        }
        self.arm(&mut out);
        out
    }

    fn drain(&mut self, now: Millis, out: &mut Actions) {
        self.state = State::Draining(now.saturating_add(self.policy.drain_limit));
        out.push(Action::Drain);
    }

    fn drained(&mut self, forced: bool, now: Millis, seq: &mut Seq, out: &mut Actions) {
        if self.backoff.attempts() == 0 {
            // Counts as an attempt, so that a queue that fails again at once has to wait.
            let _ = self.backoff.next(&self.policy.retry, 0);
            self.reset(forced, out);
        } else {
            self.wait(forced, now, seq);
        }
    }

    fn wait(&mut self, forced: bool, now: Millis, seq: &mut Seq) {
        let delay = self.backoff.next(&self.policy.retry, seq.random());
        self.state = State::BackedOff {
            until: now.saturating_add(delay),
            forced,
        };
    }

    fn reset(&mut self, forced: bool, out: &mut Actions) {
        self.state = State::Resetting { forced };
        out.push(Action::Reset { forced });
    }

    fn resume(&mut self, now: Millis, out: &mut Actions) {
        self.state = State::Running;
        self.running_since = now;
        self.recoveries = self.recoveries.saturating_add(1);
        out.push(Action::Resume);
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
    pub const fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Draining(at) | State::BackedOff { until: at, .. } => Some(at),
            _ => None,
        }
    }

    /// Where the recovery stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether work requests may be posted.
    pub const fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    /// Times the queue came back, for the statistics.
    pub const fn recoveries(&self) -> u64 {
        self.recoveries
    }
}
