// SPDX-License-Identifier: GPL-2.0

//! The transmit path: find the destination's address handle, put the packet into the queue's ring,
//! ring the doorbell once per train.

use kernel::sync::{
    rcu::Guard,
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
            After,
            TxLocked,
            TxOps, //
        }, //
    },
    rdma::{
        Ah,
        Lso,
        Offload,
        SendError,
        SendQueue,
        LSO_HEADERS, //
    },
    wire::{
        addr::HwAddr,
        encap::{
            self,
            TxClass,
            PSEUDO_LEN, //
        },
        qpn::Qpn, //
    },
};

/// What a packet needs to be sent: where to, and what is to be presented there.
struct Way {
    ah: RcuArc<Ah>,
    qpn: Qpn,
    qkey: u32,
}

/// Sends `skb`, whose data starts with the pseudo header, on `queue`, whose transmit lock is held.
#[inline]
pub(super) fn transmit(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    skb: SkBuff,
    lock: &mut TxLocked<'_>,
    guard: &Guard,
) {
    let Some((side, ops)) = queue.tx.get(lock) else {
        // Not this queue's lock: cannot happen, and must not be believed if it does.
        iface.count_drops(TxDrop::NotReady, 1);
        return;
    };
    let after = match route(iface, queue, skb, side, ops, guard) {
        Ok(Some(after)) => after,
        // Also when this packet went elsewhere: those before it in the train wait for the doorbell.
        Ok(None) => ops.now(),
        Err(reason) => dropped(queue, ops, reason),
    };
    if !after.more || after.stopped {
        ring(iface, queue, side, after.stopped);
    }
}

/// Counts a packet that could not be sent.
#[cold]
#[inline(never)]
fn dropped(queue: &Queue, ops: &TxOps, reason: TxDrop) -> After {
    queue.shared.stats.tx_drop(reason);
    ops.now()
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

/// Finds the packet's destination and puts it into the ring, if it does not go elsewhere or waits.
#[inline]
fn route(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    guard: &Guard,
) -> core::result::Result<Option<After>, TxDrop> {
    let way = match quick_way(iface, &skb, guard) {
        Some(way) if skb.pull(PSEUDO_LEN) => way,
        _ => match long_way(iface, queue, skb, ops, guard)? {
            Some((rest, way)) => {
                skb = rest;
                way
            }
            None => return Ok(None),
        },
    };
    put(iface, queue, skb, side, ops, way).map(Some)
}

/// The way of a packet, pseudo header first, that goes to one host as a datagram, as nearly all do: if it is
/// known, and nothing else is to be done.
#[inline]
fn quick_way(iface: ArcBorrow<'_, Interface>, skb: &SkBuff, guard: &Guard) -> Option<Way> {
    let (to, ethertype) = encap::parse_hard(skb.head())?;
    let gid = to.gid();
    let quick = encap::tx_class(ethertype) == TxClass::Data
        && !gid.is_multicast()
        && (to.flags() & HwAddr::FLAG_RC == 0 || !iface.connected());
    if !quick {
        return None;
    }
    let ident = iface.ident.load(guard)?;
    if longest(skb, PSEUDO_LEN as u32) > ident.max_frame {
        return None;
    }
    Some(Way {
        ah: iface.find(guard, &gid)?,
        qpn: to.qpn(),
        qkey: ident.qkey,
    })
}

/// Octets of the longest frame that the hardware makes of `skb`, of whose start `front` octets do not go with it.
#[inline]
fn longest(skb: &SkBuff, front: u32) -> u32 {
    match skb.gso() {
        None => skb.len().saturating_sub(front),
        Some(gso) => (gso.headers as u32).saturating_sub(front) + u32::from(gso.mss),
    }
}

/// Finds the way of any packet, pseudo header first, or lets it wait; what comes back is to be put into the ring.
#[inline(never)]
fn long_way(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    ops: &mut TxOps,
    guard: &Guard,
) -> core::result::Result<Option<(SkBuff, Way)>, TxDrop> {
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
    let ident = iface.ident.load(guard).ok_or(TxDrop::NotReady)?;
    if let Some(lane) = lane {
        match connected(iface, queue, skb, ops, &to_rc, lane, ident, guard)? {
            Some(rest) => skb = rest,
            None => return Ok(None),
        }
    } else if longest(&skb, 0) > ident.max_frame {
        return Err(too_long(iface, skb, class, ident.max_frame));
    }
    if class == TxClass::Resolution
        && !to.is_multicast()
        && encap::is_request(skb.head())
        && iface.neighbours().asked(guard, &to.gid())
    {
        Arc::<Interface>::from(iface).post(worker::NEIGHBOURS);
    }
    let (skb, ah) = match iface.find(guard, &to.gid()) {
        Some(ah) => (skb, ah),
        // Nobody has a group for an address, but anybody may ask in its name, by ARP or ND: the
        // answer to that is no reason to join it.
        None if (class == TxClass::Resolution || encap::is_for_one_host(skb.head()))
            && to.is_multicast()
            && to.gid() != ident.me.broadcast =>
        {
            return Err(TxDrop::NoGroup)
        }
        None => match wait(iface, skb, &to, guard)? {
            Some(ready) => ready,
            None => return Ok(None),
        },
    };
    let way = Way {
        ah,
        qpn: to.qpn(),
        qkey: ident.qkey,
    };
    Ok(Some((skb, way)))
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

/// Lets a packet wait until its destination is resolved; gives it back if it has just been.
fn wait(
    iface: ArcBorrow<'_, Interface>,
    mut skb: SkBuff,
    to: &HwAddr,
    guard: &Guard,
) -> core::result::Result<Option<(SkBuff, RcuArc<Ah>)>, TxDrop> {
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
            Ok(None)
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
            Ok(Some((skb, ah)))
        }
        Queued::Refused(_) => Err(TxDrop::TooLong),
        Queued::Dropped(reason) => Err(reason),
    }
}

