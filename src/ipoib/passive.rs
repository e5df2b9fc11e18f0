// SPDX-License-Identifier: GPL-2.0

//! The connections that peers send over: receiving ends on one shared receive queue or, where the device has
//! none, each with buffers of its own.
//!
//! An end is taken down in steps, so that no buffer of the shared queue is lost with it: to the error
//! state, until the device says that it takes no more buffers, until the poll has seen everything that
//! completed before, and then it goes (CM-22).

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    conns::Mail,
    lane::{
        Ear,
        Lane,
        LaneHardware, //
    },
    worker::Cx, //
};
use crate::{
    base::{
        params,
        time, //
    },
    control::time::Millis,
    rdma::{
        CmEvent,
        CmId,
        Lender,
        QpControl,
        Request,
        Srq,
        Transport, //
    },
    wire::{
        cm::PrivateData,
        gid::Gid,
        qpn::Qpn, //
    },
};

/// An end over which nothing has come for so long, in seconds, is taken down (CM-27).
const IDLE_SECS: u32 = 512;
/// How long the device may take to let go of buffers.
const DRAIN: Millis = Millis(1000);
/// How often a draining end is looked at.
const POLL: Millis = Millis(4);
/// When buffers that could not be allocated are tried again.
const RETRY: Millis = Millis(100);
/// Polls that must have found nothing: the first may have begun too early.
const ROUNDS: u64 = 2;

/// How far an end is on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    /// The device has yet to let go of buffers.
    Draining {
        until: Millis,
    },
    /// The poll has yet to see what has completed.
    Polling {
        after: u64,
        until: Millis,
    },
}

/// Buffers of one end in the poll's hands. The drop takes them from there; it may sleep.
struct OwnBuffers {
    lane: Arc<Lane>,
    tag: u16,
}

impl Drop for OwnBuffers {
    fn drop(&mut self) {
        self.lane.close_receives(self.tag, true);
    }
}

/// One end. Fields are dropped in this order.
struct End {
    cm: CmId<Mail>,
    qp: QpControl,
    own: Option<OwnBuffers>,
    ear: Arc<Ear>,
    peer: (Gid, Option<Qpn>),
    state: State,
    /// The peer has said that it knows of our acceptance. One that never does keeps the end for as long as its own
    /// request says, which may be days.
    confirmed: bool,
}

impl End {
    /// Begins to take the end down. May sleep.
    fn drain(&mut self, now: Millis) {
        if self.state == State::Live {
            self.state = State::Draining {
                until: now.saturating_add(DRAIN),
            };
            if self.qp.to_err().is_err() || self.own.is_some() {
                // There is nothing to wait for: buffers of its own go with it.
                self.ear.finish();
            }
        }
    }
}

/// All of them.
pub(crate) struct Passive {
    lane: Arc<Lane>,
    /// The shared receive queue, and what the lane knows its buffers by.
    srq: Option<(Srq, u16)>,
    ends: KVec<End>,
    /// Requests that were accepted.
    accepted: u64,
    refused: u64,
    refill: Option<Millis>,
    draining: bool,
}

impl Passive {
    /// None, and no buffers.
    pub(super) fn new(lane: Arc<Lane>) -> Self {
        Self {
            lane,
            srq: None,
            ends: KVec::new(),
            accepted: 0,
            refused: 0,
            refill: None,
            draining: false,
        }
    }

    /// A peer asks for a connection. May sleep.
    pub(super) fn request(
        &mut self,
        hw: &LaneHardware,
        request: Request<Mail>,
        about_us: &PrivateData,
        cx: &Cx<'_>,
    ) {
        let peer = (request.gid, request.data.map(|data| data.qpn));
        // Whoever asks again has lost the former one.
        for end in self.ends.iter_mut() {
            if end.peer == peer && peer.1.is_some() {
                end.drain(cx.now);
                self.draining = true;
            }
        }
        if let Err(e) = self.accept(hw, request, about_us, cx) {
            // The peer has been told by the drop.
            self.refused = self.refused.wrapping_add(1);
            if params::debug() {
                pr_info!(
                    "{}: connection from {:?} refused: {:?}\n",
                    cx.dev.name(),
                    peer.0,
                    e
                );
            }
        }
    }

    fn accept(
        &mut self,
        hw: &LaneHardware,
        request: Request<Mail>,
        about_us: &PrivateData,
        cx: &Cx<'_>,
    ) -> Result {
        if !request.reliable {
            return Err(EINVAL);
        }
        if self.ends.len() >= hw.ends {
            return Err(ENOSPC);
        }
        self.limit_unconfirmed(hw, cx.now);
        self.ends.reserve(1, GFP_KERNEL)?;
        if hw.shared {
            self.open_shared(hw)?;
        }
        let ear = Ear::new(cx.iface)?;
        let srq = self.srq.as_ref().map(|(srq, _)| srq);
        let mut qp = hw.queue_pair(Transport::Receiver(srq), ear.clone())?;
        let cm = request.id;
        let psn = time::random_u32() & 0xff_ffff;
        cm.prepare_receiver(&mut qp, psn)?;
        let mut end = End {
            cm,
            qp,
            own: None,
            ear,
            peer: (request.gid, request.data.map(|data| data.qpn)),
            state: State::Live,
            confirmed: false,
        };
        if !hw.shared {
            let lender = Lender::own(end.qp.qp(), hw.buffers, hw.regions)?;
            let buffers = hw.buffers.into();
            let ear = Some(end.ear.clone());
            let tag = self.lane.open_receives(lender, hw.regions, buffers, ear)?;
            end.own = Some(OwnBuffers {
                lane: self.lane.clone(),
                tag,
            });
        }
        self.lane.touch(end.qp.qp().key());
        end.cm.accept(&end.qp, psn, about_us, hw.shared)?;
        self.ends.push_within_capacity(end).map_err(|_| ENOMEM)?;
        self.accepted = self.accepted.wrapping_add(1);
        Ok(())
    }

