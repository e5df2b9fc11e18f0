// SPDX-License-Identifier: GPL-2.0

//! The network device operations of an interface.

use kernel::{
    prelude::*,
    sync::{
        rcu::Guard,
        Arc,
        ArcBorrow, //
    },
};

use super::{
    child,
    conns::Conns,
    groups::Groups,
    interface::{
        Control,
        Interface,
        Running, //
    },
    paths::Paths,
    recovery::Recovery,
    stats,
    tx,
    worker::{
        self,
        Cx, //
    }, //
};
use crate::{
    control::{
        ageing::Ageing,
        health::Concern,
        port::Event,
        reason::TxDrop, //
    },
    net::{
        device::{
            Device,
            ALEN, //
        },
        ops::{
            Ops,
            Stats,
            Tables,
            HARD_HEADER, //
        },
        registration::Offloads,
        rtnl::Rtnl,
        skb::SkBuff,
        txq::TxLocked, //
    },
    wire::{
        addr::HwAddr,
        encap::{
            self,
            EtherType, //
        },
        gid::Gid,
        mgid,
        mtu::MtuError, //
    },
};

impl Ops for Interface {
    fn open(this: ArcBorrow<'_, Self>, dev: &Device, _rtnl: &Rtnl) -> Result {
        let this: Arc<Self> = this.into();
        let mut guard = this.control.lock();
        let Control {
            running,
            hw,
            port,
            seq,
            pace,
            ..
        } = &mut *guard;
        let hw = hw.as_mut().ok_or(ENODEV)?;
        let mut cx = Cx::new(&this, hw, dev, seq, pace);
        let mut made = Running {
            conns: None,
            groups: Groups::new(this.broadcast().gid())?,
            paths: Paths::new(this.resolver().query_cap()),
            recovery: Recovery::new(this.queues().len())?,
            broadcast: None,
            next_ageing: Ageing::default().next_pass(cx.now),
            next_room: cx.now,
            announce: false,
        };
        // Without its P_Key the interface is up all the same, and waits for it (NET-26).
        let present = this.find_pkey().is_ok();
        if present {
            made.recovery.start_all(&mut cx)?;
        } else {
            pr_warn!(
                "{}: P_Key {:#06x} is not found\n",
                dev.name(),
                this.pkey().0
            );
        }
        if let (Some(lane), Some(lane_hw)) = (this.lane(), &cx.hw.lane) {
            // Without connections there are datagrams.
            made.conns = Conns::new(&this, lane.clone(), lane_hw)
                .inspect_err(|e| pr_warn!("{}: no connections: {:?}\n", dev.name(), e))
                .ok();
        }
        *running = Some(made);
        let _ = port.step(Event::PKey(present));
        let actions = port.step(Event::Admin(true));
        this.port_actions(dev, actions);
        drop(guard);
        dev.start_all_queues();
        this.post(worker::PORT | worker::MULTICAST);
        // What was last read may be old: no event says that an interface came up.
        this.port().refresh();
        child::follow(&this, true);
        Ok(())
    }

    fn stop(this: ArcBorrow<'_, Self>, dev: &Device, _rtnl: &Rtnl) {
        let this: Arc<Self> = this.into();
        dev.set_carrier(false);
        dev.disable_tx();
        let mut guard = this.control.lock();
        let Control {
            running,
            hw,
            port,
            seq,
            pace,
            ..
        } = &mut *guard;
        let actions = port.step(Event::Admin(false));
        this.port_actions(dev, actions);
        let _ = port.step(Event::BroadcastLost);
        let (Some(mut running), Some(hw)) = (running.take(), hw.as_mut()) else {
            return;
        };
        let mut cx = Cx::new(&this, hw, dev, seq, pace);
        worker::shut_down(&mut cx, &mut running);
        drop(running);
        drop(this.ident.swap(None));
        cx.hw.stop_queues(&this, dev);
        drop(guard);
        child::follow(&this, false);
    }

