// SPDX-License-Identifier: GPL-2.0

//! A hash table that readers walk under RCU, without a lock or a reference count.
//!
//! A chain is made of [`RcuPtr`] links, each of which owns a reference on the entry behind it. A
//! writer holds the lock of the chain's group; an entry that it unlinks stays intact for readers
//! until a grace period after its last owner is gone. No `unsafe` is needed here.

use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu::Guard, //
    },
};

use super::{
    flags::Flags as Bits,
    lock::{
        new_spinlock_bh,
        SpinLockBh, //
    },
    rcu::{
        RcuArc,
        RcuPtr, //
    }, //
};

/// Chains that share one writer lock and one word of marks.
const GROUP: usize = 32;

/// What can be kept in a [`RcuHash`].
pub(crate) trait Entry: Send + Sync + 'static {
    /// What identifies an entry.
    type Key: PartialEq;

    /// The entry's key; it never changes.
    fn key(&self) -> &Self::Key;
}

/// An entry with its link.
#[pin_data]
pub(crate) struct Node<E: Entry> {
    next: RcuPtr<Node<E>>,
    #[pin]
    entry: E,
}

/// Chains with one writer lock between them.
#[pin_data]
struct Group {
    #[pin]
    lock: SpinLockBh<()>,
    marks: Bits,
}

/// The table. The caller hashes; equal keys must come with equal hashes.
pub(crate) struct RcuHash<E: Entry> {
    chains: KVVec<RcuPtr<Node<E>>>,
    groups: KVec<Pin<KBox<Group>>>,
    /// Entries; momentarily too many while some are removed.
    count: Atomic<u32>,
}

impl<E: Entry> RcuHash<E> {
    /// A table of `size` chains, rounded up to a power of two and to at least [`GROUP`]. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(size: usize) -> Result<Self> {
        let size = size.max(GROUP).next_power_of_two();
        let mut chains = KVVec::with_capacity(size, GFP_KERNEL)?;
        for _ in 0..size {
            chains.push(RcuPtr::null(), GFP_KERNEL)?;
        }
        let mut groups = KVec::with_capacity(size / GROUP, GFP_KERNEL)?;
        for _ in 0..size / GROUP {
            let group = KBox::pin_init(
                pin_init!(Group {
                    lock <- new_spinlock_bh!((), "rcuhash"),
                    marks: Bits::new(),
                }),
                GFP_KERNEL,
            )?;
            groups.push(group, GFP_KERNEL)?;
        }
        Ok(Self {
            chains,
            groups,
            count: Atomic::new(0),
        })
    }

    /// How many entries there are. Any context.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Relaxed)
    }

    fn index(&self, hash: u32) -> usize {
        hash as usize & (self.chains.len() - 1)
    }

    /// Finds the entry with `key`. Any context inside an RCU read section; the entry stays intact
    /// until the section ends, even if it is removed meanwhile.
    #[inline]
    pub(crate) fn lookup<'g>(&self, guard: &'g Guard, hash: u32, key: &E::Key) -> Option<&'g E> {
        let mut at = self.chains.get(self.index(hash))?.load(guard);
        while let Some(node) = at {
            if node.entry.key() == key {
                return Some(&node.entry);
            }
            at = node.next.load(guard);
        }
        None
    }

    /// Finds the entry with `key`, or inserts the one that `make` initialises: one step, whoever
    /// else tries the same (B06). Inserts nothing into a table of `max` entries, or at worst one by
    /// each CPU that tries at the same moment. Process or softirq context, inside an RCU read
    /// section.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOSPC` when the table is full.
    pub(crate) fn get_or_insert<'g, I>(
        &self,
        guard: &'g Guard,
        (hash, key): (u32, &E::Key),
        make: I,
        max: u32,
        flags: Flags,
    ) -> Result<&'g E>
    where
        I: PinInit<E>,
    {
        if let Some(found) = self.lookup(guard, hash, key) {
            return Ok(found);
        }
        if self.len() >= max {
            return Err(ENOSPC);
        }
        // Before the lock is taken, so that nothing is allocated or freed under it.
        let node = RcuArc::pin_init(
            pin_init!(Node {
                next: RcuPtr::null(),
                entry <- make,
            }),
            flags,
        )?;
        let index = self.index(hash);
        let (Some(chain), Some(group)) = (self.chains.get(index), self.groups.get(index / GROUP))
        else {
            return Err(EINVAL);
        };
        let lock = group.lock.lock();
        if self.lookup(guard, hash, key).is_none() {
            drop(node.next.swap(chain.get(guard)));
            drop(chain.swap(Some(node)));
            self.count.add(1, Relaxed);
        }
        drop(lock);
        self.lookup(guard, hash, key).ok_or(EAGAIN)
    }

    /// Calls `f` for every entry whose chain `hash` belongs to. Inside an RCU read section.
    pub(crate) fn for_chain(&self, guard: &Guard, hash: u32, mut f: impl FnMut(&E)) {
        if let Some(chain) = self.chains.get(self.index(hash)) {
            let mut at = chain.load(guard);
            while let Some(node) = at {
                f(&node.entry);
                at = node.next.load(guard);
            }
        }
    }

    /// Marks the chain of `hash` for [`RcuHash::take_marked`]. Any context.
    pub(crate) fn mark(&self, hash: u32) {
        let index = self.index(hash);
        if let Some(group) = self.groups.get(index / GROUP) {
            group.marks.set(1 << (index % GROUP));
        }
    }

    /// Calls `f` for every entry in a marked chain and takes the marks, which may be set again
    /// meanwhile. Inside an RCU read section.
    pub(crate) fn take_marked(&self, guard: &Guard, mut f: impl FnMut(&E)) {
        for (number, group) in self.groups.iter().enumerate() {
            if group.marks.get() == 0 {
                continue;
            }
            let mut marks = group.marks.take();
            while marks != 0 {
                let bit = marks.trailing_zeros();
                marks &= marks - 1;
                self.for_chain(guard, (number * GROUP) as u32 + bit, &mut f);
            }
        }
    }

    /// Calls `f` for every entry. Inside an RCU read section.
    pub(crate) fn for_each(&self, guard: &Guard, mut f: impl FnMut(&E)) {
        for chain in 0..self.chains.len() {
            self.for_chain(guard, chain as u32, &mut f);
        }
    }

    /// Unlinks every entry that `gone` says yes to, chain by chain, under the chain's lock. Process
    /// context. Returns how many.
    pub(crate) fn remove_if(&self, mut gone: impl FnMut(&E) -> bool) -> usize {
        let mut removed = 0;
        for (index, chain) in self.chains.iter().enumerate() {
            if chain.is_none() {
                continue;
            }
            let Some(group) = self.groups.get(index / GROUP) else {
                continue;
            };
            let guard = kernel::sync::rcu::read_lock();
            let lock = group.lock.lock();
            let mut link = chain;
            while let Some(node) = link.load(&guard) {
                if gone(&node.entry) {
                    // The node keeps its own reference on the rest of the chain, for readers
                    // that stand on it.
                    drop(link.swap(node.next.get(&guard)));
                    removed += 1;
                } else {
                    link = &node.next;
                }
            }
            drop(lock);
        }
        let _ = self.count.fetch_sub(removed as u32, Relaxed);
        removed
    }
}

impl<E: Entry> Drop for RcuHash<E> {
    fn drop(&mut self) {
        self.remove_if(|_| true);
    }
}
