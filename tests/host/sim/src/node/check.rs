// SPDX-License-Identifier: GPL-2.0

//! The rules that hold after every step of a node.

use ipoib_host::control::admission::{QueryCap, JOIN_LIMIT};
use ipoib_host::control::join;
use ipoib_host::control::path::Policy;
use ipoib_host::control::pending::Limits;
use ipoib_host::control::time::Millis;

use super::groups::BROADCAST;
use super::{Dest, Node};
use crate::engine::{Io, Micros};
use crate::mutant::Mutant;

/// How much later than due a node may act: the worker's delay and the clock's grain.
const GRAIN: Micros = 5_000;

impl Node {
    /// Checks everything. Large nodes are checked in part each time.
    pub(crate) fn check(&mut self, io: &mut Io) {
        let id = self.id;
        let taken = self.counters.taken;
        let done = self.counters.sent + self.counters.drops();
        let (packets, bytes) = self.pool;
        let waiting = u64::from(packets);
        io.rule(taken == done + waiting, || {
            format!("node {id}: {taken} packets taken, {done} sent or counted, {waiting} wait")
        });
        let limits = Limits::INTERFACE;
        let bounded = packets <= limits.packets && bytes <= limits.bytes;
        io.rule(bounded, || {
            format!("node {id}: too much waits on the interface")
        });
        let (all, paths, most) = (self.neigh.len(), self.paths.map.len(), self.table.max());
        io.rule(all.max(paths) <= most as usize, || {
            format!("node {id} keeps {all} destinations and {paths} paths")
        });
        self.check_queries(io);
        self.check_told(io);
        if self.paths.map.len() + self.neigh.len() <= 64 {
            self.check_paths(io);
            self.check_groups(io);
            let all: Vec<Dest> = self.neigh.keys().copied().collect();
            for dest in all {
                self.check_waiting(io, dest);
            }
        }
    }

    /// Whoever is told to register again does so when its turn comes, unless it did just before.
    fn check_told(&mut self, io: &mut Io) {
        let Some((told, due)) = self.told else {
            return;
        };
        let (id, before) = (self.id, told.saturating_sub(join::Policy::DEFAULT.merge));
        if !self.admin || !self.link.may_join() || self.groups.asked.is_some_and(|at| at >= before)
        {
            self.told = None;
            return;
        }
        io.rule(io.now <= due.0 * 1000 + GRAIN, || {
            format!("node {id} was told at {told} to register again, and has not")
        });
    }

    fn check_queries(&mut self, io: &mut Io) {
        let id = self.id;
        let out = self.paths.out.len();
        let (taken, window) = (self.paths.cap.outstanding(), self.paths.cap.window());
        io.rule(taken as usize == out, || {
            format!("node {id}: {out} queries are out, the cap counts {taken}")
        });
        let known = self.port.queries();
        io.rule(known <= out, || {
            format!("node {id}: {known} queries run, of which only {out} are known")
        });
        // A window that shrinks lets what is out stay out.
        let limit = match self.mutant {
            Some(Mutant::FixedWindow) => QueryCap::DEFAULT_LIMIT,
            _ => QueryCap::SA_LIMIT,
        };
        io.rule(window <= limit && taken <= limit, || {
            format!("node {id}: {taken} queries out")
        });
    }

    fn check_paths(&mut self, io: &mut Io) {
        let id = self.id;
        let mut asked: Vec<u32> = self.paths.out.values().map(|out| out.dst).collect();
        asked.extend(self.paths.own.values().chain(self.paths.strangers.values()));
        asked.sort_unstable();
        for pair in asked.windows(2) {
            io.rule(pair[0] != pair[1], || {
                format!("node {id} asks twice for peer {}", pair[0])
            });
        }
        for (&dst, entry) in &self.paths.map {
            let machine = &entry.machine;
            let asks = asked.binary_search(&dst).is_ok();
            io.rule(asks == machine.query_id().is_some(), || {
                format!("node {id}: query for peer {dst} and its machine differ")
            });
            io.rule(entry.handle.is_some() == machine.is_published(), || {
                format!("node {id}: handle of peer {dst} and its machine differ")
            });
            let usable = self.link.may_join() || !machine.is_published();
            io.rule(usable, || {
                format!("node {id} has a path to peer {dst} and no link")
            });
            if let Some(at) = machine.deadline() {
                let set = self.paths.deadline.is_some_and(|deadline| deadline <= at);
                io.rule(set, || format!("node {id}: no timer for peer {dst}"));
            }
        }
        for (&dest, neigh) in &self.neigh {
            let Dest::Peer(dst) = dest else { continue };
            let owner = self.paths.map.get(&dst).and_then(|entry| entry.handle);
            let good = neigh.handle.is_none() || neigh.handle == owner;
            io.rule(good, || {
                format!("node {id} uses a handle of peer {dst} that is gone")
            });
        }
    }

