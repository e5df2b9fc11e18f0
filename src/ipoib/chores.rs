// SPDX-License-Identifier: GPL-2.0

//! What an interface has to have done under RTNL. The worker never takes RTNL, and handlers of sysfs
//! files only try it: both leave such chores to the port's work.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::interface::Interface;
use crate::{
    net::{
        device::{
            Device,
            Notify, //
        },
        link,
        rtnl::Rtnl, //
    },
    wire::gid::Gid, //
};

/// Chores that need RTNL, for the port's work.
#[derive(Default)]
pub(super) struct Chores {
    /// Tell the stack the MTU in force.
    mtu: bool,
    addr: Option<Gid>,
    /// Have the stack tell all peers of us.
    announce: bool,
    /// Move to the broadcast group where the interface belongs.
    partition: bool,
    /// Follow the parent up (`true`) or down.
    up: Option<bool>,
    /// Unregister the interface.
    delete: bool,
}

impl Chores {
    /// Whether there is nothing to do.
    fn none(&self) -> bool {
        !self.mtu
            && self.addr.is_none()
            && !self.announce
            && !self.partition
            && self.up.is_none()
            && !self.delete
    }

    /// Takes what there is to do. An order to delete stays: nothing makes it undone.
    fn take(&mut self) -> Self {
        let delete = self.delete;
        core::mem::replace(
            self,
            Self {
                delete,
                ..Self::default()
            },
        )
    }
}

impl Interface {
    /// The MTU in force has changed. Control lock held.
    pub(super) fn mtu_changed(&self) {
        self.chores().lock().mtu = true;
        self.port().do_chores();
    }

    /// Our GID has changed. Control lock held.
    pub(crate) fn address_changed(&self, gid: Gid) {
        self.chores().lock().addr = Some(gid);
        self.port().do_chores();
    }

    /// Has the stack tell all peers of us, since they reach us in another way from now on. Control
    /// lock held.
    pub(crate) fn announce(&self) {
        self.chores().lock().announce = true;
        self.port().do_chores();
    }

    /// The interface belongs to another broadcast group. Control lock held.
    pub(super) fn move_partition(&self) {
        self.chores().lock().partition = true;
        self.port().do_chores();
    }

    /// Has the interface follow its parent up or down (PK-11), soon. The last word counts.
    pub(crate) fn follow(&self, up: bool) {
        self.chores().lock().up = Some(up);
        self.port().do_chores();
    }

    /// Has the interface unregistered soon; `false` if that was ordered before.
    pub(crate) fn condemn(&self) -> bool {
        let before = core::mem::replace(&mut self.chores().lock().delete, true);
        self.port().do_chores();
        !before
    }

    /// Whether the interface is to be unregistered soon.
    pub(crate) fn condemned(&self) -> bool {
        self.chores().lock().delete
    }

    /// Does what needs RTNL. From the port's work.
    pub(crate) fn do_chores(self: &Arc<Self>) {
        if self.chores().lock().none() {
            return;
        }
        let rtnl = Rtnl::lock();
        // The reference is dropped before RTNL: with that come the waits for references.
        if let Some(dev) = self.device() {
            self.do_chores_to(&dev, &rtnl);
        }
    }

    fn do_chores_to(self: &Arc<Self>, dev: &Device, rtnl: &Rtnl) {
        if !dev.registered(rtnl) {
            return;
        }
        let chores = self.chores().lock().take();
        if chores.delete {
            link::unregister::<Self>(rtnl, |each| each(dev));
            return;
        }
        if chores.partition {
            self.moved(dev, rtnl);
        }
        if chores.mtu {
            if let Err(e) = self.tell_mtu(dev, rtnl) {
                pr_warn!("{}: cannot set the MTU: {:?}\n", dev.name(), e);
            }
        }
        if let Some(gid) = chores.addr {
            // Octet 4 on: peers learn the new GID from an announcement, as after a fail-over.
            if dev.set_addr(rtnl, 4, &gid.0).is_ok() {
                dev.notify(rtnl, Notify::ChangeAddr);
                dev.notify(rtnl, Notify::Peers);
            }
        } else if chores.announce {
            dev.notify(rtnl, Notify::Peers);
        }
        if let Some(up) = chores.up {
            if let Err(e) = dev.set_up(rtnl, up) {
                pr_warn!("{}: cannot follow the parent: {:?}\n", dev.name(), e);
            }
        }
    }

    /// Tells the stack the MTU in force. The administrator may have changed it since this was found
    /// necessary.
    pub(super) fn tell_mtu(&self, dev: &Device, rtnl: &Rtnl) -> Result {
        let mtu = {
            let mut control = self.control.lock();
            control.own_mtu = true;
            control.port.effective()
        };
        let told = dev.set_mtu(rtnl, mtu);
        self.control.lock().own_mtu = false;
        told
    }
}
