// SPDX-License-Identifier: GPL-2.0

//! The recovery of a queue, case by case.

use ipoib_host::control::recovery::{Action, Event, Policy, QueueRecovery, State};
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
