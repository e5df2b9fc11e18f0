// SPDX-License-Identifier: GPL-2.0

//! Decisions: the state machines and policies of the driver, without the driver.
//!
//! Each machine is a plain value with a function `step(event, now, ...) -> actions`. It has no clock, no
//! lock, no allocation and no panic; whoever owns it calls `step` from one context at a time (in the module:
//! the interface's ordered worker) and then carries out the actions **in the order of the list**. Time,
//! randomness and the ids of queries and joins come in as arguments, so that the same files run in the module
//! and, from a seed, in the host tests and the simulator.
//!
//! Conventions:
//!
//! - An id names one attempt (a path query, a join). An answer that carries another id than the one awaited is
//!   ignored: it belongs to an attempt that was given up.
//! - Every machine reports the moment it next wants a `Tick` by an `ArmTimer` action and through `deadline()`.
//!   A tick that comes early does nothing; one that comes late is only late.
//! - Packets that wait are the caller's. The machine says when to send them (`SendPending`) and when to drop
//!   them (`DropPending` with the reason to count), and guarantees that one of the two comes while it is given
//!   its ticks.

#![forbid(unsafe_code)]
// The host tests and the simulator use items that the module does not, and the other way round; and the
// module is private to a crate that exports nothing.
#![allow(dead_code, unreachable_pub)]

pub mod actions;
pub mod admission;
pub mod ageing;
pub mod backoff;
pub mod child;
pub mod conn;
pub mod health;
pub mod join;
pub mod path;
pub mod pending;
pub mod port;
pub mod reason;
pub mod recovery;
pub mod room;
pub mod seq;
pub mod storm;
pub mod time;
pub mod txstop;
