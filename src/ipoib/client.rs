// SPDX-License-Identifier: GPL-2.0

//! RDMA devices come and go: each accepted port gets one interface.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use super::{
    addressee,
    child,
    interface::{
        Interface,
        Place, //
    },
    port::Port,
    queue::{
        self,
        Hardware, //
    },
    resolver::Resolver,
    sysfs,
    worker, //
};
use crate::{
    base::{
        netdev::HeldNetdev,
        params::Params,
        unsupported,
        work::OrderedQueue, //
    },
    net::{
        device::Device,
        notifier::{
            Change,
            Listener,
            Listening, //
        },
        registration::{
            Config,
            Registration,
            Unregistered, //
        },
        rtnl::Rtnl, //
    },
    rdma::{
        self,
        client::Slot,
        Addressee,
        Client,
        DeviceHandle,
        Event,
        EventHandler,
        EventKind,
        EventRegistration, //
    },
    wire::mtu, //
};

/// The RDMA client of this module.
pub(crate) struct Ipoib;

/// Where the next interface starts on the completion vectors.
static NEXT_VECTOR: Atomic<u32> = Atomic::new(0);

/// One port with its interface. Dropping it takes the interface away.
///
/// Fields are dropped in this order: no chore may touch a device that is being unregistered, and
/// children go before their parent.
struct Parent {
    port: Closing,
    _device: Registration<Interface>,
}

/// Ends a port's work and removes the children on it when dropped.
struct Closing(Arc<Port>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
        child::remove_all(&self.0);
    }
}

/// What hears of events that concern a device's ports.
struct Ears {
    ports: KVec<Arc<Port>>,
}

/// What the client keeps per device. Fields are dropped in this order: nothing hears of events
/// any more when the interfaces go.
pub(crate) struct PerDevice {
    _listening: Listening,
    _events: Pin<KBox<EventRegistration<Ears>>>,
    parents: KVec<Parent>,
    _queue: Flushing,
}

/// The queue of the ports' work. Dropped when nobody queues anything on it any more, it waits for
/// what was queued last: an item that a race has left there must not own the last reference to the
/// queue, which would then have to wait for its own end.
struct Flushing(Arc<OrderedQueue>);

impl Drop for Flushing {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl Client for Ipoib {
    type Data = PerDevice;

    const NAME: &'static CStr = c"ipoib_rs";

    fn slot() -> &'static Slot {
        static SLOT: Slot = Slot::new();
        &SLOT
    }

    fn add(device: &DeviceHandle) -> Result<PerDevice> {
        let params = Params::get()?;
        let queue = OrderedQueue::new(c"ipoib_rs_port", false)?;
        let queue = Flushing(Arc::new(queue, GFP_KERNEL)?);
        let mut parents = KVec::new();
        for number in device.ports() {
            let Some(port) = device.port(number) else {
                continue;
            };
            let Some(resolver) = Resolver::for_port(port.link(), params.roce)? else {
                continue;
            };
            // A port that fails does not keep the others from working (NET-2).
            match add_port(&params, port, resolver, &queue.0) {
                Ok(parent) => parents.push(parent, GFP_KERNEL)?,
                Err(e) => pr_warn!(
                    "{}: couldn't register ipoib port {}; error {}\n",
                    device.name(),
                    number,
                    e.to_errno()
                ),
            }
        }
        if parents.is_empty() {
            return Err(unsupported());
        }
        let mut ports = KVec::with_capacity(parents.len(), GFP_KERNEL)?;
        for parent in &parents {
            ports.push(parent.port.0.clone(), GFP_KERNEL)?;
        }
        let ears = Arc::new(Ears { ports }, GFP_KERNEL)?;
        let events = KBox::pin_init(EventRegistration::new(device, ears.clone()), GFP_KERNEL)?;
        let listening = Listening::new(ears.clone())?;
        // Whatever happened between reading the ports and now.
        for port in &ears.ports {
            show_all(port);
            port.refresh();
            port.do_chores();
        }
        Ok(PerDevice {
            _listening: listening,
            _events: events,
            parents,
            _queue: queue,
        })
    }

    fn remove(_device: &DeviceHandle, data: PerDevice) {
        drop(data);
    }

    fn addressed(data: &PerDevice, to: &Addressee) -> Option<HeldNetdev> {
        let mut ports = data.parents.iter().map(|parent| &*parent.port.0);
        addressee::find(ports.find(|port| port.rdma().number() == to.port)?, to)
    }
}

