// SPDX-License-Identifier: GPL-2.0

//! The connection machine: case by case, and two nodes that ask each other over a network that loses, delays,
//! repeats and reorders what the connection manager says.

use std::collections::HashSet;

use ipoib_host::control::conn::{Action, Conn, Event, Link, Policy, Status};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;
use ipoib_host::wire::qpn::Qpn;
use proptest::prelude::*;

const QPN: Qpn = Qpn::new(0x123);
const OTHER: Qpn = Qpn::new(0x456);

struct Bench {
    conn: Conn,
    seq: Seq,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            conn: Conn::new(Policy::DEFAULT),
            seq: Seq::new(1),
            now: 1_000_000,
        }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let actions = self.conn.step(event, Millis(self.now), &mut self.seq);
        assert!(!actions.overflowed());
        actions.into_iter().collect()
    }

    fn tick(&mut self) -> Vec<Action> {
        self.now = self.conn.deadline().expect("a deadline").0;
        self.step(Event::Tick)
    }

    fn id(&self) -> u64 {
        self.conn.id().expect("an attempt")
    }

    fn asked() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.step(Event::Wanted { qpn: QPN }), []);
        let started = bench.step(Event::Path);
        let id = bench.id();
        assert_eq!(started, [Action::Start { id, qpn: QPN }]);
        bench
    }

    fn up() -> Self {
        let mut bench = Self::asked();
        let id = bench.id();
        assert_eq!(bench.step(Event::Ready { id }), [Action::Publish { id }]);
        bench
    }
}

#[test]
fn one_attempt_for_many_packets() {
    let mut bench = Bench::asked();
    assert_eq!(bench.step(Event::Wanted { qpn: QPN }), []);
    assert_eq!(bench.step(Event::Path), []);
    assert_eq!(bench.conn.link(), Link::Hold);
}

#[test]
fn an_entry_that_was_forgotten_gets_the_connection_again() {
    let mut bench = Bench::up();
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Wanted { qpn: QPN }),
        [Action::Publish { id }]
    );
}

#[test]
fn answers_to_other_attempts_are_ignored() {
    let mut bench = Bench::asked();
    let id = bench.id() + 1;
    for event in [
        Event::Ready { id },
        Event::Failed { id },
        Event::Closed { id },
    ] {
        assert_eq!(bench.step(event), []);
    }
    assert_eq!(bench.conn.status(), Status::Connecting);
}

#[test]
fn the_second_failure_sends_waiting_packets_away() {
    let mut bench = Bench::asked();
    let id = bench.id();
    assert_eq!(bench.step(Event::Failed { id }), [Action::Close { id }]);
    assert_eq!(
        bench.conn.link(),
        Link::Hold,
        "packets wait for the second try"
    );
    bench.tick();
    assert_eq!(bench.conn.status(), Status::WaitPath);
    bench.step(Event::Path);
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Failed { id }),
        [Action::Close { id }, Action::Release]
    );
    assert_eq!(bench.conn.link(), Link::Never);
}

#[test]
fn later_tries_come_only_when_packets_do_and_ever_more_rarely() {
    let mut bench = Bench::asked();
    let mut longest = 0;
    for round in 0..20 {
        let id = bench.id();
        bench.step(Event::Failed { id });
        let before = bench.now;
        bench.tick();
        longest = longest.max(bench.now - before);
        if round > 0 {
            assert_eq!(bench.conn.status(), Status::Idle);
            bench.step(Event::Wanted { qpn: QPN });
            assert_eq!(
                bench.conn.link(),
                Link::Never,
                "large packets do not wait again"
            );
        }
        bench.step(Event::Path);
    }
    assert!((30_000..=60_000).contains(&longest), "{longest}");
}

#[test]
fn a_connection_that_was_good_is_made_again_at_once() {
    let mut bench = Bench::up();
    bench.now += 1000;
    let id = bench.id();
    bench.step(Event::Failed { id });
    let before = bench.now;
    bench.tick();
    assert!(bench.now - before <= 100);
    assert_eq!(bench.conn.failures(), 1);
    assert_eq!(bench.conn.status(), Status::WaitPath);
}

