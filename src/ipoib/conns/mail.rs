// SPDX-License-Identifier: GPL-2.0

//! Where callbacks of the connection manager leave what the worker has to look at.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use super::super::{
    interface::Interface,
    worker, //
};
use crate::rdma::{
    CmEvent,
    CmHandler,
    Request, //
};

/// The most requests and events that may wait for the worker.
const MAX_MAIL: usize = 8192;
/// The most requests among them.
const MAX_REQUESTS: usize = 512;

/// Where callbacks leave what the worker has to look at.
#[pin_data]
pub(crate) struct Mail {
    iface: Arc<Interface>,
    #[pin]
    boxes: Mutex<Boxes>,
}

#[derive(Default)]
struct Boxes {
    events: KVec<(u64, CmEvent)>,
    requests: KVec<Request<Mail>>,
    closed: bool,
}

impl Mail {
    /// Nothing is there yet. May sleep.
    pub(super) fn new(iface: &Arc<Interface>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                iface: iface.clone(),
                boxes <- new_mutex!(Boxes::default(), "conn_mail"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes everything. May sleep.
    pub(super) fn take(&self) -> (KVec<(u64, CmEvent)>, KVec<Request<Self>>) {
        let mut boxes = self.boxes.lock();
        let events = core::mem::take(&mut boxes.events);
        (events, core::mem::take(&mut boxes.requests))
    }

    /// Throws everything away, and whatever may come. May sleep.
    pub(super) fn close(&self) {
        let left = {
            let mut boxes = self.boxes.lock();
            let left = core::mem::take(&mut *boxes);
            boxes.closed = true;
            left
        };
        // Refused without the lock.
        drop(left);
    }
}

impl CmHandler for Mail {
    fn event(&self, id: u64, event: CmEvent) {
        let mut boxes = self.boxes.lock();
        if !boxes.closed && boxes.events.len() < MAX_MAIL {
            // One that is lost for want of memory is made up for by a deadline.
            let _ = boxes.events.push((id, event), GFP_KERNEL);
        }
        drop(boxes);
        self.iface.post(worker::CONNECTION);
    }

    fn request(&self, request: Request<Self>) -> Result<(), Request<Self>> {
        let mut boxes = self.boxes.lock();
        if boxes.closed || boxes.requests.len() >= MAX_REQUESTS {
            return Err(request);
        }
        if boxes.requests.reserve(1, GFP_KERNEL).is_err() {
            return Err(request);
        }
        boxes
            .requests
            .push_within_capacity(request)
            .map_err(|e| e.0)?;
        drop(boxes);
        self.iface.post(worker::CONNECTION);
        Ok(())
    }
}
