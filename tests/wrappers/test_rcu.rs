// SPDX-License-Identifier: GPL-2.0

//! Objects under RCU, and the table of them.

use kernel::{
    prelude::*,
    sync::{rcu, Arc},
};

use crate::{
    base::{
        rcu::{RcuArc, RcuPtr},
        rcuhash::{Entry, RcuHash},
    },
    common::{Tally, Token},
    sys::compat::rcu_barrier,
};

impl Entry for Token {
    type Key = u32;

    fn key(&self) -> &u32 {
        self.key_ref()
    }
}

/// Every entry of the table, in no order.
fn count(table: &RcuHash<Token>) -> usize {
    let mut n = 0;
    table.for_each(&rcu::read_lock(), |_| n += 1);
    n
}

/// Waits until a removed chain of `links` entries is gone. Each holds a reference on the next, so
/// that they go one after the other, each by a callback that is queued when the one before is freed.
fn wait_for_chain(links: u32) {
    for _ in 0..links {
        rcu_barrier();
    }
}

/// Inserts `number`, with `hash` for its chain; says which token is there now.
fn insert(
    table: &RcuHash<Token>,
    tally: &Arc<Tally>,
    hash: u32,
    number: u32,
    max: u32,
) -> Result<u32> {
    let guard = rcu::read_lock();
    table
        .get_or_insert(
            &guard,
            (hash, &number),
            Token::new(tally, number),
            max,
            GFP_ATOMIC,
        )
        .map(|t| t.number())
}

#[kunit_tests(ipoib_rcu)]
mod rcu_tests {
    use super::*;

    #[test]
    fn dropped_once_after_the_last_reference() -> Result {
        let tally = Tally::new()?;
        let first = RcuArc::new(Token::new(&tally, 1), GFP_KERNEL)?;
        let second = first.clone();
        drop(first);
        rcu_barrier();
        assert_eq!(tally.dropped(), 0);
        assert_eq!(second.number(), 1);
        drop(second);
        rcu_barrier();
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn initialised_in_place() -> Result {
        let tally = Tally::new()?;
        let there = RcuArc::pin_init(Token::new(&tally, 4), GFP_KERNEL)?;
        assert_eq!(there.number(), 4);
        drop(there);
        rcu_barrier();
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn stays_for_readers() -> Result {
        let tally = Tally::new()?;
        let slot = RcuPtr::null();
        assert!(slot.is_none());
        drop(slot.swap(Some(RcuArc::new(Token::new(&tally, 7), GFP_KERNEL)?)));
        {
            let guard = rcu::read_lock();
            let seen = slot.load(&guard).ok_or(EINVAL)?;
            drop(slot.swap(None));
            assert!(slot.load(&guard).is_none());
            // The last reference is gone and the memory is not.
            assert_eq!((seen.number(), tally.dropped()), (7, 0));
        }
        rcu_barrier();
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn a_reference_outlives_the_slot() -> Result {
        let tally = Tally::new()?;
        let slot = RcuPtr::null();
        drop(slot.swap(Some(RcuArc::new(Token::new(&tally, 8), GFP_KERNEL)?)));
        let mine = slot.get(&rcu::read_lock()).ok_or(EINVAL)?;
        drop(slot);
        rcu_barrier();
        assert_eq!((mine.number(), tally.dropped()), (8, 0));
        drop(mine);
        rcu_barrier();
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn swap_hands_the_old_one_over() -> Result {
        let tally = Tally::new()?;
        let slot = RcuPtr::null();
        for n in 0..5 {
            let old = slot.swap(Some(RcuArc::new(Token::new(&tally, n), GFP_KERNEL)?));
            assert_eq!(old.map(|t| t.number()), n.checked_sub(1));
        }
        rcu_barrier();
        assert_eq!(tally.dropped(), 4);
        drop(slot);
        rcu_barrier();
        assert_eq!((tally.dropped(), tally.last()), (5, 4));
        Ok(())
    }
}

#[kunit_tests(ipoib_rcuhash)]
mod hash_tests {
    use super::*;

    #[test]
    fn one_entry_for_a_key() -> Result {
        let tally = Tally::new()?;
        let table = RcuHash::new(1)?;
        assert_eq!(insert(&table, &tally, 5, 5, 10)?, 5);
        assert_eq!(insert(&table, &tally, 5, 5, 10)?, 5);
        assert_eq!((table.len(), count(&table)), (1, 1));
        // The second was never made, or dropped at once.
        rcu_barrier();
        assert!(tally.dropped() <= 1);
        let before = tally.dropped();
        drop(table);
        rcu_barrier();
        assert_eq!(tally.dropped(), before + 1);
        Ok(())
    }

    #[test]
    fn chains_of_many() -> Result {
        let tally = Tally::new()?;
        let table = RcuHash::new(64)?;
        // All in two chains.
        for n in 0..50 {
            assert_eq!(insert(&table, &tally, n % 2, n, 100)?, n);
        }
        let guard = rcu::read_lock();
        for n in 0..50 {
            assert_eq!(table.lookup(&guard, n % 2, &n).map(|t| t.number()), Some(n));
            assert!(table.lookup(&guard, 1 - n % 2, &n).is_none());
        }
        drop(guard);
        assert_eq!(table.remove_if(|t| t.number() % 3 == 0), 17);
        assert_eq!((table.len(), count(&table)), (33, 33));
        rcu_barrier();
        assert_eq!(tally.dropped(), 17);
        drop(table);
        wait_for_chain(25);
        assert_eq!(tally.dropped(), 50);
        Ok(())
    }

    #[test]
    fn full_is_full() -> Result {
        let tally = Tally::new()?;
        let table = RcuHash::new(32)?;
        for n in 0..4 {
            insert(&table, &tally, n, n, 4)?;
        }
        assert!(insert(&table, &tally, 9, 9, 4) == Err(ENOSPC));
        // One that is there is still found.
        assert_eq!(insert(&table, &tally, 3, 3, 4)?, 3);
        assert_eq!(table.remove_if(|t| t.number() == 0), 1);
        assert_eq!(insert(&table, &tally, 9, 9, 4)?, 9);
        Ok(())
    }

    #[test]
    fn a_reader_on_a_removed_entry_reaches_the_rest() -> Result {
        let tally = Tally::new()?;
        let table = RcuHash::new(32)?;
        for n in 0..6 {
            insert(&table, &tally, 0, n, 10)?;
        }
        let (mut seen, mut removed) = (0, 0);
        table.for_each(&rcu::read_lock(), |_| {
            if seen == 1 {
                // Everything goes while the walk stands on the second of them.
                removed = table.remove_if(|_| true);
            }
            seen += 1;
        });
        assert_eq!((seen, removed), (6, 6));
        rcu_barrier();
        drop(table);
        wait_for_chain(6);
        assert_eq!(tally.dropped(), 6);
        Ok(())
    }

    #[test]
    fn marks_are_taken_once() -> Result {
        let tally = Tally::new()?;
        let table = RcuHash::new(128)?;
        for n in 0..100 {
            insert(&table, &tally, n, n, 200)?;
        }
        table.mark(70);
        table.mark(3);
        table.mark(3);
        let (mut sum, mut again) = (0, 0);
        let guard = rcu::read_lock();
        table.take_marked(&guard, |t| sum += t.number());
        table.take_marked(&guard, |_| again += 1);
        drop(guard);
        assert_eq!((sum, again), (73, 0));
        Ok(())
    }
}
