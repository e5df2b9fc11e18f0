// SPDX-License-Identifier: GPL-2.0

//! The poll's receiving half.

use kernel::sync::{
    atomic::Full,
    Arc, //
};

use super::{
    super::{
        rx,
        worker, //
    },
    now_secs,
    Ear,
    Inner,
    BATCH, //
};
use crate::{
    base::atomic::Word,
    net::{
        bigbuf::BigBuf,
        napi::Context, //
    },
    rdma::Lender,
    wire::{
        encap,
        rx::RxDrop, //
    },
};

/// Two messages that are longer than this are not put together by GRO: the packet would be too long.
const MERGED: usize = 32 * 1024;

/// Buffers that are lent to one receive queue.
pub(super) struct Receives {
    pub(super) lender: Lender<BigBuf>,
    pub(super) regions: usize,
    /// How many there should be.
    pub(super) target: usize,
    /// The end that has the queue for itself.
    pub(super) ear: Option<Arc<Ear>>,
}

impl Inner {
    pub(super) fn poll_receives(&mut self, cx: &mut Context<'_>, budget: usize) -> usize {
        let mut done = 0;
        while done < budget {
            let room = (budget - done).min(BATCH);
            let Some(wcs) = self.wcs.get_mut(..room) else {
                break;
            };
            let n = self.recv_cq.poll(wcs);
            for i in 0..n {
                self.received(cx, i, n == 1);
            }
            done += n;
            if n < room {
                self.shared.rounds.fetch_add(1, Full);
                break;
            }
        }
        if self.short {
            self.refill();
        }
        done
    }

    /// Handles the receive completion in slot `i` of the batch. `alone`: there is no other, so that GRO has nothing to do.
    fn received(&mut self, cx: &mut Context<'_>, i: usize, alone: bool) {
        let stats = &self.shared.stats;
        let Some(wc) = self.wcs.get(i) else {
            return;
        };
        let recvs = self.recvs.get_mut(&wc.tag()).and_then(|recvs| {
            let back = recvs.lender.complete(wc)?;
            Some((back, &mut recvs.target, &recvs.ear))
        });
        let Some((mut back, target, ear)) = recvs else {
            // What is flushed may be of an end that has gone.
            if !wc.status().is_flushed() {
                stats.rx_drop(RxDrop::BadCompletion);
            }
            return;
        };
        if !wc.status().is_success() {
            if let Some(ear) = ear {
                // Its queue pair is in the error state and gives back at once what it gets. That is all that is ever
                // heard of it: the peer, which may have nothing to send for long, must be told.
                *target = 0;
                ear.fail();
            }
            if !wc.status().is_flushed() {
                stats.rx_drop(RxDrop::CompletionError);
                rx::warn_completion(&self.dev, wc, "cm recv", 0);
            }
        } else {
            if let Some(mark) = self.shared.mark(wc.qp_key()) {
                let now = now_secs();
                if mark.get() != now {
                    mark.put(now);
                }
            }
            let len = wc.byte_len() as usize;
            let message = back.message(len);
            match message.map(|message| (check(message.start(), len), message)) {
                Some((Ok(ethertype), message)) => {
                    let pages = &mut self.pages;
                    match BigBuf::take(cx, message, &self.dev, ethertype.0, 0, pages) {
                        Some(skb) => {
                            stats.rx_packets.add(1);
                            stats.rx_bytes.add((len - encap::LEN) as u64);
                            if alone || len > MERGED {
                                cx.receive_alone(skb);
                            } else {
                                cx.receive(skb);
                            }
                        }
                        None => stats.rx_drop(RxDrop::NoMemory),
                    }
                }
                Some((Err(reason), _)) => stats.rx_drop(reason),
                None => stats.rx_drop(RxDrop::BadCompletion),
            }
        }
        // Lost only if it cannot be mapped any more; `refill` makes another.
        if *target != 0 {
            self.short |= back.lend().is_err();
        }
    }

    /// Lends as many buffers as there should be.
    pub(super) fn refill(&mut self) {
        self.short = false;
        for recvs in self.recvs.values_mut() {
            while recvs.lender.lent() < recvs.target {
                let pushed =
                    BigBuf::new(recvs.regions).is_some_and(|buf| recvs.lender.push(buf).is_ok());
                if !pushed {
                    self.short = true;
                    break;
                }
            }
        }
        if self.short && self.shared.starving.set(1) == 0 {
            self.iface.post(worker::CONNECTION);
        }
    }
}

/// Checks a message: long enough, and of an ethertype.
fn check(start: &[u8], len: usize) -> core::result::Result<encap::EtherType, RxDrop> {
    if len < encap::LEN {
        return Err(RxDrop::TooShort);
    }
    if len == encap::LEN {
        return Err(RxDrop::Empty);
    }
    let ethertype = encap::parse(start).ok_or(RxDrop::TooShort)?;
    if ethertype.is_ethertype() {
        Ok(ethertype)
    } else {
        Err(RxDrop::BadEtherType)
    }
}
