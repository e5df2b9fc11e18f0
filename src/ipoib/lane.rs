// SPDX-License-Identifier: GPL-2.0

//! The data path of connections: one pair of completion queues and one NAPI for all connections of an
//! interface, and the sending end of each.
//!
//! Completions of different connections come in any order; a completion's tag finds the ring that it
//! belongs to. What is under way on all connections together is bounded by credits, so that the send
//! completion queue cannot overflow.

mod brake;
mod ear;
mod hardware;
mod receive;
mod txconn;

pub(crate) use self::{
    ear::Ear,
    hardware::LaneHardware,
    txconn::TxConn, //
};

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use self::{
    brake::Brake,
    receive::Receives, //
};
use super::{
    interface::Interface,
    stats::QueueStats,
    waking::{
        Waking,
        STAY_MS, //
    }, //
};
use crate::{
    base::{
        atomic::Word,
        flags::Flags,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        rcu::RcuArc,
        time, //
    },
    net::{
        bigbuf::BigBuf,
        device::Device,
        napi::{
            Context,
            Napi,
            Poll, //
        },
        pages::Pages,
        skb::SkBuff, //
    },
    rdma::{
        CqPoller,
        Lender,
        SendCompletions,
        Wc, //
    },
    wire::{
        rx::RxDrop, //
    },
};

/// Completions taken from a CQ at a time.
const BATCH: usize = 16;
/// Batches of send completions per poll.
const SEND_BATCHES: usize = 16;
/// Places where the use of connections is noted; two that share one only look busier.
const MARKS: usize = 256;

/// A connection's other half: where its completions go.
struct Sending {
    done: SendCompletions<SkBuff>,
    conn: RcuArc<TxConn>,
}

/// What data path, poll and worker share.
#[pin_data]
pub(crate) struct Shared {
    pub(crate) stats: QueueStats,
    segments: usize,
    /// Sends that may still be posted.
    credits: Atomic<i64>,
    most: i64,
    /// From so many unfinished sends on, the device is asked to tell when one has completed: half of a ring, at which
    /// who waits for room goes on.
    lazy: i64,
    waking: Waking,
    brake: Brake,
    /// Transmit queues have been stopped since the worker last looked.
    braked: Flags,
    /// Seconds when something last came in over connections.
    marks: [Atomic<u32>; MARKS],
    /// How often the poll has found the receive queue empty.
    rounds: Atomic<u64>,
    starving: Flags,
    /// A completion queue has failed.
    broken: Flags,
    #[pin]
    sending: SpinLockBh<RBTree<u16, Sending>>,
}

impl Shared {
    /// Whether enough credits are back for queues to go on.
    fn roomy(&self) -> bool {
        self.credits.load(Relaxed) >= self.most / 2
    }

    /// Sends that are not finished, of all connections; sometimes more.
    #[inline]
    fn used(&self) -> i64 {
        self.most.saturating_sub(self.credits.get())
    }

    fn mark(&self, key: usize) -> Option<&Atomic<u32>> {
        // Objects of one kind lie at multiples of their size: take bits from above, too.
        let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        self.marks.get(hash as usize % MARKS)
    }
}

/// The interface's connections, for the data path.
pub(crate) struct Lane {
    pub(crate) shared: Arc<Shared>,
    pub(crate) napi: Arc<Napi<LanePoll>>,
}

/// What the poll works on; `None` once the interface is gone.
pub(crate) struct LanePoll(Option<Inner>);

struct Inner {
    iface: Arc<Interface>,
    dev: ARef<Device>,
    shared: Arc<Shared>,
    send_cq: CqPoller,
    recv_cq: CqPoller,
    /// By the tag of their completions.
    recvs: RBTree<u16, Receives>,
    /// What the pages of received messages are replaced from.
    pages: Pages,
    /// Not all buffers are lent that should be.
    short: bool,
    wcs: [Wc; BATCH],
}

