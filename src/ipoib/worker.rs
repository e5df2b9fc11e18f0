// SPDX-License-Identifier: GPL-2.0

//! The worker: the one context that changes an interface's control state.
//!
//! Callbacks of all kinds note an event in `Interface::events` and kick the worker. It never takes
//! RTNL, so that those who hold RTNL may wait for it.

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    conns::Conns,
    interface::{
        Control,
        Interface,
        Running, //
    },
    partition,
    port::Seen,
    queue::Hardware, //
};
use crate::{
    base::time,
    control::{
        self,
        ageing::Ageing,
        reason::TxDrop,
        room::{
            self,
            Limit,
            Rounds,
            Use, //
        },
        seq::Seq,
        storm::Pace,
        time::Millis, //
    },
    net::{
        device::Device,
        skb::SkbList, //
    },
};

/// The port has been read anew.
pub(crate) const PORT: u32 = 1 << 0;
/// The list of multicast addresses has changed.
pub(crate) const MULTICAST: u32 = 1 << 1;
/// Packets wait for neighbours, there is news of some, or their table is full.
pub(crate) const NEIGHBOURS: u32 = 1 << 2;
/// A query has been answered.
pub(crate) const ANSWER: u32 = 1 << 3;
/// A queue is in trouble, or a draining one may have made progress.
pub(crate) const QUEUE: u32 = 1 << 4;
/// The subnet manager or the administrator wants everything joined and resolved anew.
pub(crate) const REREGISTER: u32 = 1 << 5;

/// A join has been answered.
pub(crate) const JOINED: u32 = 1 << 6;

/// Another subnet manager is in charge: paths may have changed.
pub(crate) const REPATH: u32 = 1 << 7;

/// What the broadcast group says could not be carried over to the data path.
pub(crate) const SETTLE: u32 = 1 << 8;

/// There is news of connections.
pub(crate) const CONNECTION: u32 = 1 << 9;

/// Senders must be told that packets are too long.
pub(crate) const TOO_LONG: u32 = 1 << 10;

/// A membership was lost.
pub(crate) const LOST: u32 = 1 << 11;

/// When what could not be done for want of memory is tried again.
pub(super) const RETRY: Millis = Millis(100);
/// The span over which groups and paths of one node spread their requests after a reregister.
const SPREAD: Millis = Millis(100);

/// What the parts of the control state need to carry out actions.
pub(crate) struct Cx<'a> {
    pub(crate) iface: &'a Arc<Interface>,
    pub(crate) hw: &'a mut Hardware,
    pub(crate) dev: &'a Device,
    pub(crate) now: Millis,
    pub(crate) seq: &'a mut Seq,
    pub(crate) pace: &'a mut Pace,
}

impl<'a> Cx<'a> {
    /// What there is to work with now. Control lock held, of whose state `hw`, `seq` and `pace` are parts.
    pub(crate) fn new(
        iface: &'a Arc<Interface>,
        hw: &'a mut Hardware,
        dev: &'a Device,
        seq: &'a mut Seq,
        pace: &'a mut Pace,
    ) -> Self {
        let now = Millis(time::now_ms());
        Self {
            iface,
            hw,
            dev,
            now,
            seq,
            pace,
        }
    }

    /// Sends packets that have waited.
    pub(crate) fn send(&self, mut list: SkbList) {
        while let Some(skb) = list.pop() {
            skb.transmit(self.dev);
        }
    }

    /// Counts packets that were dropped while they waited.
    pub(crate) fn count(&self, reason: TxDrop, packets: usize) {
        self.iface.count_drops(reason, packets);
    }
}

impl WorkItem for Interface {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut guard = this.control.lock();
        let Control {
            running,
            hw,
            port,
            seen,
            seq,
            pace,
            ..
        } = &mut *guard;
        let events = this.events.take();
        let (Some(hw), Some(dev)) = (hw.as_mut(), this.device()) else {
            return;
        };
        let mut cx = Cx::new(&this, hw, &dev, seq, pace);

        if events & TOO_LONG != 0 {
            this.answer_too_long(&dev);
        }
        if events & PORT != 0 {
            port_changed(&mut cx, running.as_mut(), port, seen);
        }
        let Some(running) = running.as_mut() else {
            return;
        };
        if events & REREGISTER != 0 {
            cx.pace.call(cx.now);
        }
        if cx.pace.take_turn(cx.now) {
            running.groups.reregister(&mut cx, SPREAD);
            running.paths.refresh_all(&mut cx, SPREAD);
        }
        if events & REPATH != 0 {
            let turn = cx.pace.turn();
            running
                .paths
                .refresh_all(&mut cx, SPREAD.saturating_add(turn));
        }
        if events & JOINED != 0 {
            running.groups.take_answers(&mut cx);
        }
        if events & LOST != 0 {
            running.groups.take_losses(&mut cx);
        }
        if events & MULTICAST != 0 {
            running.groups.set_listeners(&mut cx);
        }
        if events & ANSWER != 0 {
            running.paths.take_answers(&mut cx);
        }
        if events & NEIGHBOURS != 0 {
            take_notes(&mut cx, running, port.may_join());
        }
        if events & CONNECTION != 0 {
            if let Some(conns) = running.conns.as_mut() {
                conns.look(&mut cx);
            }
        }
        if events & QUEUE != 0 || running.recovery.busy() {
            running.recovery.look(&mut cx);
        }

