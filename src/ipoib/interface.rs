// SPDX-License-Identifier: GPL-2.0

//! An interface: its identity, its tables, its events, and the control state that the worker owns.

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        rcu::{
            self,
            Guard, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::DelayedWork, //
};

use super::{
    chores::Chores,
    conns::Conns,
    debugfs,
    groups::Groups,
    lane::Lane,
    neigh::Neighbours,
    partition::Partition,
    paths::Paths,
    port::{
        Port,
        Seen, //
    },
    queue::{
        Hardware,
        Queue, //
    },
    recovery::Recovery,
    resolver::Resolver,
    worker, //
};
use crate::{
    base::{
        atomic::Word,
        count::Counter,
        flags::Flags,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        once::Late,
        params::Params,
        rcu::{
            RcuArc,
            RcuPtr, //
        },
        time,
        work::{
            self,
            OrderedQueue, //
        }, //
    },
    control::{
        self,
        join,
        port::Action,
        reason::TxDrop,
        seq::Seq,
        storm::Pace,
        time::Millis, //
    },
    net::{
        device::Device,
        ethtool::Coalescing,
        skb::SkBuff, //
    },
    rdma::Ah,
    wire::{
        addr::HwAddr,
        encap,
        gid::Gid,
        mtu,
        pkey::PKey,
        qpn::Qpn,
        rx::Identity, //
    },
};

/// The most packets that wait until their senders are told that they are too long.
const MAX_TOO_LONG: usize = 64;

/// Who the interface is, for the data path; replaced as a whole.
#[derive(PartialEq, Eq)]
pub(crate) struct Ident {
    /// What received frames are checked against.
    pub(crate) me: Identity,
    /// The Q_Key of all traffic: the broadcast group's (QP-9), host byte order.
    pub(crate) qkey: u32,
    /// The longest frame that may be sent, encapsulation header included.
    pub(crate) max_frame: u32,
    /// Low bits of LIDs that say nothing of who it is; taken to be the same all over the subnet.
    pub(crate) lmc: u8,
}

/// Which of a port's interfaces one is.
pub(crate) enum Place {
    /// The port's own.
    Parent,
    /// A further one.
    Child(Child),
}

/// What a child knows of its origin.
pub(crate) struct Child {
    /// The parent's device, which therefore is freed after this interface.
    pub(crate) lower: ARef<Device>,
    /// Whether it was made by sysfs, which also deletes it.
    pub(crate) by_sysfs: bool,
}

/// What an interface has while it is up. Belongs to the worker.
///
/// Fields are dropped in this order: groups hold attachments to queue pairs, paths hold queries.
pub(crate) struct Running {
    /// Connections; none where the device cannot have any.
    pub(crate) conns: Option<Conns>,
    pub(crate) groups: Groups,
    pub(crate) paths: Paths,
    pub(crate) recovery: Recovery,
    /// The broadcast group's parameters that are in force.
    pub(crate) broadcast: Option<join::Params>,
    pub(crate) next_ageing: Millis,
    /// No room is made in crowded tables before this.
    pub(crate) next_room: Millis,
    /// Peers must be told once the broadcast group has been joined again.
    pub(crate) announce: bool,
}

/// All state that only one context at a time may change.
pub(crate) struct Control {
    pub(crate) running: Option<Running>,
    pub(crate) hw: Option<Hardware>,
    pub(crate) port: control::port::Port,
    /// What the port looked like when it was last acted on. Here and not in `Running`: a port that
    /// changes while the interface is down changes the MTU and the address all the same.
    pub(crate) seen: Seen,
    pub(crate) seq: Seq,
    /// When to ask, when all nodes do. Outlasts `Running`, as what the fabric can do does.
    pub(crate) pace: Pace,
    /// What `ethtool` last asked for.
    pub(crate) coalescing: Coalescing,
    /// The stack is being told an MTU (RTNL held): it asks for it in our own name, not in the administrator's.
    pub(crate) own_mtu: bool,
}

