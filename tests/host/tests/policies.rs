// SPDX-License-Identifier: GPL-2.0

//! The small policies: time, back-off, admission, pending budget, ageing, carrier and MTU.

use ipoib_host::control::actions::Actions;
use ipoib_host::control::admission::QueryCap;
use ipoib_host::control::ageing::{Ageing, DEFAULT_INTERVAL};
use ipoib_host::control::backoff::{Backoff, Config};
use ipoib_host::control::pending::{Budget, Limits};
use ipoib_host::control::port::{Action, Event, Port};
use ipoib_host::control::reason::TxDrop;
use ipoib_host::control::room::{Limit, Rounds, Use};
use ipoib_host::control::seq::Seq;
use ipoib_host::control::storm::Pace;
use ipoib_host::control::time::Millis;
use ipoib_host::wire::mtu::MtuError;
use proptest::prelude::*;

#[test]
fn time_saturates() {
    assert_eq!(Millis::NEVER.saturating_add(Millis(1)), Millis::NEVER);
    assert_eq!(Millis(3).saturating_sub(Millis(5)), Millis::ZERO);
    assert_eq!(Millis::from_secs(u64::MAX), Millis::NEVER);
    assert!(Millis(5).reached(Millis(5)) && !Millis(5).reached(Millis(4)));
    let (a, b) = (Some(Millis(1)), Some(Millis(2)));
    assert_eq!(Millis::earliest(a, b), a);
    assert_eq!(Millis::earliest(b, a), a);
    assert_eq!(Millis::earliest(None, b), b);
    assert_eq!(Millis::earliest(None, None), None);
}

#[test]
fn backoff_doubles_to_its_cap() {
    let config = Config::new(1000, 16000);
    let mut backoff = Backoff::new();
    let longest: Vec<_> = (0..7).map(|_| backoff.next(&config, u32::MAX).0).collect();
    assert_eq!(longest, [1000, 2000, 4000, 8000, 16000, 16000, 16000]);
    assert_eq!(backoff.attempts(), 7);
    backoff.reset();
    let shortest: Vec<_> = (0..6).map(|_| backoff.next(&config, 0).0).collect();
    assert_eq!(shortest, [500, 1000, 2000, 4000, 8000, 8000]);
}

#[test]
fn backoff_bad_configurations() {
    assert_eq!(Backoff::new().next(&Config::new(0, 0), 0), Millis(1));
    assert_eq!(
        Backoff::new().next(&Config::new(50, 10), u32::MAX),
        Millis(50)
    );
    assert_eq!(Config::new(50, 10).cap(), Millis(50));
}

#[test]
fn jitter_spreads_equal_nodes() {
    // 1000 nodes that fail at the same moment: no more than 5 % retry in any of 40 slices of the delay.
    let config = Config::new(4000, 16000);
    let mut slices = [0u32; 40];
    for node in 0..1000 {
        let mut seq = Seq::new(node);
        let delay = Backoff::new().next(&config, seq.random()).0;
        slices[((delay - 2000) / 51) as usize] += 1;
    }
    assert!(slices.iter().all(|&n| n <= 50), "{slices:?}");
}

#[test]
fn ids_are_unique_and_not_zero() {
    let mut seq = Seq::new(0);
    let ids: Vec<_> = (0..100).map(|_| seq.id()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]) && ids[0] > 0);
}

#[test]
fn query_cap() {
    let mut cap = QueryCap::new(2);
    assert!(cap.try_acquire(Millis::ZERO) && cap.try_acquire(Millis::ZERO));
    assert!(!cap.try_acquire(Millis::ZERO));
    assert_eq!((cap.free(), cap.outstanding()), (0, 2));
    cap.release();
    assert!(cap.try_acquire(Millis::ZERO) && !cap.try_acquire(Millis::ZERO));
    // A release too many does not open a hole.
    let mut cap = QueryCap::new(0);
    cap.release();
    assert!(cap.try_acquire(Millis::ZERO) && !cap.try_acquire(Millis::ZERO));
}

