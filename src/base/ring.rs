// SPDX-License-Identifier: GPL-2.0

//! A ring of slots between one producer and one consumer.
//!
//! The slots are built once and stay in place: the producer fills one where it lies, the consumer
//! empties it there. Neither side locks or allocates. Both may batch: [`Producer::advance`] and
//! [`Consumer::advance`] move on privately, `publish` makes the progress visible with one store.

use core::cell::UnsafeCell;
use kernel::{
    alloc::flags::GFP_KERNEL,
    alloc::KVVec,
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc, //
    },
};

use super::atomic::Word;

/// Keeps the two indices on cache lines of their own.
#[repr(align(64))]
struct Line<T>(T);

/// The memory that a [`Producer`] and a [`Consumer`] share.
///
/// # Invariants
///
/// - `slots` has `mask + 1` entries, a power of two.
/// - `head <= tail <= head + slots.len()`, counted modulo 2^64. Slots from `head` to `tail` belong
///   to the consumer, all others to the producer. Only the consumer stores to `head` and only the
///   producer to `tail`.
pub(crate) struct Ring<T> {
    head: Line<Atomic<u64>>,
    tail: Line<Atomic<u64>>,
    mask: u64,
    slots: KVVec<UnsafeCell<T>>,
}

// SAFETY: By the type invariants each slot is accessed by one side at a time, and the indices pass
// it from one to the other with release and acquire ordering. So sharing the ring only ever moves
// values of `T` between threads.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Address of the slot that holds the entry `seq`.
    #[inline]
    fn slot(&self, seq: u64) -> *mut T {
        let index = (seq & self.mask) as usize;
        // SAFETY: By the type invariants the masked index is inside of `slots`.
        unsafe { self.slots.get_unchecked(index) }.get()
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// Makes a ring of `n` slots, each of them `T::default()`.
///
/// `n` must be a power of two. Sleeps. Fails with `EINVAL` for a wrong `n` and with `ENOMEM`.
pub(crate) fn ring<T: Default + Send>(n: usize) -> Result<(Producer<T>, Consumer<T>)> {
    if !n.is_power_of_two() {
        return Err(EINVAL);
    }
    let mut slots = KVVec::with_capacity(n, GFP_KERNEL)?;
    for _ in 0..n {
        slots
            .push_within_capacity(UnsafeCell::new(T::default()))
            .map_err(|_| ENOMEM)?;
    }
    // INVARIANT: `n` is a power of two, so `n - 1` is its mask; the ring is empty.
    let ring = Arc::new(
        Ring {
            head: Line(Atomic::new(0)),
            tail: Line(Atomic::new(0)),
            mask: (n as u64).wrapping_sub(1),
            slots,
        },
        GFP_KERNEL,
    )?;
    Ok((
        Producer {
            ring: ring.clone(),
            tail: 0,
            head_seen: 0,
            reserved: false,
        },
        Consumer {
            ring,
            head: 0,
            tail_seen: 0,
        },
    ))
}

/// The filling end of a ring.
///
/// # Invariants
///
/// - This is the only producer of `ring`. `tail` is at or after the published tail.
/// - `head_seen` is a head that the consumer published at some time, and
///   `tail - head_seen <= capacity`. If `reserved` then it is less.
pub(crate) struct Producer<T> {
    ring: Arc<Ring<T>>,
    tail: u64,
    head_seen: u64,
    reserved: bool,
}

impl<T> Producer<T> {
    /// The next free slot and its sequence number, or `None` when the ring is full.
    ///
    /// The slot holds what the consumer left in it. Calling this again without
    /// [`Producer::advance`] gives the same slot.
    #[inline]
    pub(crate) fn reserve(&mut self) -> Option<(u64, &mut T)> {
        let capacity = self.ring.mask.wrapping_add(1);
        if self.tail.wrapping_sub(self.head_seen) >= capacity {
            self.head_seen = self.ring.head.0.get_acquire();
            if self.tail.wrapping_sub(self.head_seen) >= capacity {
                return None;
            }
        }
        // INVARIANT: `tail - head_seen` is below the capacity.
        self.reserved = true;
        // SAFETY: The slot is outside of `head..tail`, so it is the producer's, of which this is
        // the only one; the acquire load of the head orders us after the consumer's last access.
        Some((self.tail, unsafe { &mut *self.ring.slot(self.tail) }))
    }

    /// Passes the reserved slot on, not yet visible to the consumer. Without a reserved slot this
    /// does nothing.
    #[inline]
    pub(crate) fn advance(&mut self) {
        if self.reserved {
            self.reserved = false;
            // INVARIANT: There was room for one more.
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Makes all slots passed on so far visible to the consumer.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.ring.tail.0.put_release(self.tail);
    }

    /// Slots that are free for certain, without a look at the other end; it may have freed more.
    #[inline]
    pub(crate) fn free_at_least(&self) -> usize {
        let used = self.tail.wrapping_sub(self.head_seen);
        self.ring.mask.wrapping_add(1).saturating_sub(used) as usize
    }

    /// Number of slots that are free now; more may become free at any time.
    #[inline]
    pub(crate) fn free(&mut self) -> usize {
        self.ring.capacity().saturating_sub(self.len())
    }

    /// Number of slots in use, counting those not yet published.
    pub(crate) fn len(&mut self) -> usize {
        self.head_seen = self.ring.head.0.get_acquire();
        self.tail.wrapping_sub(self.head_seen) as usize
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// The shared memory, for an owner that must keep the slots alive longer than both ends.
    pub(crate) fn storage(&self) -> Arc<Ring<T>> {
        self.ring.clone()
    }

    /// Whether `consumer` is the other end of this ring.
    pub(crate) fn feeds(&self, consumer: &Consumer<T>) -> bool {
        Arc::ptr_eq(&self.ring, &consumer.ring)
    }
}

/// The emptying end of a ring.
///
/// # Invariants
///
/// This is the only consumer of `ring`. `tail_seen` is a tail that the producer published at some
/// time, and `head` is at or before it.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: u64,
    tail_seen: u64,
}

impl<T> Consumer<T> {
    /// Whether more than `ahead` entries are there, the front one being number 0.
    #[inline]
    pub(crate) fn reaches(&mut self, ahead: u64) -> bool {
        if ahead < self.tail_seen.wrapping_sub(self.head) {
            return true;
        }
        self.tail_seen = self.ring.tail.0.get_acquire();
        ahead < self.tail_seen.wrapping_sub(self.head)
    }

    /// The oldest entry and its sequence number, or `None` when the ring is empty.
    #[inline]
    pub(crate) fn front(&mut self) -> Option<(u64, &mut T)> {
        if !self.reaches(0) {
            return None;
        }
        // SAFETY: `head` is before the published tail, so the slot is the consumer's, of which this
        // is the only one; the acquire load of the tail orders us after the producer's access.
        Some((self.head, unsafe { &mut *self.ring.slot(self.head) }))
    }

    /// Gives `f` the first `n` entries in turn, fewer if there are not as many, and the slots back, not yet visible to
    /// the producer. `f` is told how many are to come.
    #[inline]
    pub(crate) fn consume(&mut self, n: u64, mut f: impl FnMut(&mut T, u64)) {
        let there = self.tail_seen.wrapping_sub(self.head);
        let mut left = if n <= there { n } else { there };
        while left != 0 {
            left = left.wrapping_sub(1);
            // SAFETY: `head` is before the published tail as there are entries left, so the slot is the consumer's,
            // of which this is the only one; the acquire load of the tail orders us after the producer's access.
            f(unsafe { &mut *self.ring.slot(self.head) }, left);
            // INVARIANT: `head` was before `tail_seen`.
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Sequence number that the front entry has or will have.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Gives the front slot back, not yet visible to the producer. On an empty ring this does
    /// nothing.
    #[inline]
    pub(crate) fn advance(&mut self) {
        if self.reaches(0) {
            // INVARIANT: `head` was before `tail_seen`.
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Makes all slots given back so far visible to the producer.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.ring.head.0.put_release(self.head);
    }

    /// Number of entries waiting now; more may come at any time.
    pub(crate) fn len(&mut self) -> usize {
        self.tail_seen = self.ring.tail.0.get_acquire();
        self.tail_seen.wrapping_sub(self.head) as usize
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}