impl Lane {
    /// A lane without a poll state: NAPI is disabled. `limit`: sends that may be under way; `ring`: those of one
    /// connection; `segments`: what a send may gather. May sleep.
    pub(super) fn new(dev: &Device, limit: u32, ring: u32, segments: usize) -> Result<Self> {
        let shared = Arc::pin_init(
            pin_init!(Shared {
                stats: QueueStats::default(),
                segments,
                credits: Atomic::new(limit.into()),
                most: limit.into(),
                lazy: i64::from((limit.min(ring) / 2).max(1)),
                waking: Waking::new(),
                brake: Brake::new(),
                braked: Flags::new(),
                marks: [const { Atomic::new(0) }; MARKS],
                rounds: Atomic::new(0),
                starving: Flags::new(),
                broken: Flags::new(),
                sending <- new_spinlock_bh!(RBTree::new(), "lane_sending"),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            shared,
            napi: Napi::new(dev, LanePoll(None))?,
        })
    }

    /// Gives the poll what it works on. May sleep.
    pub(super) fn equip(
        &self,
        iface: &Arc<Interface>,
        dev: &Device,
        (send_cq, recv_cq): (CqPoller, CqPoller),
        pages: Pages,
    ) {
        self.napi.disable().state().0 = Some(Inner {
            iface: iface.clone(),
            dev: dev.into(),
            shared: self.shared.clone(),
            send_cq,
            recv_cq,
            recvs: RBTree::new(),
            pages,
            short: false,
            wcs: Wc::blanks(),
        });
    }

    /// Takes everything from the poll and NAPI off the device. May sleep.
    pub(super) fn destroy(&self) {
        let mut napi = self.napi.disable();
        let inner = napi.state().0.take();
        napi.remove();
        drop(inner);
    }

    /// Lets the poll run. May sleep.
    pub(crate) fn start(&self) {
        self.napi.disable().enable();
    }

    /// Ends polling. What has completed is thrown away. May sleep.
    pub(crate) fn stop(&self) {
        if let Some(inner) = self.napi.disable().state().0.as_mut() {
            inner.discard();
        }
    }

    /// Has the poll lend buffers of `regions` regions, `target` of them. `ear` hears when the queue pair that has
    /// them for itself fails. Returns what [`Lane::close_receives`] is to be told. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EEXIST` if the numbers of queues have come round to one that is in use.
    pub(crate) fn open_receives(
        &self,
        lender: Lender<BigBuf>,
        regions: usize,
        target: usize,
        ear: Option<Arc<Ear>>,
    ) -> Result<u16> {
        let tag = lender.tag();
        let recvs = Receives {
            lender,
            regions,
            target,
            ear,
        };
        let node = RBTreeNode::new(tag, recvs, GFP_KERNEL)?;
        let mut napi = self.napi.disable();
        let mut refused = Some(node);
        if let Some(inner) = napi.state().0.as_mut() {
            if inner.recvs.get(&tag).is_none() {
                if let Some(node) = refused.take() {
                    drop(inner.recvs.insert(node));
                }
                inner.refill();
            }
        }
        napi.enable();
        match refused {
            None => Ok(tag),
            Some(_) => Err(EEXIST),
        }
    }

    /// Takes buffers from the poll, which nothing takes any more. May sleep.
    pub(crate) fn close_receives(&self, tag: u16, running: bool) {
        let mut napi = self.napi.disable();
        let recvs = napi.state().0.as_mut().and_then(|inner| {
            if !running {
                inner.discard();
            }
            let recvs = inner.recvs.remove_node(&tag);
            if inner.recvs.keys().next().is_none() {
                inner.pages.clear();
            }
            recvs
        });
        if running {
            napi.enable();
        } else {
            drop(napi);
        }
        drop(recvs);
    }

    /// Completions of the ring `done` go to it and wake queues for `conn`. May sleep.
    pub(crate) fn add(&self, done: SendCompletions<SkBuff>, conn: &RcuArc<TxConn>) -> Result<u16> {
        let tag = done.tag();
        let conn = conn.clone();
        let node = RBTreeNode::new(tag, Sending { done, conn }, GFP_KERNEL)?;
        let mut sending = self.shared.sending.lock();
        if sending.get(&tag).is_some() {
            // The numbers have come round: the next attempt gets another.
            drop(sending);
            drop(node);
            return Err(EEXIST);
        }
        let none = sending.insert(node);
        drop(sending);
        drop(none);
        Ok(tag)
    }

    /// Takes a ring out again. May sleep.
    pub(crate) fn remove(&self, tag: u16) -> Option<SendCompletions<SkBuff>> {
        let node = self.shared.sending.lock().remove_node(&tag);
        let (_, sending) = node?.to_key_value();
        Some(sending.done)
    }

    /// `sends` will not complete any more: their credits are free, and queues that wait for them or for
    /// `conn` go on. Process context.
    pub(crate) fn forgo(&self, dev: &Device, sends: usize, conn: &TxConn) {
        let shared = &self.shared;
        shared.credits.fetch_add(sends as i64, Relaxed);
        shared.brake.release(dev, || shared.roomy());
        conn.brake.release(dev, || true);
        // Nobody waits for what has completed, but it takes room.
        self.napi.kick();
    }

    /// A send has been posted, and before that, or before a queue was stopped, [`Shared::credits`] changed with a full
    /// barrier. Sees to it that it is worked off. Transmit lock held.
    #[inline]
    fn posted(&self) {
        self.napi.schedule_in(time::ms_to_jiffies(STAY_MS));
        if self.shared.used() >= self.shared.lazy && !self.shared.waking.is_on() {
            self.napi.schedule();
        }
    }

    /// Seconds since something last came in for the queue pair with `key`, or for another that shares its
    /// place.
    pub(crate) fn idle_secs(&self, key: usize) -> u32 {
        let mark = self.shared.mark(key).map_or(0, |mark| mark.get());
        now_secs().saturating_sub(mark)
    }

    /// Notes a use of the queue pair with `key`.
    pub(crate) fn touch(&self, key: usize) {
        if let Some(mark) = self.shared.mark(key) {
            mark.store(now_secs(), Relaxed);
        }
    }

    /// How often the poll has found nothing more to receive.
    pub(crate) fn rounds(&self) -> u64 {
        self.shared.rounds.load(Relaxed)
    }

    /// Whether transmit queues have been stopped since this was last asked. Only for the worker.
    pub(crate) fn take_braked(&self) -> bool {
        self.shared.braked.take() != 0
    }

    /// Ends stops for want of credits that have lasted for too long; whether there are any, or were. Only for
    /// the worker.
    pub(crate) fn ease(&self, dev: &Device) -> bool {
        self.shared.brake.overdue(dev);
        self.shared.brake.engaged()
    }

    /// Whether a completion queue has failed since this was last asked: completions are missing.
    pub(crate) fn take_broken(&self) -> bool {
        self.shared.broken.take() != 0
    }

    /// Whether the poll could not lend all buffers since this was last asked.
    pub(crate) fn take_starving(&self) -> bool {
        self.shared.starving.take() != 0
    }
}

/// Seconds of the monotonic clock.
fn now_secs() -> u32 {
    (time::now_ms() / 1000) as u32
}

impl Poll for LanePoll {
    // Large messages are too long to be put together, and small ones are not to wait.
    const GATHERS: bool = false;