/// One interface.
#[pin_data]
pub(crate) struct Interface {
    params: Params,
    port: Arc<Port>,
    resolver: Resolver,
    place: Place,
    partition: Partition,
    /// Whether groups that a user program has joined are left to it (MC-20).
    umcast: Atomic<u32>,
    first_vector: u32,
    /// Made before the device is registered, and not changed afterwards.
    queues: Late<KVec<Queue>>,
    /// The data path of connections, where the device can have any. As `queues`.
    lane: Late<Arc<Lane>>,
    /// Whether the mode is connected.
    connected: Atomic<u32>,
    /// Packets whose senders must be told that they are too long, with the MTU to tell.
    #[pin]
    too_long: SpinLockBh<KVec<(SkBuff, u32)>>,
    pub(crate) ident: RcuPtr<Ident>,
    /// The InfiniBand MTU that receive buffers are made for.
    rx_limit: Atomic<u32>,
    qkey: Atomic<u32>,
    traffic_class: Atomic<u32>,
    neighbours: Neighbours,
    /// Bits of `worker`.
    pub(crate) events: Flags,
    drops: [Counter; TxDrop::COUNT],
    #[pin]
    listeners: Mutex<KVec<Gid>>,
    /// The debugfs file.
    #[pin]
    file: Mutex<debugfs::File>,
    #[pin]
    dev: SpinLock<Option<ARef<Device>>>,
    #[pin]
    chores: SpinLock<Chores>,
    #[pin]
    pub(crate) control: Mutex<Control>,
    wq: OrderedQueue,
    #[pin]
    work: DelayedWork<Interface>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Interface { self.work }
}

