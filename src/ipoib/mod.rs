// SPDX-License-Identifier: GPL-2.0

//! The driver: interfaces on InfiniBand and RoCE ports.
//!
//! - `client`: devices come and go; one [`interface::Interface`] per port.
//! - `interface`, `ops`: an interface and its network device operations.
//! - `addressee`: whom a request of the RDMA connection manager is for.
//! - `child`, `netlink`, `sysfs`: further interfaces on a port, and how users make and see them.
//! - `queue`, `rx`, `tx`: a queue pair with its completion queues, rings and NAPI; `waking`: when sends are worked off.
//! - `lane`: the data path of connections; `conns`, `passive`: those that we and that peers ask for.
//! - `mode`: datagram or connected.
//! - `partition`: the P_Key and the broadcast group of an interface.
//! - `chores`: what is done under RTNL, from the port's work.
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
//! 7. the ring of a connection, the list of all of them, the packets that are too long (BH off)
//!
//! `Interface::listeners`, `Interface::file` and `Port::interfaces` are mutexes below `control` that
//! nothing but leaf spinlocks is taken under, and so is `Mail::boxes`; those are `Port::state`, `Interface::dev`,
//! `Interface::chores` and `Reply::answer`.
//!
//! Handlers of sysfs files never wait for RTNL: unregistering a device waits for them with RTNL held.
//! What they cannot do at once with a tried RTNL is left to the port's work, which takes RTNL and
//! which nobody waits for with RTNL held.
//!
//! # Who lives how long
//!
//! A port's interface is registered and unregistered by the RDMA client. Children are loose: they are
//! unregistered when their link is deleted, by the port's work, or before their parent. A port that is
//! closing takes on no child (looked at under RTNL), so none is left when the parent goes. A child
//! holds a reference to its parent's device, never the other way round; the port's list of interfaces
//! is what finds them, and `uninit` leaves it.

#![deny(unsafe_code)]

mod addressee;
pub(crate) mod child;
mod chores;
pub(crate) mod client;
pub(crate) mod conns;
pub(crate) mod debugfs;
mod ethtool;
pub(crate) mod groups;
pub(crate) mod interface;
pub(crate) mod lane;
mod mode;
pub(crate) mod neigh;
pub(crate) mod netlink;
pub(crate) mod ops;
mod partition;
mod passive;
pub(crate) mod paths;
pub(crate) mod port;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod resolver;
pub(crate) mod rx;
pub(crate) mod stats;
mod sysfs;
mod turns;
pub(crate) mod tx;
mod waking;
mod walk;
pub(crate) mod worker;
