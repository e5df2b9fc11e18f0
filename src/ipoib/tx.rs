// SPDX-License-Identifier: GPL-2.0

//! The transmit path: find the destination's address handle, put the packet into the queue's ring,
//! ring the doorbell once per train.

use kernel::sync::{
    rcu::{
        self,
        Guard, //
    },
    Arc,
    ArcBorrow, //
};

use super::{
    interface::{
        Ident,
        Interface, //
    },
    lane::{
        Lane,
        TxConn, //
    },
    neigh::Queued,
    queue::{
        send_sges,
        Queue,
        TxSide, //
    },
    worker, //
};
use crate::{
    base::rcu::RcuArc,
    control::{
        admission::Asker,
        health::Concern,
        reason::TxDrop, //
    },
    net::{
        skb::SkBuff,
        txq::{
            TxLocked,
            TxOps, //
        }, //
    },
    rdma::{
        Ah,
        Lso,
        Offload,
        SendError,
        LSO_HEADERS, //
    },
    wire::{
        addr::HwAddr,
        encap::{
            self,
            TxClass,
            PSEUDO_LEN, //
        }, //
    },
};

/// Sends `skb`, whose data starts with the pseudo header, on `queue`, whose transmit lock is held.
pub(super) fn transmit(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    skb: SkBuff,
    lock: &mut TxLocked<'_>,
) {
    let Some((side, ops)) = queue.tx.get(lock) else {
        // Not this queue's lock: cannot happen, and must not be believed if it does.
        iface.count_drops(TxDrop::NotReady, 1);
        return;
    };
    let more = ops.xmit_more();
    if let Err(reason) = route(iface, queue, skb, side, ops, more) {
        queue.shared.stats.tx_drop(reason);
    }
    // Also when this packet went elsewhere: those before it in the train wait for the doorbell.
    let stopped = ops.xmit_stopped();
    if !more || stopped {
        ring(iface, queue, side, stopped);
    }
}

/// Whether the hardware can cut `skb`, whose data starts with the pseudo header: with headers that
/// fit, and pieces that need not be copied together first, for a large packet may find no room for
/// that.
pub(super) fn can_segment(iface: ArcBorrow<'_, Interface>, skb: &SkBuff) -> bool {
    let Some(headers) = skb
        .gso()
        .and_then(|gso| gso.headers.checked_sub(PSEUDO_LEN))
    else {
        return false;
    };
    let most = send_sges(iface.port().rdma().device().attrs());
    (1..=LSO_HEADERS).contains(&headers) && skb.segments() <= most as usize && !skb.has_frag_list()
}

/// Finds the packet's destination and sends it there, or lets it wait.
fn route(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    more: bool,
) -> core::result::Result<(), TxDrop> {
    let (mut to, ethertype) = encap::parse_hard(skb.head()).ok_or(TxDrop::Short)?;
    let class = encap::tx_class(ethertype);
    if class == TxClass::Refused {
        return Err(TxDrop::EtherType);
    }
    if to.is_multicast() {
        to = HwAddr::multicast(to.with_pkey(iface.pkey()).gid());
    }
    // Connections are for peers that offer them; groups and address resolution go as datagrams (CM-16), and
    // so does what the stack has left to the hardware before the mode changed.
    let lane = (class == TxClass::Data
        && !skb.is_gso()
        && !skb.wants_checksum()
        && to.flags() & HwAddr::FLAG_RC != 0
        && !to.is_multicast())
    .then(|| iface.sending_lane())
    .flatten();
    let to_rc = to;
    let to = to.key();
    if !skb.pull(PSEUDO_LEN) {
        return Err(TxDrop::Short);
    }
    let guard = rcu::read_lock();
    let ident = iface.ident.load(&guard).ok_or(TxDrop::NotReady)?;
    if let Some(lane) = lane {
        match connected(iface, queue, skb, ops, &to_rc, lane, ident, &guard)? {
            Some(rest) => skb = rest,
            None => return Ok(()),
        }
    } else {
        let longest = match skb.gso() {
            None => skb.len(),
            // The longest piece.
            Some(gso) => gso.headers as u32 + u32::from(gso.mss),
        };
        if longest > ident.max_frame {
            return Err(too_long(iface, skb, class, ident.max_frame));
        }
    }
    if class == TxClass::Resolution
        && !to.is_multicast()
        && encap::is_request(skb.head())
        && iface.neighbours().asked(&guard, &to.gid())
    {
        Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
    }
    match iface.find(&guard, &to.gid()) {
        Some(ah) => send(iface, queue, skb, side, ops, &to, ah, ident, more),
        // Nobody has a group for an address, but anybody may ask in its name, by ARP or ND: the
        // answer to that is no reason to join it.
        None if (class == TxClass::Resolution || encap::is_for_one_host(skb.head()))
            && to.is_multicast()
            && to.gid() != ident.me.broadcast =>
        {
            Err(TxDrop::NoGroup)
        }
        None => wait(iface, queue, skb, side, ops, &to, ident, &guard, more),
    }
}

