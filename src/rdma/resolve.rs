// SPDX-License-Identifier: GPL-2.0

//! Finding the MAC address of a GID on an Ethernet port, through the host's own neighbour tables.
//!
//! C header: [`include/rdma/ib_addr.h`](srctree/include/rdma/ib_addr.h)

use core::ptr::NonNull;
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_err_ptr, to_result},
    ffi::{c_int, c_void},
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    types::Opaque,
};

use super::{device::DeviceHandle, port::Port};
use crate::{sys::bindings as sys, wire::gid::Gid};

/// How long each try waits for the neighbour to answer, in milliseconds; a second in all.
///
/// The core looks at the neighbour table when a request starts, when it hears of an answer, and
/// when the time is up. It misses an answer that comes before the request is on its list, and on a
/// virtual link that is the rule. Short first tries pick up such an answer.
const TRIES_MS: [usize; 3] = [20, 180, 800];

pub(super) const AF_INET: u16 = 2;
pub(super) const AF_INET6: u16 = 10;

/// What a resolution found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// MAC address of the next hop; the port's own if the GID is local.
    pub(crate) dmac: [u8; 6],
    /// Hop limit that the route asks for, at least 1.
    pub(crate) hop_limit: u8,
}

/// Whom a resolution tells.
pub(crate) trait ResolveHandler: Send + Sync + 'static {
    /// The resolution has ended. Called at most once per resolution, in process context, possibly
    /// before [`GidResolution::start`] has returned.
    ///
    /// May sleep, but not long: all resolutions of the system share the queue. Must not drop the
    /// [`GidResolution`], whose drop waits for this call.
    ///
    /// Errors: `ETIMEDOUT` if nobody answered in a second, `EHOSTUNREACH` and other errors of the
    /// routing layer.
    fn done(&self, result: Result<Resolved>);
}

/// A socket address of either family.
#[repr(C)]
union SockAddr {
    generic: sys::sockaddr,
    v4: sys::sockaddr_in,
    v6: sys::sockaddr_in6,
}

impl SockAddr {
    /// The IP address that stands behind a GID: the IPv4 address in a v4-mapped one, else all of it
    /// as an IPv6 address.
    fn new(gid: &Gid) -> Self {
        if let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] = gid.0 {
            Self {
                v4: sys::sockaddr_in {
                    sin_family: AF_INET,
                    sin_addr: sys::in_addr {
                        s_addr: u32::from_ne_bytes([a, b, c, d]),
                    },
                    ..Default::default()
                },
            }
        } else {
            let mut v6 = sys::sockaddr_in6 {
                sin6_family: AF_INET6,
                ..Default::default()
            };
            v6.sin6_addr.in6_u.u6_addr8 = gid.0;
            Self { v6 }
        }
    }
}

/// A reference to an entry of a GID table; the entry cannot be reused while it exists.
///
/// # Invariants
///
/// The value owns one reference, and the device of the entry is held by whoever holds the value.
pub(super) struct GidEntry(NonNull<sys::ib_gid_attr>);

impl GidEntry {
    /// Entry `index` of the table of `port`. Sleeps.
    pub(super) fn get(port: &Port, index: u16) -> Result<Self> {
        let (device, number) = (port.device().as_ptr(), port.number());
        // SAFETY: The device is valid; the core checks the port and the index.
        let entry = unsafe { sys::rdma_get_gid_attr(device, number, index.into()) };
        let entry = from_err_ptr(entry.cast_mut())?;
        // INVARIANT: The core took a reference for us.
        Ok(Self(NonNull::new(entry).ok_or(EINVAL)?))
    }

    /// The identifier in it.
    fn gid(&self) -> Gid {
        // SAFETY: By the type invariants the entry is valid; it does not change while it is
        // referenced. All 16 bytes of the union are plain bytes.
        Gid(unsafe { (*self.0.as_ptr()).gid.raw })
    }

    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *const sys::ib_gid_attr {
        self.0.as_ptr()
    }
}

impl Drop for GidEntry {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours to give up.
        unsafe { sys::rdma_put_gid_attr(self.0.as_ptr()) };
    }
}

/// A running or finished resolution.
///
/// Dropping it cancels the request and waits for a running callback; it sleeps.
///
/// # Invariants
///
/// - Each of `tries` points to `entry`, which is of `device`.
/// - The core may know the address of a try from its start until its callback has returned. The
///   first is started by [`GidResolution::start`], each other by the callback of the one before.
#[pin_data(PinnedDrop)]
pub(crate) struct GidResolution<H: ResolveHandler> {
    #[pin]
    tries: [Opaque<sys::rdma_dev_addr>; TRIES_MS.len()],
    /// Number of the last try that was started; only the callback writes it.
    current: Atomic<usize>,
    dgid: Gid,
    handler: Arc<H>,
    entry: GidEntry,
    device: DeviceHandle,
}

