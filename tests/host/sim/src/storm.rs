// SPDX-License-Identifier: GPL-2.0

//! The large scenarios: one node that resolves 10,000 peers, and 10,000 nodes that join again.

use ipoib_host::control::admission::Asker;

use crate::engine::{Ev, Io, Micros, Net, Notice, SECOND};
use crate::intree::InTree;
use crate::mutant::Mutant;
use crate::node::groups::BROADCAST;
use crate::node::{Dest, Node};
use crate::port::FLOW;
use crate::sa::{Config, Sa, BIN};

/// What the nodes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The module's machines, perhaps with a fault.
    Ours(Option<Mutant>),
    /// The in-tree policy, with the MAD layer's limit on requests in flight.
    InTree {
        /// 16 as of 6.14; before that none.
        flow: usize,
    },
}

enum Actor {
    Ours(Box<Node>),
    InTree(InTree),
}

impl Actor {
    fn resolved(&self) -> usize {
        match self {
            Self::Ours(node) => node.resolved(),
            Self::InTree(node) => node.resolved(),
        }
    }
}

/// How a large scenario went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How many peers were resolved or nodes are back.
    pub done: usize,
    /// When the last one was, if all were.
    pub time: Option<Micros>,
    /// The administrator's capacity makes it take at least this long.
    pub bound: Micros,
    /// Requests that the administrator received.
    pub requests: u64,
    /// Packets dropped, where there is traffic.
    pub dropped: u64,
    /// Joins received in each [`BIN`], from the restart on.
    pub rate: Vec<u32>,
}

impl Outcome {
    /// Requests for each one that is done.
    pub fn each(&self) -> f64 {
        self.requests as f64 / self.done.max(1) as f64
    }

    /// The most requests in one second.
    pub fn peak(&self) -> u32 {
        let bins = (SECOND / BIN) as usize;
        let seconds = self.rate.chunks(bins).map(|bin| bin.iter().sum());
        seconds.max().unwrap_or(0)
    }
}

struct Storm {
    io: Io,
    actors: Vec<Actor>,
    sa: Sa,
}

impl Storm {
    fn new(driver: Driver, actors: u32, lids: u32, per_second: u64) -> Self {
        let net = Net {
            loss: 0,
            twice: 0,
            delay: 20,
            jitter: 30,
        };
        let mut io = Io::new(u64::from(lids), net, false);
        let config = Config {
            service: SECOND / per_second,
            limit: 1000,
            busy: false,
            send_only: true,
        };
        let actors = (0..actors)
            .map(|id| match driver {
                Driver::Ours(mutant) => {
                    let seed = io.rng.draw();
                    Actor::Ours(Box::new(Node::new(id, id + 1, seed, FLOW, mutant)))
                }
                Driver::InTree { flow } => Actor::InTree(InTree::new(id, flow)),
            })
            .collect();
        Self {
            io,
            actors,
            sa: Sa::new(config, (1..=lids).collect()),
        }
    }

    fn run(&mut self, end: Micros) {
        while let Some(ev) = self.io.next(end) {
            self.handle(ev);
        }
    }

    /// Runs until all nodes are members of the broadcast group, for `limit` from `start` on.
    fn until_all_joined(mut self, start: Micros, limit: Micros) -> Outcome {
        let nodes = self.actors.len();
        let mut time = None;
        while time.is_none() && self.io.now < start + limit {
            self.run(self.io.now + BIN);
            let all = self.sa.members_of(BROADCAST) == nodes;
            time = all.then(|| self.io.now - start);
        }
        // Whoever has asked in vain goes on asking.
        self.run(self.io.now + SECOND);
        assert!(self.io.failure.is_none(), "{:?}", self.io.failure);
        let from = (start / BIN) as usize;
        Outcome {
            done: self.sa.members_of(BROADCAST),
            time,
            bound: nodes as u64 * self.sa.service(),
            requests: self.sa.joins,
            dropped: 0,
            rate: self.sa.rate.get(from..).unwrap_or(&[]).to_vec(),
        }
    }

