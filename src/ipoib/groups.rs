// SPDX-License-Identifier: GPL-2.0

//! The multicast groups of an interface: carries out what their machines (`control::join`) decide.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
};

mod entry;

use self::entry::{
    Entry,
    Fate,
    Held, //
};
use super::{
    turns::{
        Slip,
        Turns, //
    },
    walk::{
        next_after,
        pace, //
    },
    worker::Cx, //
};
use crate::{
    base::{
        log::warn_limited,
        params, //
    },
    control::{
        join::{
            Action,
            Event,
            Failure,
            Group,
            Kind,
            Params,
            Policy, //
        },
        reason::TxDrop,
        room::Limit,
        time::Millis, //
    },
    wire::gid::Gid, //
};

/// All groups of one interface. Belongs to the worker.
pub(crate) struct Groups {
    map: RBTree<Gid, Entry>,
    /// Entries of `map`.
    count: u32,
    /// The broadcast group, which all others depend on.
    broadcast: Gid,
    deadline: Option<Millis>,
    /// The groups are not looked through before this.
    not_before: Millis,
    turns: Turns,
    gate: Gate,
}

/// Whether groups other than the broadcast group may be joined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// No: the broadcast group is not.
    Shut,
    /// Not for now: the broadcast group is being joined again.
    Held,
    /// Yes.
    Open,
}

/// What debugfs shows of a group.
pub(crate) struct View {
    pub(crate) kind: Option<Kind>,
    pub(crate) member: bool,
    pub(crate) joining: bool,
    pub(crate) attached: bool,
    pub(crate) complete: bool,
    pub(crate) failures: u32,
    pub(crate) last_failure: Option<Failure>,
    /// Error number of the last join; 0 after a success.
    pub(crate) status: i32,
    pub(crate) mlid: u16,
}

