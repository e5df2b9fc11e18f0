// SPDX-License-Identifier: GPL-2.0

//! What `ethtool` shows of an interface.

use kernel::{
    fmt,
    prelude::*,
    sync::ArcBorrow, //
};

use super::interface::Interface;
use crate::{
    base::{
        count::Counter,
        unsupported, //
    },
    control::reason::TxDrop,
    net::{
        ethtool::{
            Coalescing,
            Ethtool, //
        },
        extack::ExtAck,
        ops::Ops, //
    },
    wire::rx::RxDrop, //
};

impl Ethtool for Interface {
    fn info(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(&str, &str, &str)) {
        let device = this.port().rdma().device();
        let firmware = device.fw_version();
        // Soft-RoCE devices have no parent (ETH-1).
        let bus = device
            .parent_device()
            .and_then(|parent| parent.name().to_str().ok());
        f("ipoib_rs", firmware.as_str(), bus.unwrap_or(""));
    }

    fn statistics(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(fmt::Arguments<'_>, u64)) {
        // First those of the in-tree driver, under its names and in its order (ETH-4).
        let sum = <Self as Ops>::stats(this);
        for (name, value) in [
            ("rx_packets", sum.rx_packets),
            ("tx_packets", sum.tx_packets),
            ("rx_bytes", sum.rx_bytes),
            ("tx_bytes", sum.tx_bytes),
            ("tx_errors", sum.tx_errors),
            ("rx_dropped", sum.rx_dropped),
            ("tx_dropped", sum.tx_dropped),
            ("multicast", sum.multicast),
        ] {
            f(fmt!("{}", name), value);
        }

        let queues = this.queues();
        for (i, reason) in RxDrop::ALL.iter().enumerate() {
            let all = queues
                .iter()
                .map(|queue| get(&queue.shared.stats.rx_drops, i));
            f(
                fmt!("rx_drop_{}", reason.name()),
                all.fold(0, u64::wrapping_add),
            );
        }
        for (i, reason) in TxDrop::ALL.iter().enumerate() {
            let all = queues
                .iter()
                .map(|queue| get(&queue.shared.stats.tx_drops, i));
            let waiting = get(this.drops(), i);
            f(
                fmt!("tx_drop_{}", reason.name()),
                all.fold(waiting, u64::wrapping_add),
            );
        }
        if let Some(lane) = this.lane() {
            let stats = &lane.shared.stats;
            for (name, counter) in [
                ("rx_packets", &stats.rx_packets),
                ("rx_bytes", &stats.rx_bytes),
                ("tx_packets", &stats.tx_packets),
                ("tx_bytes", &stats.tx_bytes),
                ("tx_failed", &stats.tx_failed),
                ("tx_lost", &stats.tx_lost),
                ("stops", &stats.stops),
                ("timeouts", &stats.timeouts),
                ("polls", &stats.polls),
            ] {
                f(fmt!("connected_{}", name), counter.get());
            }
            for (reason, counter) in RxDrop::ALL.iter().zip(&stats.rx_drops) {
                f(fmt!("connected_rx_drop_{}", reason.name()), counter.get());
            }
        }
        for queue in queues {
            let (stats, i) = (&queue.shared.stats, queue.shared.index);
            for (name, counter) in [
                ("rx_packets", &stats.rx_packets),
                ("rx_bytes", &stats.rx_bytes),
                ("tx_packets", &stats.tx_packets),
                ("tx_bytes", &stats.tx_bytes),
                ("tx_failed", &stats.tx_failed),
                ("polls", &stats.polls),
                ("doorbells", &stats.doorbells),
                ("stops", &stats.stops),
                ("timeouts", &stats.timeouts),
                ("recoveries", &stats.recoveries),
            ] {
                f(fmt!("queue_{}_{}", i, name), counter.get());
            }
        }
    }

    fn speed(this: ArcBorrow<'_, Self>) -> Result<u32> {
        // As last read: reading an Ethernet port takes RTNL.
        this.port().seen().mbps.ok_or(EINVAL)
    }

    fn coalescing(this: ArcBorrow<'_, Self>) -> Coalescing {
        this.control.lock().coalescing
    }

    fn coalesce(this: ArcBorrow<'_, Self>, wanted: Coalescing, extack: &ExtAck<'_>) -> Result {
        let Some(to) = moderation(wanted) else {
            return Err(extack.refuse(EINVAL, c"rx-usecs and rx-frames are at most 65535"));
        };
        let mut control = this.control.lock();
        let before = moderation(control.coalescing).unwrap_or_default();
        match control.hw.as_ref().ok_or(ENODEV)?.moderate(to, before) {
            // Hardware that cannot is none of the user's business (ETH-3).
            Ok(()) => {}
            Err(e) if e == unsupported() => {}
            Err(e) => return Err(extack.refuse(e, c"the device refuses: nothing has changed")),
        }
        control.coalescing = wanted;
        Ok(())
    }
}

/// Frames and microseconds as verbs have them.
fn moderation(wanted: Coalescing) -> Option<(u16, u16)> {
    let frames = u16::try_from(wanted.frames).ok()?;
    Some((frames, u16::try_from(wanted.usecs).ok()?))
}

fn get<const N: usize>(counters: &[Counter; N], i: usize) -> u64 {
    counters.get(i).map_or(0, Counter::get)
}