#[test]
fn budget_takes_the_burst() {
    // B50: 100 packets of the largest datagram.
    let mut budget = Budget::new(Limits::DESTINATION);
    for _ in 0..100 {
        assert!(budget.admit(4092 + 24));
    }
    let small = (0..).take_while(|_| budget.admit(1)).count();
    assert_eq!(small, 156);
}

#[test]
fn budget_bounds() {
    let mut budget = Budget::new(Limits {
        packets: 3,
        bytes: 100,
    });
    assert!(budget.admit(60) && !budget.admit(41) && budget.admit(40));
    assert_eq!((budget.packets(), budget.bytes()), (2, 100));
    assert!(!budget.admit(u32::MAX), "no overflow");
    budget.clear();
    assert!(budget.is_empty());
    assert!(budget.admit(1) && budget.admit(1) && budget.admit(98) && !budget.admit(0));
}

#[test]
fn ageing_rule() {
    // NB-4: unused for more than two intervals.
    let ageing = Ageing::default();
    assert_eq!(ageing.idle_limit(), Millis::from_secs(60));
    assert_eq!(
        ageing.next_pass(Millis(5)),
        Millis(5).saturating_add(DEFAULT_INTERVAL)
    );
    let used = Millis(1000);
    assert!(!ageing.expired(used, Millis(61_000), false));
    assert!(ageing.expired(used, Millis(61_001), false));
    assert!(!ageing.expired(used, Millis(61_001), true));
    assert!(!ageing.expired(used, Millis(0), false), "clock behind");
    assert_eq!(Ageing::new(Millis::ZERO).idle_limit(), Millis(2000));
}

#[test]
fn tables_have_room_for_large_fabrics() {
    // 10,000 peers, each with its path and its solicited-node group, and nobody has to go.
    assert!(Limit::NEIGHBOURS.is_roomy(20_000));
    assert!(Limit::PATHS.is_roomy(10_000));
    assert!(Limit::GROUPS.is_roomy(10_000));
    let limit = Limit::new(800);
    assert!(!limit.is_crowded(699) && limit.is_crowded(700));
    assert!(limit.is_roomy(600) && !limit.is_roomy(601));
    assert!(!limit.is_full(799) && limit.is_full(800));
    assert_eq!(Limit::new(0).max(), 8);
}

/// The round in which a destination goes, if it does.
fn round_of(dest: Use) -> Option<usize> {
    let mut rounds = Rounds::new();
    let mut round = 0;
    loop {
        if rounds.takes(&dest) {
            return Some(round);
        }
        if !rounds.advance() {
            return None;
        }
        round += 1;
    }
}

#[test]
fn who_makes_room() {
    let dest = |resolved, waiting, idle| Use {
        resolved,
        waiting,
        idle: Millis(idle),
    };
    // Those that never answered go first, before the longest unused peer.
    assert_eq!(round_of(dest(false, false, 0)), Some(0));
    assert_eq!(round_of(dest(false, true, 1000)), Some(1));
    assert_eq!(round_of(dest(true, false, 1_000_000)), Some(2));
    // Then by disuse.
    let rounds: Vec<_> = [40_000, 20_000, 9000, 5000, 3000, 1000]
        .map(|idle| round_of(dest(true, false, idle)))
        .into();
    assert_eq!(rounds, [2, 3, 4, 5, 6, 7].map(Some));
    // What is in use stays, and so does who was asked for just now.
    assert_eq!(round_of(dest(true, false, 999)), None);
    assert_eq!(round_of(dest(false, true, 999)), None);
}

#[test]
fn reasons_are_a_dense_table() {
    let mut names = TxDrop::ALL.map(TxDrop::name).to_vec();
    for (index, reason) in TxDrop::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), index);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TxDrop::COUNT);
}

#[test]
fn action_list_is_empty_at_first() {
    let list = Actions::<u8, 2>::new();
    assert_eq!(
        (list.is_empty(), list.len(), list.overflowed()),
        (true, 0, false)
    );
    assert_eq!(list.into_iter().count(), 0);
}

