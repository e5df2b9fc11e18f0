// SPDX-License-Identifier: GPL-2.0

//! The module parameters, read once and checked (`bindings/params.c` declares them).
//!
//! Fact ids: MOD-2, MOD-3, MOD-4.

use kernel::{
    prelude::*,
    sync::SetOnce, //
};

use crate::sys::bindings;

/// Smallest ring a user may ask for.
const MIN_RING: i32 = 2;
/// Largest ring a user may ask for.
const MAX_RING: i32 = 8192;
/// Floor of the send ring after rounding (two batches of 64 completions).
const MIN_SEND_RING: u32 = 128;
/// Upper bound of `num_queues`.
const MAX_QUEUES: i32 = 64;

/// The parameters that are fixed at load, validated.
#[derive(Clone, Copy)]
pub(crate) struct Params {
    /// Send ring slots per queue; a power of two in 128..=8192.
    pub(crate) send_ring: u32,
    /// Receive ring slots per queue; a power of two in 2..=8192.
    pub(crate) recv_ring: u32,
    /// Queues per interface; `None`: chosen from CPUs and completion vectors.
    pub(crate) queues: Option<u32>,
    /// Whether RoCEv2 ports get interfaces too.
    pub(crate) roce: bool,
    /// Name of the kind of link, below [`MAX_KIND`] octets; empty: no kind is registered.
    pub(crate) link_kind: &'static CStr,
}

/// Octets that the name of a kind of link may have (rtnetlink cuts longer ones).
const MAX_KIND: usize = 55;

/// Checks the name of the kind of link.
fn link_kind() -> Result<&'static CStr> {
    // SAFETY: the parameter has mode 0444, so that nothing writes it after the module loader, and its
    // text stays until the module is gone.
    let name = unsafe { CStr::from_char_ptr(bindings::ipoib_param_link_kind) };
    let fits = name.to_bytes().len() <= MAX_KIND;
    if !fits || !name.to_bytes().iter().all(u8::is_ascii_graphic) {
        pr_err!(
            "link_kind={} is no name: up to {} printable characters, no blanks\n",
            name,
            MAX_KIND
        );
        return Err(EINVAL);
    }
    Ok(name)
}

/// What [`Params::load`] found.
static LOADED: SetOnce<Params> = SetOnce::new();

/// Checks one ring size: out of range is refused with a log line that names the range.
fn ring(name: &str, value: i32, floor: u32) -> Result<u32> {
    if !(MIN_RING..=MAX_RING).contains(&value) {
        pr_err!(
            "{}={} is out of range: {} to {}\n",
            name,
            value,
            MIN_RING,
            MAX_RING
        );
        return Err(EINVAL);
    }
    Ok(value.unsigned_abs().next_power_of_two().max(floor))
}

impl Params {
    /// Reads and checks the parameters. Call once, at load.
    ///
    /// The rounded ring sizes are written back, so the parameter files show the values in effect.
    ///
    /// # Errors
    ///
    /// `EINVAL` with a log line that says which parameter is out of which range.
    pub(crate) fn load() -> Result {
        // SAFETY: the parameters have mode 0444 in sysfs, so nothing writes them after the
        // module loader has parsed the command line, which was before `init`.
        let (send, recv, queues, roce) = unsafe {
            (
                bindings::ipoib_param_send_queue_size,
                bindings::ipoib_param_recv_queue_size,
                bindings::ipoib_param_num_queues,
                bindings::ipoib_param_roce,
            )
        };

        let params = Self {
            send_ring: ring("send_queue_size", send, MIN_SEND_RING)?,
            recv_ring: ring("recv_queue_size", recv, 2)?,
            queues: match queues {
                0 => None,
                1..=MAX_QUEUES => Some(queues.unsigned_abs()),
                _ => {
                    pr_err!(
                        "num_queues={} is out of range: 0 (automatic) or 1 to {}\n",
                        queues,
                        MAX_QUEUES
                    );
                    return Err(EINVAL);
                }
            },
            roce,
            link_kind: link_kind()?,
        };

        // SAFETY: as above; the sysfs files only read, and a torn read of an aligned `int` does
        // not happen on any supported architecture.
        unsafe {
            bindings::ipoib_param_send_queue_size = params.send_ring as i32;
            bindings::ipoib_param_recv_queue_size = params.recv_ring as i32;
        }
        let _ = LOADED.populate(params);
        Ok(())
    }

    /// The parameters in force; only after [`Params::load`] has succeeded.
    ///
    /// # Errors
    ///
    /// `EAGAIN` before that.
    pub(crate) fn get() -> Result<Self> {
        LOADED.as_ref().copied().ok_or(EAGAIN)
    }
}

/// Whether debug messages are on (`debug_level` > 0). Any context.
#[inline]
pub(crate) fn debug() -> bool {
    // SAFETY: an aligned `int` that sysfs may write at any time; a volatile read takes whichever
    // value is current.
    unsafe { core::ptr::addr_of!(bindings::ipoib_param_debug_level).read_volatile() > 0 }
}

/// Whether multicast debug messages are on (`mcast_debug_level` > 0). Any context.
#[inline]
pub(crate) fn mcast_debug() -> bool {
    // SAFETY: as in `debug`.
    unsafe { core::ptr::addr_of!(bindings::ipoib_param_mcast_debug_level).read_volatile() > 0 }
}
