// SPDX-License-Identifier: GPL-2.0

//! The path machine, case by case.

use ipoib_host::control::path::{Action, Event, Path, Policy, Status};
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

/// A machine with its ids; timers are left out of what `step` returns.
struct Bench {
    path: Path,
    seq: Seq,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        Self {
            path: Path::new(Policy::DEFAULT),
            seq: Seq::new(1),
            now: 1_000_000,
        }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.path
            .step(event, Millis(self.now), &mut self.seq)
            .into_iter()
            .filter(|action| !matches!(action, Action::ArmTimer(_)))
            .collect()
    }

    /// Goes to the machine's deadline and ticks.
    fn tick(&mut self) -> Vec<Action> {
        self.now = self.path.deadline().expect("a deadline").0;
        self.step(Event::Tick)
    }

    fn id(&self) -> u64 {
        self.path.query_id().expect("a query")
    }

    /// Wanted, admitted and answered.
    fn ready() -> Self {
        let mut bench = Self::new();
        bench.step(Event::Wanted);
        let id = bench.id();
        bench.step(Event::Started { id });
        assert_eq!(
            bench.step(Event::Resolved { id }),
            [Action::Publish, Action::SendPending]
        );
        bench
    }
}

#[test]
fn one_query_for_many_packets() {
    let mut bench = Bench::new();
    let first = bench.step(Event::Wanted);
    let id = bench.id();
    assert_eq!(first, [Action::StartQuery { id }]);
    assert_eq!(bench.path.status(), Status::Queued);
    for _ in 0..100 {
        assert!(bench.step(Event::Wanted).is_empty());
    }
    assert!(bench.step(Event::Started { id }).is_empty());
    assert_eq!(bench.path.status(), Status::Asking);
    assert_eq!(
        bench.step(Event::Resolved { id }),
        [Action::Publish, Action::SendPending]
    );
    assert_eq!(bench.path.status(), Status::Ready);
    assert_eq!(bench.path.deadline(), None, "no timer for a good path");
}

#[test]
fn packet_that_crossed_the_answer() {
    // TRAP-42: queued after the answer was carried out.
    let mut bench = Bench::ready();
    assert_eq!(bench.step(Event::Wanted), [Action::SendPending]);
}

#[test]
fn definite_failure_drops_at_once() {
    let mut bench = Bench::new();
    bench.step(Event::Wanted);
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Failed {
            id,
            retryable: false
        }),
        [Action::DropPending(TxDrop::NoPath)]
    );
    assert!(matches!(bench.path.status(), Status::BackedOff(_)));
}

#[test]
fn retryable_failure_keeps_what_waits() {
    let mut bench = Bench::new();
    bench.step(Event::Wanted);
    let id = bench.id();
    let failed = Event::Failed {
        id,
        retryable: true,
    };
    assert!(bench.step(failed).is_empty());
    let retry = bench.tick();
    assert_eq!(retry, [Action::StartQuery { id: bench.id() }]);
    assert_ne!(bench.id(), id);
}

/// The subnet administrator's place is looked up again after each event of the port; queries of that moment
/// are not sent (`EAGAIN`), and that is no failure of the peer's.
#[test]
fn deferred_query_is_tried_again_within_moments() {
    let mut bench = Bench::new();
    bench.step(Event::Wanted);
    let start = bench.now;
    for _ in 0..3 {
        let id = bench.id();
        assert!(bench.step(Event::Deferred { id }).is_empty());
        assert_eq!(bench.tick(), [Action::StartQuery { id: bench.id() }]);
    }
    assert!(bench.now - start <= 70, "{} ms", bench.now - start);
    assert_eq!(bench.path.failures(), 0);
    // Handed over, it is a query like any other, and the next one is deferred as briefly as the first.
    let id = bench.id();
    bench.step(Event::Started { id });
    bench.step(Event::Resolved { id });
    bench.step(Event::Refresh {
        spread: Millis::ZERO,
    });
    let id = bench.id();
    let before = bench.now;
    bench.step(Event::Deferred { id });
    assert!(bench.path.is_published());
    bench.tick();
    assert!(bench.now - before <= 10);
}