/// Brings a port up on a fabric whose broadcast group has the MTU given.
fn running(limit: u32, group: u32) -> Port {
    let mut port = Port::new(limit);
    for event in [Event::Admin(true), Event::Active(true), Event::PKey(true)] {
        assert!(port.step(event).is_empty());
    }
    let actions: Vec<_> = port
        .step(Event::BroadcastJoined { ib_mtu: group })
        .into_iter()
        .collect();
    assert_eq!(actions.last(), Some(&Action::CarrierOn));
    port
}

#[test]
fn carrier_needs_all() {
    let off = [
        Event::Admin(false),
        Event::Active(false),
        Event::PKey(false),
        Event::BroadcastLost,
    ];
    let on = [
        Event::Admin(true),
        Event::Active(true),
        Event::PKey(true),
        Event::BroadcastJoined { ib_mtu: 4096 },
    ];
    for (off, on) in off.into_iter().zip(on) {
        let mut port = running(4096, 4096);
        assert!(port.carrier());
        let actions: Vec<_> = port.step(off).into_iter().collect();
        assert_eq!(actions, [Action::CarrierOff]);
        assert!(port.step(off).is_empty(), "only once");
        let actions: Vec<_> = port.step(on).into_iter().collect();
        assert_eq!(actions, [Action::CarrierOn]);
    }
}

#[test]
fn mtu_comes_before_carrier() {
    let mut port = Port::new(4096);
    for event in [Event::Admin(true), Event::Active(true), Event::PKey(true)] {
        port.step(event);
    }
    let actions: Vec<_> = port
        .step(Event::BroadcastJoined { ib_mtu: 2048 })
        .into_iter()
        .collect();
    assert_eq!(actions, [Action::SetMtu(2044), Action::CarrierOn]);
    assert_eq!(port.effective(), 2044);
}

#[test]
fn admin_mtu() {
    // NET-18: up to the port's limit accepted, capped by the group.
    let mut port = running(4096, 2048);
    assert_eq!(port.request_mtu(4092), Ok(2044));
    assert_eq!(port.request_mtu(1500), Ok(1500));
    assert_eq!(port.request_mtu(4093), Err(MtuError::TooLarge(4092)));
    assert_eq!(port.request_mtu(71), Err(MtuError::TooSmall(72)));
    assert_eq!(port.effective(), 1500, "a refused request changes nothing");
    assert_eq!(port.group_limit(), 2044);
}

#[test]
fn mtu_follows_the_group() {
    // NET-20: an MTU equal to the group's follows it, another one stays.
    let mut port = running(4096, 2048);
    assert_eq!(port.request_mtu(2044), Ok(2044));
    let actions: Vec<_> = port
        .step(Event::BroadcastJoined { ib_mtu: 4096 })
        .into_iter()
        .collect();
    assert_eq!(actions, [Action::SetMtu(4092)]);
    assert_eq!(port.request_mtu(1500), Ok(1500));
    assert!(port
        .step(Event::BroadcastJoined { ib_mtu: 2048 })
        .is_empty());
    assert_eq!(port.effective(), 1500);
    let actions: Vec<_> = port
        .step(Event::BroadcastJoined { ib_mtu: 1024 })
        .into_iter()
        .collect();
    assert_eq!(actions, [Action::SetMtu(1020)]);
}

#[test]
fn mtu_of_the_port_changes() {
    // RoCE: the network interface underneath changes its MTU and back.
    let mut port = running(4096, 4096);
    let mut seen = Vec::new();
    for ib_mtu in [1024, 4096] {
        for event in [Event::Limit { ib_mtu }, Event::BroadcastJoined { ib_mtu }] {
            for action in port.step(event) {
                if let Action::SetMtu(mtu) = action {
                    seen.push(mtu);
                }
            }
        }
    }
    assert_eq!(seen, [1020, 4092]);
    assert!(port.carrier());
}

