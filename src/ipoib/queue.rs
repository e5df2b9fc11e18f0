// SPDX-License-Identifier: GPL-2.0

//! A queue: one UD queue pair with its completion queues, rings and NAPI; and all the verbs objects
//! of an interface.

mod shared;

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
};

pub(crate) use self::shared::Shared;
use super::{
    interface::Interface,
    lane::LaneHardware,
    rx::{
        PollState,
        Rings, //
    },
    waking::STAY_MS, //
};
use crate::{
    base::{
        params::Params,
        rcu::RcuArc,
        time, //
    },
    control::health::Concern,
    net::{
        device::Device,
        napi::Napi,
        pages::Pages,
        registration::Offloads,
        skb::SkBuff,
        txq::{
            TxCell,
            TxQueue, //
        }, //
    },
    rdma::{
        self,
        Ah,
        AhAttr,
        AhPool,
        CompletionHandler,
        Cq,
        DeviceAttrs,
        DeviceHandle,
        McastAttach,
        Pd,
        QpControl,
        QpFlags,
        QpHandler,
        QpSizes,
        QpState,
        RecvQueue,
        SendQueue,
        Transport, //
    },
    wire::{
        gid::Gid,
        mgid,
        qpn::Qpn, //
    },
};

/// The most queues that are chosen by themselves.
const AUTO_QUEUES: u32 = 8;
/// Pages of received packets that a queue waits for to use them again.
const KEPT_PAGES: usize = 256;
/// Resets to try when posts race with them.
const RESET_TRIES: usize = 4;

/// What the holder of the transmit lock works on; no ring before creation and after destruction.
pub(crate) struct TxSide {
    pub(crate) sends: Option<SendQueue<SkBuff>>,
}

/// One queue, for the data path.
pub(crate) struct Queue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tx: TxCell<TxSide>,
    pub(crate) napi: Arc<Napi<PollState>>,
    pub(crate) qpn: Qpn,
}

impl Queue {
    /// Sends have been posted, of which `used` are unfinished; `stopped`: the stack waits for them. Sees to it that they
    /// are worked off. Transmit lock held.
    #[inline]
    pub(crate) fn posted(&self, used: usize, stopped: bool) {
        self.napi.schedule_in(time::ms_to_jiffies(STAY_MS));
        if (stopped || used >= Shared::LAZY) && !self.shared.waking.is_on() {
            self.napi.schedule();
        }
    }
}

/// Where the device's callbacks for a queue go.
struct Kick {
    napi: Arc<Napi<PollState>>,
    shared: Arc<Shared>,
    iface: Arc<Interface>,
}

impl CompletionHandler for Kick {
    #[inline]
    fn completed(&self) {
        self.napi.schedule();
    }

    fn failed(&self) {
        self.shared.note(&self.iface, Concern::Fatal);
    }
}

impl QpHandler for Kick {
    fn failed(&self) {
        self.shared.note(&self.iface, Concern::Fatal);
    }
}

/// The verbs objects of an interface. Belongs to whoever holds the control lock.
///
/// Fields are dropped in this order: queue pairs before the handles that their sends may use.
pub(crate) struct Hardware {
    pub(crate) qps: KVec<QpControl>,
    recv_cqs: KVec<Cq>,
    /// What connections are made from; none on a device that cannot share receive queues.
    pub(crate) lane: Option<LaneHardware>,
    pool: AhPool,
}

/// How many queues an interface gets: what is asked for, else the least of CPUs, completion
/// vectors and [`AUTO_QUEUES`].
pub(crate) fn count(params: &Params, device: &DeviceHandle) -> u32 {
    params
        .queues
        .unwrap_or_else(|| most(params).min(device.num_comp_vectors()).max(1))
}

/// The most queues that [`count`] says of any device.
pub(crate) fn most(params: &Params) -> u32 {
    params
        .queues
        .unwrap_or_else(|| crate::base::time::online_cpus().clamp(1, AUTO_QUEUES))
}

