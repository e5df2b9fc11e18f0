// SPDX-License-Identifier: GPL-2.0

//! The paths of a node, as `src/ipoib/paths.rs` has them.

use std::collections::BTreeMap;

use ipoib_host::control::admission::{Asker, QueryCap, Turns};
use ipoib_host::control::backoff;
use ipoib_host::control::path::{Action, Event, Path, Policy};
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::time::Millis;

use super::{Dest, Handle, Node};
use crate::engine::{millis, Io};
use crate::mutant::Mutant;
use crate::port::Outcome;

/// The least time between a failed query and the next one for the same peer: half the back-off's base.
const PATIENCE: Millis = Millis(499);

pub(crate) struct Entry {
    pub(crate) machine: Path,
    pub(crate) handle: Option<Handle>,
    /// When the last query failed.
    failed: Option<Millis>,
    asker: Asker,
}

#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) dst: u32,
    tid: u64,
    since: Millis,
}

pub(crate) struct Paths {
    pub(crate) map: BTreeMap<u32, Entry>,
    pub(crate) cap: QueryCap,
    /// Queries that wait on our own behalf, by id.
    pub(crate) own: BTreeMap<u64, u32>,
    /// Queries that wait on a stranger's.
    pub(crate) strangers: BTreeMap<u64, u32>,
    turns: Turns,
    /// Queries for strangers since one of our own, while one of these waited.
    in_front: u32,
    pub(crate) out: BTreeMap<u64, Out>,
    pub(crate) deadline: Option<Millis>,
    /// When something last happened that lets failed queries be repeated at once.
    pub(crate) excused: Option<Millis>,
    /// Queries handed over.
    pub(crate) started: u64,
    /// The path that failed last may lose its handle.
    may_withdraw: bool,
}

impl Paths {
    pub(crate) fn new(cap: QueryCap) -> Self {
        Self {
            map: BTreeMap::new(),
            cap,
            own: BTreeMap::new(),
            strangers: BTreeMap::new(),
            turns: Turns::new(),
            in_front: 0,
            out: BTreeMap::new(),
            deadline: None,
            excused: None,
            started: 0,
            may_withdraw: true,
        }
    }

    /// When the pause ends that queries wait for, if any do.
    pub(crate) fn pause(&self) -> Option<Millis> {
        let waits = !(self.own.is_empty() && self.strangers.is_empty());
        self.cap.deadline().filter(|_| waits)
    }
}

impl Node {
    fn policy(&self) -> Policy {
        let mut policy = Policy::DEFAULT;
        if self.has(Mutant::NoBackoff) {
            policy.retry = backoff::Config::new(1, 1);
        }
        policy
    }

    pub(crate) fn path_wanted(&mut self, io: &mut Io, dst: u32, asker: Asker) {
        let full = self.table.is_full(self.paths.map.len() as u32) && !self.has(Mutant::NoBounds);
        if full && !self.paths.map.contains_key(&dst) {
            self.drop_waiting(Dest::Peer(dst), TxDrop::TableFull);
            return;
        }
        let policy = self.policy();
        self.paths.map.entry(dst).or_insert_with(|| Entry {
            machine: Path::new(policy),
            handle: None,
            failed: None,
            asker,
        });
        if asker == Asker::Ourselves {
            self.prefer(dst);
        }
        self.step_path(io, dst, Event::Wanted);
    }

    /// Our own traffic goes to `dst` after all.
    fn prefer(&mut self, dst: u32) {
        let Some(entry) = self.paths.map.get_mut(&dst) else {
            return;
        };
        entry.asker = Asker::Ourselves;
        if let Some(id) = entry.machine.query_id() {
            if self.paths.strangers.remove(&id).is_some() {
                self.paths.own.insert(id, dst);
            }
        }
    }

    /// Queries handed to the administrator so far.
    pub fn queries_started(&self) -> u64 {
        self.paths.started
    }

    /// The LID in use for a peer.
    pub fn path_lid(&self, dst: u32) -> Option<u32> {
        let entry = self.paths.map.get(&dst)?;
        entry
            .handle
            .filter(|_| entry.machine.is_published())
            .map(|handle| handle.lid)
    }

    /// Peers with a handle.
    pub fn resolved(&self) -> usize {
        let all = self.paths.map.values();
        all.filter(|entry| entry.machine.is_published()).count()
    }

