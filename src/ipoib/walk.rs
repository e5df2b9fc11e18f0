// SPDX-License-Identifier: GPL-2.0

//! Walking a map whose entries are changed, added and removed on the way.

use kernel::rbtree::RBTree;

use crate::control::time::Millis;

/// Entries that one millisecond between two looks at all of them is added for.
const LOOKS: u32 = 256;

/// How long after a look at all `count` entries of a map the next one is due at the earliest, so that it is no
/// burden however many there are and however close together their deadlines are.
pub(super) fn pace(count: u32) -> Millis {
    Millis(u64::from(count / LOOKS))
}

/// The first key behind `after` (the very first without one), and what `look` says of its value.
pub(super) fn next_after<K: Ord + Copy, V, R>(
    map: &RBTree<K, V>,
    after: Option<&K>,
    look: impl FnOnce(&V) -> R,
) -> Option<(K, R)> {
    let cursor = match after {
        None => map.cursor_front()?,
        Some(key) => map.cursor_lower_bound(key)?,
    };
    let (key, value) = if after.is_some_and(|key| cursor.current().0 == key) {
        cursor.peek_next()?
    } else {
        cursor.current()
    };
    Some((*key, look(value)))
}