/// Makes the debugfs files of all interfaces on a port. Takes RTNL, without which a child might be
/// half made or half gone: its file would hold on to it for ever. May sleep.
fn show_all(port: &Port) {
    let rtnl = Rtnl::lock();
    for iface in port.walk() {
        if let Some(dev) = iface.device().filter(|dev| dev.registered(&rtnl)) {
            iface.show_in_debugfs(&dev);
        }
    }
}

/// Makes and registers the interface of one port.
fn add_port(
    params: &Params,
    rdma: rdma::Port,
    resolver: Resolver,
    wq: &Arc<OrderedQueue>,
) -> Result<Parent> {
    let device = rdma.device().clone();
    let number = rdma.number();
    let port = Closing(Port::new(rdma, wq.clone())?);
    let n = queue::count(params, &device);
    let pkey = resolver.first_pkey(port.0.rdma())?;
    let first_vector = next_vector(n);
    let iface = Interface::new(
        *params,
        port.0.clone(),
        resolver,
        pkey,
        first_vector,
        Place::Parent,
    )?;
    let net = device.net()?;
    let netdev = Unregistered::new(c"ib%d", n, iface.clone())?;
    let (hw, queues) = Hardware::create(&iface, netdev.device(), n)?;
    let offloads = hw.offloads();
    iface.equip(netdev.device(), hw, queues);

    let seen = port.0.seen();
    let config = Config {
        addr: iface.address(&seen.gid).0,
        broadcast: iface.broadcast().0,
        mtu: mtu::ipoib_mtu(seen.mtu),
        offloads,
        port: u16::try_from(number.saturating_sub(1)).unwrap_or(0),
        parent: device.parent_device(),
        net: Some(net),
        queues: n,
        files: &sysfs::PARENT,
    };
    let listed = port.0.add(iface.clone());
    let registered = match listed {
        Ok(()) => netdev.register(&config),
        Err(e) => Err((e, netdev)),
    };
    let registered = registered.map_err(|(e, netdev)| {
        // Registration may or may not have called `uninit`.
        iface.strip();
        drop(netdev);
        e
    })?;
    Ok(Parent {
        port,
        _device: registered,
    })
}

/// The completion vector at which an interface with `n` queues starts.
pub(super) fn next_vector(n: u32) -> u32 {
    NEXT_VECTOR.fetch_add(n, Relaxed)
}

impl EventHandler for Ears {
    fn event(&self, event: Event) {
        for port in &self.ports {
            if event
                .port
                .is_some_and(|number| number != port.rdma().number())
            {
                continue;
            }
            port.note(event.kind);
        }
    }
}

impl Listener for Ears {
    fn changed(&self, dev: &Device, change: Change) {
        match change {
            Change::Name => {
                for port in &self.ports {
                    for iface in port.walk() {
                        iface.show_in_debugfs(dev);
                    }
                }
            }
            // Soft-RoCE tells of no MTU change by itself. Which netdev is below a port is found
            // out when the port is read, not here with RTNL held.
            Change::Mtu | Change::Up | Change::Addr if !dev.is_infiniband() => {
                for port in &self.ports {
                    port.refresh();
                }
            }
            // The broadcast address may be another.
            Change::Addr => {
                for port in &self.ports {
                    if let Some(iface) = port.find(|each| each.is(dev)) {
                        iface.post(worker::PORT);
                    }
                }
            }
            Change::Mtu | Change::Up => {}
        }
    }
}

impl Port {
    /// Takes note of an event. Only queues work.
    fn note(self: &Arc<Self>, kind: EventKind) {
        match kind {
            EventKind::PortActive => self.revive(),
            EventKind::PKeyChange | EventKind::GidChange | EventKind::SpeedChange => self.refresh(),
            // These void all memberships (MC-14), also when the port is back before it is read. And
            // whoever asks for a new start may have had a reason that went unreported.
            EventKind::PortError | EventKind::LidChange | EventKind::ClientReregister => {
                self.post_all(worker::REREGISTER);
                self.refresh();
            }
            EventKind::SmChange => {
                self.post_all(worker::REPATH);
                self.refresh();
            }
            EventKind::DeviceFatal => self.fail(),
            EventKind::Other(_) => {}
        }
    }
}
