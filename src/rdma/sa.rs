// SPDX-License-Identifier: GPL-2.0

//! The subnet administrator of an InfiniBand port: path records and group memberships.
//!
//! Requests are asynchronous. Each is an object; dropping it gives the request up and waits for a
//! running callback, after which the handler hears nothing any more.
//!
//! C header: [`include/rdma/ib_sa.h`](srctree/include/rdma/ib_sa.h)

use core::ptr::{null_mut, NonNull};
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_uint, c_ulong, c_void},
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Arc, Completion,
    },
    types::Opaque,
};

use super::port::Port;
use crate::{
    sys::bindings as sys,
    wire::{gid::Gid, pkey::PKey},
};

/// How long a path query may take, in milliseconds; the core splits it into ten tries (SA-2).
const PATH_TIMEOUT_MS: c_ulong = 1000;

/// A component of a record, by its number in the record's table of components, as a bit of the mask
/// on the wire.
const fn component(number: u32) -> u64 {
    (1u64 << number).to_be()
}

/// Of a PathRecord: DGID, SGID, TClass, NumbPath, P_Key (SA-1).
const PATH_MASK: u64 = component(2) | component(3) | component(10) | component(12) | component(13);
/// Of an MCMemberRecord: MGID, PortGID, P_Key, JoinState (MC-8).
const JOIN_MASK: u64 = component(0) | component(1) | component(7) | component(16);
/// As well: Q_Key, MTU with selector, TClass, rate with selector, SL, flow label, hop limit.
const CREATE_MASK: u64 = component(2)
    | component(4)
    | component(5)
    | component(6)
    | component(8)
    | component(9)
    | component(12)
    | component(13)
    | component(14);

/// Someone who asks subnet administrators.
///
/// # Invariants
///
/// `raw` is registered from the creation until the drop.
#[pin_data(PinnedDrop)]
pub(crate) struct SaClient {
    #[pin]
    raw: Opaque<sys::ib_sa_client>,
}

// SAFETY: The C object is an atomic counter and a completion.
unsafe impl Send for SaClient {}
// SAFETY: As above.
unsafe impl Sync for SaClient {}

impl SaClient {
    /// Registers a client. The last reference must be dropped where sleeping is allowed.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                raw <- Opaque::ffi_init(|raw: *mut sys::ib_sa_client| {
                    // SAFETY: `raw` is valid for writes and pinned. The structure is plain data
                    // that the call sets up.
                    unsafe {
                        raw.write(Default::default());
                        sys::ib_sa_register_client(raw);
                    }
                }),
            }),
            GFP_KERNEL,
        )
    }
}

#[pinned_drop]
impl PinnedDrop for SaClient {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants it is registered. This waits until the core has let go of
        // it, in particular until no callback of ours is on its way out.
        unsafe { sys::ib_sa_unregister_client(self.raw.get()) };
    }
}

/// What a path is asked for; the interface's side of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRequest {
    /// The destination.
    pub(crate) dgid: Gid,
    /// The source: a GID of the port.
    pub(crate) sgid: Gid,
    /// The partition.
    pub(crate) pkey: PKey,
    /// Traffic class.
    pub(crate) traffic_class: u8,
}

/// A path record, as far as address handles need it; in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRecord {
    /// The destination that the record names, which may differ from the one asked for (SA-5).
    pub(crate) dgid: Gid,
    /// Local identifier of the destination, or of the router towards it.
    pub(crate) dlid: u32,
    /// Local identifier to send from.
    pub(crate) slid: u32,
    /// Service level.
    pub(crate) sl: u8,
    /// Rate code (`enum ib_rate`).
    pub(crate) rate: u8,
    /// MTU code (`enum ib_mtu`).
    pub(crate) mtu: u8,
    /// Encoded life time of a packet: 4.096 us times a power of two.
    pub(crate) life_time: u8,
    /// Hop limit; 0 where datagrams need no global route.
    pub(crate) hop_limit: u8,
    /// Flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// Traffic class.
    pub(crate) traffic_class: u8,
}

