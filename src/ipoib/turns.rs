// SPDX-License-Identifier: GPL-2.0

//! Whose join is next: the line of the groups that wait for a place, and the places taken.
//!
//! The broadcast group, on which everything waits, never stands in the line; it takes a place if one is free.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
};

use crate::{
    control::admission::JOIN_LIMIT,
    wire::gid::Gid, //
};

/// Memory for standing in the line. Every group has it from the start, so that asking cannot fail.
pub(super) struct Slip(RBTreeNodeReservation<u64, Gid>);

impl Slip {
    /// A new one. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL)?))
    }
}

/// A join that is out.
#[derive(Clone, Copy)]
struct Place {
    id: u64,
    group: Gid,
}

/// The line and the places of one interface.
pub(super) struct Turns {
    /// By number: numbers rise, so the first came first.
    line: RBTree<u64, Gid>,
    number: u64,
    waiting: usize,
    places: [Option<Place>; JOIN_LIMIT],
}

impl Turns {
    /// Nobody waits, nothing is out.
    pub(super) fn new() -> Self {
        Self {
            line: RBTree::new(),
            number: 0,
            waiting: 0,
            places: [None; JOIN_LIMIT],
        }
    }

    /// `group` waits for a place.
    pub(super) fn ask(&mut self, group: &Gid, slip: Slip) {
        self.number = self.number.wrapping_add(1);
        drop(self.line.insert(slip.0.into_node(self.number, *group)));
        self.waiting += 1;
    }

    /// Whose turn it is, with its slip; `None` when nobody waits or there is no place.
    pub(super) fn next(&mut self) -> Option<(Gid, Slip)> {
        if self.places.iter().all(Option::is_some) {
            return None;
        }
        let (number, group) = self.line.iter().next().map(|(k, v)| (*k, *v))?;
        let node = self.line.remove_node(&number)?;
        self.waiting = self.waiting.saturating_sub(1);
        Some((group, Slip(node.into_reservation())))
    }

    /// The join `id` is out: of the group whose turn it was, or of the broadcast group.
    pub(super) fn begun(&mut self, id: u64, group: &Gid) {
        if let Some(place) = self.places.iter_mut().find(|place| place.is_none()) {
            *place = Some(Place { id, group: *group });
        }
    }

    /// The join `id`, which may have had a place, is over or given up.
    pub(super) fn over(&mut self, id: u64) {
        for place in &mut self.places {
            if place.is_some_and(|place| place.id == id) {
                *place = None;
            }
        }
    }

    /// The groups whose joins are out.
    pub(super) fn out(&self) -> [Option<Gid>; JOIN_LIMIT] {
        self.places.map(|place| Some(place?.group))
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}