impl Hardware {
    /// Creates `n` queues for `dev`, which is not registered yet, in RESET and with NAPI disabled.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// What the verbs say, with a log line that names the object.
    pub(crate) fn create(
        iface: &Arc<Interface>,
        dev: &Device,
        n: u32,
    ) -> Result<(Self, KVec<Queue>)> {
        let device = iface.port().rdma().device();
        let pd = Pd::new(device).inspect_err(|e| complain(device, "protection domain", *e))?;
        let mut hw = Self {
            qps: KVec::with_capacity(n as usize, GFP_KERNEL)?,
            recv_cqs: KVec::with_capacity(n as usize, GFP_KERNEL)?,
            lane: None,
            pool: AhPool::new(&pd)?,
        };
        let attrs = device.attrs();
        let mut flags = QpFlags {
            block_multicast_loopback: attrs.block_multicast_loopback(),
            lso: attrs.ud_tso(),
        };
        let mut queues = KVec::with_capacity(n as usize, GFP_KERNEL)?;
        for index in 0..n {
            match hw.create_queue(iface, dev, &pd, index, &mut flags) {
                Ok(queue) => queues.push(queue, GFP_KERNEL)?,
                Err(e) => {
                    destroy_queues(&queues, dev);
                    return Err(e);
                }
            }
        }
        match LaneHardware::create(iface, dev, &pd) {
            Ok(made) => {
                if let Some((lane_hw, lane)) = made {
                    hw.lane = Some(lane_hw);
                    iface.set_lane(lane);
                }
            }
            Err(e) => {
                destroy_queues(&queues, dev);
                return Err(e);
            }
        }
        Ok((hw, queues))
    }

    fn create_queue(
        &mut self,
        iface: &Arc<Interface>,
        dev: &Device,
        pd: &Pd,
        index: u32,
        flags: &mut QpFlags,
    ) -> Result<Queue> {
        let device = pd.device();
        let attrs = device.attrs();
        let params = iface.params();
        let index16 = u16::try_from(index)?;
        let txq = TxQueue::new(dev, index16).ok_or(EINVAL)?;
        let napi = Napi::new(dev, PollState(None))?;

        let shared = Arc::new(Shared::new(index16, params.send_ring), GFP_KERNEL)?;

        // Vectors go round: the send and the receive CQ of a queue share one, since one NAPI polls
        // both, and interfaces start at different ones (B30).
        let vector = iface.first_vector().wrapping_add(index);
        let kick = Kick {
            napi: napi.clone(),
            shared: shared.clone(),
            iface: iface.clone(),
        };
        let kick = Arc::new(kick, GFP_KERNEL)?;
        let (send_cq, send_poller) = Cq::create(device, params.send_ring, vector, kick.clone())
            .inspect_err(|e| complain(device, "send completion queue", *e))?;
        let (recv_cq, recv_poller) = Cq::create(device, params.recv_ring + 1, vector, kick.clone())
            .inspect_err(|e| complain(device, "receive completion queue", *e))?;

        let sizes = QpSizes {
            send_wr: params.send_ring,
            recv_wr: params.recv_ring,
            send_sge: send_sges(attrs),
            recv_sge: attrs.max_recv_sge.clamp(1, rdma::recv::REGIONS as u32),
        };
        let qp = create_qp(pd, &send_cq, &recv_cq, sizes, kick, flags)
            .inspect_err(|e| complain(device, "queue pair", *e))?;
        let (sends, completions) = rdma::send::send_queue(qp.qp(), params.send_ring as usize)?;
        let recvs = RecvQueue::new(qp.qp(), params.recv_ring as usize)?;
        let qpn = qp.qp().num();
        self.qps.push(qp, GFP_KERNEL)?;
        self.recv_cqs.push(recv_cq, GFP_KERNEL)?;

        let tx = TxCell::new(&txq, TxSide { sends: Some(sends) });
        napi.disable().state().0 = Some(Rings::new(
            iface.clone(),
            dev,
            shared.clone(),
            txq,
            (send_poller, recv_poller),
            completions,
            (recvs, Pages::new(KEPT_PAGES)?),
        ));
        Ok(Queue {
            shared,
            tx,
            napi,
            qpn,
        })
    }

    /// What the queues do for the stack.
    pub(crate) fn offloads(&self) -> Offloads {
        let Some(attrs) = self.qps.first().map(|qp| qp.qp().device().attrs()) else {
            return Offloads::default();
        };
        Offloads {
            scatter: attrs.max_send_sge > 1,
            checksum: attrs.ip_csum(),
            segmentation: self.qps.iter().all(|qp| qp.qp().lso()),
        }
    }

    /// Makes an address handle. May sleep.
    pub(crate) fn create_ah(&self, attr: &AhAttr) -> Result<RcuArc<Ah>> {
        self.pool.create(attr)
    }

