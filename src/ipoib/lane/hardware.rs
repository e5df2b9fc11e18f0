// SPDX-License-Identifier: GPL-2.0

//! The verbs objects that all connections of an interface share.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    super::{
        interface::Interface,
        queue::{
            complain,
            send_sges, //
        },
        worker, //
    },
    Ear,
    Lane,
    LanePoll,
    Shared, //
};
use crate::{
    net::{
        bigbuf,
        device::Device,
        napi::Napi,
        pages::Pages, //
    },
    rdma::{
        CompletionHandler,
        Cq,
        Pd,
        QpControl,
        QpSizes,
        Transport, //
    },
    wire::{
        encap,
        mtu, //
    },
};

/// The most connections that peers may have to an interface.
const MAX_ENDS: usize = 4096;
/// The same where each has buffers of its own.
const MAX_OWN_ENDS: usize = 128;

/// The most sends that may be under way on a connection: each may be of 64 KiB, and each costs some
/// hundred octets here and in the device for every peer.
const SEND_SLOTS: u32 = 32;

/// Pages of received messages that are waited for to be used again: those of 16 messages.
const KEPT_PAGES: usize = 256;

/// The verbs objects that all connections of an interface share, and their sizes.
pub(crate) struct LaneHardware {
    pub(crate) pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    /// A completion queue has failed, and others could not be made yet. Outlives an interface that goes down.
    dead: bool,
    sizes: QpSizes,
    /// Sends that may be under way on all connections together.
    credits: u32,
    /// Receives that may be.
    receives: u32,
    /// Whether all receiving ends share a receive queue.
    pub(crate) shared: bool,
    /// Receiving ends that there may be.
    pub(crate) ends: usize,
    /// Buffers that are lent when there are connections; to each, if they share no queue.
    pub(crate) buffers: u16,
    /// Regions of each.
    pub(crate) regions: usize,
}

impl LaneHardware {
    /// Creates the completion queues and the data path's side of an interface's connections. `None` if
    /// the device cannot scatter what it receives. May sleep.
    pub(crate) fn create(
        iface: &Arc<Interface>,
        dev: &Device,
        pd: &Pd,
    ) -> Result<Option<(Self, Arc<Lane>)>> {
        let device = pd.device();
        let attrs = device.attrs();
        let params = iface.params();
        let most = encap::LEN + mtu::CONNECTED_MAX as usize;
        let shared = attrs.max_srq != 0;
        let sges = if shared {
            attrs.max_srq_sge
        } else {
            attrs.max_recv_sge
        };
        let regions = bigbuf::regions(most).min(sges as usize);
        if regions < 2 {
            return Ok(None);
        }
        // Below half of what the in-tree driver lends (CM-3).
        let (buffers, ends) = if shared {
            let buffers = (params.recv_ring / 16 * 7).clamp(16, 1024);
            (buffers.min(attrs.max_srq_wr), MAX_ENDS)
        } else {
            let buffers = (params.recv_ring / 16).clamp(8, 64).min(attrs.max_qp_wr);
            // No more than there is room for in the completion queue.
            let room = attrs.max_cqe.checked_div(buffers * 2).unwrap_or(0);
            (buffers, MAX_OWN_ENDS.min(room as usize).max(1))
        };
        let credits = (params.send_ring * 4).min(attrs.max_cqe / 2).max(1);
        let sizes = QpSizes {
            send_wr: params.send_ring.min(SEND_SLOTS),
            recv_wr: 0,
            send_sge: send_sges(attrs),
            recv_sge: 0,
        };
        let lane = Arc::new(
            Lane::new(dev, credits, sizes.send_wr, sizes.send_sge as usize)?,
            GFP_KERNEL,
        )?;
        let receives = if shared {
            buffers
        } else {
            buffers * ends as u32
        };
        let made = Self::create_cqs(iface, dev, pd, &lane, credits, receives);
        let (send_cq, recv_cq) = match made {
            Ok(cqs) => cqs,
            Err(e) => {
                lane.destroy();
                return Err(e);
            }
        };
        let hw = Self {
            pd: pd.clone(),
            send_cq,
            recv_cq,
            dead: false,
            sizes,
            credits,
            receives,
            shared,
            ends,
            buffers: buffers as u16,
            regions,
        };
        Ok(Some((hw, lane)))
    }

