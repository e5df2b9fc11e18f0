// SPDX-License-Identifier: GPL-2.0

//! A kind of link: devices that are made, changed, shown and deleted by rtnetlink.
//!
//! Devices made in this way belong to the core: whoever deletes the link unregisters them. So do
//! devices that the driver registers by [`Unregistered::register_loose`]. A device with an owner
//! ([`Registration`](super::registration::Registration)) is of the kind too, for `ip -d link`, but
//! deleting the link does nothing to it.
//!
//! C header: [`include/net/rtnetlink.h`](srctree/include/net/rtnetlink.h)

use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        Arc,
        ArcBorrow, //
    },
    types::Opaque, //
};

use super::{
    device::Device,
    ethtool::Ethtool,
    extack::ExtAck,
    ops::Adapter,
    registration::Unregistered,
    rtnl::Rtnl, //
};
use crate::sys::bindings;

/// Attributes of a link that a kind may have, all of them 16 bits wide.
pub(crate) const MAX_ATTRS: usize = 7;

/// Where the registered kind of a driver is noted.
///
/// # Invariants
///
/// Null, or the operations of the one live [`Kind`] that claimed the slot.
pub(crate) struct Slot(Atomic<*mut bindings::rtnl_link_ops>);

impl Slot {
    /// A free slot.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(null_mut()))
    }
}

/// What a driver does for its kind of link. RTNL is held in all of these.
pub(crate) trait LinkKind: Ethtool {
    /// Numbers of the attributes are 1 to this; at most [`MAX_ATTRS`].
    const ATTRS: usize;

    /// The slot of this kind; always the same one.
    fn slot() -> &'static Slot;

    /// The transmit and receive queues that a device gets whose maker does not say.
    fn default_queues() -> u32;

    /// Makes a link: builds it on `new` and registers it. May sleep.
    ///
    /// # Errors
    ///
    /// The device is freed; the driver has given up all references on it.
    fn new_link(new: NewLink<'_, Self>, request: &Request<'_>, extack: &ExtAck<'_>) -> Result;

    /// Changes attributes of a registered link. May sleep.
    fn change_link(
        this: ArcBorrow<'_, Self>,
        dev: &Device,
        request: &Request<'_>,
        extack: &ExtAck<'_>,
    ) -> Result;

    /// Calls `f` with the number and value of each attribute. May not sleep.
    fn show(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(u16, u16));

    /// The device that the link lies on, if it is another one. May not sleep.
    fn lower(this: ArcBorrow<'_, Self>) -> Option<ARef<Device>>;
}

/// What a request to make or to change a link says.
///
/// # Invariants
///
/// `tb` is a table of at least `IFLA_MAX + 1` pointers, and `data` is null or one of at least as many
/// as the kind has attributes, and one more; each pointer is null or of a valid attribute. All of it
/// is valid during `'a`, and so is `params` if it is not null.
pub(crate) struct Request<'a> {
    rtnl: &'a Rtnl,
    tb: *mut *mut bindings::nlattr,
    data: *mut *mut bindings::nlattr,
    attrs: usize,
    params: *mut bindings::rtnl_newlink_params,
}

impl<'a> Request<'a> {
    /// Attribute `number` of the kind.
    pub(crate) fn attr(&self, number: u16) -> Option<u16> {
        let number = usize::from(number);
        if self.data.is_null() || number == 0 || number > self.attrs {
            return None;
        }
        // SAFETY: within the table by the type invariant; the policy has checked the length.
        unsafe {
            let attr = *self.data.add(number);
            (!attr.is_null()).then(|| bindings::ipoib_h_nla_get_u16(attr))
        }
    }

    /// Attribute `number` of links in general.
    fn common(&self, number: u32) -> Option<NonNull<bindings::nlattr>> {
        // SAFETY: all callers pass constants of the `IFLA_` enumeration, which the table covers.
        NonNull::new(unsafe { *self.tb.add(number as usize) })
    }

