// SPDX-License-Identifier: GPL-2.0

//! The ring between transmit and completion, and stopping and waking the queue.

use std::sync::Arc;

use kernel::fault::Fault;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use crate::base::ring::{ring, Consumer, Producer};
use crate::control::txstop::Ring;
use crate::model::{all, must_fail};
use crate::net::device::Device;
use crate::net::txq::{TxLocked, TxQueue};
use crate::sys::bindings::{net_device, netdev_queue};

/// A slot that loom watches: access from two sides at a time fails.
#[derive(Default)]
struct Slot(UnsafeCell<u64>);

fn put(producer: &mut Producer<Slot>, value: u64) -> bool {
    let Some((_, slot)) = producer.reserve() else {
        return false;
    };
    // SAFETY: the slot is the producer's.
    slot.0.with_mut(|at| unsafe { *at = value });
    producer.advance();
    producer.publish();
    true
}

fn get(consumer: &mut Consumer<Slot>) -> Option<u64> {
    let (_, slot) = consumer.front()?;
    // SAFETY: the slot is the consumer's.
    let value = slot.0.with(|at| unsafe { *at });
    consumer.advance();
    consumer.publish();
    Some(value)
}

fn pair(n: usize) -> (Producer<Slot>, Consumer<Slot>) {
    let (mut producer, mut consumer) = ring(n).expect("a ring");
    // So that loom watches the indices from the start.
    producer.publish();
    consumer.publish();
    (producer, consumer)
}

fn passes_in_order() {
    all(3, || {
        let (mut producer, mut consumer) = pair(2);
        let filler = thread::spawn(move || {
            for value in 1..=3 {
                while !put(&mut producer, value) {
                    thread::yield_now();
                }
            }
        });
        for value in 1..=3 {
            let got = loop {
                match get(&mut consumer) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, value);
        }
        assert_eq!(get(&mut consumer), None);
        filler.join().expect("the producer");
    });
}

#[test]
fn the_ring_passes_every_entry_once_and_in_order() {
    passes_in_order();
}

#[test]
fn a_ring_without_release_is_noticed() {
    must_fail(
        Fault::NoRelease,
        "ring_models::the_ring_passes_every_entry_once_and_in_order",
    );
}

/// What a completion does, as in the module's poll.
fn complete(consumer: &mut Consumer<Slot>, txq: &TxQueue, limits: &Ring) -> bool {
    if get(consumer).is_none() {
        return false;
    }
    if txq.stopped() {
        let free = consumer.capacity() - consumer.len();
        if limits.may_wake(free as u32) {
            txq.wake();
        }
    }
    true
}

fn wakes() {
    all(4, || {
        let dev = Device(Box::new(net_device {
            num_tx_queues: 1,
            queue: netdev_queue {
                stopped: AtomicBool::new(false),
            },
        }));
        let sender = TxQueue::new(&dev, 0).expect("a queue");
        let waker = TxQueue::new(&dev, 0).expect("a queue");
        let limits = Ring::new(2, 1);
        let (mut producer, mut consumer) = pair(2);
        let transmitter = thread::spawn(move || {
            for value in 1..=2 {
                assert!(put(&mut producer, value), "there is room");
                if limits.must_stop(producer.free() as u32) {
                    let mut lock = sender.lock();
                    let _ = lock
                        .ops()
                        .stop_unless(|| limits.may_wake(producer.free() as u32));
                }
            }
        });
        let mut done = 0;
        while done < 2 {
            if complete(&mut consumer, &waker, &limits) {
                done += 1;
            } else {
                thread::yield_now();
            }
        }
        transmitter.join().expect("the transmitter");
        assert!(
            !waker.stopped(),
            "nothing is under way that would wake the queue"
        );
        drop(dev);
    });
}

#[test]
fn a_queue_that_stops_is_woken() {
    wakes();
}

#[test]
fn a_missing_barrier_is_noticed() {
    must_fail(Fault::NoBarrier, "ring_models::a_queue_that_stops_is_woken");
}

/// The model's completion is the module's: what it looks at, and in which order.
#[test]
fn the_poll_wakes_as_in_the_model() {
    let source = include_str!("../../../../src/ipoib/rx.rs");
    let places: Vec<usize> = [
        "self.sends.complete(",
        "self.txq.stopped()",
        "ring.may_wake(",
        "self.txq.wake()",
    ]
    .iter()
    .map(|step| {
        source
            .find(step)
            .unwrap_or_else(|| panic!("{step} is gone"))
    })
    .collect();
    assert!(places.is_sorted(), "{places:?}");
}
