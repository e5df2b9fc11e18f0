// SPDX-License-Identifier: GPL-2.0

//! The connection manager: requests, replies and the ends of reliable connections.
//!
//! Each side of a connection is a [`CmId`]; dropping it ends the exchange in the way that its state
//! asks for (rejects, disconnects) and waits for callbacks. Handlers hear of events and note them.
//!
//! C header: [`include/rdma/ib_cm.h`](srctree/include/rdma/ib_cm.h)

use core::ptr::{null, NonNull};
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_void},
    prelude::*,
    sync::Arc,
};

use super::{
    device::DeviceHandle,
    port::Port,
    qp::{QpControl, QpState},
    resolve::GidEntry,
};
use crate::{
    sys::bindings as sys,
    wire::{cm::PrivateData, gid::Gid, pkey::PKey, qpn::Qpn},
};

/// Encoded time (4.096 us * 2^18, about a second) within which the other side is to answer.
const RESPONSE_TIMEOUT: u8 = 18;
/// How often a request or reply is repeated.
const CM_RETRIES: u8 = 7;
/// Encoded time after which a message that is not acknowledged is sent again, at most: a quarter of a
/// second. Path records may say seconds, for which no transmit queue should wait.
const ACK_TIMEOUT: u8 = 16;
/// How often a message that is not acknowledged is sent again; what an exchange can carry is 7.
const RETRIES: u8 = 3;
/// How often a message is sent again for which the other side has no buffer (7 would be: for ever).
const RNR_RETRIES: u8 = 6;
/// How long that side asks to be left alone meanwhile: code for 1.28 ms.
const RNR_TIMER: u8 = 14;
/// What the in-tree driver asks for, though nobody reads remote memory (CM-12).
const RESPONDER_RESOURCES: u8 = 4;
/// Encoded life time of a packet where no path record tells it: about half a second.
const LIFE_TIME: u8 = 17;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmEvent {
    /// The other side has accepted, and says this of itself (nothing, if it says nothing that makes
    /// sense).
    Replied(Option<PrivateData>),
    /// The other side knows that we have accepted.
    Established,
    /// The other side refuses (`enum ib_cm_rej_reason`).
    Refused(u32),
    /// The other side has ended the connection, or it is over.
    Closed,
    /// The other side does not answer.
    Failed,
}

/// Whom connections and listeners tell.
pub(crate) trait CmHandler: Send + Sync + Sized + 'static {
    /// Something has happened to connection `id`. Process context; called for one connection at a
    /// time. Must not drop the connection, whose drop waits for this.
    fn event(&self, id: u64, event: CmEvent);

    /// Somebody asks for a connection. As above.
    ///
    /// # Errors
    ///
    /// With the request if it cannot be taken now: the peer is not told, and asks again.
    fn request(&self, request: Request<Self>) -> Result<(), Request<Self>>;
}

/// The context of a C object.
struct Context<H> {
    id: u64,
    handler: Arc<H>,
    device: DeviceHandle,
}

/// # Invariants
///
/// `raw` is an id of the connection manager that this value owns; its context is `context`, which
/// came from a box and is given back when the id is gone.
struct Owned<H: CmHandler> {
    raw: NonNull<sys::ib_cm_id>,
    context: NonNull<Context<H>>,
}

// SAFETY: The connection manager locks its objects; the context is `Send + Sync`.
unsafe impl<H: CmHandler> Send for Owned<H> {}
// SAFETY: As above.
unsafe impl<H: CmHandler> Sync for Owned<H> {}

impl<H: CmHandler> Owned<H> {
    fn new(device: &DeviceHandle, id: u64, handler: Arc<H>) -> Result<Self> {
        let context = KBox::new(
            Context {
                id,
                handler,
                device: device.clone(),
            },
            GFP_KERNEL,
        )?;
        let context = KBox::into_raw(context);
        // SAFETY: The device is valid, and the context keeps it; it stays until the id is destroyed.
        let made = from_err_ptr(unsafe {
            sys::ib_create_cm_id(device.as_ptr(), Some(handle::<H>), context.cast())
        });
        match (made.map(NonNull::new), NonNull::new(context)) {
            (Ok(Some(raw)), Some(context)) => Ok(Self { raw, context }),
            (made, _) => {
                // SAFETY: The box from above, which C does not have.
                drop(unsafe { KBox::from_raw(context) });
                Err(made.err().unwrap_or(ENOMEM))
            }
        }
    }
}

impl<H: CmHandler> Drop for Owned<H> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the id is ours. This waits for callbacks, so that nobody
        // uses the context afterwards.
        unsafe {
            sys::ib_destroy_cm_id(self.raw.as_ptr());
            drop(KBox::from_raw(self.context.as_ptr()));
        }
    }
}