    /// The address asked for, with a length that nobody has checked.
    pub(crate) fn address(&self) -> Option<&'a [u8]> {
        let attr = self.common(bindings::IPOIB_CONST_IFLA_ADDRESS)?.as_ptr();
        // SAFETY: a valid attribute holds as many octets as its length says.
        unsafe {
            let len = usize::try_from(bindings::ipoib_h_nla_len(attr)).unwrap_or(0);
            let data = bindings::ipoib_h_nla_data(attr).cast::<u8>();
            Some(core::slice::from_raw_parts(data, len))
        }
    }

    /// The MTU asked for.
    pub(crate) fn mtu(&self) -> Option<u32> {
        let attr = self.common(bindings::IPOIB_CONST_IFLA_MTU)?;
        // SAFETY: the core's policy has checked the length.
        Some(unsafe { bindings::ipoib_h_nla_get_u32(attr.as_ptr()) })
    }

    /// Whether a device to lie on is named at all.
    pub(crate) fn names_lower(&self) -> bool {
        self.common(bindings::IPOIB_CONST_IFLA_LINK).is_some()
    }

    /// The device to lie on, if it exists; only when a link is made.
    pub(crate) fn lower(&self) -> Option<&'a Device> {
        let attr = self.common(bindings::IPOIB_CONST_IFLA_LINK)?;
        if self.params.is_null() {
            return None;
        }
        // SAFETY: the attribute's length was checked by the core's policy; the namespace is valid
        // by the type invariant; RTNL is held, as `rtnl` proves, so that the device stays.
        unsafe {
            let index = bindings::ipoib_h_nla_get_u32(attr.as_ptr());
            let net = bindings::ipoib_h_link_net(self.params);
            let dev = bindings::__dev_get_by_index(net, index as c_int);
            (!dev.is_null()).then(|| Device::from_raw(dev))
        }
    }

    /// Proof that RTNL is held.
    pub(crate) fn rtnl(&self) -> &'a Rtnl {
        self.rtnl
    }
}

/// A device that the core has allocated for a new link.
///
/// # Invariants
///
/// `dev` was allocated with the size and set-up function of `T`'s kind, is not registered, its
/// private area is zeroed, and the core frees it if `new_link` fails.
pub(crate) struct NewLink<'a, T: LinkKind> {
    dev: *mut bindings::net_device,
    _life: PhantomData<(&'a Rtnl, T)>,
}

impl<T: LinkKind> NewLink<'_, T> {
    /// The view of the device.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: allocated by the type invariant.
        unsafe { Device::from_raw(self.dev) }
    }

    /// Gives the device its data.
    pub(crate) fn with(self, data: Arc<T>) -> Unregistered<T> {
        // SAFETY: by the type invariant.
        unsafe { Unregistered::adopt(self.dev, data) }
    }
}

/// A registered kind. Dropping it unregisters the kind and all links of it that have no owner; it
/// takes RTNL and may sleep.
///
/// # Invariants
///
/// If `registered`, `ops` is registered, and the slot points to it, until the drop.
#[pin_data(PinnedDrop)]
pub(crate) struct Kind<T: LinkKind> {
    #[pin]
    ops: Opaque<bindings::rtnl_link_ops>,
    #[pin]
    policy: Opaque<[bindings::nla_policy; MAX_ATTRS + 1]>,
    registered: bool,
    _kind: PhantomData<fn() -> T>,
}

// SAFETY: the value only stands for the registration; unregistering works from any thread.
unsafe impl<T: LinkKind> Send for Kind<T> {}
// SAFETY: a shared reference allows nothing.
unsafe impl<T: LinkKind> Sync for Kind<T> {}