/// Whom a path query tells.
pub(crate) trait PathHandler: Send + Sync + 'static {
    /// The query has ended. Called exactly once per started query, in process context, possibly
    /// before [`PathQuery::start`] has returned. Must not drop the query, whose drop waits for this.
    ///
    /// Errors: `EINVAL` if the subnet administrator refused, `ETIMEDOUT` if nobody answered,
    /// `EINTR` if the query was given up, `EIO`.
    fn answered(&self, result: Result<PathRecord>);
}

/// A path query that is out, or has ended.
///
/// Dropping it cancels it and waits for its callback; it sleeps.
///
/// # Invariants
///
/// Once `started`, the core calls `path_answered` with the address of this value exactly once; that
/// completes `ended`.
#[pin_data(PinnedDrop)]
pub(crate) struct PathQuery<H: PathHandler> {
    /// What is asked for; the core may look at it until the query ends.
    #[pin]
    rec: Opaque<sys::sa_path_rec>,
    /// The core's name for the query, for cancelling it.
    query: Opaque<*mut sys::ib_sa_query>,
    id: Atomic<c_int>,
    started: Atomic<bool>,
    answered: Atomic<bool>,
    #[pin]
    ended: Completion,
    handler: Arc<H>,
    client: Arc<SaClient>,
    /// Keeps the device.
    port: Port,
}

// SAFETY: `H` is `Send + Sync`; the C parts are only touched by the core and by the drop after it.
unsafe impl<H: PathHandler> Send for PathQuery<H> {}
// SAFETY: A shared reference allows nothing.
unsafe impl<H: PathHandler> Sync for PathQuery<H> {}

impl<H: PathHandler> PathQuery<H> {
    /// Asks the subnet administrator of `port`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it is not known yet where the subnet administrator is, `ENODEV`, `ENOMEM`, and
    /// what the device says. Then the handler will not be called.
    pub(crate) fn start(
        client: &Arc<SaClient>,
        port: &Port,
        request: &PathRequest,
        handler: Arc<H>,
    ) -> Result<Pin<KBox<Self>>> {
        let device = port.device().as_ptr();
        // SAFETY: The device is valid and has the port.
        let kind = unsafe { sys::ipoib_h_rdma_ah_find_type(device, port.number()) };
        let rec = sys::sa_path_rec {
            dgid: sys::ib_gid {
                raw: request.dgid.0,
            },
            sgid: sys::ib_gid {
                raw: request.sgid.0,
            },
            pkey: request.pkey.0.to_be(),
            numb_path: 1,
            traffic_class: request.traffic_class,
            rec_type: if kind == sys::rdma_ah_attr_type::RDMA_AH_ATTR_TYPE_OPA {
                sys::sa_path_rec_type::SA_PATH_REC_TYPE_OPA
            } else {
                sys::sa_path_rec_type::SA_PATH_REC_TYPE_IB
            },
            ..Default::default()
        };
        let this = KBox::pin_init(
            pin_init!(Self {
                rec: Opaque::new(rec),
                query: Opaque::new(null_mut()),
                id: Atomic::new(0),
                started: Atomic::new(false),
                answered: Atomic::new(false),
                ended <- Completion::new(),
                handler,
                client: client.clone(),
                port: port.clone(),
            }),
            GFP_KERNEL,
        )?;
        let context: *const Self = &*this;
        // SAFETY: Client and device are valid and `this` keeps them. The record and the place for
        // the query stay where they are until the callback has run, for which the drop waits. The
        // callback fits the context.
        let id = unsafe {
            sys::ib_sa_path_rec_get(
                client.raw.get(),
                device,
                port.number(),
                this.rec.get(),
                PATH_MASK,
                PATH_TIMEOUT_MS,
                kernel::bindings::GFP_KERNEL,
                Some(path_answered::<H>),
                context.cast_mut().cast(),
                this.query.get(),
            )
        };
        if id < 0 {
            to_result(id)?;
        }
        // INVARIANT: The core took the query on.
        this.id.store(id, Relaxed);
        this.started.store(true, Relaxed);
        Ok(this)
    }
}

#[pinned_drop]
impl<H: PathHandler> PinnedDrop for PathQuery<H> {
    fn drop(self: Pin<&mut Self>) {
        if !self.started.load(Relaxed) {
            return;
        }
        // Not after the answer: the core looks the query up by its number and address, and both may
        // be another one's by then.
        if !self.answered.load(Acquire) {
            // SAFETY: The core has filled in the pointer, and only compares it.
            unsafe { sys::ib_sa_cancel_query(self.id.load(Relaxed), *self.query.get()) };
        }
        // A cancelled query ends like any other (TRAP-16).
        self.ended.wait_for_completion();
    }
}

