// SPDX-License-Identifier: GPL-2.0

//! What queue pairs there are, and what states they have.

use super::super::srq::Srq;
use crate::sys::bindings as sys;

/// State of a queue pair (`enum ib_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpState {
    /// Holds no requests.
    Reset,
    /// Takes receive requests, receives nothing yet.
    Init,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Stops sending.
    SendQueueDrain,
    /// Sending failed; receives.
    SendQueueError,
    /// Flushes all requests.
    Error,
    /// A value this driver does not know.
    Unknown,
}

impl From<sys::ib_qp_state> for QpState {
    fn from(state: sys::ib_qp_state) -> Self {
        match state {
            sys::ib_qp_state::IB_QPS_RESET => Self::Reset,
            sys::ib_qp_state::IB_QPS_INIT => Self::Init,
            sys::ib_qp_state::IB_QPS_RTR => Self::ReadyToReceive,
            sys::ib_qp_state::IB_QPS_RTS => Self::ReadyToSend,
            sys::ib_qp_state::IB_QPS_SQD => Self::SendQueueDrain,
            sys::ib_qp_state::IB_QPS_SQE => Self::SendQueueError,
            sys::ib_qp_state::IB_QPS_ERR => Self::Error,
            _ => Self::Unknown,
        }
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpSizes {
    /// Outstanding send requests.
    pub(crate) send_wr: u32,
    /// Outstanding receive requests.
    pub(crate) recv_wr: u32,
    /// Gather entries of a send request.
    pub(crate) send_sge: u32,
    /// Scatter entries of a receive request.
    pub(crate) recv_sge: u32,
}

/// Special wishes for a queue pair. Not every device grants them: look at its
/// [`DeviceAttrs`](super::DeviceAttrs) first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QpFlags {
    /// Do not receive one's own multicasts.
    pub(crate) block_multicast_loopback: bool,
    /// Segment large TCP packets.
    pub(crate) lso: bool,
}

impl QpFlags {
    /// The sets of wishes to try, most first and none last, with a device that says that it grants `self`.
    pub(crate) fn attempts(self) -> impl Iterator<Item = Self> {
        [(true, true), (false, true), (true, false), (false, false)]
            .into_iter()
            .filter(move |(block, lso)| {
                (self.block_multicast_loopback || !block) && (self.lso || !lso)
            })
            .map(|(block_multicast_loopback, lso)| Self {
                block_multicast_loopback,
                lso,
            })
    }

    /// The wishes that are not among `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self {
            block_multicast_loopback: self.block_multicast_loopback
                && !other.block_multicast_loopback,
            lso: self.lso && !other.lso,
        }
    }

    /// The wishes by name.
    pub(crate) fn names(self) -> &'static str {
        match (self.block_multicast_loopback, self.lso) {
            (true, true) => "BLOCK_MULTICAST_LOOPBACK and IPOIB_UD_LSO",
            (true, false) => "BLOCK_MULTICAST_LOOPBACK",
            (false, true) => "IPOIB_UD_LSO",
            (false, false) => "no creation flags",
        }
    }
}

/// What a queue pair is for.
pub(crate) enum Transport<'a> {
    /// Datagrams.
    Datagram(QpFlags),
    /// The sending end of a reliable connection; it receives nothing.
    Sender,
    /// The receiving end of a reliable connection; it sends nothing. Without a shared receive queue it has its own.
    Receiver(Option<&'a Srq>),
}
