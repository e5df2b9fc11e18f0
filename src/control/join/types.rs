// SPDX-License-Identifier: GPL-2.0

//! What goes into the membership machine and what comes out.

use crate::control::backoff;
use crate::control::reason::TxDrop;
use crate::control::time::Millis;

/// The times of the membership machine.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Delay after a join that was refused or failed here.
    pub quick: backoff::Config,
    /// Delay after a join that was not sent, since where to is just being looked up.
    pub busy: backoff::Config,
    /// Delay after a join that nobody answered, which has taken three seconds already (MC-9).
    pub slow: backoff::Config,
    /// How long a void membership waits, after the turn, for the event that says when to join again.
    pub void_grace: Millis,
    /// The longest that a node waits for its turn after joins that nobody answered.
    pub longest_turn: Millis,
    /// How long packets may wait for a group.
    pub pending_life: Millis,
    /// How long a join may go without an outcome before it is given up. The SA layer reports one by itself;
    /// this only guards against one that never comes.
    pub join_limit: Millis,
    /// A re-join younger than this is not started over by a `Reregister`, which reports the same incident.
    pub merge: Millis,
}

impl Policy {
    /// The driver's values.
    pub const DEFAULT: Self = Self {
        quick: backoff::Config::new(100, 16000),
        busy: backoff::Config::new(10, 16000),
        slow: backoff::Config::new(1000, 16000),
        void_grace: Millis::from_secs(2),
        longest_turn: Millis::from_secs(600),
        pending_life: Millis::from_secs(10),
        join_limit: Millis::from_secs(10),
        merge: Millis(500),
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which kind of group it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The broadcast group: always full membership.
    Broadcast,
    /// A group the stack listens to.
    Full,
    /// A group that is only sent to.
    SendOnly,
}

/// The join state to ask the subnet administrator for (MC-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinState {
    /// Full member.
    FullMember,
    /// Send-only full member: may create the group, receives nothing.
    SendOnlyFullMember,
}

impl JoinState {
    /// The bit in the JoinState field of an MCMemberRecord.
    pub const fn bits(self) -> u8 {
        match self {
            Self::FullMember => 1,
            Self::SendOnlyFullMember => 8,
        }
    }
}

/// What a join answers; all in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Params {
    /// Multicast local identifier.
    pub mlid: u16,
    /// The Q_Key.
    pub qkey: u32,
    /// MTU code (`enum ib_mtu`).
    pub mtu: u8,
    /// Rate code (`enum ib_rate`).
    pub rate: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Why a join failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody answered.
    Timeout,
    /// Not sent for a reason that passes by itself (`-EAGAIN`), or overtaken by an event of the port.
    Busy,
    /// The subnet administrator said no.
    Refused,
    /// The join could not be started, for want of memory and the like.
    Local,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants this kind of membership. A listener turns a send-only group into a full one; a sender
    /// changes nothing about a full one.
    Want(Kind),
    /// The last listener went, or the interface goes down.
    Unwant,
    /// Packets wait on the group; as `Want(SendOnly)` if nobody wanted it yet.
    Pending,
    /// Joining is possible.
    Up,
    /// Start no joins for now, keep everything.
    Hold,
    /// There is a place for the join that [`Action::Ask`] was about. Starts it, if it is still wanted; the place is
    /// free again otherwise.
    Turn,
    /// Joining is impossible and what was joined is void: port down, or broadcast group lost.
    Down,
    /// The join `id` succeeded.
    Joined {
        /// The id of [`Action::StartJoin`].
        id: u64,
        /// What the subnet administrator answered.
        params: Params,
    },
    /// The join `id` failed; no membership object is left of it.
    JoinFailed {
        /// The id of [`Action::StartJoin`].
        id: u64,
        /// Why.
        cause: Failure,
    },
    /// The membership `id` was void from the subnet's side (MC-14). The event of the port that did it should follow
    /// as `Reregister` or `Down`.
    Lost {
        /// The id of [`Action::StartJoin`].
        id: u64,
    },
    /// An `Attach` or `Publish` failed. A `Publish` and `SendPending` after it in the list were skipped, everything
    /// else in the list was carried out.
    SetupFailed,
    /// The subnet manager asks for re-registration, or the broadcast group's parameters changed: join again
    /// within `spread`.
    Reregister {
        /// The span over which many groups spread their joins.
        spread: Millis,
    },
    /// Nothing was sent to the group for the idle limit (NB-4); ends send-only membership.
    Idle,
    /// The deadline armed has come.
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Withdraw the group's address handle from the data path.
    Unpublish,
    /// Detach the queue pair; nothing to do when it is not attached.
    Detach {
        /// The local identifier it was attached with.
        mlid: u16,
    },
    /// Leave the membership, or give up the join, of this id, and free its object. Must have taken effect
    /// before the next action.
    Leave {
        /// The id of [`Action::StartJoin`].
        id: u64,
    },
    /// Send `Turn` when there is a place for one more join. Not asked again before that.
    Ask,
    /// Join. Only ever in answer to `Turn`.
    StartJoin {
        /// To be given back with the outcome.
        id: u64,
        /// The membership to ask for.
        state: JoinState,
    },
    /// Attach the queue pair. Being attached already is success (TRAP-49).
    Attach {
        /// The local identifier.
        mlid: u16,
    },
    /// Make an address handle from the parameters just reported and give it to the data path, in place of an
    /// older one.
    Publish,
    /// Send what waits; the data path has a handle.
    SendPending,
    /// Drop what waits and count it.
    DropPending(TxDrop),
    /// Send a `Tick` at this moment; replaces an earlier `ArmTimer`.
    ArmTimer(Millis),
}