impl Groups {
    /// No group but the broadcast group, whose joining begins with [`Groups::up`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(broadcast: Gid) -> Result<Self> {
        let mut this = Self {
            map: RBTree::new(),
            count: 0,
            broadcast,
            deadline: None,
            not_before: Millis::ZERO,
            turns: Turns::new(),
            gate: Gate::Shut,
        };
        this.insert(&broadcast)?;
        Ok(this)
    }

    /// Makes an entry for `group` if there is none.
    fn ensure(&mut self, cx: &mut Cx<'_>, group: &Gid) -> Result {
        if self.map.get(group).is_some() {
            return Ok(());
        }
        self.insert(group)?;
        if self.gate != Gate::Shut {
            self.step(cx, group, Event::Up);
        }
        if self.gate == Gate::Held {
            self.step(cx, group, Event::Hold);
        }
        Ok(())
    }

    /// Makes an entry for `group`, which has none.
    fn insert(&mut self, group: &Gid) -> Result {
        let entry = Entry {
            machine: Group::new(Policy::DEFAULT),
            attach: None,
            memberships: [None, None],
            ah: None,
            listed: false,
            params: Params::default(),
            status: 0,
            slip: Some(Slip::new()?),
        };
        drop(self.map.insert(RBTreeNode::new(*group, entry, GFP_KERNEL)?));
        self.count += 1;
        Ok(())
    }

    /// Feeds one machine and carries out its actions.
    fn step(&mut self, cx: &mut Cx<'_>, group: &Gid, event: Event) {
        // What every other group copies from the broadcast group.
        let basis = self.broadcast().filter(|_| *group != self.broadcast);
        let mut next = Some(event);
        let mut broken = false;
        // A failed set-up is told first, and takes no other news away.
        while let Some(event) = core::mem::take(&mut broken)
            .then_some(Event::SetupFailed)
            .or_else(|| next.take())
        {
            let Some(entry) = self.map.get_mut(group) else {
                return;
            };
            let mut failed = false;
            entry.machine.set_turn(cx.pace.turn());
            for action in entry.machine.step(event, cx.now, cx.seq) {
                // What follows a failed set-up in the list builds on it.
                if failed && matches!(action, Action::Publish | Action::SendPending) {
                    continue;
                }
                if action == Action::Ask && *group != self.broadcast {
                    if let Some(slip) = entry.slip.take() {
                        self.turns.ask(group, slip);
                        continue;
                    }
                }
                match carry_out(cx, group, entry, &mut self.turns, basis, action) {
                    Ok(None) => {}
                    Ok(Some(Outcome::Deadline(at))) => {
                        self.deadline = Millis::earliest(self.deadline, Some(at));
                    }
                    Ok(Some(Outcome::Event(event))) => next = Some(event),
                    Err(e) => {
                        warn_limited!(
                            "{}: cannot set up multicast group {:?}: {:?}\n",
                            cx.dev.name(),
                            group,
                            e
                        );
                        broken = true;
                        failed = true;
                    }
                }
            }
        }
    }

    /// Takes what has become of the joins that are out.
    pub(crate) fn take_answers(&mut self, cx: &mut Cx<'_>) {
        let broadcast = self.broadcast;
        self.take_fates(cx, &broadcast);
        for group in self.turns.out().iter().flatten() {
            self.take_fates(cx, group);
        }
    }

    /// Takes what has become of all memberships. Looks at every group.
    pub(crate) fn take_losses(&mut self, cx: &mut Cx<'_>) {
        let mut at = None;
        while let Some((group, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(group);
            self.take_fates(cx, &group);
        }
    }

    fn take_fates(&mut self, cx: &mut Cx<'_>, group: &Gid) {
        while let Some(entry) = self.map.get_mut(group) {
            let Some((id, fate)) = entry.take_fate() else {
                return;
            };
            let event = match fate {
                Fate::Answer(answer) => {
                    self.turns.over(id);
                    entry.answered(cx, group, id, answer)
                }
                Fate::Lost => Event::Lost { id },
            };
            self.step(cx, group, event);
        }
    }

    /// Lets those who wait for a place join, as far as there are places. At the end of each run of the worker.
    pub(crate) fn admit(&mut self, cx: &mut Cx<'_>) {
        while let Some((group, slip)) = self.turns.next() {
            let Some(entry) = self.map.get_mut(&group) else {
                continue;
            };
            entry.slip = Some(slip);
            self.step(cx, &group, Event::Turn);
        }
    }

    /// How many groups wait for a place for their join, and how many places are taken.
    pub(crate) fn joins(&self) -> (usize, usize) {
        let out = self.turns.out().iter().flatten().count();
        (self.turns.waiting(), out)
    }

    /// Feeds `event` to every machine that `which` picks.
    fn step_where(&mut self, cx: &mut Cx<'_>, event: Event, which: impl Fn(&Group) -> bool) {
        let mut at = None;
        while let Some((group, hit)) = next_after(&self.map, at.as_ref(), |e| which(&e.machine)) {
            at = Some(group);
            if hit {
                self.step(cx, &group, event);
            }
        }
    }

    /// Feeds `event` to every machine but the broadcast group's.
    fn step_others(&mut self, cx: &mut Cx<'_>, event: Event) {
        let mut at = None;
        while let Some((group, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(group);
            if group != self.broadcast {
                self.step(cx, &group, event);
            }
        }
    }

    /// The port lets us join: the broadcast group first (MC-2).
    pub(crate) fn up(&mut self, cx: &mut Cx<'_>) {
        let broadcast = self.broadcast;
        self.step(cx, &broadcast, Event::Want(Kind::Broadcast));
        self.step(cx, &broadcast, Event::Up);
    }

    /// The port is down, or what we are there has changed: all memberships are void.
    pub(crate) fn down(&mut self, cx: &mut Cx<'_>) {
        self.gate = Gate::Shut;
        self.step_where(cx, Event::Down, |_| true);
    }

    /// The broadcast group is joined: the others may be, too, with its parameters.
    pub(crate) fn broadcast_joined(&mut self, cx: &mut Cx<'_>) {
        let before = core::mem::replace(&mut self.gate, Gate::Open);
        if before != Gate::Shut {
            // Its parameters have changed, and every group copies them.
            let event = Event::Reregister {
                spread: Millis::ZERO,
            };
            self.step_others(cx, event);
        }
        self.step_others(cx, Event::Up);
    }

    /// Joins everything anew, keeping what there is meanwhile.
    pub(crate) fn reregister(&mut self, cx: &mut Cx<'_>, spread: Millis) {
        let broadcast = self.broadcast;
        let at_once = Event::Reregister {
            spread: Millis::ZERO,
        };
        self.step(cx, &broadcast, at_once);
        // The others want to know its parameters first.
        if self.gate == Gate::Open && !self.settled() {
            self.gate = Gate::Held;
            self.step_others(cx, Event::Hold);
        }
        self.step_others(cx, Event::Reregister { spread });
    }

    /// Whether the broadcast group is joined, and not being joined again.
    pub(crate) fn settled(&self) -> bool {
        self.map
            .get(&self.broadcast)
            .is_some_and(|entry| entry.machine.is_member() && !entry.machine.is_joining())
    }

    /// Lets the other groups follow once the broadcast group has been joined again, with the
    /// parameters that it had.
    pub(crate) fn reopen(&mut self, cx: &mut Cx<'_>) {
        if self.gate == Gate::Held && self.settled() {
            self.gate = Gate::Open;
            self.step_others(cx, Event::Up);
        }
    }

    /// The parameters of the broadcast group, while the data path may use it.
    pub(crate) fn broadcast(&self) -> Option<Params> {
        self.map.get(&self.broadcast)?.machine.published()
    }

    /// Packets wait for `group`.
    pub(crate) fn pending(&mut self, cx: &mut Cx<'_>, group: Gid) {
        if Limit::GROUPS.is_full(self.count) && self.map.get(&group).is_none() {
            drop_waiting(cx, &group, TxDrop::TableFull);
            return;
        }
        if self.ensure(cx, &group).is_err() {
            drop_waiting(cx, &group, TxDrop::NoMemory);
            return;
        }
        self.step(cx, &group, Event::Pending);
    }

    /// Takes over the list of groups that the stack wants to hear (MC-18).
    pub(crate) fn set_listeners(&mut self, cx: &mut Cx<'_>) {
        let Ok(listeners) = cx.iface.listeners() else {
            cx.iface.retry(super::worker::MULTICAST);
            return;
        };
        for entry in self.map.values_mut() {
            entry.listed = false;
        }
        let broadcast = self.broadcast;
        for group in listeners.iter().filter(|group| **group != broadcast) {
            if self.left_to_others(cx, group) {
                continue;
            }
            if self.ensure(cx, group).is_err() {
                cx.iface.retry(super::worker::MULTICAST);
                continue;
            }
            if let Some(entry) = self.map.get_mut(group) {
                entry.listed = true;
            }
            self.step(cx, group, Event::Want(Kind::Full));
        }
        // Send-only groups stay (MC-18).
        let mut at = None;
        while let Some((group, unlisted)) = next_after(&self.map, at.as_ref(), |e| {
            !e.listed && e.machine.wanted_kind() == Some(Kind::Full)
        }) {
            at = Some(group);
            if unlisted {
                self.step(cx, &group, Event::Unwant);
                self.forget_if_idle(&group);
            }
        }
    }

    /// Whether a group that we have not joined is not ours to join: somebody else has, and that was
    /// asked for by `umcast` (MC-20).
    fn left_to_others(&self, cx: &Cx<'_>, group: &Gid) -> bool {
        let others = cx.iface.umcast()
            && self.map.get(group).is_none()
            && cx.iface.port().rdma().group_joined(group);
        if others && params::mcast_debug() {
            pr_info!(
                "{}: group {:?} is joined directly by userspace and left to it\n",
                cx.dev.name(),
                group
            );
        }
        others
    }

    fn forget_if_idle(&mut self, group: &Gid) {
        let idle = self
            .map
            .get(group)
            .is_some_and(|e| e.machine.is_idle() && !e.machine.is_waiting());
        if idle && *group != self.broadcast {
            drop(self.map.remove(group));
            self.count = self.count.saturating_sub(1);
        }
    }

    /// Leaves send-only groups that no neighbour uses any more (NB-4).
    pub(crate) fn age(&mut self, cx: &mut Cx<'_>) {
        let mut at = None;
        while let Some((group, kind)) =
            next_after(&self.map, at.as_ref(), |e| e.machine.wanted_kind())
        {
            at = Some(group);
            if kind == Some(Kind::SendOnly) && !cx.iface.neighbours().contains(&group) {
                self.step(cx, &group, Event::Idle);
            }
            self.forget_if_idle(&group);
        }
    }

    /// How many groups there are.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Feeds the machines whose deadline has come. Looks at every group, and so not again before some
    /// milliseconds have passed when there are many.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if !self.deadline().is_some_and(|at| at.reached(now)) {
            return;
        }
        self.deadline = None;
        self.step_where(cx, Event::Tick, |machine| {
            machine.deadline().is_some_and(|at| at.reached(now))
        });
        for entry in self.map.values() {
            self.deadline = Millis::earliest(self.deadline, entry.machine.deadline());
        }
        self.not_before = now.saturating_add(pace(self.count));
    }

    /// When [`Groups::tick`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        self.deadline.map(|at| at.max(self.not_before))
    }

    /// Leaves everything.
    pub(crate) fn close(&mut self, cx: &mut Cx<'_>) {
        self.step_where(cx, Event::Unwant, |_| true);
        self.map = RBTree::new();
        self.turns = Turns::new();
        self.count = 0;
    }

    /// Leaves everything, and begins anew with another broadcast group.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; then nothing has changed.
    pub(crate) fn rebase(&mut self, cx: &mut Cx<'_>, broadcast: Gid) -> Result {
        let fresh = Self::new(broadcast)?;
        self.down(cx);
        self.close(cx);
        *self = fresh;
        Ok(())
    }

    /// Calls `f` for each group, for debugfs.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Gid, View)) {
        for (group, entry) in self.map.iter() {
            let machine = &entry.machine;
            f(
                group,
                View {
                    kind: machine.wanted_kind(),
                    member: machine.is_member(),
                    joining: machine.is_joining(),
                    attached: entry.attach.is_some(),
                    complete: entry.ah.is_some(),
                    failures: machine.failures(),
                    last_failure: machine.last_failure(),
                    status: entry.status,
                    mlid: entry.params.mlid,
                },
            );
        }
    }
}

