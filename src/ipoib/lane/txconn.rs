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
    Ear,
    Lane, //
};
use crate::{
    base::{
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
        txq::{
            TxOps,
            TxQueue, //
        }, //
    },
    rdma::{
        SendError,
        SendQueue, //
    },
    wire::qpn::Qpn,
};

/// A ring stops its queues when fewer slots than this are free.
const STOP_BELOW: u32 = 2;

/// Transmit queues that have been stopped for want of room somewhere.
pub(super) struct Brake(Atomic<u64>);

impl Brake {
    pub(super) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Stops the queue `index`, whose lock is held, unless there is room after all.
    pub(super) fn stop(&self, ops: &mut TxOps, index: u16, room: impl Fn() -> bool) -> bool {
        ops.stop_unless(|| {
            // Behind the stop, so that whoever sees the bit can take the stop back; before the
            // second look, so that who frees room later sees the bit.
            let bit = 1_u64.checked_shl(index.into()).unwrap_or(0);
            let mut old = self.0.load(Relaxed);
            while let Err(now) = self.0.cmpxchg(old, old | bit, Full) {
                old = now;
            }
            room()
        })
    }

    /// Lets all stopped queues go on, if there is room. To be called after room has been made.
    pub(super) fn release(&self, dev: &Device, room: impl FnOnce() -> bool) {
        // Fully ordered: either we see the bit, or its setter sees the room.
        if self.0.cmpxchg(0, 0, Full).is_ok() || !room() {
            return;
        }
        let mut stopped = self.0.xchg(0, Full);
        while stopped != 0 {
            let index = stopped.trailing_zeros();
            stopped &= stopped.wrapping_sub(1);
            if let Some(txq) = TxQueue::new(dev, index as u16) {
                txq.wake();
            }
        }
    }
}

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
        if shared.credits.fetch_sub(1, Relaxed) <= 0 {
            shared.credits.fetch_add(1, Relaxed);
            shared.brake.stop(ops, index, || shared.roomy());
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
            shared.credits.fetch_add(1, Relaxed);
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
            self.brake.stop(ops, index, || {
                let mut guard = self.sends.lock();
                (*guard)
                    .as_mut()
                    .is_none_or(|sends| self.ring.may_wake(sends.free_slots() as u32))
            });
        }
        if shared.credits.load(Relaxed) <= 0 {
            shared.brake.stop(ops, index, || shared.roomy());
        }
        Ok(())
    }
}
