// SPDX-License-Identifier: GPL-2.0

//! How a GID is reached and a group joined. Nothing else in the driver asks what kind of port it
//! works on.

pub(crate) mod roce;
pub(crate) mod sa;

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
            Failure,
            JoinState,
            Params, //
        },
    },
    rdma::{
        self,
        AhAttr,
        CmPath,
        GidResolution,
        PathRecord,
        PortKind,
        ResolveHandler,
        Resolved,
        SaClient, //
    },
    wire::{
        gid::Gid,
        pkey::PKey, //
    },
};

/// What a path query found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// The next hop on Ethernet.
    Roce(Resolved),
    /// The subnet administrator's record.
    Ib(PathRecord),
}

/// A path query that is out. Dropping it cancels it; the drop may sleep.
pub(crate) struct PathQuery {
    /// The id that the path's machine knows it by.
    pub(crate) id: u64,
    /// The destination.
    pub(crate) gid: Gid,
    reply: Arc<PathReply>,
    _request: Request,
}

/// The request, held until it is dropped.
enum Request {
    Roce {
        _request: Pin<KBox<GidResolution<PathReply>>>,
    },
    Ib {
        _request: sa::Query,
    },
}

/// Where the answer to a query is put until the worker takes it.
#[pin_data]
pub(crate) struct PathReply {
    #[pin]
    answer: SpinLock<Option<Result<Route>>>,
    iface: Arc<Interface>,
}

impl PathReply {
    fn put(&self, answer: Result<Route>) {
        *self.answer.lock() = Some(answer);
        self.iface.post(worker::ANSWER);
    }
}

impl ResolveHandler for PathReply {
    fn done(&self, result: Result<Resolved>) {
        self.put(result.map(Route::Roce));
    }
}

impl PathQuery {
    /// Takes the answer, once it is there.
    pub(crate) fn take_answer(&self) -> Option<Result<Route>> {
        self.reply.answer.lock().take()
    }
}

/// A membership that was asked for or obtained. Dropping it leaves, or gives up; the drop may sleep.
pub(crate) struct Membership {
    reply: Arc<JoinReply>,
    _held: Held,
}

/// The membership, held until it is dropped.
enum Held {
    /// Membership of the host's IP layer on a RoCE port.
    Roce {
        /// Leaves when dropped.
        _membership: roce::IpMembership,
    },
    /// Nothing had to be obtained: RoCE senders need no membership.
    None,
    /// Membership that the subnet administrator knows of.
    Ib {
        /// Leaves when dropped.
        _membership: sa::Membership,
    },
}

/// What has become of a membership since the worker last looked.
#[derive(Default)]
struct Fate {
    answer: Option<Result<Params>>,
    lost: bool,
}

/// Where a membership's fate is noted until the worker takes it.
#[pin_data]
pub(crate) struct JoinReply {
    #[pin]
    fate: SpinLock<Fate>,
    iface: Arc<Interface>,
}

impl JoinReply {
    fn put(&self, answer: Result<Params>) {
        self.fate.lock().answer = Some(answer);
        self.iface.post(worker::JOINED);
    }

    fn lose(&self) {
        self.fate.lock().lost = true;
        self.iface.post(worker::LOST);
    }
}

impl Membership {
    /// Takes the outcome of the join, once it is there.
    pub(crate) fn take_answer(&self) -> Option<Result<Params>> {
        self.reply.fate.lock().answer.take()
    }

    /// Whether the membership, once obtained, has become void since this was last asked.
    pub(crate) fn take_lost(&self) -> bool {
        core::mem::take(&mut self.reply.fate.lock().lost)
    }
}

/// The ways to resolve and to join, by kind of port.
#[derive(Clone)]
pub(crate) enum Resolver {
    /// RoCE v2: the host's neighbour tables and IP layer.
    Roce,
    /// InfiniBand: the subnet administrator.
    Ib(Arc<SaClient>),
}

