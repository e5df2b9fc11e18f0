// SPDX-License-Identifier: GPL-2.0

//! The world around one multicast membership machine.

use ipoib_host::control::join::{Action, Event, Failure, Group, JoinState, Kind, Params, Policy};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

use crate::{span, Clock};

/// What can happen to a group.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// As in the event.
    Want(Kind),
    /// As in the event.
    Unwant,
    /// The data path sends a packet; on a miss it queues it and posts an event.
    Send,
    /// A sender that looked for the handle just before it was published queues its packet only now.
    SendLate,
    /// The worker takes the posted event.
    Deliver,
    /// As in the event.
    Up,
    /// As in the event.
    Hold,
    /// As in the event.
    Down,
    /// The join under way succeeds, with parameters of this variant.
    Grant(u8),
    /// The join under way fails.
    Deny(Failure),
    /// The membership (or, with `true`, the join under way) is void.
    Lose(bool),
    /// An outcome of a join given up earlier arrives.
    Stale {
        /// Which of them.
        which: u8,
        /// Success or failure.
        good: bool,
    },
    /// As in the event.
    Reregister(Millis),
    /// As in the event.
    Idle,
    /// The next `Attach` or `Publish` will fail.
    Break,
    /// Time passes.
    Pass(Millis),
    /// A tick without reason.
    EarlyTick,
    /// From now on there is no place for a join (`true`), or there are enough.
    Crowd(bool),
}

