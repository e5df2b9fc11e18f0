// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: datagram ones, and the ends of reliable connections.
//!
//! A queue pair has two faces. [`Qp`] is shared: queues post through it, attachments and tests hold
//! it. [`QpControl`] is unique and changes the state. The split is what makes [`QpReset`] a proof.

mod kinds;

use core::{
    marker::PhantomData,
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_void},
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
};

pub(crate) use self::kinds::{QpFlags, QpSizes, QpState, Transport};
use super::{cq::Cq, device::DeviceHandle, pd::Pd, srq::Srq};
use crate::{
    base::atomic::Word,
    sys::{
        bindings as sys,
        compat::{smp_mb, unsupported},
    },
    wire::qpn::Qpn,
};

type PostSend = unsafe extern "C" fn(
    *mut sys::ib_qp,
    *const sys::ib_send_wr,
    *mut *const sys::ib_send_wr,
) -> c_int;
type PostRecv = unsafe extern "C" fn(
    *mut sys::ib_qp,
    *const sys::ib_recv_wr,
    *mut *const sys::ib_recv_wr,
) -> c_int;

/// Something that must live until the queue pair is destroyed, because the hardware may access it.
pub(super) trait Kept: Send + Sync {}

/// Whom a queue pair tells of failures, and of its end.
pub(crate) trait QpHandler: Send + Sync + 'static {
    /// The hardware says that the queue pair is broken, which need not show in any completion.
    ///
    /// Called in any context, interrupts possibly off, and possibly with locks of the driver held:
    /// only note it and queue work. A handler must not own a [`Qp`], or neither would ever be freed.
    fn failed(&self);

    /// The queue pair is in the error state and takes nothing more from its shared receive queue.
    /// Called like [`QpHandler::failed`].
    fn last_wqe(&self) {}
}

/// An entry of the list of such things.
struct KeptNode {
    next: *mut KeptNode,
    _what: Arc<dyn Kept>,
}

/// # Invariants
///
/// - `raw` is a queue pair in `pd` with the two completion queues, of the reliable transport if
///   `connected`, else a datagram one. Its context is `context`, which owns a reference to the
///   handler that `release` gives back.
/// - `kept` is a list of boxes that this value owns. Whatever memory is posted to the queue pair is
///   kept by it.
/// - `resets` was incremented before each transition to the reset state.
struct Inner {
    raw: NonNull<sys::ib_qp>,
    context: *const c_void,
    release: unsafe fn(*const c_void),
    num: Qpn,
    post_send: PostSend,
    post_recv: PostRecv,
    send_sge: usize,
    lso: bool,
    resets: Atomic<u64>,
    kept: Atomic<*mut KeptNode>,
    connected: bool,
    srq: Option<Srq>,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
}

// SAFETY: A queue pair may be used from any thread: the driver locks each of its queues. The handler
// is `Send + Sync`.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: The queue pair is valid, and everything that uses it held this value.
        let ret = unsafe { sys::ib_destroy_qp_user(self.raw.as_ptr(), null_mut()) };
        if ret != 0 {
            // The hardware may still write to what is kept, and complete into the queues. Leak all
            // of it, and with it a device handle: better a removal that hangs than wild writes.
            pr_err!(
                "{}: cannot destroy queue pair {}, its memory is lost\n",
                self.pd.device().name(),
                self.num.get()
            );
            core::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone()));
            core::mem::forget(self.srq.take());
            return;
        }
        // SAFETY: By the type invariants; no callback runs any more.
        unsafe { (self.release)(self.context) };
        let mut node = *self.kept.get_mut();
        while !node.is_null() {
            // SAFETY: By the type invariants the list consists of boxes of ours.
            let entry = unsafe { KBox::from_raw(node) };
            node = entry.next;
        }
    }
}

/// A counted reference to a queue pair.
///
/// Dropping the last reference, those of queues and attachments included, destroys the queue pair
/// and may sleep; only then are buffers freed that were posted and never completed.
#[derive(Clone)]
pub(crate) struct Qp(Arc<Inner>);