/// Somebody who hears of requests for a service. Dropping it ends that; it sleeps.
pub(crate) struct Listener<H: CmHandler>(#[allow(dead_code)] Owned<H>);

impl<H: CmHandler> Listener<H> {
    /// Listens for requests for `service`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if somebody else has that service of the device; `ENOMEM`.
    pub(crate) fn new(device: &DeviceHandle, service: u64, handler: Arc<H>) -> Result<Self> {
        let owned = Owned::new(device, 0, handler)?;
        // SAFETY: A new id.
        to_result(unsafe { sys::ib_cm_listen(owned.raw.as_ptr(), service.to_be()) })?;
        Ok(Self(owned))
    }
}

/// A peer's wish for a connection.
pub(crate) struct Request<H: CmHandler> {
    /// Our side of it. Dropping it refuses.
    pub(crate) id: CmId<H>,
    /// The peer's port.
    pub(crate) gid: Gid,
    /// What the peer says of itself, if that makes sense.
    pub(crate) data: Option<PrivateData>,
    /// Whether it wants a reliable connection.
    pub(crate) reliable: bool,
}

/// The way to the peer, below the network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// In a subnet: local identifiers of both ends, in host order.
    Ib {
        /// Of the peer.
        dlid: u32,
        /// Of the port.
        slid: u32,
    },
    /// On Ethernet.
    Roce {
        /// MAC address of the next hop.
        dmac: [u8; 6],
    },
}

/// The way that a connection takes; in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CmPath {
    /// The peer.
    pub(crate) dgid: Gid,
    /// The port.
    pub(crate) sgid: Gid,
    /// The partition.
    pub(crate) pkey: PKey,
    /// Local part.
    pub(crate) hop: Hop,
    /// Service level.
    pub(crate) sl: u8,
    /// MTU code (`enum ib_mtu`).
    pub(crate) mtu: u8,
    /// Rate code (`enum ib_rate`).
    pub(crate) rate: u8,
    /// Hop limit; 0 where no global route is needed.
    pub(crate) hop_limit: u8,
    /// Flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// Traffic class.
    pub(crate) traffic_class: u8,
    /// Encoded life time of a packet; `None` where no record tells it.
    pub(crate) life_time: Option<u8>,
}

impl CmPath {
    fn to_raw(self, port: &Port) -> sys::sa_path_rec {
        let mut raw = sys::sa_path_rec {
            dgid: sys::ib_gid { raw: self.dgid.0 },
            sgid: sys::ib_gid { raw: self.sgid.0 },
            flow_label: self.flow_label.to_be(),
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: self.pkey.0.to_be(),
            sl: self.sl,
            mtu: self.mtu,
            rate: self.rate,
            packet_life_time: self.life_time.unwrap_or(LIFE_TIME),
            ..Default::default()
        };
        let device = port.device().as_ptr();
        match self.hop {
            Hop::Ib { dlid, slid } => {
                // SAFETY: The device is valid and has the port.
                let kind = unsafe { sys::ipoib_h_rdma_ah_find_type(device, port.number()) };
                if kind == sys::rdma_ah_attr_type::RDMA_AH_ATTR_TYPE_OPA {
                    raw.rec_type = sys::sa_path_rec_type::SA_PATH_REC_TYPE_OPA;
                    raw.__bindgen_anon_1.opa.dlid = dlid.to_be();
                    raw.__bindgen_anon_1.opa.slid = slid.to_be();
                } else {
                    raw.rec_type = sys::sa_path_rec_type::SA_PATH_REC_TYPE_IB;
                    raw.__bindgen_anon_1.ib.dlid = (dlid as u16).to_be();
                    raw.__bindgen_anon_1.ib.slid = (slid as u16).to_be();
                }
            }
            Hop::Roce { dmac } => {
                raw.rec_type = sys::sa_path_rec_type::SA_PATH_REC_TYPE_ROCE_V2;
                raw.__bindgen_anon_1.roce.route_resolved = true;
                raw.__bindgen_anon_1.roce.dmac = dmac;
            }
        }
        raw
    }
}

/// Our side of a connection, made or to be made.
pub(crate) struct CmId<H: CmHandler>(Owned<H>);

