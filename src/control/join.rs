// SPDX-License-Identifier: GPL-2.0

//! Membership in one multicast group: join, use, re-join, leave, expiry.
//!
//! # Rules
//!
//! - Nothing is joined before the gate is `Up`: for the broadcast group that is an ACTIVE port, for all others a
//!   joined broadcast group (MC-2, MC-4). While the broadcast group is being joined again the others get `Hold`:
//!   they keep what they have and start nothing.
//! - No join starts without a place among those that are out: the machine asks for one ([`Action::Ask`]), keeps what
//!   it has until it gets it ([`Event::Turn`]), and asks once at a time.
//! - Every outcome of a join comes back here, and a membership that was obtained is left exactly once (B51).
//! - A re-join (`Lost`, `Reregister`) keeps the address handle and the attachment in use, and replaces them only
//!   if the answer differs.
//! - Full membership is tried for ever, with back-off; a send-only group is tried twice for the packets that
//!   wait and then rests until new ones come (MC-12). If the subnet administrator refuses send-only membership,
//!   full membership without attachment takes its place (B48).
//! - Packets that wait are sent or dropped within [`Policy::pending_life`], counted from the first one.
//! - After joins that nobody answered, the node waits for its turn among all nodes ([`Group::set_turn`]), each time
//!   twice as long up to 16 turns: an administrator that is flooded by joins recovers only if they come apart.

mod types;

pub use types::{Action, Event, Failure, JoinState, Kind, Params, Policy};

use super::actions;
use super::backoff::Backoff;
use super::reason::TxDrop;
use super::seq::Seq;
use super::time::Millis;

/// The actions of one step.
pub type Actions = actions::Actions<Action, 8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Down,
    Hold,
    Up,
}

#[derive(Clone, Copy, Debug)]
struct Membership {
    id: u64,
    state: JoinState,
}

#[derive(Clone, Copy, Debug)]
struct Joining {
    id: u64,
    state: JoinState,
    since: Millis,
    again: bool,
}

/// The machine of one group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    policy: Policy,
    want: Option<Kind>,
    gate: Gate,
    held: Option<Membership>,
    joining: Option<Joining>,
    /// A place was asked for, and has not come yet.
    asked: bool,
    /// The membership held, or the one before, is to be replaced.
    rejoin: bool,
    published: Option<Params>,
    attached: Option<u16>,
    next_try: Option<Millis>,
    waiting: Option<Millis>,
    /// The end of the wait that the last `SendPending` ended, should it not have been carried out.
    waited: Option<Millis>,
    joins: Backoff,
    setups: Backoff,
    /// Send-only: tries that failed for the packets that wait.
    tries: u8,
    /// Send-only membership was refused by the subnet administrator.
    fallback: bool,
    last_failure: Option<Failure>,
    /// This node's turn among all nodes.
    turn: Millis,
    armed: Option<Millis>,
}

impl Group {
    /// A group nobody wants yet, with the gate shut.
    pub const fn new(policy: Policy) -> Self {
        Self {
            policy,
            want: None,
            gate: Gate::Down,
            held: None,
            joining: None,
            asked: false,
            rejoin: false,
            published: None,
            attached: None,
            next_try: None,
            waiting: None,
            waited: None,
            joins: Backoff::new(),
            setups: Backoff::new(),
            tries: 0,
            fallback: false,
            last_failure: None,
            turn: Millis::ZERO,
            armed: None,
        }
    }

    /// How long this node leaves others to ask first when all of them ask ([`super::storm::Pace::turn`]). Zero,
    /// the value at first, is right for small fabrics.
    pub fn set_turn(&mut self, turn: Millis) {
        self.turn = turn;
    }

