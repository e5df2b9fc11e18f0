// SPDX-License-Identifier: GPL-2.0

//! `ethtool` callbacks as a trait.
//!
//! C header: [`include/linux/ethtool.h`](srctree/include/linux/ethtool.h)

use kernel::{
    error::from_result,
    ffi::c_int,
    prelude::*,
    sync::ArcBorrow, //
};

use super::{
    extack::ExtAck,
    ops::{
        Adapter,
        Ops, //
    }, //
};
use crate::sys::{
    bindings,
    compat::unsupported, //
};

/// The set of strings that [`Ethtool::statistics`] fills.
const SS_STATS: c_int = bindings::ethtool_stringset_ETH_SS_STATS as c_int;

/// What `ethtool` asks a driver.
pub(crate) trait Ethtool: Ops {
    /// Calls `f` with the driver's name, the firmware's version and the bus address of the device.
    /// RTNL held; may sleep.
    fn info(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(&str, &str, &str));

    /// Calls `f` with the name (below 32 octets) and value of each counter, always the same names
    /// in the same order. RTNL held; may sleep.
    fn statistics(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(kernel::fmt::Arguments<'_>, u64));

    /// Speed of the link in Mb/s; only asked while there is carrier. RTNL held; may sleep, but must
    /// not take RTNL.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not known.
    fn speed(this: ArcBorrow<'_, Self>) -> Result<u32>;

    /// How received frames are coalesced now. RTNL held.
    fn coalescing(this: ArcBorrow<'_, Self>) -> Coalescing;

    /// Changes the coalescing of received frames, or nothing at all. RTNL held; may sleep.
    ///
    /// # Errors
    ///
    /// What the hardware says, and `EINVAL` for values out of range; `extack` says why.
    fn coalesce(this: ArcBorrow<'_, Self>, wanted: Coalescing, extack: &ExtAck<'_>) -> Result;
}

/// What the hardware waits for before it tells of received frames; zeros: for nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Coalescing {
    /// Microseconds.
    pub(crate) usecs: u32,
    /// Frames.
    pub(crate) frames: u32,
}

impl<T: Ethtool> Adapter<T> {
    pub(super) const ETHTOOL_OPS: bindings::ethtool_ops = bindings::ethtool_ops {
        get_drvinfo: Some(Self::get_drvinfo),
        get_link: Some(bindings::ethtool_op_get_link),
        get_strings: Some(Self::get_strings),
        get_ethtool_stats: Some(Self::get_stats),
        get_sset_count: Some(Self::get_sset_count),
        get_link_ksettings: Some(Self::get_link_ksettings),
        get_coalesce: Some(Self::get_coalesce),
        set_coalesce: Some(Self::set_coalesce),
        supported_coalesce_params: bindings::IPOIB_CONST_ETHTOOL_COALESCE_RX,
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; `info` is zeroed.
    unsafe extern "C" fn get_drvinfo(
        dev: *mut bindings::net_device,
        info: *mut bindings::ethtool_drvinfo,
    ) {
        // SAFETY: the core keeps the device registered, and `info` is the caller's.
        let (this, info) = unsafe { (Self::data(dev), &mut *info) };
        T::info(this, &mut |driver, firmware, bus| {
            copy(&mut info.driver, driver);
            copy(&mut info.fw_version, firmware);
            copy(&mut info.bus_info, bus);
        });
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter.
    unsafe extern "C" fn get_sset_count(dev: *mut bindings::net_device, set: c_int) -> c_int {
        if set != SS_STATS {
            return unsupported().to_errno();
        }
        let mut n = 0;
        // SAFETY: the core keeps the device registered.
        T::statistics(unsafe { Self::data(dev) }, &mut |_, _| n += 1);
        n
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; `data` has room for as many
    /// strings as [`Self::get_sset_count`] said.
    unsafe extern "C" fn get_strings(dev: *mut bindings::net_device, set: u32, data: *mut u8) {
        if set as c_int != SS_STATS {
            return;
        }
        let mut at = data;
        // SAFETY: the core keeps the device registered.
        T::statistics(unsafe { Self::data(dev) }, &mut |name, _| {
            let mut text = [0; bindings::ETH_GSTRING_LEN as usize];
            let mut writer = kernel::str::Formatter::new(&mut text);
            // A name that is too long is cut.
            let _ = kernel::fmt::Write::write_fmt(&mut writer, name);
            // SAFETY: one string further for each counter, all within the room.
            unsafe {
                at.cast::<[u8; bindings::ETH_GSTRING_LEN as usize]>()
                    .write(text);
                at = at.add(text.len());
            }
        });
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; `data` has room for as many
    /// values as [`Self::get_sset_count`] said.
    unsafe extern "C" fn get_stats(
        dev: *mut bindings::net_device,
        _stats: *mut bindings::ethtool_stats,
        data: *mut u64,
    ) {
        let mut at = data;
        // SAFETY: the core keeps the device registered.
        T::statistics(unsafe { Self::data(dev) }, &mut |_, value| {
            // SAFETY: one value further for each counter, all within the room.
            unsafe {
                at.write(value);
                at = at.add(1);
            }
        });
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; `settings` is zeroed.
    unsafe extern "C" fn get_link_ksettings(
        dev: *mut bindings::net_device,
        settings: *mut bindings::ethtool_link_ksettings,
    ) -> c_int {
        // SAFETY: the core keeps the device registered, and `settings` is the caller's.
        let (this, carrier, base) = unsafe {
            (
                Self::data(dev),
                bindings::ipoib_h_netif_carrier_ok(dev),
                &mut (*settings).base,
            )
        };
        from_result(|| {
            if !carrier {
                base.speed = bindings::SPEED_UNKNOWN as u32;
                base.duplex = bindings::DUPLEX_UNKNOWN as u8;
                return Ok(0);
            }
            base.speed = T::speed(this)?;
            base.duplex = bindings::DUPLEX_FULL as u8;
            base.phy_address = 0xff;
            base.autoneg = bindings::AUTONEG_ENABLE as u8;
            base.port = bindings::PORT_OTHER as u8;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; `coalesce` is zeroed.
    unsafe extern "C" fn get_coalesce(
        dev: *mut bindings::net_device,
        coalesce: *mut bindings::ethtool_coalesce,
        _kernel: *mut bindings::kernel_ethtool_coalesce,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: the core keeps the device registered, and `coalesce` is the caller's.
        let (this, out) = unsafe { (Self::data(dev), &mut *coalesce) };
        let now = T::coalescing(this);
        out.rx_coalesce_usecs = now.usecs;
        out.rx_max_coalesced_frames = now.frames;
        0
    }

    /// # Safety
    ///
    /// Called by the core, RTNL held, for a device of this adapter; the core has refused what
    /// `supported_coalesce_params` does not name.
    unsafe extern "C" fn set_coalesce(
        dev: *mut bindings::net_device,
        coalesce: *mut bindings::ethtool_coalesce,
        _kernel: *mut bindings::kernel_ethtool_coalesce,
        extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: the core keeps the device registered, and the rest is the caller's; `extack` may be null.
        let (this, wanted, extack) =
            unsafe { (Self::data(dev), &*coalesce, ExtAck::from_raw(extack)) };
        let wanted = Coalescing {
            usecs: wanted.rx_coalesce_usecs,
            frames: wanted.rx_max_coalesced_frames,
        };
        from_result(|| T::coalesce(this, wanted, &extack).map(|()| 0))
    }
}

/// Copies `text` into a zeroed C string field, leaving the last octet zero.
fn copy<const N: usize>(to: &mut [kernel::ffi::c_char; N], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *to = from;
    }
}