impl Qp {
    /// The queue pair number.
    #[inline]
    pub(crate) fn num(&self) -> Qpn {
        self.0.num
    }

    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut sys::ib_qp {
        self.0.raw.as_ptr()
    }

    /// The device.
    pub(crate) fn device(&self) -> &DeviceHandle {
        self.0.pd.device()
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Whether this is the end of a connection; else its requests are datagrams.
    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.0.connected
    }

    /// A number by which the queue pair is told from others that exist at the same time.
    pub(crate) fn key(&self) -> usize {
        self.0.raw.as_ptr() as usize
    }

    /// Gather entries that a send request may have.
    pub(super) fn send_sge(&self) -> usize {
        self.0.send_sge
    }

    /// Whether a send request may have its payload cut into segments.
    pub(crate) fn lso(&self) -> bool {
        self.0.lso
    }

    /// Whether both are the same queue pair.
    fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Keeps `what` until the queue pair is destroyed. Sleeps.
    pub(super) fn keep(&self, what: Arc<dyn Kept>) -> Result {
        let node = KBox::into_raw(KBox::new(
            KeptNode {
                next: null_mut(),
                _what: what,
            },
            GFP_KERNEL,
        )?);
        let mut head = self.0.kept.load(Relaxed);
        loop {
            // SAFETY: The node is ours until the exchange below succeeds.
            unsafe { (*node).next = head };
            // INVARIANT: The box joins the list. Nodes are only taken out by the drop.
            match self.0.kept.cmpxchg(head, node, Full) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Posts a chain of send requests. Does not sleep.
    ///
    /// Returns the driver's answer, the request that it names as the first one not posted (possibly
    /// null) if that is an error, and a number to be shown to [`QpReset::covers`] before memory of
    /// these requests is given back without a completion.
    ///
    /// # Safety
    ///
    /// `wr` must be a valid chain of UD requests for this queue pair, with address handles of its
    /// protection domain, or of plain sends if it is the end of a connection. What they point to
    /// must stay until they complete, a `QpReset` covers them, or the queue pair is destroyed.
    #[inline]
    pub(super) unsafe fn post_send(
        &self,
        wr: *const sys::ib_send_wr,
    ) -> (Result, *const sys::ib_send_wr, u64) {
        let mut bad = core::ptr::null();
        // SAFETY: By the safety requirements; the method is the device's own.
        let ret = unsafe { (self.0.post_send)(self.as_ptr(), wr, &mut bad) };
        (to_result(ret), bad, self.resets_after_post())
    }

    /// The protection domain that address handles must be of; null for the end of a connection, where none fits.
    pub(super) fn domain(&self) -> *mut sys::ib_pd {
        if self.is_connected() {
            null_mut()
        } else {
            self.pd().as_ptr()
        }
    }

    /// Posts a chain of receive requests. Does not sleep.
    ///
    /// Answers like [`Qp::post_send`].
    ///
    /// # Safety
    ///
    /// As for [`Qp::post_send`].
    #[inline]
    pub(super) unsafe fn post_recv(
        &self,
        wr: *const sys::ib_recv_wr,
    ) -> (Result, *const sys::ib_recv_wr, u64) {
        let mut bad = core::ptr::null();
        // SAFETY: By the safety requirements; the method is the device's own.
        let ret = unsafe { (self.0.post_recv)(self.as_ptr(), wr, &mut bad) };
        (to_result(ret), bad, self.resets_after_post())
    }

    /// Number of resets begun so far, read so that a post that precedes it and still sees the old
    /// number is over before the transition to reset starts.
    #[inline]
    fn resets_after_post(&self) -> u64 {
        // Pairs with the barrier in `QpControl::to_reset`.
        smp_mb();
        self.0.resets.get()
    }
}

/// The right to change the state of a queue pair. There is one per queue pair.
pub(crate) struct QpControl {
    qp: Qp,
}

// The verbs name their transitions so.
#[allow(clippy::wrong_self_convention)]
impl QpControl {
    /// Creates a queue pair in the reset state. Sleeps.
    ///
    /// The sizes must be within the device's limits. Requests complete only if they say so
    /// (`IB_SIGNAL_REQ_WR`). `handler` hears of failures from now until the queue pair is destroyed.
    pub(crate) fn create<H: QpHandler>(
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        sizes: QpSizes,
        transport: Transport<'_>,
        handler: Arc<H>,
    ) -> Result<Self> {
        if !send_cq.device().same_as(pd.device()) || !recv_cq.device().same_as(pd.device()) {
            return Err(EINVAL);
        }
        // SAFETY: The device is valid; the method table does not change after registration.
        let ops = unsafe { &(*pd.device().as_ptr()).ops };
        let post_send = ops.post_send.ok_or_else(unsupported)?;
        let post_recv = ops.post_recv.ok_or_else(unsupported)?;

        let context = Arc::into_raw(handler).cast::<c_void>();
        let mut attr = sys::ib_qp_init_attr {
            event_handler: Some(event::<H>),
            qp_context: context.cast_mut(),
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            cap: sys::ib_qp_cap {
                max_send_wr: sizes.send_wr,
                max_recv_wr: sizes.recv_wr,
                max_send_sge: sizes.send_sge,
                max_recv_sge: sizes.recv_sge,
                ..Default::default()
            },
            sq_sig_type: sys::ib_sig_type::IB_SIGNAL_REQ_WR,
            qp_type: sys::ib_qp_type::IB_QPT_RC,
            ..Default::default()
        };
        let mut shared = None;
        let connected = !matches!(transport, Transport::Datagram(_));
        let lso = matches!(&transport, Transport::Datagram(flags) if flags.lso);
        match transport {
            Transport::Datagram(flags) => {
                attr.qp_type = sys::ib_qp_type::IB_QPT_UD;
                if flags.block_multicast_loopback {
                    attr.create_flags |=
                        sys::ib_qp_create_flags::IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK.0 as u32;
                }
                if flags.lso {
                    attr.create_flags |=
                        sys::ib_qp_create_flags::IB_QP_CREATE_IPOIB_UD_LSO.0 as u32;
                }
            }
            Transport::Sender => {}
            Transport::Receiver(None) => {}
            Transport::Receiver(Some(srq)) => {
                if !srq.pd().device().same_as(pd.device()) {
                    return Err(EINVAL);
                }
                attr.srq = srq.as_ptr();
                shared = Some(srq.clone());
            }
        }
        // SAFETY: All objects are valid and of one device; the caller name is a static string; the
        // callback fits the context, which lives until the queue pair is destroyed.
        let created = from_err_ptr(unsafe {
            sys::ib_create_qp_kernel(pd.as_ptr(), &mut attr, super::CALLER.as_char_ptr().cast())
        })
        .and_then(|raw| NonNull::new(raw).ok_or(ENODEV));
        let raw = match created {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: The reference that was leaked above; C does not have it.
                unsafe { release::<H>(context) };
                return Err(e);
            }
        };
        // SAFETY: The queue pair is valid; the number does not change.
        let num = Qpn::new(unsafe { (*raw.as_ptr()).qp_num });
        // INVARIANT: `raw` is new and has the context, which `release` fits; nothing is posted, it
        // was never reset.
        let inner = Inner {
            raw,
            context,
            release: release::<H>,
            num,
            post_send,
            post_recv,
            send_sge: sizes.send_sge as usize,
            lso,
            resets: Atomic::new(0),
            kept: Atomic::new(null_mut()),
            connected,
            srq: shared,
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
        };
        Ok(Self {
            qp: Qp(Arc::new(inner, GFP_KERNEL)?),
        })
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(super) fn modify(
        &mut self,
        attr: &mut sys::ib_qp_attr,
        mask: sys::ib_qp_attr_mask,
    ) -> Result {
        // SAFETY: The queue pair is valid; the core checks the transition.
        to_result(unsafe { sys::ib_modify_qp(self.qp.as_ptr(), attr, mask.0 as c_int) })
    }

    fn modify_state(&mut self, state: sys::ib_qp_state) -> Result {
        let mut attr = sys::ib_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        self.modify(&mut attr, sys::ib_qp_attr_mask::IB_QP_STATE)
    }

    /// Reset to init. Sleeps.
    ///
    /// `pkey_index` is an index into the partition key table of `port`, `qkey` what senders must
    /// present.
    pub(crate) fn to_init(&mut self, pkey_index: u16, port: u32, qkey: u32) -> Result {
        let attr = sys::ib_qp_attr {
            qkey,
            ..Default::default()
        };
        self.init(pkey_index, port, attr, sys::ib_qp_attr_mask::IB_QP_QKEY)
    }

    /// Reset to init, for the sending end of a connection. Sleeps.
    pub(crate) fn to_init_connected(&mut self, pkey_index: u16, port: u32) -> Result {
        let attr = sys::ib_qp_attr {
            // Nobody reads or writes our memory.
            qp_access_flags: 0,
            ..Default::default()
        };
        self.init(
            pkey_index,
            port,
            attr,
            sys::ib_qp_attr_mask::IB_QP_ACCESS_FLAGS,
        )
    }

    /// Reset to init with what all transports need, and `attr` and `mask` for what one needs besides.
    fn init(
        &mut self,
        pkey_index: u16,
        port: u32,
        mut attr: sys::ib_qp_attr,
        mask: sys::ib_qp_attr_mask,
    ) -> Result {
        attr.qp_state = sys::ib_qp_state::IB_QPS_INIT;
        attr.pkey_index = pkey_index;
        attr.port_num = port;
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask::IB_QP_STATE
                | sys::ib_qp_attr_mask::IB_QP_PKEY_INDEX
                | sys::ib_qp_attr_mask::IB_QP_PORT
                | mask,
        )
    }

    /// Init to ready-to-receive. Sleeps.
    pub(crate) fn to_rtr(&mut self) -> Result {
        self.modify_state(sys::ib_qp_state::IB_QPS_RTR)
    }

    /// Ready-to-receive to ready-to-send. Sleeps.
    pub(crate) fn to_rts(&mut self) -> Result {
        let mut attr = sys::ib_qp_attr {
            qp_state: sys::ib_qp_state::IB_QPS_RTS,
            sq_psn: 0,
            ..Default::default()
        };
        self.modify(
            &mut attr,
            sys::ib_qp_attr_mask::IB_QP_STATE | sys::ib_qp_attr_mask::IB_QP_SQ_PSN,
        )
    }

    /// Send queue error to ready-to-send. Sleeps.
    pub(crate) fn sqe_to_rts(&mut self) -> Result {
        self.modify_state(sys::ib_qp_state::IB_QPS_RTS)
    }

    /// Any state to error: all outstanding requests complete with an error. Sleeps.
    pub(crate) fn to_err(&mut self) -> Result {
        self.modify_state(sys::ib_qp_state::IB_QPS_ERR)
    }

    /// Changes the Q_Key of a queue pair that is ready to send. Sleeps.
    pub(crate) fn set_qkey(&mut self, qkey: u32) -> Result {
        let mut attr = sys::ib_qp_attr {
            qkey,
            ..Default::default()
        };
        self.modify(&mut attr, sys::ib_qp_attr_mask::IB_QP_QKEY)
    }

    /// Any state to reset: forgets all requests, without completions. Sleeps.
    ///
    /// The answer proves that the hardware uses no memory of requests posted before, as long as it
    /// exists, which is until the next change of state. To lose no completion, go through
    /// [`QpControl::to_err`] and poll the completion queues first.
    pub(crate) fn to_reset(&mut self) -> Result<QpReset<'_>> {
        // INVARIANT: The number goes up before the transition. Under `u64` it never wraps.
        let resets = self.qp.0.resets.fetch_add(1, Full).wrapping_add(1);
        // Pairs with the barrier in `Qp::resets_after_post`.
        smp_mb();
        self.modify_state(sys::ib_qp_state::IB_QPS_RESET)?;
        // INVARIANT: The transition was made, and `self` is borrowed, so no other follows.
        Ok(QpReset {
            qp: &self.qp,
            resets,
            _p: PhantomData,
        })
    }