/// Puts a packet, encapsulation header first, into the ring.
#[inline]
fn put(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    way: Way,
) -> core::result::Result<After, TxDrop> {
    if skb.is_gso() {
        put_pieces(iface, queue, skb, side, ops, way)
    } else {
        put_as(iface, queue, skb, side, ops, way, None)
    }
}

/// The same for one that the hardware cuts.
#[inline(never)]
fn put_pieces(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    way: Way,
) -> core::result::Result<After, TxDrop> {
    let lso = skb.gso().map(|gso| Lso {
        headers: gso.headers,
        mss: gso.mss,
    });
    put_as(iface, queue, skb, side, ops, way, lso)
}

/// What both have in common; two copies of it, so that most packets need not carry what the others have.
#[inline(always)]
fn put_as(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    mut skb: SkBuff,
    side: &mut TxSide,
    ops: &mut TxOps,
    way: Way,
    lso: Option<Lso>,
) -> core::result::Result<After, TxDrop> {
    let shared = &queue.shared;
    if !shared.running() {
        // Woken by who knows nothing of this queue pair, such as a connection. Whoever starts it wakes the queue.
        let _ = ops.stop_unless(|| shared.running());
        return Err(TxDrop::NotReady);
    }
    let Some(sends) = &mut side.sends else {
        return Err(TxDrop::NotReady);
    };
    if skb.is_paged() && (skb.has_frag_list() || skb.segments() > sends.max_segments()) {
        skb.linearize().map_err(|_| TxDrop::Linearize)?;
    }
    let offload = Offload {
        checksum: skb.wants_checksum(),
        lso,
    };
    skb.detach();
    let len = skb.len();
    if let Err((error, skb)) = sends.push(way.ah, way.qpn, way.qkey, skb, offload) {
        return Err(refused(iface, queue, sends, ops, error, skb));
    }
    // The byte queue limits may stop the queue here; `transmit` sees that and rings.
    let mut after = ops.sent(len);
    if shared.ring.must_stop(sends.free_at_least() as u32) {
        after.stopped |= full(queue, sends, ops);
    }
    Ok(after)
}

/// What to make of a packet that the ring has not taken.
#[cold]
#[inline(never)]
fn refused(
    iface: ArcBorrow<'_, Interface>,
    queue: &Queue,
    sends: &mut SendQueue<SkBuff>,
    ops: &mut TxOps,
    error: SendError,
    skb: SkBuff,
) -> TxDrop {
    let shared = &queue.shared;
    drop(skb);
    match error {
        SendError::Full => {
            // Woken by who knows nothing of this ring; completions wake it.
            let _ = ops.stop_unless(|| shared.ring.may_wake(sends.free_slots() as u32));
            TxDrop::QueueFull
        }
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
    }
}

/// Stops the queue if its ring really is full; whether it is stopped now.
#[cold]
#[inline(never)]
fn full(queue: &Queue, sends: &mut SendQueue<SkBuff>, ops: &mut TxOps) -> bool {
    let shared = &queue.shared;
    if !shared.ring.must_stop(sends.free_slots() as u32) {
        return false;
    }
    shared.stats.stops.add(1);
    ops.stop_unless(|| shared.ring.may_wake(sends.free_slots() as u32))
}

/// Posts the packets that have gathered.
#[inline]
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
