// SPDX-License-Identifier: GPL-2.0

//! Being told of the RDMA devices that come and go.

use core::{
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::flags::GFP_KERNEL,
    error::{from_result, to_result},
    ffi::{c_int, c_void},
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Release},
        Arc, Completion,
    },
    types::Opaque,
};

use super::{
    device::DeviceHandle,
    resolve::{AF_INET, AF_INET6},
};
use crate::{
    base::netdev::HeldNetdev,
    sys::bindings as sys,
    wire::{gid::Gid, pkey::PKey},
};

/// Whom a request of the connection manager is for, as far as it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee {
    /// Number of the port that it came in on.
    pub(crate) port: u32,
    /// The P_Key that it came with.
    pub(crate) pkey: PKey,
    /// The GID that it is for; datagram services (SIDR) name none.
    pub(crate) gid: Option<Gid>,
    /// The IP address that it is for, if it has one.
    pub(crate) ip: Option<IpAddr>,
}

/// Where a registered client notes the address of its `struct ib_client`.
///
/// C passes only the device to the `add` callback, so the adapter needs a static to find the
/// client. Each implementation of [`Client`] supplies one:
///
/// ```ignore
/// static SLOT: Slot = Slot::new();
/// ```
///
/// # Invariants
///
/// Null, or the client of the one live [`Registration`] that claimed the slot.
pub(crate) struct Slot(Atomic<*mut sys::ib_client>);

impl Slot {
    /// A free slot.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(null_mut()))
    }
}

/// Someone who uses RDMA devices. The core calls it serialised per device.
pub(crate) trait Client: 'static {
    /// What the client keeps per device.
    type Data: Send + Sync;

    /// Name of the client, as `struct ib_client` wants it.
    const NAME: &'static CStr;

    /// The slot of this client; always the same one.
    fn slot() -> &'static Slot;

    /// A device appeared. Process context, may sleep; the core holds its client lock for reading.
    ///
    /// An error means that the client has no interest in the device: [`Client::remove`] will not be
    /// called for it. The core does not report the error. Even then every clone of `device` must
    /// be dropped; this waits for it.
    fn add(device: &DeviceHandle) -> Result<Self::Data>;

    /// The device goes away, or the registration is dropped. Process context, may sleep, no lock
    /// of the core is held.
    ///
    /// After this returns, the removal waits until all clones of `device` are dropped.
    fn remove(device: &DeviceHandle, data: Self::Data);

    /// The network device that a request of the connection manager on an InfiniBand port is for; whether
    /// that is up and has a route to the sender is the caller's business. Process context, may sleep; the
    /// core holds its lock on client data for reading, so RTNL must not be taken.
    fn addressed(data: &Self::Data, to: &Addressee) -> Option<HeldNetdev>;
}

/// What the core stores per device for this client.
struct PerDevice<T: Client> {
    data: T::Data,
    device: DeviceHandle,
    gone: Arc<Completion>,
}

/// A registered client.
///
/// Creating it calls [`Client::add`] for every device that is there; dropping it calls
/// [`Client::remove`] for each and waits for the device handles. Both sleep. At most one
/// registration per [`Slot`] exists at a time (`EBUSY`).
///
/// # Invariants
///
/// `raw` is registered with the core, and its slot points to it, from a successful `new` until the
/// drop.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: Client> {
    #[pin]
    raw: Opaque<sys::ib_client>,
    _p: PhantomData<fn() -> T>,
}

// SAFETY: The value only stands for the registration; unregistering works from any thread.
unsafe impl<T: Client> Send for Registration<T> {}
// SAFETY: A shared reference allows nothing.
unsafe impl<T: Client> Sync for Registration<T> {}

impl<T: Client> Registration<T> {
    /// Registers the client.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            raw <- Opaque::try_ffi_init(|raw: *mut sys::ib_client| {
                let slot = &T::slot().0;
                slot.cmpxchg(null_mut(), raw, Full).map_err(|_| EBUSY)?;
                let client = sys::ib_client {
                    name: T::NAME.as_char_ptr(),
                    add: Some(add::<T>),
                    remove: Some(remove::<T>),
                    get_net_dev_by_params: Some(addressed::<T>),
                    ..Default::default()
                };
                // SAFETY: `raw` is valid for writes and stays where it is, being pinned; the
                // callbacks fit `T`, and `PinnedDrop` unregisters before the memory goes away.
                let registered = unsafe {
                    raw.write(client);
                    to_result(sys::ib_register_client(raw))
                };
                if registered.is_err() {
                    slot.store(null_mut(), Release);
                }
                registered
            }),
            _p: PhantomData,
        }? Error)
    }
}

