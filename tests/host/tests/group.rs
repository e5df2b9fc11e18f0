// SPDX-License-Identifier: GPL-2.0

//! The membership machine, case by case.

use ipoib_host::control::join::{Action, Event, Failure, Group, JoinState, Kind, Params, Policy};
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::seq::Seq;
use ipoib_host::control::time::Millis;

const PARAMS: Params = Params {
    mlid: 0xc001,
    qkey: 0x0b1b,
    mtu: 4,
    rate: 3,
    sl: 0,
    traffic_class: 0,
    hop_limit: 1,
    flow_label: 0,
};

const FULL: JoinState = JoinState::FullMember;
const SEND: JoinState = JoinState::SendOnlyFullMember;

/// A machine with its ids; timers are left out of what `step` returns, and places for joins, which there are enough of
/// unless `crowded` says otherwise.
struct Bench {
    group: Group,
    seq: Seq,
    now: u64,
    /// The id of the last join started.
    id: u64,
    crowded: bool,
}

impl Bench {
    fn new() -> Self {
        Self {
            group: Group::new(Policy::DEFAULT),
            seq: Seq::new(1),
            now: 1_000_000,
            id: 0,
            crowded: false,
        }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut actions: Vec<_> = self
            .group
            .step(event, Millis(self.now), &mut self.seq)
            .into_iter()
            .filter(|action| !matches!(action, Action::ArmTimer(_)))
            .collect();
        if !self.crowded && actions.contains(&Action::Ask) {
            actions.retain(|action| *action != Action::Ask);
            actions.append(&mut self.step(Event::Turn));
        }
        for action in &actions {
            if let Action::StartJoin { id, .. } = action {
                self.id = *id;
            }
        }
        actions
    }

    fn tick(&mut self) -> Vec<Action> {
        self.now = self.group.deadline().expect("a deadline").0;
        self.step(Event::Tick)
    }

    fn grant(&mut self) -> Vec<Action> {
        self.step(Event::Joined {
            id: self.id,
            params: PARAMS,
        })
    }

    fn deny(&mut self, cause: Failure) -> Vec<Action> {
        self.step(Event::JoinFailed { id: self.id, cause })
    }

    fn started(&self, state: JoinState) -> Action {
        Action::StartJoin { id: self.id, state }
    }

    /// Wanted and joined.
    fn joined(kind: Kind) -> Self {
        let mut bench = Self::new();
        bench.step(Event::Up);
        bench.step(Event::Want(kind));
        bench.grant();
        assert!(bench.group.is_member());
        bench
    }
}

#[test]
fn broadcast_joins_when_the_port_is_active() {
    let mut bench = Bench::new();
    assert!(bench.step(Event::Want(Kind::Broadcast)).is_empty());
    let up = bench.step(Event::Up);
    assert_eq!(up, [bench.started(FULL)]);
    assert_eq!(
        bench.grant(),
        [
            Action::Attach { mlid: 0xc001 },
            Action::Publish,
            Action::SendPending
        ]
    );
    assert_eq!(bench.group.published(), Some(PARAMS));
    assert_eq!(bench.group.deadline(), None);
}

#[test]
fn join_states_on_the_wire() {
    assert_eq!((FULL.bits(), SEND.bits()), (1, 8), "MC-7");
}

#[test]
fn full_membership_is_tried_for_ever() {
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    let mut delays = Vec::new();
    for _ in 0..12 {
        assert!(bench.deny(Failure::Timeout).is_empty());
        let before = bench.now;
        let again = bench.tick();
        assert_eq!(again, [bench.started(FULL)]);
        delays.push(bench.now - before);
    }
    assert!((500..=1000).contains(&delays[0]), "{delays:?}");
    assert!((8000..=16000).contains(&delays[11]), "{delays:?}");
    assert_eq!(bench.group.last_failure(), Some(Failure::Timeout));
    bench.grant();
    assert_eq!(bench.group.last_failure(), None);
}

#[test]
fn busy_is_retried_fast() {
    // B53: the first answer after a reregister is "busy"; the broadcast group is back within 100 ms.
    let mut bench = Bench::joined(Kind::Broadcast);
    bench.step(Event::Reregister {
        spread: Millis::ZERO,
    });
    bench.deny(Failure::Busy);
    let before = bench.now;
    bench.tick();
    bench.grant();
    assert!(bench.now - before <= 100);
    assert!(bench.group.is_member());
}

