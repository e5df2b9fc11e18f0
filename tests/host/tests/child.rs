// SPDX-License-Identifier: GPL-2.0

//! Children: what users may ask for, and what the children are called.

use ipoib_host::control::child::{
    acceptable, name, parse_create, parse_delete, parse_umcast, Mode, Refusal, NAME,
};
use ipoib_host::wire::pkey::PKey;
use ipoib_host::wire::rate;
use proptest::prelude::*;

#[test]
fn a_child_needs_a_partition() {
    for bad in [0, 0x8000] {
        assert_eq!(acceptable(PKey(bad)), Err(Refusal::BadPKey));
    }
    for good in [1, 0x7fff, 0x8001, 0xffff] {
        assert_eq!(acceptable(PKey(good)), Ok(PKey(good)));
    }
}

#[test]
fn create_takes_one_number_as_c_writes_it() {
    for (text, value) in [
        ("0x8001\n", 0x8001),
        ("0X8aBc", 0x8abc),
        ("32769\n", 0x8001),
        ("0100001\n", 0x8001),
        ("  +1 \n", 1),
        ("65535", 0xffff),
    ] {
        assert_eq!(parse_create(text.as_bytes()), Ok(PKey(value)), "{text:?}");
    }
    for text in [
        "",
        "\n",
        "0",
        "0x8000\n",
        "32768",
        "65536",
        "0x18001",
        "-1",
        "x",
        "0x",
        "0xg",
        "08",
        "1 2",
        "1;",
        "1x",
        "99999999999999999999999",
        "+",
        "-",
        "- 1",
    ] {
        assert_eq!(
            parse_create(text.as_bytes()),
            Err(Refusal::BadPKey),
            "{text:?}"
        );
    }
}

#[test]
fn delete_takes_zero_too() {
    assert_eq!(parse_delete(b"0\n"), Ok(PKey(0)));
    assert_eq!(parse_delete(b"0x8000"), Ok(PKey(0x8000)));
    for text in ["", "65536", "-1", "ib0.8001"] {
        assert_eq!(
            parse_delete(text.as_bytes()),
            Err(Refusal::BadPKey),
            "{text:?}"
        );
    }
}

#[test]
fn names_tell_the_key_as_written() {
    let text = |parent: &str, key| {
        let name = name(parent.as_bytes(), PKey(key));
        let end = name.iter().position(|c| *c == 0).unwrap();
        assert!(name[end..].iter().all(|c| *c == 0));
        String::from_utf8(name[..end].to_vec()).unwrap()
    };
    assert_eq!(text("ib0", 0x8001), "ib0.8001");
    assert_eq!(text("ib0", 0x0a), "ib0.000a");
    assert_eq!(text("ibp65s0f1v123", 0xffff), "ibp65s0f1v.ffff");
    assert_eq!(text("", 1), ".0001");
}

#[test]
fn modes() {
    assert_eq!(Mode::from_text(b"datagram\n"), Ok(Mode::Datagram));
    assert_eq!(Mode::from_text(b"connected\n"), Ok(Mode::Connected));
    for text in [
        "datagram",
        "connected",
        "",
        "\n",
        "Datagram\n",
        "datagram\n\n",
        " datagram\n",
        "datagramm\n",
    ] {
        assert_eq!(
            Mode::from_text(text.as_bytes()),
            Err(Refusal::BadMode),
            "{text:?}"
        );
    }
    assert_eq!(Mode::from_number(0), Ok(Mode::Datagram));
    assert_eq!(Mode::from_number(1), Ok(Mode::Connected));
    assert_eq!(Mode::from_number(2), Err(Refusal::BadMode));
}

#[test]
fn umcast_never_fails() {
    for text in ["1\n", "2", " 0x1", "1x", "+7 apples"] {
        assert!(parse_umcast(text.as_bytes()), "{text:?}");
    }
    for text in [
        "0\n",
        "",
        "no",
        "-1",
        "00",
        "0x0",
        "yes",
        "99999999999999999999",
    ] {
        assert!(!parse_umcast(text.as_bytes()), "{text:?}");
    }
}

#[test]
fn every_refusal_fits_an_answer() {
    let all = [
        Refusal::BadPKey,
        Refusal::NotUnique,
        Refusal::NoSuchChild,
        Refusal::NoLower,
        Refusal::BadLower,
        Refusal::ChildOfChild,
        Refusal::Closing,
        Refusal::BadAddress,
        Refusal::BadMtu,
        Refusal::BadMode,
        Refusal::Connected,
    ];
    let mut reasons: Vec<_> = all.iter().map(|refusal| refusal.reason()).collect();
    assert!(reasons
        .iter()
        .all(|reason| (10..80).contains(&reason.count_bytes())));
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons.len(), all.len());
}

#[test]
fn speeds() {
    // SDR to XDR on four lanes (ETH-5).
    let four: Vec<_> = [1, 2, 4, 8, 16, 32, 64, 128, 256]
        .map(|code| rate::mbps(code, 2).unwrap())
        .into();
    assert_eq!(
        four,
        [10_000, 20_000, 40_000, 40_000, 56_000, 100_000, 200_000, 400_000, 800_000]
    );
    let widths: Vec<_> = [1, 2, 4, 8, 16]
        .map(|code| rate::mbps(1, code).unwrap())
        .into();
    assert_eq!(widths, [2_500, 10_000, 20_000, 30_000, 5_000]);
    for (speed, width) in [(0, 1), (3, 1), (512, 1), (1, 0), (1, 3), (1, 32), (1, 255)] {
        assert_eq!(rate::mbps(speed, width), None);
    }
}

proptest! {
    #[test]
    fn no_text_is_too_much(text: Vec<u8>) {
        if let Ok(key) = parse_create(&text) {
            prop_assert!(key.is_valid());
            prop_assert_eq!(parse_delete(&text), Ok(key));
            prop_assert!(parse_umcast(&text));
        }
        let _ = Mode::from_text(&text);
    }

    #[test]
    fn what_printf_writes_is_read_back(value: u16) {
        let texts = [format!("{value}\n"), format!("{value:#x}\n"), format!("{value:#06x}"), format!("0{value:o}")];
        for text in texts {
            prop_assert_eq!(parse_delete(text.as_bytes()), Ok(PKey(value)));
        }
    }

    #[test]
    fn names_are_names(parent in proptest::collection::vec(1u8..=255, 0..20), key: u16) {
        let name = name(&parent, PKey(key));
        prop_assert_eq!(name.len(), NAME);
        prop_assert_eq!(name[NAME - 1], 0);
        let end = name.iter().position(|c| *c == 0).unwrap();
        let suffix = format!(".{key:04x}");
        prop_assert!(name[..end].ends_with(suffix.as_bytes()));
        prop_assert!(parent.starts_with(&name[..end - 5]));
    }
}