/// What carrying out an action leads to.
enum Outcome {
    Event(Event),
    Deadline(Millis),
}

/// Carries out one action. An error means that the group could not be set up.
fn carry_out(
    cx: &mut Cx<'_>,
    group: &Gid,
    entry: &mut Entry,
    turns: &mut Turns,
    basis: Option<Params>,
    action: Action,
) -> Result<Option<Outcome>> {
    match action {
        Action::Unpublish => {
            entry.ah = None;
            cx.iface.neighbours().unpublish(group);
        }
        Action::Detach { .. } => entry.attach = None,
        Action::Leave { id } => {
            turns.over(id);
            entry.leave(id);
        }
        // Others stand in the line.
        Action::Ask => return Ok(Some(Outcome::Event(Event::Turn))),
        Action::StartJoin { id, state } => {
            let answer = match cx.iface.resolver().join(cx.iface, group, state, basis) {
                Ok(membership) => {
                    let answer = membership.take_answer();
                    if let Some(slot) = entry.memberships.iter_mut().find(|slot| slot.is_none()) {
                        let since = cx.now;
                        if answer.is_none() {
                            turns.begun(id, group);
                        }
                        *slot = Some(Held {
                            id,
                            since,
                            membership,
                        });
                    }
                    answer
                }
                Err(e) => Some(Err(e)),
            };
            let event = answer.map(|answer| entry.answered(cx, group, id, answer));
            return Ok(event.map(Outcome::Event));
        }
        Action::Attach { mlid } => {
            if entry.attach.is_none() {
                entry.attach = Some(cx.hw.attach(group, mlid)?);
            }
        }
        Action::Publish => {
            let attr = cx
                .iface
                .resolver()
                .multicast(cx.iface, group, &entry.params);
            let ah = cx.hw.create_ah(&attr)?;
            cx.iface
                .neighbours()
                .publish(group, &ah, |list| cx.send(list));
            entry.ah = Some(ah);
        }
        Action::SendPending => {
            if let Some(ah) = &entry.ah {
                cx.iface
                    .neighbours()
                    .publish(group, ah, |list| cx.send(list));
            }
        }
        Action::DropPending(reason) => drop_waiting(cx, group, reason),
        Action::ArmTimer(at) => return Ok(Some(Outcome::Deadline(at))),
    }
    Ok(None)
}

fn drop_waiting(cx: &Cx<'_>, group: &Gid, reason: TxDrop) {
    cx.iface
        .neighbours()
        .drop_waiting(group, |packets| cx.count(reason, packets));
}
