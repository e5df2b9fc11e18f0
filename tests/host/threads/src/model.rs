// SPDX-License-Identifier: GPL-2.0

//! How models are run.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use kernel::fault::{self, Fault};

const THERE: u32 = 0x600d;

/// A mark in an object. Its memory is never given back, so that the mark can be looked at too late.
pub(crate) struct Alive(AtomicU32);

impl Alive {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(THERE))
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.0.load(SeqCst), THERE, "used after it was freed");
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let before = self.0.swap(0, SeqCst);
        // A model that has failed is taken down in any state.
        if !std::thread::panicking() {
            assert_eq!(before, THERE, "freed twice");
        }
    }
}

/// Names the fault that the stand-ins are to have.
const FAULT: &str = "MODEL_FAULT";

const FAULTS: [Fault; 4] = [
    Fault::NoBarrier,
    Fault::NoRelease,
    Fault::NoGracePeriod,
    Fault::NoLock,
];

/// Runs `body` in every order with at most `preemptions` switches that nothing forces.
pub(crate) fn all(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let name = std::env::var(FAULT).ok();
    let wanted = name.map(|name| {
        let found = FAULTS.into_iter().find(|one| format!("{one:?}") == name);
        found.unwrap_or_else(|| panic!("no fault is called {name}"))
    });
    fault::set(wanted);
    builder.check(move || {
        kernel::bindings::reset();
        body();
    });
    fault::set(None);
}

/// Checks that the test of this name fails when the stand-ins have `fault`. In a process of its own: such a model may
/// end in any way.
pub(crate) fn must_fail(fault: Fault, test: &str) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", test])
        .env(FAULT, format!("{fault:?}"))
        .stderr(Stdio::null())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "no test is called {test}");
    assert!(!output.status.success(), "{fault:?} was not noticed");
}