    /// Asks the device for the present state. Sleeps.
    pub(crate) fn query_state(&self) -> Result<QpState> {
        let mut attr = sys::ib_qp_attr::default();
        let mut init = sys::ib_qp_init_attr::default();
        // SAFETY: The queue pair is valid and both structs are writable.
        to_result(unsafe {
            sys::ib_query_qp(
                self.qp.as_ptr(),
                &mut attr,
                sys::ib_qp_attr_mask::IB_QP_STATE.0 as c_int,
                &mut init,
            )
        })?;
        Ok(attr.qp_state.into())
    }
}

/// Proof that a queue pair is in the reset state and stays in it as long as this exists.
///
/// # Invariants
///
/// A transition of `qp` to reset was completed after its `resets` became `resets`, and no other
/// transition since.
pub(crate) struct QpReset<'a> {
    qp: &'a Qp,
    resets: u64,
    _p: PhantomData<&'a mut QpControl>,
}

impl QpReset<'_> {
    /// Succeeds if the hardware has forgotten every request that was posted to `qp`, the last post
    /// having returned the number `posted`.
    ///
    /// Fails with `EINVAL` if this is the proof of another queue pair, and with `EAGAIN` if a post
    /// raced with the transition or came after it: then reset again.
    pub(super) fn covers(&self, qp: &Qp, posted: u64) -> Result {
        if !self.qp.same_as(qp) {
            return Err(EINVAL);
        }
        if posted >= self.resets {
            return Err(EAGAIN);
        }
        Ok(())
    }
}