    /// Takes one event.
    pub fn step(&mut self, event: Event, now: Millis, seq: &mut Seq) -> Actions {
        let mut out = Actions::new();
        match event {
            Event::Want(kind) => self.wanted(kind, &mut out),
            Event::Unwant => self.give_up(TxDrop::Flushed, true, &mut out),
            Event::Pending => self.pending(now, &mut out),
            Event::Up => self.gate = Gate::Up,
            Event::Hold if self.gate == Gate::Up => self.gate = Gate::Hold,
            Event::Hold => {}
            Event::Turn => {
                self.asked = false;
                if self.ready(now) {
                    self.begin(now, seq, &mut out);
                }
            }
            Event::Down => {
                self.gate = Gate::Down;
                let forget = self.want == Some(Kind::SendOnly);
                self.give_up(TxDrop::Flushed, forget, &mut out);
            }
            Event::Joined { id, params } => self.joined(id, params, &mut out),
            Event::JoinFailed { id, cause } => {
                if self.joining.is_some_and(|joining| joining.id == id) {
                    self.joining = None;
                    self.failed(cause, now, seq, &mut out);
                }
            }
            Event::Lost { id } => self.lost(id, now, seq, &mut out),
            Event::SetupFailed => self.setup_failed(now, seq, &mut out),
            Event::Reregister { spread } => self.reregister(spread, now, seq, &mut out),
            Event::Idle => {
                if self.want == Some(Kind::SendOnly) && self.waiting.is_none() {
                    self.give_up(TxDrop::Flushed, true, &mut out);
                }
            }
            Event::Tick => self.tick(now, seq, &mut out),
        }
        self.advance(now, &mut out);
        self.arm(&mut out);
        out
    }

    fn wanted(&mut self, kind: Kind, out: &mut Actions) {
        match (self.want, kind) {
            (Some(Kind::Broadcast | Kind::Full), _) => return,
            (Some(Kind::SendOnly), Kind::SendOnly) => return,
            (Some(Kind::SendOnly), _) => {
                // The wait was for send-only tries, which count for nothing here.
                self.tries = 0;
                self.next_try = None;
            }
            (None, _) => {}
        }
        self.want = Some(kind);
        if let (Some(held), Some(params)) = (self.held, self.published) {
            // Full membership held in place of send-only: only the attachment is missing.
            if held.state == JoinState::FullMember {
                self.attach(kind, params.mlid, out);
            }
        }
    }

    fn pending(&mut self, now: Millis, out: &mut Actions) {
        if self.published.is_some() {
            self.waiting = None;
            out.push(Action::SendPending);
            return;
        }
        let until = now.saturating_add(self.policy.pending_life);
        let until = *self.waiting.get_or_insert(until);
        if self.gate == Gate::Down {
            self.drop_pending(TxDrop::NotReady, out);
            return;
        }
        if self.want.is_none() {
            self.want = Some(Kind::SendOnly);
        }
        if self.resting() {
            self.tries = 0;
        }
        if self.next_try.is_some_and(|at| at > until) {
            self.drop_pending(TxDrop::NoGroup, out);
        }
    }

    fn joined(&mut self, id: u64, params: Params, out: &mut Actions) {
        let Some(joining) = self.joining.filter(|joining| joining.id == id) else {
            return;
        };
        self.joining = None;
        if let Some(old) = self.held.take() {
            out.push(Action::Leave { id: old.id });
        }
        self.held = Some(Membership {
            id,
            state: joining.state,
        });
        self.joins.reset();
        self.tries = 0;
        self.last_failure = None;
        self.next_try = None;
        // A group that was upgraded while a send-only join was under way attaches with the next answer.
        if let (Some(kind), JoinState::FullMember) = (self.want, joining.state) {
            self.attach(kind, params.mlid, out);
        }
        if self.published != Some(params) {
            self.published = Some(params);
            out.push(Action::Publish);
        }
        self.waited = self.waiting.take();
        out.push(Action::SendPending);
    }

    fn attach(&mut self, kind: Kind, mlid: u16, out: &mut Actions) {
        if kind == Kind::SendOnly || self.attached == Some(mlid) {
            return;
        }
        if let Some(old) = self.attached.replace(mlid) {
            out.push(Action::Detach { mlid: old });
        }
        out.push(Action::Attach { mlid });
    }