#[test]
fn own_mtu_outlives_a_small_port() {
    // What the administrator chose is cut while the port is smaller, and no longer: also when the cut value is the
    // very one that was chosen.
    for (wanted, cut) in [(1500, 1020), (1020, 1020), (1000, 1000)] {
        let mut port = running(4096, 4096);
        assert_eq!(port.request_mtu(wanted), Ok(wanted));
        for ib_mtu in [1024, 2048, 1024, 4096] {
            port.step(Event::Limit { ib_mtu });
            port.step(Event::BroadcastJoined { ib_mtu });
            let now = if ib_mtu == 1024 { cut } else { wanted };
            assert_eq!(port.effective(), now, "{wanted} at {ib_mtu}");
        }
        // All that there is: follows again.
        assert_eq!(port.request_mtu(4092), Ok(4092));
        port.step(Event::Limit { ib_mtu: 2048 });
        assert_eq!(port.effective(), 2044);
        port.step(Event::Limit { ib_mtu: 4096 });
        assert_eq!(port.effective(), 4092);
    }
}

#[test]
fn a_request_is_not_undone_by_an_older_change() {
    // The port shrinks; before the stack was told, the administrator asks for less still.
    let mut port = running(4096, 4096);
    let actions: Vec<_> = port
        .step(Event::Limit { ib_mtu: 2048 })
        .into_iter()
        .collect();
    assert_eq!(actions, [Action::SetMtu(2044)]);
    assert_eq!(port.request_mtu(1500), Ok(1500));
    assert_eq!(port.effective(), 1500);
}

fn port_event() -> impl Strategy<Value = Event> {
    let mtu = (8u32..13).prop_map(|bits| 1 << bits);
    prop_oneof![
        any::<bool>().prop_map(Event::Admin),
        any::<bool>().prop_map(Event::Active),
        any::<bool>().prop_map(Event::PKey),
        Just(Event::BroadcastLost),
        mtu.clone()
            .prop_map(|ib_mtu| Event::BroadcastJoined { ib_mtu }),
        mtu.prop_map(|ib_mtu| Event::Limit { ib_mtu }),
        proptest::option::of(2044u32..65521).prop_map(Event::Connected),
    ]
}

