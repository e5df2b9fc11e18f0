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
    debugfs,
    interface::Interface,
    port::Port,
    queue::{
        self,
        Hardware, //
    },
    resolver::Resolver, //
};
use crate::{
    base::{
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
    },
    rdma::{
        self,
        client::Slot,
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
/// Fields are dropped in this order: no chore may touch a device that is being unregistered.
struct Parent {
    port: Closing,
    files: Arc<debugfs::Files>,
    _device: Registration<Interface>,
    _last: Settling,
}

/// Ends a port's work when dropped.
struct Closing(Arc<Port>);

/// Lets an interface's worker come to rest when dropped.
struct Settling(Arc<Interface>);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What hears of events that concern a device's ports.
struct Ears {
    ports: KVec<Arc<Port>>,
    files: KVec<Arc<debugfs::Files>>,
}

/// What the client keeps per device. Fields are dropped in this order: nothing hears of events
/// any more when the interfaces go.
pub(crate) struct PerDevice {
    _listening: Listening,
    _events: Pin<KBox<EventRegistration<Ears>>>,
    _parents: KVec<Parent>,
    _queue: Arc<OrderedQueue>,
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
        let queue = Arc::new(OrderedQueue::new(c"ipoib_rs_port", false)?, GFP_KERNEL)?;
        let mut parents = KVec::new();
        for number in device.ports() {
            let Some(port) = device.port(number) else {
                continue;
            };
            let Some(resolver) = Resolver::for_port(port.link(), params.roce)? else {
                continue;
            };
            // A port that fails does not keep the others from working (NET-2).
            match add_port(&params, port, resolver, &queue) {
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
        let mut files = KVec::with_capacity(parents.len(), GFP_KERNEL)?;
        for parent in &parents {
            ports.push(parent.port.0.clone(), GFP_KERNEL)?;
            files.push(parent.files.clone(), GFP_KERNEL)?;
        }
        let ears = Arc::new(Ears { ports, files }, GFP_KERNEL)?;
        let events = KBox::pin_init(EventRegistration::new(device, ears.clone()), GFP_KERNEL)?;
        let listening = Listening::new(ears.clone())?;
        // Whatever happened between reading the ports and now.
        for port in &ears.ports {
            port.refresh();
        }
        Ok(PerDevice {
            _listening: listening,
            _events: events,
            _parents: parents,
            _queue: queue,
        })
    }

    fn remove(_device: &DeviceHandle, data: PerDevice) {
        drop(data);
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
    let first_vector = NEXT_VECTOR.fetch_add(n, Relaxed);
    let pkey = resolver.first_pkey(port.0.rdma())?;
    let iface = Interface::new(*params, port.0.clone(), resolver, pkey, first_vector)?;
    let net = device.net()?;
    let netdev = Unregistered::new(c"ib%d", n, iface.clone())?;
    let (hw, queues) = Hardware::create(&iface, netdev.device(), n)?;
    iface.equip(netdev.device(), hw, queues);

    let seen = port.0.seen();
    let config = Config {
        addr: iface.address(&seen.gid).0,
        broadcast: iface.broadcast().0,
        mtu: mtu::ipoib_mtu(seen.mtu),
        max_mtu: mtu::CONNECTED_MAX,
        scatter: device.attrs().max_send_sge > 1,
        port: u16::try_from(number.saturating_sub(1)).unwrap_or(0),
        parent: device.parent_device(),
        net,
    };
    port.0.set_interface(iface.clone());
    let registered = netdev.register(&config).map_err(|(e, netdev)| {
        // Registration may or may not have called `uninit`.
        iface.strip();
        drop(netdev);
        e
    })?;
    let files = Arc::pin_init(debugfs::Files::new(&iface), GFP_KERNEL)?;
    files.follow(registered.device());
    Ok(Parent {
        port,
        files,
        _device: registered,
        _last: Settling(iface),
    })
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
                for files in &self.files {
                    files.follow(dev);
                }
            }
            // Soft-RoCE tells of no MTU change by itself. Which netdev is below a port is found
            // out when the port is read, not here with RTNL held.
            Change::Mtu | Change::Up | Change::Addr if !dev.is_infiniband() => {
                for port in &self.ports {
                    port.refresh();
                }
            }
            Change::Mtu | Change::Up | Change::Addr => {}
        }
    }
}

impl Port {
    /// Takes note of an event. Only queues work.
    fn note(self: &Arc<Self>, kind: EventKind) {
        match kind {
            EventKind::PortActive
            | EventKind::PortError
            | EventKind::LidChange
            | EventKind::PKeyChange
            | EventKind::GidChange
            | EventKind::SpeedChange => self.refresh(),
            EventKind::ClientReregister => self.reregister(),
            EventKind::SmChange | EventKind::DeviceFatal | EventKind::Other(_) => {}
        }
    }
}