    /// Keeps half of all ends for peers that mean it: of those that have not confirmed, the oldest makes room.
    fn limit_unconfirmed(&mut self, hw: &LaneHardware, now: Millis) {
        let open = |end: &&mut End| end.state == State::Live && !end.confirmed;
        if self.ends.iter_mut().filter(open).count() < hw.ends.div_ceil(2) {
            return;
        }
        // Ends are in the order of their requests.
        if let Some(end) = self.ends.iter_mut().find(open) {
            end.drain(now);
            self.draining = true;
        }
    }

    /// Makes and fills the shared receive queue, for the first that needs it.
    fn open_shared(&mut self, hw: &LaneHardware) -> Result {
        if self.srq.is_some() {
            return Ok(());
        }
        let lender = Lender::shared(&hw.pd, hw.buffers, hw.regions)?;
        let srq = lender.srq().ok_or(EINVAL)?.clone();
        let tag = self
            .lane
            .open_receives(lender, hw.regions, hw.buffers.into(), None)?;
        self.srq = Some((srq, tag));
        Ok(())
    }

    /// Something has happened to a connection.
    pub(super) fn event(&mut self, id: u64, event: CmEvent, now: Millis) {
        match event {
            CmEvent::Replied(_) => {}
            CmEvent::Established => {
                if let Some(end) = self.ends.iter_mut().find(|end| end.cm.id() == id) {
                    end.confirmed = true;
                }
            }
            CmEvent::Refused(_) | CmEvent::Closed | CmEvent::Failed => {
                if let Some(end) = self.ends.iter_mut().find(|end| end.cm.id() == id) {
                    end.drain(now);
                    self.draining = true;
                }
            }
        }
    }

    /// Takes down the ends of which the device says that they are broken.
    pub(super) fn take_failed(&mut self, now: Millis) {
        for end in self.ends.iter_mut() {
            // One that was not asked to go and lets go of buffers was brought into the error state by the device: the
            // peer must be told, which otherwise sends into the void.
            let dead = end.state == State::Live && end.ear.finished();
            if dead || end.ear.failed() {
                end.drain(now);
                self.draining = true;
            }
        }
    }

    /// The poll lacks buffers.
    pub(super) fn starving(&mut self, now: Millis) {
        self.refill = Some(now.saturating_add(RETRY));
    }

    /// Goes on with the ends that are being taken down. May sleep.
    pub(super) fn tick(&mut self, now: Millis) {
        if self.refill.is_some_and(|at| at.reached(now)) {
            self.refill = None;
            self.lane.napi.kick();
        }
        if !self.draining {
            return;
        }
        self.draining = false;
        let mut at = 0;
        while let Some(end) = self.ends.get_mut(at) {
            let mut gone = false;
            if let State::Draining { until } = end.state {
                if end.ear.finished() || until.reached(now) {
                    end.state = State::Polling {
                        after: self.lane.rounds().saturating_add(ROUNDS),
                        until: now.saturating_add(DRAIN),
                    };
                }
            }
            if let State::Polling { after, until } = end.state {
                gone = self.lane.rounds() >= after || until.reached(now);
            }
            self.draining |= end.state != State::Live && !gone;
            if gone {
                drop(self.ends.remove(at));
            } else {
                at += 1;
            }
        }
        if self.draining {
            self.lane.napi.kick();
        }
    }

    /// When [`Passive::tick`] next has something to do.
    pub(super) fn deadline(&self) -> Option<Millis> {
        let drain = self
            .draining
            .then(|| Millis(time::now_ms()).saturating_add(POLL));
        Millis::earliest(self.refill, drain)
    }

    /// Takes down idle ends, and the buffers when there is no end left. May sleep.
    pub(super) fn age(&mut self, now: Millis) {
        for end in self.ends.iter_mut() {
            if end.state == State::Live && self.lane.idle_secs(end.qp.qp().key()) > IDLE_SECS {
                end.drain(now);
                self.draining = true;
            }
        }
        if self.ends.is_empty() {
            if let Some((_srq, tag)) = self.srq.take() {
                self.lane.close_receives(tag, true);
            }
        }
    }

    /// Takes everything down, and ends polling. May sleep for [`DRAIN`] if the hardware is stuck.
    pub(super) fn close_all(&mut self) {
        let start = Millis(time::now_ms());
        for end in self.ends.iter_mut() {
            end.drain(start);
        }
        let until = start.saturating_add(DRAIN);
        while self.ends.iter().any(|end| !end.ear.finished()) {
            if until.reached(Millis(time::now_ms())) {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        // Before polling ends, which this would begin anew.
        for end in self.ends.iter_mut() {
            end.own = None;
        }
        self.lane.stop();
        self.ends = KVec::new();
        if let Some((_srq, tag)) = self.srq.take() {
            self.lane.close_receives(tag, false);
        }
    }

    /// How many ends there are, and how many requests were refused and accepted.
    pub(crate) fn counts(&self) -> (usize, u64, u64) {
        (self.ends.len(), self.refused, self.accepted)
    }

    /// Whether there are buffers.
    pub(crate) fn filled(&self) -> bool {
        self.srq.is_some() || self.ends.iter().any(|end| end.own.is_some())
    }
}
