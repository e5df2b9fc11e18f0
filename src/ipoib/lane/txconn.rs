// SPDX-License-Identifier: GPL-2.0

//! The sending end of a connection, for the data path.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use super::{
    brake::Brake,
    Ear,
    Lane, //
};
use crate::{
    base::{
        atomic::Word,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        rcu::RcuArc, //
    },
    control::{
        reason::TxDrop,
        txstop::Ring, //
    },
    net::{
        device::Device,
        skb::SkBuff,
        txq::TxOps, //
    },
    rdma::{
        SendError,
        SendQueue, //
    },
    wire::qpn::Qpn,
};

/// A ring stops its queues when fewer slots than this are free.
const STOP_BELOW: u32 = 2;

/// The sending end of a connection, for the data path.
#[pin_data]
pub(crate) struct TxConn {
    /// The attempt that made it.
    pub(crate) id: u64,
    /// The peer's datagram queue pair.
    pub(crate) qpn: Qpn,
    /// The longest message that the peer takes, encapsulation header included.
    pub(crate) max_frame: u32,
    pub(super) ring: Ring,
    pub(super) brake: Brake,
    /// Sends that have completed.
    pub(super) completed: Atomic<u32>,
    pub(super) ear: Arc<Ear>,
    #[pin]
    sends: SpinLockBh<Option<SendQueue<SkBuff>>>,
}

impl TxConn {
    pub(crate) fn new(
        id: u64,
        qpn: Qpn,
        max_frame: u32,
        sends: SendQueue<SkBuff>,
        ear: Arc<Ear>,
    ) -> Result<RcuArc<Self>> {
        let ring = Ring::new(sends.capacity() as u32, STOP_BELOW);
        RcuArc::pin_init(
            pin_init!(Self {
                id,
                qpn,
                max_frame,
                ring,
                brake: Brake::new(),
                completed: Atomic::new(0),
                ear,
                sends <- new_spinlock_bh!(Some(sends), "conn_sends"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes the ring away: nothing is posted any more when this returns.
    pub(crate) fn shut(&self) -> Option<SendQueue<SkBuff>> {
        self.sends.lock().take()
    }

    /// Sends a packet, encapsulation header first. `ops` are those of transmit queue `index`, whose lock
    /// is held.
    pub(crate) fn send(
        &self,
        lane: &Lane,
        index: u16,
        ops: &mut TxOps,
        mut skb: SkBuff,
    ) -> core::result::Result<(), TxDrop> {
        if skb.has_frag_list() || skb.segments() > lane.shared.segments {
            skb.linearize().map_err(|_| TxDrop::Linearize)?;
        }
        let mut guard = self.sends.lock();
        let Some(sends) = &mut *guard else {
            return Err(TxDrop::Flushed);
        };
        let shared = &lane.shared;
        // Fully ordered: see `Lane::posted`.
        if shared.credits.fetch_sub(1, Full) <= 0 {
            shared.credits.fetch_add(1, Relaxed);
            self.brake(lane, &shared.brake, ops, index, || shared.roomy());
            return Err(TxDrop::QueueFull);
        }
        skb.detach();
        let pushed = sends.push_connected(skb).map_err(|(error, _)| match error {
            SendError::Full => TxDrop::QueueFull,
            SendError::Mapping => TxDrop::Map,
            SendError::TooManySegments => TxDrop::Linearize,
            SendError::Empty => TxDrop::Short,
            SendError::Broken | SendError::WrongDomain | SendError::Lso => TxDrop::Post,
        });
        if let Err(reason) = pushed {
            drop(guard);
            shared.credits.fetch_add(1, Relaxed);
            if reason == TxDrop::QueueFull {
                // Whoever woke the queue did not know of this ring.
                self.brake(lane, &self.brake, ops, index, || self.roomy());
            }
            return Err(reason);
        }
        if sends.flush().is_err() {
            // The packet stays in its slot until the connection is closed, which counts it.
            self.ear.fail();
            return Ok(());
        }
        let free = sends.free_slots() as u32;
        drop(guard);
        if self.ring.must_stop(free) {
            self.brake(lane, &self.brake, ops, index, || self.roomy());
        }
        if shared.credits.get() <= 0 {
            self.brake(lane, &shared.brake, ops, index, || shared.roomy());
        }
        lane.posted();
        Ok(())
    }

    /// Whether a queue that waits for this ring may go on.
    fn roomy(&self) -> bool {
        let mut guard = self.sends.lock();
        (*guard)
            .as_mut()
            .is_none_or(|sends| self.ring.may_wake(sends.free_slots() as u32))
    }

    fn brake(
        &self,
        lane: &Lane,
        brake: &Brake,
        ops: &mut TxOps,
        index: u16,
        room: impl Fn() -> bool,
    ) {
        if brake.stop(ops, index, room) {
            lane.shared.stats.stops.add(1);
            if lane.shared.braked.set(1) == 0 {
                self.ear.alert();
            }
        }
    }

    /// Ends stops of transmit queues for this connection that have lasted for too long; whether there are
    /// any, or were. Only for the worker.
    pub(crate) fn ease(&self, dev: &Device) -> bool {
        self.brake.overdue(dev);
        self.brake.engaged()
    }

    /// How many sends have completed, modulo 2^32, and how many are under way.
    pub(crate) fn progress(&self) -> (u32, usize) {
        let mut guard = self.sends.lock();
        let pending = (*guard).as_mut().map_or(0, |sends| {
            sends.capacity().saturating_sub(sends.free_slots())
        });
        (self.completed.load(Relaxed), pending)
    }
}
