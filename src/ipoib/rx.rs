// SPDX-License-Identifier: GPL-2.0

//! One queue's poll: completed sends are freed, received frames checked and passed up, receives
//! posted again in chains.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        rcu::{
            self,
            Guard, //
        },
        Arc, //
    },
};

use super::{
    interface::{
        Ident,
        Interface, //
    },
    queue::Shared,
    worker, //
};
use crate::{
    base::log::warn_limited,
    control::health::Concern,
    net::{
        device::Device,
        napi::{
            Context,
            Poll, //
        },
        pages::Pages,
        rxbuf::{
            Cast,
            FrameInfo,
            Layout,
            RxBuf, //
        },
        skb::SkBuff,
        txq::TxQueue, //
    },
    rdma::{
        CqPoller,
        QpReset,
        RecvQueue,
        SendCompletions,
        SendQueue,
        Wc, //
    },
    wire::{
        encap::EtherType,
        grh::NetworkHeader,
        rx::{
            self,
            RxDrop, //
        }, //
    },
};

/// Completions taken from a CQ at a time.
const BATCH: usize = 16;
/// Batches of send completions per poll, so that the receive side gets its turn.
const SEND_BATCHES: usize = 16;

/// What a queue's poll works on; `None` once the queue is gone.
pub(crate) struct PollState(pub(crate) Option<Rings>);

/// The completion side of one queue.
pub(crate) struct Rings {
    iface: Arc<Interface>,
    dev: ARef<Device>,
    shared: Arc<Shared>,
    txq: TxQueue,
    send_cq: CqPoller,
    recv_cq: CqPoller,
    sends: SendCompletions<SkBuff>,
    recvs: RecvQueue<RxBuf>,
    /// What receive buffers look like now.
    layout: Layout,
    /// What receive buffers are made of.
    pages: Pages,
    wcs: [Wc; BATCH],
}

impl Poll for PollState {
    fn poll(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let Some(rings) = &mut self.0 else {
            return 0;
        };
        rings.shared.stats.polls.add(1);
        rings.shared.waking.set(false);
        rings.poll_sends(|skb| cx.consume(skb));
        if budget == 0 {
            return 0;
        }
        rings.poll_receives(cx, budget)
    }

    fn arm(&mut self, soon: bool) -> bool {
        let Some(rings) = &mut self.0 else {
            return false;
        };
        // Both, whatever the first says.
        let sends = rings.arm_sends(soon);
        let receives = rings.recv_cq.arm();
        sends || receives
    }
}

impl Rings {
    /// Puts the completion side together; the rings are empty and the queue pair is in RESET.
    pub(crate) fn new(
        iface: Arc<Interface>,
        dev: &Device,
        shared: Arc<Shared>,
        txq: TxQueue,
        (send_cq, recv_cq): (CqPoller, CqPoller),
        sends: SendCompletions<SkBuff>,
        (recvs, pages): (RecvQueue<RxBuf>, Pages),
    ) -> Self {
        Self {
            layout: Layout::new(iface.rx_area()),
            pages,
            iface,
            dev: dev.into(),
            shared,
            txq,
            send_cq,
            recv_cq,
            sends,
            recvs,
            wcs: Wc::blanks(),
        }
    }

    /// Asks for an event at the next completion of a send, if somebody waits for it. Nobody does while there is room,
    /// and a poll comes soon anyway: then many sends are worked off with one poll.
    fn arm_sends(&mut self, soon: bool) -> bool {
        let used = self.sends.used();
        if used == 0 || soon && used < Shared::LAZY && !self.txq.held() {
            return false;
        }
        self.shared.waking.set(true);
        self.send_cq.arm()
    }

