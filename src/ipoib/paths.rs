// SPDX-License-Identifier: GPL-2.0

//! The paths of an interface: carries out what their machines (`control::path`) decide.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
};

use super::{
    interface::Interface,
    resolver::{
        PathQuery,
        Route, //
    },
    walk::{
        next_after,
        pace, //
    },
    worker::Cx, //
};
use crate::{
    base::{
        params,
        rcu::RcuArc, //
    },
    control::{
        admission::{
            Asker,
            QueryCap,
            Turns, //
        },
        path::{
            Action,
            Event,
            Path,
            Policy,
            Status, //
        },
        reason::TxDrop,
        room::Limit,
        time::Millis, //
    },
    rdma::{
        Ah,
        AhAttr,
        CmPath, //
    },
    wire::gid::Gid, //
};

/// One destination GID.
struct Entry {
    machine: Path,
    ah: Option<RcuArc<Ah>>,
    /// Where `ah` leads.
    route: Option<Route>,
    /// Why the last query failed; none since one was answered.
    error: Option<Error>,
    /// On whose behalf it is asked for.
    asker: Asker,
}

/// Queries that wait for a place, by id: ids rise, so the first came first.
#[derive(Default)]
struct Line {
    map: RBTree<u64, Gid>,
    count: usize,
}

impl Line {
    fn add(&mut self, id: u64, gid: Gid) -> Result {
        let node = RBTreeNode::new(id, gid, GFP_KERNEL)?;
        drop(self.map.insert(node));
        self.count += 1;
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Option<Gid> {
        let gid = self.map.remove(&id)?;
        self.count = self.count.saturating_sub(1);
        Some(gid)
    }

    fn first(&self) -> Option<u64> {
        self.map.iter().next().map(|(id, _)| *id)
    }
}

/// What debugfs shows of a path.
pub(crate) struct View<'a> {
    pub(crate) status: Status,
    pub(crate) failures: u32,
    pub(crate) error: Option<Error>,
    pub(crate) handle: Option<&'a AhAttr>,
}

/// A query that is out.
struct Out {
    since: Millis,
    query: PathQuery,
}

/// All paths of one interface. Belongs to the worker.
pub(crate) struct Paths {
    map: RBTree<Gid, Entry>,
    /// Entries of `map`.
    count: u32,
    /// Those of a destination that does not answer.
    silent: u32,
    cap: QueryCap,
    /// Queries that wait on our own behalf.
    own: Line,
    /// Queries that wait on a stranger's.
    strangers: Line,
    turns: Turns,
    queries: KVec<Out>,
    deadline: Option<Millis>,
    /// The paths are not looked through before this.
    not_before: Millis,
    started: u64,
}

impl Paths {
    /// No paths; queries go out as `cap` lets them.
    pub(crate) fn new(cap: QueryCap) -> Self {
        Self {
            map: RBTree::new(),
            count: 0,
            silent: 0,
            cap,
            own: Line::default(),
            strangers: Line::default(),
            turns: Turns::new(),
            queries: KVec::new(),
            deadline: None,
            not_before: Millis::ZERO,
            started: 0,
        }
    }

    /// A packet waits for `gid`.
    pub(crate) fn wanted(&mut self, cx: &mut Cx<'_>, gid: Gid, asker: Asker) {
        if self.map.get(&gid).is_none() {
            if Limit::PATHS.is_full(self.count) {
                drop_waiting(cx, &gid, TxDrop::TableFull);
                return;
            }
            let entry = Entry {
                machine: Path::new(Policy::DEFAULT),
                ah: None,
                route: None,
                error: None,
                asker,
            };
            match RBTreeNode::new(gid, entry, GFP_KERNEL) {
                Ok(node) => {
                    drop(self.map.insert(node));
                    self.count += 1;
                }
                Err(_) => {
                    drop_waiting(cx, &gid, TxDrop::NoMemory);
                    return;
                }
            }
        }
        if asker == Asker::Ourselves {
            self.prefer(&gid);
        }
        self.step(cx, &gid, Event::Wanted);
    }

    /// A packet waits for `gid`, and the link is not usable.
    pub(crate) fn refuse(&self, cx: &mut Cx<'_>, gid: &Gid) {
        drop_waiting(cx, gid, TxDrop::NotReady);
    }

    /// Our own traffic goes to `gid` after all.
    fn prefer(&mut self, gid: &Gid) {
        let Some(entry) = self.map.get_mut(gid) else {
            return;
        };
        entry.asker = Asker::Ourselves;
        // Without memory for it, it stays where it stands.
        if let Some(id) = entry.machine.query_id() {
            if self.strangers.map.get(&id).is_some() && self.own.add(id, *gid).is_ok() {
                let _ = self.strangers.remove(id);
            }
        }
    }

    /// A frame came from `gid`.
    pub(crate) fn heard(&mut self, cx: &mut Cx<'_>, gid: &Gid) {
        self.step(cx, gid, Event::Heard);
    }

    /// The stack asks `gid` for its address again, and gets no answer; or it was heard from elsewhere.
    pub(crate) fn suspect(&mut self, cx: &mut Cx<'_>, gid: &Gid) {
        self.step(cx, gid, Event::Suspect);
    }