impl Resolver {
    /// The resolver for a kind of port, if we work on it; `roce` says whether RoCE ports are wanted.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn for_port(kind: PortKind, roce: bool) -> Result<Option<Self>> {
        Ok(match kind {
            PortKind::Ib => Some(Self::Ib(SaClient::new()?)),
            PortKind::RoceV2Udp if roce => Some(Self::Roce),
            PortKind::RoceV2Udp | PortKind::Other => None,
        })
    }

    /// The partition of the interface that `port` has by itself, full-membership bit set. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub(crate) fn first_pkey(&self, port: &rdma::Port) -> Result<PKey> {
        match self {
            Self::Roce => Ok(PKey::DEFAULT),
            Self::Ib(_) => sa::first_pkey(port),
        }
    }

    /// Where `pkey` stands in the table of `port`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not there; what the device says.
    pub(crate) fn find_pkey(&self, port: &rdma::Port, pkey: PKey) -> Result<u16> {
        match self {
            // There are no partitions: the one key is at the one index.
            Self::Roce if pkey == PKey::DEFAULT => Ok(0),
            Self::Roce => Err(ENOENT),
            Self::Ib(_) if !pkey.is_valid() => Err(ENOENT),
            Self::Ib(_) => port.find_pkey(pkey),
        }
    }

    /// How many queries may be out at a time. On RoCE the peers answer for themselves, and one that is silent says
    /// nothing of the others.
    pub(crate) fn query_cap(&self) -> QueryCap {
        match self {
            Self::Roce => QueryCap::new(QueryCap::DEFAULT_LIMIT),
            Self::Ib(_) => QueryCap::adaptive(QueryCap::SA_LIMIT),
        }
    }

    /// Starts to resolve `gid`; the answer comes as the worker's event `ANSWER`. May sleep.
    ///
    /// # Errors
    ///
    /// When the query cannot be started: then no answer comes. `EAGAIN` when it can be shortly.
    pub(crate) fn query(&self, iface: &Arc<Interface>, id: u64, gid: &Gid) -> Result<PathQuery> {
        let reply = Arc::pin_init(
            pin_init!(PathReply {
                answer <- new_spinlock!(None, "path_reply"),
                iface: iface.clone(),
            }),
            GFP_KERNEL,
        )?;
        let request = match self {
            Self::Roce => Request::Roce {
                _request: {
                    let port = iface.port().rdma();
                    GidResolution::start(port, port.own_gid_index().into(), gid, reply.clone())?
                },
            },
            Self::Ib(client) => Request::Ib {
                _request: sa::query(client, iface, gid, reply.clone())?,
            },
        };
        Ok(PathQuery {
            id,
            gid: *gid,
            reply,
            _request: request,
        })
    }

    /// Whether the parameters of groups change with the port's, so that they must be joined anew.
    pub(crate) fn groups_follow_port(&self) -> bool {
        match self {
            Self::Roce => true,
            Self::Ib(_) => false,
        }
    }

    /// Whether a query's error may be a definite "there is no such path".
    pub(crate) fn refused(&self, error: Error) -> bool {
        match self {
            // Nobody answering today says nothing of tomorrow.
            Self::Roce => false,
            Self::Ib(_) => sa::refused(error),
        }
    }

    /// The address handle's attributes for a unicast answer.
    pub(crate) fn unicast(&self, iface: &Interface, gid: &Gid, route: &Route) -> AhAttr {
        match route {
            Route::Roce(found) => roce::unicast(iface.port().rdma(), gid, found),
            Route::Ib(path) => sa::unicast(iface, path),
        }
    }

    /// The path of a connection to `gid`.
    pub(crate) fn connection(&self, iface: &Interface, gid: &Gid, route: &Route) -> Option<CmPath> {
        match route {
            Route::Roce(found) => roce::connection(iface, gid, found),
            Route::Ib(path) => Some(sa::connection(iface, path)),
        }
    }

    /// The address handle's attributes for a group.
    pub(crate) fn multicast(&self, iface: &Interface, group: &Gid, params: &Params) -> AhAttr {
        let port = iface.port().rdma();
        match self {
            Self::Roce => roce::multicast(port, group, params),
            Self::Ib(_) => sa::multicast(port.number(), group, params),
        }
    }

    /// Asks for membership of `group`. The outcome comes as the worker's event `JOINED`, the loss of the
    /// membership later on as `LOST`. `basis`: the broadcast group's parameters, which all other groups
    /// share. May sleep.
    ///
    /// # Errors
    ///
    /// When the join cannot be started: then no outcome comes.
    pub(crate) fn join(
        &self,
        iface: &Arc<Interface>,
        group: &Gid,
        state: JoinState,
        basis: Option<Params>,
    ) -> Result<Membership> {
        let reply = Arc::pin_init(
            pin_init!(JoinReply {
                fate <- new_spinlock!(Fate::default(), "join_reply"),
                iface: iface.clone(),
            }),
            GFP_KERNEL,
        )?;
        let held = match self {
            Self::Roce => {
                let (held, params) = roce::join(iface.port(), group, state)?;
                reply.fate.lock().answer = Some(Ok(params));
                held
            }
            Self::Ib(client) => Held::Ib {
                _membership: sa::join(client, iface, group, state, basis, reply.clone())?,
            },
        };
        Ok(Membership { reply, _held: held })
    }

    /// What a join's error means.
    pub(crate) fn join_failure(&self, error: Error) -> Failure {
        match self {
            Self::Roce => Failure::Local,
            Self::Ib(_) => sa::join_failure(error),
        }
    }
}
