// SPDX-License-Identifier: GPL-2.0

//! The connection over which packets go to one peer (facts CM-10 to CM-18).
//!
//! Connections are one-way, as those of the in-tree driver: each side asks for the one that it sends over, so
//! requests that cross need no arbitration. While there is none, what fits a datagram goes as one; what does
//! not waits while a connection is being made, and is refused when that has failed repeatedly.

use super::{
    actions,
    backoff::{Backoff, Config},
    seq::Seq,
    time::Millis,
};
use crate::wire::qpn::Qpn;

/// What the data path must know of a peer without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Link {
    /// Nobody has asked yet: ask, and let large packets wait.
    Ask = 0,
    /// It has been asked for: let large packets wait.
    Hold = 1,
    /// It cannot be had: large packets are refused.
    Never = 2,
}

impl Link {
    /// The link from its number; unknown ones ask.
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Hold,
            2 => Self::Never,
            _ => Self::Ask,
        }
    }
}

/// What happened. Those with an id concern the attempt that has it; of another attempt they are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Packets want to go to the peer's datagram queue pair `qpn`.
    Wanted {
        /// What the peer's address says.
        qpn: Qpn,
    },
    /// There is a path to the peer.
    Path,
    /// The peer has accepted, and all is ready to send.
    Ready {
        /// The attempt.
        id: u64,
    },
    /// It could not be set up, is refused, or a send over it has failed.
    Failed {
        /// The attempt.
        id: u64,
    },
    /// The peer has ended it in peace.
    Closed {
        /// The attempt.
        id: u64,
    },
    /// A deadline may have come.
    Tick,
    /// Forget everything: no connections are wanted, or nothing goes to the peer.
    Flush,
}

/// What to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the connection from the data path and end it. What it holds is lost.
    Close {
        /// The attempt.
        id: u64,
    },
    /// Ask the owner of `qpn` for a connection. Answers with [`Event::Ready`] or [`Event::Failed`].
    Start {
        /// The attempt.
        id: u64,
        /// The peer's datagram queue pair.
        qpn: Qpn,
    },
    /// Give the connection to the data path, and send what waits over it.
    Publish {
        /// The attempt.
        id: u64,
    },
    /// Send what waits once more: it will be refused, or go as the link says now.
    Release,
}

/// The actions of one step.
pub type Actions = actions::Actions<Action, 3>;

/// Times of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a path may take.
    pub path: Millis,
    /// How long the peer may take to answer.
    pub connect: Millis,
    /// A connection that was up for so long was a good one: its failure starts the back-off over. And so
    /// long a connection is not given up for another queue pair of the same peer.
    pub good: Millis,
    /// Delays after failures.
    pub backoff: Config,
    /// So many failures in a row and packets do not wait any more.
    pub patience: u32,
}

impl Policy {
    /// What the driver uses.
    pub const DEFAULT: Self = Self {
        path: Millis(5_000),
        connect: Millis(20_000),
        good: Millis(1_000),
        backoff: Config::new(100, 60_000),
        patience: 2,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    WaitPath { until: Millis },
    Connecting { id: u64, until: Millis },
    Up { id: u64, since: Millis },
    BackedOff { until: Millis, wanted: bool },
}

/// A name of the state, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// No connection, and none wanted.
    Idle,
    /// Waits for a path.
    WaitPath,
    /// The peer has been asked.
    Connecting,
    /// Packets go over it.
    Up,
    /// The last attempt failed; the next comes later.
    BackedOff,
}

/// The machine of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Conn {
    policy: Policy,
    state: State,
    qpn: Qpn,
    backoff: Backoff,
}

