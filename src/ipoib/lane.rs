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
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use self::brake::Brake;
use super::{
    interface::Interface,
    rx,
    stats::QueueStats,
    worker, //
};
use crate::{
    base::{
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
        skb::SkBuff, //
    },
    rdma::{
        CqPoller,
        SendCompletions,
        SrqQueue,
        Wc, //
    },
    wire::{
        encap,
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
    recvs: Option<Receives>,
    wcs: [Wc; BATCH],
}

/// The buffers of all receiving ends.
struct Receives {
    queue: SrqQueue<BigBuf>,
    regions: usize,
    target: usize,
}

impl Lane {
    /// A lane without a poll state: NAPI is disabled. `limit`: sends that may be under way; `segments`:
    /// what a send may gather. May sleep.
    pub(super) fn new(dev: &Device, limit: u32, segments: usize) -> Result<Self> {
        let shared = Arc::pin_init(
            pin_init!(Shared {
                stats: QueueStats::default(),
                segments,
                credits: Atomic::new(limit.into()),
                most: limit.into(),
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
    ) {
        self.napi.disable().state().0 = Some(Inner {
            iface: iface.clone(),
            dev: dev.into(),
            shared: self.shared.clone(),
            send_cq,
            recv_cq,
            recvs: None,
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

    /// Gives the poll buffers to lend, and lends them. May sleep.
    pub(crate) fn open_receives(&self, queue: SrqQueue<BigBuf>, regions: usize, target: usize) {
        let mut napi = self.napi.disable();
        if let Some(inner) = napi.state().0.as_mut() {
            inner.recvs = Some(Receives {
                queue,
                regions,
                target,
            });
            inner.refill();
        }
        napi.enable();
    }

    /// Takes the buffers from the poll. No receiving end is left. May sleep.
    pub(crate) fn close_receives(&self, running: bool) {
        let mut napi = self.napi.disable();
        let recvs = napi.state().0.as_mut().and_then(|inner| {
            inner.discard();
            inner.recvs.take()
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
        let old = self.shared.sending.lock().insert(node);
        drop(old);
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
    }

    /// Seconds since something last came in for the queue pair with `key`, or for another that shares its
    /// place.
    pub(crate) fn idle_secs(&self, key: usize) -> u32 {
        let mark = self.shared.mark(key).map_or(0, |mark| mark.load(Relaxed));
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
    fn poll(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let Some(inner) = &mut self.0 else {
            return 0;
        };
        inner.shared.stats.polls.add(1);
        inner.poll_sends(|skb| cx.consume(skb));
        if budget == 0 {
            return 0;
        }
        inner.poll_receives(cx, budget)
    }

    fn arm(&mut self) -> bool {
        let Some(inner) = &mut self.0 else {
            return false;
        };
        // A CQ that cannot be armed would never call again: poll on.
        let sends = inner.send_cq.arm().unwrap_or(true);
        let receives = inner.recv_cq.arm().unwrap_or(true);
        sends || receives
    }
}

impl Inner {
    fn poll_sends(&mut self, mut free: impl FnMut(SkBuff)) {
        let (mut packets, mut bytes) = (0_u32, 0_u32);
        let stats = &self.shared.stats;
        for _ in 0..SEND_BATCHES {
            let n = self.send_cq.poll(&mut self.wcs);
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
                if done.is_ok() && !wc.status().is_success() {
                    one.conn.ear.fail();
                }
                let conn = &one.conn;
                if done.is_ok() {
                    conn.completed.fetch_add(1, Relaxed);
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

    fn poll_receives(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let mut done = 0;
        while done < budget {
            let room = (budget - done).min(BATCH);
            let Some(wcs) = self.wcs.get_mut(..room) else {
                break;
            };
            let n = self.recv_cq.poll(wcs);
            for i in 0..n {
                self.received(cx, i);
            }
            done += n;
            if n < room {
                self.shared.rounds.fetch_add(1, Full);
                break;
            }
        }
        self.refill();
        done
    }

    fn received(&mut self, cx: &mut Context<'_>, i: usize) {
        let stats = &self.shared.stats;
        let (Some(wc), Some(recvs)) = (self.wcs.get(i), &mut self.recvs) else {
            return;
        };
        let Some(mut buf) = recvs.queue.complete(wc) else {
            stats.rx_drop(RxDrop::BadCompletion);
            return;
        };
        if !wc.status().is_success() {
            if !wc.status().is_flushed() {
                stats.rx_drop(RxDrop::CompletionError);
                rx::warn_completion(&self.dev, wc, "cm recv", 0);
            }
        } else {
            if let Some(mark) = self.shared.mark(wc.qp_key()) {
                let now = now_secs();
                if mark.load(Relaxed) != now {
                    mark.store(now, Relaxed);
                }
            }
            let len = wc.byte_len() as usize;
            match check(buf.start(), len) {
                Ok(ethertype) => match buf.take(&self.dev, len, ethertype.0, 0) {
                    Some(skb) => {
                        stats.rx_packets.add(1);
                        stats.rx_bytes.add((len - encap::LEN) as u64);
                        cx.receive(skb);
                    }
                    None => stats.rx_drop(RxDrop::NoMemory),
                },
                Err(reason) => stats.rx_drop(reason),
            }
        }
        // Lost only if it cannot be mapped any more; `refill` makes another.
        let _ = recvs.queue.push(buf);
    }

    /// Lends as many buffers as there should be.
    fn refill(&mut self) {
        let Some(recvs) = &mut self.recvs else {
            return;
        };
        while recvs.queue.lent() < recvs.target {
            let pushed =
                BigBuf::new(recvs.regions).is_some_and(|buf| recvs.queue.push(buf).is_ok());
            if !pushed {
                if self.shared.starving.set(1) == 0 {
                    self.iface.post(worker::CONNECTION);
                }
                break;
            }
        }
    }

    /// Takes all completions and throws away what has come. NAPI is disabled.
    fn discard(&mut self) {
        self.poll_sends(drop);
        loop {
            let n = self.recv_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let buf = self
                    .recvs
                    .as_mut()
                    .and_then(|recvs| recvs.queue.complete(wc));
                if buf.is_some() && wc.status().is_success() {
                    self.shared.stats.rx_drop(RxDrop::Flushed);
                }
            }
            if n == 0 {
                break;
            }
        }
    }
}

/// Checks a message: long enough, and of an ethertype.
fn check(start: &[u8], len: usize) -> core::result::Result<encap::EtherType, RxDrop> {
    if len < encap::LEN {
        return Err(RxDrop::TooShort);
    }
    if len == encap::LEN {
        return Err(RxDrop::Empty);
    }
    let ethertype = encap::parse(start).ok_or(RxDrop::TooShort)?;
    if ethertype.is_ethertype() {
        Ok(ethertype)
    } else {
        Err(RxDrop::BadEtherType)
    }
}