impl<H: CmHandler> CmId<H> {
    /// A side from which nothing was sent yet; `id` is what the handler hears it by. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &DeviceHandle, id: u64, handler: Arc<H>) -> Result<Self> {
        Ok(Self(Owned::new(device, id, handler)?))
    }

    /// What the handler hears it by.
    pub(crate) fn id(&self) -> u64 {
        // SAFETY: By the type invariants the context is valid; it is only read.
        unsafe { self.0.context.as_ref() }.id
    }

    /// Asks the owner of `service` for a connection to `qp` (CM-12). Sleeps.
    ///
    /// # Errors
    ///
    /// Then there will be no event: `EINVAL` if the port is not the one of the path, `ENOMEM`, what
    /// the device says.
    pub(crate) fn ask(
        &self,
        port: &Port,
        path: &CmPath,
        service: u64,
        qp: &QpControl,
        data: &PrivateData,
    ) -> Result {
        let mut rec = path.to_raw(port);
        let private = data.build();
        let entry = match path.hop {
            Hop::Roce { .. } => Some(GidEntry::get(port, port.own_gid_index().into())?),
            Hop::Ib { .. } => None,
        };
        let mut param = sys::ib_cm_req_param {
            primary_path: &mut rec,
            ppath_sgid_attr: entry.as_ref().map_or(null(), |entry| entry.as_ptr()),
            service_id: service.to_be(),
            qp_num: qp.qp().num().get(),
            qp_type: sys::ib_qp_type::IB_QPT_RC,
            starting_psn: 0,
            private_data: private.as_ptr().cast(),
            private_data_len: PrivateData::LEN as u8,
            responder_resources: RESPONDER_RESOURCES,
            remote_cm_response_timeout: RESPONSE_TIMEOUT,
            local_cm_response_timeout: RESPONSE_TIMEOUT,
            retry_count: RETRIES,
            rnr_retry_count: RNR_RETRIES,
            max_cm_retries: CM_RETRIES,
            ..Default::default()
        };
        // SAFETY: The id is ours; what the parameters point to is copied.
        to_result(unsafe { sys::ib_send_cm_req(self.raw(), &mut param) })
    }

    /// Accepts a request for `qp`, which receives through a shared queue or (`shared` is false) its own, from
    /// packet number `psn` on (CM-6). Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the exchange is over, what the device says.
    pub(crate) fn accept(
        &self,
        qp: &QpControl,
        psn: u32,
        data: &PrivateData,
        shared: bool,
    ) -> Result {
        let private = data.build();
        let mut param = sys::ib_cm_rep_param {
            qp_num: qp.qp().num().get(),
            starting_psn: psn,
            private_data: private.as_ptr().cast(),
            private_data_len: PrivateData::LEN as u8,
            // What the peer will do when we have no buffer, whatever it said.
            rnr_retry_count: RNR_RETRIES,
            srq: shared.into(),
            ..Default::default()
        };
        // SAFETY: The id is ours; what the parameters point to is copied.
        to_result(unsafe { sys::ib_send_cm_rep(self.raw(), &mut param) })
    }

    /// Tells the other side that its reply has come. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the exchange is over, what the device says.
    pub(crate) fn confirm(&self) -> Result {
        // SAFETY: The id is ours.
        to_result(unsafe { sys::ib_send_cm_rtu(self.raw(), null(), 0) })
    }

    /// Takes `qp`, the receiving end, from RESET to where it receives, as the request says. `psn` is
    /// what [`CmId::accept`] will be given. Sleeps.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub(crate) fn prepare_receiver(&self, qp: &mut QpControl, psn: u32) -> Result {
        self.modify(qp, QpState::Init, |attr| attr.qp_access_flags = 0)?;
        self.modify(qp, QpState::ReadyToReceive, |attr| {
            attr.rq_psn = psn;
            attr.min_rnr_timer = RNR_TIMER;
        })?;
        // It receives as it is; devices that want it ready to send before it is flushed get that.
        let _ = self.modify(qp, QpState::ReadyToSend, |_| ());
        Ok(())
    }

    /// Takes `qp`, the sending end, from INIT to ready-to-send, as the reply says. Sleeps.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub(crate) fn prepare_sender(&self, qp: &mut QpControl) -> Result {
        self.modify(qp, QpState::ReadyToReceive, |_| ())?;
        self.modify(qp, QpState::ReadyToSend, |attr| {
            attr.timeout = attr.timeout.min(ACK_TIMEOUT);
        })
    }

    fn modify(
        &self,
        qp: &mut QpControl,
        state: QpState,
        tune: impl FnOnce(&mut sys::ib_qp_attr),
    ) -> Result {
        let mut attr = sys::ib_qp_attr {
            qp_state: match state {
                QpState::Init => sys::ib_qp_state::IB_QPS_INIT,
                QpState::ReadyToReceive => sys::ib_qp_state::IB_QPS_RTR,
                QpState::ReadyToSend => sys::ib_qp_state::IB_QPS_RTS,
                _ => return Err(EINVAL),
            },
            ..Default::default()
        };
        let mut mask = 0;
        // SAFETY: The id is ours, and both places are writable.
        to_result(unsafe { sys::ib_cm_init_qp_attr(self.raw(), &mut attr, &mut mask) })?;
        tune(&mut attr);
        qp.modify(&mut attr, sys::ib_qp_attr_mask(mask as u32))
    }

    fn raw(&self) -> *mut sys::ib_cm_id {
        self.0.raw.as_ptr()
    }
}

