// SPDX-License-Identifier: GPL-2.0

//! One debugfs file per interface that answers "why does this peer not answer".

use kernel::{
    debugfs::{
        self as debugfs_file,
        Writer, //
    },
    fmt,
    prelude::*,
    sync::Arc, //
};

use super::{
    interface::{
        Interface,
        Running, //
    },
    paths,
    recovery, //
};
use crate::{
    base::{
        debugfs,
        time, //
    },
    control::{
        reason::TxDrop,
        room::Limit, //
    },
    net::device::Device,
    wire::{
        gid::Gid,
        rx::RxDrop, //
    },
};

/// The file of one interface, while there is one. It is named as the interface is, with a number
/// behind it where another namespace has an interface of that name.
pub(super) type File = Option<Named>;

/// A file and its name, which is free again only when the file is gone.
pub(super) struct Named {
    _file: Pin<KBox<debugfs_file::File<View>>>,
    _name: debugfs::Name,
}

impl Interface {
    /// Makes the debugfs file under the present name of `dev`, if that is our device. May sleep.
    pub(super) fn show_in_debugfs(self: &Arc<Self>, dev: &Device) {
        if !self.is(dev) {
            return;
        }
        // The old one first, or the name would be taken when it is the same.
        drop(self.file().lock().take());
        match self.make_file(dev) {
            Ok(file) => *self.file().lock() = file,
            Err(e) => pr_warn!("{}: no debugfs file: {:?}\n", dev.name(), e),
        }
    }

    fn make_file(self: &Arc<Self>, dev: &Device) -> Result<File> {
        let Some(name) = debugfs::Name::take(dev.name().as_cstr())? else {
            return Ok(None);
        };
        let view = View {
            iface: self.clone(),
        };
        let file = KBox::pin_init(name.dir().read_only_file(name.as_cstr(), view), GFP_KERNEL)?;
        Ok(Some(Named {
            _file: file,
            _name: name,
        }))
    }
}

/// What is shown.
pub(super) struct View {
    iface: Arc<Interface>,
}

impl Writer for View {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iface = &self.iface;
        let seen = iface.port().seen();
        writeln!(
            f,
            "port: {}/{} {} mtu {} gid {:?} lid {}",
            iface.port().rdma().device().name(),
            iface.port().rdma().number(),
            if seen.active { "active" } else { "not active" },
            seen.mtu,
            seen.gid,
            seen.lid
        )?;
        writeln!(f, "address: {:?}", iface.address(&seen.gid))?;
        writeln!(f, "broadcast: {:?}", iface.broadcast())?;
        writeln!(f, "pkey: {} index {}", iface.pkey(), iface.pkey_index())?;
        write_queues(f, iface)?;
        let control = iface.control.lock();
        if control.running.is_some() && !control.port.has_pkey() {
            writeln!(f, "P_Key not found in the port's table")?;
        }
        match &control.running {
            None => writeln!(f, "down")?,
            Some(running) => write_running(f, running, iface.neighbours().len())?,
        }
        drop(control);
        write_neighbours(f, iface)
    }
}

fn write_queues(f: &mut fmt::Formatter<'_>, iface: &Interface) -> fmt::Result {
    for queue in iface.queues() {
        let shared = &queue.shared;
        let stats = &shared.stats;
        writeln!(
            f,
            "queue {}: qpn {:#08x} {} rx {} tx {} failed {} polls {} doorbells {} stops {} free {} of {}",
            shared.index,
            queue.qpn.get(),
            if shared.running() {
                "running"
            } else {
                "stopped"
            },
            stats.rx_packets.get(),
            stats.tx_packets.get(),
            stats.tx_failed.get(),
            stats.polls.get(),
            stats.doorbells.get(),
            stats.stops.get(),
            iface
                .device()
                .map_or(0, |dev| recovery::free_slots(&dev, queue)),
            shared.ring.size()
        )?;
        for (reason, counter) in RxDrop::ALL.iter().zip(&stats.rx_drops) {
            if counter.get() > 0 {
                writeln!(f, "  rx_drop {} {}", reason.name(), counter.get())?;
            }
        }
        for (reason, counter) in TxDrop::ALL.iter().zip(&stats.tx_drops) {
            if counter.get() > 0 {
                writeln!(f, "  tx_drop {} {}", reason.name(), counter.get())?;
            }
        }
    }
    for (reason, counter) in TxDrop::ALL.iter().zip(iface.drops()) {
        if counter.get() > 0 {
            writeln!(f, "pending_drop {} {}", reason.name(), counter.get())?;
        }
    }
    Ok(())
}