#[test]
fn a_peer_that_closes_in_peace_is_asked_when_packets_come() {
    let mut bench = Bench::up();
    let id = bench.id();
    assert_eq!(bench.step(Event::Closed { id }), [Action::Close { id }]);
    assert_eq!(
        (bench.conn.status(), bench.conn.link()),
        (Status::Idle, Link::Ask)
    );
}

#[test]
fn another_queue_pair_replaces_a_connection_that_is_not_new() {
    let mut bench = Bench::up();
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Wanted { qpn: OTHER }),
        [],
        "two interfaces do not take turns"
    );
    bench.now += 1000;
    assert_eq!(
        bench.step(Event::Wanted { qpn: OTHER }),
        [Action::Close { id }]
    );
    let started = bench.step(Event::Path);
    let id = bench.id();
    assert_eq!(started, [Action::Start { id, qpn: OTHER }]);
}

#[test]
fn a_restarted_peer_is_asked_despite_the_back_off() {
    let mut bench = Bench::asked();
    for _ in 0..5 {
        let id = bench.id();
        bench.step(Event::Failed { id });
        bench.tick();
        bench.step(Event::Wanted { qpn: QPN });
        bench.step(Event::Path);
    }
    let id = bench.id();
    bench.step(Event::Failed { id });
    bench.step(Event::Wanted { qpn: OTHER });
    assert_eq!(
        (bench.conn.status(), bench.conn.link()),
        (Status::WaitPath, Link::Hold)
    );
}

#[test]
fn no_path_no_connection() {
    let mut bench = Bench::new();
    bench.step(Event::Wanted { qpn: QPN });
    assert_eq!(bench.tick(), [Action::Release]);
    assert_eq!(bench.conn.status(), Status::Idle);
}

#[test]
fn a_silent_peer_costs_one_deadline() {
    let mut bench = Bench::asked();
    let id = bench.id();
    assert_eq!(bench.tick(), [Action::Close { id }]);
}

#[test]
fn a_flush_ends_everything() {
    let mut bench = Bench::up();
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Flush),
        [Action::Close { id }, Action::Release]
    );
    assert_eq!(bench.step(Event::Ready { id }), []);
    assert_eq!(bench.conn.deadline(), None);
}

/// What may happen to one machine.
fn event() -> impl Strategy<Value = (u8, u64, bool)> {
    (0u8..8, 0u64..4, any::<bool>())
}

proptest! {
    /// Whatever comes in whatever order: each attempt is started and closed at most once, published only while it
    /// is open, there is one at a time, and no packet waits without somebody who will look after it.
    #[test]
    fn attempts_are_owned(events in prop::collection::vec((event(), 0u64..3000), 1..200)) {
        let mut bench = Bench::new();
        let mut open: Option<u64> = None;
        let mut seen = HashSet::new();
        let mut ids = vec![0u64];
        for ((kind, back, flag), pause) in events {
            bench.now += pause;
            let id = ids[ids.len().saturating_sub(1 + back as usize)];
            let actions = bench.step(match kind {
                0 | 1 => Event::Wanted { qpn: if flag { QPN } else { OTHER } },
                2 => Event::Path,
                3 => Event::Ready { id },
                4 => Event::Failed { id },
                5 => Event::Closed { id },
                6 => Event::Tick,
                _ if flag => Event::Flush,
                _ => Event::Tick,
            });
            for action in actions {
                match action {
                    Action::Start { id, .. } => {
                        prop_assert!(open.is_none() && seen.insert(id));
                        open = Some(id);
                        ids.push(id);
                    }
                    Action::Publish { id } => prop_assert_eq!(open, Some(id)),
                    Action::Close { id } => prop_assert_eq!(open.take(), Some(id)),
                    Action::Release => {}
                }
            }
            prop_assert_eq!(open, bench.conn.id());
            // Packets wait under `Hold` only, and then a deadline is set.
            prop_assert!(bench.conn.link() != Link::Hold || bench.conn.deadline().is_some());
        }
    }
}