    fn check_groups(&mut self, io: &mut Io) {
        let id = self.id;
        let mut objects = 0;
        for (&group, entry) in &self.groups.map {
            let machine = &entry.machine;
            objects += entry.objects.len();
            let held = machine.is_member() || machine.is_joining();
            io.rule(!held || !entry.objects.is_empty(), || {
                format!("node {id}: group {group} has no object for its membership")
            });
            let count = usize::from(machine.has_membership()) + usize::from(machine.is_joining());
            io.rule(entry.objects.len() == count, || {
                format!(
                    "node {id}: group {group} has {} objects for {count} memberships",
                    entry.objects.len()
                )
            });
            if let Some(at) = machine.deadline() {
                let set = self.groups.deadline.is_some_and(|deadline| deadline <= at);
                io.rule(set, || format!("node {id}: no timer for group {group}"));
            }
        }
        let others = self.groups.map.iter().filter(|(&one, _)| one != BROADCAST);
        let out = others.filter(|(_, one)| one.machine.is_joining()).count();
        io.rule(out <= JOIN_LIMIT, || {
            format!("node {id}: {out} joins are out besides the broadcast group's")
        });
        let taken = self.groups.places.len();
        io.rule(taken == out, || {
            format!("node {id}: {out} joins are out, {taken} places are taken")
        });
        let known = self.port.objects();
        io.rule(known <= objects, || {
            format!("node {id}: {known} join objects exist, {objects} are known")
        });
        for (&dest, neigh) in &self.neigh {
            let Dest::Group(group) = dest else { continue };
            let owner = self.groups.map.get(&group).and_then(|entry| entry.handle);
            let good = neigh.handle.is_none() || neigh.handle == owner;
            io.rule(good, || {
                format!("node {id} uses a handle of group {group} that is gone")
            });
        }
    }

    /// What waits for `dest` waits on something that is certain to end.
    pub(crate) fn check_waiting(&mut self, io: &mut Io, dest: Dest) {
        let id = self.id;
        let Some(neigh) = self.neigh.get(&dest) else {
            return;
        };
        let Some(&(since, _)) = neigh.waiting.front() else {
            return;
        };
        let limits = Limits::DESTINATION;
        let packets = neigh.waiting.len() as u32;
        let bytes: u32 = neigh.waiting.iter().map(|&(_, len)| len).sum();
        io.rule(packets <= limits.packets && bytes <= limits.bytes, || {
            format!("node {id}: {packets} packets of {bytes} octets wait for {dest:?}")
        });
        let life = match dest {
            Dest::Peer(_) => Policy::DEFAULT.pending_life,
            Dest::Group(_) => join::Policy::DEFAULT.pending_life,
        };
        let end = since + life.0 * 1000 + GRAIN;
        io.rule(io.now <= end, || {
            format!("node {id}: a packet for {dest:?} waits longer than it lives")
        });
        if self.marked.contains(&dest) {
            let woken = self.work && self.posted.neighbours;
            io.rule(woken, || format!("node {id}: nobody hears of {dest:?}"));
            return;
        }
        let (waits, deadline) = match dest {
            Dest::Peer(dst) => {
                let machine = self.paths.map.get(&dst).map(|entry| &entry.machine);
                let machine = machine.filter(|one| one.is_waiting());
                (machine.is_some(), machine.and_then(|one| one.deadline()))
            }
            Dest::Group(group) => {
                let machine = self.groups.map.get(&group).map(|entry| &entry.machine);
                let machine = machine.filter(|one| one.is_waiting());
                (machine.is_some(), machine.and_then(|one| one.deadline()))
            }
        };
        io.rule(waits, || {
            format!("node {id}: packets for {dest:?} wait on nobody")
        });
        let due = deadline.unwrap_or(Millis::NEVER).0.saturating_mul(1000);
        let set = self.work || self.timer.is_some_and(|at| at <= due.max(io.now + 1000));
        io.rule(set, || {
            format!("node {id}: packets for {dest:?} wait and nothing is set to happen")
        });
    }
}