    pub(crate) fn step_path(&mut self, io: &mut Io, dst: u32, event: Event) {
        let now = millis(io.now);
        let Some(entry) = self.paths.map.get_mut(&dst) else {
            return;
        };
        let actions = entry.machine.step(event, now, &mut self.seq);
        io.rule(!actions.overflowed(), || {
            format!("{event:?} lost an action")
        });
        match event {
            Event::Failed { .. } => entry.failed = Some(now),
            Event::Heard | Event::Invalidate | Event::Flush | Event::Resolved { .. } => {
                entry.failed = None;
            }
            _ => {}
        }
        let id = self.id;
        io.mix(&[4, u64::from(id), u64::from(dst)]);
        io.note(|| {
            format!(
                "node {id} path {dst}: {event:?} -> {:?}",
                actions.iter().collect::<Vec<_>>()
            )
        });
        for action in actions {
            io.mix(&[u64::from(id), u64::from(dst), code(&action)]);
            self.path_action(io, dst, event, action);
        }
    }

    fn path_action(&mut self, io: &mut Io, dst: u32, event: Event, action: Action) {
        let now = millis(io.now);
        let id_of_node = self.id;
        match action {
            Action::Unpublish => {
                let kept = !matches!(event, Event::Failed { .. }) || self.paths.may_withdraw;
                io.rule(kept, || {
                    format!(
                        "node {id_of_node} gave up a path in use for one error that may mean BUSY"
                    )
                });
                if let Some(entry) = self.paths.map.get_mut(&dst) {
                    entry.handle = None;
                }
                self.unpublish(Dest::Peer(dst));
            }
            Action::Publish | Action::SendPending => {
                let handle = self.paths.map.get(&dst).and_then(|entry| entry.handle);
                if let Some(handle) = handle {
                    self.publish(Dest::Peer(dst), handle);
                }
            }
            Action::DropPending(reason) => self.drop_waiting(Dest::Peer(dst), reason),
            Action::CancelQuery { id } => {
                if self.has(Mutant::LeakQuery) {
                    return;
                }
                self.paths.own.remove(&id);
                self.paths.strangers.remove(&id);
                if let Some(out) = self.paths.out.remove(&id) {
                    if !self.has(Mutant::KeepsAsking) {
                        self.port.cancel(io, out.tid);
                    }
                    self.paths.cap.release();
                    if event == Event::Tick {
                        let random = self.seq.random();
                        self.paths.cap.unanswered(out.since, now, random);
                    }
                }
            }
            Action::StartQuery { id } => {
                let entry = self.paths.map.get(&dst);
                let failed = entry.and_then(|entry| entry.failed);
                let excused = self.paths.excused;
                if let Some(failed) = failed.filter(|at| excused.is_none_or(|ex| ex < *at)) {
                    let patient = now.saturating_sub(failed) >= PATIENCE;
                    io.rule(patient, || {
                        format!("node {id_of_node} asked for peer {dst} again at once")
                    });
                }
                let asker = self.paths.map.get(&dst).map(|entry| entry.asker);
                match asker {
                    Some(Asker::Stranger) => self.paths.strangers.insert(id, dst),
                    _ => self.paths.own.insert(id, dst),
                };
            }
            Action::ArmTimer(at) => {
                self.paths.deadline = Millis::earliest(self.paths.deadline, Some(at));
            }
        }
    }

    /// The query to hand over next, with a place taken for it.
    fn next_query(&mut self, io: &mut Io) -> Option<(u64, u32)> {
        let first = |line: &BTreeMap<u64, u32>| line.first_key_value().map(|(&id, &dst)| (id, dst));
        let (own, stranger) = (first(&self.paths.own), first(&self.paths.strangers));
        own.or(stranger)?;
        if !self.paths.cap.try_acquire(millis(io.now)) && !self.has(Mutant::NoCap) {
            return None;
        }
        let turn = self.paths.turns.next(own.is_some(), stranger.is_some());
        let next = match turn? {
            _ if self.has(Mutant::InOrder) => own.into_iter().chain(stranger).min(),
            Asker::Ourselves => own,
            Asker::Stranger => stranger,
        }?;
        self.paths.own.remove(&next.0);
        let for_stranger = self.paths.strangers.remove(&next.0).is_some();
        self.paths.in_front = match own {
            Some(_) if for_stranger => self.paths.in_front + 1,
            _ => 0,
        };
        let (id, count) = (self.id, self.paths.in_front);
        io.rule(count <= 1, || {
            format!("node {id} asks for {count} strangers before a peer of its own")
        });
        Some(next)
    }

    fn admit(&mut self, io: &mut Io) {
        while let Some((id, dst)) = self.next_query(io) {
            let event = if let Some(tid) = self.port.query(io, dst, id) {
                let since = millis(io.now);
                self.paths.started += 1;
                self.paths.out.insert(id, Out { dst, tid, since });
                Event::Started { id }
            } else {
                self.paths.cap.release();
                if self.has(Mutant::ForgetDeferred) {
                    continue;
                }
                Event::Deferred { id }
            };
            self.step_path(io, dst, event);
        }
    }

