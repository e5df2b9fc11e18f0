// SPDX-License-Identifier: GPL-2.0

//! Transmit ring thresholds, and every interleaving of the stop and wake protocol on small rings (B21).

use std::collections::HashSet;

use ipoib_host::control::txstop::Ring;
use proptest::prelude::*;

#[test]
fn thresholds() {
    let ring = Ring::new(128, 2);
    assert_eq!(ring.size(), 128);
    assert!(ring.must_stop(1) && !ring.must_stop(2));
    assert!(!ring.may_wake(63) && ring.may_wake(64));
    assert_eq!(ring.free(5, u32::MAX), 122, "counts wrap");
    assert_eq!(ring.free(128, 0), 0);
}

#[test]
fn odd_sizes() {
    let one = Ring::new(0, 0);
    assert!(one.must_stop(0) && !one.must_stop(1) && one.may_wake(1));
    let greedy = Ring::new(4, 9);
    assert!(greedy.must_stop(3) && !greedy.must_stop(4));
    assert!(greedy.may_wake(4) && !greedy.may_wake(3));
}

proptest! {
    /// A queue that may be woken does not have to stop at once.
    #[test]
    fn woken_is_not_stopped(size in 0u32..9000, stop_below in 0u32..9000, free in 0u32..9000) {
        let ring = Ring::new(size, stop_below);
        prop_assert!(!(ring.may_wake(free) && ring.must_stop(free)));
        // An empty ring always wakes, or it would never again.
        prop_assert!(ring.may_wake(ring.size()));
    }
}

/// Which step of the protocol the model leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Mutant {
    None,
    NoRecheck,
    WakeBeforeTail,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Xmit {
    /// Sends the next packet if the queue runs.
    Ready,
    /// Has published its head; reads the tail and decides whether to stop.
    Check,
    /// Has decided to stop the queue.
    Stop,
    /// Has stopped the queue; looks at the tail again.
    Recheck,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Complete {
    /// Takes a batch of completions.
    Ready,
    /// Has published its tail; looks whether the queue is stopped.
    Wake,
    /// Mutant: looked at the queue, has not published yet.
    Publish(u8),
}

/// The shared state and the place of both sides. Memory is sequentially consistent, which the full barriers of
/// the protocol make true of the four accesses that matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    xmit: Xmit,
    complete: Complete,
    to_send: u8,
    head: u8,
    tail: u8,
    stopped: bool,
}

impl World {
    fn free(&self, ring: &Ring) -> u32 {
        ring.free(u32::from(self.head), u32::from(self.tail))
    }

    /// The worlds one step of the transmitter leads to.
    fn xmit(mut self, ring: &Ring, mutant: Mutant) -> Option<Self> {
        match self.xmit {
            Xmit::Ready => {
                if self.stopped || self.to_send == 0 {
                    return None;
                }
                assert!(self.free(ring) > 0, "a running queue has room");
                self.head += 1;
                self.to_send -= 1;
                self.xmit = Xmit::Check;
            }
            Xmit::Check => {
                self.xmit = if ring.must_stop(self.free(ring)) {
                    Xmit::Stop
                } else {
                    Xmit::Ready
                };
            }
            Xmit::Stop => {
                self.stopped = true;
                self.xmit = if mutant == Mutant::NoRecheck {
                    Xmit::Ready
                } else {
                    Xmit::Recheck
                };
            }
            Xmit::Recheck => {
                if ring.may_wake(self.free(ring)) {
                    self.stopped = false;
                }
                self.xmit = Xmit::Ready;
            }
        }
        Some(self)
    }

    /// The worlds one step of the completion side leads to, for every size of batch.
    fn complete(self, ring: &Ring, mutant: Mutant) -> Vec<Self> {
        let mut next = Vec::new();
        match self.complete {
            Complete::Ready => {
                for batch in 1..=self.head - self.tail {
                    let mut world = self;
                    if mutant == Mutant::WakeBeforeTail {
                        if world.stopped && ring.may_wake(world.free(ring)) {
                            world.stopped = false;
                        }
                        world.complete = Complete::Publish(batch);
                    } else {
                        world.tail += batch;
                        world.complete = Complete::Wake;
                    }
                    next.push(world);
                }
            }
            Complete::Wake => {
                let mut world = self;
                if world.stopped && ring.may_wake(world.free(ring)) {
                    world.stopped = false;
                }
                world.complete = Complete::Ready;
                next.push(world);
            }
            Complete::Publish(batch) => {
                let mut world = self;
                world.tail += batch;
                world.complete = Complete::Ready;
                next.push(world);
            }
        }
        next
    }
}

/// Runs every interleaving; `Some` is a world in which nothing can move although packets are left.
fn stuck(ring: &Ring, packets: u8, mutant: Mutant) -> Option<String> {
    let start = World {
        xmit: Xmit::Ready,
        complete: Complete::Ready,
        to_send: packets,
        head: 0,
        tail: 0,
        stopped: false,
    };
    let mut seen = HashSet::from([start]);
    let mut todo = vec![start];
    while let Some(world) = todo.pop() {
        let mut next = world.complete(ring, mutant);
        next.extend(world.xmit(ring, mutant));
        if next.is_empty() && world.to_send > 0 {
            return Some(format!("head {} tail {}", world.head, world.tail));
        }
        for world in next {
            if seen.insert(world) {
                todo.push(world);
            }
        }
    }
    None
}

#[test]
fn no_wake_up_is_lost() {
    for size in 1..=6 {
        for stop_below in 1..=size {
            let ring = Ring::new(size, stop_below);
            assert_eq!(stuck(&ring, 14, Mutant::None), None, "{ring:?}");
        }
    }
}

#[test]
fn the_model_notices_a_lost_wake_up() {
    let ring = Ring::new(4, 1);
    assert!(stuck(&ring, 14, Mutant::NoRecheck).is_some());
    assert!(stuck(&ring, 14, Mutant::WakeBeforeTail).is_some());
}
