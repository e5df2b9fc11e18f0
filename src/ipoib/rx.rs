// SPDX-License-Identifier: GPL-2.0

//! One queue's poll: completed sends are freed, received frames checked and passed up, receives
//! posted again in chains.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        rcu::Guard,
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
    about: About,
    txq: TxQueue,
    send_cq: CqPoller,
    recv_cq: CqPoller,
    sends: SendCompletions<SkBuff>,
    receive: Receive,
    wcs: [Wc; BATCH],
}

/// Whose queue it is.
struct About {
    iface: Arc<Interface>,
    dev: ARef<Device>,
    shared: Arc<Shared>,
}

/// The receive ring, and what its buffers are made of.
struct Receive {
    recvs: RecvQueue<RxBuf>,
    /// What receive buffers look like now.
    layout: Layout,
    /// What receive buffers are made of.
    pages: Pages,
}

/// What one poll has received, for the counters.
#[derive(Default)]
struct Received {
    packets: u64,
    bytes: u64,
    multicast: u64,
}

impl Poll for PollState {
    fn poll(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let Some(rings) = &mut self.0 else {
            return 0;
        };
        rings.about.shared.stats.polls.add(1);
        rings.about.shared.waking.set(false);
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

impl About {
    /// Has the worker look into a completion that was no success.
    #[cold]
    #[inline(never)]
    fn trouble(&self, wc: &Wc, what: &str) {
        self.shared.trouble(&self.iface, &self.dev, wc, what);
    }

    /// Tells the worker of a sign of life from a peer, if it is `listening` for that, and of a peer that has moved in
    /// the subnet: `from`, where the frame came from, and how many low bits of that say nothing. Before the stack
    /// gets to answer, so that the answer is not refused.
    #[inline(never)]
    fn learn(
        &self,
        guard: &Guard,
        frame: &rx::Frame,
        head: &[u8],
        listening: bool,
        from: Option<(u32, u8)>,
    ) {
        let Some(gid) = rx::sender(frame, head) else {
            return;
        };
        let neighbours = self.iface.neighbours();
        let heard = listening && neighbours.heard(guard, &gid);
        let moved = from.is_some_and(|(slid, lmc)| neighbours.moved(guard, &gid, slid, lmc));
        if heard || moved {
            self.iface.post(worker::NEIGHBOURS);
        }
    }

    /// Counts a frame that is not delivered.
    #[cold]
    #[inline(never)]
    fn dropped(&self, reason: RxDrop) {
        self.shared.stats.rx_drop(reason);
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
            receive: Receive {
                recvs,
                layout: Layout::new(iface.rx_area()),
                pages,
            },
            about: About {
                iface,
                dev: dev.into(),
                shared,
            },
            txq,
            send_cq,
            recv_cq,
            sends,
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
        self.about.shared.waking.set(true);
        self.send_cq.arm()
    }

    /// Takes the completions of sends and gives the packets to `free`. By the poll, or with NAPI disabled.
    #[inline]
    pub(crate) fn poll_sends(&mut self, mut free: impl FnMut(SkBuff)) {
        let stats = &self.about.shared.stats;
        // What the stack has queued, and what that was on the wire beyond it.
        let (mut packets, mut bytes) = (0, 0);
        let (mut more_packets, mut more_bytes) = (0, 0);
        for _ in 0..SEND_BATCHES {
            let n = self.send_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let done = self.sends.complete(wc, |skb, ok| {
                    packets += 1;
                    bytes += skb.len();
                    if skb.is_gso() {
                        let (n, octets) = skb.on_wire();
                        more_packets += u64::from(n) - 1;
                        more_bytes += u64::from(octets.saturating_sub(skb.len()));
                    }
                    if !ok {
                        stats.tx_failed.add(1);
                    }
                    free(skb);
                });
                // One from before a reset is no send of ours any more, and nobody's concern.
                if !wc.status().is_success() && done.is_ok() {
                    self.about.trouble(wc, "send");
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
        stats.tx_packets.add(u64::from(packets) + more_packets);
        stats.tx_bytes.add(u64::from(bytes) + more_bytes);
        self.txq.completed(packets, bytes);
        if self.txq.stopped() && self.about.shared.running() {
            self.wake();
        }
    }

    /// Wakes the transmit queue if the ring has room again.
    #[cold]
    #[inline(never)]
    fn wake(&mut self) {
        let free = self.sends.capacity().saturating_sub(self.sends.used());
        if self.about.shared.ring.may_wake(free as u32) {
            self.txq.wake();
        }
    }

    #[inline]
    fn poll_receives(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let about = &self.about;
        let guard = cx.reading();
        let ident = about.iface.ident.load(guard);
        let listening = about.iface.neighbours().listening();
        let mut sum = Received::default();
        let mut done = 0;
        while done < budget {
            let room = (budget - done).min(BATCH);
            let Some(wcs) = self.wcs.get_mut(..room) else {
                break;
            };
            let n = self.recv_cq.poll(wcs);
            for wc in wcs.get(..n).unwrap_or(&[]) {
                self.receive
                    .received(about, cx, ident, wc, listening, &mut sum);
            }
            done += n;
            if n < room {
                break;
            }
        }
        if sum.packets != 0 {
            let stats = &about.shared.stats;
            stats.rx_packets.add(sum.packets);
            stats.rx_bytes.add(sum.bytes);
            stats.multicast.add(sum.multicast);
        }
        // A few buffers may wait for the next poll, so that one call posts many.
        if self.receive.recvs.missing() > 0 || self.receive.recvs.is_due() {
            self.refill();
        }
        done
    }

    /// Fills empty slots and posts what is in the chain. Slots that stay empty for want of memory
    /// are tried again with every poll, and by the worker when there is none.
    #[inline(never)]
    pub(crate) fn refill(&mut self) {
        let (about, receive) = (&self.about, &mut self.receive);
        if !about.shared.running() {
            return;
        }
        if receive.recvs.missing() > 0 && !receive.fill() {
            about.shared.note(&about.iface, Concern::Starving);
        }
        if receive.recvs.flush().is_err() {
            let unsure = receive.recvs.is_unsure();
            let what = if unsure {
                Concern::Fatal
            } else {
                Concern::Trouble
            };
            about.shared.note(&about.iface, what);
        }
    }

    /// Takes completions without passing anything up, for a queue that is being drained. NAPI is
    /// disabled, so this may run in process context. Returns whether nothing is outstanding.
    pub(crate) fn drain(&mut self) -> bool {
        loop {
            let n = self.send_cq.poll(&mut self.wcs);
            for wc in self.wcs.iter().take(n) {
                let stats = &self.about.shared.stats;
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
                let stats = &self.about.shared.stats;
                match self.receive.recvs.complete(wc) {
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
        self.sends.outstanding() == 0 && self.receive.recvs.outstanding() == 0
    }

    /// Gives back all slots of a queue pair that is in RESET. `sends` is the other end of the send
    /// ring, whose transmit lock is held.
    pub(crate) fn reset(&mut self, sends: &mut SendQueue<SkBuff>, proof: &QpReset<'_>) -> Result {
        let stats = &self.about.shared.stats;
        sends.recover(&mut self.sends, proof, |skb| {
            stats.tx_failed.add(1);
            stats.tx_lost.add(1);
            drop(skb);
        })?;
        self.receive.pages.clear();
        self.receive.recvs.reset(proof, drop)
    }

    /// Sets how many octets receive buffers offer, for those made from now on.
    pub(crate) fn set_area(&mut self, area: usize) {
        self.receive.layout = Layout::new(area);
    }

    /// How many sends and receives the hardware holds.
    pub(crate) fn outstanding(&mut self) -> (usize, usize) {
        (self.sends.outstanding(), self.receive.recvs.outstanding())
    }
}

impl Receive {
    /// Handles one receive completion. `listening`: frames of destinations that did not answer before are news.
    #[inline(always)]
    fn received(
        &mut self,
        about: &About,
        cx: &mut Context<'_>,
        ident: Option<&Ident>,
        wc: &Wc,
        listening: bool,
        sum: &mut Received,
    ) {
        let Some(buf) = self.recvs.complete(wc) else {
            about.dropped(RxDrop::BadCompletion);
            return;
        };
        if !wc.status().is_success() {
            // The slot is filled again by `refill`, once the queue pair takes receives.
            failed(about, wc, buf);
            return;
        }
        let frame = match check(about, wc, ident, &buf) {
            Ok(frame) => frame,
            Err(reason) => {
                self.refuse(about, buf, reason);
                return;
            }
        };
        // Those that tell who sent them, and that peers announce themselves with, besides all that may be news.
        let telling = frame.cast != rx::Cast::Host || frame.ethertype == EtherType::ARP;
        if listening || telling {
            about.learn(
                cx.reading(),
                &frame,
                buf.head(),
                listening,
                ident
                    .filter(|_| telling)
                    .map(|ident| (wc.slid(), ident.lmc)),
            );
        }
        let info = FrameInfo {
            protocol: frame.ethertype.0,
            payload: frame.payload_len as usize,
            cast: match frame.cast {
                rx::Cast::Host => Cast::Host,
                rx::Cast::Broadcast => Cast::Broadcast,
                rx::Cast::Multicast => Cast::Multicast,
            },
            checked: wc.ip_csum_ok() && about.dev.takes_checksums(),
            queue: about.shared.index,
        };
        // The replacement comes first: without one the frame is dropped and its buffer stays in
        // the ring, which so never shrinks (RX-4).
        let Some(fresh) = RxBuf::in_poll(cx, self.layout, &mut self.pages) else {
            self.refuse(about, buf, RxDrop::NoMemory);
            return;
        };
        match buf.into_skb(&about.dev, &info, &mut self.pages) {
            Ok(skb) => {
                // One that cannot be mapped goes; `refill` makes another.
                let _ = self.recvs.push(fresh);
                sum.packets += 1;
                sum.bytes += info.payload as u64;
                sum.multicast += u64::from(info.cast == Cast::Multicast);
                cx.receive(skb);
            }
            Err(buf) => self.refuse(about, buf, RxDrop::NoMemory),
        }
    }

    /// Drops a frame, and puts its buffer into the chain of receives to be posted.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, about: &About, buf: RxBuf, reason: RxDrop) {
        about.dropped(reason);
        // A buffer of a former size, or one that cannot be mapped, goes; `refill` makes another.
        if buf.layout() == self.layout {
            let _ = self.recvs.push(buf);
        }
    }

    /// Fills empty slots; whether it could.
    #[cold]
    #[inline(never)]
    fn fill(&mut self) -> bool {
        while self.recvs.missing() > 0 {
            let Some(buf) = RxBuf::new(self.layout, &mut self.pages) else {
                break;
            };
            if self.recvs.push(buf).is_err() {
                break;
            }
        }
        self.recvs.missing() == 0
    }
}

/// Counts a receive that was no success.
#[cold]
#[inline(never)]
fn failed(about: &About, wc: &Wc, buf: RxBuf) {
    drop(buf);
    if !wc.status().is_flushed() {
        about.dropped(RxDrop::CompletionError);
    }
    about.trouble(wc, "recv");
}

/// Runs the checks of `wire::rx` on one frame.
#[inline]
fn check(
    about: &About,
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
    rx::classify(&completion, &ident.me, |qpn| about.iface.owns(qpn))
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