        running.paths.tick(&mut cx);
        running.groups.tick(&mut cx);
        if let Some(conns) = running.conns.as_mut() {
            conns.tick(&mut cx, &running.paths);
        }
        running.recovery.tick(&mut cx);
        age(&mut cx, running);
        settle(&mut cx, running, port, seen);
        running.groups.admit(&mut cx);

        let deadline = Millis::earliest(
            Millis::earliest(running.paths.deadline(), running.groups.deadline()),
            Millis::earliest(running.recovery.deadline(), Some(running.next_ageing)),
        );
        let deadline = Millis::earliest(deadline, cx.pace.deadline());
        let deadline = Millis::earliest(deadline, running.conns.as_ref().and_then(Conns::deadline));
        // Left by this run for later; what was posted meanwhile has the worker run at once.
        let retry = (this.events.get() != 0).then(|| cx.now.saturating_add(RETRY));
        if let Some(at) = Millis::earliest(deadline, retry) {
            let ms = at.saturating_sub(Millis(time::now_ms())).0.max(1);
            this.run_in(ms);
        }
    }
}

/// Takes over what the port looks like now; also while the interface is down.
fn port_changed(
    cx: &mut Cx<'_>,
    mut running: Option<&mut Running>,
    port: &mut control::port::Port,
    seen: &mut Seen,
) {
    let now = cx.iface.port().seen();
    let before = core::mem::replace(seen, now);

    let actions = port.step(control::port::Event::Active(now.active));
    cx.iface.port_actions(cx.dev, actions);
    cx.pace.set_lid(now.lid, now.lmc);
    if now.lid != before.lid && now.active && before.active {
        // The event that came with it has everything joined anew.
        if let Some(running) = running.as_deref_mut() {
            running.announce = true;
        }
    }
    if now.mtu != before.mtu {
        let actions = port.step(control::port::Event::Limit { ib_mtu: now.mtu });
        cx.iface.port_actions(cx.dev, actions);
        let too_small = cx.iface.set_rx_limit(now.mtu);
        if let Some(running) = running.as_deref_mut() {
            if cx.iface.resolver().groups_follow_port() {
                running.groups.reregister(cx, Millis::ZERO);
            }
            if too_small {
                running.recovery.restart_all(cx);
            }
        }
    }
    if now.gid != before.gid {
        // Handles carry our GID by index, and peers know us by the address.
        cx.iface.address_changed(now.gid);
        if let Some(running) = running.as_deref_mut() {
            running.groups.down(cx);
            running.paths.invalidate_all(cx);
            flush_connections(cx, running);
            // Before the groups are joined again, or it would look as if nothing had changed:
            // the data path would go by the old GID, and no group but the broadcast group follow.
            settle(cx, running, port, &now);
        }
    }
    cx.iface.look_for_move(cx.dev);
    let Some(running) = running else {
        return;
    };
    partition::look_for_pkey(cx, running, port, seen);
    if port.may_join() {
        running.groups.up(cx);
    } else {
        // What is voided here is asked for anew with the next `up`.
        cx.pace.cancel();
        running.groups.down(cx);
        running.paths.flush_all(cx);
        flush_connections(cx, running);
    }
}

/// Ends the connections that we send over: they are bound to the port as it was.
fn flush_connections(cx: &mut Cx<'_>, running: &mut Running) {
    if let Some(conns) = running.conns.as_mut() {
        conns.flush(cx);
    }
}

/// Tells the paths and groups what there is to know of their destinations. Unless the link is `usable` no path is
/// asked for: an answer that came all the same would be one to use.
fn take_notes(cx: &mut Cx<'_>, running: &mut Running, usable: bool) {
    // Collected first: the machines send and drop packets, which walks the same chains.
    let mut notes = KVec::new();
    let mut lost = false;
    cx.iface.neighbours().take_notes(|note| {
        lost |= notes.push(note, GFP_ATOMIC | __GFP_NOWARN).is_err();
    });
    if lost {
        // The marks are gone with the failed push: look at everything again, later.
        cx.iface.neighbours().mark_waiting();
        cx.iface.retry(NEIGHBOURS);
    }
    for note in notes {
        if note.heard {
            running.paths.heard(cx, &note.gid);
        }
        if note.suspect {
            running.paths.suspect(cx, &note.gid);
        }
        if let (Some(qpn), Some(conns)) = (note.connect, running.conns.as_mut()) {
            conns.wanted(cx, note.gid, qpn);
        }
        match note.wanted {
            None => {}
            Some(_) if note.gid.is_multicast() => running.groups.pending(cx, note.gid),
            Some(asker) if usable => running.paths.wanted(cx, note.gid, asker),
            Some(_) => running.paths.refuse(cx, &note.gid),
        }
    }
    make_room(cx, running);
}

