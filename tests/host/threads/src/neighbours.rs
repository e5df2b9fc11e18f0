// SPDX-License-Identifier: GPL-2.0

//! The table of destinations: look up or insert, wait, publish and remove, all at a time.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::Arc;

use kernel::fault::Fault;
use kernel::prelude::*;
use kernel::sync::rcu;
use loom::thread;

use crate::base::rcu::RcuArc;
use crate::base::rcuhash::{Entry, RcuHash};
use crate::control::admission::Asker;
use crate::ipoib::neigh::{Neighbours, Queued};
use crate::model::{all, must_fail, Alive};
use crate::net::skb::SkBuff;
use crate::rdma::ah::Ah;
use crate::wire::gid::Gid;

/// An entry of a table of numbers.
struct Number {
    key: u32,
    alive: Alive,
}

impl Entry for Number {
    type Key = u32;

    fn key(&self) -> &u32 {
        self.alive.check();
        &self.key
    }
}

fn number(key: u32) -> impl PinInit<Number> {
    kernel::init::init(move || Number {
        key,
        alive: Alive::new(),
    })
}

type Table = RcuHash<Number>;

/// Inserts `key`, all keys in one chain.
fn insert(table: &Table, key: u32) -> *const Number {
    let guard = rcu::read_lock();
    let made = table.get_or_insert(&guard, (0, &key), number(key), 8, GFP_ATOMIC);
    let entry = made.expect("it is there, or made");
    entry.alive.check();
    entry
}

fn table() -> Arc<Table> {
    Arc::new(RcuHash::new(1).expect("a table"))
}

fn inserts_once() {
    all(2, || {
        let table = table();
        insert(&table, 1);
        let other = {
            let table = table.clone();
            thread::spawn(move || insert(&table, 2) as usize)
        };
        let mine = insert(&table, 2) as usize;
        assert_eq!(
            other.join().expect("the other"),
            mine,
            "one entry for a key"
        );
        assert_eq!(table.len(), 2);
    });
}

#[test]
fn two_that_insert_the_same_key_get_the_same_entry() {
    inserts_once();
}

#[test]
fn a_lock_that_excludes_nobody_is_noticed() {
    must_fail(
        Fault::NoLock,
        "neighbours::two_that_insert_the_same_key_get_the_same_entry",
    );
}

/// While others are removed and inserted, one that stays is always found.
fn finds() {
    all(2, || {
        let table = table();
        insert(&table, 1);
        insert(&table, 2);
        insert(&table, 3);
        let remover = {
            let table = table.clone();
            thread::spawn(move || table.remove_if(|entry| *entry.key() != 1))
        };
        let guard = rcu::read_lock();
        let found = table.lookup(&guard, 0, &1);
        assert!(found.is_some(), "it was there all the time");
        drop(guard);
        insert(&table, 3);
        assert_eq!(remover.join().expect("the remover"), 2);
        let left = table.len();
        assert!((1..=2).contains(&left), "{left} are left");
    });
}

#[test]
fn what_stays_is_found_while_others_go() {
    finds();
}

#[test]
fn a_table_without_grace_periods_is_noticed() {
    must_fail(
        Fault::NoGracePeriod,
        "neighbours::what_stays_is_found_while_others_go",
    );
}

/// Where packets ended.
#[derive(Default)]
struct Ends {
    sent: AtomicU32,
    counted: AtomicU32,
}

impl Ends {
    fn sum(&self) -> u32 {
        self.sent.load(SeqCst) + self.counted.load(SeqCst)
    }
}

const PEER: Gid = Gid([2; 16]);

fn transmit(neighbours: &Neighbours, ends: &Ends) {
    let guard = rcu::read_lock();
    let handle = neighbours
        .lookup(&guard, &PEER)
        .and_then(|neigh| neigh.handle(&guard));
    if let Some(ah) = handle {
        let _ = ah.attr();
        ends.sent.fetch_add(1, SeqCst);
        return;
    }
    match neighbours.wait(&guard, &PEER, SkBuff(0), Asker::Ourselves) {
        Queued::Waits => {}
        Queued::Ready(_) => {
            // The transmit path looks again; the handle may be gone by then.
            let again = neighbours
                .lookup(&guard, &PEER)
                .and_then(|neigh| neigh.handle(&guard));
            match again {
                Some(_) => ends.sent.fetch_add(1, SeqCst),
                None => ends.counted.fetch_add(1, SeqCst),
            };
        }
        Queued::Refused(_) | Queued::Dropped(_) => {
            ends.counted.fetch_add(1, SeqCst);
        }
    }
}

/// One transmits while the worker does something else; afterwards the worker looks at what waits, as the transmitter has
/// it do, and each packet has ended.
fn transmits_against(work: fn(&Neighbours, &Ends), prepared: bool) {
    all(2, move || {
        let neighbours = Arc::new(Neighbours::new().expect("a table"));
        let ends = Arc::new(Ends::default());
        if prepared {
            transmit(&neighbours, &ends);
        }
        let transmitter = {
            let (neighbours, ends) = (neighbours.clone(), ends.clone());
            thread::spawn(move || transmit(&neighbours, &ends))
        };
        work(&neighbours, &ends);
        transmitter.join().expect("the transmitter");
        // The packet is in none of the lists that nobody looks at any more.
        let mut told = 0;
        neighbours.take_notes(|note| told += u32::from(note.wanted.is_some()));
        let mut waiting = 0;
        neighbours.for_each(|neigh| waiting += neigh.waiting());
        assert_eq!(
            told,
            u32::from(waiting > 0),
            "the worker hears of what waits"
        );
        assert_eq!(ends.sum() + waiting, 1 + u32::from(prepared));
    });
}

fn publish(neighbours: &Neighbours, ends: &Ends) {
    let ah = RcuArc::new(Ah::new(5), GFP_KERNEL).expect("memory");
    drop(ah.clone());
    neighbours.publish(&PEER, &ah, |mut list| {
        while list.pop().is_some() {
            ends.sent.fetch_add(1, SeqCst);
        }
    });
}

fn remove(neighbours: &Neighbours, ends: &Ends) {
    neighbours.remove_if(
        |_| true,
        |_, packets| {
            ends.counted.fetch_add(packets as u32, SeqCst);
        },
    );
}

#[test]
fn no_packet_is_left_when_a_handle_is_published() {
    transmits_against(publish, true);
}

#[test]
fn no_packet_is_left_when_its_destination_is_removed() {
    transmits_against(remove, true);
}

#[test]
fn nor_when_it_is_published_and_removed() {
    transmits_against(
        |neighbours, ends| {
            publish(neighbours, ends);
            remove(neighbours, ends);
        },
        true,
    );
}

#[test]
fn waiting_without_the_lock_is_noticed() {
    must_fail(
        Fault::NoLock,
        "neighbours::no_packet_is_left_when_its_destination_is_removed",
    );
}
