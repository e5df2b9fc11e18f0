// SPDX-License-Identifier: GPL-2.0

//! Publication of snapshots: readers see one or the other, whole, and as long as they look at it.

use std::sync::Arc;

use kernel::fault::Fault;
use kernel::prelude::*;
use kernel::sync::rcu;
use loom::thread;

use crate::base::rcu::{RcuArc, RcuPtr};
use crate::model::{all, must_fail, Alive};

/// What the data path reads.
struct Snapshot {
    alive: Alive,
    /// Loom watches it: a reader that gets the pointer without the content fails.
    qkey: loom::cell::UnsafeCell<u32>,
    mtu: u32,
}

// SAFETY: the cell is written before the snapshot is published, and then only read.
unsafe impl Sync for Snapshot {}

impl Snapshot {
    fn new(number: u32) -> Self {
        Self {
            alive: Alive::new(),
            qkey: loom::cell::UnsafeCell::new(number),
            mtu: number * 10,
        }
    }

    fn check(&self) -> u32 {
        self.alive.check();
        // SAFETY: nobody writes.
        let number = self.qkey.with(|at| unsafe { *at });
        assert_eq!(self.mtu, number * 10);
        number
    }
}

fn fresh(number: u32) -> RcuArc<Snapshot> {
    let made = RcuArc::new(Snapshot::new(number), GFP_KERNEL).expect("memory");
    // So that loom knows of the count.
    drop(made.clone());
    made
}

fn publishes() {
    all(3, || {
        let slot = Arc::new(RcuPtr::null());
        drop(slot.swap(Some(fresh(1))));
        let writer = {
            let slot = slot.clone();
            thread::spawn(move || {
                drop(slot.swap(Some(fresh(2))));
                drop(slot.swap(None));
            })
        };
        let reader = {
            let slot = slot.clone();
            thread::spawn(move || {
                let guard = rcu::read_lock();
                let first = slot.load(&guard).map(Snapshot::check);
                let second = slot.load(&guard);
                let after = second.map(Snapshot::check);
                // Nobody goes back in time.
                let rank = |number: Option<u32>| number.unwrap_or(3);
                assert!(rank(first) <= rank(after));
                if let Some(second) = second {
                    second.check();
                }
            })
        };
        writer.join().expect("the writer");
        reader.join().expect("the reader");
        assert!(slot.is_none());
    });
}

#[test]
fn snapshots_are_whole_and_last_as_long_as_a_reader() {
    publishes();
}

#[test]
fn freeing_without_a_grace_period_is_noticed() {
    must_fail(
        Fault::NoGracePeriod,
        "snapshots::snapshots_are_whole_and_last_as_long_as_a_reader",
    );
}

#[test]
fn publishing_without_release_is_noticed() {
    must_fail(
        Fault::NoRelease,
        "snapshots::snapshots_are_whole_and_last_as_long_as_a_reader",
    );
}

/// A reference that is taken under way to the last drop either counts or is not given.
fn takes_references() {
    all(3, || {
        let slot = Arc::new(RcuPtr::null());
        drop(slot.swap(Some(fresh(1))));
        let writer = {
            let slot = slot.clone();
            thread::spawn(move || drop(slot.swap(None)))
        };
        let guard = rcu::read_lock();
        let held = slot.get(&guard);
        drop(guard);
        if let Some(held) = &held {
            held.check();
        }
        writer.join().expect("the writer");
        if let Some(held) = held {
            held.check();
        }
    });
}

#[test]
fn a_reference_outlives_the_read_section() {
    takes_references();
}
