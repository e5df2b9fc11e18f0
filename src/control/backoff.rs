// SPDX-License-Identifier: GPL-2.0

//! Exponential back-off with jitter.

use super::time::Millis;

/// The shape of a back-off. Constants of the policies that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    base: u32,
    cap: u32,
}

impl Config {
    /// First delay `base` and longest delay `cap`, in milliseconds. Zero counts as one, and a cap below the
    /// base as the base.
    #[inline]
    pub const fn new(base: u32, cap: u32) -> Self {
        let base = if base == 0 { 1 } else { base };
        Self {
            base,
            cap: if cap < base { base } else { cap },
        }
    }

    /// The longest delay.
    #[inline]
    pub const fn cap(&self) -> Millis {
        Millis(self.cap as u64)
    }
}

/// The state of one back-off: how many delays were taken since the last success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// No failure so far.
    #[inline]
    pub const fn new() -> Self {
        Self { attempts: 0 }
    }

    /// The delay before the next try: `base` doubled for each failure since the last [`Backoff::reset`], at
    /// most `cap`; of that, a share between one half and the whole, chosen by `random`. At least 1 ms.
    #[inline]
    pub fn next(&mut self, config: &Config, random: u32) -> Millis {
        let full = u64::from(config.base)
            .checked_shl(self.attempts.min(31))
            .unwrap_or(u64::MAX)
            .min(u64::from(config.cap));
        self.attempts = self.attempts.saturating_add(1);
        let low = full.div_ceil(2);
        // `full` fits 32 bits, so the product fits 64.
        let spread = full.saturating_sub(low).saturating_add(1);
        let extra = spread.saturating_mul(u64::from(random)) >> 32;
        Millis(low.saturating_add(extra).max(1))
    }

    /// Starts over after a success.
    #[inline]
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Failures since the last success.
    #[inline]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }
}