/// Ids of connections that peers have asked for; others use numbers below.
fn next_id() -> u64 {
    use kernel::sync::atomic::{Atomic, Relaxed};

    static NEXT: Atomic<u64> = Atomic::new(1 << 63);
    NEXT.fetch_add(1, Relaxed)
}

/// The callback of all ids.
///
/// # Safety
///
/// Called by the connection manager, in process context and for one id at a time, with an id whose
/// context is a [`Context<H>`] that stays until the id is destroyed, which waits for this; for a
/// request with a new id that has the listener's context.
unsafe extern "C" fn handle<H: CmHandler>(
    raw: *mut sys::ib_cm_id,
    event: *const sys::ib_cm_event,
) -> c_int {
    // SAFETY: By the safety requirements.
    let (context, event) = unsafe { (&*(*raw).context.cast::<Context<H>>(), &*event) };
    use sys::ib_cm_event_type as Type;
    let what = match event.event {
        Type::IB_CM_REQ_RECEIVED => {
            // SAFETY: By the safety requirements, and as the kind of event says.
            return unsafe { requested(raw, context, event) };
        }
        // SAFETY: There are as many octets of private data as the message has.
        Type::IB_CM_REP_RECEIVED => CmEvent::Replied(unsafe { private_data(event) }),
        Type::IB_CM_RTU_RECEIVED | Type::IB_CM_USER_ESTABLISHED => CmEvent::Established,
        // SAFETY: The kind of event says which member of the union is set.
        Type::IB_CM_REJ_RECEIVED => CmEvent::Refused(unsafe { event.param.rej_rcvd.reason.0 }),
        Type::IB_CM_REQ_ERROR | Type::IB_CM_REP_ERROR => CmEvent::Failed,
        Type::IB_CM_DREQ_RECEIVED
        | Type::IB_CM_DREQ_ERROR
        | Type::IB_CM_DREP_RECEIVED
        | Type::IB_CM_TIMEWAIT_EXIT => CmEvent::Closed,
        _ => return 0,
    };
    context.handler.event(context.id, what);
    0
}

/// Private data of a request or reply: 8 octets of ours.
///
/// # Safety
///
/// The event must be one that brings as many octets at least.
unsafe fn private_data(event: &sys::ib_cm_event) -> Option<PrivateData> {
    let data = NonNull::new(event.private_data)?;
    // SAFETY: The safety requirement.
    let octets = unsafe { data.cast::<[u8; PrivateData::LEN]>().as_ref() };
    PrivateData::parse(octets)
}

/// Hands a request on.
///
/// # Safety
///
/// As for [`handle`]; the event is a request.
unsafe fn requested<H: CmHandler>(
    raw: *mut sys::ib_cm_id,
    listener: &Context<H>,
    event: &sys::ib_cm_event,
) -> c_int {
    // With this answer the manager drops the request without a word, and the peer repeats it (CM-9).
    let later = ENOMEM.to_errno();
    let context = Context {
        id: next_id(),
        handler: listener.handler.clone(),
        device: listener.device.clone(),
    };
    let Ok(context) = KBox::new(context, GFP_KERNEL) else {
        return later;
    };
    // SAFETY: The kind of event says which member is set; it has a primary path.
    let (gid, reliable, data) = unsafe {
        let param = &event.param.req_rcvd;
        (
            Gid((*param.primary_path).dgid.raw),
            param.qp_type == sys::ib_qp_type::IB_QPT_RC,
            private_data(event),
        )
    };
    let context = KBox::into_raw(context);
    let (Some(raw_id), Some(context)) = (NonNull::new(raw), NonNull::new(context)) else {
        return later;
    };
    // SAFETY: The manager looks at the context for the next event, not before this has returned.
    unsafe { (*raw).context = context.as_ptr().cast::<c_void>() };
    // INVARIANT: With the answer 0 the id is ours, and it has this context.
    let request = Request {
        id: CmId(Owned {
            raw: raw_id,
            context,
        }),
        gid,
        data,
        reliable,
    };
    match listener.handler.request(request) {
        Ok(()) => 0,
        Err(request) => {
            // The manager destroys the id, so only the context goes.
            core::mem::forget(request);
            // SAFETY: The box from above; there will be no further event.
            drop(unsafe { KBox::from_raw(context.as_ptr()) });
            later
        }
    }
}
