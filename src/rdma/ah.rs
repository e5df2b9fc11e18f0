// SPDX-License-Identifier: GPL-2.0

//! Address handles: where a datagram goes.
//!
//! Whoever sends needs a handle until the send completes, so handles are shared ([`RcuArc`]) and
//! the last reference often goes away in softirq context, where they cannot be destroyed without
//! busy waiting. So the drop puts the handle on a list of its pool, and a work item destroys it.

use core::{
    fmt,
    mem::ManuallyDrop,
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::flags::GFP_KERNEL,
    container_of,
    error::{from_err_ptr, to_result},
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Refcount,
    },
    time::{delay::fsleep, Delta},
    types::Opaque,
};

use super::pd::Pd;
use crate::{
    base::{rcu::RcuArc, time},
    sys::{bindings as sys, compat::rcu_barrier},
    wire::gid::Gid,
};

/// Longest wait, in milliseconds, for the handles of a pool that is dropped.
const GONE_MS: u64 = 5000;

/// Global route of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grh {
    /// Destination.
    pub(crate) dgid: Gid,
    /// Index of the source in the GID table of the port.
    pub(crate) sgid_index: u8,
    /// Hops that the datagram may take; at least 1 on Ethernet.
    pub(crate) hop_limit: u8,
    /// Flow label, 20 bits, host order.
    pub(crate) flow_label: u32,
    /// Traffic class.
    pub(crate) traffic_class: u8,
}

/// The part of an address below the network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Ib { dlid: u32, path_bits: u8 },
    Roce { dmac: [u8; 6] },
}

/// Attributes of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AhAttr {
    port: u32,
    link: Link,
    sl: u8,
    static_rate: u8,
    grh: Option<Grh>,
}

impl AhAttr {
    /// A destination in the subnet of an InfiniBand port.
    ///
    /// `dlid` is the LID in host order, `sl` the service level, `static_rate` a rate code of the
    /// architecture (`enum ib_rate`; 0: as fast as the port).
    pub(crate) fn ib(port: u32, dlid: u32, sl: u8, static_rate: u8) -> Self {
        Self {
            port,
            link: Link::Ib { dlid, path_bits: 0 },
            sl,
            static_rate,
            grh: None,
        }
    }

    /// The same, sent from another of the port's LIDs: `bits` are its low bits, as many as the
    /// port's LID mask control (LMC) says.
    pub(crate) fn with_path_bits(mut self, bits: u8) -> Self {
        if let Link::Ib { path_bits, .. } = &mut self.link {
            *path_bits = bits;
        }
        self
    }

    /// The same with a global route: needed for groups and other subnets.
    pub(crate) fn with_grh(mut self, grh: Grh) -> Self {
        self.grh = Some(grh);
        self
    }

    /// One host on an Ethernet port: its GID and the MAC address of the next hop.
    pub(crate) fn roce_unicast(
        port: u32,
        dgid: Gid,
        sgid_index: u8,
        dmac: [u8; 6],
        hop_limit: u8,
    ) -> Self {
        Self {
            port,
            link: Link::Roce { dmac },
            sl: 0,
            static_rate: 0,
            grh: Some(Grh {
                dgid,
                sgid_index,
                hop_limit,
                flow_label: 0,
                traffic_class: 0,
            }),
        }
    }

    /// A group on an Ethernet port. The MAC address is the one of the IPv6 group with the same 128
    /// bits: 33:33 and the last four octets (RFC 2464, section 7).
    pub(crate) fn roce_multicast(port: u32, mgid: Gid, sgid_index: u8, hop_limit: u8) -> Self {
        let [.., a, b, c, d] = mgid.0;
        let dmac = [0x33, 0x33, a, b, c, d];
        Self::roce_unicast(port, mgid, sgid_index, dmac, hop_limit)
    }

    /// The local identifier of the destination; `None` on Ethernet.
    pub(crate) fn dlid(&self) -> Option<u32> {
        match self.link {
            Link::Ib { dlid, .. } => Some(dlid),
            Link::Roce { .. } => None,
        }
    }

