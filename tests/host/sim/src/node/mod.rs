// SPDX-License-Identifier: GPL-2.0

//! A node that runs the module's machines: the same worker, tables and data path as `src/ipoib`, in the same order,
//! around the same source files.

pub mod check;
pub mod groups;
mod neigh;
pub mod paths;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipoib_host::control::admission::QueryCap;
use ipoib_host::control::ageing::Ageing;
use ipoib_host::control::join::Params;
use ipoib_host::control::port as link;
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::room::Limit;
use ipoib_host::control::seq::Seq;
use ipoib_host::control::storm::Pace;
use ipoib_host::control::time::Millis;
use ipoib_host::wire::mtu;

use self::neigh::Neigh;
use crate::engine::{millis, Ev, Io, Micros, Notice};
use crate::mutant::Mutant;
use crate::port::{Callback, Port};

/// The span over which a node spreads what it asks anew, as in the module's worker.
pub const SPREAD: Millis = Millis(100);

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dest {
    /// Another node.
    Peer(u32),
    /// A group.
    Group(u8),
}

/// An address handle: its own number, and what it leads to (a LID, or an MLID and Q_Key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Never used twice.
    pub id: u64,
    /// LID, or MLID.
    pub lid: u32,
    /// The Q_Key of a group.
    pub qkey: u32,
}

/// A packet that left.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Where to.
    pub dest: Dest,
    /// With which handle.
    pub handle: Handle,
}

/// Counts packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Taken from the stack.
    pub taken: u64,
    /// Sent.
    pub sent: u64,
    /// Dropped, by reason.
    pub dropped: [u64; TxDrop::COUNT],
}

impl Counters {
    /// All drops.
    pub fn drops(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// What has been posted to the worker.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    port: bool,
    reregister: bool,
    multicast: bool,
    neighbours: bool,
    gid: bool,
    repath: bool,
}

/// One interface of one node.
pub struct Node {
    /// Its number.
    pub id: u32,
    /// The deliberate fault it has, if any.
    pub mutant: Option<Mutant>,
    /// The kernel's part.
    pub port: Port,
    /// Packets.
    pub counters: Counters,
    /// Packets that left and that the fabric has not looked at.
    pub sent: Vec<Sent>,
    /// Groups that the stack wants to hear.
    pub listeners: BTreeSet<u8>,
    /// Let the next set-up of a group fail.
    pub break_next: bool,
    pub(crate) admin: bool,
    active: bool,
    pkey: bool,
    lid: u32,
    pub(crate) seq: Seq,
    pub(crate) pace: Pace,
    pub(crate) link: link::Port,
    pub(crate) paths: paths::Paths,
    pub(crate) groups: groups::Groups,
    neigh: BTreeMap<Dest, Neigh>,
    /// What waits on all destinations together: packets and octets.
    pool: (u32, u32),
    marked: BTreeSet<Dest>,
    posted: Posted,
    callbacks: VecDeque<Callback>,
    work: bool,
    timer: Option<Micros>,
    next_ageing: Millis,
    broadcast: Option<Params>,
    handles: u64,
    /// How full the tables of destinations and of paths may get.
    pub(crate) table: Limit,
    /// When the node was told to register again and has not yet, and when it must.
    pub(crate) told: Option<(Millis, Millis)>,
    /// The worker runs because of the timer.
    alarm: bool,
    /// How often it did so in vain, and since when.
    idle: (u32, Micros),
    next_room: Millis,
}

impl Node {
    /// A node that is down, with an active port.
    pub fn new(id: u32, lid: u32, seed: u64, flow: usize, mutant: Option<Mutant>) -> Self {
        Self {
            id,
            mutant,
            port: Port::new(id, flow),
            counters: Counters::default(),
            sent: Vec::new(),
            listeners: BTreeSet::new(),
            break_next: false,
            admin: false,
            active: true,
            pkey: true,
            lid,
            seq: Seq::new(seed),
            pace: Pace::new(),
            link: link::Port::new(4096),
            paths: paths::Paths::new(Self::cap(mutant)),
            groups: groups::Groups::default(),
            neigh: BTreeMap::new(),
            pool: (0, 0),
            marked: BTreeSet::new(),
            posted: Posted::default(),
            callbacks: VecDeque::new(),
            work: false,
            timer: None,
            next_ageing: Millis::ZERO,
            broadcast: None,
            handles: 0,
            table: Limit::PATHS,
            told: None,
            alarm: false,
            idle: (0, 0),
            next_room: Millis::ZERO,
        }
    }

    /// Gives the node smaller tables than the module has.
    pub fn limit(&mut self, table: Limit) {
        self.table = table;
    }

