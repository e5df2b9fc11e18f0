// SPDX-License-Identifier: GPL-2.0

//! The driver: interfaces on InfiniBand and RoCE ports.
//!
//! - `client`: devices come and go; one [`interface::Interface`] per port.
//! - `interface`: an interface and its network device operations.
//! - `queue`, `rx`, `tx`: a queue pair with its completion queues, rings and NAPI.
//! - `worker`: the one context that changes control state, fed by events.
//! - `paths`, `groups`, `recovery`: carry out what the machines in `control` decide.
//! - `neigh`: what the transmit path looks up.
//! - `resolver`: how a GID is reached and a group joined, by kind of port.
//!
//! # Locks
//!
//! In this order, outermost first; a lock is never taken while one below it is held.
//!
//! 1. RTNL
//! 2. `Interface::control` (mutex): all control state. The worker takes it and never RTNL, so
//!    `open`, `stop` and `uninit` may take it with RTNL held.
//! 3. `Napi::control` (mutex): enabling and disabling of one NAPI.
//! 4. a transmit queue's lock
//! 5. the writer lock of a group of chains in the neighbour table (BH off)
//! 6. a neighbour's `wait` (BH off)
//!
//! `Interface::listeners` and `Port::interface` are mutexes below `control` that nothing else is
//! taken under; `Port::state`, `Interface::dev`, `Interface::chores` and `Reply::answer` are leaf
//! spinlocks.

#![deny(unsafe_code)]

pub(crate) mod client;
pub(crate) mod debugfs;
mod ethtool;
pub(crate) mod groups;
pub(crate) mod interface;
pub(crate) mod neigh;
pub(crate) mod ops;
pub(crate) mod paths;
pub(crate) mod port;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod resolver;
pub(crate) mod rx;
pub(crate) mod stats;
pub(crate) mod tx;
mod walk;
pub(crate) mod worker;
