// SPDX-License-Identifier: GPL-2.0

//! Safe verbs: the part of the kernel's RDMA API that IP over InfiniBand needs.
//!
//! Everything hangs on a [`DeviceHandle`]. A [`Registration`] hands one out when a device appears,
//! and when the device goes away it waits until every clone is dropped. Each object below holds a
//! handle, directly or through its parents, so none can outlive the device:
//!
//! ```text
//! Registration -> DeviceHandle <- Pd <- AhPool <- Ah
//!                      ^          ^
//!                      |          Qp <- SendQueue, SendCompletions, RecvQueue, McastAttach
//!                      |          |
//!                      +--------- Cq <- CqPoller
//! ```
//!
//! Memory that the hardware may read or write lives in slots that the queue pair keeps until it is
//! destroyed; a completion or a reset ([`QpReset`]) gives it back earlier. Dropping a queue does
//! not.
//!
//! Objects other than [`Ah`] must be dropped where sleeping is allowed.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

pub(crate) mod ah;
pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
mod dma;
pub(crate) mod event;
pub(crate) mod mcast;
pub(crate) mod pd;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod recv;
pub(crate) mod resolve;
pub(crate) mod sa;
pub(crate) mod send;
pub(crate) mod srq;
pub(crate) mod wc;

pub(crate) use self::{
    ah::{Ah, AhAttr, AhPool, Grh},
    client::{Addressee, Client, Registration},
    cm::{CmEvent, CmHandler, CmId, CmPath, Listener, Request},
    cq::{CompletionHandler, Cq, CqPoller},
    device::{DeviceAttrs, DeviceHandle},
    event::{Event, EventHandler, EventKind, EventRegistration},
    mcast::McastAttach,
    pd::Pd,
    port::{Port, PortAttr, PortKind, PortState, UnderlyingNetdev},
    qp::{Qp, QpControl, QpFlags, QpHandler, QpReset, QpSizes, QpState, Transport},
    recv::RecvQueue,
    resolve::{GidResolution, ResolveHandler, Resolved},
    sa::{GroupRecord, JoinHandler, JoinRequest, PathHandler, PathRecord, PathRequest, SaClient},
    send::{Lso, Offload, SendCompletions, SendError, SendQueue, LSO_HEADERS},
    srq::{Lender, Srq},
    wc::{Wc, WcStatus},
};

/// Name of this module, under which the core lists its objects (`rdma resource show`).
const CALLER: &kernel::str::CStr = <crate::LocalModule as kernel::ModuleMetadata>::NAME;