    fn failed(&mut self, cause: Failure, now: Millis, seq: &mut Seq, out: &mut Actions) {
        self.last_failure = Some(cause);
        if self.want == Some(Kind::SendOnly) {
            if cause == Failure::Refused && !self.fallback {
                self.fallback = true;
                return;
            }
            self.tries = self.tries.saturating_add(1);
            if self.resting() {
                self.joins.reset();
                self.next_try = None;
                self.unpublish(out);
                self.drop_pending(TxDrop::NoGroup, out);
                return;
            }
        }
        // What is held, as during an upgrade, stays in use. The core reports a busy administrator as a refusal, so
        // that only the second in a row is believed.
        if cause == Failure::Refused && self.held.is_none() && self.joins.attempts() > 0 {
            self.unpublish(out);
        }
        let delay = match cause {
            Failure::Timeout => {
                let turn = self.long_turn();
                self.joins.next(&self.policy.slow, seq.random()).max(turn)
            }
            Failure::Busy => self.joins.next(&self.policy.busy, seq.random()),
            Failure::Refused | Failure::Local => self.joins.next(&self.policy.quick, seq.random()),
        };
        self.retry_at(now.saturating_add(delay), out);
    }

    /// The turn, doubled for each failure since the last answer, but not for ever: when an administrator comes back
    /// that was merely silent, nobody is told.
    fn long_turn(&self) -> Millis {
        let turn = self
            .turn
            .0
            .saturating_mul(1 << self.joins.attempts().min(4));
        Millis(turn.min(self.policy.longest_turn.0))
    }

    fn retry_at(&mut self, at: Millis, out: &mut Actions) {
        self.next_try = Some(at);
        if self.waiting.is_some_and(|until| at > until) {
            self.drop_pending(TxDrop::NoGroup, out);
        }
    }

    fn lost(&mut self, id: u64, now: Millis, seq: &mut Seq, out: &mut Actions) {
        if let Some(joining) = self.joining.filter(|joining| joining.id == id) {
            self.joining = None;
            out.push(Action::Leave { id: joining.id });
            self.failed(Failure::Busy, now, seq, out);
        } else if self.held.is_some_and(|held| held.id == id) {
            self.held = None;
            out.push(Action::Leave { id });
            // A join under way (an upgrade) renews the membership anyway. What voids memberships is reported in its
            // own right, and with it comes the time to join again; this is for the case that it does not.
            if self.joining.is_none() {
                let grace = self.turn.saturating_add(self.policy.void_grace);
                let at = Some(now.saturating_add(grace));
                self.next_try = match self.next_try {
                    Some(earlier) if self.rejoin => Millis::earliest(Some(earlier), at),
                    _ => at,
                };
                self.rejoin = true;
            }
        }
    }

    fn setup_failed(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        self.unpublish(out);
        if let Some(held) = self.held.take() {
            out.push(Action::Leave { id: held.id });
        }
        if let Some(joining) = self.joining.take() {
            out.push(Action::Leave { id: joining.id });
        }
        self.last_failure = Some(Failure::Local);
        // The list that failed did not get to its `SendPending`.
        self.waiting = self.waiting.or(self.waited.take());
        let delay = self.setups.next(&self.policy.slow, seq.random());
        if self.want == Some(Kind::SendOnly) {
            self.tries = self.tries.saturating_add(1);
            if self.resting() {
                self.drop_pending(TxDrop::NoGroup, out);
                return;
            }
        }
        self.retry_at(now.saturating_add(delay), out);
    }

    fn reregister(&mut self, spread: Millis, now: Millis, seq: &mut Seq, out: &mut Actions) {
        if let Some(joining) = self.joining {
            if joining.again && now.saturating_sub(joining.since) < self.policy.merge {
                return;
            }
            self.joining = None;
            out.push(Action::Leave { id: joining.id });
        }
        self.joins.reset();
        self.setups.reset();
        self.fallback = false;
        self.rejoin = true;
        let width = spread.0.min(u64::from(u32::MAX));
        let delay = width.saturating_mul(u64::from(seq.random())) >> 32;
        self.next_try = (delay != 0).then(|| now.saturating_add(Millis(delay)));
    }

    fn tick(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        self.armed = None;
        if self.waiting.is_some_and(|until| until.reached(now)) {
            self.drop_pending(TxDrop::Expired, out);
        }
        if let Some(joining) = self.joining {
            if self.give_up_at(&joining).reached(now) {
                self.joining = None;
                out.push(Action::Leave { id: joining.id });
                self.failed(Failure::Timeout, now, seq, out);
            }
        }
    }

