// SPDX-License-Identifier: GPL-2.0

//! The connections of an interface: carries out what their machines (`control::conn`) decide, and serves
//! those that peers ask for. All of it belongs to the worker.

mod mail;
mod watch;

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::Arc, //
};

pub(crate) use self::mail::Mail;
use super::{
    interface::Interface,
    lane::{
        Ear,
        Lane,
        LaneHardware,
        TxConn, //
    },
    passive::Passive,
    paths::Paths,
    walk::next_after,
    worker::Cx, //
};
use crate::{
    base::{
        log::warn_limited,
        params,
        rcu::RcuArc,
        time, //
    },
    control::{
        conn::{
            Action,
            Conn,
            Event,
            Policy,
            Status, //
        },
        reason::TxDrop,
        time::Millis, //
    },
    rdma::{
        CmEvent,
        CmId,
        CmPath,
        Listener,
        QpControl,
        Transport, //
    },
    wire::{
        cm::{
            self,
            PrivateData, //
        },
        encap,
        gid::Gid,
        qpn::Qpn, //
    },
};

/// The most connections that an interface sends over.
const MAX_ACTIVE: usize = 1024;
/// When completion queues that could not be made are tried again.
const RENEW: Millis = Millis(1000);

/// What a connection that is being made or up consists of. Fields are dropped in this order: the peer is
/// told before the queue pair goes.
struct Parts {
    cm: CmId<Mail>,
    qp: QpControl,
    ear: Arc<Ear>,
    up: Option<Up>,
}

/// What there is of a connection once it is up.
struct Up {
    /// The data path's half.
    conn: RcuArc<TxConn>,
    /// The tag of its completions.
    tag: u16,
    progress: watch::Progress,
}

/// One peer.
struct Entry {
    machine: Conn,
    parts: Option<Parts>,
}

/// All connections of an interface that is up.
pub(crate) struct Conns {
    lane: Arc<Lane>,
    mail: Arc<Mail>,
    listener: Option<Listener<Mail>>,
    map: RBTree<Gid, Entry>,
    /// Which peer an attempt is of.
    ids: RBTree<u64, Gid>,
    attempts: usize,
    passive: Passive,
    /// The largest message that we take, encapsulation header included.
    max_frame: u32,
    /// The path of the peer whose turn it is.
    path: Option<CmPath>,
    deadline: Option<Millis>,
    /// A peer waits for its path.
    hungry: bool,
    /// When stopped transmit queues are looked at next.
    watch: Option<Millis>,
    /// The completion queues have failed; when others are tried to be made again.
    renew: Option<Millis>,
}

impl Conns {
    /// No connections yet; peers may ask for some at once. Polling starts. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. That the service cannot be listened on costs no more than a warning.
    pub(crate) fn new(iface: &Arc<Interface>, lane: Arc<Lane>, hw: &LaneHardware) -> Result<Self> {
        let mail = Mail::new(iface)?;
        let device = iface.port().rdma().device();
        let service = cm::service_id(iface.qpn());
        let listener = Listener::new(device, service, mail.clone())
            .inspect_err(|e| {
                pr_warn!(
                    "{}: cannot listen for connections: {:?}\n",
                    device.name(),
                    e
                )
            })
            .ok();
        lane.start();
        // What failed when the interface was going down, or was down, is made anew by the first run of the worker.
        let failed = lane.take_broken() || hw.dead();
        Ok(Self {
            passive: Passive::new(lane.clone()),
            lane,
            mail,
            listener,
            map: RBTree::new(),
            ids: RBTree::new(),
            attempts: 0,
            max_frame: hw.max_frame(),
            path: None,
            deadline: None,
            hungry: false,
            watch: None,
            renew: failed.then(|| Millis(time::now_ms())),
        })
    }

    /// What we tell peers of ourselves.
    fn about_us(&self, iface: &Interface) -> PrivateData {
        PrivateData {
            qpn: iface.qpn(),
            mtu: self.max_frame,
        }
    }

