// SPDX-License-Identifier: GPL-2.0

//! Looks after transmit queues that are stopped for connections: none stays so for long, and a connection
//! that gets nothing done meanwhile is ended.

use super::{
    next_after,
    Conns,
    Cx,
    Event,
    Millis, //
};
use crate::base::log::warn_limited;

/// How often is looked; a stop lasts no longer than twice this.
const PERIOD: Millis = Millis(500);
/// A connection is ended on which for so long nothing has completed of what is under way, while transmit
/// queues waited. What the transport tries again itself it does so in less, or tells of it.
const STUCK: Millis = Millis(10_000);

/// When something last completed on a connection.
pub(super) struct Progress {
    completed: u32,
    since: Millis,
}

impl Progress {
    /// Nothing yet.
    pub(super) fn new(now: Millis) -> Self {
        Self {
            completed: 0,
            since: now,
        }
    }

    /// Whether nothing of the sends under way has completed for [`STUCK`].
    fn stuck(&mut self, (completed, pending): (u32, usize), now: Millis) -> bool {
        if completed != self.completed || pending == 0 {
            self.completed = completed;
            self.since = now;
        }
        now.saturating_sub(self.since) >= STUCK
    }
}

impl Conns {
    /// Begins to watch when transmit queues have been stopped.
    pub(super) fn note_brakes(&mut self, now: Millis) {
        if self.watch.is_none() && self.lane.take_braked() {
            // Time without sends, or without a look, is no time without progress.
            for entry in self.map.values_mut() {
                let up = entry.parts.as_mut().and_then(|parts| parts.up.as_mut());
                if let Some(up) = up {
                    up.progress.since = now;
                }
            }
            self.watch = Some(now.saturating_add(PERIOD));
        }
    }

    /// Looks at what is watched, if it is time.
    pub(super) fn watch_brakes(&mut self, cx: &mut Cx<'_>) {
        if !self.watch.is_some_and(|at| at.reached(cx.now)) {
            return;
        }
        // A lost event is made up for.
        self.lane.napi.kick();
        // Who stops a queue from here on calls again.
        let mut engaged = self.lane.take_braked();
        engaged |= self.lane.ease(cx.dev);
        let mut at = None;
        while let Some((gid, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(gid);
            let entry = self.map.get_mut(&gid);
            let up = entry
                .and_then(|entry| entry.parts.as_mut())
                .and_then(|parts| parts.up.as_mut());
            let Some(up) = up else {
                continue;
            };
            engaged |= up.conn.ease(cx.dev);
            if up.progress.stuck(up.conn.progress(), cx.now) {
                let id = up.conn.id;
                self.lane.shared.stats.timeouts.add(1);
                warn_limited!(
                    "{}: nothing is sent over the connection to {:?}; making another\n",
                    cx.dev.name(),
                    gid
                );
                self.step(cx, &gid, Event::Failed { id });
            }
        }
        self.watch = engaged.then(|| cx.now.saturating_add(PERIOD));
    }
}
