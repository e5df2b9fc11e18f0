// SPDX-License-Identifier: GPL-2.0

//! Neighbours: what the transmit path looks up by the destination's GID.
//!
//! Unicast peers and multicast groups alike have an entry, with the address handle to use, or with
//! the packets that wait for one. Entries are made by the transmit path, found without a lock, and
//! removed by the worker. The queue pair's number is no part of it: packets bring it along, and all
//! queue pairs of a GID are reached by one handle. So an address resolution packet needs no entry
//! beyond that of the path that it takes (TX-6), and a GID has one entry, however many queue pairs
//! it is said to have.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu::{
            self,
            Guard, //
        },
    },
};

// Named, so that the host models of this file find it too.
#[path = "neigh/large.rs"]
mod large;

use super::lane::TxConn;
use crate::{
    base::{
        atomic::Word,
        flags::Flags,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        rcu::{
            RcuArc,
            RcuPtr, //
        },
        rcuhash::{
            Entry,
            RcuHash, //
        },
        time, //
    },
    control::{
        admission::Asker,
        conn::Link,
        pending::{
            Budget,
            Limits, //
        },
        reason::TxDrop,
        room::Limit, //
    },
    net::skb::{
        SkBuff,
        SkbList, //
    },
    rdma::ah::Ah,
    wire::{
        gid::Gid,
        qpn::Qpn, //
    },
};

/// Chains of the table: eight entries in each when it is full.
const CHAINS: usize = 4096;

/// A frame came from the destination while it was not resolved.
const HEARD: u32 = 1 << 0;
/// The stack asks the destination for its address again and again, or it was heard from elsewhere
/// than we send to.
const SUSPECT: u32 = 1 << 1;

/// Packets want a connection.
const CONNECT: u32 = 1 << 2;

/// A connection to another queue pair of a destination that has one is asked for at most so often, in
/// milliseconds.
const OTHER_MS: u64 = 100;

/// Of two requests for an address within this time, in milliseconds, the first was not answered: the
/// stack repeats one after a second (`retrans_time_ms`), and does not ask about a peer that answers
/// before some more have passed.
const ASKED_AGAIN_MS: u64 = 3000;

/// One destination.
#[pin_data]
pub(crate) struct Neigh {
    /// The destination.
    gid: Gid,
    /// The address handle to send with; none while the destination is unresolved.
    ah: RcuPtr<Ah>,
    /// Milliseconds when a packet last went this way; written by transmitters without order.
    used: Atomic<u64>,
    /// Milliseconds when the stack last asked it for its address; 0 if it never did.
    asked: Atomic<u64>,
    /// The connection to send over, if there is one.
    conn: RcuPtr<TxConn>,
    /// A [`Link`]: what to do without one. Written under `wait`.
    link: Atomic<u32>,
    /// To which of its queue pairs one is wanted.
    wanted: Atomic<u32>,
    /// Milliseconds when one was last asked for.
    connect_asked: Atomic<u64>,
    /// What the worker has to be told.
    notes: Flags,
    #[pin]
    wait: SpinLockBh<Waiting>,
}

/// What waits on all destinations of an interface together, so that many unreachable peers cannot
/// pin more than [`Limits::INTERFACE`]. Touched only where packets wait.
struct Pool {
    packets: Atomic<u32>,
    bytes: Atomic<u32>,
}

impl Pool {
    /// Charges a packet; whether there was room.
    fn admit(&self, len: u32) -> bool {
        let packets = self.packets.fetch_add(1, Relaxed);
        let bytes = self.bytes.fetch_add(len, Relaxed);
        let limits = Limits::INTERFACE;
        let fits = packets < limits.packets && bytes.saturating_add(len) <= limits.bytes;
        if !fits {
            self.release(1, len);
        }
        fits
    }

