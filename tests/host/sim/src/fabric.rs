// SPDX-License-Identifier: GPL-2.0

//! A fabric of nodes and one administrator, driven by a script.

use ipoib_host::control::admission::Asker;
use ipoib_host::control::room::Limit;

use crate::engine::{Ev, Io, Micros, Notice, SECOND};
use crate::mutant::Mutant;
use crate::node::groups::BROADCAST;
use crate::node::{Dest, Node};
use crate::sa::Sa;
use crate::script::{Op, Script, GROUPS};

/// Time after which every node must be well again once nothing is wrong any more, besides its turns: a leave
/// with all its repetitions, a join that began before, the longest back-off and another join.
const RECOVERY: Micros = 45 * SECOND;

/// Destinations and paths that a node of these small fabrics may keep.
const TABLE: u32 = 24;

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rule that was broken first.
    pub failure: Option<String>,
    /// The trace's hash.
    pub hash: u64,
    /// The trace in words, when it was asked for.
    pub text: Vec<String>,
    /// Packets taken from the stacks.
    pub packets: u64,
    /// Requests that the administrator received.
    pub requests: u64,
}

/// The fabric.
pub struct World<'a> {
    io: Io,
    nodes: Vec<Node>,
    sa: Sa,
    script: &'a Script,
    /// Links and interfaces that are down for more than one reason.
    flaps: Vec<u32>,
    downs: Vec<u32>,
    unpartitioned: Vec<u32>,
    listening: Vec<[u32; 8]>,
}

impl<'a> World<'a> {
    fn new(script: &'a Script, mutant: Option<Mutant>, text: bool) -> Self {
        let shape = &script.shape;
        let count = shape.nodes as usize;
        let lids: Vec<u32> = (0..shape.nodes).map(|i| (i + 1) * shape.stride).collect();
        let mut io = Io::new(shape.seed, shape.net, text);
        let mut nodes: Vec<Node> = (0..shape.nodes)
            .map(|i| {
                let seed = io.rng.draw();
                Node::new(i, lids[i as usize], seed, shape.flow, mutant)
            })
            .collect();
        for node in &mut nodes {
            node.limit(Limit::new(TABLE));
            node.set_admin(&mut io, true);
        }
        for (index, &(at, _)) in script.steps.iter().enumerate() {
            io.at(at, Ev::Step(index));
        }
        Self {
            io,
            nodes,
            sa: Sa::new(shape.sa, lids),
            script,
            flaps: vec![0; count],
            downs: vec![0; count],
            unpartitioned: vec![0; count],
            listening: vec![[0; 8]; count],
        }
    }

    /// Runs until `end`, or until a rule is broken.
    fn run(&mut self, end: Micros) {
        while self.io.failure.is_none() {
            let Some(ev) = self.io.next(end) else {
                return;
            };
            self.handle(ev);
        }
    }

    fn handle(&mut self, ev: Ev) {
        let io = &mut self.io;
        if !matches!(
            ev,
            Ev::Work(_) | Ev::Read(_) | Ev::Timer(..) | Ev::MadTimer(..)
        ) {
            io.note(|| format!("{ev:?}"));
        }
        match ev {
            Ev::Request(mad) => {
                io.mix(&[1, u64::from(mad.node), mad.tid]);
                self.sa.request(io, mad);
            }
            Ev::Served(epoch) => self.sa.served(io, epoch),
            Ev::Step(step) => self.step(step),
            Ev::End(step) => self.end(step),
            Ev::Flow(step, left) => self.flow(step, left),
            Ev::Answer(node, tid, reply) => {
                io.mix(&[2, u64::from(node), tid]);
                self.at(node, |node, io| node.answer(io, tid, reply));
            }
            Ev::MadTimer(node, tid, sent) => {
                self.at(node, |node, io| node.mad_timer(io, tid, sent))
            }
            Ev::Work(node) => self.at(node, Node::run),
            Ev::Read(node) => self.at(node, Node::port_read),
            Ev::Timer(node, at) => self.at(node, |node, io| node.timer(io, at)),
            Ev::Notice(node, notice) => self.at(node, |node, io| node.notice(io, notice)),
        }
    }