    fn poll(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let Some(inner) = &mut self.0 else {
            return 0;
        };
        inner.shared.stats.polls.add(1);
        inner.shared.waking.set(false);
        inner.poll_sends(|skb| cx.consume(skb));
        if budget == 0 {
            return 0;
        }
        inner.poll_receives(cx, budget)
    }

    fn arm(&mut self, soon: bool) -> bool {
        let Some(inner) = &mut self.0 else {
            return false;
        };
        // Both, whatever the first says.
        let sends = inner.arm_sends(soon);
        let receives = inner.recv_cq.arm();
        sends || receives
    }
}

impl Inner {
    /// Asks for an event at the next completion of a send, if somebody may wait for it. Nobody does while little is under
    /// way: no ring is half full then. And a poll comes soon anyway.
    fn arm_sends(&mut self, soon: bool) -> bool {
        let used = self.shared.used();
        if used <= 0 || soon && used < self.shared.lazy {
            return false;
        }
        self.shared.waking.set(true);
        self.send_cq.arm()
    }

    fn poll_sends(&mut self, mut free: impl FnMut(SkBuff)) {
        let (mut packets, mut bytes) = (0_u32, 0_u32);
        let stats = &self.shared.stats;
        for _ in 0..SEND_BATCHES {
            let n = self.send_cq.poll(&mut self.wcs);
            if n == 0 {
                break;
            }
            let mut sending = self.shared.sending.lock();
            for wc in self.wcs.iter().take(n) {
                let Some(one) = sending.get_mut(&wc.tag()) else {
                    // Of a connection that has been closed.
                    continue;
                };
                let done = one.done.complete(wc, |skb, ok| {
                    packets += 1;
                    bytes = bytes.wrapping_add(skb.len());
                    if !ok {
                        stats.tx_failed.add(1);
                    }
                    free(skb);
                });
                let conn = &one.conn;
                if done.is_ok() {
                    if !wc.status().is_success() {
                        conn.ear.fail();
                    }
                    // The poll only, so nobody else writes meanwhile.
                    conn.completed.put(conn.completed.get().wrapping_add(1));
                }
                let room = one.done.capacity().saturating_sub(one.done.used());
                conn.brake
                    .release(&self.dev, || conn.ring.may_wake(room as u32));
            }
            drop(sending);
            if n < BATCH {
                break;
            }
        }
        if packets == 0 {
            return;
        }
        stats.tx_packets.add(packets.into());
        stats.tx_bytes.add(bytes.into());
        let shared = &self.shared;
        shared.credits.fetch_add(i64::from(packets), Relaxed);
        shared.brake.release(&self.dev, || shared.roomy());
    }

    /// Takes all completions and throws away what has come. NAPI is disabled.
    fn discard(&mut self) {
        self.poll_sends(drop);
        loop {
            let n = self.recv_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let recvs = self.recvs.get_mut(&wc.tag());
                let back = recvs.and_then(|recvs| recvs.lender.complete(wc));
                let came = back.is_some();
                drop(back);
                self.short |= came;
                if came && wc.status().is_success() {
                    self.shared.stats.rx_drop(RxDrop::Flushed);
                }
            }
            if n == 0 {
                break;
            }
        }
    }
}