    /// As C has it, for a port of the device of `pd`.
    fn to_raw(self, pd: &Pd) -> Result<sys::rdma_ah_attr> {
        let device = pd.device();
        if !device.ports().contains(&self.port) {
            return Err(EINVAL);
        }
        // SAFETY: The device is valid and has the port.
        let kind = unsafe { sys::ipoib_h_rdma_ah_find_type(device.as_ptr(), self.port) };
        let mut attr = sys::rdma_ah_attr {
            type_: kind,
            port_num: self.port,
            sl: self.sl,
            static_rate: self.static_rate,
            ..Default::default()
        };
        match (kind, self.link) {
            (sys::rdma_ah_attr_type::RDMA_AH_ATTR_TYPE_IB, Link::Ib { dlid, path_bits }) => {
                attr.__bindgen_anon_1.ib = sys::ib_ah_attr {
                    dlid: u16::try_from(dlid).map_err(|_| EINVAL)?,
                    src_path_bits: path_bits,
                };
            }
            (sys::rdma_ah_attr_type::RDMA_AH_ATTR_TYPE_OPA, Link::Ib { dlid, path_bits }) => {
                attr.__bindgen_anon_1.opa.dlid = dlid;
                attr.__bindgen_anon_1.opa.src_path_bits = path_bits;
            }
            (sys::rdma_ah_attr_type::RDMA_AH_ATTR_TYPE_ROCE, Link::Roce { dmac }) => {
                attr.__bindgen_anon_1.roce.dmac = dmac;
            }
            _ => return Err(EINVAL),
        }
        if let Some(grh) = self.grh {
            attr.ah_flags = sys::ib_ah_flags::IB_AH_GRH.0 as u8;
            attr.grh.dgid.raw = grh.dgid.0;
            attr.grh.sgid_index = grh.sgid_index;
            attr.grh.hop_limit = grh.hop_limit;
            attr.grh.flow_label = grh.flow_label;
            attr.grh.traffic_class = grh.traffic_class;
        }
        Ok(attr)
    }
}

/// For people who want to know where packets go: next hop, and what the fabric is told about them.
impl fmt::Display for AhAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.link {
            Link::Ib { dlid, .. } => write!(
                f,
                "lid {:#x} sl {} rate {}",
                dlid, self.sl, self.static_rate
            )?,
            Link::Roce {
                dmac: [a, b, c, d, e, g],
            } => write!(f, "mac {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?,
        }
        match &self.grh {
            Some(grh) => write!(f, " hops {} class {}", grh.hop_limit, grh.traffic_class),
            None => Ok(()),
        }
    }
}

/// A handle on its way to destruction. Allocated with the handle, since its drop cannot.
struct Dead {
    next: *mut Dead,
    ah: NonNull<sys::ib_ah>,
}

/// What a pool and its handles share.
///
/// # Invariants
///
/// - `live` is one for the pool, until its drop, plus the number of handles not yet destroyed.
/// - `dead` is a list of boxes that the work item owns.
/// - `gone` becomes 1 when `live` has reached zero.
/// - The value is freed after `gone` became 1 and every RCU callback queued before that has run, or
///   never.
#[pin_data]
struct Shared {
    #[pin]
    work: Opaque<sys::work_struct>,
    gone: Atomic<u32>,
    live: Refcount,
    dead: Atomic<*mut Dead>,
    pd: Pd,
}

// SAFETY: All fields are made for use from several threads; the boxes in `dead` are only taken by
// the work item.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Gives up one count of `live`. Afterwards `self` may be gone, unless something else keeps
    /// it.
    fn put(&self) {
        if self.live.dec_and_test() {
            self.gone.store(1, Release);
        }
    }

    /// Hands a handle to the work item.
    fn bury(&self, node: NonNull<Dead>) {
        let mut head = self.dead.load(Relaxed);
        loop {
            // SAFETY: The node is ours until the exchange below succeeds.
            unsafe { (*node.as_ptr()).next = head };
            // INVARIANT: The box joins the list.
            match self.dead.cmpxchg(head, node.as_ptr(), Full) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // SAFETY: The work item was initialised with the pool, and the queue always exists.
        unsafe {
            kernel::bindings::queue_work_on(
                kernel::bindings::wq_misc_consts_WORK_CPU_UNBOUND as i32,
                sys::system_dfl_wq,
                self.work.get(),
            )
        };
    }
}

/// Destroys all handles on the list of a pool.
///
/// # Safety
///
/// Called by the work queue with the `work` of a [`Shared`], which stays until this returns.
unsafe extern "C" fn reap(work: *mut sys::work_struct) {
    // SAFETY: By the safety requirements; the drop of the pool waits for this function.
    let shared = unsafe { &*container_of!(Opaque::cast_from(work), Shared, work) };
    let mut node = shared.dead.xchg(null_mut(), Full);
    while !node.is_null() {
        // SAFETY: By the type invariants of `Shared` the list consists of boxes that we own now.
        let dead = unsafe { KBox::from_raw(node) };
        node = dead.next;
        // SAFETY: The handle is valid, no send uses it, and sleeping is allowed here.
        let destroyed = to_result(unsafe {
            sys::rdma_destroy_ah_user(
                dead.ah.as_ptr(),
                sys::rdma_destroy_ah_flags::RDMA_DESTROY_AH_SLEEPABLE.0,
                null_mut(),
            )
        });
        if let Err(e) = destroyed {
            pr_warn!(
                "{}: cannot destroy an address handle: {:?}\n",
                shared.pd.device().name(),
                e
            );
        }
        shared.put();
    }
}

