// SPDX-License-Identifier: GPL-2.0

//! A short list of actions, without allocation.

/// Up to `N` actions in the order in which they must be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions<A: Copy, const N: usize> {
    items: [Option<A>; N],
    len: usize,
    lost: bool,
}

impl<A: Copy, const N: usize> Actions<A, N> {
    /// An empty list.
    #[inline]
    pub const fn new() -> Self {
        Self {
            items: [None; N],
            len: 0,
            lost: false,
        }
    }

    /// Appends an action. When the list is full the action is lost and [`Actions::overflowed`] says so; the
    /// machines size their lists so that it never happens, and the property tests check it.
    #[inline]
    pub(super) fn push(&mut self, action: A) {
        match self.items.get_mut(self.len) {
            Some(slot) => {
                *slot = Some(action);
                self.len = self.len.saturating_add(1);
            }
            None => self.lost = true,
        }
    }

    /// The actions in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = A> + '_ {
        self.items.iter().flatten().copied()
    }

    /// Number of actions.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to do.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an action was lost because the list was full: a defect of the machine.
    #[inline]
    pub const fn overflowed(&self) -> bool {
        self.lost
    }
}

impl<A: Copy, const N: usize> Default for Actions<A, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Copy, const N: usize> IntoIterator for Actions<A, N> {
    type Item = A;
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<A>, N>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter().flatten()
    }
}
