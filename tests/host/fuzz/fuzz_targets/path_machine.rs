// SPDX-License-Identifier: GPL-2.0

//! The path machine under arbitrary events; its world checks every step.

#![no_main]

use ipoib_model::path::{Op, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut world = World::new(1);
    for operation in data.chunks_exact(2) {
        world.apply(Op::decode(operation[0], operation[1]));
    }
    if data.len() % 2 == 0 {
        world.finish_silent();
    } else {
        world.finish_answered();
    }
});
