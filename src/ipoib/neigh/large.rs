// SPDX-License-Identifier: GPL-2.0

//! A destination's connection, and packets that are too large for a datagram and wait for one.

use kernel::sync::{
    atomic::Relaxed,
    rcu::Guard, //
};

use super::{
    Neigh,
    Neighbours,
    Pool,
    Queued,
    CONNECT,
    OTHER_MS, //
};
use crate::{
    base::{
        rcu::RcuArc,
        time, //
    },
    control::{
        conn::Link,
        reason::TxDrop, //
    },
    ipoib::lane::TxConn,
    net::skb::{
        SkBuff,
        SkbList, //
    },
    wire::{
        gid::Gid,
        qpn::Qpn, //
    },
};

impl Neigh {
    /// The connection to send over now. Notes the use.
    #[inline]
    pub(crate) fn conn<'g>(&self, guard: &'g Guard) -> Option<&'g TxConn> {
        let conn = self.conn.load(guard)?;
        self.note_use();
        Some(conn)
    }

    /// Whether there is a connection.
    pub(crate) fn connected(&self) -> bool {
        !self.conn.is_none()
    }

    /// Queues a packet that is too large for a datagram, unless there is a connection to `qpn`, or none
    /// to be had.
    fn queue_large(&self, qpn: Qpn, skb: SkBuff, pool: &Pool, guard: &Guard) -> Queued {
        self.note_use();
        let mut wait = self.wait.lock();
        if self.conn.load(guard).is_some_and(|conn| conn.qpn == qpn) {
            return Queued::Ready(skb);
        }
        if wait.gone {
            return Queued::Dropped(TxDrop::Flushed);
        }
        if Link::from_number(self.link.load(Relaxed)) == Link::Never {
            return Queued::Refused(skb);
        }
        if !pool.admit(skb.len()) {
            return Queued::Dropped(TxDrop::QueueFull);
        }
        if !wait.large_budget.admit(skb.len()) {
            pool.release(1, skb.len());
            return Queued::Dropped(TxDrop::QueueFull);
        }
        wait.large.push(skb);
        Queued::Waits
    }

    /// Takes the large packets that wait.
    pub(super) fn take_large(&self, pool: &Pool) -> SkbList {
        let mut wait = self.wait.lock();
        pool.release(wait.large_budget.packets(), wait.large_budget.bytes());
        wait.large_budget.clear();
        wait.large.take()
    }

    /// Notes that a connection to `qpn` is wanted; whether the worker must hear of it.
    fn ask(&self, qpn: Qpn) -> bool {
        if self.link.load(Relaxed) != Link::Ask as u32 || self.notes.get() & CONNECT != 0 {
            return false;
        }
        let now = time::now_ms();
        if self.connected() && now.saturating_sub(self.connect_asked.load(Relaxed)) < OTHER_MS {
            return false;
        }
        self.connect_asked.store(now, Relaxed);
        self.wanted.store(qpn.get(), Relaxed);
        self.notes.set(CONNECT);
        true
    }
}

impl Neighbours {
    /// Lets `skb`, pseudo header in front, wait for a connection to `qpn` at `gid`, and asks for one. As
    /// [`Neighbours::wait`].
    pub(crate) fn wait_large(&self, guard: &Guard, gid: &Gid, qpn: Qpn, skb: SkBuff) -> Queued {
        match self.entry(guard, gid) {
            Ok(neigh) => {
                let queued = neigh.queue_large(qpn, skb, &self.pool, guard);
                if matches!(queued, Queued::Waits) {
                    neigh.ask(qpn);
                    self.table.mark(self.hash(gid));
                }
                queued
            }
            Err(reason) => Queued::Dropped(reason),
        }
    }

    /// A packet goes to `qpn` at the destination `neigh` without a connection. Returns whether the worker
    /// must hear that one is wanted.
    #[inline]
    pub(crate) fn ask_connection(&self, neigh: &Neigh, qpn: Qpn) -> bool {
        let ask = neigh.ask(qpn);
        if ask {
            self.table.mark(self.hash(&neigh.gid));
        }
        ask
    }

    /// Publishes `conn` for `gid`; `send` gets what waited for it.
    pub(crate) fn publish_conn(
        &self,
        gid: &Gid,
        conn: &RcuArc<TxConn>,
        link: Link,
        send: impl FnOnce(SkbList),
    ) {
        let list = self.with(gid, |neigh| {
            let old = neigh.conn.swap(Some(conn.clone()));
            neigh.link.store(link as u32, Relaxed);
            drop(old);
            neigh.take_large(&self.pool)
        });
        if let Some(list) = list {
            send(list);
        }
    }

    /// Withdraws the connection of `gid`.
    pub(crate) fn unpublish_conn(&self, gid: &Gid) {
        drop(self.with(gid, |neigh| neigh.conn.swap(None)));
    }

    /// Says what to do with packets for `gid` while there is no connection.
    pub(crate) fn set_link(&self, gid: &Gid, link: Link) {
        self.with(gid, |neigh| {
            let _wait = neigh.wait.lock();
            neigh.link.store(link as u32, Relaxed);
        });
    }

    /// Gives `send` what waits for a connection to `gid`.
    pub(crate) fn release_large(&self, gid: &Gid, send: impl FnOnce(SkbList)) {
        if let Some(list) = self.with(gid, |neigh| neigh.take_large(&self.pool)) {
            send(list);
        }
    }
}