    /// Takes the completions of sends and gives the packets to `free`. By the poll, or with NAPI disabled.
    pub(crate) fn poll_sends(&mut self, mut free: impl FnMut(SkBuff)) {
        // What the stack has queued, and what that was on the wire.
        let (mut packets, mut bytes) = (0, 0);
        let (mut sent_packets, mut sent_bytes) = (0, 0);
        for _ in 0..SEND_BATCHES {
            let n = self.send_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let done = self.sends.complete(wc, |skb, ok| {
                    packets += 1;
                    bytes += skb.len();
                    let (n, octets) = skb.on_wire();
                    sent_packets += u64::from(n);
                    sent_bytes += u64::from(octets);
                    if !ok {
                        self.shared.stats.tx_failed.add(1);
                    }
                    free(skb);
                });
                // One from before a reset is no send of ours any more, and nobody's concern.
                if done.is_ok() && !wc.status().is_success() {
                    self.shared.trouble(&self.iface, &self.dev, wc, "send");
                }
            }
            if n < BATCH {
                break;
            }
        }
        if packets == 0 {
            return;
        }
        // QP-22: as in-tree, what has left the ring counts, whatever became of it.
        self.shared.stats.tx_packets.add(sent_packets);
        self.shared.stats.tx_bytes.add(sent_bytes);
        self.txq.completed(packets, bytes);
        if self.txq.stopped() && self.shared.running() {
            let free = self.sends.capacity().saturating_sub(self.sends.used());
            if self.shared.ring.may_wake(free as u32) {
                self.txq.wake();
            }
        }
    }

    fn poll_receives(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let mut done = 0;
        let guard = rcu::read_lock();
        let iface = self.iface.clone();
        let ident = iface.ident.load(&guard);
        let listening = iface.neighbours().listening();
        while done < budget {
            let room = (budget - done).min(BATCH);
            let Some(wcs) = self.wcs.get_mut(..room) else {
                break;
            };
            let n = self.recv_cq.poll(wcs);
            for i in 0..n {
                self.received(cx, ident, i, listening.then_some(&guard));
            }
            done += n;
            if n < room {
                break;
            }
        }
        drop(guard);
        // A few buffers may wait for the next poll, so that one call posts many.
        if self.recvs.missing() > 0 || self.recvs.is_due() {
            self.refill();
        }
        done
    }

    /// Handles the receive completion in slot `i` of the batch. `listening`: frames of destinations
    /// that did not answer before are news, and this is the read section to find them in.
    fn received(
        &mut self,
        cx: &mut Context<'_>,
        ident: Option<&Ident>,
        i: usize,
        listening: Option<&Guard>,
    ) {
        let Some(wc) = self.wcs.get(i) else {
            return;
        };
        let Some(buf) = self.recvs.complete(wc) else {
            self.shared.stats.rx_drop(RxDrop::BadCompletion);
            return;
        };
        if !wc.status().is_success() {
            if !wc.status().is_flushed() {
                self.shared.stats.rx_drop(RxDrop::CompletionError);
            }
            self.shared.trouble(&self.iface, &self.dev, wc, "recv");
            // The slot is filled again by `refill`, once the queue pair takes receives.
            return;
        }
        let checked = self.check(wc, ident, &buf);
        let frame = match checked {
            Ok(frame) => frame,
            Err(reason) => {
                self.shared.stats.rx_drop(reason);
                self.recycle(buf);
                return;
            }
        };
        if let Some(guard) = listening {
            self.heard(guard, &frame, buf.head());
        }
        if frame.cast != rx::Cast::Host || frame.ethertype == EtherType::ARP {
            self.locate(&frame, buf.head(), wc.slid(), ident);
        }
        let info = FrameInfo {
            protocol: frame.ethertype.0,
            payload: frame.payload_len as usize,
            cast: match frame.cast {
                rx::Cast::Host => Cast::Host,
                rx::Cast::Broadcast => Cast::Broadcast,
                rx::Cast::Multicast => Cast::Multicast,
            },
            checked: wc.ip_csum_ok() && self.dev.takes_checksums(),
            queue: self.shared.index,
        };
        // The replacement comes first: without one the frame is dropped and its buffer stays in
        // the ring, which so never shrinks (RX-4).
        let Some(fresh) = RxBuf::in_poll(cx, self.layout, &mut self.pages) else {
            self.shared.stats.rx_drop(RxDrop::NoMemory);
            self.recycle(buf);
            return;
        };
        match buf.into_skb(&self.dev, &info, &mut self.pages) {
            Ok(skb) => {
                self.recycle(fresh);
                let stats = &self.shared.stats;
                stats.rx_packets.add(1);
                stats.rx_bytes.add(info.payload as u64);
                if info.cast == Cast::Multicast {
                    stats.multicast.add(1);
                }
                cx.receive(skb);
            }
            Err(buf) => {
                self.shared.stats.rx_drop(RxDrop::NoMemory);
                self.recycle(buf);
            }
        }
    }

    /// Tells the worker, if it waits for a sign of life from the sender of this frame. Before the
    /// stack gets to answer, so that the answer is not refused.
    fn heard(&self, guard: &Guard, frame: &rx::Frame, head: &[u8]) {
        let source = rx::sender(frame, head);
        if source.is_some_and(|gid| self.iface.neighbours().heard(guard, &gid)) {
            self.iface.post(worker::NEIGHBOURS);
        }
    }

    /// Tells the worker of a peer that has moved in the subnet. To be called for the frames that
    /// tell who sent them, and that peers announce themselves with.
    fn locate(&self, frame: &rx::Frame, head: &[u8], slid: u32, ident: Option<&Ident>) {
        let (Some(gid), Some(ident)) = (rx::sender(frame, head), ident) else {
            return;
        };
        let guard = rcu::read_lock();
        if self.iface.neighbours().moved(&guard, &gid, slid, ident.lmc) {
            self.iface.post(worker::NEIGHBOURS);
        }
    }

    /// Runs the checks of `wire::rx` on one frame.
    fn check(
        &self,
        wc: &Wc,
        ident: Option<&Ident>,
        buf: &RxBuf,
    ) -> core::result::Result<rx::Frame, RxDrop> {
        // Without an identity nothing can be addressed to us: not even up yet.
        let ident = ident.ok_or(RxDrop::WrongGid)?;
        let completion = rx::Completion {
            byte_len: wc.byte_len(),
            buffer_len: buf.layout().area() as u32,
            network: NetworkHeader::from_completion(wc.has_grh(), wc.network_hdr_type()),
            head: buf.head(),
            src_qp: wc.src_qp(),
            slid: wc.slid(),
        };
        rx::classify(&completion, &ident.me, |qpn| self.iface.owns(qpn))
    }

    /// Puts a buffer into the chain of receives to be posted.
    fn recycle(&mut self, buf: RxBuf) {
        // A buffer of a former size, or one that cannot be mapped, goes; `refill` makes another.
        if buf.layout() == self.layout {
            let _ = self.recvs.push(buf);
        }
    }

    /// Fills empty slots and posts what is in the chain. Slots that stay empty for want of memory
    /// are tried again with every poll, and by the worker when there is none.
    pub(crate) fn refill(&mut self) {
        if !self.shared.running() {
            return;
        }
        while self.recvs.missing() > 0 {
            let Some(buf) = RxBuf::new(self.layout, &mut self.pages) else {
                break;
            };
            if self.recvs.push(buf).is_err() {
                break;
            }
        }
        if self.recvs.missing() > 0 {
            self.shared.note(&self.iface, Concern::Starving);
        }
        self.flush();
    }

    /// Posts what is in the chain.
    fn flush(&mut self) {
        if self.recvs.flush().is_err() {
            let unsure = self.recvs.is_unsure();
            let what = if unsure {
                Concern::Fatal
            } else {
                Concern::Trouble
            };
            self.shared.note(&self.iface, what);
        }
    }

    /// Takes completions without passing anything up, for a queue that is being drained. NAPI is
    /// disabled, so this may run in process context. Returns whether nothing is outstanding.
    pub(crate) fn drain(&mut self) -> bool {
        loop {
            let n = self.send_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let stats = &self.shared.stats;
                let _ = self.sends.complete(wc, |skb, ok| {
                    stats.tx_packets.add(1);
                    stats.tx_bytes.add(u64::from(skb.len()));
                    if !ok {
                        stats.tx_failed.add(1);
                    }
                });
            }
            if n == 0 {
                break;
            }
        }
        loop {
            let n = self.recv_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let stats = &self.shared.stats;
                match self.recvs.complete(wc) {
                    Some(_) if wc.status().is_success() => stats.rx_drop(RxDrop::Flushed),
                    Some(_) if wc.status().is_flushed() => {}
                    Some(_) => stats.rx_drop(RxDrop::CompletionError),
                    None => stats.rx_drop(RxDrop::BadCompletion),
                }
            }
            if n == 0 {
                break;
            }
        }
        self.sends.outstanding() == 0 && self.recvs.outstanding() == 0
    }

    /// Gives back all slots of a queue pair that is in RESET. `sends` is the other end of the send
    /// ring, whose transmit lock is held.
    pub(crate) fn reset(&mut self, sends: &mut SendQueue<SkBuff>, proof: &QpReset<'_>) -> Result {
        let stats = &self.shared.stats;
        sends.recover(&mut self.sends, proof, |skb| {
            stats.tx_failed.add(1);
            stats.tx_lost.add(1);
            drop(skb);
        })?;
        self.pages.clear();
        self.recvs.reset(proof, drop)
    }

    /// Sets how many octets receive buffers offer, for those made from now on.
    pub(crate) fn set_area(&mut self, area: usize) {
        self.layout = Layout::new(area);
    }

    /// How many sends and receives the hardware holds.
    pub(crate) fn outstanding(&mut self) -> (usize, usize) {
        (self.sends.outstanding(), self.recvs.outstanding())
    }
}

/// Says what went wrong with a completion, at a bounded rate (LOG-2).
pub(crate) fn warn_completion(dev: &Device, wc: &Wc, what: &str, id: usize) {
    warn_limited!(
        "{}: failed {} event (status={} {}, queue {}, vend_err {:#x})\n",
        dev.name(),
        what,
        wc.status().code(),
        wc.status().name(),
        id,
        wc.vendor_err()
    );
}
