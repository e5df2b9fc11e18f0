// SPDX-License-Identifier: GPL-2.0

//! Files of a driver in the sysfs folders of its network devices.
//!
//! They appear and go with the device: unregistering waits, with RTNL held, for handlers that run. A
//! handler that needs RTNL therefore only tries it
//! ([`Rtnl::try_lock`](super::rtnl::Rtnl::try_lock)).
//!
//! A driver makes a list of [`File`]s, closed by a `None`, and a [`Group`] of it:
//!
//! ```ignore
//! static COLOUR: File = File::of::<Driver, Colour>();
//! static FILES: [Option<&'static File>; 2] = [Some(&COLOUR), None];
//! static GROUP: Group = Group::new(&FILES);
//! ```
//!
//! C header: [`include/linux/sysfs.h`](srctree/include/linux/sysfs.h)

use kernel::{
    container_of,
    error::from_result,
    ffi::c_char,
    fmt,
    prelude::*,
    sync::ArcBorrow, //
};

use super::{
    device::Device,
    ops::{
        Adapter,
        Ops, //
    }, //
};
use crate::sys::bindings;

/// Longest text that a file shows, in octets.
const TEXT: usize = 128;

/// One file in the folder of `T`'s devices. Handlers run in process context without RTNL and may
/// sleep; the device is registered or about to go, and stays until they return.
pub(crate) trait Attribute<T: Ops>: 'static {
    /// Name of the file.
    const NAME: &'static CStr;
    /// Permissions.
    const MODE: u16;

    /// Writes what the file shows, at most 128 octets.
    ///
    /// # Errors
    ///
    /// What the reader gets; `EIO` for a file that cannot be read.
    fn show(_this: ArcBorrow<'_, T>, _dev: &Device, _f: &mut dyn fmt::Write) -> Result {
        Err(EIO)
    }

    /// Takes what was written to the file, as it was written.
    ///
    /// # Errors
    ///
    /// What the writer gets; `EIO` for a file that cannot be written.
    fn store(_this: ArcBorrow<'_, T>, _dev: &Device, _text: &[u8]) -> Result {
        Err(EIO)
    }
}

/// A file for a [`Group`].
#[repr(transparent)]
pub(crate) struct File(bindings::device_attribute);

// SAFETY: nobody writes to it.
unsafe impl Sync for File {}

impl File {
    /// The file that `A` describes.
    pub(crate) const fn of<T: Ops, A: Attribute<T>>() -> Self {
        Self(bindings::device_attribute {
            attr: {
                // Kernels that check locks have more fields, which are zero in a static object.
                let mut attr: bindings::attribute = pin_init::zeroed();
                attr.name = A::NAME.to_bytes_with_nul().as_ptr();
                attr.mode = A::MODE;
                attr
            },
            __bindgen_anon_1: bindings::device_attribute__bindgen_ty_1 {
                show: Some(show::<T, A>),
            },
            __bindgen_anon_2: bindings::device_attribute__bindgen_ty_2 {
                store: Some(store::<T, A>),
            },
        })
    }
}

/// The files of a driver's devices.
///
/// # Invariants
///
/// The group's list ends with a null pointer.
#[repr(transparent)]
pub(crate) struct Group(bindings::attribute_group);

// SAFETY: nobody writes to it.
unsafe impl Sync for Group {}

impl Group {
    /// A group of files, directly in the device's folder. The list must end with its only `None`.
    pub(crate) const fn new<const N: usize>(files: &'static [Option<&'static File>; N]) -> Self {
        assert!(N > 0 && files[N - 1].is_none());
        // `Option` of a reference is a pointer that may be null; a file starts with its attribute,
        // and sysfs does not write to the list.
        let attrs = core::ptr::from_ref(files).cast_mut().cast();
        // INVARIANT: checked above.
        Self(bindings::attribute_group {
            __bindgen_anon_2: bindings::attribute_group__bindgen_ty_2 { attrs },
            ..pin_init::zeroed()
        })
    }

    /// The C object.
    pub(super) fn as_ptr(&'static self) -> *const bindings::attribute_group {
        &self.0
    }
}

/// A text under construction, cut at its end.
struct Text {
    octets: [u8; TEXT],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for octet in s.bytes() {
            match self.octets.get_mut(self.len) {
                Some(to) => *to = octet,
                None => return Err(fmt::Error),
            }
            self.len += 1;
        }
        Ok(())
    }
}

/// # Safety
///
/// `dev` is the generic device of a network device of `T`'s adapter, which is not freed during `'a`.
unsafe fn parts<'a, T: Ops>(dev: *mut bindings::device) -> (ArcBorrow<'a, T>, &'a Device) {
    // SAFETY: the caller's promise.
    unsafe {
        let netdev = container_of!(dev, bindings::net_device, dev);
        (Adapter::<T>::data(netdev), Device::from_raw(netdev))
    }
}

/// # Safety
///
/// Called by sysfs for a file of a [`Group`] of `T`'s devices, with a buffer of a page.
unsafe extern "C" fn show<T: Ops, A: Attribute<T>>(
    dev: *mut bindings::device,
    _attr: *mut bindings::device_attribute,
    buf: *mut c_char,
) -> isize {
    // SAFETY: unregistration removes the file first, which waits for us.
    let (this, view) = unsafe { parts::<T>(dev) };
    let mut text = Text {
        octets: [0; TEXT],
        len: 0,
    };
    from_result(|| {
        A::show(this, view, &mut text)?;
        // SAFETY: the buffer is larger than the text.
        unsafe { core::ptr::copy_nonoverlapping(text.octets.as_ptr(), buf.cast(), text.len) };
        Ok(text.len as isize)
    })
}

/// # Safety
///
/// Called by sysfs for a file of a [`Group`] of `T`'s devices, with `count` octets.
unsafe extern "C" fn store<T: Ops, A: Attribute<T>>(
    dev: *mut bindings::device,
    _attr: *mut bindings::device_attribute,
    buf: *const c_char,
    count: usize,
) -> isize {
    // SAFETY: as in `show`; the text is ours during the call.
    let ((this, view), text) = unsafe {
        (
            parts::<T>(dev),
            core::slice::from_raw_parts(buf.cast::<u8>(), count),
        )
    };
    from_result(|| A::store(this, view, text).map(|()| count as isize))
}
