// SPDX-License-Identifier: GPL-2.0

//! An address handle with a mark that says whether it is still there.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::super::model::Alive;

/// An address handle that leads to a LID.
pub(crate) struct Ah {
    alive: Alive,
    dlid: u32,
}

/// Its attributes.
pub(crate) struct Attr(u32);

impl Attr {
    pub(crate) fn dlid(&self) -> Option<u32> {
        Some(self.0)
    }
}

impl Ah {
    pub(crate) fn new(dlid: u32) -> Self {
        Self {
            alive: Alive::new(),
            dlid,
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        self.alive.check();
        Attr(self.dlid)
    }
}