/// The callback of `ib_sa_path_rec_get`.
///
/// # Safety
///
/// Called by the core once per query, with a [`PathQuery<H>`] that stays until `ended` is
/// completed. `records` is null or points to `count` records.
unsafe extern "C" fn path_answered<H: PathHandler>(
    status: c_int,
    records: *mut sys::sa_path_rec,
    count: c_uint,
    context: *mut c_void,
) {
    // SAFETY: By the safety requirements.
    let this = unsafe { &*context.cast::<PathQuery<H>>() };
    this.answered.store(true, Release);
    let result = to_result(status).and_then(|()| {
        if records.is_null() || count == 0 {
            return Err(EIO);
        }
        // SAFETY: By the safety requirements there is a first record.
        Ok(path_record(unsafe { &*records }))
    });
    this.handler.answered(result);
    // The value may go with this.
    this.ended.complete_all();
}

/// What C says in a path record.
fn path_record(rec: &sys::sa_path_rec) -> PathRecord {
    let (dlid, slid) = if rec.rec_type == sys::sa_path_rec_type::SA_PATH_REC_TYPE_OPA {
        // SAFETY: The type says which member of the union is set; both are plain numbers.
        let opa = unsafe { rec.__bindgen_anon_1.opa };
        (u32::from_be(opa.dlid), u32::from_be(opa.slid))
    } else {
        // SAFETY: As above.
        let ib = unsafe { rec.__bindgen_anon_1.ib };
        (u16::from_be(ib.dlid).into(), u16::from_be(ib.slid).into())
    };
    PathRecord {
        // SAFETY: All 16 bytes of the union are plain bytes.
        dgid: Gid(unsafe { rec.dgid.raw }),
        dlid,
        slid,
        sl: rec.sl,
        rate: rec.rate,
        mtu: rec.mtu,
        life_time: rec.packet_life_time,
        hop_limit: rec.hop_limit,
        flow_label: u32::from_be(rec.flow_label),
        traffic_class: rec.traffic_class,
    }
}

/// The parameters of a multicast group (MCMemberRecord); in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// Multicast local identifier.
    pub(crate) mlid: u16,
    /// Q_Key.
    pub(crate) qkey: u32,
    /// MTU code (`enum ib_mtu`).
    pub(crate) mtu: u8,
    /// Rate code (`enum ib_rate`).
    pub(crate) rate: u8,
    /// Service level.
    pub(crate) sl: u8,
    /// Traffic class.
    pub(crate) traffic_class: u8,
    /// Hop limit.
    pub(crate) hop_limit: u8,
    /// Flow label, 20 bits.
    pub(crate) flow_label: u32,
}

/// What a membership is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    /// The group.
    pub(crate) mgid: Gid,
    /// Who joins: a GID of the port.
    pub(crate) port_gid: Gid,
    /// The partition.
    pub(crate) pkey: PKey,
    /// The bits of the JoinState field.
    pub(crate) join_state: u8,
    /// What the group must be like, and is created with if it does not exist; its `mlid` is not
    /// looked at. Without it only an existing group can be joined.
    pub(crate) create: Option<GroupRecord>,
}

/// Whom a membership tells. Called in process context, in order; must not drop the membership,
/// whose drop waits for this.
pub(crate) trait JoinHandler: Send + Sync + 'static {
    /// The join has ended, possibly before [`SaMembership::join`] has returned.
    ///
    /// Errors: `EINVAL` if the subnet administrator refused, or if another user of this host is a
    /// member on other terms; `ETIMEDOUT` if nobody answered; `EAGAIN` if it is not known yet where
    /// the subnet administrator is; others.
    fn joined(&self, result: Result<GroupRecord>);

    /// A membership that was obtained is void, as the port went through a change (MC-14).
    fn lost(&self);
}