    fn release(&self, packets: u32, bytes: u32) {
        let _ = self.packets.fetch_sub(packets, Relaxed);
        let _ = self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Packets that wait for the address handle, and those too large for a datagram, which wait for a
/// connection.
struct Waiting {
    list: SkbList,
    budget: Budget,
    /// Some of them are more than answers to whoever asked for our address.
    own: bool,
    large: SkbList,
    large_budget: Budget,
    /// The entry is off the table: nobody would ever send or count what is queued now.
    gone: bool,
}

impl Entry for Neigh {
    type Key = Gid;

    fn key(&self) -> &Gid {
        &self.gid
    }
}

impl Neigh {
    fn init(gid: Gid) -> impl PinInit<Self> {
        pin_init!(Self {
            gid,
            ah: RcuPtr::null(),
            used: Atomic::new(time::now_ms()),
            asked: Atomic::new(0),
            conn: RcuPtr::null(),
            link: Atomic::new(Link::Ask as u32),
            wanted: Atomic::new(0),
            connect_asked: Atomic::new(0),
            notes: Flags::new(),
            wait <- new_spinlock_bh!(Waiting {
                list: SkbList::new(),
                budget: Budget::new(Limits::DESTINATION),
                own: false,
                large: SkbList::new(),
                large_budget: Budget::new(Limits::LARGE),
                gone: false,
            }, "neigh_wait"),
        })
    }

    /// The destination.
    pub(crate) fn gid(&self) -> &Gid {
        &self.gid
    }

    /// The handle to send with now. Notes the use.
    #[inline]
    pub(crate) fn handle(&self, guard: &Guard) -> Option<RcuArc<Ah>> {
        let ah = self.ah.get(guard)?;
        self.note_use();
        Some(ah)
    }

    /// One store a millisecond at most: the line stays shared between the transmitting CPUs.
    #[inline]
    fn note_use(&self) {
        let now = time::now_ms();
        if self.used.get() != now {
            self.used.put(now);
        }
    }

    /// Whether there is a handle.
    pub(crate) fn resolved(&self) -> bool {
        !self.ah.is_none()
    }

    /// Milliseconds when a packet last went, or wanted to go, this way.
    pub(crate) fn last_used(&self) -> u64 {
        self.used.get()
    }

    /// How many packets wait.
    pub(crate) fn waiting(&self) -> u32 {
        let wait = self.wait.lock();
        wait.budget
            .packets()
            .saturating_add(wait.large_budget.packets())
    }

    /// On whose behalf packets wait for the address handle, if any do.
    fn asker(&self) -> Option<Asker> {
        let wait = self.wait.lock();
        // Whoever wants a connection has more to say than an answer.
        let large = !wait.large_budget.is_empty() && self.ah.is_none();
        if large || !wait.budget.is_empty() && wait.own {
            Some(Asker::Ourselves)
        } else {
            (!wait.budget.is_empty()).then_some(Asker::Stranger)
        }
    }

    /// Queues a packet, unless a handle has been published since the caller looked (TRAP-42).
    fn queue(&self, skb: SkBuff, asker: Asker, pool: &Pool) -> Queued {
        self.note_use();
        let mut wait = self.wait.lock();
        if !self.ah.is_none() {
            return Queued::Ready(skb);
        }
        if wait.gone {
            return Queued::Dropped(TxDrop::Flushed);
        }
        if !pool.admit(skb.len()) {
            return Queued::Dropped(TxDrop::QueueFull);
        }
        if !wait.budget.admit(skb.len()) {
            pool.release(1, skb.len());
            return Queued::Dropped(TxDrop::QueueFull);
        }
        wait.own |= asker == Asker::Ourselves;
        wait.list.push(skb);
        Queued::Waits
    }

    /// Publishes `ah` and gives out what waited for it, which the caller sends.
    fn publish(&self, ah: RcuArc<Ah>, pool: &Pool) -> SkbList {
        let old = self.ah.swap(Some(ah));
        let list = self.take_waiting(pool);
        drop(old);
        list
    }

    /// Takes the packets that wait.
    fn take_waiting(&self, pool: &Pool) -> SkbList {
        let mut wait = self.wait.lock();
        pool.release(wait.budget.packets(), wait.budget.bytes());
        wait.budget.clear();
        wait.own = false;
        wait.list.take()
    }
}

/// What became of a packet for a destination without a handle.
pub(crate) enum Queued {
    /// It waits; the worker must hear of it.
    Waits,
    /// There is a handle, or a connection, after all.
    Ready(SkBuff),
    /// It is too large, and there will be no connection.
    Refused(SkBuff),
    /// It is gone, for the reason given, which the caller counts.
    Dropped(TxDrop),
}

/// All destinations of one interface.
pub(crate) struct Neighbours {
    table: RcuHash<Neigh>,
    seed: u32,
    pool: Pool,
    /// Destinations of which a frame would be news.
    silent: Atomic<u32>,
}

/// What is told of a destination to the worker.
#[derive(Clone, Copy)]
pub(crate) struct Note {
    pub(crate) gid: Gid,
    /// A frame came from it while it was not resolved.
    pub(crate) heard: bool,
    /// It does not answer, although it is resolved.
    pub(crate) suspect: bool,
    /// Packets wait for its path, on whose behalf.
    pub(crate) wanted: Option<Asker>,
    /// A connection to this queue pair of it is wanted.
    pub(crate) connect: Option<Qpn>,
}

impl Neighbours {
    /// An empty table. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            table: RcuHash::new(CHAINS)?,
            seed: time::random_u32(),
            pool: Pool {
                packets: Atomic::new(0),
                bytes: Atomic::new(0),
            },
            silent: Atomic::new(0),
        })
    }

    #[inline]
    fn hash(&self, gid: &Gid) -> u32 {
        gid.hash32(self.seed)
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> u32 {
        self.table.len()
    }

    /// The entry of `gid`, if there is one.
    #[inline]
    pub(crate) fn lookup<'g>(&self, guard: &'g Guard, gid: &Gid) -> Option<&'g Neigh> {
        self.table.lookup(guard, self.hash(gid), gid)
    }

    /// Lets `skb`, pseudo header in front, wait for a handle for `gid`, making the entry if need
    /// be. Softirq or process context.
    pub(crate) fn wait(&self, guard: &Guard, gid: &Gid, skb: SkBuff, asker: Asker) -> Queued {
        match self.entry(guard, gid) {
            Ok(neigh) => {
                let queued = neigh.queue(skb, asker, &self.pool);
                if matches!(queued, Queued::Waits) {
                    self.table.mark(self.hash(gid));
                }
                queued
            }
            Err(reason) => Queued::Dropped(reason),
        }
    }

    /// The entry of `gid`, made if need be.
    fn entry<'g>(&self, guard: &'g Guard, gid: &Gid) -> core::result::Result<&'g Neigh, TxDrop> {
        let made = self.table.get_or_insert(
            guard,
            (self.hash(gid), gid),
            Neigh::init(*gid),
            Limit::NEIGHBOURS.max(),
            GFP_ATOMIC | __GFP_NOWARN,
        );
        made.map_err(|e| {
            if e == ENOSPC {
                TxDrop::TableFull
            } else {
                TxDrop::NoMemory
            }
        })
    }

    /// Says of how many destinations a frame would be news. Control lock held.
    pub(crate) fn set_silent(&self, count: u32) {
        self.silent.put(count);
    }

    /// Whether [`Neighbours::heard`] may have news: to be asked before it, once for many frames.
    #[inline]
    pub(crate) fn listening(&self) -> bool {
        self.silent.get() != 0
    }

    /// A frame came from `gid`. Returns whether the worker must hear of it.
    pub(crate) fn heard(&self, guard: &Guard, gid: &Gid) -> bool {
        let Some(neigh) = self.lookup(guard, gid) else {
            return false;
        };
        // A note that the worker has not taken yet is left alone, and the line with it.
        if neigh.resolved() || neigh.notes.get() & HEARD != 0 {
            return false;
        }
        neigh.notes.set(HEARD);
        self.table.mark(self.hash(gid));
        true
    }

    /// A frame came from `gid`, at the local identifier `slid`, whose `lmc` low bits say nothing of
    /// who it is. Returns whether we send to it elsewhere, and the worker must hear of it.
    pub(crate) fn moved(&self, guard: &Guard, gid: &Gid, slid: u32, lmc: u8) -> bool {
        let Some(neigh) = self.lookup(guard, gid) else {
            return false;
        };
        let dlid = neigh.ah.get(guard).and_then(|ah| ah.attr().dlid());
        let moved = dlid.is_some_and(|dlid| dlid >> lmc != slid >> lmc);
        if !moved || neigh.notes.get() & SUSPECT != 0 {
            return false;
        }
        neigh.notes.set(SUSPECT);
        self.table.mark(self.hash(gid));
        true
    }

    /// The stack sends `gid` a request for its address. Returns whether the worker must hear of it.
    pub(crate) fn asked(&self, guard: &Guard, gid: &Gid) -> bool {
        let Some(neigh) = self.lookup(guard, gid) else {
            return false;
        };
        let now = time::now_ms();
        let before = neigh.asked.xchg(now, Relaxed);
        let again = before != 0 && now.saturating_sub(before) < ASKED_AGAIN_MS;
        if again {
            neigh.notes.set(SUSPECT);
            self.table.mark(self.hash(gid));
        }
        again
    }

    /// Calls `f` for each destination of which there is something new since the last call.
    pub(crate) fn take_notes(&self, mut f: impl FnMut(Note)) {
        let guard = rcu::read_lock();
        self.table.take_marked(&guard, |neigh| {
            let notes = match neigh.notes.get() {
                0 => 0,
                _ => neigh.notes.take(),
            };
            let wanted = neigh.asker();
            if notes != 0 || wanted.is_some() {
                f(Note {
                    gid: neigh.gid,
                    heard: notes & HEARD != 0,
                    suspect: notes & SUSPECT != 0,
                    wanted,
                    connect: (notes & CONNECT != 0).then(|| Qpn::new(neigh.wanted.load(Relaxed))),
                });
            }
        });
    }

    /// Marks every destination that packets wait for, for the next [`Neighbours::take_notes`].
    pub(crate) fn mark_waiting(&self) {
        self.for_each(|neigh| {
            if neigh.waiting() > 0 {
                self.table.mark(self.hash(&neigh.gid));
            }
        });
    }

    /// Calls `f` with the entry of `gid`, if there is one.
    fn with<R>(&self, gid: &Gid, f: impl FnOnce(&Neigh) -> R) -> Option<R> {
        let guard = rcu::read_lock();
        self.lookup(&guard, gid).map(f)
    }

    /// Publishes `ah` for `gid`; `send` gets what waited.
    pub(crate) fn publish(&self, gid: &Gid, ah: &RcuArc<Ah>, send: impl FnOnce(SkbList)) {
        // Sent outside of the read section, which the packets do not need.
        if let Some(list) = self.with(gid, |neigh| neigh.publish(ah.clone(), &self.pool)) {
            send(list);
        }
    }

    /// Withdraws the handle of `gid`.
    pub(crate) fn unpublish(&self, gid: &Gid) {
        drop(self.with(gid, |neigh| neigh.ah.swap(None)));
    }

    /// Drops what waits for `gid`; `count` gets the number of packets.
    pub(crate) fn drop_waiting(&self, gid: &Gid, count: impl FnOnce(usize)) {
        let lists = self.with(gid, |neigh| {
            (neigh.take_waiting(&self.pool), neigh.take_large(&self.pool))
        });
        if let Some((list, large)) = lists {
            count(list.len() + large.len());
        }
    }

    /// Whether there is an entry of `gid`.
    pub(crate) fn contains(&self, gid: &Gid) -> bool {
        self.with(gid, |_| ()).is_some()
    }

    /// Removes the entries that `gone` says yes to; packets that wait on them go to `count`.
    pub(crate) fn remove_if(
        &self,
        mut gone: impl FnMut(&Neigh) -> bool,
        mut count: impl FnMut(TxDrop, usize),
    ) -> usize {
        self.table.remove_if(|neigh| {
            let yes = gone(neigh);
            if yes {
                drop(neigh.ah.swap(None));
                drop(neigh.conn.swap(None));
                neigh.wait.lock().gone = true;
                let list = neigh.take_waiting(&self.pool);
                let large = neigh.take_large(&self.pool);
                let packets = list.len() + large.len();
                if packets > 0 {
                    count(TxDrop::Flushed, packets);
                }
            }
            yes
        })
    }

    /// Calls `f` for every entry, for debugfs.
    pub(crate) fn for_each(&self, f: impl FnMut(&Neigh)) {
        let guard = rcu::read_lock();
        self.table.for_each(&guard, f);
    }
}