#[pinned_drop]
impl<T: Client> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants the client is registered. This returns when all `remove`
        // callbacks have.
        unsafe { sys::ib_unregister_client(self.raw.get()) };
        T::slot().0.store(null_mut(), Release);
    }
}

/// `ib_client.add`.
///
/// # Safety
///
/// Called by the core for a registered `Registration<T>`, with a registered device that stays so
/// until `remove` has returned, or until this has returned an error.
unsafe extern "C" fn add<T: Client>(device: *mut sys::ib_device) -> c_int {
    from_result(|| {
        let raw = NonNull::new(device).ok_or(EINVAL)?;
        let place = KBox::<PerDevice<T>>::new_uninit(GFP_KERNEL)?;
        // SAFETY: The device is registered; we wait for `gone` below or in `remove`.
        let (device, gone) = unsafe { DeviceHandle::new(raw) }?;
        match T::add(&device) {
            Ok(data) => {
                let per_device = KBox::into_raw(place.write(PerDevice::<T> { data, device, gone }));
                // SAFETY: The slot holds our registered client while callbacks run, and `remove`
                // takes the pointer back.
                unsafe {
                    sys::ib_set_client_data(
                        raw.as_ptr(),
                        T::slot().0.load(Acquire),
                        per_device.cast(),
                    )
                };
                Ok(0)
            }
            Err(e) => {
                drop(device);
                gone.wait_for_completion();
                Err(e)
            }
        }
    })
}

/// `ib_client.remove`.
///
/// # Safety
///
/// Called by the core once per device for which `add::<T>` succeeded, with the data set there.
unsafe extern "C" fn remove<T: Client>(_device: *mut sys::ib_device, data: *mut c_void) {
    if data.is_null() {
        // Cannot be: the core reserves the entry before it calls `add`, so that storing the data
        // there needs no memory.
        return;
    }
    // SAFETY: `add` leaked this box, and the core passes the pointer to us once.
    let per_device = KBox::into_inner(unsafe { KBox::from_raw(data.cast::<PerDevice<T>>()) });
    let PerDevice { data, device, gone } = per_device;
    T::remove(&device, data);
    drop(device);
    gone.wait_for_completion();
}

/// The address in a socket address of either IP family.
///
/// # Safety
///
/// `addr` is null or valid, and as long as its family demands.
unsafe fn ip(addr: *const sys::sockaddr) -> Option<IpAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: By the safety requirements.
    unsafe {
        match (*addr).sa_family {
            AF_INET => {
                let v4 = &*addr.cast::<sys::sockaddr_in>();
                Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
            }
            AF_INET6 => {
                let v6 = &*addr.cast::<sys::sockaddr_in6>();
                Some(Ipv6Addr::from(v6.sin6_addr.in6_u.u6_addr8).into())
            }
            _ => None,
        }
    }
}

/// `ib_client.get_net_dev_by_params`.
///
/// # Safety
///
/// Called by the core for a device for which `add::<T>` succeeded and `remove::<T>` was not called yet
/// nor will be during the call, with the data set there; `gid` is null or valid, `addr` a socket address.
unsafe extern "C" fn addressed<T: Client>(
    _device: *mut sys::ib_device,
    port: u32,
    pkey: u16,
    gid: *const sys::ib_gid,
    addr: *const sys::sockaddr,
    data: *mut c_void,
) -> *mut sys::net_device {
    if data.is_null() {
        return null_mut();
    }
    // SAFETY: `add` leaked this box, which only `remove` takes back; the other pointers are as the
    // safety requirements say.
    let (per_device, to) = unsafe {
        let to = Addressee {
            port,
            pkey: PKey(pkey),
            gid: (!gid.is_null()).then(|| Gid((*gid).raw)),
            ip: ip(addr),
        };
        (&*data.cast::<PerDevice<T>>(), to)
    };
    T::addressed(&per_device.data, &to).map_or(null_mut(), HeldNetdev::into_raw)
}
