// SPDX-License-Identifier: GPL-2.0

//! One world per state machine of `src/control`: it plays the driver around the machine, carries out the actions,
//! and panics when a step breaks a rule. Property tests and fuzz targets feed it operations.
//!
//! An operation is two octets, a code and an argument, so that a fuzzer's input and a property test's list mean
//! the same thing.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod group;
pub mod path;
pub mod queue;

use ipoib_host::control::time::Millis;

/// A clock with one timer, as each machine has.
#[derive(Debug, Default)]
pub struct Clock {
    /// The present moment.
    pub now: Millis,
    /// When the timer fires.
    pub timer: Option<Millis>,
}

impl Clock {
    /// Goes to the timer if it fires up to `target`, else to `target`. `true` when the timer fired.
    fn forward(&mut self, target: Millis) -> bool {
        match self.timer {
            Some(at) if at <= target => {
                self.timer = None;
                self.now = self.now.max(at);
                true
            }
            _ => {
                self.now = self.now.max(target);
                false
            }
        }
    }
}

/// The span an argument stands for: from a millisecond to half a minute, finer where the machines are.
fn span(argument: u8) -> Millis {
    let (shift, mantissa) = (argument >> 4, argument & 0x0f);
    Millis(u64::from(mantissa) << (shift.min(11)))
}
