// SPDX-License-Identifier: GPL-2.0

//! Deliberately broken nodes. Each has one fault of a kind that drivers have had; the rules must notice every one.

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Packets whose time is over are not dropped.
    ForgetDrop,
    /// Dropped packets are not counted.
    Uncounted,
    /// A query that is given up is not cancelled and keeps its place.
    LeakQuery,
    /// Queries go out without regard to the cap.
    NoCap,
    /// Joins go out without regard to their cap.
    AllJoins,
    /// A join that is given up keeps its place.
    KeepsPlace,
    /// A query that is given up goes on at the MAD layer.
    KeepsAsking,
    /// Memberships that are given up are not left.
    LeakMembership,
    /// Timers are set only most of the time.
    ForgetTimer,
    /// A packet that begins to wait does not always wake the worker.
    LostWakeUp,
    /// Paths are not asked for again when the fabric changes.
    NoRefresh,
    /// Groups are not joined again when the administrator asks for it.
    NoRejoin,
    /// The data path keeps a handle that was withdrawn.
    HandleSurvives,
    /// Failed queries are repeated at once.
    NoBackoff,
    /// Failed joins are repeated at once.
    NoJoinBackoff,
    /// One error answer ends the use of a path.
    BelieveBusy,
    /// Any number of packets may wait.
    Unbounded,
    /// Tables take any number of destinations.
    NoBounds,
    /// Queries for strangers and for peers of our own go out in the order in which they came.
    InOrder,
    /// Queries go on without a pause when nothing is answered.
    NoPause,
    /// The timer is set again for what is past.
    Spins,
    /// A query that could not be sent is not reported to its machine.
    ForgetDeferred,
    /// Nobody notices when the last listener of a group goes.
    LastUserStays,
    /// Paths survive the port.
    DownKeepsPaths,
    /// Unused paths are kept for ever.
    NoAgeing,
    /// All nodes join at once when they are told to.
    EveryoneAtOnce,
    /// The query window does not follow the administrator.
    FixedWindow,
}

impl Mutant {
    /// The one of this name, as [`fmt::Debug`](std::fmt::Debug) writes it.
    pub fn named(name: &str) -> Option<Self> {
        Self::RULES
            .into_iter()
            .find(|mutant| format!("{mutant:?}") == name)
    }

    /// Those that break a rule of a random run.
    pub const RULES: [Self; 24] = [
        Self::ForgetDrop,
        Self::Uncounted,
        Self::LeakQuery,
        Self::NoCap,
        Self::AllJoins,
        Self::KeepsPlace,
        Self::KeepsAsking,
        Self::LeakMembership,
        Self::ForgetTimer,
        Self::LostWakeUp,
        Self::NoRefresh,
        Self::NoRejoin,
        Self::HandleSurvives,
        Self::NoBackoff,
        Self::NoJoinBackoff,
        Self::BelieveBusy,
        Self::Unbounded,
        Self::NoBounds,
        Self::ForgetDeferred,
        Self::InOrder,
        Self::Spins,
        Self::LastUserStays,
        Self::DownKeepsPaths,
        Self::NoAgeing,
    ];
}
