// SPDX-License-Identifier: GPL-2.0

//! The policy of the in-tree driver, as far as the large scenarios need it: everybody asks at once, failed joins
//! are repeated after 2, 4, 8, 16, 16 ... seconds (MC-12), failed path queries with the next packet (SA-6), and three
//! packets wait for a peer (SA-4).

use std::collections::BTreeMap;

use crate::engine::{Ev, Io, Micros, Notice, Reply, SECOND};
use crate::node::groups::BROADCAST;
use crate::port::{Callback, Outcome, Port};

const PACKETS: u32 = 3;
const BACKOFF_MAX: Micros = 16 * SECOND;

#[derive(Clone, Copy, Debug, Default)]
struct Path {
    good: bool,
    asking: bool,
    waiting: u32,
}

/// A node with the in-tree policy.
pub struct InTree {
    id: u32,
    port: Port,
    paths: BTreeMap<u32, Path>,
    queries: BTreeMap<u64, u32>,
    ids: u64,
    object: Option<u64>,
    backoff: Micros,
    retry: Option<Micros>,
    /// Packets dropped.
    pub dropped: u64,
}

impl InTree {
    /// A node that has joined nothing yet.
    pub fn new(id: u32, flow: usize) -> Self {
        Self {
            id,
            port: Port::new(id, flow),
            paths: BTreeMap::new(),
            queries: BTreeMap::new(),
            ids: 0,
            object: None,
            backoff: SECOND,
            retry: None,
            dropped: 0,
        }
    }

    /// Leaves what there is and joins the broadcast group.
    pub fn join(&mut self, io: &mut Io) {
        if let Some(old) = self.object.take() {
            self.port.free(io, BROADCAST, old);
        }
        self.retry = None;
        self.ids += 1;
        self.object = Some(self.ids);
        self.port.join(io, BROADCAST, self.ids, 1);
        self.collect(io);
    }

    /// A packet for a peer.
    pub fn transmit(&mut self, io: &mut Io, dst: u32) {
        let path = self.paths.entry(dst).or_default();
        if path.good {
            return;
        }
        if path.waiting < PACKETS {
            path.waiting += 1;
        } else {
            self.dropped += 1;
        }
        if !path.asking {
            path.asking = true;
            self.ids += 1;
            self.queries.insert(self.ids, dst);
            if self.port.query(io, dst, self.ids).is_none() {
                self.query_done(self.ids, Outcome::NotSent);
            }
        }
        self.collect(io);
    }

    /// Peers that can be sent to.
    pub fn resolved(&self) -> usize {
        self.paths.values().filter(|path| path.good).count()
    }

    /// Whether `dst` can be sent to.
    pub fn reaches(&self, dst: u32) -> bool {
        self.paths.get(&dst).is_some_and(|path| path.good)
    }

    /// An event of the port.
    pub fn notice(&mut self, io: &mut Io, notice: Notice) {
        if notice == Notice::Reregister {
            self.port.void_all(io);
            for path in self.paths.values_mut() {
                path.good = false;
            }
            self.backoff = SECOND;
            self.join(io);
        }
    }

    /// An answer.
    pub fn answer(&mut self, io: &mut Io, tid: u64, reply: Reply) {
        self.port.answer(io, tid, reply);
        self.collect(io);
    }

    /// The time for an answer is over.
    pub fn mad_timer(&mut self, io: &mut Io, tid: u64, sent: u32) {
        self.port.timer(io, tid, sent);
        self.collect(io);
    }

    /// The back-off is over.
    pub fn timer(&mut self, io: &mut Io, at: Micros) {
        if self.retry == Some(at) {
            self.join(io);
        }
    }

    fn collect(&mut self, io: &mut Io) {
        while let Some(callback) = self.port.callback() {
            match callback {
                Callback::Query(id, outcome) => self.query_done(id, outcome),
                Callback::Join(object, _) if self.object != Some(object) => {}
                Callback::Join(_, Outcome::Good(_)) => self.backoff = SECOND,
                Callback::Join(object, _) => {
                    self.port.free(io, BROADCAST, object);
                    self.object = None;
                    self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
                    let at = io.now + self.backoff;
                    self.retry = Some(at);
                    io.at(at, Ev::Timer(self.id, at));
                }
                Callback::Void(_) => {}
            }
        }
    }

    fn query_done(&mut self, id: u64, outcome: Outcome<u32>) {
        let Some(dst) = self.queries.remove(&id) else {
            return;
        };
        if let Some(path) = self.paths.get_mut(&dst) {
            path.asking = false;
            path.good = matches!(outcome, Outcome::Good(_));
            if !path.good {
                self.dropped += u64::from(path.waiting);
            }
            path.waiting = 0;
        }
    }
}
