// SPDX-License-Identifier: GPL-2.0

//! What the suites share: values that tell when they are dropped, and objects from the kernel.

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
};

use crate::{
    net::{device::Device, skb::SkBuff},
    sys::bindings,
};

// As for the driver: only pointers to these types cross over.
#[allow(improper_ctypes)]
extern "C" {
    fn stock_netdev() -> *mut bindings::net_device;
    fn stock_free_netdev(dev: *mut bindings::net_device);
    fn stock_skb(headroom: u32, len: u32) -> *mut bindings::sk_buff;
    fn stock_skb_add_page(skb: *mut bindings::sk_buff, len: u32) -> i32;
    fn stock_skb_users(skb: *mut bindings::sk_buff) -> i32;
    fn stock_skb_get(skb: *mut bindings::sk_buff) -> *mut bindings::sk_buff;
    fn stock_skb_clone(skb: *mut bindings::sk_buff) -> *mut bindings::sk_buff;
    fn stock_skb_free(skb: *mut bindings::sk_buff);
    fn stock_softirqs_off() -> u32;
    fn stock_bh_disable();
    fn stock_bh_enable();
}

/// How many [`Token`]s have been dropped, and which one last.
pub(crate) struct Tally {
    dropped: Atomic<u32>,
    last: Atomic<u32>,
}

impl Tally {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                dropped: Atomic::new(0),
                last: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    pub(crate) fn dropped(&self) -> u32 {
        self.dropped.load(Relaxed)
    }

    pub(crate) fn last(&self) -> u32 {
        self.last.load(Relaxed)
    }
}

/// Tells its tally when it is dropped.
pub(crate) struct Token {
    tally: Arc<Tally>,
    number: u32,
}

impl Token {
    pub(crate) fn new(tally: &Arc<Tally>, number: u32) -> Self {
        Self {
            tally: tally.clone(),
            number,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn key_ref(&self) -> &u32 {
        &self.number
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.tally.last.store(self.number, Relaxed);
        self.tally.dropped.fetch_add(1, Full);
    }
}

/// A network device that is never registered.
pub(crate) struct Netdev(NonNull<bindings::net_device>);

impl Netdev {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no preconditions.
        Ok(Self(NonNull::new(unsafe { stock_netdev() }).ok_or(ENOMEM)?))
    }

    pub(crate) fn device(&self) -> &Device {
        // SAFETY: valid until the drop.
        unsafe { Device::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing refers to it any more.
        unsafe { stock_free_netdev(self.0.as_ptr()) }
    }
}

/// A packet of `len` octets, each 0x5a.
pub(crate) fn packet(headroom: u32, len: u32) -> Result<SkBuff> {
    // SAFETY: no preconditions.
    let ptr = NonNull::new(unsafe { stock_skb(headroom, len) }).ok_or(ENOMEM)?;
    // SAFETY: new, and ours alone.
    Ok(unsafe { SkBuff::from_raw(ptr) })
}

/// Appends a page with `len` octets.
pub(crate) fn add_page(skb: &mut SkBuff, len: u32) -> Result {
    // SAFETY: a packet of ours with room for fragments.
    kernel::error::to_result(unsafe { stock_skb_add_page(skb.as_ptr(), len) })
}

/// A second reference on a packet, to watch it by.
pub(crate) struct Watch(*mut bindings::sk_buff);

impl Watch {
    pub(crate) fn on(skb: &SkBuff) -> Self {
        // SAFETY: a valid packet.
        Self(unsafe { stock_skb_get(skb.as_ptr()) })
    }

    /// References besides this one.
    pub(crate) fn others(&self) -> i32 {
        // SAFETY: this reference keeps it.
        unsafe { stock_skb_users(self.0) - 1 }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the reference is ours.
        unsafe { stock_skb_free(self.0) }
    }
}

/// Another packet with the same data.
pub(crate) fn clone_of(skb: &SkBuff) -> Result<SkBuff> {
    // SAFETY: a valid packet.
    let ptr = NonNull::new(unsafe { stock_skb_clone(skb.as_ptr()) }).ok_or(ENOMEM)?;
    // SAFETY: new, and ours alone.
    Ok(unsafe { SkBuff::from_raw(ptr) })
}

/// Whether bottom halves are off.
pub(crate) fn bottom_halves_off() -> bool {
    // SAFETY: reads a counter of this task.
    unsafe { stock_softirqs_off() != 0 }
}

/// Calls `f` as the receive path is called: with bottom halves off.
pub(crate) fn in_bottom_half<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: given back below.
    unsafe { stock_bh_disable() };
    let result = f();
    // SAFETY: taken above.
    unsafe { stock_bh_enable() };
    result
}