#[test]
fn deferred_for_too_long_drops_what_waits() {
    let mut bench = Bench::new();
    bench.step(Event::Wanted);
    let end = bench.now + 60_000;
    let mut dropped = Vec::new();
    while bench.now < end && dropped.is_empty() {
        if let Some(id) = bench.path.query_id() {
            dropped.extend(bench.step(Event::Deferred { id }));
        } else {
            dropped.extend(
                bench
                    .tick()
                    .into_iter()
                    .filter(|action| matches!(action, Action::DropPending(_))),
            );
        }
    }
    assert_eq!(dropped.len(), 1);
    assert!(end - bench.now >= 60_000 - 5_000);
}

#[test]
fn retries_slow_down_and_packets_are_refused() {
    let mut bench = Bench::new();
    let mut asked = 0;
    let mut refused = 0;
    let end = bench.now + 120_000;
    // A packet each 100 ms to a peer that is not there (WEAK-17: in-tree asks every second).
    while bench.now < end {
        for action in bench.step(Event::Wanted) {
            match action {
                Action::StartQuery { id } => {
                    asked += 1;
                    bench.step(Event::Started { id });
                    bench.step(Event::Failed {
                        id,
                        retryable: false,
                    });
                }
                Action::DropPending(TxDrop::Unreachable) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        bench.now += 100;
        bench.step(Event::Tick);
        if let Some(id) = bench.path.query_id() {
            asked += 1;
            bench.step(Event::Failed {
                id,
                retryable: false,
            });
        }
    }
    assert!((15..=35).contains(&asked), "{asked} queries in two minutes");
    assert!(refused > 150, "{refused} refused");
}

#[test]
fn silence_is_bounded() {
    // A query that nobody admits: the packets go, the query keeps its place in the line.
    let mut bench = Bench::new();
    bench.step(Event::Wanted);
    let start = bench.now;
    assert_eq!(bench.tick(), [Action::DropPending(TxDrop::Expired)]);
    assert_eq!(bench.now - start, Policy::DEFAULT.pending_life.0);
    assert_eq!(bench.path.status(), Status::Queued);
    // Another packet, and it keeps it on; none for a lifetime, and it leaves.
    bench.now += 4000;
    assert!(bench.step(Event::Wanted).is_empty());
    assert_eq!(bench.tick(), [Action::DropPending(TxDrop::Expired)]);
    let id = bench.id();
    let start = bench.now;
    assert_eq!(bench.tick(), [Action::CancelQuery { id }]);
    assert_eq!(bench.now - start, Policy::DEFAULT.pending_life.0);
    assert!(bench.path.is_idle());
    bench.step(Event::Wanted);
    assert_eq!(bench.tick(), [Action::DropPending(TxDrop::Expired)]);
    // A query that nobody answers.
    let id = bench.id();
    bench.step(Event::Started { id });
    assert_eq!(bench.tick(), [Action::CancelQuery { id }]);
    assert!(bench.step(Event::Resolved { id }).is_empty(), "too late");
    assert!(!bench.path.is_published());
}

#[test]
fn old_path_serves_during_a_refresh() {
    // B45: a harmless SM change costs no packet.
    let mut bench = Bench::ready();
    let spread = Millis::ZERO;
    let asked = bench.step(Event::Refresh { spread });
    let id = bench.id();
    assert_eq!(asked, [Action::StartQuery { id }]);
    assert_eq!(bench.path.status(), Status::Refreshing);
    assert!(bench.path.is_published());
    assert_eq!(bench.step(Event::Wanted), [Action::SendPending]);
    // No answer: still in use, asked again later.
    bench.step(Event::Started { id });
    bench.step(Event::Failed {
        id,
        retryable: true,
    });
    assert!(bench.path.is_published());
    assert_eq!(bench.tick(), [Action::StartQuery { id: bench.id() }]);
    // "There is no such path" ends it.
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Failed {
            id,
            retryable: false
        }),
        [Action::Unpublish]
    );
}

#[test]
fn refresh_spreads() {
    let spread = Millis(2000);
    let mut starts = Vec::new();
    for seed in 0..50 {
        let mut bench = Bench::ready();
        bench.seq = Seq::new(seed);
        let begin = bench.now;
        if bench.step(Event::Refresh { spread }).is_empty() {
            bench.tick();
        }
        assert_eq!(bench.path.status(), Status::Refreshing);
        starts.push(bench.now - begin);
    }
    assert!(starts.iter().all(|&at| at <= 2000));
    assert!(starts.iter().any(|&at| at < 500) && starts.iter().any(|&at| at > 1500));
}