/// Sends a packet over a connection, or lets it wait for one; gives it back if it is to go as a datagram.
#[allow(clippy::too_many_arguments)]
fn connected(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    ops: &mut TxOps,
    to: &HwAddr,
    lane: &Lane,
    ident: &Ident,
    guard: &Guard,
) -> core::result::Result<Option<SkBuff>, TxDrop> {
    let (gid, qpn) = (to.gid(), to.qpn());
    let neigh = iface.neighbours().lookup(guard, &gid);
    let conn = neigh.and_then(|neigh| neigh.conn(guard));
    if let Some(conn) = conn.filter(|conn| conn.qpn == qpn) {
        return over(iface, queue, skb, ops, lane, conn).map(|()| None);
    }
    if skb.len() <= ident.max_frame {
        if neigh.is_some_and(|neigh| iface.neighbours().ask_connection(neigh, qpn)) {
            Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
        }
        return Ok(Some(skb));
    }
    // It comes back through the queueing discipline, from its pseudo header on.
    skb.push(&to.0).map_err(|_| TxDrop::NoMemory)?;
    match iface.neighbours().wait_large(guard, &gid, qpn, skb) {
        Queued::Waits => {
            Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
            Ok(None)
        }
        Queued::Ready(mut skb) => {
            // The entry may be another than that of the first look-up, which may have found none.
            let neigh = iface.neighbours().lookup(guard, &gid);
            let conn = neigh
                .and_then(|neigh| neigh.conn(guard))
                .filter(|conn| conn.qpn == qpn)
                .ok_or(TxDrop::Flushed)?;
            if !skb.pull(PSEUDO_LEN) {
                return Err(TxDrop::Short);
            }
            over(iface, queue, skb, ops, lane, conn).map(|()| None)
        }
        Queued::Refused(mut skb) => {
            if !skb.pull(PSEUDO_LEN) {
                return Err(TxDrop::Short);
            }
            Err(too_long(iface, skb, TxClass::Data, ident.max_frame))
        }
        Queued::Dropped(reason) => {
            if reason == TxDrop::TableFull {
                Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
            }
            Err(reason)
        }
    }
}

/// Sends a packet over `conn`.
fn over(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    skb: SkBuff,
    ops: &mut TxOps,
    lane: &Lane,
    conn: &TxConn,
) -> core::result::Result<(), TxDrop> {
    if skb.len() > conn.max_frame {
        return Err(too_long(iface, skb, TxClass::Data, conn.max_frame));
    }
    conn.send(lane, queue.shared.index, ops, skb)
}

/// Has the sender of a packet, encapsulation header first, told that it is too long (CM-19).
fn too_long(iface: ArcBorrow<'_, Interface>, mut skb: SkBuff, class: TxClass, max: u32) -> TxDrop {
    if class == TxClass::Data && skb.pull(encap::LEN) {
        let mtu = max.saturating_sub(encap::LEN as u32);
        Arc::<Interface>::from(iface).too_long(skb, mtu);
    }
    TxDrop::TooLong
}