    fn cap(mutant: Option<Mutant>) -> QueryCap {
        match mutant {
            Some(Mutant::FixedWindow) => QueryCap::new(QueryCap::DEFAULT_LIMIT),
            _ => QueryCap::adaptive(QueryCap::SA_LIMIT),
        }
    }

    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn new_handle(&mut self, lid: u32, qkey: u32) -> Handle {
        self.handles += 1;
        Handle {
            id: self.handles,
            lid,
            qkey,
        }
    }

    /// Whether the carrier is on.
    pub fn carrier(&self) -> bool {
        self.link.carrier()
    }

    /// The broadcast group's parameters in force.
    pub fn broadcast(&self) -> Option<Params> {
        self.broadcast
    }

    /// How long this node may wait for its turn.
    pub fn turn(&self) -> Millis {
        self.pace.turn()
    }

    /// Destinations that the transmit path remembers.
    pub fn neighbours(&self) -> usize {
        self.neigh.len()
    }

    /// The interface is set up or down.
    pub fn set_admin(&mut self, io: &mut Io, up: bool) {
        if self.admin == up {
            return;
        }
        self.admin = up;
        let _ = self.link.step(link::Event::Admin(up));
        if up {
            self.next_ageing = Ageing::default().next_pass(millis(io.now));
            self.posted.port = true;
            self.posted.multicast = true;
            self.kick(io);
        } else {
            let _ = self.link.step(link::Event::BroadcastLost);
            self.pace.cancel();
            self.close_groups(io);
            self.flush_paths(io);
            self.remove_neighbours(|_| true);
            self.broadcast = None;
            self.marked.clear();
            self.paths.cap = Self::cap(self.mutant);
        }
        self.check(io);
    }

    /// The port reports something.
    pub fn notice(&mut self, io: &mut Io, notice: Notice) {
        // The multicast layer hears of it as well, and is as quick.
        if notice != Notice::Gid {
            self.port.look_up_manager(io);
        }
        match notice {
            Notice::Reregister => {
                self.port.void_all(io);
                self.posted.reregister = true;
            }
            Notice::Active(active) => {
                if !active {
                    self.port.void_all(io);
                    self.posted.reregister = true;
                }
                self.active = active;
            }
            Notice::PKey(present) => {
                self.port.void_all(io);
                self.pkey = present;
            }
            Notice::Lid(lid) => {
                self.port.void_all(io);
                self.posted.reregister = true;
                self.lid = lid;
            }
            Notice::Gid => self.posted.gid = true,
            Notice::Manager => self.posted.repath = true,
        }
        self.collect(io);
        self.kick(io);
        let span = io.rng.below(3000);
        io.after(span, Ev::Read(self.id));
    }

    /// The port has been read anew.
    pub fn port_read(&mut self, io: &mut Io) {
        self.posted.port = true;
        self.kick(io);
    }

    /// A request of ours was answered.
    pub fn answer(&mut self, io: &mut Io, tid: u64, reply: crate::engine::Reply) {
        self.port.answer(io, tid, reply);
        self.collect(io);
    }

    /// A request of ours may have to be repeated.
    pub fn mad_timer(&mut self, io: &mut Io, tid: u64, sent: u32) {
        self.port.timer(io, tid, sent);
        self.collect(io);
    }

    fn collect(&mut self, io: &mut Io) {
        while let Some(callback) = self.port.callback() {
            self.callbacks.push_back(callback);
            self.kick(io);
        }
    }

    fn kick(&mut self, io: &mut Io) {
        if !self.work {
            self.work = true;
            let span = io.rng.below(200);
            io.after(span, Ev::Work(self.id));
        }
    }

    /// The list of groups that the stack wants to hear has changed.
    pub fn listeners_changed(&mut self, io: &mut Io) {
        self.posted.multicast = true;
        self.kick(io);
    }

    /// The timer fires.
    pub fn timer(&mut self, io: &mut Io, at: Micros) {
        if self.timer == Some(at) {
            self.timer = None;
            self.alarm = true;
            self.kick(io);
        }
    }

    /// A timer is set for something to be done, not again and again for nothing.
    fn check_alarm(&mut self, io: &mut Io, before: u64) {
        let idle = std::mem::take(&mut self.alarm) && io.hash() == before;
        if !idle {
            self.idle = (0, io.now);
            return;
        }
        self.idle.0 += 1;
        let (id, (runs, since)) = (self.id, self.idle);
        io.rule(runs < 10 || io.now - since > 100_000, || {
            format!("node {id} was woken {runs} times for nothing")
        });
    }

