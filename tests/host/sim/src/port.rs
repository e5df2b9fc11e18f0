// SPDX-License-Identifier: GPL-2.0

//! What the kernel has between an interface and the wire: the MAD layer with its repetitions and its limit on
//! requests in flight, and the multicast layer that counts memberships (MC-9).
//!
//! Both follow what is known of `drivers/infiniband/core`: a request is sent once and repeated ten times at even
//! distances, or, while others wait to be sent, when its turn comes after theirs; an error answer does not say whether
//! it was BUSY; a membership is asked for only once a port and left with its last user; PORT_ERR, LID_CHANGE and
//! CLIENT_REREGISTER void all of them without a message; a join that is given up runs on until it is answered. After
//! each of these events, and some others, the address handle of the subnet manager is made anew, and until that is done
//! nothing can be sent.

use std::collections::{BTreeMap, VecDeque};

use ipoib_host::control::join::Params;

use crate::engine::{Ask, Ev, Io, Mad, Micros, Reply};

/// Requests of one port in flight: a quarter of the receive queue of 512, since the core's own users of the subnet
/// administrator share an agent that is registered for no class.
pub const FLOW: usize = 128;
/// First attempt and repetitions.
pub const TRIES: u32 = 11;
/// Time between the tries of a path query (SA-2).
pub const PATH_INTERVAL: Micros = 100_000;
/// Time between the tries of joins and leaves (MC-9).
pub const JOIN_INTERVAL: Micros = 300_000;

/// What the driver is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Callback {
    /// A path query ended: a LID, or an error that is definite or, after all tries, silence.
    Query(u64, Outcome<u32>),
    /// A join ended.
    Join(u64, Outcome<Params>),
    /// A membership is void.
    Void(u64),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// With what was asked for.
    Good(T),
    /// With an error answer.
    Error,
    /// It could not be sent: the address of the subnet manager is just being looked up.
    NotSent,
    /// Without an answer.
    Silence,
}

#[derive(Clone, Copy, Debug)]
enum Owner {
    Query(u64),
    Group(u8),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    ask: Ask,
    owner: Owner,
    interval: Micros,
    /// Times sent.
    sent: u32,
    /// Whether it waits for its turn to be sent, or sent again.
    queued: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Busy,
    Error,
}

#[derive(Debug)]
struct Group {
    state: State,
    /// JoinState bits that the administrator has.
    bits: u8,
    params: Params,
    active: Vec<(u64, u8)>,
    pending: VecDeque<(u64, u8)>,
    joining: Option<u64>,
    leave_tries: u32,
}

/// The kernel's part of one port.
pub struct Port {
    node: u32,
    flow: usize,
    next: u64,
    requests: BTreeMap<u64, Request>,
    backlog: VecDeque<u64>,
    flying: usize,
    groups: BTreeMap<u8, Group>,
    callbacks: VecDeque<Callback>,
    /// JoinState bits that the administrator may have us in a group with although nobody here knows of it: a leave was
    /// given up (which takes no time when the answers are BUSY) or could not be sent, a join was not answered, or an event
    /// voided the membership.
    unsure: BTreeMap<u8, u8>,
    /// Nothing can be sent before this.
    blind: Micros,
}

impl Port {
    /// A port with nothing going on and at most `flow` requests in flight.
    pub fn new(node: u32, flow: usize) -> Self {
        Self {
            node,
            flow,
            next: 0,
            requests: BTreeMap::new(),
            backlog: VecDeque::new(),
            flying: 0,
            groups: BTreeMap::new(),
            callbacks: VecDeque::new(),
            unsure: BTreeMap::new(),
            blind: 0,
        }
    }

    /// Whether nobody here can know of JoinState `bits` that the administrator has us in `group` with.
    pub fn is_unsure(&self, group: u8, bits: u8) -> bool {
        bits & !self.unsure.get(&group).copied().unwrap_or(0) == 0
    }

    /// The address of the subnet manager is looked up anew.
    pub fn look_up_manager(&mut self, io: &mut Io) {
        let span = io.rng.below(20_000);
        self.blind = self.blind.max(io.now + span);
    }

    fn is_blind(&self, io: &Io) -> bool {
        io.now < self.blind
    }

    /// What the driver has to be told next.
    pub fn callback(&mut self) -> Option<Callback> {
        self.callbacks.pop_front()
    }