#[test]
fn send_only_for_packets() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.step(Event::Pending),
        [Action::DropPending(TxDrop::NotReady)],
        "MC-16: no broadcast group"
    );
    bench.step(Event::Up);
    let asked = bench.step(Event::Pending);
    assert_eq!(asked, [bench.started(SEND)]);
    assert_eq!(bench.grant(), [Action::Publish, Action::SendPending]);
    assert!(!bench.group.is_attached(), "MC-10");
    assert_eq!(bench.step(Event::Pending), [Action::SendPending]);
}

#[test]
fn send_only_gives_up_after_the_second_failure() {
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Pending);
    assert!(bench.deny(Failure::Timeout).is_empty());
    let again = bench.tick();
    assert_eq!(again, [bench.started(SEND)]);
    assert_eq!(
        bench.deny(Failure::Timeout),
        [Action::DropPending(TxDrop::NoGroup)],
        "MC-12"
    );
    assert_eq!(bench.group.deadline(), None, "rests");
    // New packets are the request to try again (TRAP-48).
    let asked = bench.step(Event::Pending);
    assert_eq!(asked, [bench.started(SEND)]);
}

#[test]
fn refused_send_only_becomes_full_without_attachment() {
    // B48: unknown is not unsupported; try, and fall back on refusal.
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Pending);
    let fallback = bench.deny(Failure::Refused);
    assert_eq!(fallback, [bench.started(FULL)]);
    assert_eq!(bench.grant(), [Action::Publish, Action::SendPending]);
    assert!(!bench.group.is_attached());
    // A listener then needs no further join.
    assert_eq!(
        bench.step(Event::Want(Kind::Full)),
        [Action::Attach { mlid: 0xc001 }]
    );
}

#[test]
fn upgrade_from_send_only() {
    // MC-17; the handle serves throughout.
    let mut bench = Bench::joined(Kind::SendOnly);
    let send_only = bench.id;
    let upgrade = bench.step(Event::Want(Kind::Full));
    assert_eq!(upgrade, [bench.started(FULL)]);
    assert_eq!(
        bench.grant(),
        [
            Action::Leave { id: send_only },
            Action::Attach { mlid: 0xc001 },
            Action::SendPending
        ]
    );
    // A sender does not turn it back.
    assert!(bench.step(Event::Want(Kind::SendOnly)).is_empty());
    assert!(bench.step(Event::Idle).is_empty());
    assert!(bench.group.is_attached());
}

#[test]
fn refused_upgrade_keeps_send_only() {
    let mut bench = Bench::joined(Kind::SendOnly);
    bench.step(Event::Want(Kind::Full));
    assert!(bench.deny(Failure::Refused).is_empty());
    assert_eq!(bench.step(Event::Pending), [Action::SendPending]);
}

#[test]
fn idle_send_only_group_is_left() {
    // NB-4, WEAK-20.
    let mut bench = Bench::joined(Kind::SendOnly);
    assert_eq!(
        bench.step(Event::Idle),
        [Action::Unpublish, Action::Leave { id: bench.id }]
    );
    assert!(bench.group.is_idle());
}

#[test]
fn leaving_while_the_join_is_under_way() {
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    let id = bench.id;
    assert_eq!(bench.step(Event::Unwant), [Action::Leave { id }]);
    assert!(bench.grant().is_empty(), "too late");
    assert!(bench.group.is_idle());
}

#[test]
fn last_listener_leaves() {
    let mut bench = Bench::joined(Kind::Full);
    assert_eq!(
        bench.step(Event::Unwant),
        [
            Action::Unpublish,
            Action::Detach { mlid: 0xc001 },
            Action::Leave { id: bench.id }
        ]
    );
    assert!(bench.group.is_idle());
}

#[test]
fn reregister_keeps_the_group_in_use() {
    // WEAK-19: in-tree loses multicast meanwhile.
    let mut bench = Bench::joined(Kind::Full);
    let old = bench.id;
    let spread = Millis::ZERO;
    let actions = bench.step(Event::Reregister { spread });
    assert_eq!(actions, [Action::Leave { id: old }, bench.started(FULL)]);
    assert!(bench.group.published().is_some() && bench.group.is_attached());
    assert_eq!(bench.step(Event::Pending), [Action::SendPending]);
    // The same answer: nothing to change.
    assert_eq!(bench.grant(), [Action::SendPending]);
}

#[test]
fn reregister_with_other_parameters() {
    let mut bench = Bench::joined(Kind::Full);
    let spread = Millis::ZERO;
    bench.step(Event::Reregister { spread });
    let params = Params {
        mlid: 0xc009,
        ..PARAMS
    };
    let id = bench.id;
    assert_eq!(
        bench.step(Event::Joined { id, params }),
        [
            Action::Detach { mlid: 0xc001 },
            Action::Attach { mlid: 0xc009 },
            Action::Publish,
            Action::SendPending
        ]
    );
}

