// SPDX-License-Identifier: GPL-2.0

//! What the transmit path of a node knows, as `src/ipoib/neigh.rs` has it.

use std::collections::VecDeque;

use ipoib_host::control::admission::Asker;
use ipoib_host::control::pending::{Budget, Limits};
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::room::{self, Rounds, Use};
use ipoib_host::control::time::Millis;

use super::{Dest, Handle, Node, Sent};
use crate::engine::{millis, Io, Micros};
use crate::mutant::Mutant;

/// What the transmit path knows of a destination.
#[derive(Debug)]
pub(super) struct Neigh {
    pub(super) handle: Option<Handle>,
    pub(super) waiting: VecDeque<(Micros, u32)>,
    budget: Budget,
    own: bool,
    pub(super) used: Millis,
}

impl Node {
    /// The stack sends a packet of `len` octets on somebody's behalf.
    pub fn transmit(&mut self, io: &mut Io, dest: Dest, len: u32, asker: Asker) {
        if !self.admin {
            return;
        }
        self.counters.taken += 1;
        if self.broadcast.is_none() {
            self.dropped(TxDrop::NotReady, 1);
            return;
        }
        let now = millis(io.now);
        if let Some(neigh) = self.neigh.get_mut(&dest) {
            if let Some(handle) = neigh.handle {
                neigh.used = now;
                self.counters.sent += 1;
                self.sent.push(Sent { dest, handle });
                return;
            }
        }
        let full = self.table.is_full(self.neigh.len() as u32) && !self.has(Mutant::NoBounds);
        if full && !self.neigh.contains_key(&dest) {
            self.dropped(TxDrop::TableFull, 1);
            self.posted.neighbours = true;
            self.kick(io);
            return;
        }
        let neigh = self.neigh.entry(dest).or_insert_with(|| Neigh {
            handle: None,
            waiting: VecDeque::new(),
            budget: Budget::new(Limits::DESTINATION),
            own: false,
            used: now,
        });
        let bounded = self.mutant != Some(Mutant::Unbounded);
        let limits = Limits::INTERFACE;
        let room = self.pool.0 < limits.packets && self.pool.1 + len <= limits.bytes;
        if (!room || !neigh.budget.admit(len)) && bounded {
            self.dropped(TxDrop::QueueFull, 1);
            return;
        }
        self.pool = (self.pool.0 + 1, self.pool.1 + len);
        neigh.own |= asker == Asker::Ourselves;
        neigh.used = now;
        neigh.waiting.push_back((io.now, len));
        if self.has(Mutant::LostWakeUp) && io.rng.chance(100) {
            return;
        }
        self.marked.insert(dest);
        self.posted.neighbours = true;
        self.kick(io);
        self.check_waiting(io, dest);
    }

    fn dropped(&mut self, reason: TxDrop, packets: u64) {
        self.counters.dropped[reason.index()] += packets;
    }

    pub(super) fn take_wanted(&mut self, io: &mut Io) {
        for dest in std::mem::take(&mut self.marked) {
            let neigh = self.neigh.get(&dest);
            let Some(neigh) = neigh.filter(|neigh| !neigh.waiting.is_empty()) else {
                continue;
            };
            let asker = if neigh.own {
                Asker::Ourselves
            } else {
                Asker::Stranger
            };
            match dest {
                Dest::Peer(_) if !self.link.may_join() => {
                    self.drop_waiting(dest, TxDrop::NotReady);
                }
                Dest::Peer(peer) => self.path_wanted(io, peer, asker),
                Dest::Group(group) => self.group_pending(io, group),
            }
        }
    }

    /// Gives `handle` to the data path and sends what waited.
    pub(crate) fn publish(&mut self, dest: Dest, handle: Handle) {
        if let Some(neigh) = self.neigh.get_mut(&dest) {
            neigh.handle = Some(handle);
            neigh.budget.clear();
            neigh.own = false;
            for (_, len) in neigh.waiting.drain(..) {
                self.pool = (self.pool.0 - 1, self.pool.1 - len);
                self.counters.sent += 1;
                self.sent.push(Sent { dest, handle });
            }
        }
    }

    /// Withdraws the handle from the data path.
    pub(crate) fn unpublish(&mut self, dest: Dest) {
        if let Some(neigh) = self.neigh.get_mut(&dest) {
            if self.mutant != Some(Mutant::HandleSurvives) {
                neigh.handle = None;
            }
        }
    }

    /// Drops what waits for `dest`.
    pub(crate) fn drop_waiting(&mut self, dest: Dest, reason: TxDrop) {
        if self.has(Mutant::ForgetDrop) && reason == TxDrop::Expired {
            return;
        }
        let Some(neigh) = self.neigh.get_mut(&dest) else {
            return;
        };
        neigh.budget.clear();
        neigh.own = false;
        let packets = neigh.waiting.len() as u64;
        for (_, len) in neigh.waiting.drain(..) {
            self.pool = (self.pool.0 - 1, self.pool.1 - len);
        }
        if !self.has(Mutant::Uncounted) {
            self.dropped(reason, packets);
        }
    }

    /// Makes room in tables that are about to be full, as the module's worker does.
    pub(super) fn make_room(&mut self, io: &mut Io) {
        let now = millis(io.now);
        let (all, paths) = (self.neigh.len(), self.paths.map.len());
        let crowded = self.table.is_crowded(all as u32) || self.table.is_crowded(paths as u32);
        if !crowded || !self.next_room.reached(now) {
            return;
        }
        self.next_room = now.saturating_add(room::INTERVAL);
        let mut rounds = Rounds::new();
        loop {
            self.remove_neighbours(|neigh| {
                rounds.takes(&Use {
                    resolved: neigh.handle.is_some(),
                    waiting: !neigh.waiting.is_empty(),
                    idle: now.saturating_sub(neigh.used),
                })
            });
            self.age_groups(io);
            self.age_paths(io);
            let enough = self.table.is_roomy(self.neigh.len() as u32)
                && self.table.is_roomy(self.paths.map.len() as u32);
            if enough || !rounds.advance() {
                break;
            }
        }
    }

    pub(super) fn remove_neighbours(&mut self, gone: impl Fn(&Neigh) -> bool) {
        let old: Vec<Dest> = self
            .neigh
            .iter()
            .filter(|(_, neigh)| gone(neigh))
            .map(|(&dest, _)| dest)
            .collect();
        for dest in old {
            self.drop_waiting(dest, TxDrop::Flushed);
            self.neigh.remove(&dest);
        }
    }

    /// Whether the transmit path remembers `dest`.
    pub(crate) fn remembers(&self, dest: Dest) -> bool {
        self.neigh.contains_key(&dest)
    }
}