    /// The worker runs.
    pub fn run(&mut self, io: &mut Io) {
        self.work = false;
        let posted = std::mem::take(&mut self.posted);
        if posted.port {
            self.port_changed(io, &posted);
        }
        if !self.admin {
            self.drop_callbacks(io);
            self.check(io);
            return;
        }
        let now = millis(io.now);
        let before = io.hash();
        if posted.reregister {
            self.pace.call(now);
            self.told = self.told.or(self.pace.deadline().map(|due| (now, due)));
        }
        if self.pace.take_turn(now) {
            self.ask_anew(io);
        }
        if posted.repath && !self.has(Mutant::NoRefresh) {
            let turn = self.pace.turn();
            self.paths.excused = Some(now);
            self.refresh_paths(io, SPREAD.saturating_add(turn));
        }
        self.take_callbacks(io, false);
        if posted.multicast {
            self.set_listeners(io);
        }
        self.take_callbacks(io, true);
        if posted.neighbours {
            self.take_wanted(io);
            self.make_room(io);
        }
        self.tick_paths(io);
        self.tick_groups(io);
        self.age(io);
        self.settle(io);
        self.admit_groups(io);
        self.collect(io);
        self.arm(io);
        self.check_alarm(io, before);
        self.check(io);
    }

    fn ask_anew(&mut self, io: &mut Io) {
        let now = millis(io.now);
        if !self.has(Mutant::NoRejoin) {
            self.reregister_groups(io, SPREAD);
        }
        if !self.has(Mutant::NoRefresh) {
            self.paths.excused = Some(now);
            self.refresh_paths(io, SPREAD);
        }
    }

    fn arm(&mut self, io: &mut Io) {
        let deadline = [
            self.paths.deadline,
            self.paths.pause(),
            self.groups.deadline,
            self.pace.deadline(),
            Some(self.next_ageing),
        ]
        .into_iter()
        .fold(None, Millis::earliest);
        if let Some(at) = deadline {
            if self.has(Mutant::ForgetTimer) && io.rng.chance(300) {
                return;
            }
            let at = if self.has(Mutant::Spins) { 0 } else { at.0 };
            let at = (at.saturating_mul(1000)).max(io.now + 1000);
            if self.timer != Some(at) {
                self.timer = Some(at);
                io.at(at, Ev::Timer(self.id, at));
            }
        }
    }

    fn port_changed(&mut self, io: &mut Io, posted: &Posted) {
        let active = self.active;
        let _ = self.link.step(link::Event::Active(active));
        let _ = self.link.step(link::Event::PKey(self.pkey));
        let turns = !self.has(Mutant::EveryoneAtOnce);
        self.pace.set_lid(if turns { self.lid } else { 0 }, 0);
        if !self.admin {
            return;
        }
        if posted.gid {
            self.groups_down(io);
            self.invalidate_paths(io);
            self.settle(io);
        }
        if self.link.may_join() {
            self.groups_up(io);
        } else {
            self.pace.cancel();
            self.groups_down(io);
            if !self.has(Mutant::DownKeepsPaths) {
                self.flush_paths(io);
            }
        }
    }

    /// Takes the answers to queries, or what has become of memberships.
    fn take_callbacks(&mut self, io: &mut Io, queries: bool) {
        let all = std::mem::take(&mut self.callbacks);
        for callback in all {
            match callback {
                Callback::Query(id, outcome) if queries => self.query_done(io, id, outcome),
                Callback::Join(object, outcome) if !queries => self.join_done(io, object, outcome),
                Callback::Void(object) if !queries => self.void(io, object),
                later => {
                    self.callbacks.push_back(later);
                    self.kick(io);
                }
            }
            self.collect(io);
        }
    }

    fn drop_callbacks(&mut self, io: &mut Io) {
        self.callbacks.clear();
        self.collect(io);
        self.callbacks.clear();
    }

    /// Carries the state of the broadcast group over to carrier and data path.
    fn settle(&mut self, io: &mut Io) {
        let params = self.broadcast_params();
        if params == self.broadcast {
            self.reopen_groups(io);
            return;
        }
        self.broadcast = params;
        let _ = self.link.step(match params {
            Some(params) => link::Event::BroadcastJoined {
                ib_mtu: mtu::from_code(params.mtu).unwrap_or(4096),
            },
            None => link::Event::BroadcastLost,
        });
        if params.is_some() {
            self.broadcast_joined(io);
        }
    }

    fn age(&mut self, io: &mut Io) {
        let now = millis(io.now);
        if !self.next_ageing.reached(now) {
            return;
        }
        let ageing = Ageing::default();
        self.next_ageing = ageing.next_pass(now);
        self.remove_neighbours(|neigh| ageing.expired(neigh.used, now, !neigh.waiting.is_empty()));
        self.age_groups(io);
        self.age_paths(io);
    }
}