#[test]
fn one_incident_one_join() {
    // The SA layer voids the membership and the port event asks for re-registration, in either order.
    let mut bench = Bench::joined(Kind::Broadcast);
    let old = bench.id;
    let spread = Millis::ZERO;
    let lost = bench.step(Event::Lost { id: old });
    assert_eq!(lost, [Action::Leave { id: old }]);
    assert!(bench.group.published().is_some(), "kept in use");
    bench.now += 20;
    let again = bench.step(Event::Reregister { spread });
    assert_eq!(again, [bench.started(FULL)]);
    bench.grant();
    assert_eq!(bench.group.deadline(), None, "nothing is left of the first");

    let old = bench.id;
    let again = bench.step(Event::Reregister { spread });
    assert_eq!(again, [Action::Leave { id: old }, bench.started(FULL)]);
    assert!(bench.step(Event::Lost { id: old }).is_empty());
    // An older join may have been answered by the manager that is gone.
    bench.now += 600;
    let id = bench.id;
    let again = bench.step(Event::Reregister { spread });
    assert_eq!(again, [Action::Leave { id }, bench.started(FULL)]);
}

#[test]
fn a_void_membership_is_renewed_even_if_nobody_says_when() {
    let mut bench = Bench::joined(Kind::Full);
    bench.group.set_turn(Millis(3000));
    let id = bench.id;
    bench.step(Event::Lost { id });
    assert_eq!(bench.group.deadline(), Some(Millis(bench.now + 5000)));
    assert_eq!(bench.tick(), [bench.started(FULL)]);
}

#[test]
fn one_refusal_may_mean_busy() {
    let mut bench = Bench::joined(Kind::Full);
    let spread = Millis::ZERO;
    bench.step(Event::Reregister { spread });
    bench.deny(Failure::Refused);
    assert!(bench.group.published().is_some(), "kept in use");
    bench.tick();
    let refused = bench.deny(Failure::Refused);
    assert!(refused.contains(&Action::Unpublish), "{refused:?}");
    assert!(bench.group.published().is_none());
}

#[test]
fn overtaken_join_is_tried_again() {
    // MC-14: -ENETRESET while joining.
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    let id = bench.id;
    assert_eq!(bench.step(Event::Lost { id }), [Action::Leave { id }]);
    let again = bench.tick();
    assert_eq!(again, [bench.started(FULL)]);
}

#[test]
fn held_groups_wait_for_the_broadcast_group() {
    let mut bench = Bench::joined(Kind::Full);
    let id = bench.id;
    bench.step(Event::Hold);
    assert_eq!(bench.step(Event::Lost { id }), [Action::Leave { id }]);
    assert!(bench.group.published().is_some(), "kept in use");
    // The broadcast group is renewed by the event that voided all of them.
    let spread = Millis::ZERO;
    assert!(bench.step(Event::Reregister { spread }).is_empty());
    let up = bench.step(Event::Up);
    assert_eq!(up, [bench.started(FULL)]);
}

#[test]
fn port_down_and_up() {
    let mut bench = Bench::joined(Kind::Full);
    let id = bench.id;
    assert_eq!(
        bench.step(Event::Down),
        [
            Action::Unpublish,
            Action::Detach { mlid: 0xc001 },
            Action::Leave { id }
        ]
    );
    let up = bench.step(Event::Up);
    assert_eq!(up, [bench.started(FULL)], "still wanted");
    // A send-only group comes back when there is something to send.
    let mut bench = Bench::joined(Kind::SendOnly);
    bench.step(Event::Down);
    assert!(bench.group.is_idle());
    assert!(bench.step(Event::Up).is_empty());
}

#[test]
fn failed_attachment() {
    // MC-24, TRAP-49, B51: left, and tried again after a delay that grows.
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    let mut delays = Vec::new();
    for _ in 0..6 {
        let id = bench.id;
        assert!(bench.grant().contains(&Action::Attach { mlid: 0xc001 }));
        assert_eq!(
            bench.step(Event::SetupFailed),
            [
                Action::Unpublish,
                Action::Detach { mlid: 0xc001 },
                Action::Leave { id }
            ]
        );
        let before = bench.now;
        let again = bench.tick();
        assert_eq!(again, [bench.started(FULL)]);
        delays.push(bench.now - before);
    }
    assert!(delays[0] <= 1000 && delays[5] >= 8000, "{delays:?}");
}