impl Conn {
    /// No connection.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            state: State::Idle,
            qpn: Qpn::new(0),
            backoff: Backoff::new(),
        }
    }

    /// Takes one event.
    pub fn step(&mut self, event: Event, now: Millis, seq: &mut Seq) -> Actions {
        let mut out = Actions::new();
        match event {
            Event::Wanted { qpn } => self.wanted(qpn, now, &mut out),
            Event::Path => {
                if let State::WaitPath { .. } = self.state {
                    let id = seq.id();
                    self.state = State::Connecting {
                        id,
                        until: now.saturating_add(self.policy.connect),
                    };
                    out.push(Action::Start { id, qpn: self.qpn });
                }
            }
            Event::Ready { id } => {
                if matches!(self.state, State::Connecting { id: mine, .. } if mine == id) {
                    self.state = State::Up { id, since: now };
                    out.push(Action::Publish { id });
                }
            }
            Event::Failed { id } => {
                if self.id() == Some(id) {
                    self.fail(now, seq, &mut out);
                }
            }
            Event::Closed { id } => match self.state {
                State::Up { id: mine, .. } if mine == id => {
                    self.state = State::Idle;
                    out.push(Action::Close { id });
                }
                State::Connecting { id: mine, .. } if mine == id => self.fail(now, seq, &mut out),
                _ => {}
            },
            Event::Tick => self.tick(now, seq, &mut out),
            Event::Flush => {
                self.close(&mut out);
                self.state = State::Idle;
                self.backoff.reset();
                out.push(Action::Release);
            }
        }
        out
    }

    fn wanted(&mut self, qpn: Qpn, now: Millis, out: &mut Actions) {
        let other = qpn != self.qpn;
        match &mut self.state {
            State::Idle => {}
            State::BackedOff { .. } if other => self.backoff.reset(),
            State::BackedOff { wanted, .. } => {
                *wanted = true;
                return;
            }
            State::Up { id, since } => {
                if !other {
                    // The data path has lost it with its entry of the peer.
                    out.push(Action::Publish { id: *id });
                    return;
                }
                // Two interfaces at one port would take turns otherwise: the second gets datagrams.
                if now.saturating_sub(*since) < self.policy.good {
                    return;
                }
                self.close(out);
                self.backoff.reset();
            }
            State::WaitPath { .. } if other => {}
            State::Connecting { .. } if other => self.close(out),
            State::WaitPath { .. } | State::Connecting { .. } => return,
        }
        self.qpn = qpn;
        self.state = State::WaitPath {
            until: now.saturating_add(self.policy.path),
        };
    }

    fn tick(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        match self.state {
            State::WaitPath { until } if until.reached(now) => {
                self.state = State::Idle;
                out.push(Action::Release);
            }
            State::Connecting { until, .. } if until.reached(now) => self.fail(now, seq, out),
            State::BackedOff { until, wanted } if until.reached(now) => {
                self.state = if wanted {
                    State::WaitPath {
                        until: now.saturating_add(self.policy.path),
                    }
                } else {
                    State::Idle
                };
            }
            _ => {}
        }
    }

    fn close(&mut self, out: &mut Actions) {
        if let Some(id) = self.id() {
            out.push(Action::Close { id });
        }
    }

    fn fail(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        self.close(out);
        if let State::Up { since, .. } = self.state {
            if now.saturating_sub(since) >= self.policy.good {
                self.backoff.reset();
            }
        }
        let delay = self.backoff.next(&self.policy.backoff, seq.random());
        self.state = State::BackedOff {
            until: now.saturating_add(delay),
            // What waits, or was under way, wants it still.
            wanted: self.backoff.attempts() < self.policy.patience,
        };
        if self.link() == Link::Never {
            out.push(Action::Release);
        }
    }

    /// The attempt that is under way or up.
    pub const fn id(&self) -> Option<u64> {
        match self.state {
            State::Connecting { id, .. } | State::Up { id, .. } => Some(id),
            State::Idle | State::WaitPath { .. } | State::BackedOff { .. } => None,
        }
    }

    /// Whether an answer of the peer to attempt `id` is awaited.
    pub fn awaits(&self, id: u64) -> bool {
        matches!(self.state, State::Connecting { id: mine, .. } if mine == id)
    }

    /// What the data path is to do while it has no connection.
    pub const fn link(&self) -> Link {
        match self.state {
            State::Idle => Link::Ask,
            // A connection to another of the peer's queue pairs, perhaps.
            State::Up { .. } => Link::Ask,
            State::WaitPath { .. } | State::Connecting { .. } | State::BackedOff { .. } => {
                if self.backoff.attempts() < self.policy.patience {
                    Link::Hold
                } else {
                    Link::Never
                }
            }
        }
    }

    /// When the next [`Event::Tick`] is wanted.
    pub const fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Idle | State::Up { .. } => None,
            State::WaitPath { until }
            | State::Connecting { until, .. }
            | State::BackedOff { until, .. } => Some(until),
        }
    }

    /// The peer's datagram queue pair, as last wanted.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Failures in a row.
    pub const fn failures(&self) -> u32 {
        self.backoff.attempts()
    }

    /// The state, for people.
    pub const fn status(&self) -> Status {
        match self.state {
            State::Idle => Status::Idle,
            State::WaitPath { .. } => Status::WaitPath,
            State::Connecting { .. } => Status::Connecting,
            State::Up { .. } => Status::Up,
            State::BackedOff { .. } => Status::BackedOff,
        }
    }
}
