// SPDX-License-Identifier: GPL-2.0

//! Log lines that a peer or a user can provoke are rate limited.

use crate::sys::bindings;

/// Whether another limited line may be printed now: 100 in 10 seconds (LOG-1). Any context.
pub(crate) fn permitted() -> bool {
    // SAFETY: no preconditions.
    unsafe { bindings::ipoib_h_ratelimit() }
}

/// A warning that is dropped when there have been too many.
macro_rules! warn_limited {
    ($($arg:tt)*) => {
        if $crate::base::log::permitted() {
            ::kernel::pr_warn!($($arg)*);
        }
    };
}
pub(crate) use warn_limited;
