// SPDX-License-Identifier: GPL-2.0

//! What both ends of a queue and the worker know of it.

use kernel::sync::Arc;

use super::super::{
    interface::Interface,
    rx,
    stats::QueueStats,
    waking::Waking,
    worker, //
};
use crate::{
    base::flags::Flags,
    control::{
        health::{
            Concern,
            Health, //
        },
        txstop::Ring, //
    },
    net::device::Device,
    rdma::Wc,
};

/// A queue stops when fewer slots than this are free.
const STOP_BELOW: u32 = 2;

/// What both ends of a queue and the worker see.
pub(crate) struct Shared {
    pub(crate) index: u16,
    pub(crate) stats: QueueStats,
    pub(crate) ring: Ring,
    /// A [`Health`].
    health: Flags,
    pub(crate) waking: Waking,
}

impl Shared {
    /// Of queue `index`, with a ring of `slots` slots; no posts yet.
    pub(super) fn new(index: u16, slots: u32) -> Self {
        Self {
            index,
            stats: QueueStats::default(),
            ring: Ring::new(slots, STOP_BELOW),
            health: Flags::new(),
            waking: Waking::new(),
        }
    }

    /// From so many unfinished sends on, the device is asked to tell when one has completed.
    pub(crate) const LAZY: usize = 32;

    /// Whether the queue pair takes posts. Any context.
    #[inline]
    pub(crate) fn running(&self) -> bool {
        Health(self.health.get()).running()
    }

    /// Posts may begin, from RESET; nothing that was noted before counts any more.
    pub(super) fn start(&self) {
        self.change(Health::started);
    }

    /// Posts may go on.
    pub(crate) fn resume(&self) {
        self.change(Health::resumed);
    }

    /// Nothing may be posted any more. A transmit that has begun may still post, unless the transmit lock is held.
    pub(crate) fn stop(&self) {
        self.change(Health::stopped);
    }

    /// A completion was no success. Softirq context.
    pub(crate) fn trouble(&self, iface: &Arc<Interface>, dev: &Device, wc: &Wc, what: &str) {
        if !self.running() {
            return;
        }
        if !wc.status().is_flushed() {
            rx::warn_completion(dev, wc, what, self.index.into());
        }
        self.note(iface, Concern::Trouble);
    }

    /// Has the worker look into a concern, unless it has been told already. Any context.
    pub(crate) fn note(&self, iface: &Arc<Interface>, what: Concern) {
        let before = self.change(|health| health.noted(what));
        if before.noted(what) != before {
            iface.post(worker::QUEUE);
        }
    }

    /// Takes up what the worker has to look into; [`Concern::Starving`] stays noted.
    pub(crate) fn take_concerns(&self) -> Health {
        self.change(Health::taken)
    }

    /// Takes up [`Concern::Starving`]; whether it was noted.
    pub(crate) fn take_starving(&self) -> bool {
        self.change(Health::fed).has(Concern::Starving)
    }

    fn change(&self, f: impl Fn(Health) -> Health) -> Health {
        Health(self.health.update(|bits| f(Health(bits)).0))
    }
}