// SAFETY: `H` is `Send + Sync`; a request is only touched by the core, by its callback, and by the
// drop after it.
unsafe impl<H: ResolveHandler> Send for GidResolution<H> {}
// SAFETY: A shared reference allows nothing.
unsafe impl<H: ResolveHandler> Sync for GidResolution<H> {}

impl<H: ResolveHandler> GidResolution<H> {
    /// Starts to resolve `dgid` from entry `sgid_index` of the port's GID table, in the network
    /// namespace and on the interface of that entry. Sleeps.
    ///
    /// Fails at once with `EINVAL` or `ENODATA` if there is no such source, with `EINVAL` if the
    /// two are of different address families, and with errors of the routing layer; then the
    /// handler will not be called.
    pub(crate) fn start(
        port: &Port,
        sgid_index: u16,
        dgid: &Gid,
        handler: Arc<H>,
    ) -> Result<Pin<KBox<Self>>> {
        let entry = GidEntry::get(port, sgid_index)?;
        let request = || {
            Opaque::new(sys::rdma_dev_addr {
                // Replaced by the namespace of the entry, but must be set.
                net: &raw mut sys::init_net,
                sgid_attr: entry.0.as_ptr(),
                ..Default::default()
            })
        };
        let tries = core::array::from_fn(|_| request());
        // INVARIANT: All tries point to the entry, and the core knows none of them.
        let this = KBox::pin(
            Self {
                tries,
                current: Atomic::new(0),
                dgid: *dgid,
                handler,
                entry,
                device: port.device().clone(),
            },
            GFP_KERNEL,
        )?;
        this.as_ref().begin(0)?;
        Ok(this)
    }

    /// Starts a try. Sleeps. If this fails its callback will not be called.
    fn begin(self: Pin<&Self>, number: usize) -> Result {
        let (Some(request), Some(&timeout)) = (self.tries.get(number), TRIES_MS.get(number)) else {
            return Err(ETIMEDOUT);
        };
        let mut src = SockAddr::new(&self.entry.gid());
        let dst = SockAddr::new(&self.dgid);
        let context: *const Self = self.get_ref();
        // SAFETY: The addresses are valid for the call. `self` is pinned, and its drop cancels the
        // request before the memory goes away. The callback fits the context.
        to_result(unsafe {
            sys::rdma_resolve_ip(
                (&raw mut src).cast(),
                (&raw const dst).cast(),
                request.get(),
                timeout,
                Some(resolved::<H>),
                true,
                context.cast_mut().cast(),
            )
        })
    }
}

#[pinned_drop]
impl<H: ResolveHandler> PinnedDrop for GidResolution<H> {
    fn drop(self: Pin<&mut Self>) {
        for request in &self.tries {
            // SAFETY: The request is initialised; one that the core does not know is ignored. When
            // this returns the callback of the request neither runs nor will. Since only that
            // callback starts the next try, which is cancelled next, none is left in the end.
            unsafe { sys::rdma_addr_cancel(request.get()) };
        }
    }
}

/// The callback of `rdma_resolve_ip`.
///
/// # Safety
///
/// Called by the core at most once per request, with the address of the request and a
/// [`GidResolution<H>`] that stays until this returns.
unsafe extern "C" fn resolved<H: ResolveHandler>(
    status: c_int,
    _src: *mut sys::sockaddr,
    request: *mut sys::rdma_dev_addr,
    context: *mut c_void,
) {
    // SAFETY: By the safety requirements; the drop waits for us. It is pinned in its box.
    let this = unsafe { Pin::new_unchecked(&*context.cast::<GidResolution<H>>()) };
    let mut result = to_result(status);
    if result == Err(ETIMEDOUT) {
        let next = this.current.load(Relaxed).wrapping_add(1);
        this.current.store(next, Relaxed);
        result = this.begin(next);
        if result.is_ok() {
            return;
        }
    }
    let result = result.map(|()| {
        // SAFETY: The core has filled in the request and will not touch it again.
        let (dmac, hop_limit) = unsafe { ((*request).dst_dev_addr, (*request).hoplimit) };
        let [a, b, c, d, e, f, ..] = dmac;
        Resolved {
            dmac: [a, b, c, d, e, f],
            hop_limit: hop_limit.clamp(1, 255) as u8,
        }
    });
    this.handler.done(result);
}