    fn handle(&mut self, ev: Ev) {
        let io = &mut self.io;
        match ev {
            Ev::Request(mad) => self.sa.request(io, mad),
            Ev::Served(epoch) => self.sa.served(io, epoch),
            Ev::Step(id) => match self.actors.get_mut(id) {
                Some(Actor::Ours(node)) => node.set_admin(io, true),
                Some(Actor::InTree(node)) => node.join(io),
                None => {}
            },
            Ev::Answer(id, tid, reply) => match self.actors.get_mut(id as usize) {
                Some(Actor::Ours(node)) => node.answer(io, tid, reply),
                Some(Actor::InTree(node)) => node.answer(io, tid, reply),
                None => {}
            },
            Ev::MadTimer(id, tid, sent) => match self.actors.get_mut(id as usize) {
                Some(Actor::Ours(node)) => node.mad_timer(io, tid, sent),
                Some(Actor::InTree(node)) => node.mad_timer(io, tid, sent),
                None => {}
            },
            Ev::Timer(id, at) => match self.actors.get_mut(id as usize) {
                Some(Actor::Ours(node)) => node.timer(io, at),
                Some(Actor::InTree(node)) => node.timer(io, at),
                None => {}
            },
            Ev::Notice(id, notice) => match self.actors.get_mut(id as usize) {
                Some(Actor::Ours(node)) => node.notice(io, notice),
                Some(Actor::InTree(node)) => node.notice(io, notice),
                None => {}
            },
            Ev::Work(id) => {
                if let Some(Actor::Ours(node)) = self.actors.get_mut(id as usize) {
                    node.run(io);
                }
            }
            Ev::Read(id) => {
                if let Some(Actor::Ours(node)) = self.actors.get_mut(id as usize) {
                    node.port_read(io);
                }
            }
            Ev::End(_) | Ev::Flow(..) => {}
        }
    }
}

/// `nodes` nodes, which came up one after the other, each send to `peers` others at once, and again every second, for
/// `limit`. Requests for each path, and the time until all are resolved.
pub fn all_to_all(
    mutant: Option<Mutant>,
    nodes: u32,
    peers: u32,
    per_second: u64,
    limit: Micros,
) -> Outcome {
    let mut storm = Storm::new(Driver::Ours(mutant), nodes, nodes, per_second);
    let pause = 2 * SECOND / per_second;
    for id in 0..nodes {
        storm.io.at(u64::from(id) * pause, Ev::Step(id as usize));
    }
    storm.run(u64::from(nodes) * pause + 10 * SECOND);
    let start = storm.io.now;
    let (mut time, mut done) = (None, 0);
    while time.is_none() && storm.io.now < start + limit {
        for id in 0..nodes {
            let Some(Actor::Ours(node)) = storm.actors.get_mut(id as usize) else {
                continue;
            };
            for peer in 1..=peers {
                let dest = Dest::Peer((id + peer) % nodes);
                node.transmit(&mut storm.io, dest, 64, Asker::Ourselves);
            }
        }
        storm.run(storm.io.now + SECOND);
        done = storm.actors.iter().map(Actor::resolved).sum();
        time = (done == (nodes * peers) as usize).then(|| storm.io.now - start);
    }
    Outcome {
        done,
        time,
        bound: u64::from(nodes * peers) * SECOND / per_second,
        requests: storm.sa.paths,
        dropped: 0,
        rate: Vec::new(),
    }
}