proptest! {
    #[test]
    fn backoff_stays_in_its_bounds(
        base in 0u32..100_000,
        cap in 0u32..100_000,
        draws in proptest::collection::vec(any::<u32>(), 1..80),
    ) {
        let config = Config::new(base, cap);
        let mut backoff = Backoff::new();
        for (n, draw) in draws.into_iter().enumerate() {
            let full = (u128::from(base.max(1)) << n).min(u128::from(config.cap().0));
            let delay = u128::from(backoff.next(&config, draw).0);
            prop_assert!(delay >= full.div_ceil(2) && delay <= full.max(1), "{n}: {delay} of {full}");
        }
    }

    /// The budget equals a list of what was admitted since it was last emptied.
    #[test]
    fn budget_is_exact(operations in proptest::collection::vec((any::<bool>(), 0u32..500), 0..200)) {
        let limits = Limits { packets: 20, bytes: 3000 };
        let mut budget = Budget::new(limits);
        let mut model: Vec<u32> = Vec::new();
        for (admit, len) in operations {
            if admit {
                let fits = model.len() < 20 && model.iter().sum::<u32>() + len <= 3000;
                prop_assert_eq!(budget.admit(len), fits);
                if fits {
                    model.push(len);
                }
            } else if len % 8 == 0 {
                model.clear();
                budget.clear();
            }
            prop_assert_eq!(budget.packets() as usize, model.len());
            prop_assert_eq!(budget.bytes(), model.iter().sum::<u32>());
        }
    }

    /// Whatever happens, the carrier is what the four conditions say, it is told only when it changes, and
    /// the interface's MTU is never above what group and port, or in connected mode connections, allow.
    #[test]
    fn port_model(events in proptest::collection::vec((port_event(), 60u32..4200), 0..60)) {
        let mut port = Port::new(2048);
        let (mut admin, mut active, mut pkey, mut joined, mut carrier) =
            (false, false, false, false, false);
        let (mut limit, mut group, mut netdev) = (2044, 2044, 2044);
        let mut wanted = u32::MAX;
        let (mut connected, mut wanted_connected) = (None, u32::MAX);
        for (event, request) in events {
            match event {
                Event::Admin(on) => admin = on,
                Event::Active(on) => active = on,
                Event::PKey(on) => pkey = on,
                Event::BroadcastLost => joined = false,
                Event::BroadcastJoined { ib_mtu } => {
                    joined = true;
                    group = ib_mtu - 4;
                }
                Event::Limit { ib_mtu } => limit = ib_mtu - 4,
                Event::Connected(most) => (connected, wanted_connected) = (most, u32::MAX),
            }
            let actions = port.step(event);
            prop_assert!(!actions.overflowed());
            for action in actions {
                match action {
                    Action::CarrierOn => {
                        prop_assert!(!carrier);
                        carrier = true;
                    }
                    Action::CarrierOff => {
                        prop_assert!(carrier);
                        carrier = false;
                    }
                    Action::SetMtu(mtu) => {
                        prop_assert_ne!(mtu, netdev);
                        prop_assert_eq!(mtu, port.effective());
                        netdev = mtu;
                    }
                }
            }
            prop_assert_eq!(carrier, admin && active && pkey && joined);
            prop_assert_eq!(port.may_join(), admin && active && pkey);
            if request % 3 == 0 {
                // Connections allow more than datagrams.
                let request = if connected.is_some() { request * 16 } else { request };
                match (port.request_mtu(request), connected) {
                    (Ok(mtu), Some(most)) => {
                        prop_assert!((72..=most).contains(&request));
                        prop_assert_eq!(mtu, request);
                        netdev = mtu;
                        wanted_connected = if request == most { u32::MAX } else { request };
                    }
                    (Err(_), Some(most)) => prop_assert!(!(72..=most).contains(&request)),
                    (Ok(mtu), None) => {
                        prop_assert!((72..=limit).contains(&request));
                        prop_assert_eq!(mtu, request.min(group));
                        netdev = mtu;
                        wanted = if request == limit || request == group { u32::MAX } else { request };
                    }
                    (Err(_), None) => prop_assert!(!(72..=limit).contains(&request)),
                }
            }
            prop_assert_eq!(netdev, port.effective());
            prop_assert_eq!(netdev, match connected {
                Some(most) => wanted_connected.min(most),
                None => limit.min(group).min(wanted),
            });
            prop_assert_eq!(port.connected(), connected.is_some());
        }
    }
}

#[test]
fn a_fixed_cap_does_not_move() {
    let mut cap = QueryCap::new(4);
    for _ in 0..100 {
        cap.answered(Millis::from_secs(1), Millis::ZERO);
        cap.unanswered(Millis::ZERO, Millis::ZERO, 0);
    }
    assert_eq!(cap.window(), 4);
}