impl<T: LinkKind> Kind<T> {
    /// Registers the kind under `name`, or nothing if that is empty. A name that is taken is no
    /// error: [`Kind::registered`] tells. Takes a mutex; may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, and `EBUSY` if the slot is in use.
    pub(crate) fn new(name: &'static CStr) -> impl PinInit<Self, Error> {
        const { assert!(T::ATTRS <= MAX_ATTRS) };
        try_pin_init!(&this in Self {
            policy <- Opaque::ffi_init(|slot: *mut [bindings::nla_policy; MAX_ATTRS + 1]| {
                let mut policy: [bindings::nla_policy; MAX_ATTRS + 1] = pin_init::zeroed();
                for entry in policy.iter_mut().skip(1) {
                    entry.type_ = bindings::IPOIB_CONST_NLA_U16 as u8;
                }
                // SAFETY: `slot` is writable.
                unsafe { slot.write(policy) }
            }),
            ops <- Opaque::ffi_init(|slot: *mut bindings::rtnl_link_ops| {
                // SAFETY: `slot` is writable, and the policy is a field of the same pinned value.
                unsafe {
                    let policy = core::ptr::addr_of!((*this.as_ptr()).policy);
                    slot.write(bindings::rtnl_link_ops {
                        kind: name.as_char_ptr(),
                        priv_size: Adapter::<T>::PRIV_SIZE,
                        setup: Some(Unregistered::<T>::setup),
                        netns_refund: true,
                        maxtype: T::ATTRS as c_uint,
                        policy: policy.cast(),
                        newlink: Some(Self::newlink),
                        changelink: Some(Self::changelink),
                        dellink: Some(Self::dellink),
                        get_size: Some(Self::get_size),
                        fill_info: Some(Self::fill_info),
                        get_num_tx_queues: Some(Self::default_queues),
                        get_num_rx_queues: Some(Self::default_queues),
                        get_link_net: Some(Self::get_link_net),
                        ..pin_init::zeroed()
                    });
                }
            }),
            registered: {
                // SAFETY: `ops` is initialised above and pinned.
                let ops = unsafe { (*this.as_ptr()).ops.get() };
                Self::register(ops, name)?
            },
            _kind: PhantomData,
        }? Error)
    }

    fn register(ops: *mut bindings::rtnl_link_ops, name: &CStr) -> Result<bool> {
        if name.is_empty() {
            return Ok(false);
        }
        let slot = &T::slot().0;
        slot.cmpxchg(null_mut(), ops, Full).map_err(|_| EBUSY)?;
        // SAFETY: `ops` is complete, and pinned until `PinnedDrop` unregisters it.
        match to_result(unsafe { bindings::rtnl_link_register(ops) }) {
            Ok(()) => Ok(true),
            Err(e) => {
                slot.store(null_mut(), Release);
                if e == EEXIST {
                    Ok(false)
                } else {
                    Err(e)
                }
            }
        }
    }

    /// Whether the kind could be registered.
    pub(crate) fn registered(&self) -> bool {
        self.registered
    }

    /// The operations that a device of this kind is to carry; null if the kind is not registered.
    pub(super) fn ops() -> *mut bindings::rtnl_link_ops {
        T::slot().0.load(Acquire)
    }

    /// # Safety
    ///
    /// Called by rtnetlink, RTNL held, with a new device of this kind.
    unsafe extern "C" fn newlink(
        dev: *mut bindings::net_device,
        params: *mut bindings::rtnl_newlink_params,
        extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: the parameters and tables are valid during the call, sized for the common
        // attributes and for `maxtype`; RTNL is held.
        unsafe {
            let rtnl = Rtnl::assume_held();
            let request = Request {
                rtnl: &rtnl,
                tb: (*params).tb,
                data: (*params).data,
                attrs: T::ATTRS,
                params,
            };
            let new = NewLink {
                dev,
                _life: PhantomData,
            };
            from_result(|| T::new_link(new, &request, &ExtAck::from_raw(extack)).map(|()| 0))
        }
    }

    /// # Safety
    ///
    /// Called by rtnetlink, RTNL held, for a registered device of this kind.
    unsafe extern "C" fn changelink(
        dev: *mut bindings::net_device,
        tb: *mut *mut bindings::nlattr,
        data: *mut *mut bindings::nlattr,
        extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: as in `newlink`; the device is registered, so its data is there.
        unsafe {
            let rtnl = Rtnl::assume_held();
            let request = Request {
                rtnl: &rtnl,
                tb,
                data,
                attrs: T::ATTRS,
                params: null_mut(),
            };
            let (this, view) = (Adapter::<T>::data(dev), Device::from_raw(dev));
            from_result(|| {
                T::change_link(this, view, &request, &ExtAck::from_raw(extack)).map(|()| 0)
            })
        }
    }