    fn give_up_at(&self, joining: &Joining) -> Millis {
        joining.since.saturating_add(self.policy.join_limit)
    }

    /// Whether a join is due now.
    fn ready(&self, now: Millis) -> bool {
        self.due().is_some() && self.next_try.is_none_or(|at| at.reached(now))
    }

    /// Asks for a place for the join that is due, if any.
    fn advance(&mut self, now: Millis, out: &mut Actions) {
        if !self.ready(now) {
            return;
        }
        // The moment has come, and nothing more of it is to be armed for.
        self.next_try = None;
        if !self.asked {
            self.asked = true;
            out.push(Action::Ask);
        }
    }

    /// Starts the join that is due. The only place where joins start.
    fn begin(&mut self, now: Millis, seq: &mut Seq, out: &mut Actions) {
        let Some(state) = self.due() else {
            return;
        };
        self.next_try = None;
        if self.rejoin {
            if let Some(old) = self.held.take() {
                out.push(Action::Leave { id: old.id });
            }
        }
        let id = seq.id();
        self.joining = Some(Joining {
            id,
            state,
            since: now,
            again: self.rejoin,
        });
        self.rejoin = false;
        out.push(Action::StartJoin { id, state });
    }

    /// The membership to ask for now or at `next_try`.
    fn due(&self) -> Option<JoinState> {
        let want = self.want?;
        if self.gate != Gate::Up || self.joining.is_some() || self.resting() {
            return None;
        }
        let state = match want {
            Kind::Broadcast | Kind::Full => JoinState::FullMember,
            Kind::SendOnly if self.fallback => JoinState::FullMember,
            Kind::SendOnly => JoinState::SendOnlyFullMember,
        };
        let enough = self
            .held
            .is_some_and(|held| held.state == state || held.state == JoinState::FullMember);
        (self.rejoin || !enough).then_some(state)
    }

    /// A send-only group that failed twice.
    fn resting(&self) -> bool {
        self.want == Some(Kind::SendOnly) && self.tries >= 2
    }

    /// Ends membership and whatever is under way; `forget` also ends the wish for it.
    fn give_up(&mut self, reason: TxDrop, forget: bool, out: &mut Actions) {
        self.unpublish(out);
        if let Some(joining) = self.joining.take() {
            out.push(Action::Leave { id: joining.id });
        }
        if let Some(held) = self.held.take() {
            out.push(Action::Leave { id: held.id });
        }
        self.drop_pending(reason, out);
        self.rejoin = false;
        self.next_try = None;
        self.tries = 0;
        self.joins.reset();
        self.setups.reset();
        self.fallback = false;
        if forget {
            self.want = None;
        }
    }

    fn unpublish(&mut self, out: &mut Actions) {
        if self.published.take().is_some() {
            out.push(Action::Unpublish);
        }
        if let Some(mlid) = self.attached.take() {
            out.push(Action::Detach { mlid });
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
        let give_up = self.joining.map(|joining| self.give_up_at(&joining));
        let next_try = self.next_try.filter(|_| self.due().is_some());
        Millis::earliest(self.waiting, Millis::earliest(give_up, next_try))
    }

    /// What somebody wants, if anybody does.
    pub const fn wanted_kind(&self) -> Option<Kind> {
        self.want
    }

    /// Whether the group is joined at present (and not merely kept in use during a re-join).
    pub const fn is_member(&self) -> bool {
        self.held.is_some() && self.published.is_some()
    }

    /// Whether there is a membership to leave, which may be void.
    pub const fn has_membership(&self) -> bool {
        self.held.is_some()
    }

    /// The parameters in use by the data path.
    pub const fn published(&self) -> Option<Params> {
        self.published
    }

    /// Whether the queue pair is attached.
    pub const fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Whether a join is under way.
    pub const fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Whether packets wait.
    pub const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the machine may be forgotten: nobody wants the group and nothing of it is left.
    pub const fn is_idle(&self) -> bool {
        self.want.is_none() && self.held.is_none() && self.joining.is_none()
    }

    /// Why the last join failed; `None` after a success.
    pub const fn last_failure(&self) -> Option<Failure> {
        self.last_failure
    }

    /// Failed joins since the last success.
    pub const fn failures(&self) -> u32 {
        self.joins.attempts()
    }
}
