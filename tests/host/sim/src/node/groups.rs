// SPDX-License-Identifier: GPL-2.0

//! The groups of a node, as `src/ipoib/groups.rs` has them.

use std::collections::{BTreeMap, VecDeque};

use ipoib_host::control::admission::JOIN_LIMIT;
use ipoib_host::control::backoff;
use ipoib_host::control::join::{Action, Event, Failure, Group, Kind, Params, Policy};
use ipoib_host::control::time::Millis;

use super::{Dest, Handle, Node};
use crate::engine::{millis, Io};
use crate::mutant::Mutant;
use crate::port::Outcome;

/// The broadcast group.
pub const BROADCAST: u8 = 0;

/// The least time between a join that nobody answered and the next one: half the slow back-off's base.
const PATIENCE: Millis = Millis(499);

/// The same after one that was not sent: less than half the base of the back-off for those.
const BRIEF_PATIENCE: Millis = Millis(4);

/// Whether groups other than the broadcast group may be joined, as in the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    /// No: the broadcast group is not.
    #[default]
    Shut,
    /// Not for now: the broadcast group is being joined again.
    Held,
    /// Yes.
    Open,
}

pub(crate) struct Entry {
    pub(crate) machine: Group,
    /// Join objects that exist, by id.
    pub(crate) objects: Vec<u64>,
    pub(crate) handle: Option<Handle>,
    pub(crate) attached: bool,
    params: Params,
    listed: bool,
    /// No join before this.
    not_before: Option<Millis>,
}

#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) map: BTreeMap<u8, Entry>,
    pub(crate) deadline: Option<Millis>,
    gate: Gate,
    /// Groups that wait for a place.
    line: VecDeque<u8>,
    /// Whose joins have a place, by object.
    pub(crate) places: BTreeMap<u64, u8>,
    /// When each join started.
    since: BTreeMap<u64, (u8, Millis)>,
    /// When the last join of the broadcast group started.
    pub(crate) asked: Option<Millis>,
    /// Joins started.
    pub(crate) started: u64,
}

impl Node {
    fn ensure_group(&mut self, io: &mut Io, group: u8) {
        if self.groups.map.contains_key(&group) {
            return;
        }
        let mut policy = Policy::DEFAULT;
        if self.has(Mutant::NoJoinBackoff) {
            policy.quick = backoff::Config::new(1, 1);
            policy.slow = policy.quick;
        }
        let entry = Entry {
            machine: Group::new(policy),
            objects: Vec::new(),
            handle: None,
            attached: false,
            params: Params::default(),
            listed: false,
            not_before: None,
        };
        self.groups.map.insert(group, entry);
        if group == BROADCAST {
            return;
        }
        if self.groups.gate != Gate::Shut {
            self.step_group(io, group, Event::Up);
        }
        if self.groups.gate == Gate::Held {
            self.step_group(io, group, Event::Hold);
        }
    }

    /// Joins started so far.
    pub fn joins_started(&self) -> u64 {
        self.groups.started
    }

    /// What is published of a group.
    pub fn group_params(&self, group: u8) -> Option<Params> {
        self.groups.map.get(&group)?.machine.published()
    }

    pub(crate) fn broadcast_params(&self) -> Option<Params> {
        self.group_params(BROADCAST)
    }