/// A message of the connection manager, from node `from`.
#[derive(Clone, Copy, Debug)]
enum Message {
    Request { attempt: u64 },
    Reply { attempt: u64 },
    Reject { attempt: u64 },
}

/// A node of the model: its machine, and what it has accepted from the other.
struct Node {
    conn: Conn,
    seq: Seq,
    accepted: HashSet<u64>,
    open: Option<u64>,
    published: Option<u64>,
}

impl Node {
    fn new(seed: u64) -> Self {
        Self {
            conn: Conn::new(Policy::DEFAULT),
            seq: Seq::new(seed),
            accepted: HashSet::new(),
            open: None,
            published: None,
        }
    }

    fn step(&mut self, event: Event, now: u64, out: &mut Vec<Message>) {
        for action in self.conn.step(event, Millis(now), &mut self.seq) {
            match action {
                Action::Start { id, .. } => {
                    self.open = Some(id);
                    out.push(Message::Request { attempt: id });
                }
                Action::Publish { id } => self.published = Some(id),
                Action::Close { .. } => {
                    self.open = None;
                    self.published = None;
                }
                Action::Release => {}
            }
        }
    }
}

proptest! {
    /// Two nodes want each other at once. Whatever is lost, late or doubled for a while, both are connected soon
    /// after the network is sound, by attempts that the other side has accepted.
    #[test]
    fn crossed_requests_over_a_bad_network(fates in prop::collection::vec(0u8..6, 0..60), seed in 1u64..1000) {
        let mut nodes = [Node::new(seed), Node::new(seed + 1)];
        let mut wire: Vec<(u64, usize, Message)> = Vec::new();
        let mut fates = fates.into_iter();
        let mut now = 1_000u64;
        // Each bad fate costs a deadline and a back-off at most.
        let end = 1_000 + 6_000_000;
        while now < end && (nodes.iter().any(|node| node.published.is_none()) || !wire.is_empty()) {
            for (at, node) in nodes.iter_mut().enumerate() {
                let mut out = Vec::new();
                if node.conn.link() == Link::Ask && node.published.is_none() {
                    node.step(Event::Wanted { qpn: QPN }, now, &mut out);
                }
                if node.conn.status() == Status::WaitPath {
                    node.step(Event::Path, now, &mut out);
                }
                node.step(Event::Tick, now, &mut out);
                for message in out {
                    // 0: lost; 1: twice; 2: very late; 3: refused; others: sound.
                    match fates.next() {
                        Some(0) => {}
                        Some(1) => wire.extend([(now + 1, 1 - at, message), (now + 2, 1 - at, message)]),
                        Some(2) => wire.push((now + 30_000, 1 - at, message)),
                        Some(3) => {
                            if let Message::Request { attempt } = message {
                                wire.push((now + 1, at, Message::Reject { attempt }));
                            }
                        }
                        _ => wire.push((now + 1, 1 - at, message)),
                    }
                }
            }
            let (due, rest): (Vec<_>, Vec<_>) = wire.into_iter().partition(|(when, ..)| *when <= now);
            wire = rest;
            for (_, to, message) in due {
                let mut out = Vec::new();
                match message {
                    Message::Request { attempt } => {
                        nodes[to].accepted.insert(attempt);
                        match fates.next() {
                            Some(0) => {}
                            Some(2) => wire.push((now + 30_000, 1 - to, Message::Reply { attempt })),
                            _ => wire.push((now + 1, 1 - to, Message::Reply { attempt })),
                        }
                    }
                    Message::Reply { attempt } => nodes[to].step(Event::Ready { id: attempt }, now, &mut out),
                    Message::Reject { attempt } => nodes[to].step(Event::Failed { id: attempt }, now, &mut out),
                }
            }
            now += 100;
        }
        for at in 0..2 {
            let published = nodes[at].published;
            prop_assert!(published.is_some(), "node {} is {:?}", at, nodes[at].conn.status());
            prop_assert_eq!(published, nodes[at].open);
            prop_assert!(nodes[1 - at].accepted.contains(&published.unwrap_or(0)));
        }
    }
}
