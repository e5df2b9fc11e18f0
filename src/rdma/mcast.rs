// SPDX-License-Identifier: GPL-2.0

//! Attachment of queue pairs to multicast groups.

use kernel::{error::to_result, prelude::*};

use super::qp::Qp;
use crate::{sys::bindings as sys, wire::gid::Gid};

/// Membership of a queue pair in a multicast group, on this device only.
///
/// Dropping it detaches the queue pair, and may sleep.
///
/// Of a device's queue pairs one at a time is attached or detached: when the last member leaves a
/// group of soft-RoCE's just as another one comes, the newcomer is put into the group that goes, out
/// of which nothing gets it again. Its queue pair then could never be destroyed.
///
/// # Invariants
///
/// `qp` is attached to the group `gid`, `lid`.
pub(crate) struct McastAttach {
    qp: Qp,
    gid: Gid,
    lid: u16,
}

impl McastAttach {
    /// Attaches `qp` to the group `gid` with the multicast LID `lid` (host order; ignored on
    /// Ethernet, where it may be 0). May sleep.
    ///
    /// Fails with `EINVAL` for a `gid` that is not multicast, or on InfiniBand a wrong LID, and
    /// with what the driver says when its table is full.
    pub(crate) fn new(qp: &Qp, gid: &Gid, lid: u16) -> Result<Self> {
        let mut raw = sys::ib_gid { raw: gid.0 };
        let _one = qp.device().attaching().lock();
        // SAFETY: The queue pair is valid; C only reads the identifier.
        to_result(unsafe { sys::ib_attach_mcast(qp.as_ptr(), &mut raw, lid) })?;
        // INVARIANT: The call above attached it.
        Ok(Self {
            qp: qp.clone(),
            gid: *gid,
            lid,
        })
    }

    /// The group.
    pub(crate) fn gid(&self) -> &Gid {
        &self.gid
    }
}

impl Drop for McastAttach {
    fn drop(&mut self) {
        let mut raw = sys::ib_gid { raw: self.gid.0 };
        let _one = self.qp.device().attaching().lock();
        // SAFETY: The queue pair is valid and, by the type invariants, attached.
        let ret = unsafe { sys::ib_detach_mcast(self.qp.as_ptr(), &mut raw, self.lid) };
        if let Err(e) = to_result(ret) {
            // The destruction of the queue pair will fail, and keep all memory it may write to.
            pr_warn!(
                "{}: cannot leave a multicast group: {:?}\n",
                self.qp.device().name(),
                e
            );
        }
    }
}