/// The address handles of a protection domain.
///
/// Dropping the pool waits until the last reference to each of its handles is dropped and they are
/// destroyed; it sleeps. So empty or destroy whatever holds handles first, queue pairs with
/// unfinished sends included. If some are left after five seconds, those of a queue pair that the
/// device refuses to destroy, then the pool is leaked with them: the caller may hold RTNL.
pub(crate) struct AhPool {
    shared: ManuallyDrop<Pin<KBox<Shared>>>,
}

impl AhPool {
    /// An empty pool. Sleeps.
    pub(crate) fn new(pd: &Pd) -> Result<Self> {
        // INVARIANT: `live` counts the pool alone.
        let shared = KBox::pin_init(
            try_pin_init!(Shared {
                work <- Opaque::ffi_init(|work: *mut sys::work_struct| {
                    // SAFETY: `work` is valid for writes and pinned, and the name and the lock
                    // class are static.
                    unsafe {
                        kernel::bindings::init_work_with_key(
                            work,
                            Some(reap),
                            false,
                            c"AhPool::work".as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
                gone: Atomic::new(0),
                live: Refcount::new(1),
                dead: Atomic::new(null_mut()),
                pd: pd.clone(),
            }? Error),
            GFP_KERNEL,
        )?;
        Ok(Self {
            shared: ManuallyDrop::new(shared),
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Creates a handle. Sleeps.
    ///
    /// Fails with `EINVAL` if the attributes do not fit the port (kind of link, missing route, no
    /// such port or source GID), and with what the driver says.
    pub(crate) fn create(&self, attr: &AhAttr) -> Result<RcuArc<Ah>> {
        let mut raw_attr = attr.to_raw(&self.shared.pd)?;
        let place = KBox::<Dead>::new_uninit(GFP_KERNEL)?;
        // SAFETY: The domain is valid, the attributes too, and sleeping is allowed.
        let raw = from_err_ptr(unsafe {
            sys::rdma_create_ah(
                self.shared.pd.as_ptr(),
                &mut raw_attr,
                sys::rdma_create_ah_flags::RDMA_CREATE_AH_SLEEPABLE.0,
            )
        })?;
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        let node = KBox::into_raw(place.write(Dead {
            next: null_mut(),
            ah: raw,
        }));
        // INVARIANT: One more handle.
        self.shared.live.inc();
        let ah = Ah {
            raw,
            pd: self.shared.pd.as_ptr(),
            // SAFETY: `KBox::into_raw` returns a valid, hence non-null pointer.
            node: unsafe { NonNull::new_unchecked(node) },
            pool: NonNull::from(&**self.shared),
            attr: *attr,
        };
        // When this allocation fails the handle is dropped here and destroyed by the work item; the
        // pool cannot go away meanwhile, as `self` borrows it.
        Ok(RcuArc::new(ah, GFP_KERNEL)?)
    }
}

impl Drop for AhPool {
    fn drop(&mut self) {
        self.shared.put();
        let end = time::now_ms().saturating_add(GONE_MS);
        while self.shared.gone.load(Acquire) == 0 {
            if time::now_ms() >= end {
                pr_err!(
                    "{}: address handles are still in use, their pool is lost\n",
                    self.shared.pd.device().name()
                );
                return;
            }
            fsleep(Delta::from_millis(1));
        }
        // The drop of a handle runs in an RCU callback and touches the pool after it has buried the
        // handle. All handles are destroyed, so these callbacks have begun; let them end.
        rcu_barrier();
        // SAFETY: The work item is initialised and nobody queues it any more.
        unsafe { kernel::bindings::cancel_work_sync(self.shared.work.get()) };
        // SAFETY: Not used again, and by the type invariants nobody else uses it either.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }
}

/// An address handle. Exists only inside of an [`RcuArc`].
///
/// # Invariants
///
/// `raw` is an address handle in the domain `pd`, and counted in `pool.live`; `pool` is valid until
/// that count is given up and the RCU callback that drops this value has returned. `node` is a box
/// that this value owns, and names `raw`.
pub(crate) struct Ah {
    raw: NonNull<sys::ib_ah>,
    pd: *mut sys::ib_pd,
    node: NonNull<Dead>,
    pool: NonNull<Shared>,
    attr: AhAttr,
}

// SAFETY: A handle may be used from any thread.
unsafe impl Send for Ah {}
// SAFETY: As above; it is never modified.
unsafe impl Sync for Ah {}

impl Ah {
    /// The C object, valid as long as `self`.
    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::ib_ah {
        self.raw.as_ptr()
    }

    /// Whether the handle may be used in sends of a queue pair in `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: *mut sys::ib_pd) -> bool {
        self.pd == pd
    }

    /// What it was made from.
    pub(crate) fn attr(&self) -> &AhAttr {
        &self.attr
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the pool is valid; see `AhPool::drop`.
        unsafe { self.pool.as_ref() }.bury(self.node);
    }
}