    fn at(&mut self, node: u32, f: impl FnOnce(&mut Node, &mut Io)) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            f(node, &mut self.io);
            // Whoever looks at where packets went does so in the probe.
            if node.sent.len() > 4096 {
                node.sent.clear();
            }
        }
    }

    fn send(&mut self, node: u32, dest: Dest, packets: u32) {
        self.at(node, |node, io| {
            for _ in 0..packets {
                let len = 60 + io.rng.below(4000) as u32;
                node.transmit(io, dest, len, Asker::Ourselves);
            }
        });
    }

    /// The answer to a request for a node's address.
    fn answer(&mut self, node: u32, peer: u32) {
        self.at(node, |node, io| {
            node.transmit(io, Dest::Peer(peer), 60, Asker::Stranger)
        });
    }

    /// Tells nodes, one after the other, as a sweep does.
    fn tell_all(&mut self, notice: Notice) {
        for node in 0..self.script.shape.nodes {
            self.tell(node, notice, u64::from(node) * 300);
        }
    }

    fn tell(&mut self, node: u32, notice: Notice, after: Micros) {
        let late = self.io.rng.below(2000);
        self.io.after(after + late, Ev::Notice(node, notice));
    }

    fn step(&mut self, index: usize) {
        let Some(&(_, op)) = self.script.steps.get(index) else {
            return;
        };
        let count = self.script.shape.nodes;
        self.io.mix(&[3, index as u64]);
        match op {
            Op::Burst {
                node,
                peer,
                packets,
            } => self.send(node, Dest::Peer(peer), packets),
            Op::Flow {
                node,
                peer,
                packets,
                ..
            } => {
                // The peer has asked for our address first.
                self.answer(node, peer);
                self.flow(index, packets);
            }
            Op::Mcast {
                node,
                group,
                packets,
            } => self.send(node, Dest::Group(group), packets),
            Op::Strangers { node, count: all } => {
                for stranger in count..count + all {
                    self.answer(node, stranger);
                }
            }
            Op::OneToMany { node } => {
                // As those who look for their peers by groups do.
                for group in 1..=GROUPS {
                    self.send(node, Dest::Group(group), 1);
                }
                for peer in (0..count).filter(|&peer| peer != node) {
                    self.send(node, Dest::Peer(peer), 2);
                }
            }
            Op::AllToAll => {
                for node in 0..count {
                    for peer in (0..count).filter(|&peer| peer != node) {
                        self.send(node, Dest::Peer(peer), 1);
                    }
                }
            }
            Op::Listen { node, group, .. } => {
                self.listening[node as usize][usize::from(group)] += 1;
                self.listen(node, group);
            }
            Op::Restart { .. } => self.sa.stop(),
            Op::Handover { lids } => {
                self.sa.stop();
                self.sa.away -= 1;
                self.sa.forget(None);
                self.tell_all(Notice::Manager);
                self.sweep(lids);
            }
            Op::Mute { .. } => self.sa.mute += 1,
            Op::Loss { permille, .. } => self.io.net.loss = permille,
            Op::Slow { jitter, .. } => self.io.net.jitter = jitter,
            Op::Params { qkey, mlid } => {
                self.sa.params.qkey = qkey;
                self.sa.params.mlid = 0xc000 + mlid;
                self.tell_all(Notice::Reregister);
            }
            Op::PKey { node, .. } => {
                self.unpartitioned[node as usize] += 1;
                self.sa.pkeys[node as usize] = false;
                self.sa.forget(Some(node));
                self.tell(node, Notice::PKey(false), 0);
            }
            Op::Flap { node, noticed, .. } => {
                self.flaps[node as usize] += 1;
                if noticed {
                    self.sa.forget(Some(node));
                }
                self.io.after(0, Ev::Notice(node, Notice::Active(false)));
            }
            Op::Restarted { node, .. } => {
                self.downs[node as usize] += 1;
                self.at(node, |node, io| node.set_admin(io, false));
            }
            Op::Reregister { node } => self.tell(node, Notice::Reregister, 0),
            Op::Gid { node } => self.tell(node, Notice::Gid, 0),
            Op::Hint { node, peer, heard } => self.at(node, |node, io| node.hint(io, peer, heard)),
            Op::Break { node } => self.at(node, |node, _| node.break_next = true),
        }
        if let Some(span) = op.span() {
            self.io.after(span, Ev::End(index));
        }
    }

    fn end(&mut self, index: usize) {
        let Some(&(_, op)) = self.script.steps.get(index) else {
            return;
        };
        match op {
            Op::Listen { node, group, .. } => {
                self.listening[node as usize][usize::from(group)] -= 1;
                self.listen(node, group);
            }
            Op::Restart { forget, lids, .. } => {
                self.sa.away -= 1;
                if forget {
                    self.sa.forget(None);
                }
                if self.sa.away == 0 {
                    self.sweep(lids);
                }
            }
            Op::Mute { .. } => self.sa.mute -= 1,
            Op::Loss { .. } => self.io.net.loss = self.script.shape.net.loss,
            Op::Slow { .. } => self.io.net.jitter = self.script.shape.net.jitter,
            Op::PKey { node, .. } => {
                self.unpartitioned[node as usize] -= 1;
                if self.unpartitioned[node as usize] == 0 {
                    self.sa.pkeys[node as usize] = true;
                    self.tell(node, Notice::PKey(true), 0);
                }
            }
            Op::Flap { node, noticed, .. } => {
                self.flaps[node as usize] -= 1;
                if self.flaps[node as usize] == 0 {
                    self.io.after(0, Ev::Notice(node, Notice::Active(true)));
                    if noticed {
                        self.tell(node, Notice::Reregister, 500);
                    }
                }
            }
            Op::Restarted { node, .. } => {
                self.downs[node as usize] -= 1;
                if self.downs[node as usize] == 0 {
                    self.at(node, |node, io| node.set_admin(io, true));
                }
            }
            _ => {}
        }
    }

    fn listen(&mut self, node: u32, group: u8) {
        let wanted = self.listening[node as usize][usize::from(group)] > 0;
        self.at(node, |node, io| {
            if wanted {
                node.listeners.insert(group);
            } else {
                node.listeners.remove(&group);
            }
            node.listeners_changed(io);
        });
    }

    /// A new master has taken the fabric over.
    fn sweep(&mut self, lids: bool) {
        if lids {
            self.sa.lids.rotate_left(1);
            for node in 0..self.script.shape.nodes {
                let lid = self.sa.lids[node as usize];
                self.io.after(0, Ev::Notice(node, Notice::Lid(lid)));
            }
        }
        self.tell_all(Notice::Reregister);
    }

    fn flow(&mut self, index: usize, left: u32) {
        let Some(&(
            _,
            Op::Flow {
                node, peer, every, ..
            },
        )) = self.script.steps.get(index)
        else {
            return;
        };
        self.send(node, Dest::Peer(peer), 1);
        if left > 1 {
            self.io.after(every, Ev::Flow(index, left - 1));
        }
    }

    /// Nothing goes wrong any more; what began has ended.
    fn calm(&mut self) {
        let rest = self
            .script
            .steps
            .iter()
            .map(|&(at, op)| match op {
                Op::Flow { every, packets, .. } => at + every * u64::from(packets),
                _ => at + op.span().unwrap_or(0),
            })
            .max();
        self.run(rest.unwrap_or(0) + SECOND / 100);
        self.io.net.loss = 0;
        self.io.net.twice = 0;
        self.io.net.jitter = self.script.shape.net.jitter.min(1000);
        let sixteen = self
            .nodes
            .iter()
            .map(|node| node.turn().0 * 1000 * 17)
            .max();
        self.io.note(|| "calm from here on".to_string());
        self.run(self.io.now + RECOVERY + sixteen.unwrap_or(0));
    }

    /// Everybody is well and reaches what it wants.
    fn check_well(&mut self) {
        for node in &self.nodes {
            let (id, io) = (node.id, &mut self.io);
            io.rule(node.carrier(), || format!("node {id} did not come back"));
            let groups = node.listeners.iter().copied().chain([BROADCAST]);
            for group in groups {
                let bits = self.sa.membership(id, group);
                io.rule(bits & 1 != 0, || {
                    format!("the administrator does not know that node {id} is in group {group}")
                });
            }
            for group in 0..=GROUPS {
                let params = node.group_params(group);
                let good = params.is_none_or(|params| params == self.sa.params_of(group));
                io.rule(good, || {
                    format!("node {id} has old parameters for group {group}: {params:?}")
                });
            }
            for peer in 0..self.script.shape.nodes {
                let lid = node.path_lid(peer);
                let good = lid.is_none_or(|lid| lid == self.sa.lids[peer as usize]);
                io.rule(good, || {
                    format!("node {id} sends to peer {peer} at {lid:?}, which is not its LID")
                });
            }
        }
    }

    /// A packet to each peer and group arrives; one of three, where the administrator has a queue that they fill.
    fn probe(&mut self) {
        let count = self.script.shape.nodes;
        let mut expected = Vec::new();
        for node in 0..count {
            self.at(node, |node, _| node.sent.clear());
            let peer = (node + 1) % count;
            let group = (node % (u32::from(GROUPS) + 1)) as u8;
            expected.push((node, Dest::Peer(peer)));
            expected.push((node, Dest::Group(group)));
        }
        for _ in 0..3 {
            for &(node, dest) in &expected {
                self.send(node, dest, 1);
            }
            self.run(self.io.now + 12 * SECOND);
        }
        for (node, dest) in expected {
            let sent = &self.nodes[node as usize].sent;
            let last = sent.iter().rev().find(|sent| sent.dest == dest);
            let good = last.is_some_and(|sent| match dest {
                Dest::Peer(peer) => sent.handle.lid == self.sa.lids[peer as usize],
                Dest::Group(group) => {
                    let params = self.sa.params_of(group);
                    (sent.handle.lid, sent.handle.qkey) == (u32::from(params.mlid), params.qkey)
                }
            });
            self.io.rule(good, || {
                format!("node {node} does not reach {dest:?} although all is well")
            });
        }
    }

    /// What is not used any more is forgotten, and nobody stays a member of what he does not want.
    fn check_aged(&mut self) {
        self.run(self.io.now + 130 * SECOND);
        for node in &self.nodes {
            let (id, io) = (node.id, &mut self.io);
            let left = node.neighbours() + node.resolved();
            io.rule(left == 0, || format!("node {id} keeps {left} unused peers"));
            for (group, bits) in self.sa.memberships(id) {
                let wanted = group == BROADCAST || node.listeners.contains(&group);
                let excused = node.port.is_unsure(group, bits) || !self.script.is_orderly();
                io.rule(wanted || excused, || {
                    format!("node {id} is left behind in group {group} with {bits:#x}")
                });
            }
        }
    }

    /// Everything is set down: nothing is left.
    fn close(&mut self) {
        for node in 0..self.script.shape.nodes {
            self.at(node, |node, io| node.set_admin(io, false));
        }
        self.run(self.io.now + 20 * SECOND);
        for node in &self.nodes {
            let (id, io) = (node.id, &mut self.io);
            let mut left = self.sa.memberships(id);
            left.retain(|&(group, bits)| !node.port.is_unsure(group, bits));
            io.rule(left.is_empty() || !self.script.is_orderly(), || {
                format!("node {id} is down and still a member: {left:?}")
            });
            io.rule(node.port.is_quiet(), || {
                format!("node {id} is down and still asks")
            });
        }
    }
}

fn drive<'a>(world: &mut World<'a>) {
    let phases: [fn(&mut World<'a>); 5] = [
        World::calm,
        World::check_well,
        World::probe,
        World::check_aged,
        World::close,
    ];
    for phase in phases {
        if world.io.failure.is_none() {
            phase(world);
        }
    }
}

/// Carries out a script.
pub fn run(script: &Script, mutant: Option<Mutant>, text: bool) -> Report {
    let mut world = World::new(script, mutant, text);
    drive(&mut world);
    Report {
        failure: world.io.failure.clone(),
        hash: world.io.hash(),
        text: world.io.text().to_vec(),
        packets: world.nodes.iter().map(|node| node.counters.taken).sum(),
        requests: world.sa.paths + world.sa.joins,
    }
}
