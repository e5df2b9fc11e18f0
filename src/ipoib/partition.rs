// SPDX-License-Identifier: GPL-2.0

//! Which partition an interface belongs to, and which broadcast group there.
//!
//! A child is told its P_Key and keeps it. The port's own interface has the key that stands first in the port's table
//! (PK-1), and follows it (PK-13): a port often gets its table only after the driver was loaded. The scope of the
//! groups is the administrator's, by the broadcast address (NL-8).

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use super::{
    interface::{
        Control,
        Interface,
        Running, //
    },
    port::Seen,
    worker::{
        self,
        Cx, //
    }, //
};
use crate::{
    base::log::warn_limited,
    control,
    net::{
        device::{
            Device,
            Notify, //
        },
        rtnl::Rtnl, //
    },
    wire::{
        addr::HwAddr,
        mgid,
        pkey::PKey, //
    }, //
};

/// Where an interface belongs. Changed with the control lock held only.
pub(super) struct Partition {
    pkey: Atomic<u32>,
    index: Atomic<u32>,
    scope: Atomic<u32>,
}

impl Partition {
    /// The partition that `pkey` names, and the usual scope.
    pub(super) fn new(pkey: PKey) -> Self {
        Self {
            pkey: Atomic::new(pkey.0.into()),
            index: Atomic::new(0),
            scope: Atomic::new(mgid::SCOPE_LINK_LOCAL.into()),
        }
    }
}

impl Interface {
    /// The partition key, full-membership bit set. Any context.
    #[inline]
    pub(crate) fn pkey(&self) -> PKey {
        PKey(self.partition().pkey.load(Relaxed) as u16)
    }

    /// Where the P_Key stands in the port's table, as last looked up.
    pub(crate) fn pkey_index(&self) -> u16 {
        self.partition().index.load(Relaxed) as u16
    }

    /// The broadcast address (FMT-3).
    pub(crate) fn broadcast(&self) -> HwAddr {
        broadcast_address(self.partition().scope.load(Relaxed) as u8, self.pkey())
    }

    /// Looks the P_Key up in the port's table; whether it has moved since it was last found. Control
    /// lock held. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it is not there; what the device says.
    pub(super) fn find_pkey(&self) -> Result<bool> {
        let index = self.resolver().find_pkey(self.port().rdma(), self.pkey())?;
        let before = self.pkey_index();
        self.partition().index.store(index.into(), Relaxed);
        Ok(index != before)
    }

    /// The P_Key and the scope that the interface should have. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says.
    fn rightful(&self, dev: &Device) -> Result<(PKey, u8)> {
        let first = match self.child() {
            None => self.resolver().first_pkey(self.port().rdma())?,
            Some(_) => self.pkey(),
        };
        // An empty place is no reason to leave.
        let pkey = Some(first).filter(|key| key.is_valid());
        let scope = HwAddr(dev.broadcast()).scope();
        Ok((pkey.unwrap_or(self.pkey()), scope))
    }

    /// Has the interface moved to another broadcast group, soon, if it should be. Control lock held; may sleep.
    pub(super) fn look_for_move(&self, dev: &Device) {
        match self.rightful(dev) {
            Ok(place) if place == (self.pkey(), self.broadcast().scope()) => {}
            Ok(_) => self.move_partition(),
            // What changed was told of but once.
            Err(_) => self.retry(worker::PORT),
        }
    }

    /// Moves the interface to the partition and scope that it should be in. May sleep.
    pub(super) fn moved(self: &Arc<Self>, dev: &Device, rtnl: &Rtnl) {
        let Ok((pkey, scope)) = self.rightful(dev) else {
            self.post_later(worker::PORT);
            return;
        };
        let before = self.broadcast();
        let broadcast = broadcast_address(scope, pkey);
        if broadcast == before {
            return;
        }
        let [high, low] = pkey.octets();
        // The stack makes link-layer addresses of groups from the broadcast address.
        let up = dev.is_up(rtnl);
        if up {
            dev.notify(rtnl, Notify::AddressesGo);
        }
        let done = self.change_group(dev, &broadcast);
        if done.is_ok() {
            dev.set_broadcast_pkey(rtnl, [high, low]);
            pr_info!(
                "{}: P_Key {:#06x} (was {:#06x}), scope {:#x}\n",
                dev.name(),
                pkey.0,
                before.pkey().0,
                scope
            );
        }
        if up {
            dev.notify(rtnl, Notify::AddressesCome);
        }
        if done.is_err() {
            // Looked at again with the port.
            self.post_later(worker::PORT);
        } else {
            self.post(worker::PORT | worker::MULTICAST);
        }
    }

    /// Ends everything that there is under the present broadcast address, and takes over `broadcast`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; then nothing has changed.
    fn change_group(self: &Arc<Self>, dev: &Device, broadcast: &HwAddr) -> Result {
        let mut guard = self.control.lock();
        let Control {
            running,
            hw,
            port,
            seen,
            seq,
            pace,
            ..
        } = &mut *guard;
        if let (Some(running), Some(hw)) = (running.as_mut(), hw.as_mut()) {
            let mut cx = Cx::new(self, hw, dev, seq, pace);
            running.groups.rebase(&mut cx, broadcast.gid())?;
            leave(&mut cx, running, port, seen);
        }
        let partition = self.partition();
        partition.pkey.store(broadcast.pkey().0.into(), Relaxed);
        partition.scope.store(broadcast.scope().into(), Relaxed);
        Ok(())
    }
}

/// The broadcast address of a partition whose groups have that scope.
fn broadcast_address(scope: u8, pkey: PKey) -> HwAddr {
    HwAddr::multicast(mgid::broadcast(scope, pkey))
}

/// Follows the interface's P_Key: it may come, move to another place of the port's table, and go.
pub(super) fn look_for_pkey(
    cx: &mut Cx<'_>,
    running: &mut Running,
    port: &mut control::port::Port,
    seen: &Seen,
) {
    match cx.iface.find_pkey() {
        Ok(moved) => {
            if !running.recovery.started() {
                if running.recovery.start_all(cx).is_err() {
                    cx.iface.retry(worker::PORT);
                    return;
                }
            } else if moved {
                // A queue pair learns its place in the table on the way up.
                running.recovery.restart_all(cx);
            }
            let actions = port.step(control::port::Event::PKey(true));
            cx.iface.port_actions(cx.dev, actions);
        }
        Err(e) if e == ENOENT => {
            leave(cx, running, port, seen);
            cx.iface.port().watch();
        }
        // The device cannot say: it is where it was, until the device can.
        Err(e) => {
            warn_limited!("{}: cannot look for the P_Key: {:?}\n", cx.dev.name(), e);
            cx.iface.retry(worker::PORT);
        }
    }
}

/// The interface is in its partition no more.
fn leave(cx: &mut Cx<'_>, running: &mut Running, port: &mut control::port::Port, seen: &Seen) {
    let actions = port.step(control::port::Event::PKey(false));
    cx.iface.port_actions(cx.dev, actions);
    if running.recovery.started() {
        running.groups.down(cx);
        running.paths.flush_all(cx);
        if let Some(conns) = running.conns.as_mut() {
            // Also those of peers: their queue pairs know the key by its place.
            conns.end_all(cx);
        }
        worker::settle(cx, running, port, seen);
        running.recovery.stop_all(cx);
    }
}