    /// Attaches the queue that `group` hashes to. May sleep.
    pub(crate) fn attach(&self, group: &Gid, mlid: u16) -> Result<McastAttach> {
        let index = mgid::queue_hash(group, self.qps.len() as u32);
        let qp = self.qps.get(index as usize).ok_or(EINVAL)?;
        McastAttach::new(qp.qp(), group, mlid)
    }

    /// Lets the hardware wait for `frames` frames or `usecs` microseconds before it tells of received
    /// ones. May sleep.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` when it cannot, and what else it says. Then it waits as it did `before`, frames and
    /// microseconds, on every queue where it does what it is told.
    pub(crate) fn moderate(&self, (frames, usecs): (u16, u16), before: (u16, u16)) -> Result {
        for (done, cq) in self.recv_cqs.iter().enumerate() {
            if let Err(e) = cq.set_moderation(frames, usecs) {
                for cq in self.recv_cqs.iter().take(done) {
                    // Nobody else could be told of a second refusal.
                    let _ = cq.set_moderation(before.0, before.1);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    /// Sets the Q_Key that senders must present to a queue. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says, also when the queue pair is in no state for it. Then it has the former one.
    pub(crate) fn set_qkey(&mut self, queue: &Queue, qkey: u32) -> Result {
        self.qp_mut(queue)?.set_qkey(qkey)
    }

    /// Takes a queue from RESET to RTS with a full receive ring and NAPI enabled. May sleep.
    pub(crate) fn start_queue(&mut self, iface: &Interface, queue: &Queue, dev: &Device) -> Result {
        let port = iface.port().rdma().number();
        let (index, qkey) = (iface.pkey_index(), iface.qkey());
        if self.qp_mut(queue)?.to_init(index, port, qkey).is_err() {
            // The device may have refused to reset it when it was stopped.
            self.reset_queue(queue, dev)?;
            self.qp_mut(queue)?.to_init(index, port, qkey)?;
        }
        let qp = self.qp_mut(queue)?;
        let mut napi = queue.napi.disable();
        queue.shared.start();
        let started = match napi.state().0.as_mut() {
            Some(rings) => {
                rings.set_area(iface.rx_area());
                rings.refill();
                if rings.outstanding().1 == 0 {
                    Err(ENOMEM)
                } else {
                    Ok(())
                }
            }
            None => Err(ENODEV),
        };
        let started = started
            .and_then(|()| qp.to_rtr())
            .and_then(|()| qp.to_rts());
        if started.is_err() {
            queue.shared.stop();
            return started;
        }
        napi.enable();
        Ok(())
    }

    /// Moves a queue to ERR, so that it gives everything back. May sleep.
    pub(crate) fn fail_queue(&mut self, queue: &Queue) -> Result {
        self.qp_mut(queue)?.to_err()
    }

    /// Takes the send completions that nobody has polled, lets the poll end that is under way before that, and has
    /// the queue polled again. May sleep.
    pub(crate) fn poll_sends(queue: &Queue) {
        let mut napi = queue.napi.disable();
        if let Some(rings) = napi.state().0.as_mut() {
            rings.poll_sends(drop);
        }
        napi.enable();
    }

    /// Takes completions of a queue in ERR; whether nothing is outstanding. May sleep.
    pub(crate) fn drain_queue(queue: &Queue) -> bool {
        let mut napi = queue.napi.disable();
        napi.state().0.as_mut().is_none_or(Rings::drain)
    }

    /// Moves a queue to RESET and empties its rings. NAPI stays disabled. May sleep.
    pub(crate) fn reset_queue(&mut self, queue: &Queue, dev: &Device) -> Result {
        let txq = TxQueue::new(dev, queue.shared.index).ok_or(EINVAL)?;
        let qp = self.qp_mut(queue)?;
        let mut napi = queue.napi.disable();
        let Some(rings) = napi.state().0.as_mut() else {
            return Err(ENODEV);
        };
        let mut result = Err(EAGAIN);
        for _ in 0..RESET_TRIES {
            let proof = qp.to_reset()?;
            let mut lock = txq.lock();
            if let Some((TxSide { sends: Some(sends) }, ops)) = queue.tx.get(&mut lock) {
                result = rings.reset(sends, &proof);
                if result.is_ok() {
                    ops.reset_limits();
                }
            }
            drop(lock);
            if result != Err(EAGAIN) {
                break;
            }
        }
        result
    }

    /// What state the queue's queue pair is in. May sleep.
    pub(crate) fn query_queue(&mut self, queue: &Queue) -> Result<QpState> {
        self.qp_mut(queue)?.query_state()
    }

    /// Leaves SQE. May sleep.
    pub(crate) fn restore_send(&mut self, queue: &Queue) -> Result {
        self.qp_mut(queue)?.sqe_to_rts()
    }

    fn qp_mut(&mut self, queue: &Queue) -> Result<&mut QpControl> {
        self.qps.get_mut(queue.shared.index as usize).ok_or(EINVAL)
    }

    /// Takes queues down to RESET from any state, giving them time to return what they hold: all together, since
    /// the caller holds RTNL. The transmit queues are disabled. May sleep for [`Port::patience`] if the hardware is
    /// stuck.
    ///
    /// [`Port::patience`]: super::port::Port::patience
    pub(crate) fn stop_queues(&mut self, iface: &Interface, dev: &Device) {
        let queues = iface.queues();
        // A bit per queue. There are 64 at most; were there more, those would not be waited for.
        let mut draining = 0_u64;
        for queue in queues {
            queue.shared.stop();
            // Fails from RESET, where there is nothing to drain.
            if self.fail_queue(queue).is_ok() {
                draining |= bit(queue);
            }
        }
        let end = time::now_ms().saturating_add(iface.port().patience());
        let waited_for = draining;
        loop {
            for queue in queues {
                if draining & bit(queue) != 0 && Self::drain_queue(queue) {
                    draining &= !bit(queue);
                }
            }
            if draining == 0 || time::now_ms() >= end {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        if waited_for != 0 {
            iface.port().drained(draining == 0);
        }
        for queue in queues {
            let mut napi = queue.napi.disable();
            if draining & bit(queue) != 0 {
                let left = napi.state().0.as_mut().map_or((0, 0), Rings::outstanding);
                pr_warn!(
                    "{}: timing out; queue {}: {} sends {} receives not completed\n",
                    dev.name(),
                    queue.shared.index,
                    left.0,
                    left.1
                );
            }
            drop(napi);
            if let Err(e) = self.reset_queue(queue, dev) {
                pr_warn!(
                    "{}: queue {}: cannot reset: {:?}\n",
                    dev.name(),
                    queue.shared.index,
                    e
                );
            }
        }
    }
}

/// The queue's bit in a set of queues.
fn bit(queue: &Queue) -> u64 {
    1_u64.checked_shl(queue.shared.index.into()).unwrap_or(0)
}

/// Takes the rings away from the data path and the NAPI instances off the device. The queue pairs
/// are in RESET, or were never used. May sleep.
pub(crate) fn destroy_queues(queues: &[Queue], dev: &Device) {
    for queue in queues {
        if let Some(txq) = TxQueue::new(dev, queue.shared.index) {
            let mut lock = txq.lock();
            let sends = queue
                .tx
                .get(&mut lock)
                .and_then(|(side, _)| side.sends.take());
            drop(lock);
            drop(sends);
        }
        let mut napi = queue.napi.disable();
        let rings = napi.state().0.take();
        napi.remove();
        drop(rings);
    }
}

/// How many pieces a packet may come in on a device.
#[inline]
pub(super) fn send_sges(attrs: &DeviceAttrs) -> u32 {
    let most = SkBuff::MAX_SEGMENTS.min(rdma::send::MAX_SEGMENTS) as u32;
    attrs.max_send_sge.clamp(1, most)
}

/// Creates a queue pair with what `wanted` wishes for, less what the device refuses though it says that it grants it
/// (B25). Afterwards `wanted` is what was granted, so that the next queue asks for no more.
fn create_qp(
    pd: &Pd,
    send_cq: &Cq,
    recv_cq: &Cq,
    sizes: QpSizes,
    kick: Arc<Kick>,
    wanted: &mut QpFlags,
) -> Result<QpControl> {
    let mut made = Err(EINVAL);
    for flags in wanted.attempts() {
        let transport = Transport::Datagram(flags);
        made = QpControl::create(pd, send_cq, recv_cq, sizes, transport, kick.clone());
        match &made {
            Ok(_) => {
                if flags != *wanted {
                    pr_warn!(
                        "{}: the device refuses queue pairs with {}; going on without\n",
                        pd.device().name(),
                        wanted.without(flags).names()
                    );
                }
                *wanted = flags;
                break;
            }
            // Says nothing of the wishes.
            Err(e) if *e == ENOMEM => break,
            Err(_) => {}
        }
    }
    made
}

pub(super) fn complain(device: &DeviceHandle, what: &str, e: Error) {
    pr_err!("{}: cannot create a {}: {:?}\n", device.name(), what, e);
}
