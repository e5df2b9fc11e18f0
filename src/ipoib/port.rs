// SPDX-License-Identifier: GPL-2.0

//! A port as its interface sees it: what was last read of it, and the work that reads it anew.
//!
//! Reading a port may take RTNL (soft-RoCE does), so it happens only here: on a queue that nobody
//! flushes with RTNL held. The same work does the interface's other chores that need RTNL.

use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
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
        time,
        work::{
            self,
            OrderedQueue, //
        }, //
    },
    rdma::{
        self,
        PortState, //
    },
    wire::{
        gid::Gid,
        rate, //
    }, //
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
    /// Speed of the link in Mb/s, if it is one that is known.
    pub(crate) mbps: Option<u32>,
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
            mbps: rate::mbps(attr.active_speed, attr.active_width),
        })
    }
}

/// The port must be read anew.
const READ: u32 = 1 << 0;
/// Interfaces have chores that need RTNL.
const CHORES: u32 = 1 << 1;
/// The port must be read anew within [`WATCH_MS`].
const WATCH: u32 = 1 << 2;
/// No further work is taken on.
const CLOSED: u32 = 1 << 31;

/// How long, in milliseconds, a device that has reported a fatal error is not believed that its port
/// is active. Longer than a driver takes to notice that the device must be removed.
const DEAD_MS: u64 = 5000;

/// When, in milliseconds, a port that could not be read is read again: the event that told of a change comes but once.
const RETRY_MS: u64 = 1000;

/// When, in milliseconds, a port that cannot be used is read again although nothing was heard of it: the core passes
/// on no event while it fails to read the port for its own cache.
const WATCH_MS: u64 = 5000;

/// How long, in milliseconds, the queue pairs that an interface closes have to give everything back.
const PATIENCE_MS: u64 = 5000;
/// The same on a device from which nothing comes any more: one that reported a fatal error, or kept another interface
/// waiting in vain less than [`STUCK_MS`] ago.
const STUCK_PATIENCE_MS: u64 = 100;
/// See [`STUCK_PATIENCE_MS`].
const STUCK_MS: u64 = 30_000;

/// Interfaces with numbers that grow: the port's own first, then its children.
#[derive(Default)]
struct List {
    all: KVec<(u64, Arc<Interface>)>,
    next: u64,
}

/// One port.
#[pin_data]
pub(crate) struct Port {
    rdma: rdma::Port,
    #[pin]
    state: SpinLock<Seen>,
    flags: Flags,
    /// Until when the device is not believed, in milliseconds; 0 when it is.
    dead_until: Atomic<u64>,
    /// When the port is to be read again although nobody has asked for it, in milliseconds; 0: not. A time and not a flag:
    /// the work may run earlier for other reasons, and reading leads to new requests of those who wait.
    read_at: Atomic<u64>,
    /// Until when the device is not expected to give anything back, in milliseconds.
    stuck_until: Atomic<u64>,
    /// The interfaces on this port, each from before its registration until it is unregistered.
    #[pin]
    interfaces: Mutex<List>,
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
                dead_until: Atomic::new(0),
                read_at: Atomic::new(0),
                stuck_until: Atomic::new(0),
                interfaces <- new_mutex!(List::default(), "port_interfaces"),
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

