// SPDX-License-Identifier: GPL-2.0

//! Runs the simulation by hand.

use std::process::ExitCode;

use ipoib_sim::engine::SECOND;
use ipoib_sim::mutant::Mutant;
use ipoib_sim::script::Script;

const USAGE: &str = "\
ipoib-sim runs FIRST COUNT   random runs from seed FIRST on; a failing one is explained
ipoib-sim replay SEED [M]    the shrunk run of a failing seed with its whole trace; M: with the broken nodes of this name
ipoib-sim mutants            with which seed each kind of broken nodes is noticed, and by which rule
ipoib-sim numbers FILE       the table of the large scenarios; FILE gets joins over time as SVG
";

fn number(text: Option<&String>) -> Option<u64> {
    text?.parse().ok()
}

fn runs(first: u64, count: u64) -> ExitCode {
    let (mut packets, mut requests) = (0, 0);
    for seed in first..first.saturating_add(count) {
        let report = ipoib_sim::run(&Script::from_seed(seed), None, false);
        packets += report.packets;
        requests += report.requests;
        if report.failure.is_some() {
            println!("{}", ipoib_sim::explain(seed, None, 60).unwrap_or_default());
            return ExitCode::FAILURE;
        }
    }
    println!("{count} runs, {packets} packets, {requests} requests: no rule broken");
    ExitCode::SUCCESS
}

fn replay(seed: u64, name: Option<&String>) -> ExitCode {
    let mutant = match name {
        None => None,
        Some(name) => match Mutant::named(name) {
            None => {
                eprintln!("no broken node is called {name}");
                return ExitCode::from(2);
            }
            found => found,
        },
    };
    match ipoib_sim::explain(seed, mutant, usize::MAX) {
        Some(text) => {
            print!("{text}");
            ExitCode::FAILURE
        }
        None => {
            println!("seed {seed} breaks no rule");
            ExitCode::SUCCESS
        }
    }
}

fn mutants() -> ExitCode {
    // A machine's panic counts as a broken rule, and need not be reported by itself.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for mutant in Mutant::RULES {
        match ipoib_sim::catch(mutant, 20_000) {
            Some((seed, rule)) => println!("{mutant:?}: seed {seed}, {rule}"),
            None => {
                println!("{mutant:?}: MISSED");
                missed += 1;
            }
        }
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn large(file: &str) -> ExitCode {
    let (table, picture) = ipoib_sim::storm::numbers(600 * SECOND);
    print!("{table}");
    match std::fs::write(file, picture) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{file}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers = (number(arguments.get(1)), number(arguments.get(2)));
    match (arguments.first().map(String::as_str), numbers) {
        (Some("runs"), (Some(first), Some(count))) => runs(first, count),
        (Some("replay"), (Some(seed), _)) => replay(seed, arguments.get(2)),
        (Some("mutants"), _) => mutants(),
        (Some("numbers"), _) if arguments.len() == 2 => large(&arguments[1]),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
