// SPDX-License-Identifier: GPL-2.0

//! The files in an interface's sysfs folder (facts SYSFS-1 to SYSFS-9). `dev_id` is the core's.

use kernel::{
    fmt,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    child::{
        self,
        Failure, //
    },
    interface::Interface, //
};
use crate::{
    control::child::{
        self as rules,
        Mode,
        Refusal, //
    },
    net::{
        device::Device,
        rtnl::{
            self,
            Rtnl, //
        },
        sysfs::{
            Attribute,
            File,
            Group, //
        },
    },
};

/// The files of a port's own interface.
pub(super) static PARENT: Group = Group::new(&PARENT_FILES);
/// The files of a child, however it was made.
pub(super) static CHILD: Group = Group::new(&CHILD_FILES);

static MODE: File = File::of::<Interface, ModeFile>();
static PKEY: File = File::of::<Interface, PKeyFile>();
static UMCAST: File = File::of::<Interface, UmcastFile>();
static LOWER: File = File::of::<Interface, ParentFile>();
static CREATE: File = File::of::<Interface, CreateFile>();
static DELETE: File = File::of::<Interface, DeleteFile>();

static PARENT_FILES: [Option<&File>; 6] = [
    Some(&MODE),
    Some(&PKEY),
    Some(&UMCAST),
    Some(&CREATE),
    Some(&DELETE),
    None,
];
static CHILD_FILES: [Option<&File>; 5] =
    [Some(&MODE), Some(&PKEY), Some(&UMCAST), Some(&LOWER), None];

/// Refuses with a log line, for sysfs has nothing but the error number.
fn refuse(dev: &Device, what: &str, refusal: Refusal) -> Error {
    pr_info!("{}: {} refused: {}\n", dev.name(), what, refusal.reason());
    child::errno(refusal)
}

/// RTNL, for an interface that is registered.
///
/// # Errors
///
/// The one that restarts the system call while somebody else has RTNL, and `EPERM` (PK-3).
fn lock(dev: &Device) -> Result<Rtnl> {
    let rtnl = Rtnl::try_lock().ok_or_else(rtnl::restart_syscall)?;
    if dev.registered(&rtnl) {
        Ok(rtnl)
    } else {
        Err(EPERM)
    }
}

/// `mode`: the transport.
struct ModeFile;

impl Attribute<Interface> for ModeFile {
    const NAME: &'static CStr = c"mode";
    const MODE: u16 = 0o644;

    fn show(this: ArcBorrow<'_, Interface>, _dev: &Device, f: &mut dyn fmt::Write) -> Result {
        let mode = if this.connected() {
            "connected\n"
        } else {
            "datagram\n"
        };
        f.write_str(mode).map_err(Error::from)
    }

    fn store(this: ArcBorrow<'_, Interface>, dev: &Device, text: &[u8]) -> Result {
        let rtnl = lock(dev)?;
        let mode = Mode::from_text(text).map_err(|refusal| refuse(dev, "mode", refusal))?;
        Arc::<Interface>::from(this)
            .set_mode(dev, mode, &rtnl)
            .map_err(|failure| match failure {
                Failure::Refused(refusal) => refuse(dev, "mode", refusal),
                Failure::Failed(e) => e,
            })
    }
}

/// `pkey`: the P_Key, full-membership bit set.
struct PKeyFile;

impl Attribute<Interface> for PKeyFile {
    const NAME: &'static CStr = c"pkey";
    const MODE: u16 = 0o444;

    fn show(this: ArcBorrow<'_, Interface>, _dev: &Device, f: &mut dyn fmt::Write) -> Result {
        f.write_fmt(fmt!("{:#06x}\n", this.pkey().0))
            .map_err(Error::from)
    }
}

/// `umcast`: whether groups that a user program has joined are left to it.
struct UmcastFile;

impl Attribute<Interface> for UmcastFile {
    const NAME: &'static CStr = c"umcast";
    const MODE: u16 = 0o644;

    fn show(this: ArcBorrow<'_, Interface>, _dev: &Device, f: &mut dyn fmt::Write) -> Result {
        f.write_fmt(fmt!("{}\n", u8::from(this.umcast())))
            .map_err(Error::from)
    }

    fn store(this: ArcBorrow<'_, Interface>, dev: &Device, text: &[u8]) -> Result {
        let on = rules::parse_umcast(text);
        if on {
            pr_warn!(
                "{}: groups that are joined directly by userspace are left to it from now on\n",
                dev.name()
            );
        }
        Arc::<Interface>::from(this).set_umcast(on);
        Ok(())
    }
}

/// `parent`: the name of the interface that a child was made on.
struct ParentFile;

impl Attribute<Interface> for ParentFile {
    const NAME: &'static CStr = c"parent";
    const MODE: u16 = 0o444;

    fn show(this: ArcBorrow<'_, Interface>, _dev: &Device, f: &mut dyn fmt::Write) -> Result {
        let child = this.child().ok_or(EIO)?;
        f.write_fmt(fmt!("{}\n", child.lower.name()))
            .map_err(Error::from)
    }
}

/// `create_child`: takes the P_Key of a new child.
struct CreateFile;

impl Attribute<Interface> for CreateFile {
    const NAME: &'static CStr = c"create_child";
    const MODE: u16 = 0o200;

    fn store(this: ArcBorrow<'_, Interface>, dev: &Device, text: &[u8]) -> Result {
        let what = "create_child";
        if !rtnl::may_administer() {
            return Err(EPERM);
        }
        let pkey = rules::parse_create(text).map_err(|refusal| refuse(dev, what, refusal))?;
        let rtnl = lock(dev)?;
        if child::find_by_sysfs(&this, pkey.full()).is_some_and(|old| old.condemned()) {
            // Its name is still in use, but not for long: the port's work is on its way.
            drop(rtnl);
            return Err(rtnl::restart_syscall());
        }
        let parent: Arc<Interface> = this.into();
        child::create_by_sysfs(&parent, dev, pkey, &rtnl).map_err(|failure| match failure {
            Failure::Refused(refusal) => refuse(dev, what, refusal),
            Failure::Failed(e) => e,
        })
    }
}

/// `delete_child`: takes the P_Key of a child that `create_child` has made.
struct DeleteFile;

impl Attribute<Interface> for DeleteFile {
    const NAME: &'static CStr = c"delete_child";
    const MODE: u16 = 0o200;

    fn store(this: ArcBorrow<'_, Interface>, dev: &Device, text: &[u8]) -> Result {
        let what = "delete_child";
        if !rtnl::may_administer() {
            return Err(EPERM);
        }
        let pkey = rules::parse_delete(text).map_err(|refusal| refuse(dev, what, refusal))?;
        let _rtnl = lock(dev)?;
        // Not here: giving RTNL back waits for references, while the parent's removal may be waiting
        // for this handler (SYSFS-9).
        match child::find_by_sysfs(&this, pkey) {
            Some(found) if found.condemn() => Ok(()),
            _ => Err(refuse(dev, what, Refusal::NoSuchChild)),
        }
    }
}