    /// Adds an interface to those that hear of changes. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, interface: Arc<Interface>) -> Result {
        let mut list = self.interfaces.lock();
        let number = list.next;
        list.all.push((number, interface), GFP_KERNEL)?;
        list.next = number.saturating_add(1);
        Ok(())
    }

    /// Takes an interface off the list; when this returns, nothing is posted to it from here. May
    /// sleep; harmless when repeated.
    pub(crate) fn forget(&self, interface: &Interface) {
        let mut list = self.interfaces.lock();
        let at = list
            .all
            .iter()
            .position(|(_, each)| core::ptr::eq::<Interface>(&**each, interface));
        let gone = at.and_then(|at| list.all.remove(at).ok());
        drop(list);
        drop(gone);
    }

    /// The first interface, the newest one first, that `wanted` says yes to; children come before
    /// their parent. `wanted` takes no locks but spinlocks. May sleep.
    pub(crate) fn find(
        &self,
        mut wanted: impl FnMut(&Interface) -> bool,
    ) -> Option<Arc<Interface>> {
        let list = self.interfaces.lock();
        let mut all = list.all.iter().rev();
        all.find(|(_, each)| wanted(each))
            .map(|(_, each)| each.clone())
    }

    /// All interfaces, children first (PK-12). Between two of them the list is not locked: it may
    /// change, and what comes late is left out. Each step may sleep.
    pub(crate) fn walk(&self) -> impl Iterator<Item = Arc<Interface>> + '_ {
        let mut last = u64::MAX;
        core::iter::from_fn(move || {
            let list = self.interfaces.lock();
            let mut all = list.all.iter().rev();
            let (number, next) = all.find(|(number, _)| *number < last)?;
            last = *number;
            Some(next.clone())
        })
    }

    /// Posts an event to all interfaces, children first (PK-12). May sleep, but takes no RTNL.
    pub(crate) fn post_all(&self, what: u32) {
        // With the list locked: an interface that has left it hears of nothing any more.
        for (_, interface) in self.interfaces.lock().all.iter().rev() {
            interface.post(what);
        }
    }

    /// Whether the port goes away and takes on no more interfaces. Under RTNL the answer `false`
    /// means that whoever removes the port has yet to look for children.
    pub(crate) fn closing(&self) -> bool {
        self.flags.get() & CLOSED != 0
    }

    /// Has the port read anew soon. Process or softirq context.
    pub(crate) fn refresh(self: &Arc<Self>) {
        self.schedule(READ);
    }

    /// Has the chores of the interfaces done soon. Process or softirq context.
    pub(crate) fn do_chores(self: &Arc<Self>) {
        self.schedule(CHORES);
    }

    /// The device is dead: whatever it says, the port is not active, until an event says it is, or
    /// for [`DEAD_MS`] if none does. May sleep, but takes no RTNL.
    pub(crate) fn fail(self: &Arc<Self>) {
        self.dead_until
            .store(time::now_ms().saturating_add(DEAD_MS), Relaxed);
        self.refresh();
    }

    /// How long, in milliseconds, to wait for the queue pairs that an interface closes. The wait is under RTNL, and many
    /// interfaces may be closed one after the other. Any context.
    pub(crate) fn patience(&self) -> u64 {
        let until = self.stuck_until.load(Relaxed);
        if time::now_ms() < until.max(self.dead_until.load(Relaxed)) {
            STUCK_PATIENCE_MS
        } else {
            PATIENCE_MS
        }
    }

    /// The queue pairs of an interface were waited for: whether they gave everything back. Any context.
    pub(crate) fn drained(&self, all: bool) {
        let until = if all {
            0
        } else {
            time::now_ms().saturating_add(STUCK_MS)
        };
        self.stuck_until.store(until, Relaxed);
    }

    /// The port has become active.
    pub(crate) fn revive(self: &Arc<Self>) {
        self.dead_until.store(0, Relaxed);
        self.refresh();
    }

    /// Has the port read anew within [`WATCH_MS`], and its interfaces told. For one that waits for something of which it
    /// might never hear. Process context.
    pub(crate) fn watch(self: &Arc<Self>) {
        self.schedule(WATCH);
    }

    fn schedule(self: &Arc<Self>, what: u32) {
        if self.flags.set(what) & CLOSED == 0 {
            self.queue.kick(self.clone());
        }
    }

    /// Ends all work for the port. May sleep; not with RTNL held.
    pub(crate) fn close(self: &Arc<Self>) {
        self.flags.set(CLOSED);
        work::cancel_sync(self);
        // A kick that raced with the flag may have queued the item once more. It must not be the
        // last to hold the port, nor through it the queue that it runs on.
        self.queue.flush();
    }
}

impl WorkItem for Port {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut todo = this.flags.clear(READ | CHORES | WATCH);
        if todo & CLOSED != 0 {
            return;
        }
        let (now, until) = (time::now_ms(), this.dead_until.load(Relaxed));
        let dead = now < until;
        let mut again = dead.then(|| until.saturating_sub(now));
        if until != 0 && !dead {
            // Unless it died again just now.
            let _ = this.dead_until.cmpxchg(until, 0, Relaxed);
            todo |= READ;
        }
        let read_at = this.read_at.load(Relaxed);
        if read_at != 0 && now >= read_at {
            todo |= READ;
        }
        // The next time that the port is read by itself.
        let mut next = Some(read_at).filter(|at| *at != 0 && todo & READ == 0);
        if todo & READ != 0 {
            match Seen::read(&this.rdma, this.seen().gid) {
                Ok(mut seen) => {
                    seen.active &= !dead;
                    *this.state.lock() = seen;
                    if !seen.active {
                        todo |= WATCH;
                    }
                }
                // A dead device may answer nothing any more.
                Err(_) if dead => this.state.lock().active = false,
                Err(e) => {
                    warn_limited!(
                        "{}/{}: cannot read the port ({:?}); keeping what was last known\n",
                        this.rdma.device().name(),
                        this.rdma.number(),
                        e
                    );
                    next = Some(now.saturating_add(RETRY_MS));
                }
            }
            if todo & WATCH != 0 {
                next.get_or_insert(now.saturating_add(WATCH_MS));
            }
            this.read_at.store(next.unwrap_or(0), Relaxed);
            this.post_all(worker::PORT);
        } else if todo & WATCH != 0 {
            let at = *next.get_or_insert(now.saturating_add(WATCH_MS));
            this.read_at.store(at, Relaxed);
        }
        if todo & CHORES != 0 {
            for interface in this.walk() {
                interface.do_chores();
            }
        }
        if let Some(at) = next {
            let ms = at.saturating_sub(now);
            again = Some(again.map_or(ms, |other| other.min(ms)));
        }
        if let Some(ms) = again {
            // At least one, or a clock that stands still would have it run at once.
            this.queue.run_in(this.clone(), ms.max(1));
        }
    }
}