impl Op {
    /// The operation for a code and an argument.
    pub fn decode(code: u8, argument: u8) -> Self {
        match code % 20 {
            0 => Self::Want(Kind::Full),
            1 => Self::Want(Kind::SendOnly),
            2 if argument % 4 == 0 => Self::Want(Kind::Broadcast),
            2 => Self::Unwant,
            3 if argument % 4 == 0 => Self::SendLate,
            3 | 4 => Self::Send,
            5 | 6 => Self::Deliver,
            7 | 8 => Self::Up,
            9 => Self::Hold,
            10 if argument % 2 == 0 => Self::Down,
            10 | 11 => Self::Grant(argument),
            12 => Self::Deny(match argument % 4 {
                0 => Failure::Timeout,
                1 => Failure::Busy,
                2 => Failure::Refused,
                _ => Failure::Local,
            }),
            13 => Self::Lose(argument % 2 == 0),
            14 => Self::Stale {
                which: argument >> 1,
                good: argument % 2 == 0,
            },
            15 => Self::Reregister(span(argument)),
            16 => Self::Idle,
            17 if argument % 2 == 0 => Self::Break,
            17 => Self::EarlyTick,
            18 if argument % 2 == 0 => Self::Crowd(argument % 4 == 0),
            _ => Self::Pass(span(argument)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Object {
    Joining(JoinState),
    Held(JoinState),
}

/// A membership machine, the driver around it, and what both are expected to agree on.
#[derive(Debug)]
pub struct World {
    group: Group,
    policy: Policy,
    seq: Seq,
    clock: Clock,
    /// Joins and memberships that exist.
    objects: Vec<(u64, Object)>,
    gone: Vec<u64>,
    published: Option<Params>,
    attached: Option<u16>,
    /// What the present step detached.
    detached: Option<u16>,
    /// An `Attach` failed, so a `Detach` may find nothing.
    loose: bool,
    up: bool,
    pending: u32,
    posted: bool,
    waiting_since: Option<Millis>,
    answer: Option<Params>,
    break_next: bool,
    /// There is no place for a join.
    crowded: bool,
    /// The machine waits for a place.
    asked: bool,
    /// Joins started.
    pub joins: u32,
}

impl World {
    /// A group nobody wants, at time zero.
    pub fn new(seed: u64) -> Self {
        let policy = Policy::DEFAULT;
        Self {
            group: Group::new(policy),
            policy,
            seq: Seq::new(seed),
            clock: Clock::default(),
            objects: Vec::new(),
            gone: Vec::new(),
            published: None,
            attached: None,
            detached: None,
            loose: false,
            up: false,
            pending: 0,
            posted: false,
            waiting_since: None,
            answer: None,
            break_next: false,
            crowded: false,
            asked: false,
            joins: 0,
        }
    }

    /// The machine.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Packets that wait.
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// The local identifier the queue pair is attached with.
    pub fn attached(&self) -> Option<u16> {
        self.attached
    }

    /// The present moment.
    pub fn now(&self) -> Millis {
        self.clock.now
    }

    /// The membership that the join under way asks for.
    pub fn joining(&self) -> Option<JoinState> {
        self.objects.iter().find_map(|&(_, object)| match object {
            Object::Joining(state) => Some(state),
            Object::Held(_) => None,
        })
    }

    /// Number of joins and memberships that exist.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Lets one thing happen and checks every rule.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Want(kind) => self.step(Event::Want(kind)),
            Op::Unwant => self.step(Event::Unwant),
            Op::Send if self.published.is_some() => {}
            Op::Send | Op::SendLate => {
                self.pending += 1;
                self.posted = true;
            }
            Op::Deliver => self.deliver(),
            Op::Up => {
                self.up = true;
                self.step(Event::Up);
            }
            Op::Hold => {
                self.up = false;
                self.step(Event::Hold);
            }
            Op::Down => {
                self.up = false;
                self.step(Event::Down);
                assert_eq!(self.objects, [], "membership survived the port");
                assert!(self.published.is_none() && self.attached.is_none());
            }
            Op::Grant(variant) => self.grant(variant),
            Op::Deny(cause) => self.deny(cause),
            Op::Lose(joining) => self.lose(joining),
            Op::Stale { which, good } => self.stale(which, good),
            Op::Reregister(spread) => self.step(Event::Reregister { spread }),
            Op::Idle => self.step(Event::Idle),
            Op::Break => self.break_next = true,
            Op::Pass(time) => self.pass(time),
            Op::EarlyTick => self.step(Event::Tick),
            Op::Crowd(crowded) => {
                self.crowded = crowded;
                self.turn();
            }
        }
    }

    /// A place for whoever waits for one, if there is one.
    fn turn(&mut self) {
        if self.asked && !self.crowded {
            self.asked = false;
            self.step(Event::Turn);
        }
    }

    fn deliver(&mut self) {
        if std::mem::take(&mut self.posted) {
            if self.pending > 0 && !self.group.is_waiting() {
                self.waiting_since = Some(self.clock.now);
            }
            self.step(Event::Pending);
        }
    }

    fn find(&self, joining: bool) -> Option<usize> {
        self.objects
            .iter()
            .position(|(_, object)| matches!(object, Object::Joining(_)) == joining)
    }

    fn grant(&mut self, variant: u8) {
        let Some(index) = self.find(true) else {
            return;
        };
        let (id, object) = self.objects[index];
        if let Object::Joining(state) = object {
            self.objects[index].1 = Object::Held(state);
        }
        // Mostly the same parameters, now and then another local identifier or Q_Key.
        let params = Params {
            mlid: 0xc000 + u16::from(variant % 8 == 1),
            qkey: 0x0b1b + u32::from(variant % 8 == 2),
            mtu: 4,
            ..Params::default()
        };
        self.answer = Some(params);
        self.step(Event::Joined { id, params });
        self.answer = None;
    }

    fn deny(&mut self, cause: Failure) {
        if let Some(index) = self.find(true) {
            let (id, _) = self.objects.remove(index);
            self.gone.push(id);
            let joins = self.joins;
            self.step(Event::JoinFailed { id, cause });
            // Refused send-only membership is replaced at once.
            assert!(
                self.joins == joins || cause == Failure::Refused,
                "a failed join was repeated without delay"
            );
        }
    }

    fn lose(&mut self, joining: bool) {
        if let Some(index) = self.find(joining) {
            // The object exists until it is left.
            let (id, _) = self.objects[index];
            self.step(Event::Lost { id });
            assert!(
                self.objects.iter().all(|&(other, _)| other != id),
                "a void membership was kept"
            );
        }
    }

    fn stale(&mut self, which: u8, good: bool) {
        let len = self.gone.len().max(1);
        let Some(&id) = self.gone.get(usize::from(which) % len) else {
            return;
        };
        let before = (self.objects.clone(), self.published, self.pending);
        self.step(match (good, which % 2) {
            (true, _) => Event::Joined {
                id,
                params: Params::default(),
            },
            (false, 0) => Event::Lost { id },
            (false, _) => Event::JoinFailed {
                id,
                cause: Failure::Refused,
            },
        });
        let after = (self.objects.clone(), self.published, self.pending);
        assert_eq!(before, after, "a stale outcome had an effect");
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
        let actions = self.group.step(event, self.clock.now, &mut self.seq);
        assert!(!actions.overflowed(), "{event:?} lost an action");
        let mut broken = false;
        self.detached = None;
        for action in actions {
            match action {
                Action::Publish | Action::SendPending if broken => {}
                Action::Attach { .. } | Action::Publish if self.break_next => {
                    self.break_next = false;
                    self.loose = true;
                    broken = true;
                }
                _ => self.carry_out(event, action),
            }
        }
        if broken {
            self.step(Event::SetupFailed);
        }
        self.turn();
        self.check();
    }

    fn carry_out(&mut self, event: Event, action: Action) {
        match action {
            Action::Unpublish => {
                assert!(self.published.is_some() || self.loose);
                self.published = None;
            }
            Action::Detach { mlid } => {
                assert!(self.loose || self.attached == Some(mlid), "{event:?}");
                self.detached = self.attached.take();
            }
            Action::Leave { id } => {
                let index = self.objects.iter().position(|&(other, _)| other == id);
                let index = index.unwrap_or_else(|| panic!("{event:?} left {id} twice"));
                self.objects.remove(index);
                self.gone.push(id);
            }
            Action::Ask => {
                assert!(!self.asked, "{event:?} asked twice for a place");
                self.asked = true;
            }
            Action::StartJoin { id, state } => {
                assert_eq!(event, Event::Turn, "joined without a place");
                assert!(self.up, "{event:?} joined through a shut gate");
                assert_eq!(self.find(true), None, "{event:?}: two joins at once");
                self.objects.push((id, Object::Joining(state)));
                self.joins += 1;
            }
            Action::Attach { mlid } => {
                assert_eq!(self.attached, None, "{event:?} attached twice");
                assert_ne!(self.detached, Some(mlid), "{event:?} detached for nothing");
                self.attached = Some(mlid);
            }
            Action::Publish => {
                assert!(self.answer.is_some(), "{event:?} published no answer");
                self.published = self.answer;
                self.loose = false;
            }
            Action::SendPending => {
                assert!(self.published.is_some(), "{event:?} sent without handle");
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
        let group = &self.group;
        assert_eq!(group.published(), self.published);
        assert_eq!(group.is_attached(), self.attached.is_some());
        assert!(self.objects.len() <= 2, "memberships pile up");
        if group.is_idle() {
            assert_eq!(self.objects, [], "left behind");
            assert!(self.published.is_none() && self.attached.is_none());
        }
        let held_full = self
            .objects
            .iter()
            .any(|&(_, object)| object == Object::Held(JoinState::FullMember));
        let listener = matches!(group.wanted_kind(), Some(Kind::Full | Kind::Broadcast));
        if listener && held_full {
            assert!(self.attached.is_some(), "a full member that hears nothing");
        }
        if !listener {
            assert!(self.attached.is_none(), "attached for nobody");
        }
        if self.pending > 0 && !self.posted {
            assert!(group.is_waiting(), "packets wait for nobody");
        }
        if let (Some(since), true) = (self.waiting_since, self.pending > 0) {
            let end = since.saturating_add(self.policy.pending_life);
            let timer = self.clock.timer.expect("a timer for packets that wait");
            assert!(timer <= end, "packets wait longer than they live");
        }
        if let Some(at) = group.deadline() {
            let timer = self.clock.timer.expect("a timer for the deadline");
            assert!(timer <= at, "the timer comes after the deadline");
        }
        // Nothing is forgotten: a listener without membership has a join under way or a moment for the next.
        if listener && self.up && !held_full && self.find(true).is_none() {
            let kept = self.asked || self.clock.timer.is_some();
            assert!(kept, "a listener is forgotten");
        }
    }

    /// From here on nothing is answered any more: what waits must be dropped within its lifetime.
    pub fn finish_silent(&mut self) {
        self.deliver();
        self.pass(self.policy.pending_life);
        assert_eq!(self.pending, 0, "stranded packets");
    }

    /// From here on the gate is up and every join is granted: whoever wants the group must have it within the
    /// longest back-off, and nothing else may be left.
    pub fn finish_granted(&mut self) {
        self.break_next = false;
        self.apply(Op::Crowd(false));
        self.apply(Op::Up);
        let end = self.clock.now.saturating_add(Millis::from_secs(60));
        while self.clock.now < end {
            if self.group.wanted_kind() == Some(Kind::SendOnly) {
                self.apply(Op::Send);
            }
            self.deliver();
            self.apply(Op::Grant(0));
            self.pass(Millis(100));
        }
        assert_eq!(self.pending, 0, "packets left behind a good group");
        match self.group.wanted_kind() {
            None => assert_eq!(self.objects, []),
            Some(kind) => {
                assert!(self.group.is_member() && self.published.is_some());
                assert_eq!(self.objects.len(), 1, "one membership remains");
                assert_eq!(self.attached.is_some(), kind != Kind::SendOnly);
            }
        }
        self.apply(Op::Unwant);
        assert!(self.group.is_idle());
    }
}