impl Interface {
    /// Makes the state of an interface on `port`, without any verbs object yet. May sleep.
    pub(crate) fn new(
        params: Params,
        port: Arc<Port>,
        resolver: Resolver,
        pkey: PKey,
        first_vector: u32,
        place: Place,
    ) -> Result<Arc<Self>> {
        let seen = port.seen();
        let neighbours = Neighbours::new()?;
        let wq = OrderedQueue::new(c"ipoib_rs", true)?;
        let seed = u64::from(time::random_u32()) << 32 | u64::from(time::random_u32());
        Arc::pin_init(
            pin_init!(Self {
                params,
                port,
                resolver,
                place,
                partition: Partition::new(pkey),
                umcast: Atomic::new(0),
                first_vector,
                queues: Late::new(),
                lane: Late::new(),
                connected: Atomic::new(0),
                too_long <- new_spinlock_bh!(KVec::new(), "too_long"),
                ident: RcuPtr::null(),
                rx_limit: Atomic::new(seen.mtu),
                qkey: Atomic::new(0),
                traffic_class: Atomic::new(0),
                neighbours,
                events: Flags::new(),
                drops: Default::default(),
                listeners <- new_mutex!(KVec::new(), "listeners"),
                file <- new_mutex!(None, "interface_file"),
                dev <- new_spinlock!(None, "interface_dev"),
                chores <- new_spinlock!(Chores::default(), "chores"),
                control <- new_mutex!(Control {
                    running: None,
                    hw: None,
                    port: control::port::Port::new(seen.mtu),
                    seen,
                    seq: Seq::new(seed),
                    pace: Pace::new(),
                    coalescing: Coalescing::default(),
                    own_mtu: false,
                }, "control"),
                wq,
                work <- new_delayed_work!("Interface::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// The module's parameters.
    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    /// The port.
    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// How GIDs are resolved and groups joined here.
    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// Where it belongs.
    #[inline]
    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Where it comes from, if this is a child.
    pub(crate) fn child(&self) -> Option<&Child> {
        match &self.place {
            Place::Parent => None,
            Place::Child(child) => Some(child),
        }
    }

    /// Whether groups that a user program has joined are left to it. Any context.
    pub(crate) fn umcast(&self) -> bool {
        self.umcast.load(Relaxed) != 0
    }

    /// Sets [`Interface::umcast`], and has the groups looked at anew. Any context.
    pub(crate) fn set_umcast(self: &Arc<Self>, on: bool) {
        self.umcast.store(on.into(), Relaxed);
        self.post(worker::MULTICAST);
    }

    /// Where the debugfs file is kept.
    pub(super) fn file(&self) -> &Mutex<debugfs::File> {
        &self.file
    }

    /// The completion vector of the first queue.
    pub(crate) fn first_vector(&self) -> u32 {
        self.first_vector
    }

    /// The datagram queue pair that peers know us by.
    pub(crate) fn qpn(&self) -> Qpn {
        self.queue(0).map_or(Qpn::new(0), |queue| queue.qpn)
    }

    /// The address that peers know us by: queue 0's number and the GID, and whether we take connections.
    pub(crate) fn address(&self, gid: &Gid) -> HwAddr {
        let flags = self.lane().map_or(0, |_| HwAddr::FLAG_RC);
        HwAddr::new(flags, self.qpn(), *gid)
    }

    /// Gives the interface the data path of its connections, once, before registration.
    pub(super) fn set_lane(&self, lane: Arc<Lane>) {
        let _ = self.lane.populate(lane);
    }

    /// The data path of connections, if there can be any.
    pub(crate) fn lane(&self) -> Option<&Arc<Lane>> {
        self.lane.as_ref()
    }

    /// The same, if packets are to go over connections.
    #[inline]
    pub(crate) fn sending_lane(&self) -> Option<&Lane> {
        if self.connected() {
            self.lane().map(|lane| &**lane)
        } else {
            None
        }
    }

    /// Whether the mode is connected.
    #[inline]
    pub(crate) fn connected(&self) -> bool {
        self.connected.get() != 0
    }

    /// Sets what [`Interface::connected`] says.
    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected.into(), Relaxed);
    }

    /// Has the worker tell the sender of `skb`, whose data starts with the network header, that it is longer
    /// than `mtu`. When many wait to be told, some are not.
    pub(crate) fn too_long(self: &Arc<Self>, skb: SkBuff, mtu: u32) {
        let mut list = self.too_long.lock();
        if list.len() < MAX_TOO_LONG && list.push((skb, mtu), GFP_ATOMIC | __GFP_NOWARN).is_ok() {
            drop(list);
            self.post(worker::TOO_LONG);
        }
    }

    /// Tells the senders of packets that were too long. May sleep.
    pub(super) fn answer_too_long(&self, dev: &Device) {
        let list = core::mem::take(&mut *self.too_long.lock());
        for (skb, mtu) in list {
            skb.too_big(dev, mtu);
        }
    }

    /// Gives the interface its device and verbs objects, before registration.
    pub(crate) fn equip(&self, dev: &Device, hw: Hardware, queues: KVec<Queue>) {
        *self.dev.lock() = Some(dev.into());
        self.control.lock().hw = Some(hw);
        let _ = self.queues.populate(queues);
    }

    /// Takes the device and all verbs objects away. Nothing of the data path runs any more. May
    /// sleep; harmless when repeated.
    pub(crate) fn strip(self: &Arc<Self>) {
        self.port.forget(self);
        drop(self.file.lock().take());
        work::cancel_sync(self);
        let Some(dev) = self.dev.lock().take() else {
            return;
        };
        let hw = {
            let mut control = self.control.lock();
            drop(control.running.take());
            control.hw.take()
        };
        super::queue::destroy_queues(self.queues(), &dev);
        if let Some(lane) = self.lane() {
            lane.destroy();
        }
        let too_long = core::mem::take(&mut *self.too_long.lock());
        drop(too_long);
        drop(self.ident.swap(None));
        drop(hw);
    }

    /// The device, from before its registration until it is unregistered.
    pub(crate) fn device(&self) -> Option<ARef<Device>> {
        self.dev.lock().clone()
    }

    /// Whether `dev` is this interface's device.
    pub(crate) fn is(&self, dev: &Device) -> bool {
        self.device()
            .is_some_and(|own| core::ptr::eq::<Device>(&*own, dev))
    }

    /// All queues.
    #[inline]
    pub(crate) fn queues(&self) -> &[Queue] {
        self.queues.as_ref().map_or(&[], |queues| queues)
    }

    /// One queue.
    #[inline]
    pub(crate) fn queue(&self, index: usize) -> Option<&Queue> {
        self.queues().get(index)
    }

    /// Whether `qpn` is one of ours.
    #[inline]
    pub(crate) fn owns(&self, qpn: Qpn) -> bool {
        self.queues().iter().any(|queue| queue.qpn == qpn)
    }

    /// The neighbours.
    pub(crate) fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// The address handle for `to`, if it is resolved.
    #[inline]
    pub(crate) fn find(&self, guard: &Guard, to: &Gid) -> Option<RcuArc<Ah>> {
        self.neighbours.lookup(guard, to)?.handle(guard)
    }

    /// Notes an event and has the worker run. Any context.
    pub(crate) fn post(self: &Arc<Self>, what: u32) {
        self.events.set(what);
        self.wq.kick(self.clone());
    }

    /// Notes an event for the worker's next run, which comes within a tenth of a second.
    /// From the present run only.
    pub(crate) fn retry(&self, what: u32) {
        self.events.set(what);
    }

    /// Notes an event and has the worker run in a tenth of a second, or earlier if something is posted. Any context.
    pub(super) fn post_later(self: &Arc<Self>, what: u32) {
        self.events.set(what);
        self.run_in(worker::RETRY.0);
    }

    /// Has the worker run in `ms` milliseconds, or earlier if something is posted. At the end of a run only: what
    /// is pending already is not brought forward.
    pub(crate) fn run_in(self: &Arc<Self>, ms: u64) {
        self.wq.run_in(self.clone(), ms);
    }

    /// Waits for what the worker still has to do. To be called by an owner when nothing posts any
    /// more, so that the last reference is not dropped by the worker itself, which would have to
    /// wait for its own end. May sleep.
    pub(crate) fn settle(&self) {
        self.wq.flush();
    }

    /// Counts packets that were dropped while they waited, or before they had a queue. Any context.
    pub(crate) fn count_drops(&self, reason: TxDrop, packets: usize) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add_shared(packets as u64);
        }
    }

    /// The counters of [`Interface::count_drops`].
    pub(crate) fn drops(&self) -> &[Counter; TxDrop::COUNT] {
        &self.drops
    }

    /// A copy of the groups that the stack wants to hear, as last told. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn listeners(&self) -> Result<KVec<Gid>> {
        let listeners = self.listeners.lock();
        let mut copy = KVec::with_capacity(listeners.len(), GFP_KERNEL)?;
        copy.extend_from_slice(&listeners, GFP_KERNEL)?;
        Ok(copy)
    }

