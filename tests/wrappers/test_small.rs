// SPDX-License-Identifier: GPL-2.0

//! Counters, flags, locks, clocks, the ring.

use kernel::prelude::*;

use crate::{
    base::{
        count::Counter,
        flags::Flags,
        lock::{new_spinlock_bh, SpinLockBh},
        once::Once,
        ring::ring,
        time,
    },
    common::{bottom_halves_off, Tally, Token},
};

/// A lock with a place in memory.
#[pin_data]
struct Locked {
    #[pin]
    lock: SpinLockBh<u32>,
}

#[kunit_tests(ipoib_small)]
mod small {
    use super::*;

    #[test]
    fn counter_wraps() {
        let c = Counter::new();
        c.add(u64::MAX);
        c.add(3);
        c.add_shared(5);
        assert_eq!(c.get(), 7);
    }

    #[test]
    fn flags_tell_what_was() {
        let f = Flags::new();
        assert_eq!(f.set(0b101), 0);
        assert_eq!(f.set(0b001), 0b101);
        assert_eq!(f.clear(0b100), 0b101);
        assert_eq!(f.update(|old| old << 4), 0b001);
        assert_eq!(f.get(), 0b1_0000);
        assert_eq!(f.take(), 0b1_0000);
        assert_eq!(f.take(), 0);
    }

    #[test]
    fn once_is_once() {
        let (once, mut runs) = (Once::new(), 0);
        assert!(!once.is_done());
        assert!(once.call(|| runs += 1).is_ok());
        assert!(once.is_done());
        assert!(once.call(|| runs += 1) == Err(EBUSY));
        assert_eq!(runs, 1);
    }

    #[test]
    fn once_is_not_done_before_its_end() {
        let once = Once::new();
        let mut seen = None;
        assert!(once
            .call(|| seen = Some((once.is_done(), once.call(|| ()).is_err())))
            .is_ok());
        assert_eq!(seen, Some((false, true)));
    }

    #[test]
    fn milliseconds_round_up_to_ticks() {
        assert_eq!(time::ms_to_jiffies(0), 0);
        assert_eq!(time::ms_to_jiffies(1), u64::from(time::hz()).div_ceil(1000));
        assert_eq!(time::ms_to_jiffies(10_000), 10 * u64::from(time::hz()));
        assert_eq!(time::ms_to_jiffies(u64::MAX), u64::MAX.div_ceil(1000));
    }

    #[test]
    fn spinlock_holds_bottom_halves() -> Result {
        let l = KBox::pin_init(
            pin_init!(Locked { lock <- new_spinlock_bh!(1, "test") }),
            GFP_KERNEL,
        )?;
        assert!(!bottom_halves_off());
        {
            let mut guard = l.lock.lock();
            *guard += 1;
            assert!(bottom_halves_off());
        }
        assert!(!bottom_halves_off());
        // While the lock is held, on one processor even the attempt would be a fault.
        let guard = l.lock.try_lock();
        assert!(bottom_halves_off());
        assert_eq!(guard.as_deref().copied(), Some(2));
        drop(guard);
        assert!(!bottom_halves_off());
        Ok(())
    }
}

#[kunit_tests(ipoib_ring)]
mod ring_tests {
    use super::*;

    #[test]
    fn wants_a_power_of_two() {
        assert!(ring::<Option<Token>>(3).is_err());
        assert!(ring::<Option<Token>>(0).is_err());
    }

    #[test]
    fn passes_in_order_and_round() -> Result {
        let (mut tx, mut rx) = ring::<u64>(4)?;
        let mut expected = 0;
        for n in 0..100u64 {
            let before = rx.len();
            while let Some((seq, slot)) = tx.reserve() {
                *slot = seq * 3;
                tx.advance();
            }
            assert_eq!((tx.len(), tx.free(), rx.len()), (4, 0, before));
            tx.publish();
            assert_eq!(rx.len(), 4);
            for _ in 0..=n % 4 {
                let (seq, slot) = rx.front().ok_or(EINVAL)?;
                assert_eq!((seq, *slot), (expected, expected * 3));
                expected += 1;
                rx.advance();
            }
            rx.publish();
        }
        assert!(tx.feeds(&rx));
        Ok(())
    }

    #[test]
    fn unpublished_slots_are_not_free() -> Result {
        let (mut tx, mut rx) = ring::<u32>(2)?;
        for _ in 0..2 {
            assert!(tx.reserve().is_some());
            tx.advance();
        }
        tx.publish();
        assert!(tx.reserve().is_none());
        rx.advance();
        assert!(tx.reserve().is_none());
        rx.publish();
        assert!(tx.reserve().is_some());
        Ok(())
    }

    #[test]
    fn moves_only_over_what_is_there() -> Result {
        let (mut tx, mut rx) = ring::<u32>(2)?;
        tx.advance();
        tx.publish();
        assert!(rx.front().is_none());
        rx.advance();
        rx.publish();
        assert_eq!(tx.free(), 2);
        assert_eq!(rx.head(), 0);
        Ok(())
    }

    #[test]
    fn values_live_as_long_as_the_storage() -> Result {
        let tally = Tally::new()?;
        let (mut tx, rx) = ring::<Option<Token>>(4)?;
        for n in 0..3 {
            if let Some((_, slot)) = tx.reserve() {
                *slot = Some(Token::new(&tally, n));
            }
            tx.advance();
        }
        let storage = tx.storage();
        drop(rx);
        drop(tx);
        assert_eq!(tally.dropped(), 0);
        assert_eq!(storage.capacity(), 4);
        drop(storage);
        assert_eq!(tally.dropped(), 3);
        Ok(())
    }
}