    /// Path queries that are out.
    pub fn queries(&self) -> usize {
        let all = self.requests.values();
        all.filter(|one| matches!(one.owner, Owner::Query(_)))
            .count()
    }

    /// Join objects that exist.
    pub fn objects(&self) -> usize {
        let all = self.groups.values();
        all.map(|one| one.active.len() + one.pending.len()).sum()
    }

    /// Whether nothing is going on.
    pub fn is_quiet(&self) -> bool {
        self.requests.is_empty() && self.backlog.is_empty() && self.objects() == 0
    }

    /// Asks for the path to `dst`; `id` comes back with the outcome. Returns what [`Port::cancel`] takes, or nothing
    /// when it could not be sent.
    pub fn query(&mut self, io: &mut Io, dst: u32, id: u64) -> Option<u64> {
        if self.is_blind(io) {
            return None;
        }
        Some(self.start(io, Ask::Path { dst }, Owner::Query(id), PATH_INTERVAL))
    }

    /// Gives up a path query; its outcome does not come any more.
    pub fn cancel(&mut self, io: &mut Io, tid: u64) {
        self.remove(io, tid);
    }

    fn start(&mut self, io: &mut Io, ask: Ask, owner: Owner, interval: Micros) -> u64 {
        self.next += 1;
        let tid = self.next;
        let request = Request {
            ask,
            owner,
            interval,
            sent: 0,
            queued: true,
        };
        self.requests.insert(tid, request);
        if self.flying < self.flow {
            self.flying += 1;
            self.send(io, tid);
        } else {
            self.backlog.push_back(tid);
        }
        tid
    }

    fn send(&mut self, io: &mut Io, tid: u64) {
        if let Some(request) = self.requests.get_mut(&tid) {
            request.sent += 1;
            request.queued = false;
            let (node, ask) = (self.node, request.ask);
            io.after(request.interval, Ev::MadTimer(node, tid, request.sent));
            io.send(Ev::Request(Mad { node, tid, ask }));
        }
    }

    fn remove(&mut self, io: &mut Io, tid: u64) -> Option<Request> {
        let request = self.requests.remove(&tid)?;
        if request.queued {
            self.backlog.retain(|&one| one != tid);
        } else if let Some(next) = self.backlog.pop_front() {
            self.send(io, next);
        } else {
            self.flying -= 1;
        }
        Some(request)
    }

    /// The time for an answer to try `sent` is over.
    pub fn timer(&mut self, io: &mut Io, tid: u64, sent: u32) {
        let Some(request) = self.requests.get_mut(&tid) else {
            return;
        };
        if request.sent != sent {
            return;
        }
        if sent < TRIES {
            // Whoever waits for the first try goes before the next try of this one. An answer that comes while it
            // waits is taken.
            if let Some(next) = self.backlog.pop_front() {
                request.queued = true;
                self.backlog.push_back(tid);
                self.send(io, next);
            } else {
                self.send(io, tid);
            }
        } else if let Some(request) = self.remove(io, tid) {
            self.done(io, request, None);
        }
    }

    /// An answer arrives. One that nobody waits for is thrown away.
    pub fn answer(&mut self, io: &mut Io, tid: u64, reply: Reply) {
        if let Some(request) = self.remove(io, tid) {
            self.done(io, request, Some(reply));
        }
    }

    fn done(&mut self, io: &mut Io, request: Request, reply: Option<Reply>) {
        match request.owner {
            Owner::Query(id) => {
                let outcome = match reply {
                    Some(Reply::Path { lid }) => Outcome::Good(lid),
                    Some(_) => Outcome::Error,
                    None => Outcome::Silence,
                };
                self.callbacks.push_back(Callback::Query(id, outcome));
            }
            Owner::Group(group) => self.group_done(io, group, request.ask, reply),
        }
    }

    /// Asks for membership; `object` stands for it until [`Port::free`].
    pub fn join(&mut self, io: &mut Io, group: u8, object: u64, state: u8) {
        let one = self.groups.entry(group).or_insert_with(|| Group {
            state: State::Idle,
            bits: 0,
            params: Params::default(),
            active: Vec::new(),
            pending: VecDeque::new(),
            joining: None,
            leave_tries: 0,
        });
        one.pending.push_back((object, state));
        if one.state == State::Idle {
            one.state = State::Busy;
            self.work(io, group);
        }
    }