/// One node sends to `peers` peers at once, and again every second to those it does not reach, for `limit`.
pub fn resolve(driver: Driver, peers: u32, per_second: u64, limit: Micros) -> Outcome {
    let mut storm = Storm::new(driver, 1, peers + 1, per_second);
    storm.io.at(0, Ev::Step(0));
    storm.run(SECOND);
    let start = storm.io.now;
    let mut time = None;
    let mut done = 0;
    while time.is_none() && storm.io.now < start + limit {
        let second = (storm.io.now / SECOND) as u32;
        for peer in 1..=peers {
            match &mut storm.actors[0] {
                Actor::Ours(node) => {
                    // So that they are not forgotten.
                    let again = (peer + second) % 20 == 0;
                    if again || node.path_lid(peer).is_none() {
                        node.transmit(&mut storm.io, Dest::Peer(peer), 64, Asker::Ourselves);
                    }
                }
                Actor::InTree(node) => {
                    if !node.reaches(peer) {
                        node.transmit(&mut storm.io, peer);
                    }
                }
            }
        }
        storm.run(storm.io.now + SECOND);
        done = storm.actors[0].resolved();
        time = (done == peers as usize).then(|| storm.io.now - start);
    }
    let dropped = match &storm.actors[0] {
        Actor::Ours(node) => node.counters.drops(),
        Actor::InTree(node) => node.dropped,
    };
    assert!(storm.io.failure.is_none(), "{:?}", storm.io.failure);
    Outcome {
        done,
        time,
        bound: u64::from(peers) * SECOND / per_second,
        requests: storm.sa.paths,
        dropped,
        rate: Vec::new(),
    }
}

/// `nodes` nodes, which came up one after the other, join the broadcast group again after the subnet manager was gone
/// for five seconds and has told all of them within one.
pub fn rejoin(driver: Driver, nodes: u32, per_second: u64, limit: Micros) -> Outcome {
    let mut storm = Storm::new(driver, nodes, nodes, per_second);
    let pause = 2 * SECOND / per_second;
    for id in 0..nodes {
        storm.io.at(u64::from(id) * pause, Ev::Step(id as usize));
    }
    storm.run(u64::from(nodes) * pause + 10 * SECOND);
    assert_eq!(storm.sa.members_of(BROADCAST), nodes as usize, "start-up");
    storm.sa.stop();
    storm.sa.forget(None);
    storm.run(storm.io.now + 5 * SECOND);
    storm.sa.away = 0;
    storm.sa.joins = 0;
    let start = storm.io.now;
    for id in 0..nodes {
        let late = storm.io.rng.below(SECOND);
        storm.io.after(late, Ev::Notice(id, Notice::Reregister));
    }
    storm.until_all_joined(start, limit)
}

/// `nodes` nodes come up within one second, when nobody is a member of the broadcast group yet.
pub fn cold_start(driver: Driver, nodes: u32, per_second: u64, limit: Micros) -> Outcome {
    let mut storm = Storm::new(driver, nodes, nodes, per_second);
    for id in 0..nodes {
        let late = storm.io.rng.below(SECOND);
        storm.io.at(late, Ev::Step(id as usize));
    }
    storm.until_all_joined(0, limit)
}

/// A node answers 500 requests for its address each second, all under addresses that nobody has, and after five
/// seconds sends to a peer of its own. The time until it can.
pub fn flood(mutant: Option<Mutant>, per_second: u64) -> Option<Micros> {
    const STRANGERS: u32 = 500;
    let mut storm = Storm::new(Driver::Ours(mutant), 1, 2, per_second);
    storm.io.at(0, Ev::Step(0));
    storm.run(SECOND);
    let mut start = None;
    for second in 0..15 {
        let Some(Actor::Ours(node)) = storm.actors.first_mut() else {
            return None;
        };
        for one in 0..STRANGERS {
            let peer = Dest::Peer(1000 + second * STRANGERS + one);
            node.transmit(&mut storm.io, peer, 60, Asker::Stranger);
        }
        if second == 5 {
            node.transmit(&mut storm.io, Dest::Peer(1), 64, Asker::Ourselves);
            start = Some(storm.io.now);
        }
        for _ in 0..100 {
            storm.run(storm.io.now + SECOND / 100);
            if let (Some(Actor::Ours(node)), Some(start)) = (storm.actors.first(), start) {
                if node.path_lid(1).is_some() {
                    return Some(storm.io.now - start);
                }
            }
        }
    }
    None
}

fn seconds(time: Option<Micros>) -> String {
    time.map_or("not within the limit".to_string(), |time| {
        format!("{:.1} s", time as f64 / 1e6)
    })
}

const NAMES: [(&str, Driver); 3] = [
    ("ipoib_rs", Driver::Ours(None)),
    ("in-tree, as of 6.14", Driver::InTree { flow: FLOW }),
    ("in-tree, before", Driver::InTree { flow: usize::MAX }),
];

