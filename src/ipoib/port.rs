// SPDX-License-Identifier: GPL-2.0

//! A port as its interface sees it: what was last read of it, and the work that reads it anew.
//!
//! Reading a port may take RTNL (soft-RoCE does), so it happens only here: on a queue that nobody
//! flushes with RTNL held. The same work does the interface's other chores that need RTNL.

use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex, new_spinlock,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    },
};

use super::{
    interface::Interface,
    worker, //
};
use crate::{
    base::{
        flags::Flags,
        log::warn_limited,
        work::{
            self,
            OrderedQueue, //
        }, //
    },
    rdma::{
        self,
        PortState, //
    },
    wire::gid::Gid, //
};

/// What was last read of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether the port is ACTIVE.
    pub(crate) active: bool,
    /// The MTU of the link as it runs now, octets (256 to 4096).
    pub(crate) mtu: u32,
    /// The port's own GID, or the last that was there; zero before the first.
    pub(crate) gid: Gid,
    /// Local identifier; 0 on RoCE.
    pub(crate) lid: u32,
    /// Number of low bits of the LID that are free for path selection; 0 on RoCE.
    pub(crate) lmc: u8,
}

impl Seen {
    /// Reads the port. One without a GID counts as not active and as having `last`, its GID so far:
    /// nothing can be sent from it, and the core cannot put a new GID in that place as long as
    /// address handles of ours hold on to the old one. May sleep and take RTNL.
    fn read(port: &rdma::Port, last: Gid) -> Result<Self> {
        let attr = port.query()?;
        let (gid, present) = match port.gid(port.own_gid_index().into()) {
            Ok(gid) => (gid, true),
            Err(e) if e == ENOENT => (last, false),
            Err(e) => return Err(e),
        };
        Ok(Self {
            active: present && attr.state == PortState::Active,
            mtu: attr.active_mtu,
            gid,
            lid: attr.lid,
            lmc: attr.lmc,
        })
    }
}

/// The port must be read anew.
const READ: u32 = 1 << 0;
/// The interface has chores that need RTNL.
const CHORES: u32 = 1 << 1;
/// No further work is taken on.
const CLOSED: u32 = 1 << 31;

/// One port.
#[pin_data]
pub(crate) struct Port {
    rdma: rdma::Port,
    #[pin]
    state: SpinLock<Seen>,
    flags: Flags,
    /// The interface on this port, from its creation to `close`.
    #[pin]
    interface: Mutex<Option<Arc<Interface>>>,
    queue: Arc<OrderedQueue>,
    #[pin]
    work: DelayedWork<Port>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Port { self.work }
}

impl Port {
    /// Reads `rdma` for the first time. `queue` is one that nobody flushes with RTNL held. May
    /// sleep and take RTNL.
    pub(crate) fn new(rdma: rdma::Port, queue: Arc<OrderedQueue>) -> Result<Arc<Self>> {
        // Without a GID yet there is an interface all the same: it gets its address with the GID.
        let seen = Seen::read(&rdma, Gid::ZERO)?;
        Arc::pin_init(
            pin_init!(Self {
                rdma,
                state <- new_spinlock!(seen, "port_state"),
                flags: Flags::new(),
                interface <- new_mutex!(None, "port_interface"),
                queue,
                work <- new_delayed_work!("Port::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// The verbs view.
    pub(crate) fn rdma(&self) -> &rdma::Port {
        &self.rdma
    }

    /// What was last read. Any context but hard interrupts.
    pub(crate) fn seen(&self) -> Seen {
        *self.state.lock()
    }

    /// Names the interface that hears of changes.
    pub(crate) fn set_interface(&self, interface: Arc<Interface>) {
        *self.interface.lock() = Some(interface);
    }

    /// The interface on this port. May sleep.
    pub(crate) fn interface(&self) -> Option<Arc<Interface>> {
        self.interface.lock().clone()
    }

    /// Has the port read anew soon. Process or softirq context.
    pub(crate) fn refresh(self: &Arc<Self>) {
        self.schedule(READ);
    }

    /// Has the interface's chores done soon. Process or softirq context.
    pub(crate) fn do_chores(self: &Arc<Self>) {
        self.schedule(CHORES);
    }

    /// Passes an event of the worker's on to the interface. May sleep, but takes no RTNL.
    pub(crate) fn tell(self: &Arc<Self>, event: u32) {
        if let Some(interface) = self.interface() {
            interface.post(event);
        }
    }

    /// The device is dead: whatever it says, the port is not active, until it is read anew after an
    /// event that says it is back. May sleep, but takes no RTNL.
    pub(crate) fn fail(self: &Arc<Self>) {
        self.state.lock().active = false;
        self.tell(worker::PORT);
    }

    fn schedule(self: &Arc<Self>, what: u32) {
        if self.flags.set(what) & CLOSED == 0 {
            self.queue.kick(self.clone());
        }
    }

    /// Ends all work for the port and lets go of the interface. May sleep; not with RTNL held.
    pub(crate) fn close(self: &Arc<Self>) {
        self.flags.set(CLOSED);
        work::cancel_sync(self);
        // A kick that raced with the flag may have queued the item once more. It must not be the
        // last to hold the port, nor through it the queue that it runs on.
        self.queue.flush();
        let interface = self.interface.lock().take();
        drop(interface);
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let todo = this.flags.clear(READ | CHORES);
        if todo & CLOSED != 0 {
            return;
        }
        let Some(interface) = this.interface() else {
            return;
        };
        if todo & READ != 0 {
            match Seen::read(&this.rdma, this.seen().gid) {
                Ok(seen) => *this.state.lock() = seen,
                Err(e) => warn_limited!(
                    "{}/{}: cannot read the port ({:?}); keeping what was last known\n",
                    this.rdma.device().name(),
                    this.rdma.number(),
                    e
                ),
            }
            interface.port_changed();
        }
        if todo & CHORES != 0 {
            interface.do_chores();
        }
    }
}