/// Which of the first `filled` requests of an array the driver has named as the first one not posted:
/// the array's first request is at `first`, each lies in an item of `W`, and `bad` is what the driver
/// named. `None` when that is none of them.
pub(super) fn first_unposted<W, R>(first: *const R, bad: *const R, filled: usize) -> Option<usize> {
    let offset = (bad as usize).wrapping_sub(first as usize);
    let index = offset / size_of::<W>();
    (offset % size_of::<W>() == 0 && index < filled).then_some(index)
}

/// `ib_qp.event_handler`.
///
/// # Safety
///
/// Called by the driver, with a valid event, for a queue pair whose context is an `H` that an
/// [`Inner`] owns.
unsafe extern "C" fn event<H: QpHandler>(event: *mut sys::ib_event, context: *mut c_void) {
    // SAFETY: By the safety requirements.
    let kind = unsafe { (*event).event };
    // SAFETY: By the safety requirements; the handler lives until the queue pair is destroyed.
    let handler = unsafe { &*context.cast::<H>() };
    match kind {
        sys::ib_event_type::IB_EVENT_QP_FATAL
        | sys::ib_event_type::IB_EVENT_QP_REQ_ERR
        | sys::ib_event_type::IB_EVENT_QP_ACCESS_ERR => handler.failed(),
        sys::ib_event_type::IB_EVENT_QP_LAST_WQE_REACHED => handler.last_wqe(),
        // What else there is concerns the making of connections, path migration and shared receive
        // queues.
        _ => {}
    }
}

/// Gives back the handler of a queue pair.
///
/// # Safety
///
/// `context` must come from [`Arc::<H>::into_raw`], and its reference must not be used again.
unsafe fn release<H: QpHandler>(context: *const c_void) {
    // SAFETY: By the safety requirements.
    drop(unsafe { Arc::from_raw(context.cast::<H>()) });
}
