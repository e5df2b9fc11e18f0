// SPDX-License-Identifier: GPL-2.0

//! Monotonic time.

use core::fmt;

/// A moment (milliseconds of a monotonic clock, any origin) or a span of milliseconds. All arithmetic
/// saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// The origin, or an empty span.
    pub const ZERO: Self = Self(0);

    /// Later than any moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// A span of whole seconds.
    #[inline]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// The moment `span` later, or the sum of two spans.
    #[inline]
    pub const fn saturating_add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`, zero if that lies in the future.
    #[inline]
    pub const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Whether this deadline has come.
    #[inline]
    pub const fn reached(self, now: Self) -> bool {
        now.0 >= self.0
    }

    /// The earlier of two deadlines, either of which may be missing.
    #[inline]
    pub const fn earliest(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (Some(only), None) | (None, Some(only)) => Some(only),
            (None, None) => None,
        }
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