    /// Packets want a connection to `qpn` at `gid`.
    pub(crate) fn wanted(&mut self, cx: &mut Cx<'_>, gid: Gid, qpn: Qpn) {
        if !cx.iface.connected() {
            return;
        }
        if self.map.get(&gid).is_none() {
            let entry = Entry {
                machine: Conn::new(Policy::DEFAULT),
                parts: None,
            };
            // Without memory the next packet asks again.
            let Ok(node) = RBTreeNode::new(gid, entry, GFP_KERNEL) else {
                return;
            };
            drop(self.map.insert(node));
        }
        self.step(cx, &gid, Event::Wanted { qpn });
    }

    /// Feeds one machine and carries out its actions.
    fn step(&mut self, cx: &mut Cx<'_>, gid: &Gid, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(entry) = self.map.get_mut(gid) else {
                return;
            };
            let actions = entry.machine.step(event, cx.now, cx.seq);
            let link = entry.machine.link();
            self.hungry |= entry.machine.status() == Status::WaitPath;
            self.deadline = Millis::earliest(self.deadline, entry.machine.deadline());
            cx.iface.neighbours().set_link(gid, link);
            for action in actions {
                match action {
                    Action::Start { id, qpn } => {
                        if let Err(e) = self.start(cx, gid, id, qpn) {
                            if params::debug() {
                                pr_info!(
                                    "{}: no connection to {:?}: {:?}\n",
                                    cx.dev.name(),
                                    gid,
                                    e
                                );
                            }
                            next = Some(Event::Failed { id });
                        }
                    }
                    Action::Publish { .. } => {
                        let up = self.map.get(gid).and_then(|entry| entry.parts.as_ref());
                        if let Some(Up { conn, .. }) = up.and_then(|parts| parts.up.as_ref()) {
                            cx.iface
                                .neighbours()
                                .publish_conn(gid, conn, link, |list| cx.send(list));
                        }
                    }
                    Action::Close { id } => self.close(cx, gid, id),
                    Action::Release => {
                        cx.iface
                            .neighbours()
                            .release_large(gid, |list| cx.send(list));
                    }
                }
            }
        }
    }

    /// Asks a peer for a connection.
    fn start(&mut self, cx: &mut Cx<'_>, gid: &Gid, id: u64, qpn: Qpn) -> Result {
        if self.attempts >= MAX_ACTIVE {
            return Err(ENOSPC);
        }
        if self.renew.is_some() {
            return Err(EAGAIN);
        }
        let hw = cx.hw.lane.as_ref().ok_or(ENODEV)?;
        let port = cx.iface.port().rdma();
        let path = self.path.take().ok_or(ENOENT)?;
        let ear = Ear::new(cx.iface)?;
        let mut qp = hw.queue_pair(Transport::Sender, ear.clone())?;
        qp.to_init_connected(cx.iface.pkey_index(), port.number())?;
        let cm = CmId::new(port.device(), id, self.mail.clone())?;
        let data = self.about_us(cx.iface);
        cm.ask(port, &path, cm::service_id(qpn), &qp, &data)?;
        let node = RBTreeNode::new(id, *gid, GFP_KERNEL)?;
        let entry = self.map.get_mut(gid).ok_or(ENOENT)?;
        drop(self.ids.insert(node));
        self.attempts += 1;
        entry.parts = Some(Parts {
            cm,
            qp,
            ear,
            up: None,
        });
        Ok(())
    }

    /// Ends a connection, or gives up making it.
    fn close(&mut self, cx: &mut Cx<'_>, gid: &Gid, id: u64) {
        cx.iface.neighbours().unpublish_conn(gid);
        let parts = self.map.get_mut(gid).and_then(|entry| entry.parts.take());
        let Some(mut parts) = parts else {
            return;
        };
        if self.ids.remove(&id).is_some() {
            self.attempts = self.attempts.saturating_sub(1);
        }
        if let Some(Up { conn, tag, .. }) = parts.up.take() {
            let sends = conn.shut();
            let done = self.lane.remove(tag);
            if let (Some(mut sends), Some(mut done)) = (sends, done) {
                let held = sends.capacity().saturating_sub(sends.free_slots());
                let stats = &self.lane.shared.stats;
                let mut lost = 0;
                // Without a proof that the hardware has let go, the packets go with the queue pair.
                let reset = parts.qp.to_reset().and_then(|proof| {
                    sends.recover(&mut done, &proof, |skb| {
                        stats.tx_lost.add(1);
                        lost += 1;
                        drop(skb);
                    })
                });
                if let Err(e) = reset {
                    pr_debug!("{}: connection not reset: {:?}\n", cx.dev.name(), e);
                }
                cx.count(TxDrop::Flushed, lost);
                self.lane.forgo(cx.dev, held, &conn);
            }
        }
        drop(parts);
    }

    /// The peer has accepted.
    fn replied(&mut self, cx: &mut Cx<'_>, gid: &Gid, id: u64, data: Option<PrivateData>) {
        // One that was given up for another attempt.
        if !self.map.get(gid).is_some_and(|e| e.machine.awaits(id)) {
            return;
        }
        let event = match self.finish(cx, gid, id, data) {
            Ok(()) => Event::Ready { id },
            Err(e) => {
                if params::debug() {
                    pr_info!("{}: connection to {:?}: {:?}\n", cx.dev.name(), gid, e);
                }
                Event::Failed { id }
            }
        };
        self.step(cx, gid, event);
    }

    fn finish(&mut self, cx: &mut Cx<'_>, gid: &Gid, id: u64, data: Option<PrivateData>) -> Result {
        let entry = self.map.get_mut(gid).ok_or(ENOENT)?;
        let qpn = entry.machine.qpn();
        let parts = entry.parts.as_mut().ok_or(ENOENT)?;
        // A peer that takes nothing is of no use (CM-13).
        let max_frame = data
            .map(|data| data.mtu)
            .filter(|mtu| *mtu > encap::LEN as u32)
            .ok_or(EPROTO)?;
        parts.cm.prepare_sender(&mut parts.qp)?;
        let ring = cx.hw.lane.as_ref().ok_or(ENODEV)?.send_slots();
        let (sends, done) = crate::rdma::send::send_queue(parts.qp.qp(), ring)?;
        let conn = TxConn::new(id, qpn, max_frame, sends, parts.ear.clone())?;
        let tag = match self.lane.add(done, &conn) {
            Ok(tag) => tag,
            Err(e) => {
                // Dropped where that may sleep.
                drop(conn.shut());
                return Err(e);
            }
        };
        let progress = watch::Progress::new(cx.now);
        parts.up = Some(Up {
            conn,
            tag,
            progress,
        });
        parts.cm.confirm()
    }

    /// Takes what callbacks and the data path have left.
    pub(crate) fn look(&mut self, cx: &mut Cx<'_>) {
        let (events, requests) = self.mail.take();
        for (id, event) in events {
            let Some(gid) = self.ids.get(&id).copied() else {
                self.passive.event(id, event, cx.now);
                continue;
            };
            match event {
                CmEvent::Replied(data) => self.replied(cx, &gid, id, data),
                CmEvent::Established => {}
                CmEvent::Refused(_) | CmEvent::Failed => self.step(cx, &gid, Event::Failed { id }),
                CmEvent::Closed => self.step(cx, &gid, Event::Closed { id }),
            }
        }
        let about_us = self.about_us(cx.iface);
        for request in requests {
            // The others are told by the drop.
            if let (None, Some(hw)) = (self.renew, cx.hw.lane.as_ref()) {
                self.passive.request(hw, request, &about_us, cx);
            }
        }
        if self.lane.take_broken() {
            self.renew(cx);
        }
        // Ends whose sends have failed.
        let mut at = None;
        while let Some((gid, failed)) = next_after(&self.map, at.as_ref(), |entry| {
            let parts = entry.parts.as_ref();
            parts
                .filter(|parts| parts.ear.failed())
                .map(|parts| parts.cm.id())
        }) {
            at = Some(gid);
            if let Some(id) = failed {
                self.step(cx, &gid, Event::Failed { id });
            }
        }
        self.passive.take_failed(cx.now);
        self.note_brakes(cx.now);
        if !cx.iface.connected() {
            self.flush(cx);
        }
        if self.lane.take_starving() {
            self.passive.starving(cx.now);
        }
    }

    /// Ends every connection that we send over.
    pub(crate) fn flush(&mut self, cx: &mut Cx<'_>) {
        let mut at = None;
        while let Some((gid, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(gid);
            self.step(cx, &gid, Event::Flush);
        }
        self.map = RBTree::new();
    }

    /// Feeds the machines whose deadline has come, or whose path.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_>, paths: &Paths) {
        if self.renew.is_some_and(|at| at.reached(cx.now)) {
            self.renew(cx);
        }
        self.passive.tick(cx.now);
        self.watch_brakes(cx);
        if !self.hungry && !self.deadline.is_some_and(|at| at.reached(cx.now)) {
            return;
        }
        let mut at = None;
        self.deadline = None;
        self.hungry = false;
        while let Some((gid, (status, deadline))) = next_after(&self.map, at.as_ref(), |entry| {
            (entry.machine.status(), entry.machine.deadline())
        }) {
            at = Some(gid);
            if deadline.is_some_and(|at| at.reached(cx.now)) {
                self.step(cx, &gid, Event::Tick);
            } else if status == Status::WaitPath {
                self.path = paths.for_connection(cx.iface, &gid);
                if self.path.is_some() {
                    self.step(cx, &gid, Event::Path);
                }
            }
            if let Some(entry) = self.map.get(&gid) {
                self.hungry |= entry.machine.status() == Status::WaitPath;
                self.deadline = Millis::earliest(self.deadline, entry.machine.deadline());
            }
        }
    }

    /// When [`Conns::tick`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        let own = Millis::earliest(self.deadline, self.watch);
        let own = Millis::earliest(own, self.renew);
        Millis::earliest(own, self.passive.deadline())
    }

    /// Ends connections that no neighbour refers to, and those over which nothing has come for long.
    pub(crate) fn age(&mut self, cx: &mut Cx<'_>) {
        let mut at = None;
        while let Some((gid, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(gid);
            if !cx.iface.neighbours().contains(&gid) {
                self.step(cx, &gid, Event::Flush);
                drop(self.map.remove(&gid));
            }
        }
        self.passive.age(cx.now);
    }

    /// Ends everything. May sleep for a second if the hardware is stuck.
    pub(crate) fn close_all(&mut self, cx: &mut Cx<'_>) {
        // No request comes any more when this is gone.
        drop(self.listener.take());
        self.mail.close();
        self.stop_all(cx);
    }

    /// Ends every connection, and goes on to listen. May sleep for a second if the hardware is stuck.
    pub(crate) fn end_all(&mut self, cx: &mut Cx<'_>) {
        self.stop_all(cx);
        self.lane.start();
    }

    /// Ends every connection, and polling. May sleep for a second if the hardware is stuck.
    fn stop_all(&mut self, cx: &mut Cx<'_>) {
        self.flush(cx);
        self.passive.close_all();
    }

    /// The completion queues have failed, and what has completed on them is lost: ends every connection, and
    /// makes other queues for those to come. May sleep for a second if the hardware is stuck.
    fn renew(&mut self, cx: &mut Cx<'_>) {
        self.stop_all(cx);
        let made = match cx.hw.lane.as_mut() {
            Some(hw) => hw.renew(cx.iface, cx.dev, &self.lane),
            None => Ok(()),
        };
        self.renew = made.err().map(|_| cx.now.saturating_add(RENEW));
        warn_limited!(
            "{}: completion queues of connections failed; {}\n",
            cx.dev.name(),
            if self.renew.is_none() {
                "made others"
            } else {
                "others cannot be made yet"
            }
        );
        self.lane.start();
    }

    /// Calls `f` with each peer, for debugfs.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Gid, &Conn, Option<u32>)) {
        for (gid, entry) in self.map.iter() {
            let up = entry.parts.as_ref().and_then(|parts| parts.up.as_ref());
            f(gid, &entry.machine, up.map(|up| up.conn.max_frame));
        }
    }

    /// Those that peers send over.
    pub(crate) fn passive(&self) -> &Passive {
        &self.passive
    }
}