    /// Takes over the groups that the stack wants to hear.
    pub(crate) fn set_listeners(&self, groups: KVec<Gid>) {
        *self.listeners.lock() = groups;
    }

    /// The octets that a receive buffer offers: routing header and the largest payload.
    pub(crate) fn rx_area(&self) -> usize {
        mtu::rx_buffer(self.rx_limit.load(Relaxed)) as usize
    }

    /// Takes over the port's MTU for receive buffers; whether those in the rings are too small.
    pub(crate) fn set_rx_limit(&self, ib_mtu: u32) -> bool {
        self.rx_limit.xchg(ib_mtu, Full) < ib_mtu
    }

    /// What is to be done under RTNL.
    pub(super) fn chores(&self) -> &SpinLock<Chores> {
        &self.chores
    }

    /// The Q_Key in force; 0 before the broadcast group is joined (QP-9).
    pub(crate) fn qkey(&self) -> u32 {
        self.qkey.load(Relaxed)
    }

    /// The traffic class of paths: the broadcast group's (SA-1).
    pub(crate) fn traffic_class(&self) -> u8 {
        self.traffic_class.load(Relaxed) as u8
    }

    /// Who we are on a port that was last seen so, in a broadcast group like that, of which `group_mtu` may be used.
    fn identity(&self, seen: &Seen, params: &join::Params, group_mtu: u32) -> Ident {
        Ident {
            me: Identity {
                gid: seen.gid,
                broadcast: self.broadcast().gid(),
                lid: Some(seen.lid).filter(|lid| *lid != 0),
            },
            qkey: params.qkey,
            max_frame: group_mtu.saturating_add(encap::LEN as u32),
            lmc: seen.lmc.min(7),
        }
    }

    /// Tells the data path who we are and what every frame must obey, unless it knows. Control lock held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; then the data path goes on as before.
    pub(crate) fn publish_identity(
        &self,
        seen: &Seen,
        params: &join::Params,
        group_mtu: u32,
    ) -> Result {
        let ident = self.identity(seen, params, group_mtu);
        let known = self.ident.load(&rcu::read_lock()) == Some(&ident);
        if !known {
            let ident = RcuArc::new(ident, GFP_KERNEL)?;
            self.qkey.store(params.qkey, Relaxed);
            drop(self.ident.swap(Some(ident)));
        }
        self.traffic_class
            .store(params.traffic_class.into(), Relaxed);
        Ok(())
    }

    /// Carries out what the port's machine decides. Control lock held.
    pub(crate) fn port_actions(&self, dev: &Device, actions: control::port::Actions) {
        for action in actions {
            match action {
                Action::CarrierOn => dev.set_carrier(true),
                Action::CarrierOff => dev.set_carrier(false),
                Action::SetMtu(_) => self.mtu_changed(),
            }
        }
    }
}