#[test]
fn the_window_follows_the_answer_time() {
    let mut cap = QueryCap::adaptive(12);
    let now = Millis(50);
    assert_eq!(cap.window(), 1);
    // One window of answers moves it by one, however fast they are.
    for _ in 0..1 + 2 + 3 + 4 {
        cap.answered(Millis::ZERO, now);
    }
    assert_eq!(cap.window(), 5);
    for _ in 0..200 {
        cap.answered(Millis(40), now);
    }
    assert_eq!(cap.window(), 12, "not above the limit");
    for _ in 0..12 {
        cap.answered(Millis(80), now);
    }
    assert_eq!(cap.window(), 9);
    // In between nothing moves.
    for _ in 0..200 {
        cap.answered(Millis(60), now);
    }
    assert_eq!(cap.window(), 9);
    for _ in 0..9 {
        assert!(cap.try_acquire(Millis::ZERO));
    }
    let (since, now) = (Millis(100), Millis(1200));
    cap.unanswered(since, now, 0);
    assert_eq!((cap.window(), cap.free(), cap.outstanding()), (4, 0, 9));
    // The others that went out before say the same.
    cap.unanswered(since, now, 0);
    assert_eq!(cap.window(), 4);
    // What is out stays out; nothing is let in until it fits again, and the pause is over.
    let end = cap.deadline().expect("a pause");
    assert!(!cap.try_acquire(Millis(end.0 - 1)));
    for _ in 0..6 {
        cap.release();
    }
    assert!(!cap.try_acquire(Millis(end.0 - 1)));
    assert!(cap.try_acquire(end) && !cap.try_acquire(end));
    let mut at = end;
    for _ in 0..9 {
        at = Millis(at.0 + 20_000);
        cap.unanswered(at, at, 0);
        at = Millis(at.0 + 1);
    }
    assert_eq!(cap.window(), 1, "never shut");
    let pause = cap.deadline().expect("a pause").saturating_sub(at);
    assert!((3900..=8000).contains(&pause.0), "{pause}");
    cap.answered(Millis(60), at);
    assert_eq!(cap.deadline(), None, "an answer ends it");
}

#[test]
fn a_gap_takes_over_where_one_query_is_too_many() {
    let mut cap = QueryCap::adaptive(12);
    let mut gaps = Vec::new();
    for _ in 0..4 {
        cap.answered(Millis(100), Millis(1000));
        gaps.push(cap.deadline().map_or(0, |until| until.0 - 1000));
    }
    assert_eq!(gaps, [100, 200, 400, 400]);
    assert!(!cap.try_acquire(Millis(1399)));
    assert!(cap.try_acquire(Millis(1400)));
    assert_eq!(cap.deadline(), None);
    cap.release();
    for _ in 0..9 {
        assert_eq!(cap.window(), 1);
        cap.answered(Millis(10), Millis(2000));
    }
    assert_eq!((cap.window(), cap.deadline()), (2, None));
}

#[test]
fn a_node_waits_as_long_as_its_lid_says() {
    let mut pace = Pace::new();
    assert_eq!(pace.turn(), Millis::ZERO, "no LID, no queue");
    pace.set_lid(10_000, 0);
    assert_eq!(pace.turn(), Millis(20_000), "nobody has answered");
    pace.answered(Millis::ZERO);
    assert_eq!(pace.turn(), Millis(10_000), "the shortest slot is 1 ms");
    pace.set_lid(10_000, 3);
    assert_eq!(
        pace.turn(),
        Millis(1_250),
        "a port with 8 LIDs has one place"
    );
    let mut pace = Pace::new();
    pace.set_lid(10_000, 0);
    pace.answered(Millis(10));
    assert_eq!(
        pace.turn(),
        Millis(125_000),
        "the answer time and a quarter"
    );
    // Falls fast, rises slowly.
    pace.answered(Millis(2));
    assert_eq!(pace.slot(), 10_000);
    pace.answered(Millis(24));
    assert_eq!(pace.slot(), 11_250);
    for _ in 0..1000 {
        pace.answered(Millis::NEVER);
    }
    assert_eq!(pace.slot(), 20_000);
    pace.set_lid(u32::MAX, 0);
    assert!(pace.turn() < Millis(240_000));
}

#[test]
fn a_turn_comes_once() {
    let mut pace = Pace::new();
    pace.set_lid(100, 0);
    // Nothing was answered yet: two milliseconds for each node.
    assert!(!pace.take_turn(Millis::NEVER), "nobody was called");
    pace.call(Millis(1000));
    pace.call(Millis(1050));
    // A second call postpones nothing.
    assert_eq!(pace.deadline(), Some(Millis(1200)));
    assert!(!pace.take_turn(Millis(1199)));
    assert!(pace.take_turn(Millis(1200)) && !pace.take_turn(Millis(1200)));
    pace.call(Millis(2000));
    pace.cancel();
    assert!(!pace.take_turn(Millis::NEVER) && pace.deadline().is_none());
}