    /// Ends the membership, or gives up the join, of `object`.
    pub fn free(&mut self, io: &mut Io, group: u8, object: u64) {
        let Some(one) = self.groups.get_mut(&group) else {
            return;
        };
        one.active.retain(|&(held, _)| held != object);
        one.pending.retain(|&(held, _)| held != object);
        if one.state == State::Idle {
            one.state = State::Busy;
            self.work(io, group);
        }
    }

    /// An event of the port voids all memberships.
    pub fn void_all(&mut self, io: &mut Io) {
        let all: Vec<u8> = self.groups.keys().copied().collect();
        for group in all {
            let Some(one) = self.groups.get_mut(&group) else {
                continue;
            };
            let idle = one.state == State::Idle;
            one.state = State::Error;
            if idle {
                self.work(io, group);
            }
        }
    }

    fn group_done(&mut self, io: &mut Io, group: u8, ask: Ask, reply: Option<Reply>) {
        let Some(one) = self.groups.get_mut(&group) else {
            return;
        };
        match (ask, reply) {
            (Ask::Join { state, .. }, Some(Reply::Joined(params))) => {
                one.bits |= state;
                one.params = params;
            }
            (Ask::Join { .. }, reply) => {
                *self.unsure.entry(group).or_default() |= state_of(ask);
                let head = one.pending.front().map(|&(object, _)| object);
                if head.is_some() && head == one.joining {
                    one.pending.pop_front();
                    let outcome = match reply {
                        Some(_) => Outcome::Error,
                        None => Outcome::Silence,
                    };
                    let object = head.unwrap_or_default();
                    self.callbacks.push_back(Callback::Join(object, outcome));
                }
            }
            (Ask::Leave { state, .. }, reply) => {
                let failed = reply != Some(Reply::Left);
                if !failed {
                    *self.unsure.entry(group).or_default() &= !state;
                } else if one.leave_tries >= 3 || io.now < self.blind {
                    *self.unsure.entry(group).or_default() |= state;
                } else {
                    one.leave_tries += 1;
                    self.start(
                        io,
                        Ask::Leave { group, state },
                        Owner::Group(group),
                        JOIN_INTERVAL,
                    );
                    return;
                }
            }
            (Ask::Path { .. }, _) => {}
        }
        self.work(io, group);
    }

    /// Does one thing after the other for a group, until a request is out or nothing is left.
    fn work(&mut self, io: &mut Io, group: u8) {
        let Some(one) = self.groups.get_mut(&group) else {
            return;
        };
        loop {
            if one.state != State::Busy {
                *self.unsure.entry(group).or_default() |= one.bits;
                for (object, _) in one.active.drain(..) {
                    self.callbacks.push_back(Callback::Void(object));
                }
                one.bits = 0;
                one.state = State::Busy;
                continue;
            }
            let Some(&(object, state)) = one.pending.front() else {
                break;
            };
            if state & one.bits != state {
                if io.now < self.blind {
                    one.pending.pop_front();
                    self.callbacks
                        .push_back(Callback::Join(object, Outcome::NotSent));
                    continue;
                }
                one.joining = Some(object);
                self.start(
                    io,
                    Ask::Join { group, state },
                    Owner::Group(group),
                    JOIN_INTERVAL,
                );
                return;
            }
            one.pending.pop_front();
            one.active.push((object, state));
            let outcome = Outcome::Good(one.params);
            self.callbacks.push_back(Callback::Join(object, outcome));
        }
        let used = one.active.iter().fold(0, |bits, &(_, state)| bits | state);
        let mut state = one.bits & !used;
        one.bits &= !state;
        if io.now < self.blind {
            *self.unsure.entry(group).or_default() |= state;
            state = 0;
        }
        if state != 0 {
            one.leave_tries = 0;
            self.start(
                io,
                Ask::Leave { group, state },
                Owner::Group(group),
                JOIN_INTERVAL,
            );
        } else if one.active.is_empty() {
            self.groups.remove(&group);
        } else {
            one.state = State::Idle;
        }
    }
}

fn state_of(ask: Ask) -> u8 {
    match ask {
        Ask::Join { state, .. } | Ask::Leave { state, .. } => state,
        Ask::Path { .. } => 0,
    }
}
