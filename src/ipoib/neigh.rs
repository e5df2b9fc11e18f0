// SPDX-License-Identifier: GPL-2.0

//! Neighbours: what the transmit path looks up by the destination's link-layer address.
//!
//! Unicast peers and multicast groups alike have an entry, with the address handle to use, or with
//! the packets that wait for one. Entries are made by the transmit path, found without a lock, and
//! removed by the worker. The table is hashed by GID, so that all queue pairs of one GID share a
//! chain and one resolved path finds them all.

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

use crate::{
    base::{
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
        pending::{
            Budget,
            Limits, //
        },
        reason::TxDrop, //
    },
    net::skb::{
        SkBuff,
        SkbList, //
    },
    rdma::ah::Ah,
    wire::{
        addr::HwAddr,
        gid::Gid, //
    },
};

/// Chains of the table: the default of `arp_tbl.gc_thresh3` (NB-1).
const CHAINS: usize = 1024;

/// One destination.
#[pin_data]
pub(crate) struct Neigh {
    /// The destination, octet 0 cleared.
    addr: HwAddr,
    /// The address handle to send with; none while the destination is unresolved.
    ah: RcuPtr<Ah>,
    /// Milliseconds when a packet last went this way; written by transmitters without order.
    used: Atomic<u64>,
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

/// Packets that wait for the address handle.
struct Waiting {
    list: SkbList,
    budget: Budget,
    /// The entry is off the table: nobody would ever send or count what is queued now.
    gone: bool,
}

impl Entry for Neigh {
    type Key = HwAddr;

    fn key(&self) -> &HwAddr {
        &self.addr
    }
}

impl Neigh {
    fn init(addr: HwAddr) -> impl PinInit<Self> {
        pin_init!(Self {
            addr,
            ah: RcuPtr::null(),
            used: Atomic::new(time::now_ms()),
            wait <- new_spinlock_bh!(Waiting {
                list: SkbList::new(),
                budget: Budget::new(Limits::DESTINATION),
                gone: false,
            }, "neigh_wait"),
        })
    }

    /// The destination's address, octet 0 cleared.
    pub(crate) fn addr(&self) -> &HwAddr {
        &self.addr
    }

    /// The handle to send with now. Notes the use.
    #[inline]
    pub(crate) fn handle(&self, guard: &Guard) -> Option<RcuArc<Ah>> {
        let ah = self.ah.get(guard)?;
        // One store a millisecond at most: the line stays shared between the transmitting CPUs.
        let now = time::now_ms();
        if self.used.load(Relaxed) != now {
            self.used.store(now, Relaxed);
        }
        Some(ah)
    }

    /// Whether there is a handle.
    pub(crate) fn resolved(&self) -> bool {
        !self.ah.is_none()
    }

    /// Milliseconds when a packet last went this way.
    pub(crate) fn last_used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// How many packets wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.wait.lock().budget.packets()
    }

    /// Queues a packet, unless a handle has been published since the caller looked (TRAP-42).
    fn queue(&self, skb: SkBuff, pool: &Pool) -> Queued {
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
        wait.list.take()
    }
}

/// What became of a packet for a destination without a handle.
pub(crate) enum Queued {
    /// It waits; the worker must hear of it.
    Waits,
    /// There is a handle after all.
    Ready(SkBuff),
    /// It is gone, for the reason given, which the caller counts.
    Dropped(TxDrop),
}

/// All destinations of one interface.
pub(crate) struct Neighbours {
    table: RcuHash<Neigh>,
    seed: u32,
    pool: Pool,
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
        })
    }

    #[inline]
    fn hash(&self, gid: &Gid) -> u32 {
        gid.hash32(self.seed)
    }

    /// The entry of `addr` (octet 0 cleared), if there is one.
    #[inline]
    pub(crate) fn lookup<'g>(&self, guard: &'g Guard, addr: &HwAddr) -> Option<&'g Neigh> {
        self.table.lookup(guard, self.hash(&addr.gid()), addr)
    }

    /// Lets `skb`, pseudo header in front, wait for a handle for `addr`, making the entry if need
    /// be. Softirq or process context.
    pub(crate) fn wait(&self, guard: &Guard, addr: &HwAddr, skb: SkBuff) -> Queued {
        let hash = self.hash(&addr.gid());
        let made = self.table.get_or_insert(
            guard,
            hash,
            addr,
            Neigh::init(*addr),
            GFP_ATOMIC | __GFP_NOWARN,
        );
        let Ok(neigh) = made else {
            return Queued::Dropped(TxDrop::NoMemory);
        };
        let queued = neigh.queue(skb, &self.pool);
        if matches!(queued, Queued::Waits) {
            self.table.mark(hash);
        }
        queued
    }

    /// Calls `f` with each destination that has had packets queued since the last call and is
    /// still unresolved or has some waiting.
    pub(crate) fn take_wanted(&self, mut f: impl FnMut(HwAddr)) {
        let guard = rcu::read_lock();
        self.table.take_marked(&guard, |neigh| {
            if neigh.waiting() > 0 {
                f(neigh.addr);
            }
        });
    }

    /// Marks every destination that packets wait for, for the next [`Neighbours::take_wanted`].
    pub(crate) fn mark_waiting(&self) {
        self.for_each(|neigh| {
            if neigh.waiting() > 0 {
                self.table.mark(self.hash(&neigh.addr.gid()));
            }
        });
    }

    /// Calls `f` for each entry of `gid`.
    fn for_gid(&self, gid: &Gid, mut f: impl FnMut(&Neigh)) {
        let guard = rcu::read_lock();
        self.table.for_chain(&guard, self.hash(gid), |neigh| {
            if neigh.addr.gid() == *gid {
                f(neigh);
            }
        });
    }

    /// Publishes `ah` for every entry of `gid`; `send` gets what waited.
    pub(crate) fn publish(&self, gid: &Gid, ah: &RcuArc<Ah>, mut send: impl FnMut(SkbList)) {
        self.for_gid(gid, |neigh| send(neigh.publish(ah.clone(), &self.pool)));
    }

    /// Withdraws the handle of every entry of `gid`.
    pub(crate) fn unpublish(&self, gid: &Gid) {
        self.for_gid(gid, |neigh| drop(neigh.ah.swap(None)));
    }

    /// Drops what waits for `gid`; `count` gets the number of packets.
    pub(crate) fn drop_waiting(&self, gid: &Gid, mut count: impl FnMut(usize)) {
        self.for_gid(gid, |neigh| {
            let list = neigh.take_waiting(&self.pool);
            count(list.len());
        });
    }

    /// The last use of any entry of `gid`, in milliseconds, and how many there are.
    pub(crate) fn usage(&self, gid: &Gid) -> (u64, usize) {
        let (mut last, mut entries) = (0, 0);
        self.for_gid(gid, |neigh| {
            last = neigh.last_used().max(last);
            entries += 1;
        });
        (last, entries)
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
                neigh.wait.lock().gone = true;
                let list = neigh.take_waiting(&self.pool);
                if list.len() > 0 {
                    count(TxDrop::Flushed, list.len());
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
