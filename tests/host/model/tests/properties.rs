// SPDX-License-Identifier: GPL-2.0

//! Any sequence of events, in any state: no rule of the worlds is broken, no packet is stranded, and once the
//! fabric answers again everything that is wanted comes back.

use ipoib_model::{group, path, queue};
use proptest::prelude::*;

/// Cases per property; `MODEL_CASES` asks for another number.
fn cases() -> u32 {
    match std::env::var("MODEL_CASES") {
        Ok(text) => text.parse().expect("MODEL_CASES is a number"),
        Err(_) => 20_000,
    }
}

/// A seed, and operations as code and argument.
fn script() -> impl Strategy<Value = (u64, Vec<(u8, u8)>)> {
    (
        any::<u64>(),
        proptest::collection::vec(any::<(u8, u8)>(), 0..120),
    )
}

fn path_world(seed: u64, script: &[(u8, u8)]) -> path::World {
    let mut world = path::World::new(seed);
    for &(code, argument) in script {
        world.apply(path::Op::decode(code, argument));
    }
    world
}

fn group_world(seed: u64, script: &[(u8, u8)]) -> group::World {
    let mut world = group::World::new(seed);
    for &(code, argument) in script {
        world.apply(group::Op::decode(code, argument));
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn path_strands_no_packet((seed, script) in script()) {
        path_world(seed, &script).finish_silent();
    }

    #[test]
    fn path_comes_back((seed, script) in script()) {
        path_world(seed, &script).finish_answered();
    }

    #[test]
    fn group_strands_no_packet((seed, script) in script()) {
        group_world(seed, &script).finish_silent();
    }

    #[test]
    fn group_comes_back((seed, script) in script()) {
        group_world(seed, &script).finish_granted();
    }

    #[test]
    fn queue_comes_back((seed, script) in script()) {
        let mut world = queue::World::new(seed);
        for &(code, argument) in &script {
            world.apply(queue::Op::decode(code, argument));
        }
        world.finish();
    }

    /// Equal seeds and events give equal traces.
    #[test]
    fn machines_are_deterministic((seed, script) in script()) {
        let trace = || format!("{:?} {:?}", path_world(seed, &script), group_world(seed, &script));
        prop_assert_eq!(trace(), trace());
    }
}
