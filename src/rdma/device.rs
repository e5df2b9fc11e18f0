// SPDX-License-Identifier: GPL-2.0

//! RDMA devices.

use core::{fmt, ops::RangeInclusive, ptr::NonNull};
use kernel::{
    alloc::flags::GFP_KERNEL,
    device::Device,
    new_mutex,
    prelude::*,
    sync::{Arc, Completion, Mutex},
};

use super::port::Port;
use crate::{
    base::netns::Net,
    sys::{bindings as sys, compat::limit},
};

/// A piece of text of the device, at most `N` bytes long.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// The text; empty if the driver supplied something that is not UTF-8.
    pub(crate) fn as_str(&self) -> &str {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or(&[]);
        core::str::from_utf8(text).unwrap_or("")
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> kernel::fmt::Display for Text<N> {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Limits and capabilities that stay as they are while the device exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttrs {
    /// Most gather entries of a send request.
    pub(crate) max_send_sge: u32,
    /// Most scatter entries of a receive request.
    pub(crate) max_recv_sge: u32,
    /// Most outstanding requests of one work queue.
    pub(crate) max_qp_wr: u32,
    /// Most entries of a completion queue.
    pub(crate) max_cqe: u32,
    /// Most queue pairs attached to one multicast group.
    pub(crate) max_mcast_qp_attach: u32,
    /// Shared receive queues; 0 if there are none.
    pub(crate) max_srq: u32,
    /// Outstanding requests of a shared receive queue.
    pub(crate) max_srq_wr: u32,
    /// Scatter entries of a shared receive queue's request.
    pub(crate) max_srq_sge: u32,
    /// `enum ib_device_cap_flags`.
    pub(crate) device_cap_flags: u64,
    /// `enum ib_kernel_cap_flags`.
    pub(crate) kernel_cap_flags: u64,
}

impl DeviceAttrs {
    /// Whether the device fills in and checks TCP and UDP checksums of IPoIB datagrams.
    pub(crate) fn ip_csum(&self) -> bool {
        let flag = sys::ib_device_cap_flags::IB_DEVICE_UD_IP_CSUM.0 as u64;
        self.device_cap_flags & flag != 0
    }

    /// Whether the device segments large TCP packets of IPoIB (LSO).
    pub(crate) fn ud_tso(&self) -> bool {
        self.kernel_cap_flags & u64::from(sys::ib_kernel_cap_flags::IBK_UD_TSO.0) != 0
    }

    /// Whether a queue pair can be told not to receive its own multicasts.
    pub(crate) fn block_multicast_loopback(&self) -> bool {
        self.kernel_cap_flags & u64::from(sys::ib_kernel_cap_flags::IBK_BLOCK_MULTICAST_LOOPBACK.0)
            != 0
    }

    /// Whether this is a virtual function, which must not set the port's GUIDs.
    pub(crate) fn virtual_function(&self) -> bool {
        self.kernel_cap_flags & u64::from(sys::ib_kernel_cap_flags::IBK_VIRTUAL_FUNCTION.0) != 0
    }
}

/// What all clones of a [`DeviceHandle`] share.
///
/// # Invariants
///
/// `raw` is a registered device whose clients are not yet gone: the removal of this client waits
/// for `gone`, which only the drop of this value completes.
#[pin_data(PinnedDrop)]
struct Inner {
    raw: NonNull<sys::ib_device>,
    name: Text<{ NAME_MAX }>,
    attrs: DeviceAttrs,
    gone: Arc<Completion>,
    /// Held while a queue pair is attached to a multicast group or detached.
    #[pin]
    attaching: Mutex<()>,
}

/// Length of a device name, the closing zero included (`IB_DEVICE_NAME_MAX`).
const NAME_MAX: usize = 64;

/// Length of a firmware version (`IB_FW_VERSION_NAME_MAX`).
const FW_VERSION_MAX: usize = 32;

// SAFETY: `struct ib_device` may be used from any thread; the core and the drivers lock it.
unsafe impl Send for Inner {}
// SAFETY: As above.
unsafe impl Sync for Inner {}

#[pinned_drop]
impl PinnedDrop for Inner {
    fn drop(self: Pin<&mut Self>) {
        self.gone.complete_all();
    }
}

/// A counted reference that keeps an RDMA device registered.
///
/// The removal of the device waits, without a limit, until all clones are dropped. So a client
/// drops its own in [`Client::remove`](super::Client::remove) and makes sure that everything it
/// built on the device follows.
///
/// Cloning and dropping work in any context.
#[derive(Clone)]
pub(crate) struct DeviceHandle(Arc<Inner>);

impl DeviceHandle {
    /// Makes the first handle of a device, and the completion that fires when the last is dropped.
    ///
    /// Sleeps.
    ///
    /// # Safety
    ///
    /// `raw` must be a registered device, and must stay one until the completion has fired, for
    /// which the caller must wait if this succeeds.
    pub(super) unsafe fn new(raw: NonNull<sys::ib_device>) -> Result<(Self, Arc<Completion>)> {
        let gone = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        // SAFETY: The caller passes a valid device; its attributes do not change after
        // registration.
        let attrs = unsafe { &(*raw.as_ptr()).attrs };
        let attrs = DeviceAttrs {
            max_send_sge: limit(attrs.max_send_sge),
            max_recv_sge: limit(attrs.max_recv_sge),
            max_qp_wr: limit(attrs.max_qp_wr),
            max_cqe: limit(attrs.max_cqe),
            max_mcast_qp_attach: limit(attrs.max_mcast_qp_attach),
            max_srq: limit(attrs.max_srq),
            max_srq_wr: limit(attrs.max_srq_wr),
            max_srq_sge: limit(attrs.max_srq_sge),
            device_cap_flags: attrs.device_cap_flags,
            kernel_cap_flags: attrs.kernel_cap_flags,
        };
        let mut name = [0; NAME_MAX];
        // SAFETY: As above. A rename at this moment could tear the text, nothing worse.
        name.copy_from_slice(unsafe { &(*raw.as_ptr()).name });
        let fires = gone.clone();
        let inner = pin_init!(Inner {
            raw,
            name: Text(name),
            attrs,
            gone: fires,
            attaching <- new_mutex!((), "mcast_attach"),
        });
        Ok((Self(Arc::pin_init(inner, GFP_KERNEL)?), gone))
    }

    /// The C object, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut sys::ib_device {
        self.0.raw.as_ptr()
    }

    /// The lock for attaching to multicast groups; see [`McastAttach`](super::McastAttach).
    pub(super) fn attaching(&self) -> &Mutex<()> {
        &self.0.attaching
    }

    /// Whether both handles are of the same device.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The name that the device had when it was added, such as `mlx5_0`.
    pub(crate) fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Limits and capabilities.
    pub(crate) fn attrs(&self) -> &DeviceAttrs {
        &self.0.attrs
    }

    /// The port numbers: 1 and up, or 0 alone for a switch.
    pub(crate) fn ports(&self) -> RangeInclusive<u32> {
        // SAFETY: The device is valid.
        let (first, last) = unsafe {
            (
                sys::ipoib_h_rdma_start_port(self.as_ptr()),
                sys::ipoib_h_rdma_end_port(self.as_ptr()),
            )
        };
        first..=last
    }

    /// Port `number`, if the device has it.
    pub(crate) fn port(&self, number: u32) -> Option<Port> {
        self.ports()
            .contains(&number)
            .then(|| Port::new(self.clone(), number))
    }

    /// Number of completion vectors; a [`Cq`](super::Cq) is created on one of them.
    pub(crate) fn num_comp_vectors(&self) -> u32 {
        // SAFETY: The device is valid; the field is set before registration.
        let vectors = unsafe { (*self.as_ptr()).num_comp_vectors };
        u32::try_from(vectors).unwrap_or(0)
    }

    /// The generic device of the RDMA device itself, for log messages.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: The device is valid as long as `self`, and so is the embedded `struct device`.
        unsafe { Device::from_raw(self.raw_device()) }
    }

    /// The device on the bus, if there is one; a software device such as rxe has none.
    pub(crate) fn parent_device(&self) -> Option<&Device> {
        // SAFETY: The device is valid; a registered device keeps its parent.
        unsafe {
            let parent = (*self.raw_device()).parent;
            (!parent.is_null()).then(|| Device::from_raw(parent))
        }
    }

    /// The embedded generic device.
    fn raw_device(&self) -> *mut kernel::bindings::device {
        // SAFETY: The device is valid, only an address is computed. The generic device is a member
        // of this union.
        unsafe { &raw mut (*self.as_ptr()).__bindgen_anon_1 }.cast()
    }

    /// The network namespace that the device belongs to.
    ///
    /// Moving the device to another namespace detaches its clients first.
    ///
    /// Fails with `ENODEV` if there is none.
    pub(crate) fn net(&self) -> Result<Net<'_>> {
        // SAFETY: The device is valid.
        let net = unsafe { sys::ipoib_h_rdma_dev_net(self.as_ptr()) };
        let net = NonNull::new(net).ok_or(ENODEV)?;
        // SAFETY: The namespace stays as long as the device is in it, which it does not leave while
        // there are handles.
        Ok(unsafe { Net::from_raw(net) })
    }

    /// The firmware version, empty if the driver does not tell. May sleep.
    pub(crate) fn fw_version(&self) -> Text<{ FW_VERSION_MAX }> {
        let mut text = [0; FW_VERSION_MAX];
        // SAFETY: The device is valid and drivers write at most `IB_FW_VERSION_NAME_MAX` bytes.
        unsafe { sys::ib_get_device_fw_str(self.as_ptr(), text.as_mut_ptr()) };
        Text(text)
    }
}

const _: () = assert!(NAME_MAX == sys::IB_DEVICE_NAME_MAX as usize);
const _: () = assert!(FW_VERSION_MAX == sys::ETHTOOL_FWVERS_LEN as usize);
