// SPDX-License-Identifier: GPL-2.0

//! RCU: callbacks run when every reader that might know the object has left.
//!
//! A read section that a callback does not wait for sees what was written before the callback was queued; entering orders
//! nothing else. Leaving a section, and queueing a callback, comes before every callback that had to wait for it.

use std::cell::RefCell;

use loom::sync::atomic::{AtomicUsize, Ordering};

use crate::fault::{has, Fault};

/// The head of an object that is freed after a grace period.
#[repr(C)]
pub struct callback_head {
    next: usize,
}

type Function = unsafe extern "C" fn(*mut callback_head);

/// A queued callback, and the readers that it waits for.
struct Queued {
    head: *mut callback_head,
    call: Function,
    readers: Vec<u64>,
}

#[derive(Default)]
struct State {
    last: u64,
    readers: Vec<u64>,
    queued: Vec<Queued>,
}

thread_local! {
    // Loom runs all threads of a model on one.
    static STATE: RefCell<State> = RefCell::default();
}

loom::lazy_static! {
    static ref EDGE: AtomicUsize = AtomicUsize::new(0);
    static ref QUEUED: AtomicUsize = AtomicUsize::new(0);
}

/// Forgets everything, for the next run of a model.
pub fn reset() {
    STATE.with(|state| *state.borrow_mut() = State::default());
}

/// A reader enters.
pub(crate) fn enter() -> u64 {
    // An exchange reads the latest: with what follows, up to the next step of loom's, it is one with the list of readers.
    QUEUED.fetch_add(1, Ordering::Acquire);
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        state.last += 1;
        let reader = state.last;
        state.readers.push(reader);
        reader
    })
}

/// A reader leaves.
pub(crate) fn leave(reader: u64) {
    EDGE.fetch_add(1, Ordering::Release);
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        state.readers.retain(|&one| one != reader);
        for queued in &mut state.queued {
            queued.readers.retain(|&one| one != reader);
        }
    });
    run();
}

fn run() {
    loop {
        let ready = STATE.with(|state| {
            let mut state = state.borrow_mut();
            let at = state
                .queued
                .iter()
                .position(|queued| queued.readers.is_empty())?;
            Some(state.queued.swap_remove(at))
        });
        let Some(ready) = ready else {
            return;
        };
        EDGE.fetch_add(1, Ordering::AcqRel);
        // SAFETY: whoever queued it has promised that `head` is one that `call` can take, once.
        unsafe { (ready.call)(ready.head) };
    }
}

/// Has `call` called with `head` when all readers of now have left.
pub unsafe fn call_rcu(head: *mut callback_head, call: Option<Function>) {
    let Some(call) = call else { return };
    EDGE.fetch_add(1, Ordering::Release);
    QUEUED.fetch_add(1, Ordering::Release);
    STATE.with(|state| {
        let mut state = state.borrow_mut();
        let readers = if has(Fault::NoGracePeriod) {
            Vec::new()
        } else {
            state.readers.clone()
        };
        state.queued.push(Queued {
            head,
            call,
            readers,
        });
    });
    run();
}
