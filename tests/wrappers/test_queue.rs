// SPDX-License-Identifier: GPL-2.0

//! Work items: nothing is lost by a kick, nothing leaks by a cancellation.

use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta},
    workqueue::{DelayedWork, WorkItem},
};

use crate::{
    base::work::{cancel_sync, OrderedQueue},
    common::{Tally, Token},
};

/// An item that counts its runs and can queue itself again.
#[pin_data]
struct Job {
    #[pin]
    work: DelayedWork<Self>,
    queue: Arc<OrderedQueue>,
    runs: Atomic<u32>,
    /// How often a run queues the item again.
    again: Atomic<u32>,
    /// Milliseconds that a run takes.
    takes: i64,
    _token: Token,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Job { self.work }
}

impl WorkItem for Job {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.runs.fetch_add(1, Full);
        if this.takes > 0 {
            fsleep(Delta::from_millis(this.takes));
        }
        let left = this.again.load(Relaxed);
        if left > 0 {
            this.again.store(left - 1, Relaxed);
            let queue = this.queue.clone();
            queue.kick(this);
        }
    }
}

fn job(queue: &Arc<OrderedQueue>, tally: &Arc<Tally>, again: u32, takes: i64) -> Result<Arc<Job>> {
    Arc::pin_init(
        pin_init!(Job {
            work <- new_delayed_work!("Job::work"),
            queue: queue.clone(),
            runs: Atomic::new(0),
            again: Atomic::new(again),
            takes,
            _token: Token::new(tally, 0),
        }),
        GFP_KERNEL,
    )
}

fn queue() -> Result<Arc<OrderedQueue>> {
    Ok(Arc::new(OrderedQueue::new(c"wrappers", true)?, GFP_KERNEL)?)
}

/// Longer than any test runs.
const LONG: u64 = 3_600_000;

#[kunit_tests(ipoib_work)]
mod work_tests {
    use super::*;

    #[test]
    fn a_kick_runs_once_and_lets_go() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 0)?;
        q.kick(j.clone());
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 1);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn kicks_of_a_pending_item_are_one() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        // Keeps the queue busy meanwhile.
        let slow = job(&q, &tally, 0, 50)?;
        let j = job(&q, &tally, 0, 0)?;
        q.kick(slow.clone());
        for _ in 0..10 {
            q.kick(j.clone());
        }
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 1);
        drop((slow, j));
        assert_eq!(tally.dropped(), 2);
        Ok(())
    }

    #[test]
    fn a_kick_during_the_run_is_not_lost() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 50)?;
        q.kick(j.clone());
        while j.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        q.kick(j.clone());
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 2);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn a_kick_hurries_a_delayed_item() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 0)?;
        q.run_in(j.clone(), LONG);
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 0);
        q.kick(j.clone());
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 1);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn a_later_delay_changes_nothing() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 0)?;
        q.run_in(j.clone(), 1);
        q.run_in(j.clone(), LONG);
        while j.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        cancel_sync(&j);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn cancelling_gives_the_reference_back() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 0)?;
        q.run_in(j.clone(), LONG);
        cancel_sync(&j);
        cancel_sync(&j);
        assert_eq!(j.runs.load(Relaxed), 0);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn cancelling_waits_for_the_run() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 50)?;
        q.kick(j.clone());
        while j.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        cancel_sync(&j);
        drop(j);
        // Nobody else holds it: the run is over.
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn an_item_that_queues_itself_while_it_is_cancelled_lets_go() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        for _ in 0..20 {
            let j = job(&q, &tally, 3, 5)?;
            q.kick(j.clone());
            while j.runs.load(Relaxed) == 0 {
                fsleep(Delta::from_micros(100));
            }
            cancel_sync(&j);
            let runs = j.runs.load(Relaxed);
            q.flush();
            assert_eq!(j.runs.load(Relaxed), runs);
            drop(j);
        }
        assert_eq!(tally.dropped(), 20);
        Ok(())
    }

    #[test]
    fn a_cancelled_item_can_be_queued_again() -> Result {
        let (q, tally) = (queue()?, Tally::new()?);
        let j = job(&q, &tally, 0, 0)?;
        cancel_sync(&j);
        q.kick(j.clone());
        q.flush();
        assert_eq!(j.runs.load(Relaxed), 1);
        drop(j);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }

    #[test]
    fn the_queue_ends_after_what_is_on_it() -> Result {
        let tally = Tally::new()?;
        let home = queue()?;
        let q = OrderedQueue::new(c"wrappers2", false)?;
        let (slow, j) = (job(&home, &tally, 0, 20)?, job(&home, &tally, 0, 0)?);
        q.kick(slow.clone());
        q.kick(j.clone());
        drop(q);
        assert_eq!((slow.runs.load(Relaxed), j.runs.load(Relaxed)), (1, 1));
        drop((slow, j));
        assert_eq!(tally.dropped(), 2);
        Ok(())
    }
}