fn write_running(f: &mut fmt::Formatter<'_>, running: &Running, neighbours: u32) -> fmt::Result {
    let mut result = Ok(());
    running.recovery.for_each(|index, state, recoveries| {
        if result.is_ok() {
            result = writeln!(f, "recovery {}: {:?}, {} so far", index, state, recoveries);
        }
    });
    let tables = [
        ("neighbours", neighbours, Limit::NEIGHBOURS),
        ("paths", running.paths.len(), Limit::PATHS),
        ("groups", running.groups.len(), Limit::GROUPS),
    ];
    for (name, count, limit) in tables {
        writeln!(f, "table {}: {} of {}", name, count, limit.max())?;
    }
    let (waiting, out, started) = running.paths.queries();
    if result.is_ok() {
        result = writeln!(
            f,
            "queries: {} waiting, {} out, {} started",
            waiting, out, started
        );
    }
    let (waiting, out) = running.groups.joins();
    if result.is_ok() {
        result = writeln!(f, "joins: {} waiting, {} out", waiting, out);
    }
    running.paths.for_each(|gid, path| {
        if result.is_ok() {
            result = write_path(f, gid, &path);
        }
    });
    if let Some(conns) = &running.conns {
        let (ends, refused, accepted) = conns.passive().counts();
        writeln!(
            f,
            "connections of peers: {}, {} refused, {} accepted, buffers {}",
            ends,
            refused,
            accepted,
            if conns.passive().filled() {
                "lent"
            } else {
                "none"
            }
        )?;
        conns.for_each(|gid, machine, max_frame| {
            if result.is_ok() {
                result = writeln!(
                    f,
                    "connection {:?}: {:?} to {} frames up to {} failures {}",
                    gid,
                    machine.status(),
                    machine.qpn(),
                    max_frame.unwrap_or(0),
                    machine.failures()
                );
            }
        });
    }
    running.groups.for_each(|group, view| {
        if result.is_ok() {
            result = writeln!(
                f,
                "group {:?}: {:?} member {} joining {} attached {} complete {} failures {} last {:?} status {} mlid {:#06x}",
                group,
                view.kind,
                view.member,
                view.joining,
                view.attached,
                view.complete,
                view.failures,
                view.last_failure,
                view.status,
                view.mlid
            );
        }
    });
    result
}

fn write_path(f: &mut fmt::Formatter<'_>, gid: &Gid, path: &paths::View<'_>) -> fmt::Result {
    write!(
        f,
        "path {:?}: {:?}, {} failures, ",
        gid, path.status, path.failures
    )?;
    match path.error {
        None => write!(f, "no error, ")?,
        Some(e) => write!(f, "last error {:?}, ", e)?,
    }
    match path.handle {
        None => writeln!(f, "no handle"),
        Some(attr) => writeln!(f, "handle {}", attr),
    }
}

fn write_neighbours(f: &mut fmt::Formatter<'_>, iface: &Interface) -> fmt::Result {
    let now = time::now_ms();
    let mut result = Ok(());
    iface.neighbours().for_each(|neigh| {
        if result.is_ok() {
            result = writeln!(
                f,
                "neighbour {:?}: {} waiting {} idle {} ms",
                neigh.gid(),
                if neigh.resolved() {
                    "ready"
                } else {
                    "unresolved"
                },
                neigh.waiting(),
                now.saturating_sub(neigh.last_used())
            );
        }
    });
    result
}
