// SPDX-License-Identifier: GPL-2.0

//! Getting queues going again: carries out what their machines (`control::recovery`) decide.

use kernel::prelude::*;

use super::{
    queue::{
        Hardware,
        Queue, //
    },
    worker::{
        self,
        Cx, //
    }, //
};
use crate::{
    base::log::{
        self,
        warn_limited, //
    },
    control::{
        health::Concern,
        recovery::{
            restored,
            Action,
            Event,
            Finding,
            Policy,
            QueuePair,
            QueueRecovery,
            Refill,
            State, //
        },
        time::Millis, //
    },
    net::{
        device::Device,
        txq::TxQueue, //
    },
    rdma::QpState, //
};

/// How often a draining queue is polled.
const DRAIN_POLL: Millis = Millis(4);

/// The recovery machines of all queues. Belongs to the worker.
pub(crate) struct Recovery {
    machines: KVec<QueueRecovery>,
    refill: Refill,
    /// Per queue: what it had sent successfully when its stall was reported.
    told: KVec<Option<u64>>,
    deadline: Option<Millis>,
}

impl Recovery {
    /// One machine for each of `n` queues, which are down.
    pub(crate) fn new(n: usize) -> Result<Self> {
        let mut machines = KVec::with_capacity(n, GFP_KERNEL)?;
        let mut told = KVec::with_capacity(n, GFP_KERNEL)?;
        told.resize(n, None, GFP_KERNEL)?;
        for _ in 0..n {
            machines.push(QueueRecovery::new(Policy::DEFAULT), GFP_KERNEL)?;
        }
        Ok(Self {
            machines,
            refill: Refill::default(),
            told,
            deadline: None,
        })
    }

    /// Starts all queues, or none. May sleep.
    pub(crate) fn start_all(&mut self, cx: &mut Cx<'_>) -> Result {
        for queue in cx.iface.queues() {
            if let Err(e) = cx.hw.start_queue(cx.iface, queue, cx.dev) {
                pr_warn!(
                    "{}: cannot start queue {}: {:?}\n",
                    cx.dev.name(),
                    queue.shared.index,
                    e
                );
                cx.hw.stop_queues(cx.iface, cx.dev);
                return Err(e);
            }
        }
        for machine in self.machines.iter_mut() {
            let _ = machine.step(Event::Up, cx.now, cx.seq);
        }
        // The rings are empty, so no completion would wake a queue that was stopped when they were
        // taken down: full, or being recovered.
        for queue in cx.iface.queues() {
            resume(cx, queue);
        }
        Ok(())
    }

    /// Stops all queues. May sleep for seconds if the hardware is stuck.
    pub(crate) fn stop_all(&mut self, cx: &mut Cx<'_>) {
        for machine in self.machines.iter_mut() {
            let _ = machine.step(Event::Down, cx.now, cx.seq);
        }
        cx.hw.stop_queues(cx.iface, cx.dev);
    }

    /// Whether the queues are started, in order or being recovered.
    pub(crate) fn started(&self) -> bool {
        self.machines.iter().any(|m| m.state() != State::Down)
    }

    /// Whether a queue is being drained, so that somebody must poll it.
    pub(crate) fn busy(&self) -> bool {
        self.machines
            .iter()
            .any(|m| matches!(m.state(), State::Draining(_)))
    }

    /// Looks into what the queues complain about.
    pub(crate) fn look(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.machines.len() {
            let Some(queue) = cx.iface.queue(index) else {
                continue;
            };
            let concerns = queue.shared.take_concerns();
            if concerns.has(Concern::Starving) {
                self.refill.starving(cx.now);
            }
            if concerns.has(Concern::Stalled)
                && self.state(index) == Some(State::Running)
                && stuck(cx, queue)
            {
                queue.shared.stats.timeouts.add(1);
                self.diagnose(cx, index);
                self.step(cx, index, Event::Stalled);
            }
            let fatal = concerns.has(Concern::Fatal);
            if fatal && self.state(index) == Some(State::Running) {
                warn_limited!(
                    "{}: queue {}: the device reports that it is broken; resetting it\n",
                    cx.dev.name(),
                    index
                );
            }
            if fatal || concerns.has(Concern::Trouble) {
                if let Some(event) = find(cx, queue, fatal).event() {
                    self.step(cx, index, event);
                }
            }
            if matches!(self.state(index), Some(State::Draining(_))) && Hardware::drain_queue(queue)
            {
                self.step(cx, index, Event::Drained);
            }
        }
    }