#[test]
fn refresh_during_a_query_asks_again() {
    // The answer under way may come from before the change.
    let mut bench = Bench::ready();
    let spread = Millis::ZERO;
    bench.step(Event::Refresh { spread });
    let id = bench.id();
    bench.step(Event::Started { id });
    assert!(bench.step(Event::Refresh { spread }).is_empty());
    let answer = bench.step(Event::Resolved { id });
    assert_eq!(
        answer,
        [
            Action::Publish,
            Action::SendPending,
            Action::StartQuery { id: bench.id() }
        ]
    );
}

#[test]
fn suspicion_is_rate_limited() {
    let mut bench = Bench::ready();
    assert!(bench.step(Event::Suspect).is_empty(), "answered just now");
    bench.now += 1000;
    assert_eq!(
        bench.step(Event::Suspect),
        [Action::StartQuery { id: bench.id() }]
    );
    assert!(bench.step(Event::Suspect).is_empty(), "asked already");
}

#[test]
fn a_frame_from_the_peer_ends_the_negative_cache() {
    let mut bench = Bench::new();
    for _ in 0..6 {
        bench.step(Event::Wanted);
        if let Some(id) = bench.path.query_id() {
            bench.step(Event::Failed {
                id,
                retryable: false,
            });
        }
        bench.tick();
    }
    bench.step(Event::Wanted);
    let id = bench.id();
    bench.step(Event::Failed {
        id,
        retryable: false,
    });
    assert_eq!(
        bench.step(Event::Wanted),
        [Action::DropPending(TxDrop::Unreachable)]
    );
    assert!(bench.path.is_silent());
    bench.step(Event::Heard);
    assert_eq!(
        bench.step(Event::Wanted),
        [Action::StartQuery { id: bench.id() }]
    );
    assert!(!bench.path.is_silent());
}

#[test]
fn a_frame_during_a_query_brings_the_next_one_soon() {
    // The query that is out began before the peer was back, and may fail.
    let mut bench = Bench::new();
    for _ in 0..6 {
        bench.step(Event::Wanted);
        let id = bench.id();
        let failed = Event::Failed {
            id,
            retryable: false,
        };
        bench.step(failed);
        bench.tick();
    }
    bench.step(Event::Wanted);
    let id = bench.id();
    bench.step(Event::Started { id });
    assert!(bench.path.is_silent());
    bench.step(Event::Heard);
    let failed = Event::Failed {
        id,
        retryable: true,
    };
    bench.step(failed);
    let next = bench.path.deadline().expect("a retry").0;
    assert!(next - bench.now <= 1000, "{}", next - bench.now);
}

#[test]
fn forged_frames_do_not_hurry_queries() {
    // A frame in the name of a peer that is not there, and a packet for it, each millisecond for a minute; the
    // administrator refuses at once.
    let mut bench = Bench::new();
    let mut asked = 0;
    let end = bench.now + 60_000;
    while bench.now < end {
        bench.step(Event::Heard);
        bench.step(Event::Wanted);
        if let Some(id) = bench.path.query_id() {
            asked += 1;
            bench.step(Event::Started { id });
            bench.step(Event::Failed {
                id,
                retryable: false,
            });
        }
        bench.now += 1;
        bench.step(Event::Tick);
    }
    assert!(asked <= 122, "{asked} queries in a minute");
}

#[test]
fn invalidation_asks_only_for_who_waits() {
    let mut bench = Bench::ready();
    assert_eq!(bench.step(Event::Invalidate), [Action::Unpublish]);
    assert!(bench.path.is_idle());
    bench.step(Event::Wanted);
    let old = bench.id();
    let actions = bench.step(Event::Invalidate);
    assert_eq!(
        actions,
        [
            Action::CancelQuery { id: old },
            Action::StartQuery { id: bench.id() }
        ]
    );
    assert!(bench.step(Event::Resolved { id: old }).is_empty());
}

#[test]
fn flush_leaves_nothing() {
    let mut bench = Bench::ready();
    bench.step(Event::Refresh {
        spread: Millis::ZERO,
    });
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Flush),
        [Action::Unpublish, Action::CancelQuery { id }]
    );
    bench.step(Event::Wanted);
    let id = bench.id();
    assert_eq!(
        bench.step(Event::Flush),
        [
            Action::CancelQuery { id },
            Action::DropPending(TxDrop::Flushed)
        ]
    );
    assert!(bench.path.is_idle() && bench.path.deadline().is_none());
}