    fn create_cqs(
        iface: &Arc<Interface>,
        dev: &Device,
        pd: &Pd,
        lane: &Lane,
        credits: u32,
        buffers: u32,
    ) -> Result<(Cq, Cq)> {
        let device = pd.device();
        let kick = Arc::new(
            LaneKick {
                napi: lane.napi.clone(),
                shared: lane.shared.clone(),
                iface: iface.clone(),
            },
            GFP_KERNEL,
        )?;
        let vector = iface.first_vector();
        // Twice the credits: those of a connection that is closed are free before all its completions
        // have been taken.
        let (send_cq, send_poller) = Cq::create(device, credits * 2, vector, kick.clone())
            .inspect_err(|e| complain(device, "send completion queue", *e))?;
        let entries = (buffers * 2).min(device.attrs().max_cqe);
        let (recv_cq, recv_poller) = Cq::create(device, entries, vector, kick)
            .inspect_err(|e| complain(device, "receive completion queue", *e))?;
        lane.equip(
            iface,
            dev,
            (send_poller, recv_poller),
            Pages::new(KEPT_PAGES)?,
        );
        Ok((send_cq, recv_cq))
    }

    /// Makes other completion queues in place of those that there are, on which no queue pair is left. The
    /// poll of `lane` is disabled. May sleep.
    ///
    /// # Errors
    ///
    /// What the verbs say, with a log line; then the former ones stay, and [`LaneHardware::dead`] is true.
    pub(crate) fn renew(&mut self, iface: &Arc<Interface>, dev: &Device, lane: &Lane) -> Result {
        self.dead = true;
        (self.send_cq, self.recv_cq) =
            Self::create_cqs(iface, dev, &self.pd, lane, self.credits, self.receives)?;
        self.dead = false;
        Ok(())
    }

    /// Whether completion queues must be made anew before there can be connections.
    pub(crate) fn dead(&self) -> bool {
        self.dead
    }

    /// A queue pair for one end of a connection, in RESET; `ear` hears of it. May sleep.
    pub(crate) fn queue_pair(&self, transport: Transport<'_>, ear: Arc<Ear>) -> Result<QpControl> {
        let sizes = match transport {
            // It sends nothing, but devices want room for something.
            Transport::Receiver(srq) => QpSizes {
                send_wr: 1,
                send_sge: 1,
                recv_wr: if srq.is_some() {
                    0
                } else {
                    self.buffers.into()
                },
                recv_sge: if srq.is_some() {
                    0
                } else {
                    self.regions as u32
                },
            },
            _ => QpSizes {
                recv_wr: 1,
                recv_sge: 1,
                ..self.sizes
            },
        };
        QpControl::create(
            &self.pd,
            &self.send_cq,
            &self.recv_cq,
            sizes,
            transport,
            ear,
        )
    }

    /// Slots of the send ring of a connection; a power of two.
    pub(crate) fn send_slots(&self) -> usize {
        self.sizes.send_wr as usize
    }

    /// The largest MTU of connected mode.
    pub(crate) fn max_mtu(&self) -> u32 {
        mtu::ipoib_mtu(self.max_frame())
    }

    /// The longest message that is taken, encapsulation header included.
    pub(crate) fn max_frame(&self) -> u32 {
        let most = encap::LEN as u32 + mtu::CONNECTED_MAX;
        most.min(bigbuf::capacity(self.regions) as u32)
    }
}

/// The way of the connections' completion queues to their NAPI.
struct LaneKick {
    napi: Arc<Napi<LanePoll>>,
    shared: Arc<Shared>,
    iface: Arc<Interface>,
}

impl CompletionHandler for LaneKick {
    #[inline]
    fn completed(&self) {
        self.napi.schedule();
    }

    fn failed(&self) {
        self.shared.broken.set(1);
        self.iface.post(worker::CONNECTION);
    }
}
