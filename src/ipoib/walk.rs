// SPDX-License-Identifier: GPL-2.0

//! Walking a map whose entries are changed, added and removed on the way.

use kernel::rbtree::RBTree;

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
