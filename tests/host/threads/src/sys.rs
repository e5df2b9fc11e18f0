// SPDX-License-Identifier: GPL-2.0

//! The few things of the C side that the transmit queue wants: a queue with a bit that says whether it is stopped.

pub(crate) mod compat {
    pub(crate) use kernel::sync::atomic::smp_mb;

    /// Callbacks have run by the time that no reader is left.
    pub(crate) fn rcu_barrier() {}
}

#[allow(non_camel_case_types, clippy::missing_safety_doc)]
pub(crate) mod bindings {
    use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};

    pub(crate) const IPOIB_CONST_HZ: u32 = 250;

    pub(crate) struct net_device {
        pub(crate) num_tx_queues: u32,
        pub(crate) queue: netdev_queue,
    }

    pub(crate) struct netdev_queue {
        pub(crate) stopped: AtomicBool,
    }

    pub(crate) unsafe fn ipoib_h_get_tx_queue(dev: *mut net_device, _: u32) -> *mut netdev_queue {
        // SAFETY: the caller's promise.
        unsafe { &raw mut (*dev).queue }
    }

    pub(crate) unsafe fn ipoib_h_tx_stop_queue(queue: *mut netdev_queue) {
        // SAFETY: the caller's promise.
        unsafe { &*queue }.stopped.store(true, Relaxed);
    }

    pub(crate) unsafe fn ipoib_h_tx_start_queue(queue: *mut netdev_queue) {
        // SAFETY: the caller's promise.
        unsafe { &*queue }.stopped.store(false, Relaxed);
    }

    pub(crate) unsafe fn netif_tx_wake_queue(queue: *mut netdev_queue) {
        // SAFETY: the caller's promise.
        unsafe { &*queue }.stopped.store(false, Relaxed);
    }

    pub(crate) unsafe fn ipoib_h_tx_queue_stopped(queue: *mut netdev_queue) -> bool {
        // SAFETY: the caller's promise.
        unsafe { &*queue }.stopped.load(Relaxed)
    }

    pub(crate) unsafe fn ipoib_h_xmit_stopped(queue: *mut netdev_queue) -> bool {
        // SAFETY: the caller's promise.
        unsafe { ipoib_h_tx_queue_stopped(queue) }
    }

    pub(crate) unsafe fn ipoib_h_xmit_more() -> bool {
        false
    }

    pub(crate) const IPOIB_CONST_MORE: u32 = 1;
    pub(crate) const IPOIB_CONST_STOPPED: u32 = 2;

    pub(crate) unsafe fn ipoib_h_tx_sent(_: *mut netdev_queue, _: u32) -> u32 {
        0
    }

    pub(crate) unsafe fn ipoib_h_tx_completed_queue(_: *mut netdev_queue, _: u32, _: u32) {}

    pub(crate) unsafe fn ipoib_h_tx_reset_queue(_: *mut netdev_queue) {}

    pub(crate) unsafe fn ipoib_h_txq_trans_update(_: *mut netdev_queue) {}

    pub(crate) unsafe fn ipoib_h_trans_start(_: *mut netdev_queue) -> usize {
        0
    }

    /// The transmit lock; models have one transmitter.
    pub(crate) unsafe fn ipoib_h_tx_lock_bh(_: *mut netdev_queue) {}

    pub(crate) unsafe fn ipoib_h_tx_unlock_bh(_: *mut netdev_queue) {}
}