    /// Tells what a stuck queue looks like (QP-21), once: a queue that sends nothing after its reset either is the
    /// same stall still (B19).
    fn diagnose(&mut self, cx: &mut Cx<'_>, index: usize) {
        let (Some(told), Some(queue)) = (self.told.get_mut(index), cx.iface.queue(index)) else {
            return;
        };
        let stats = &queue.shared.stats;
        let failed = stats.tx_failed.get().wrapping_sub(stats.tx_lost.get());
        let sent = stats.tx_packets.get().wrapping_sub(failed);
        if told.replace(sent) == Some(sent) || !log::permitted() {
            return;
        }
        let state = cx.hw.query_queue(queue);
        let idle = TxQueue::new(cx.dev, queue.shared.index).map_or(0, |txq| txq.idle_ms());
        pr_warn!(
            "{}: transmit timeout: latency {} msecs\n",
            cx.dev.name(),
            idle
        );
        pr_warn!(
            "{}: queue stopped: queue {}, free {} of {}, queue pair {:?}; resetting it\n",
            cx.dev.name(),
            index,
            free_slots(cx.dev, queue),
            queue.shared.ring.size(),
            state
        );
    }

    fn state(&self, index: usize) -> Option<State> {
        self.machines.get(index).map(QueueRecovery::state)
    }

    /// Resets every queue, as when the size of the receive buffers changes.
    pub(crate) fn restart_all(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.machines.len() {
            self.step(cx, index, Event::Stalled);
        }
    }

    /// Gives every queue the Q_Key. One that does not take it is reset, and has it then: with the former one it would
    /// hear nothing. May sleep.
    pub(crate) fn set_qkey(&mut self, cx: &mut Cx<'_>, qkey: u32) {
        for index in 0..self.machines.len() {
            let Some(queue) = cx.iface.queue(index) else {
                continue;
            };
            let Err(e) = cx.hw.set_qkey(queue, qkey) else {
                continue;
            };
            // One that is being reset gets it anyway.
            if self.state(index) == Some(State::Running) {
                warn_limited!(
                    "{}: queue {}: Q_Key not set: {:?}; resetting it\n",
                    cx.dev.name(),
                    index,
                    e
                );
                self.step(cx, index, Event::Stalled);
                cx.iface.post(worker::QUEUE);
            }
        }
    }

