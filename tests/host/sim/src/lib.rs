// SPDX-License-Identifier: GPL-2.0

//! A deterministic simulation of a fabric: nodes that run the module's state machines (the same source files), what
//! the kernel has below them, a subnet administrator, and a network that loses and delays messages. Time is virtual,
//! and everything follows from a seed.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod engine;
pub mod fabric;
pub mod intree;
pub mod mutant;
pub mod node;
pub mod port;
pub mod sa;
pub mod script;
pub mod storm;

use std::panic::{catch_unwind, AssertUnwindSafe};

use fabric::Report;
use mutant::Mutant;
use script::Script;

/// Carries out a script. A panic of a machine is a broken rule like any other.
pub fn run(script: &Script, mutant: Option<Mutant>, text: bool) -> Report {
    catch_unwind(AssertUnwindSafe(|| fabric::run(script, mutant, text))).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Report {
            failure: Some(format!("panic: {}", what.unwrap_or("unknown"))),
            hash: 0,
            text: Vec::new(),
            packets: 0,
            requests: 0,
        }
    })
}

/// What there is to say of a seed that breaks a rule: the rule, the shrunk script, the end of its trace, and how to see
/// it again.
pub fn explain(seed: u64, mutant: Option<Mutant>, lines: usize) -> Option<String> {
    let script = Script::from_seed(seed);
    run(&script, mutant, false).failure?;
    let small = script::shrink(&script, |script| {
        run(script, mutant, false).failure.is_some()
    });
    let report = run(&small, mutant, true);
    let mut out = format!(
        "seed {seed}: {}\n{:#?}\n",
        report.failure.as_deref().unwrap_or("no rule is broken"),
        small.shape
    );
    for (at, op) in &small.steps {
        out += &format!("{:>12.3} ms  {op:?}\n", *at as f64 / 1000.0);
    }
    let skip = report.text.len().saturating_sub(lines);
    out += &format!("trace ({skip} lines left out):\n");
    for line in report.text.iter().skip(skip) {
        out += line;
        out.push('\n');
    }
    let name = mutant.map_or(String::new(), |mutant| format!(" {mutant:?}"));
    out += &format!("to see it again: cargo run --release -p ipoib-sim -- replay {seed}{name}\n");
    Some(out)
}

/// The first seed from 0 on, and below `limit`, with which a broken node is noticed, and the rule that it breaks.
pub fn catch(mutant: Mutant, limit: u64) -> Option<(u64, String)> {
    (0..limit).find_map(|seed| {
        let report = run(&Script::from_seed(seed), Some(mutant), false);
        report.failure.map(|rule| (seed, rule))
    })
}
