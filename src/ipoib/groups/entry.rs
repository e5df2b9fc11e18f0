// SPDX-License-Identifier: GPL-2.0

//! One group of an interface, and what has become of its joins.

use kernel::prelude::*;

use super::super::{
    resolver::Membership,
    turns::Slip,
    worker::Cx, //
};
use crate::{
    base::{
        params,
        rcu::RcuArc, //
    },
    control::{
        join::{
            Event,
            Failure,
            Group,
            Params, //
        },
        time::Millis, //
    },
    rdma::{
        Ah,
        McastAttach, //
    },
    wire::gid::Gid, //
};

/// A membership, or a join under way.
pub(super) struct Held {
    /// The id that the machine knows it by.
    pub(super) id: u64,
    /// When it was asked for.
    pub(super) since: Millis,
    pub(super) membership: Membership,
}

/// One group.
pub(super) struct Entry {
    pub(super) machine: Group,
    pub(super) attach: Option<McastAttach>,
    /// Two while a send-only membership is being replaced by a full one.
    pub(super) memberships: [Option<Held>; 2],
    pub(super) ah: Option<RcuArc<Ah>>,
    /// Listed by the stack when the list was last read.
    pub(super) listed: bool,
    /// What the last join answered.
    pub(super) params: Params,
    /// How the last join ended: 0 or an error number, as the core reported it.
    pub(super) status: i32,
    /// For the line of those who wait for a place; `None` while the group stands in it.
    pub(super) slip: Option<Slip>,
}

impl Entry {
    /// The next thing that has become of the memberships, with the id of the one concerned.
    pub(super) fn take_fate(&self) -> Option<(u64, Fate)> {
        self.memberships.iter().flatten().find_map(|held| {
            let answer = held.membership.take_answer().map(Fate::Answer);
            let fate = answer.or_else(|| held.membership.take_lost().then_some(Fate::Lost))?;
            Some((held.id, fate))
        })
    }

    /// When the membership `id` was asked for, if that was not just now: the core answers by itself for a group
    /// that the port is in already, which says nothing of the administrator.
    fn since(&self, id: u64, now: Millis) -> Option<Millis> {
        let mut all = self.memberships.iter().flatten();
        let since = all.find(|held| held.id == id)?.since;
        (since < now).then_some(since)
    }

    /// Gives up the membership `id`, whatever its state.
    pub(super) fn leave(&mut self, id: u64) {
        for slot in &mut self.memberships {
            if slot.as_ref().is_some_and(|held| held.id == id) {
                *slot = None;
            }
        }
    }

    /// Takes over the outcome of the join `id`.
    pub(super) fn answered(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Gid,
        id: u64,
        answer: Result<Params>,
    ) -> Event {
        let since = self.since(id, cx.now);
        match answer {
            Ok(params) => {
                if let Some(since) = since {
                    cx.pace.answered(cx.now.saturating_sub(since));
                }
                self.params = params;
                self.status = 0;
                Event::Joined { id, params }
            }
            Err(e) => {
                if params::mcast_debug() {
                    pr_info!(
                        "{}: multicast join failed for {:?}, status {}\n",
                        cx.dev.name(),
                        group,
                        e.to_errno()
                    );
                }
                self.status = e.to_errno();
                self.leave(id);
                let cause = cx.iface.resolver().join_failure(e);
                if let (Failure::Refused, Some(since)) = (cause, since) {
                    cx.pace.answered(cx.now.saturating_sub(since));
                }
                Event::JoinFailed { id, cause }
            }
        }
    }
}

/// What has become of a membership.
pub(super) enum Fate {
    Answer(Result<Params>),
    Lost,
}