    /// Feeds the machines whose deadline has come.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_>) {
        self.deadline = None;
        for index in 0..self.machines.len() {
            let due = self
                .machines
                .get(index)
                .and_then(QueueRecovery::deadline)
                .is_some_and(|at| at.reached(cx.now));
            if due {
                self.step(cx, index, Event::Tick);
            }
        }
        if self.refill.due(cx.now) {
            for queue in cx.iface.queues() {
                if queue.shared.take_starving() {
                    queue.napi.kick();
                }
            }
        }
        self.deadline = self.refill.deadline();
        for machine in &self.machines {
            self.deadline = Millis::earliest(self.deadline, machine.deadline());
        }
        if self.busy() {
            let soon = cx.now.saturating_add(DRAIN_POLL);
            self.deadline = Millis::earliest(self.deadline, Some(soon));
        }
    }

    /// When the worker must look again.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        self.deadline
    }

    /// Calls `f` with the number, state and recoveries of each queue, for debugfs.
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, State, u64)) {
        for (index, machine) in self.machines.iter().enumerate() {
            f(index, machine.state(), machine.recoveries());
        }
    }

    fn step(&mut self, cx: &mut Cx<'_>, index: usize, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let (Some(machine), Some(queue)) =
                (self.machines.get_mut(index), cx.iface.queue(index))
            else {
                return;
            };
            for action in machine.step(event, cx.now, cx.seq) {
                match action {
                    Action::Quiesce => quiesce(cx, queue),
                    Action::RestoreSend => {
                        let done = cx.hw.restore_send(queue).is_ok();
                        next = Some(restored(done, broken(cx.dev, queue)));
                    }
                    Action::Drain => {
                        // From a state that cannot go to ERR there is nothing to drain, and the
                        // drain limit leads on to the reset.
                        let _ = cx.hw.fail_queue(queue);
                        if Hardware::drain_queue(queue) {
                            next = Some(Event::Drained);
                        }
                    }
                    Action::Reset { .. } => {
                        let done = cx
                            .hw
                            .reset_queue(queue, cx.dev)
                            .and_then(|()| cx.hw.start_queue(cx.iface, queue, cx.dev));
                        next = Some(match done {
                            Ok(()) => Event::ResetDone,
                            Err(e) => {
                                pr_warn!(
                                    "{}: queue {}: reset failed: {:?}; trying again\n",
                                    cx.dev.name(),
                                    index,
                                    e
                                );
                                Event::ResetFailed
                            }
                        });
                    }
                    Action::Resume => {
                        queue.shared.stats.recoveries.add(1);
                        resume(cx, queue);
                    }
                    // `tick` computes the earliest of all.
                    Action::ArmTimer(_) => {}
                }
            }
        }
    }
}

/// Stops the queue; nothing is posted once this returns.
fn quiesce(cx: &Cx<'_>, queue: &Queue) {
    if let Some(txq) = TxQueue::new(cx.dev, queue.shared.index) {
        let mut lock = txq.lock();
        queue.shared.stop();
        lock.ops().stop();
    }
}

/// Lets the stack transmit on the queue again.
fn resume(cx: &Cx<'_>, queue: &Queue) {
    queue.shared.resume();
    if let Some(txq) = TxQueue::new(cx.dev, queue.shared.index) {
        txq.lock().ops().touch();
        txq.wake();
    }
}

/// Whether the stack may not transmit on a queue of which the watchdog has complained, though all its completions
/// have been taken: a lost or late event costs no reset.
fn stuck(cx: &Cx<'_>, queue: &Queue) -> bool {
    Hardware::poll_sends(queue);
    TxQueue::new(cx.dev, queue.shared.index).is_some_and(|txq| txq.lock().ops().xmit_stopped())
}

/// Looks at a queue that has complained.
fn find(cx: &mut Cx<'_>, queue: &Queue, fatal: bool) -> Finding {
    let queue_pair = match cx.hw.query_queue(queue) {
        Ok(QpState::ReadyToSend) => QueuePair::Ready,
        Ok(QpState::SendQueueError) => QueuePair::SendError,
        Ok(QpState::Error) => QueuePair::Error,
        Ok(_) | Err(_) => QueuePair::Astray,
    };
    Finding {
        queue_pair,
        broken: broken(cx.dev, queue),
        fatal,
    }
}

/// Whether a failed post has broken the queue's send ring.
fn broken(dev: &Device, queue: &Queue) -> bool {
    let broken = with_ring(dev, queue, |side| {
        side.sends.as_ref().is_some_and(|sends| sends.is_broken())
    });
    broken == Some(true)
}

/// Runs `f` on the transmit side of a queue, under its lock.
fn with_ring<R>(
    dev: &Device,
    queue: &Queue,
    f: impl FnOnce(&mut super::queue::TxSide) -> R,
) -> Option<R> {
    let txq = TxQueue::new(dev, queue.shared.index)?;
    let mut lock = txq.lock();
    queue.tx.get(&mut lock).map(|(side, _)| f(side))
}

/// Free slots of the send ring; 0 when there is no ring. Takes the transmit lock.
pub(crate) fn free_slots(dev: &Device, queue: &Queue) -> usize {
    let free = with_ring(dev, queue, |side| {
        side.sends.as_mut().map_or(0, |sends| sends.free_slots())
    });
    free.unwrap_or(0)
}
