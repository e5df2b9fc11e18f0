// SPDX-License-Identifier: GPL-2.0

//! The subnet administrator: one server that works off a queue.

use std::collections::{BTreeMap, VecDeque};

use ipoib_host::control::join::Params;

use crate::engine::{Ask, Ev, Io, Mad, Micros, Reply, SECOND};

/// What is fixed about an administrator.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The time that one request takes.
    pub service: Micros,
    /// Requests that wait at most.
    pub limit: usize,
    /// Whether it answers BUSY when the queue is full, or nothing.
    pub busy: bool,
    /// Whether it grants send-only membership (MC-7).
    pub send_only: bool,
}

/// The time that one number of [`Sa::rate`] stands for.
pub const BIN: Micros = SECOND / 10;

/// The administrator and what it knows of the fabric.
pub struct Sa {
    config: Config,
    queue: VecDeque<Mad>,
    serving: Option<Mad>,
    /// Restarts so far.
    epoch: u32,
    /// Reasons for which it is not there.
    pub away: u32,
    /// Reasons for which it takes requests and answers nothing.
    pub mute: u32,
    /// LID of each node.
    pub lids: Vec<u32>,
    /// Whether each node has the P_Key.
    pub pkeys: Vec<bool>,
    /// The broadcast group's parameters; the other groups have them with their own MLID.
    pub params: Params,
    members: BTreeMap<(u32, u8), u8>,
    /// The latest request of each node about each group.
    latest: BTreeMap<(u32, u8), u64>,
    /// Path queries received.
    pub paths: u64,
    /// Joins received.
    pub joins: u64,
    /// Requests answered with something else than BUSY.
    pub answered: u64,
    /// Requests thrown away or answered with BUSY because the queue was full.
    pub overflows: u64,
    /// Joins received in each `BIN` of time.
    pub rate: Vec<u32>,
}

impl Sa {
    /// An administrator for nodes with these LIDs.
    pub fn new(config: Config, lids: Vec<u32>) -> Self {
        Self {
            config,
            queue: VecDeque::new(),
            serving: None,
            epoch: 0,
            away: 0,
            mute: 0,
            pkeys: vec![true; lids.len()],
            lids,
            params: Params {
                mlid: 0xc000,
                qkey: 0x0b1b,
                mtu: 4,
                rate: 3,
                ..Params::default()
            },
            members: BTreeMap::new(),
            latest: BTreeMap::new(),
            paths: 0,
            joins: 0,
            answered: 0,
            overflows: 0,
            rate: Vec::new(),
        }
    }

    /// The time that one request takes.
    pub fn service(&self) -> Micros {
        self.config.service
    }

    /// A request arrives.
    pub fn request(&mut self, io: &mut Io, mad: Mad) {
        if self.away > 0 || self.is_overtaken(&mad) {
            return;
        }
        match mad.ask {
            Ask::Path { .. } => self.paths += 1,
            Ask::Join { .. } => {
                self.joins += 1;
                let bin = (io.now / BIN) as usize;
                if self.rate.len() <= bin {
                    self.rate.resize(bin + 1, 0);
                }
                self.rate[bin] += 1;
            }
            Ask::Leave { .. } => {}
        }
        if self.mute > 0 {
            return;
        }
        if self.serving.is_none() {
            self.serve(io, mad);
        } else if self.queue.len() < self.config.limit {
            self.queue.push_back(mad);
        } else {
            self.overflows += 1;
            if self.config.busy {
                io.send(Ev::Answer(mad.node, mad.tid, Reply::Busy));
            }
        }
    }

    /// Whether a later request of the same node about the same group was here before. A fabric delivers in order, so
    /// that this happens to copies only; jitter stands for what goes on elsewhere.
    fn is_overtaken(&mut self, mad: &Mad) -> bool {
        let (Ask::Join { group, .. } | Ask::Leave { group, .. }) = mad.ask else {
            return false;
        };
        let latest = self.latest.entry((mad.node, group)).or_default();
        *latest = mad.tid.max(*latest);
        *latest > mad.tid
    }

    fn serve(&mut self, io: &mut Io, mad: Mad) {
        self.serving = Some(mad);
        let fifth = self.config.service / 5;
        let span = self.config.service - fifth / 2 + io.rng.below(fifth + 1);
        io.after(span, Ev::Served(self.epoch));
    }

    /// The request at hand is done.
    pub fn served(&mut self, io: &mut Io, epoch: u32) {
        if epoch != self.epoch {
            return;
        }
        if let Some(mad) = self.serving.take() {
            let reply = self.answer(&mad);
            if self.mute == 0 {
                self.answered += 1;
                io.send(Ev::Answer(mad.node, mad.tid, reply));
            }
        }
        if let Some(mad) = self.queue.pop_front() {
            self.serve(io, mad);
        }
    }

    fn answer(&mut self, mad: &Mad) -> Reply {
        let member = self.pkeys.get(mad.node as usize) == Some(&true);
        match mad.ask {
            Ask::Path { dst } => {
                let reachable = self.pkeys.get(dst as usize) == Some(&true);
                match self.lids.get(dst as usize) {
                    Some(&lid) if member && reachable => Reply::Path { lid },
                    _ => Reply::Refused,
                }
            }
            Ask::Join { group, state } => {
                if !member || (state == 8 && !self.config.send_only) {
                    return Reply::Refused;
                }
                *self.members.entry((mad.node, group)).or_default() |= state;
                Reply::Joined(self.params_of(group))
            }
            Ask::Leave { group, state } => {
                if let Some(have) = self.members.get_mut(&(mad.node, group)) {
                    *have &= !state;
                    if *have == 0 {
                        self.members.remove(&(mad.node, group));
                    }
                }
                Reply::Left
            }
        }
    }

    /// What a join of `group` answers.
    pub fn params_of(&self, group: u8) -> Params {
        Params {
            mlid: self.params.mlid + u16::from(group),
            ..self.params
        }
    }

    /// The administrator stops; what it had not answered is lost.
    pub fn stop(&mut self) {
        self.away += 1;
        self.epoch += 1;
        self.queue.clear();
        self.serving = None;
    }

    /// Forgets the memberships of all, or of one node.
    pub fn forget(&mut self, node: Option<u32>) {
        self.members
            .retain(|&(member, _), _| node.is_some_and(|node| node != member));
    }

    /// The JoinState bits of a node in a group; 0 for none.
    pub fn membership(&self, node: u32, group: u8) -> u8 {
        self.members.get(&(node, group)).copied().unwrap_or(0)
    }

    /// How many nodes are full members of a group.
    pub fn members_of(&self, group: u8) -> usize {
        let all = self.members.iter();
        all.filter(|((_, one), state)| *one == group && **state & 1 != 0)
            .count()
    }

    /// The memberships of a node.
    pub fn memberships(&self, node: u32) -> Vec<(u8, u8)> {
        self.members
            .range((node, 0)..=(node, u8::MAX))
            .map(|(&(_, group), &state)| (group, state))
            .collect()
    }
}