    pub(crate) fn step_group(&mut self, io: &mut Io, group: u8, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let now = millis(io.now);
            let turn = self.pace.turn();
            let Some(entry) = self.groups.map.get_mut(&group) else {
                return;
            };
            entry.machine.set_turn(turn);
            let actions = entry.machine.step(event, now, &mut self.seq);
            io.rule(!actions.overflowed(), || {
                format!("{event:?} lost an action")
            });
            let patience = match event {
                Event::JoinFailed { cause, .. } => match cause {
                    Failure::Timeout => Some(PATIENCE),
                    Failure::Busy => Some(BRIEF_PATIENCE),
                    Failure::Refused | Failure::Local => None,
                },
                _ => None,
            };
            if !matches!(event, Event::Tick | Event::Up | Event::Hold | Event::Turn) {
                entry.not_before = patience.map(|span| now.saturating_add(span));
            }
            let id = self.id;
            io.mix(&[5, u64::from(id), u64::from(group)]);
            io.note(|| {
                format!(
                    "node {id} group {group}: {event:?} -> {:?}",
                    actions.iter().collect::<Vec<_>>()
                )
            });
            let mut broken = false;
            for action in actions {
                io.mix(&[u64::from(id), u64::from(group), code(&action)]);
                if broken && matches!(action, Action::Publish | Action::SendPending) {
                    continue;
                }
                if action == Action::Ask && group == BROADCAST {
                    next = Some(Event::Turn);
                } else {
                    broken |= !self.group_action(io, group, action);
                }
            }
            if broken {
                next = Some(Event::SetupFailed);
            }
        }
    }

    /// Carries out one action; `false` when the set-up failed.
    fn group_action(&mut self, io: &mut Io, group: u8, action: Action) -> bool {
        let (now, id_of_node) = (millis(io.now), self.id);
        let dest = Dest::Group(group);
        if matches!(action, Action::Attach { .. } | Action::Publish)
            && std::mem::take(&mut self.break_next)
        {
            return false;
        }
        let fresh = match action {
            Action::Publish => {
                let params = self.groups.map.get(&group).map(|entry| entry.params);
                params.map(|params| self.new_handle(u32::from(params.mlid), params.qkey))
            }
            _ => None,
        };
        let Some(entry) = self.groups.map.get_mut(&group) else {
            return true;
        };
        match action {
            Action::Unpublish => {
                entry.handle = None;
                self.unpublish(dest);
            }
            Action::Detach { .. } => entry.attached = false,
            Action::Attach { .. } => entry.attached = true,
            Action::Leave { id } => {
                let there = entry.objects.iter().position(|&one| one == id);
                io.rule(there.is_some(), || {
                    format!("node {id_of_node} left group {group} with object {id}, which is gone")
                });
                if self.mutant != Some(Mutant::KeepsPlace) {
                    self.groups.places.remove(&id);
                }
                if self.mutant != Some(Mutant::LeakMembership) {
                    entry.objects.retain(|&one| one != id);
                    self.port.free(io, group, id);
                }
            }
            Action::Ask => self.groups.line.push_back(group),
            Action::StartJoin { id, state } => {
                let patient = entry.not_before.is_none_or(|at| at.reached(now));
                io.rule(patient, || {
                    format!("node {id_of_node} joined group {group} again at once")
                });
                entry.objects.push(id);
                io.rule(entry.objects.len() <= 2, || {
                    format!("node {id_of_node} has three memberships in group {group}")
                });
                self.groups.started += 1;
                if group == BROADCAST {
                    self.groups.asked = Some(now);
                } else {
                    self.groups.places.insert(id, group);
                }
                self.groups.since.insert(id, (group, now));
                self.port.join(io, group, id, state.bits());
            }
            Action::Publish => {
                entry.handle = fresh;
                if let Some(handle) = fresh {
                    self.publish(dest, handle);
                }
            }
            Action::SendPending => {
                if let Some(handle) = entry.handle {
                    self.publish(dest, handle);
                }
            }
            Action::DropPending(reason) => self.drop_waiting(dest, reason),
            Action::ArmTimer(at) => {
                self.groups.deadline = Millis::earliest(self.groups.deadline, Some(at));
            }
        }
        true
    }

    pub(crate) fn join_done(&mut self, io: &mut Io, object: u64, outcome: Outcome<Params>) {
        self.groups.places.remove(&object);
        let Some((group, since)) = self.groups.since.remove(&object) else {
            return;
        };
        let Some(entry) = self.groups.map.get_mut(&group) else {
            return;
        };
        if !entry.objects.contains(&object) {
            // Given up meanwhile; the object is gone.
            return;
        }
        let id = object;
        if !matches!(outcome, Outcome::Silence | Outcome::NotSent) {
            self.pace.answered(millis(io.now).saturating_sub(since));
        }
        let event = match outcome {
            Outcome::Good(params) => {
                entry.params = params;
                Event::Joined { id, params }
            }
            failed => {
                entry.objects.retain(|&one| one != id);
                self.port.free(io, group, id);
                let cause = match failed {
                    Outcome::Silence => Failure::Timeout,
                    Outcome::NotSent => Failure::Busy,
                    Outcome::Good(_) | Outcome::Error => Failure::Refused,
                };
                Event::JoinFailed { id, cause }
            }
        };
        self.step_group(io, group, event);
    }

    /// Lets those who wait for a place join, as far as there are places.
    pub(crate) fn admit_groups(&mut self, io: &mut Io) {
        while self.groups.places.len() < JOIN_LIMIT || self.has(Mutant::AllJoins) {
            let Some(group) = self.groups.line.pop_front() else {
                return;
            };
            self.step_group(io, group, Event::Turn);
        }
    }

    pub(crate) fn void(&mut self, io: &mut Io, object: u64) {
        let holder = self
            .groups
            .map
            .iter()
            .find(|(_, entry)| entry.objects.contains(&object));
        if let Some((&group, _)) = holder {
            self.step_group(io, group, Event::Lost { id: object });
        }
    }

    fn step_groups(&mut self, io: &mut Io, event: Event, which: impl Fn(u8, &Group) -> bool) {
        let hit: Vec<u8> = self
            .groups
            .map
            .iter()
            .filter(|(&group, entry)| which(group, &entry.machine))
            .map(|(&group, _)| group)
            .collect();
        for group in hit {
            self.step_group(io, group, event);
        }
    }

    pub(crate) fn groups_up(&mut self, io: &mut Io) {
        self.ensure_group(io, BROADCAST);
        self.step_group(io, BROADCAST, Event::Want(Kind::Broadcast));
        self.step_group(io, BROADCAST, Event::Up);
    }

    pub(crate) fn groups_down(&mut self, io: &mut Io) {
        self.groups.gate = Gate::Shut;
        self.step_groups(io, Event::Down, |_, _| true);
    }

    pub(crate) fn broadcast_joined(&mut self, io: &mut Io) {
        let before = std::mem::replace(&mut self.groups.gate, Gate::Open);
        if before != Gate::Shut {
            let spread = Millis::ZERO;
            self.step_groups(io, Event::Reregister { spread }, |group, _| {
                group != BROADCAST
            });
        }
        self.step_groups(io, Event::Up, |group, _| group != BROADCAST);
    }

    pub(crate) fn reregister_groups(&mut self, io: &mut Io, spread: Millis) {
        let at_once = Millis::ZERO;
        self.step_group(io, BROADCAST, Event::Reregister { spread: at_once });
        if self.groups.gate == Gate::Open && !self.settled() {
            self.groups.gate = Gate::Held;
            self.step_groups(io, Event::Hold, |group, _| group != BROADCAST);
        }
        self.step_groups(io, Event::Reregister { spread }, |group, _| {
            group != BROADCAST
        });
    }

    fn settled(&self) -> bool {
        let entry = self.groups.map.get(&BROADCAST);
        entry.is_some_and(|one| one.machine.is_member() && !one.machine.is_joining())
    }

    pub(crate) fn reopen_groups(&mut self, io: &mut Io) {
        if self.groups.gate == Gate::Held && self.settled() {
            self.groups.gate = Gate::Open;
            self.step_groups(io, Event::Up, |group, _| group != BROADCAST);
        }
    }

    pub(crate) fn group_pending(&mut self, io: &mut Io, group: u8) {
        self.ensure_group(io, group);
        self.step_group(io, group, Event::Pending);
    }

    pub(crate) fn set_listeners(&mut self, io: &mut Io) {
        for entry in self.groups.map.values_mut() {
            entry.listed = false;
        }
        for group in self.listeners.clone() {
            self.ensure_group(io, group);
            if let Some(entry) = self.groups.map.get_mut(&group) {
                entry.listed = true;
            }
            self.step_group(io, group, Event::Want(Kind::Full));
        }
        if self.has(Mutant::LastUserStays) {
            return;
        }
        let unlisted: Vec<u8> = self
            .groups
            .map
            .iter()
            .filter(|(_, one)| !one.listed && one.machine.wanted_kind() == Some(Kind::Full))
            .map(|(&group, _)| group)
            .collect();
        for group in unlisted {
            self.step_group(io, group, Event::Unwant);
            self.forget_if_idle(group);
        }
    }

    fn forget_if_idle(&mut self, group: u8) {
        let idle = self
            .groups
            .map
            .get(&group)
            .is_some_and(|one| one.machine.is_idle() && !one.machine.is_waiting());
        if idle && group != BROADCAST {
            self.groups.map.remove(&group);
        }
    }

    pub(crate) fn age_groups(&mut self, io: &mut Io) {
        let all: Vec<u8> = self.groups.map.keys().copied().collect();
        for group in all {
            let kind = self
                .groups
                .map
                .get(&group)
                .and_then(|one| one.machine.wanted_kind());
            let unused = !self.remembers(Dest::Group(group));
            if unused && kind == Some(Kind::SendOnly) && !self.has(Mutant::NoAgeing) {
                self.step_group(io, group, Event::Idle);
            }
            self.forget_if_idle(group);
        }
    }

    pub(crate) fn tick_groups(&mut self, io: &mut Io) {
        let now = millis(io.now);
        if !self.groups.deadline.is_some_and(|at| at.reached(now)) {
            return;
        }
        self.groups.deadline = None;
        self.step_groups(io, Event::Tick, |_, machine| {
            machine.deadline().is_some_and(|at| at.reached(now))
        });
        for entry in self.groups.map.values() {
            let deadline = entry.machine.deadline();
            self.groups.deadline = Millis::earliest(self.groups.deadline, deadline);
        }
    }

    pub(crate) fn close_groups(&mut self, io: &mut Io) {
        self.step_groups(io, Event::Unwant, |_, _| true);
        let left: usize = self.groups.map.values().map(|one| one.objects.len()).sum();
        let id = self.id;
        io.rule(left == 0, || {
            format!("node {id} went down and kept {left} memberships")
        });
        self.groups.map.clear();
        self.groups.deadline = None;
        self.groups.gate = Gate::Shut;
        self.groups.since.clear();
        self.groups.line.clear();
        self.groups.places.clear();
    }
}

fn code(action: &Action) -> u64 {
    match action {
        Action::Unpublish => 11,
        Action::Detach { mlid } => 12 + (u64::from(*mlid) << 8),
        Action::Leave { id } => 13 + (id << 8),
        Action::StartJoin { id, .. } => 14 + (id << 8),
        Action::Attach { mlid } => 15 + (u64::from(*mlid) << 8),
        Action::Publish => 16,
        Action::SendPending => 17,
        Action::Ask => 20,
        Action::DropPending(reason) => 18 + ((reason.index() as u64) << 8),
        Action::ArmTimer(at) => 19 + (at.0 << 8),
    }
}