    /// # Safety
    ///
    /// Called by rtnetlink, RTNL held, for a registered device of this kind; `head` is a list of
    /// devices to be unregistered.
    unsafe extern "C" fn dellink(dev: *mut bindings::net_device, head: *mut bindings::list_head) {
        // SAFETY: RTNL is held and the device is registered; one with an owner stays.
        unsafe {
            if Adapter::<T>::is_loose(dev, &Rtnl::assume_held()) {
                bindings::unregister_netdevice_queue(dev, head);
            }
        }
    }

    /// # Safety
    ///
    /// Called by rtnetlink for a registered device of this kind.
    unsafe extern "C" fn get_size(_dev: *const bindings::net_device) -> usize {
        // SAFETY: only computes.
        T::ATTRS.saturating_mul(unsafe { bindings::ipoib_h_nla_total_size(2) })
    }

    /// # Safety
    ///
    /// Called by rtnetlink for a registered device of this kind, with a message under construction.
    unsafe extern "C" fn fill_info(
        skb: *mut bindings::sk_buff,
        dev: *const bindings::net_device,
    ) -> c_int {
        // SAFETY: the device is registered, so its data is there.
        let this = unsafe { Adapter::<T>::data(dev.cast_mut()) };
        let mut result = 0;
        T::show(this, &mut |number, value| {
            if result == 0 {
                let data = core::ptr::from_ref(&value).cast();
                // SAFETY: the message is the caller's; the two octets are copied.
                result = unsafe { bindings::nla_put(skb, number.into(), 2, data) };
            }
        });
        result
    }

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn default_queues() -> c_uint {
        T::default_queues()
    }

    /// # Safety
    ///
    /// Called by rtnetlink, RTNL held, for a registered device of this kind.
    unsafe extern "C" fn get_link_net(dev: *const bindings::net_device) -> *mut bindings::net {
        // SAFETY: the device is registered, so its data is there. The lower device is in the
        // namespace that is returned and does not leave it while RTNL is held.
        unsafe {
            match T::lower(Adapter::<T>::data(dev.cast_mut())) {
                Some(lower) => bindings::ipoib_h_dev_net(lower.as_ptr()),
                None => bindings::ipoib_h_dev_net(dev),
            }
        }
    }
}

#[pinned_drop]
impl<T: LinkKind> PinnedDrop for Kind<T> {
    fn drop(self: Pin<&mut Self>) {
        if self.registered {
            // No device takes up the operations any more.
            T::slot().0.store(null_mut(), Release);
            // SAFETY: registered by the type invariant.
            unsafe { bindings::rtnl_link_unregister(self.ops.get()) };
        }
    }
}

/// Unregisters all devices that `each` names, together; those that have an owner or are not
/// registered stay. The devices are freed when RTNL is given back, by which time the caller has
/// dropped its references to them. May sleep.
pub(crate) fn unregister<T: LinkKind>(rtnl: &Rtnl, each: impl FnOnce(&mut dyn FnMut(&Device))) {
    let mut head = bindings::list_head::default();
    let at = core::ptr::addr_of_mut!(head);
    // SAFETY: an empty list points to itself.
    unsafe {
        (*at).next = at;
        (*at).prev = at;
    }
    each(&mut |dev| {
        // SAFETY: RTNL is held, and the adapter says that the device is ours, registered and
        // without an owner. One that is on the list already is only moved.
        unsafe {
            if Adapter::<T>::owns(dev) && Adapter::<T>::is_loose(dev.as_ptr(), rtnl) {
                bindings::unregister_netdevice_queue(dev.as_ptr(), at);
            }
        }
    });
    // SAFETY: a list of registered devices; empty is fine.
    unsafe { bindings::unregister_netdevice_many(at) };
}

/// The data of `dev` if that is a registered device of `T`'s.
pub(crate) fn data_of<'a, T: LinkKind>(
    dev: &'a Device,
    rtnl: &'a Rtnl,
) -> Option<ArcBorrow<'a, T>> {
    if !dev.registered(rtnl) || !Adapter::<T>::owns(dev) {
        return None;
    }
    // SAFETY: the operations tell that the device is of this adapter, so its data is there from
    // before the registration until after RTNL was given back by whoever unregistered it.
    Some(unsafe { Adapter::<T>::data(dev.as_ptr()) })
}