/// The table of the README, and the joins over time of both policies as an SVG picture.
pub fn numbers(limit: Micros) -> (String, String) {
    let mut out = String::from(
        "| 10,000 peers resolved by one node, 100 requests/s | resolved in 120 s | requests for each | time | at least |\n\
         |---|---|---|---|---|\n",
    );
    for (name, driver) in NAMES {
        let run = resolve(driver, 10_000, 100, limit.min(120 * SECOND));
        out += &format!(
            "| {name} | {} | {:.2} | {} | {} |\n",
            run.done,
            run.each(),
            seconds(run.time),
            seconds(Some(run.bound))
        );
    }
    let mut curves = Vec::new();
    for per_second in [100, 1000] {
        out += &format!(
            "\n| 10,000 nodes join again, {per_second} requests/s | back | joins for each | most in a second | time | at least |\n\
             |---|---|---|---|---|---|\n",
        );
        for (name, driver) in &NAMES[..2] {
            let run = rejoin(*driver, 10_000, per_second, limit);
            out += &joined(name, &run);
            if per_second == 100 {
                curves.push((*name, run.rate));
            }
        }
    }
    out += "\n| 10,000 nodes come up within a second, 1000 requests/s | up | joins for each | most in a second | time | at least |\n\
         |---|---|---|---|---|---|\n";
    for (name, driver) in &NAMES[..2] {
        let run = cold_start(*driver, 10_000, 1000, limit);
        out += &joined(name, &run);
    }
    let run = all_to_all(None, 100, 50, 400, limit);
    out += &format!(
        "\n100 nodes that each send to 50 others, 400 requests/s: {} paths, {:.2} requests for each, {}, at least {}\n",
        run.done,
        run.each(),
        seconds(run.time),
        seconds(Some(run.bound))
    );
    (out, plot(&curves))
}

fn joined(name: &str, run: &Outcome) -> String {
    format!(
        "| {name} | {} | {:.2} | {} | {} | {} |\n",
        run.done,
        run.each(),
        run.peak(),
        seconds(run.time),
        seconds(Some(run.bound))
    )
}

/// Joins a second, on a logarithmic scale, over time.
fn plot(curves: &[(&str, Vec<u32>)]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 260.0;
    const LEFT: f64 = 60.0;
    const SECONDS: usize = 300;
    let x = |second: usize| LEFT + second as f64 * (WIDTH - LEFT - 10.0) / SECONDS as f64;
    let y = |rate: f64| HEIGHT - 30.0 - rate.max(1.0).log10() * (HEIGHT - 50.0) / 5.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for power in 0..=5 {
        let (rate, at) = (10_u32.pow(power), y(f64::from(10_u32.pow(power))));
        out += &format!(
            "<text x=\"4\" y=\"{at:.0}\">{rate}/s</text>\n<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.0}\" y2=\"{at:.0}\" \
             stroke=\"#ccc\"/>\n"
        );
    }
    for second in (0..=SECONDS).step_by(60) {
        out += &format!(
            "<text x=\"{:.0}\" y=\"{:.0}\">{second} s</text>\n",
            x(second),
            HEIGHT - 12.0
        );
    }
    let bins = (SECOND / BIN) as usize;
    for ((name, rate), colour) in curves.iter().zip(["#06c", "#c30"]) {
        let points: Vec<String> = rate
            .chunks(bins)
            .take(SECONDS)
            .enumerate()
            .map(|(second, bin)| {
                let sum: u32 = bin.iter().sum();
                format!("{:.1},{:.1}", x(second), y(f64::from(sum)))
            })
            .collect();
        out += &format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"><title>{name}</title></polyline>\n",
            points.join(" ")
        );
    }
    for (index, ((name, _), colour)) in curves.iter().zip(["#06c", "#c30"]).enumerate() {
        out += &format!(
            "<text x=\"{:.0}\" y=\"14\" fill=\"{colour}\">{name}</text>\n",
            LEFT + 10.0 + index as f64 * 150.0
        );
    }
    out + "</svg>\n"
}
