// SPDX-License-Identifier: GPL-2.0

//! The recovery of a queue, case by case.

use ipoib_host::control::health::{Concern, Health};
use ipoib_host::control::recovery::{
    restored, Action, Event, Finding, Policy, QueuePair, QueueRecovery, Refill, State,
};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

struct Bench {
    queue: QueueRecovery,
    seq: Seq,
    now: u64,
}

impl Bench {
    fn running() -> Self {
        let mut bench = Self {
            queue: QueueRecovery::new(Policy::DEFAULT),
            seq: Seq::new(1),
            now: 1_000_000,
        };
        assert!(bench.step(Event::Up).is_empty());
        bench.now += 60_000;
        bench
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.queue
            .step(event, Millis(self.now), &mut self.seq)
            .into_iter()
            .filter(|action| !matches!(action, Action::ArmTimer(_)))
            .collect()
    }

    fn tick(&mut self) -> Vec<Action> {
        self.now = self.queue.deadline().expect("a deadline").0;
        self.step(Event::Tick)
    }
}

const RESET: Action = Action::Reset { forced: false };

#[test]
fn error_takes_the_long_way() {
    for cause in [Event::Error, Event::Stalled] {
        let mut bench = Bench::running();
        assert_eq!(bench.step(cause), [Action::Quiesce, Action::Drain]);
        assert!(bench.step(Event::Error).is_empty(), "reported again");
        assert_eq!(bench.step(Event::Drained), [RESET]);
        assert!(bench.step(Event::Drained).is_empty());
        assert_eq!(bench.step(Event::ResetDone), [Action::Resume]);
        assert!(bench.queue.is_running());
        assert_eq!(bench.queue.recoveries(), 1);
    }
}

#[test]
fn send_error_takes_the_short_way() {
    let mut bench = Bench::running();
    assert_eq!(
        bench.step(Event::SendError),
        [Action::Quiesce, Action::RestoreSend]
    );
    assert_eq!(bench.step(Event::Restored), [Action::Resume]);
    // If it does not work out, the long way.
    bench.step(Event::SendError);
    assert_eq!(bench.step(Event::RestoreFailed), [Action::Drain]);
    assert!(bench.step(Event::Restored).is_empty(), "too late");
}

#[test]
fn drain_is_bounded() {
    let mut bench = Bench::running();
    bench.step(Event::Error);
    let start = bench.now;
    assert_eq!(bench.tick(), [Action::Reset { forced: true }]);
    assert_eq!(bench.now - start, Policy::DEFAULT.drain_limit.0);
    assert_eq!(bench.step(Event::ResetDone), [Action::Resume]);
}

#[test]
fn failed_reset_is_tried_again() {
    let mut bench = Bench::running();
    bench.step(Event::Error);
    bench.step(Event::Drained);
    let mut delays = Vec::new();
    for _ in 0..12 {
        assert!(bench.step(Event::ResetFailed).is_empty());
        let before = bench.now;
        assert_eq!(bench.tick(), [RESET]);
        delays.push(bench.now - before);
    }
    assert!(delays[0] <= 40 && delays[11] >= 2500, "{delays:?}");
    bench.step(Event::ResetDone);
    assert!(bench.queue.is_running());
}

#[test]
fn a_queue_that_fails_again_at_once_waits() {
    let mut bench = Bench::running();
    let mut resets = 0;
    let end = bench.now + 60_000;
    while bench.now < end {
        bench.step(Event::Error);
        let mut actions = bench.step(Event::Drained);
        while actions.is_empty() {
            actions = bench.tick();
        }
        assert_eq!(actions, [RESET]);
        resets += 1;
        bench.step(Event::ResetDone);
    }
    assert!(resets < 40, "{resets} resets in a minute");
    // Stable for a while: the next failure is handled at once.
    bench.now += 2000;
    bench.step(Event::Error);
    assert_eq!(bench.step(Event::Drained), [RESET]);
}

#[test]
fn closing_ends_it() {
    let mut bench = Bench::running();
    bench.step(Event::Error);
    assert!(bench.step(Event::Down).is_empty());
    assert_eq!(bench.queue.state(), State::Down);
    for late in [Event::Drained, Event::ResetDone, Event::Error, Event::Tick] {
        assert!(bench.step(late).is_empty());
    }
    assert!(bench.step(Event::Up).is_empty() && bench.queue.is_running());
}

