// SPDX-License-Identifier: GPL-2.0

//! Children: further interfaces on a port, with the parent's or another P_Key (facts PK-3 to PK-17).
//!
//! However a child is made, it is made here, and has the same queues, features and files.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    client,
    interface::{
        Child,
        Interface,
        Place, //
    },
    port::Port,
    queue::{
        self,
        Hardware, //
    },
    sysfs, //
};
use crate::{
    base::{
        netns::Net,
        not_unique, //
    },
    control::child::{
        self as rules,
        Refusal, //
    },
    net::{
        device::{
            Device,
            ALEN, //
        },
        link::{
            self,
            NewLink, //
        },
        registration::{
            Config,
            Unregistered, //
        },
        rtnl::Rtnl, //
    },
    wire::pkey::PKey, //
};

/// What a user gets to see of a child that could not be made.
pub(super) enum Failure {
    /// Against the rules.
    Refused(Refusal),
    /// Something did not work.
    Failed(Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => errno(refusal),
            Failure::Failed(error) => error,
        }
    }
}

/// The error number of a refusal.
pub(super) fn errno(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NotUnique => not_unique(),
        Refusal::NoSuchChild | Refusal::BadLower | Refusal::Closing => ENODEV,
        Refusal::BadPKey
        | Refusal::NoLower
        | Refusal::ChildOfChild
        | Refusal::BadAddress
        | Refusal::BadMtu
        | Refusal::BadMode
        | Refusal::Connected => EINVAL,
    }
}

/// Whether `parent` may have another child. RTNL held, under which a port that goes away looks for
/// children.
fn check_parent(parent: &Interface) -> Result<(), Refusal> {
    if parent.child().is_some() {
        Err(Refusal::ChildOfChild)
    } else if parent.port().closing() {
        Err(Refusal::Closing)
    } else {
        Ok(())
    }
}

/// The state of a child of `parent`, whose device is `lower`.
fn new_state(
    parent: &Arc<Interface>,
    lower: &Device,
    pkey: PKey,
    by_sysfs: bool,
    queues: u32,
) -> Result<Arc<Interface>> {
    let place = Place::Child(Child {
        lower: lower.into(),
        by_sysfs,
    });
    Interface::new(
        *parent.params(),
        parent.port().clone(),
        parent.resolver().clone(),
        pkey.full(),
        client::next_vector(queues),
        place,
    )
}

/// Gives a child its verbs objects and registers it on `netdev`. May sleep.
fn build(
    child: &Arc<Interface>,
    netdev: Unregistered<Interface>,
    queues: u32,
    (mtu, connected): (Option<u32>, bool),
    net: Option<Net<'_>>,
    rtnl: &Rtnl,
) -> Result<(), Failure> {
    let (hw, made) = Hardware::create(child, netdev.device(), queues)?;
    let offloads = hw.offloads();
    child.equip(netdev.device(), hw, made);
    let fail = |netdev, failure| {
        // Registration may or may not have called `uninit`.
        child.strip();
        drop(netdev);
        failure
    };
    let seen = child.port().seen();
    if connected {
        if let Err(refusal) = child.note_mode(true) {
            return Err(fail(netdev, refusal.into()));
        }
    }
    let asked = mtu.map(|mtu| child.control.lock().port.request_mtu(mtu));
    let mtu = match asked {
        None => child.control.lock().port.effective(),
        Some(Ok(effective)) => effective,
        Some(Err(_)) => return Err(fail(netdev, Refusal::BadMtu.into())),
    };
    let config = Config {
        addr: child.address(&seen.gid).0,
        broadcast: child.broadcast().0,
        mtu,
        offloads,
        port: 0,
        parent: None,
        net,
        queues,
        files: &sysfs::CHILD,
    };
    if let Err(e) = child.port().add(child.clone()) {
        return Err(fail(netdev, e.into()));
    }
    // From here on the port's work and the notifier know the child.
    netdev
        .register_loose(&config, rtnl)
        .map_err(|(e, netdev)| fail(netdev, e.into()))
}

/// How many queues a child on `port` has that was allocated with `tx` and `rx` (B22).
fn queues(parent: &Interface, tx: u32, rx: u32) -> u32 {
    let most = queue::count(parent.params(), parent.port().rdma().device());
    tx.min(rx).min(most).max(1)
}

/// What a netlink request says of a child.
pub(super) struct Wish {
    pub(super) pkey: PKey,
    pub(super) mtu: Option<u32>,
    pub(super) umcast: bool,
    pub(super) connected: bool,
}

/// Makes a child on a device that rtnetlink has allocated. Returns its address. May sleep.
pub(super) fn create_link(
    parent: &Arc<Interface>,
    lower: &Device,
    new: NewLink<'_, Interface>,
    wish: &Wish,
    rtnl: &Rtnl,
) -> Result<[u8; ALEN], Failure> {
    check_parent(parent)?;
    let (tx, rx) = new.device().allocated_queues();
    let n = queues(parent, tx, rx);
    let child = new_state(parent, lower, wish.pkey, false, n)?;
    child.set_umcast(wish.umcast);
    let wanted = (wish.mtu, wish.connected);
    build(&child, new.with(child.clone()), n, wanted, None, rtnl)?;
    Ok(child.address(&child.port().seen().gid).0)
}

/// Makes the child that `create_child` asks for. The P_Key is as written: the name tells. May sleep.
pub(super) fn create_by_sysfs(
    parent: &Arc<Interface>,
    lower: &Device,
    written: PKey,
    rtnl: &Rtnl,
) -> Result<(), Failure> {
    check_parent(parent)?;
    let pkey = written.full();
    if parent.pkey() == pkey || find_by_sysfs(parent, pkey).is_some() {
        return Err(Refusal::NotUnique.into());
    }
    let most = queue::most(parent.params());
    let n = queues(parent, most, most);
    let child = new_state(parent, lower, pkey, true, n)?;
    let name = rules::name(lower.name().as_cstr().to_bytes(), written);
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| EINVAL)?;
    let netdev = Unregistered::new(name, most, child.clone())?;
    // Where the parent is, which is where it was asked for.
    build(
        &child,
        netdev,
        n,
        (None, false),
        Some(lower.net(rtnl)),
        rtnl,
    )
}

/// The child on the same port as `parent` that was made by sysfs and has `pkey`.
pub(super) fn find_by_sysfs(parent: &Interface, pkey: PKey) -> Option<Arc<Interface>> {
    parent
        .port()
        .find(|each| each.pkey() == pkey && each.child().is_some_and(|child| child.by_sysfs))
}

/// A parent was taken up or down, and its children follow (PK-11).
pub(super) fn follow(parent: &Interface, up: bool) {
    if parent.child().is_some() {
        return;
    }
    for each in parent.port().walk() {
        if each.child().is_some() {
            each.follow(up);
        }
    }
}

/// Unregisters all children on a closed port, together. Takes RTNL; may sleep.
pub(super) fn remove_all(port: &Port) {
    let rtnl = Rtnl::lock();
    link::unregister::<Interface>(&rtnl, |each| {
        for child in port.walk() {
            if child.child().is_none() {
                continue;
            }
            if let Some(dev) = child.device() {
                each(&dev);
            }
        }
    });
}
