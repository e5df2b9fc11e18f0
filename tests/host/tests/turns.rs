// SPDX-License-Identifier: GPL-2.0

//! Whose query goes out next.

use ipoib_host::control::admission::{Asker, Turns};

#[test]
fn our_own_come_first_and_strangers_get_a_share() {
    let mut turns = Turns::new();
    let row: Vec<Asker> = (0..8).filter_map(|_| turns.next(true, true)).collect();
    let own = [Asker::Ourselves; Turns::OWN as usize];
    let expected: Vec<Asker> = [&own[..], &[Asker::Stranger]].concat().repeat(2);
    assert_eq!(row, expected);
}

#[test]
fn who_is_alone_does_not_wait() {
    let mut turns = Turns::new();
    for _ in 0..10 {
        assert_eq!(turns.next(true, false), Some(Asker::Ourselves));
    }
    for _ in 0..10 {
        assert_eq!(turns.next(false, true), Some(Asker::Stranger));
    }
    assert_eq!(turns.next(false, false), None);
    // Nothing is owed from before.
    assert_eq!(turns.next(true, true), Some(Asker::Ourselves));
}