fn find(queue_pair: QueuePair, broken: bool, fatal: bool) -> Option<Event> {
    Finding {
        queue_pair,
        broken,
        fatal,
    }
    .event()
}

#[test]
fn a_look_finds_what_is_broken() {
    assert_eq!(find(QueuePair::Ready, false, false), None);
    assert_eq!(
        find(QueuePair::SendError, false, false),
        Some(Event::SendError)
    );
    assert_eq!(find(QueuePair::Error, false, false), Some(Event::Error));
    assert_eq!(find(QueuePair::Astray, false, false), Some(Event::Stalled));
    // Whatever the queue pair looks like, a broken ring or a failure that the device reports ends in a reset.
    for queue_pair in [
        QueuePair::Ready,
        QueuePair::SendError,
        QueuePair::Error,
        QueuePair::Astray,
    ] {
        for (broken, fatal) in [(true, false), (false, true), (true, true)] {
            let event = find(queue_pair, broken, fatal).expect("something to do");
            let mut bench = Bench::running();
            assert_eq!(bench.step(event), [Action::Quiesce, Action::Drain]);
            assert_eq!(bench.step(Event::Drained), [RESET]);
        }
    }
}

#[test]
fn a_ring_that_broke_on_the_short_way_takes_the_long_one() {
    for (done, broken) in [(true, true), (false, true), (false, false)] {
        let mut bench = Bench::running();
        bench.step(Event::SendError);
        assert_eq!(bench.step(restored(done, broken)), [Action::Drain]);
        assert_eq!(bench.step(Event::Drained), [RESET]);
        assert_eq!(bench.step(Event::ResetDone), [Action::Resume]);
    }
    let mut bench = Bench::running();
    bench.step(Event::SendError);
    assert_eq!(bench.step(restored(true, false)), [Action::Resume]);
}

#[test]
fn memory_is_looked_for_soon_and_not_later() {
    let mut refill = Refill::default();
    assert!(refill.deadline().is_none() && !refill.due(Millis(0)));
    refill.starving(Millis(1000));
    let at = refill.deadline().expect("a deadline");
    assert_eq!(at, Millis(1000).saturating_add(Refill::INTERVAL));
    // Complaints meanwhile do not put it off.
    for now in 1001..at.0 {
        refill.starving(Millis(now));
        assert!(!refill.due(Millis(now)));
        assert_eq!(refill.deadline(), Some(at));
    }
    assert!(refill.due(at));
    assert!(!refill.due(Millis::NEVER) && refill.deadline().is_none());
    refill.starving(at);
    assert!(refill.deadline() > Some(at));
}

const CONCERNS: [Concern; 4] = [
    Concern::Trouble,
    Concern::Fatal,
    Concern::Stalled,
    Concern::Starving,
];

#[test]
fn concerns_are_news_once() {
    for what in CONCERNS {
        let health = Health::default().started();
        let noted = health.noted(what);
        assert!(noted != health && noted.has(what) && noted.running());
        assert_eq!(noted.noted(what), noted, "told already");
        for other in CONCERNS.into_iter().filter(|other| *other != what) {
            assert!(!noted.has(other));
            assert_ne!(noted.noted(other), noted);
        }
        assert_eq!(noted.taken().fed(), health);
        assert_eq!(noted.taken().has(what), what == Concern::Starving);
    }
}

#[test]
fn trouble_of_a_stopped_queue_is_no_news() {
    let stopped = Health::default().started().stopped();
    assert_eq!(stopped.noted(Concern::Trouble), stopped);
    for what in [Concern::Fatal, Concern::Stalled, Concern::Starving] {
        assert!(stopped.noted(what).resumed().has(what), "forgotten");
    }
}

#[test]
fn a_start_forgets_what_the_last_run_left() {
    // The interface goes down, or an open fails, before the worker has taken a concern up: after the next start
    // the same concern is news again.
    for left in CONCERNS {
        for down in [Health::stopped, Health::resumed] {
            let health = down(Health::default().started().noted(left)).started();
            assert!(health.running());
            for what in CONCERNS {
                assert!(!health.has(what));
                assert_ne!(health.noted(what), health, "{what:?} after {left:?}");
            }
        }
    }
}