    fn is_silent(&self, gid: &Gid) -> bool {
        self.map.get(gid).is_some_and(|e| e.machine.is_silent())
    }

    /// Feeds one machine and carries out its actions.
    fn step(&mut self, cx: &mut Cx<'_>, gid: &Gid, event: Event) {
        let before = self.is_silent(gid);
        self.act(cx, gid, event);
        self.silent = match (before, self.is_silent(gid)) {
            (false, true) => self.silent.saturating_add(1),
            (true, false) => self.silent.saturating_sub(1),
            _ => return,
        };
        cx.iface.neighbours().set_silent(self.silent);
    }

    fn act(&mut self, cx: &mut Cx<'_>, gid: &Gid, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(entry) = self.map.get_mut(gid) else {
                return;
            };
            for action in entry.machine.step(event, cx.now, cx.seq) {
                match action {
                    Action::Unpublish => {
                        entry.ah = None;
                        entry.route = None;
                        cx.iface.neighbours().unpublish(gid);
                    }
                    Action::Publish | Action::SendPending => {
                        if let Some(ah) = &entry.ah {
                            cx.iface.neighbours().publish(gid, ah, |list| cx.send(list));
                        }
                    }
                    Action::DropPending(reason) => drop_waiting(cx, gid, reason),
                    Action::CancelQuery { id } => {
                        let _ = self.own.remove(id);
                        let _ = self.strangers.remove(id);
                        if let Some(out) = remove_query(&mut self.queries, id) {
                            self.cap.release();
                            if matches!(event, Event::Tick) {
                                self.cap.unanswered(out.since, cx.now, cx.seq.random());
                            }
                        }
                    }
                    Action::StartQuery { id } => {
                        let line = match entry.asker {
                            Asker::Ourselves => &mut self.own,
                            Asker::Stranger => &mut self.strangers,
                        };
                        if line.add(id, *gid).is_err() {
                            next = Some(Event::Failed {
                                id,
                                retryable: true,
                            });
                        }
                    }
                    Action::ArmTimer(at) => {
                        self.deadline = Millis::earliest(self.deadline, Some(at));
                    }
                }
            }
        }
    }

    /// The query to hand over next, with a place taken for it.
    fn next_query(&mut self, now: Millis) -> Option<(u64, Gid)> {
        let (own, stranger) = (self.own.first(), self.strangers.first());
        own.or(stranger)?;
        if !self.cap.try_acquire(now) {
            return None;
        }
        let (line, id) = match self.turns.next(own.is_some(), stranger.is_some())? {
            Asker::Ourselves => (&mut self.own, own?),
            Asker::Stranger => (&mut self.strangers, stranger?),
        };
        Some((id, line.remove(id)?))
    }

    /// Hands queries to the resolver while there is room.
    fn admit(&mut self, cx: &mut Cx<'_>) {
        while let Some((id, gid)) = self.next_query(cx.now) {
            let started = cx
                .iface
                .resolver()
                .query(cx.iface, id, &gid)
                .and_then(|query| {
                    let since = cx.now;
                    Ok(self.queries.push(Out { since, query }, GFP_KERNEL)?)
                });
            let event = match started {
                Ok(()) => {
                    self.started = self.started.wrapping_add(1);
                    Event::Started { id }
                }
                Err(e) => {
                    self.cap.release();
                    self.note_error(&gid, e);
                    if e == EAGAIN {
                        Event::Deferred { id }
                    } else {
                        Event::Failed {
                            id,
                            retryable: true,
                        }
                    }
                }
            };
            self.step(cx, &gid, event);
        }
    }

    /// Takes the answers that have come.
    pub(crate) fn take_answers(&mut self, cx: &mut Cx<'_>) {
        let mut at = 0;
        while let Some(out) = self.queries.get(at) {
            let Some(answer) = out.query.take_answer() else {
                at += 1;
                continue;
            };
            let (id, gid, since) = (out.query.id, out.query.gid, out.since);
            drop(self.queries.remove(at));
            self.cap.release();
            match &answer {
                Err(e) if *e == ETIMEDOUT => {
                    self.cap.unanswered(since, cx.now, cx.seq.random());
                }
                Ok(_) | Err(_) => {
                    let latency = cx.now.saturating_sub(since);
                    self.cap.answered(latency, cx.now);
                    cx.pace.answered(latency);
                }
            }
            self.answered(cx, id, &gid, answer);
        }
    }

    fn note_error(&mut self, gid: &Gid, error: Error) {
        if let Some(entry) = self.map.get_mut(gid) {
            entry.error = Some(error);
        }
    }

    fn answered(&mut self, cx: &mut Cx<'_>, id: u64, gid: &Gid, answer: Result<Route>) {
        // The handle is made before the machine hears of the answer, so that all it is told is
        // true. An answer that is not awaited any more makes none.
        let awaited = self
            .map
            .get(gid)
            .is_some_and(|entry| entry.machine.query_id() == Some(id));
        if !awaited {
            return;
        }
        let made = answer.and_then(|answer| {
            let attr = cx.iface.resolver().unicast(cx.iface, gid, &answer);
            Ok((cx.hw.create_ah(&attr)?, answer))
        });
        let event = match made {
            Ok((ah, route)) => {
                if let Some(entry) = self.map.get_mut(gid) {
                    entry.ah = Some(ah);
                    entry.route = Some(route);
                    entry.error = None;
                }
                Event::Resolved { id }
            }
            Err(e) => {
                // One refusal may mean that the administrator is busy; the second is believed.
                let again = self
                    .map
                    .get(gid)
                    .is_some_and(|entry| entry.machine.failures() > 0);
                if params::debug() {
                    pr_info!("{}: no path to {:?}: {:?}\n", cx.dev.name(), gid, e);
                }
                self.note_error(gid, e);
                Event::Failed {
                    id,
                    retryable: !(again && cx.iface.resolver().refused(e)),
                }
            }
        };
        self.step(cx, gid, event);
    }

    /// Feeds `event` to every machine that `which` picks.
    fn step_where(&mut self, cx: &mut Cx<'_>, event: Event, which: impl Fn(&Path) -> bool) {
        // Step by step: the map must not be borrowed while the machines act on it.
        let mut at = None;
        while let Some((gid, hit)) = next_after(&self.map, at.as_ref(), |e| which(&e.machine)) {
            at = Some(gid);
            if hit {
                self.step(cx, &gid, event);
            }
        }
    }

    /// Asks for every path in use anew, keeping the handles meanwhile.
    pub(crate) fn refresh_all(&mut self, cx: &mut Cx<'_>, spread: Millis) {
        self.cap.resume();
        self.step_where(cx, Event::Refresh { spread }, |_| true);
    }

    /// Withdraws every handle and asks anew where packets wait.
    pub(crate) fn invalidate_all(&mut self, cx: &mut Cx<'_>) {
        self.step_where(cx, Event::Invalidate, |_| true);
    }

    /// Forgets all paths; what waits for them is dropped.
    pub(crate) fn flush_all(&mut self, cx: &mut Cx<'_>) {
        self.step_where(cx, Event::Flush, |_| true);
        self.cap.resume();
        self.map = RBTree::new();
        self.count = 0;
    }

    /// Feeds the machines whose deadline has come, and hands out queries. Looks at every path, and
    /// so not again before some milliseconds have passed when there are many.
    pub(crate) fn tick(&mut self, cx: &mut Cx<'_>) {
        if self.due().is_some_and(|at| at.reached(cx.now)) {
            let now = cx.now;
            self.deadline = None;
            self.step_where(cx, Event::Tick, |machine| {
                machine.deadline().is_some_and(|at| at.reached(now))
            });
            for (_, entry) in self.map.iter() {
                self.deadline = Millis::earliest(self.deadline, entry.machine.deadline());
            }
            self.not_before = now.saturating_add(pace(self.count));
        }
        self.admit(cx);
    }

    /// When the machines are next looked at.
    fn due(&self) -> Option<Millis> {
        self.deadline.map(|at| at.max(self.not_before))
    }

    /// When [`Paths::tick`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        let waits = self.own.count + self.strangers.count > 0;
        Millis::earliest(self.due(), self.cap.deadline().filter(|_| waits))
    }

    /// Forgets paths that no neighbour refers to: nothing goes there, and nobody waits for it.
    pub(crate) fn age(&mut self, cx: &mut Cx<'_>) {
        let mut at = None;
        while let Some((gid, ())) = next_after(&self.map, at.as_ref(), |_| ()) {
            at = Some(gid);
            if !cx.iface.neighbours().contains(&gid) {
                self.step(cx, &gid, Event::Flush);
                if self.map.remove(&gid).is_some() {
                    self.count = self.count.saturating_sub(1);
                }
            }
        }
    }

    /// The path that a connection to `gid` takes, if it is known.
    pub(crate) fn for_connection(&self, iface: &Interface, gid: &Gid) -> Option<CmPath> {
        let entry = self.map.get(gid)?;
        entry.ah.as_ref()?;
        iface
            .resolver()
            .connection(iface, gid, entry.route.as_ref()?)
    }

    /// How many paths there are.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Calls `f` with each path, for debugfs.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&Gid, View<'_>)) {
        for (gid, entry) in self.map.iter() {
            f(
                gid,
                View {
                    status: entry.machine.status(),
                    failures: entry.machine.failures(),
                    error: entry.error,
                    handle: entry.ah.as_ref().map(|ah| ah.attr()),
                },
            );
        }
    }

    /// How many queries wait, are out, and were ever started.
    pub(crate) fn queries(&self) -> (usize, usize, u64) {
        (
            self.own.count + self.strangers.count,
            self.queries.len(),
            self.started,
        )
    }
}

fn drop_waiting(cx: &Cx<'_>, gid: &Gid, reason: TxDrop) {
    cx.iface
        .neighbours()
        .drop_waiting(gid, |packets| cx.count(reason, packets));
}

fn remove_query(queries: &mut KVec<Out>, id: u64) -> Option<Out> {
    let at = queries.iter().position(|out| out.query.id == id)?;
    queries.remove(at).ok()
}