    pub(crate) fn query_done(&mut self, io: &mut Io, id: u64, outcome: Outcome<u32>) {
        let Some(out) = self.paths.out.remove(&id) else {
            return;
        };
        self.paths.cap.release();
        match outcome {
            Outcome::Silence => {
                let random = self.seq.random();
                self.paths.cap.unanswered(out.since, millis(io.now), random);
                if self.has(Mutant::NoPause) {
                    self.paths.cap.resume();
                }
            }
            Outcome::Good(_) | Outcome::Error | Outcome::NotSent => {
                let latency = millis(io.now).saturating_sub(out.since);
                self.paths.cap.answered(latency, millis(io.now));
                if self.has(Mutant::NoPause) {
                    self.paths.cap.resume();
                }
                self.pace.answered(latency);
            }
        }
        let Some(entry) = self.paths.map.get(&out.dst) else {
            return;
        };
        let awaited = entry.machine.query_id();
        let again = entry.machine.failures() > 0;
        if awaited != Some(id) {
            return;
        }
        let event = match outcome {
            Outcome::Good(lid) => {
                let handle = self.new_handle(lid, 0);
                if let Some(entry) = self.paths.map.get_mut(&out.dst) {
                    entry.handle = Some(handle);
                }
                Event::Resolved { id }
            }
            Outcome::Error => Event::Failed {
                id,
                // One refusal may mean that the administrator is busy; the second is believed.
                retryable: !(again || self.has(Mutant::BelieveBusy)),
            },
            Outcome::Silence | Outcome::NotSent => Event::Failed {
                id,
                retryable: true,
            },
        };
        self.paths.may_withdraw = again;
        self.step_path(io, out.dst, event);
        self.paths.may_withdraw = true;
    }

    fn step_paths(&mut self, io: &mut Io, event: Event, which: impl Fn(&Path) -> bool) {
        let hit: Vec<u32> = self
            .paths
            .map
            .iter()
            .filter(|(_, entry)| which(&entry.machine))
            .map(|(&dst, _)| dst)
            .collect();
        for dst in hit {
            self.step_path(io, dst, event);
        }
    }

    pub(crate) fn refresh_paths(&mut self, io: &mut Io, spread: Millis) {
        self.paths.cap.resume();
        self.step_paths(io, Event::Refresh { spread }, |_| true);
    }

    pub(crate) fn invalidate_paths(&mut self, io: &mut Io) {
        self.step_paths(io, Event::Invalidate, |_| true);
    }

    pub(crate) fn flush_paths(&mut self, io: &mut Io) {
        self.step_paths(io, Event::Flush, |_| true);
        self.paths.cap.resume();
        self.paths.map.clear();
        self.paths.deadline = None;
    }

    pub(crate) fn tick_paths(&mut self, io: &mut Io) {
        let now = millis(io.now);
        if self.paths.deadline.is_some_and(|at| at.reached(now)) {
            self.paths.deadline = None;
            self.step_paths(io, Event::Tick, |machine| {
                machine.deadline().is_some_and(|at| at.reached(now))
            });
            for entry in self.paths.map.values() {
                let deadline = entry.machine.deadline();
                self.paths.deadline = Millis::earliest(self.paths.deadline, deadline);
            }
        }
        self.admit(io);
    }

    pub(crate) fn age_paths(&mut self, io: &mut Io) {
        let old: Vec<u32> = self
            .paths
            .map
            .keys()
            .copied()
            .filter(|&dst| !self.remembers(Dest::Peer(dst)))
            .collect();
        if self.has(Mutant::NoAgeing) {
            return;
        }
        for dst in old {
            self.step_path(io, dst, Event::Flush);
            self.paths.map.remove(&dst);
        }
    }

    /// The stack doubts a peer, or a frame came from it.
    pub fn hint(&mut self, io: &mut Io, dst: u32, heard: bool) {
        if self.admin {
            let event = if heard { Event::Heard } else { Event::Suspect };
            self.step_path(io, dst, event);
            self.posted.neighbours = true;
            self.kick(io);
        }
    }
}

fn code(action: &Action) -> u64 {
    match action {
        Action::Unpublish => 1,
        Action::CancelQuery { id } => 2 + (id << 8),
        Action::StartQuery { id } => 3 + (id << 8),
        Action::Publish => 4,
        Action::SendPending => 5,
        Action::DropPending(reason) => 6 + ((reason.index() as u64) << 8),
        Action::ArmTimer(at) => 7 + (at.0 << 8),
    }
}