/// Makes room in tables that are about to be full, at most so often.
fn make_room(cx: &mut Cx<'_>, running: &mut Running) {
    let iface = cx.iface;
    let crowded = |running: &Running| {
        [
            Limit::NEIGHBOURS.is_crowded(iface.neighbours().len()),
            Limit::PATHS.is_crowded(running.paths.len()),
            Limit::GROUPS.is_crowded(running.groups.len()),
        ]
    };
    let [all, paths, groups] = crowded(running);
    if !(all || paths || groups) || !running.next_room.reached(cx.now) {
        return;
    }
    running.next_room = cx.now.saturating_add(room::INTERVAL);
    let now = cx.now;
    let mut rounds = Rounds::new();
    loop {
        iface.neighbours().remove_if(
            |neigh| {
                let concerned = all
                    || if neigh.gid().is_multicast() {
                        groups
                    } else {
                        paths
                    };
                concerned
                    && rounds.takes(&Use {
                        resolved: neigh.resolved(),
                        waiting: neigh.waiting() > 0,
                        idle: now.saturating_sub(Millis(neigh.last_used())),
                    })
            },
            |reason, packets| iface.count_drops(reason, packets),
        );
        running.groups.age(cx);
        running.paths.age(cx);
        if let Some(conns) = running.conns.as_mut() {
            conns.age(cx);
        }
        let enough = Limit::NEIGHBOURS.is_roomy(iface.neighbours().len())
            && Limit::PATHS.is_roomy(running.paths.len())
            && Limit::GROUPS.is_roomy(running.groups.len());
        if enough || !rounds.advance() {
            break;
        }
    }
}

/// Removes what nothing has used for two intervals (NB-4).
fn age(cx: &mut Cx<'_>, running: &mut Running) {
    if !running.next_ageing.reached(cx.now) {
        return;
    }
    let ageing = Ageing::default();
    running.next_ageing = ageing.next_pass(cx.now);
    let (iface, now) = (cx.iface, cx.now);
    iface.neighbours().remove_if(
        |neigh| ageing.expired(Millis(neigh.last_used()), now, neigh.waiting() > 0),
        |reason, packets| iface.count_drops(reason, packets),
    );
    running.groups.age(cx);
    running.paths.age(cx);
    if let Some(conns) = running.conns.as_mut() {
        conns.age(cx);
    }
}

/// Carries the state of the broadcast group over to carrier, MTU and the data path.
pub(super) fn settle(
    cx: &mut Cx<'_>,
    running: &mut Running,
    port: &mut control::port::Port,
    seen: &Seen,
) {
    let params = running.groups.broadcast();
    if params == running.broadcast {
        // The port may be another all the same.
        if let Some(params) = params {
            if cx
                .iface
                .publish_identity(seen, &params, port.group_limit())
                .is_err()
            {
                cx.iface.retry(SETTLE);
            }
        }
        running.groups.reopen(cx);
        if running.announce && running.groups.settled() && cx.pace.deadline().is_none() {
            running.announce = false;
            cx.iface.announce();
        }
        return;
    }
    let event = match params {
        Some(params) => {
            let ib_mtu = crate::wire::mtu::from_code(params.mtu).unwrap_or(seen.mtu);
            control::port::Event::BroadcastJoined { ib_mtu }
        }
        None => control::port::Event::BroadcastLost,
    };
    let mut next = *port;
    let actions = next.step(event);
    if let Some(params) = params {
        if cx
            .iface
            .publish_identity(seen, &params, next.group_limit())
            .is_err()
        {
            // As if the group were not joined yet: nothing can be received before.
            cx.iface.retry(SETTLE);
            return;
        }
        running.recovery.set_qkey(cx, params.qkey);
    }
    running.broadcast = params;
    *port = next;
    cx.iface.port_actions(cx.dev, actions);
    if params.is_some() {
        running.groups.broadcast_joined(cx);
    }
}

/// Ends everything that a running interface has at the fabric; nothing is left in use afterwards.
pub(crate) fn shut_down(cx: &mut Cx<'_>, running: &mut Running) {
    cx.pace.cancel();
    running.groups.close(cx);
    running.paths.flush_all(cx);
    let iface = cx.iface;
    iface.neighbours().remove_if(
        |_| true,
        |reason, packets| iface.count_drops(reason, packets),
    );
    if let Some(conns) = running.conns.as_mut() {
        conns.close_all(cx);
    }
}
