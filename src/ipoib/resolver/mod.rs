// SPDX-License-Identifier: GPL-2.0

//! How a GID is reached and a group joined. Nothing else in the driver asks what kind of port it
//! works on.

pub(crate) mod roce;

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
};

use super::{
    interface::Interface,
    worker, //
};
use crate::{
    control::{
        admission::QueryCap,
        join::{
            JoinState,
            Params, //
        },
    },
    rdma::{
        AhAttr,
        GidResolution,
        PortKind,
        ResolveHandler,
        Resolved, //
    },
    wire::gid::Gid, //
};

/// A path query that is out. Dropping it cancels it; the drop may sleep.
pub(crate) struct PathQuery {
    /// The id that the path's machine knows it by.
    pub(crate) id: u64,
    /// The destination.
    pub(crate) gid: Gid,
    reply: Arc<Reply>,
    _request: Pin<KBox<GidResolution<Reply>>>,
}

/// Where the answer to a query is put until the worker takes it.
#[pin_data]
pub(crate) struct Reply {
    #[pin]
    answer: SpinLock<Option<Result<Resolved>>>,
    iface: Arc<Interface>,
}

impl ResolveHandler for Reply {
    fn done(&self, result: Result<Resolved>) {
        *self.answer.lock() = Some(result);
        self.iface.post(worker::ANSWER);
    }
}

impl PathQuery {
    /// Takes the answer, once it is there.
    pub(crate) fn take_answer(&self) -> Option<Result<Resolved>> {
        self.reply.answer.lock().take()
    }
}

/// A membership that was obtained. Dropping it leaves; the drop may sleep.
pub(crate) enum Membership {
    /// Membership of the host's IP layer on a RoCE port.
    Roce {
        /// Leaves when dropped.
        _membership: roce::IpMembership,
    },
    /// Nothing had to be obtained: RoCE senders need no membership.
    None,
}

/// The ways to resolve and to join, by kind of port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolver {
    /// RoCE v2: the host's neighbour tables and IP layer.
    Roce,
}

impl Resolver {
    /// The resolver for a kind of port; `roce` says whether RoCE ports are wanted.
    pub(crate) fn for_port(kind: PortKind, roce: bool) -> Option<Self> {
        match kind {
            PortKind::RoceV2Udp if roce => Some(Self::Roce),
            _ => None,
        }
    }

    /// How many queries may be out at a time. On RoCE the peers answer for themselves, and one that is silent says
    /// nothing of the others.
    pub(crate) fn query_cap(self) -> QueryCap {
        match self {
            Self::Roce => QueryCap::new(QueryCap::DEFAULT_LIMIT),
        }
    }

    /// Starts to resolve `gid`; the answer comes as the worker's event `ANSWER`. May sleep.
    ///
    /// # Errors
    ///
    /// When the query cannot be started: then no answer comes.
    pub(crate) fn query(self, iface: &Arc<Interface>, id: u64, gid: &Gid) -> Result<PathQuery> {
        let reply = Arc::pin_init(
            pin_init!(Reply {
                answer <- new_spinlock!(None, "path_reply"),
                iface: iface.clone(),
            }),
            GFP_KERNEL,
        )?;
        let request = match self {
            Self::Roce => GidResolution::start(iface.port().rdma(), 0, gid, reply.clone())?,
        };
        Ok(PathQuery {
            id,
            gid: *gid,
            reply,
            _request: request,
        })
    }

    /// The address handle's attributes for a unicast answer.
    pub(crate) fn unicast(self, iface: &Interface, gid: &Gid, answer: &Resolved) -> AhAttr {
        match self {
            Self::Roce => roce::unicast(iface.port().rdma().number(), gid, answer),
        }
    }

    /// The address handle's attributes for a group.
    pub(crate) fn multicast(self, iface: &Interface, group: &Gid, params: &Params) -> AhAttr {
        match self {
            Self::Roce => roce::multicast(iface.port().rdma().number(), group, params),
        }
    }

    /// Joins `group`. May sleep.
    ///
    /// # Errors
    ///
    /// When the membership cannot be had now.
    pub(crate) fn join(
        self,
        iface: &Interface,
        group: &Gid,
        state: JoinState,
    ) -> Result<(Membership, Params)> {
        match self {
            Self::Roce => roce::join(iface.port(), group, state),
        }
    }
}
