// SPDX-License-Identifier: GPL-2.0

//! Counters, per queue and per reason.

use crate::{
    base::count::Counter,
    control::reason::TxDrop,
    net::ops::Stats,
    wire::rx::RxDrop, //
};

/// Counters of one queue. Those of the receive side and of completions have the queue's NAPI as
/// their only writer, those of the transmit side the holder of the queue's transmit lock, the last
/// ones the worker.
#[derive(Default)]
pub(crate) struct QueueStats {
    // Receive side and completions.
    pub(crate) rx_packets: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) multicast: Counter,
    pub(crate) rx_drops: [Counter; RxDrop::COUNT],
    pub(crate) tx_packets: Counter,
    pub(crate) tx_bytes: Counter,
    pub(crate) tx_failed: Counter,
    pub(crate) polls: Counter,
    // Transmit side.
    pub(crate) tx_drops: [Counter; TxDrop::COUNT],
    pub(crate) doorbells: Counter,
    pub(crate) stops: Counter,
    // The worker.
    pub(crate) timeouts: Counter,
    /// Those of `tx_failed` that never completed.
    pub(crate) tx_lost: Counter,
    pub(crate) recoveries: Counter,
}

impl QueueStats {
    /// Counts a received frame that was not delivered. NAPI only.
    pub(crate) fn rx_drop(&self, reason: RxDrop) {
        if let Some(counter) = self.rx_drops.get(reason.index()) {
            counter.add(1);
        }
    }

    /// Counts a packet that was not sent. Transmit lock held.
    pub(crate) fn tx_drop(&self, reason: TxDrop) {
        if let Some(counter) = self.tx_drops.get(reason.index()) {
            counter.add(1);
        }
    }

    /// Adds this queue to the interface's sums.
    pub(crate) fn add_to(&self, sum: &mut Stats) {
        sum.rx_packets = sum.rx_packets.wrapping_add(self.rx_packets.get());
        sum.rx_bytes = sum.rx_bytes.wrapping_add(self.rx_bytes.get());
        sum.multicast = sum.multicast.wrapping_add(self.multicast.get());
        sum.tx_packets = sum.tx_packets.wrapping_add(self.tx_packets.get());
        sum.tx_bytes = sum.tx_bytes.wrapping_add(self.tx_bytes.get());
        sum.tx_errors = sum.tx_errors.wrapping_add(self.tx_failed.get());
        for (reason, counter) in RxDrop::ALL.iter().zip(&self.rx_drops) {
            let n = counter.get();
            match reason {
                RxDrop::TooShort | RxDrop::TooLong | RxDrop::Empty => {
                    sum.rx_length_errors = sum.rx_length_errors.wrapping_add(n);
                    sum.rx_errors = sum.rx_errors.wrapping_add(n);
                }
                RxDrop::CompletionError | RxDrop::BadCompletion | RxDrop::BadGrh => {
                    sum.rx_errors = sum.rx_errors.wrapping_add(n);
                }
                _ => {}
            }
            if reason.is_loss() {
                sum.rx_dropped = sum.rx_dropped.wrapping_add(n);
            }
        }
        add_tx_drops(&self.tx_drops, sum);
    }
}

/// Adds counters of unsent packets to the interface's sums: all are drops; those that tell of a
/// fault, and not of a peer that is not there, are errors too (TX-10 to TX-15).
pub(crate) fn add_tx_drops(drops: &[Counter; TxDrop::COUNT], sum: &mut Stats) {
    for (reason, counter) in TxDrop::ALL.iter().zip(drops) {
        let n = counter.get();
        sum.tx_dropped = sum.tx_dropped.wrapping_add(n);
        if matches!(
            reason,
            TxDrop::Short | TxDrop::TooLong | TxDrop::Linearize | TxDrop::Map | TxDrop::Post
        ) {
            sum.tx_errors = sum.tx_errors.wrapping_add(n);
        }
    }
}