/// Lets a packet wait until its destination is resolved.
#[allow(clippy::too_many_arguments)]
fn wait(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    to: &HwAddr,
    ident: &Ident,
    guard: &Guard,
    more: bool,
) -> core::result::Result<(), TxDrop> {
    let asker = if encap::is_answer(skb.head()) {
        Asker::Stranger
    } else {
        Asker::Ourselves
    };
    // It comes back through the queueing discipline, from its pseudo header on (TX-7).
    skb.push(&to.0).map_err(|_| TxDrop::NoMemory)?;
    match iface.neighbours().wait(guard, &to.gid(), skb, asker) {
        Queued::Waits => {
            Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
            Ok(())
        }
        Queued::Dropped(TxDrop::TableFull) => {
            // The worker makes room.
            Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
            Err(TxDrop::TableFull)
        }
        Queued::Ready(mut skb) => {
            if !skb.pull(PSEUDO_LEN) {
                return Err(TxDrop::Short);
            }
            let ah = iface.find(guard, &to.gid()).ok_or(TxDrop::Flushed)?;
            send(iface, queue, skb, side, ops, to, ah, ident, more)
        }
        Queued::Refused(_) => Err(TxDrop::TooLong),
        Queued::Dropped(reason) => Err(reason),
    }
}

/// Puts a packet, encapsulation header first, into the ring.
#[allow(clippy::too_many_arguments)]
fn send(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    to: &HwAddr,
    ah: RcuArc<Ah>,
    ident: &Ident,
    more: bool,
) -> core::result::Result<(), TxDrop> {
    let shared = &queue.shared;
    if !shared.running() {
        // Woken by who knows nothing of this queue pair, such as a connection. Whoever starts it wakes the queue.
        let _ = ops.stop_unless(|| shared.running());
        return Err(TxDrop::NotReady);
    }
    let Some(sends) = &mut side.sends else {
        return Err(TxDrop::NotReady);
    };
    if sends.free_slots() == 0 && !sends.is_broken() {
        // As above; completions wake it.
        let _ = ops.stop_unless(|| shared.ring.may_wake(sends.free_slots() as u32));
        return Err(TxDrop::QueueFull);
    }
    if skb.has_frag_list() || skb.segments() > sends.max_segments() {
        skb.linearize().map_err(|_| TxDrop::Linearize)?;
    }
    let offload = Offload {
        checksum: skb.wants_checksum(),
        lso: skb.gso().map(|gso| Lso {
            headers: gso.headers,
            mss: gso.mss,
        }),
    };
    skb.detach();
    let len = skb.len();
    sends
        .push(ah, to.qpn(), ident.qkey, skb, offload)
        .map_err(|(error, _)| match error {
            SendError::Full => TxDrop::QueueFull,
            SendError::Mapping => TxDrop::Map,
            SendError::TooManySegments => TxDrop::Linearize,
            // The headers are not where `can_segment` has seen them, or nothing is behind them.
            SendError::Empty | SendError::Lso => TxDrop::Short,
            SendError::Broken => {
                // Told before, when it broke; the worker may have looked too early to see it.
                shared.note(&Arc::from(iface), Concern::Trouble);
                TxDrop::Post
            }
            SendError::WrongDomain => TxDrop::Post,
        })?;
    // The byte queue limits may stop the queue here; `transmit` sees that and rings.
    let _ = ops.sent(len, more);
    if shared.ring.must_stop(sends.free_slots() as u32) {
        shared.stats.stops.add(1);
        let ring = &shared.ring;
        let _ = ops.stop_unless(|| ring.may_wake(sends.free_slots() as u32));
    }
    Ok(())
}

/// Posts the packets that have gathered.
fn ring(iface: ArcBorrow<'_, Interface>, queue: &Queue, side: &mut TxSide, stopped: bool) {
    let Some(sends) = &mut side.sends else {
        return;
    };
    let pending = sends.pending() != 0;
    if pending {
        queue.shared.stats.doorbells.add(1);
        // A failure breaks the ring, as that of a full chain's own doorbell does.
        let _ = sends.flush();
    }
    if pending || stopped {
        let used = sends.capacity().saturating_sub(sends.free_slots());
        queue.posted(used, stopped);
    }
    if sends.is_broken() {
        // What could not be posted stays in its slots until the queue has been recovered.
        queue.shared.note(&Arc::from(iface), Concern::Trouble);
    }
}