/// A membership of the port, obtained or asked for.
///
/// Dropping it leaves, or gives the join up, and waits for a running callback; it sleeps, but not
/// until the subnet administrator has answered.
///
/// # Invariants
///
/// `raw` is null or a membership of the core's that is ours to free; its callback gets the address
/// of this value.
#[pin_data(PinnedDrop)]
pub(crate) struct SaMembership<H: JoinHandler> {
    raw: Atomic<*mut sys::ib_sa_multicast>,
    answered: Atomic<bool>,
    handler: Arc<H>,
    client: Arc<SaClient>,
    /// Keeps the device.
    port: Port,
}

impl<H: JoinHandler> SaMembership<H> {
    /// Asks for a membership of `port`. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV`, `ENOMEM`. Then the handler will not be called.
    pub(crate) fn join(
        client: &Arc<SaClient>,
        port: &Port,
        request: &JoinRequest,
        handler: Arc<H>,
    ) -> Result<Pin<KBox<Self>>> {
        let mut rec = sys::ib_sa_mcmember_rec {
            mgid: sys::ib_gid {
                raw: request.mgid.0,
            },
            port_gid: sys::ib_gid {
                raw: request.port_gid.0,
            },
            pkey: request.pkey.0.to_be(),
            join_state: request.join_state,
            ..Default::default()
        };
        let mut components = JOIN_MASK;
        if let Some(create) = &request.create {
            components |= CREATE_MASK;
            let exactly = sys::ib_sa_selector::IB_SA_EQ.0 as u8;
            rec.qkey = create.qkey.to_be();
            rec.mtu_selector = exactly;
            rec.mtu = create.mtu;
            rec.traffic_class = create.traffic_class;
            rec.rate_selector = exactly;
            rec.rate = create.rate;
            rec.sl = create.sl;
            rec.flow_label = create.flow_label.to_be();
            rec.hop_limit = create.hop_limit;
        }
        let this = KBox::pin(
            Self {
                raw: Atomic::new(null_mut()),
                answered: Atomic::new(false),
                handler,
                client: client.clone(),
                port: port.clone(),
            },
            GFP_KERNEL,
        )?;
        let context: *const Self = &*this;
        // SAFETY: Client and device are valid, and `this` keeps them; the record is copied. `this`
        // stays where it is until its drop has freed the membership. The callback fits the context.
        let raw = from_err_ptr(unsafe {
            sys::ib_sa_join_multicast(
                client.raw.get(),
                port.device().as_ptr(),
                port.number(),
                &mut rec,
                components,
                kernel::bindings::GFP_KERNEL,
                Some(join_answered::<H>),
                context.cast_mut().cast(),
            )
        })?;
        // INVARIANT: The callback never has the core free the membership, so it is ours.
        this.raw.store(raw, Relaxed);
        Ok(this)
    }
}

#[pinned_drop]
impl<H: JoinHandler> PinnedDrop for SaMembership<H> {
    fn drop(self: Pin<&mut Self>) {
        if let Some(raw) = NonNull::new(self.raw.load(Relaxed)) {
            // SAFETY: By the type invariants it is ours to free, also while the join is under way.
            // When this returns, the callback neither runs nor will.
            unsafe { sys::ib_sa_free_multicast(raw.as_ptr()) };
        }
    }
}

/// The callback of `ib_sa_join_multicast`. Always returns 0: the membership stays ours to free.
///
/// # Safety
///
/// Called by the core, never twice at once, with a membership whose context is a
/// [`SaMembership<H>`] that stays until this returns.
unsafe extern "C" fn join_answered<H: JoinHandler>(
    status: c_int,
    raw: *mut sys::ib_sa_multicast,
) -> c_int {
    // SAFETY: By the safety requirements both are valid.
    let (this, rec) = unsafe { (&*(*raw).context.cast::<SaMembership<H>>(), &(*raw).rec) };
    if this.answered.xchg(true, Full) {
        this.handler.lost();
        return 0;
    }
    this.handler.joined(to_result(status).map(|()| GroupRecord {
        mlid: u16::from_be(rec.mlid),
        qkey: u32::from_be(rec.qkey),
        mtu: rec.mtu,
        rate: rec.rate,
        sl: rec.sl,
        traffic_class: rec.traffic_class,
        hop_limit: rec.hop_limit,
        flow_label: u32::from_be(rec.flow_label),
    }));
    0
}
