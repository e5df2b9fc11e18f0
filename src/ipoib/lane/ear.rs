// SPDX-License-Identifier: GPL-2.0

//! What the device and the data path say of one end of a connection.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::super::{
    interface::Interface,
    worker, //
};
use crate::{
    base::flags::Flags,
    rdma::QpHandler, //
};

const FAILED: u32 = 1 << 0;
const LAST_WQE: u32 = 1 << 1;

/// What is known of one end's queue pair. All methods may be called from any context; news wake the
/// worker.
pub(crate) struct Ear {
    said: Flags,
    iface: Arc<Interface>,
}

impl Ear {
    /// Nothing is known yet. May sleep.
    pub(crate) fn new(iface: &Arc<Interface>) -> Result<Arc<Self>> {
        let ear = Self {
            said: Flags::new(),
            iface: iface.clone(),
        };
        Ok(Arc::new(ear, GFP_KERNEL)?)
    }

    /// The end is of no use any more.
    pub(crate) fn fail(&self) {
        self.say(FAILED);
    }

    /// Whether that was said.
    pub(crate) fn failed(&self) -> bool {
        self.said.get() & FAILED != 0
    }

    /// The device lets go of no more buffers of the shared receive queue, or cannot be asked to.
    pub(crate) fn finish(&self) {
        self.say(LAST_WQE);
    }

    /// Whether that was said.
    pub(crate) fn finished(&self) -> bool {
        self.said.get() & LAST_WQE != 0
    }

    /// Has the worker look at the connections.
    pub(crate) fn alert(&self) {
        self.iface.post(worker::CONNECTION);
    }

    fn say(&self, what: u32) {
        if self.said.set(what) & what == 0 {
            self.alert();
        }
    }
}

impl QpHandler for Ear {
    fn failed(&self) {
        self.fail();
    }

    fn last_wqe(&self) {
        self.finish();
    }
}