#[test]
fn silent_join_is_given_up() {
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Broadcast));
    let id = bench.id;
    assert_eq!(bench.tick(), [Action::Leave { id }]);
    assert_eq!(bench.group.last_failure(), Some(Failure::Timeout));
    let again = bench.tick();
    assert_eq!(again, [bench.started(FULL)]);
    assert!(bench.step(Event::Joined { id, params: PARAMS }).is_empty());
}

#[test]
fn joins_that_nobody_answers_come_apart() {
    let mut bench = Bench::new();
    bench.group.set_turn(Millis(10_000));
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    let mut delays = Vec::new();
    for _ in 0..8 {
        bench.deny(Failure::Timeout);
        let before = bench.now;
        bench.tick();
        delays.push(bench.now - before);
    }
    let seconds: Vec<_> = delays.iter().map(|ms| ms / 1000).collect();
    assert_eq!(seconds, [10, 20, 40, 80, 160, 160, 160, 160]);
    // An answer of any kind needs no turn.
    bench.deny(Failure::Refused);
    let before = bench.now;
    bench.tick();
    assert!(bench.now - before <= 16_000);
}

#[test]
fn packets_for_a_group_that_never_comes() {
    let mut bench = Bench::new();
    bench.step(Event::Up);
    bench.step(Event::Want(Kind::Full));
    bench.step(Event::Pending);
    let start = bench.now;
    let mut dropped = None;
    while dropped.is_none() {
        if bench.group.is_joining() {
            bench.now += 3000;
            let actions = bench.deny(Failure::Timeout);
            dropped = actions.into_iter().find_map(drop_reason);
        }
        if dropped.is_none() {
            dropped = bench.tick().into_iter().find_map(drop_reason);
        }
    }
    assert!(bench.now - start <= Policy::DEFAULT.pending_life.0 + 3000);
    assert!(bench.group.deadline().is_some(), "the join goes on");
}

fn drop_reason(action: Action) -> Option<TxDrop> {
    match action {
        Action::DropPending(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn a_join_waits_for_its_place() {
    let mut bench = Bench::new();
    bench.crowded = true;
    bench.step(Event::Up);
    assert_eq!(bench.step(Event::Pending), [Action::Ask]);
    assert!(bench.step(Event::Pending).is_empty(), "asks once");
    assert_eq!(
        bench.tick(),
        [Action::DropPending(TxDrop::Expired)],
        "packets wait no longer than they live"
    );
    assert_eq!(
        bench.group.deadline(),
        None,
        "nothing to do before the turn"
    );
    assert!(
        bench.step(Event::Pending).is_empty(),
        "its place in the line is kept"
    );
    bench.now += 60_000;
    let turn = bench.step(Event::Turn);
    assert!(
        matches!(turn[..], [Action::DropPending(_), Action::StartJoin { .. }])
            || matches!(turn[..], [Action::StartJoin { .. }]),
        "{turn:?}"
    );
    // The limit of the join runs from here on.
    assert!(bench
        .step(Event::Tick)
        .iter()
        .all(|a| !matches!(a, Action::Leave { .. })));
    bench.grant();
    assert!(bench.group.is_member());
}

#[test]
fn a_turn_that_is_not_wanted_any_more_starts_nothing() {
    let mut bench = Bench::new();
    bench.crowded = true;
    bench.step(Event::Up);
    assert_eq!(bench.step(Event::Want(Kind::Full)), [Action::Ask]);
    bench.step(Event::Unwant);
    assert!(bench.step(Event::Turn).is_empty());
    assert!(bench.group.is_idle());
    // While joins are held the turn passes; it is asked for again afterwards.
    assert_eq!(bench.step(Event::Want(Kind::Full)), [Action::Ask]);
    bench.step(Event::Hold);
    assert!(bench.step(Event::Turn).is_empty());
    assert_eq!(bench.step(Event::Up), [Action::Ask]);
    let turn = bench.step(Event::Turn);
    assert_eq!(turn, [bench.started(FULL)]);
}

#[test]
fn a_membership_is_kept_until_the_turn_to_renew_it() {
    let mut bench = Bench::joined(Kind::Full);
    let old = bench.id;
    bench.crowded = true;
    let spread = Millis::ZERO;
    assert_eq!(bench.step(Event::Reregister { spread }), [Action::Ask]);
    assert!(bench.group.has_membership() && bench.group.is_attached());
    // A listener that comes back in the meantime asks for nothing further.
    assert!(bench.step(Event::Reregister { spread }).is_empty());
    let turn = bench.step(Event::Turn);
    assert_eq!(turn, [Action::Leave { id: old }, bench.started(FULL)]);
}