    fn iflink(this: ArcBorrow<'_, Self>, dev: &Device) -> i32 {
        match this.child() {
            Some(child) => child.lower.ifindex(),
            None => dev.ifindex(),
        }
    }

    fn release(this: Arc<Self>) {
        // Or the worker could drop the last reference, and wait for its own end.
        this.settle();
    }

    fn tables() -> &'static Tables<Self> {
        static TABLES: Tables<Interface> = Tables::new();
        &TABLES
    }

    fn uninit(this: ArcBorrow<'_, Self>, _dev: &Device) {
        Arc::<Self>::from(this).strip();
    }

    #[inline]
    fn transmit(this: ArcBorrow<'_, Self>, skb: SkBuff, lock: &mut TxLocked<'_>, reading: &Guard) {
        match this.queue(skb.queue_mapping().into()) {
            Some(queue) => tx::transmit(this, queue, skb, lock, reading),
            None => this.count_drops(TxDrop::NotReady, 1),
        }
    }

    #[inline]
    fn can_segment(this: ArcBorrow<'_, Self>, skb: &SkBuff) -> bool {
        tx::can_segment(this, skb)
    }

    fn fix_features(this: ArcBorrow<'_, Self>, wanted: u64) -> u64 {
        // Connections carry messages as they are (CM-14).
        if this.connected() {
            Offloads::without(wanted)
        } else {
            wanted
        }
    }

    fn hard_header(protocol: u16, to: &[u8; ALEN]) -> [u8; HARD_HEADER] {
        encap::build_hard(HwAddr(*to), EtherType(protocol))
    }

    fn change_mtu(this: ArcBorrow<'_, Self>, dev: &Device, rtnl: &Rtnl, mtu: u32) -> Result {
        let mut control = this.control.lock();
        if control.own_mtu {
            // Also when the stack goes back to the former one because somebody objects.
            dev.store_mtu(rtnl, mtu);
            return Ok(());
        }
        match control.port.request_mtu(mtu) {
            Ok(effective) => {
                dev.store_mtu(rtnl, effective);
                Ok(())
            }
            Err(error) => {
                let (bound, limit) = match error {
                    MtuError::TooSmall(limit) => ("at least", limit),
                    MtuError::TooLarge(limit) => ("at most", limit),
                };
                pr_info!(
                    "{}: MTU {} refused: {} {} here\n",
                    dev.name(),
                    mtu,
                    bound,
                    limit
                );
                Err(EINVAL)
            }
        }
    }

    fn set_multicast(
        this: ArcBorrow<'_, Self>,
        _dev: &Device,
        addrs: &mut dyn Iterator<Item = [u8; ALEN]>,
    ) -> Result {
        let broadcast = this.broadcast();
        let mut groups = KVec::<Gid>::new();
        for addr in addrs.map(HwAddr) {
            if mgid::acceptable(&addr, &broadcast) {
                groups.push(addr.gid(), GFP_KERNEL)?;
            }
        }
        this.set_listeners(groups);
        Arc::<Self>::from(this).post(worker::MULTICAST);
        Ok(())
    }

    fn tx_timeout(this: ArcBorrow<'_, Self>, _dev: &Device, queue: u32) {
        let this: Arc<Self> = this.into();
        if let Some(queue) = this.queue(queue as usize) {
            // A lost event costs no reset: if this poll finds completions, the queue runs again.
            queue.napi.schedule();
            queue.shared.note(&this, Concern::Stalled);
        }
    }

    fn stats(this: ArcBorrow<'_, Self>) -> Stats {
        let mut sum = Stats::default();
        for queue in this.queues() {
            queue.shared.stats.add_to(&mut sum);
        }
        if let Some(lane) = this.lane() {
            lane.shared.stats.add_to(&mut sum);
        }
        stats::add_tx_drops(this.drops(), &mut sum);
        sum
    }
}

const _: () = {
    assert!(HARD_HEADER == encap::HARD_LEN);
    assert!(ALEN == HwAddr::LEN);
    // The counter arrays are indexed by reason.
    assert!(TxDrop::ALL.len() == TxDrop::COUNT);
};
