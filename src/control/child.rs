// SPDX-License-Identifier: GPL-2.0

//! Child interfaces: which are acceptable, what they are called, and the texts by which sysfs makes, deletes
//! and sets them up (facts PK-3 to PK-7, SYSFS-1, SYSFS-3).

use core::ffi::CStr;

use crate::wire::pkey::PKey;

/// Why a request about a child or its settings is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No number, or one that names no partition.
    BadPKey,
    /// The parent or another child made by sysfs has that P_Key.
    NotUnique,
    /// No child made by sysfs has that P_Key.
    NoSuchChild,
    /// The request names no device to lie on.
    NoLower,
    /// The device to lie on does not exist or is none of this driver's.
    BadLower,
    /// The device to lie on is a child itself.
    ChildOfChild,
    /// The parent is being removed.
    Closing,
    /// An address of another length than 20 octets.
    BadAddress,
    /// An MTU that the port or the protocol does not allow.
    BadMtu,
    /// Neither datagram nor connected.
    BadMode,
    /// Connected mode, on a device without shared receive queues.
    Connected,
}

impl Refusal {
    /// What the user is told.
    pub const fn reason(self) -> &'static CStr {
        match self {
            Self::BadPKey => c"P_Key must be 1 to 0xffff, and not 0x8000",
            Self::NotUnique => c"P_Key is in use by the parent or a child",
            Self::NoSuchChild => c"no child made by create_child has this P_Key",
            Self::NoLower => c"a child needs a parent: link IFNAME",
            Self::BadLower => c"link is no interface of this driver",
            Self::ChildOfChild => c"child creation disallowed for a child: link its parent instead",
            Self::Closing => c"the parent is being removed",
            Self::BadAddress => c"address must have 20 octets",
            Self::BadMtu => c"MTU is out of the range that the port allows",
            Self::BadMode => c"mode must be datagram (0) or connected (1)",
            Self::Connected => c"connected mode needs a device with shared receive queues",
        }
    }
}

/// Transport of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Unreliable datagrams.
    Datagram,
    /// Reliable connections.
    Connected,
}

impl Mode {
    /// The mode as netlink counts them (NL-1).
    pub const fn from_number(number: u16) -> Result<Self, Refusal> {
        match number {
            0 => Ok(Self::Datagram),
            1 => Ok(Self::Connected),
            _ => Err(Refusal::BadMode),
        }
    }

    /// The mode from what is written to the file `mode`, which must match with its newline.
    pub fn from_text(text: &[u8]) -> Result<Self, Refusal> {
        match text {
            b"datagram\n" => Ok(Self::Datagram),
            b"connected\n" => Ok(Self::Connected),
            _ => Err(Refusal::BadMode),
        }
    }
}

/// The number at the start of `text`, after blanks, as C writes them: decimal, hexadecimal after `0x`, octal
/// after `0`, with or without a sign. Also the text behind it. One beyond 32 bits is none.
fn number(text: &[u8]) -> Option<(i64, &[u8])> {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (base, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] if rest.first().is_some_and(|c| digit(*c, 16).is_some()) => {
            (16, rest)
        }
        [b'0', ..] => (8, digits),
        _ => (10, digits),
    };
    let mut value = 0i64;
    let mut rest = digits;
    while let [first, behind @ ..] = rest {
        let Some(digit) = digit(*first, base) else {
            break;
        };
        value = value * i64::from(base) + i64::from(digit);
        if value > i64::from(u32::MAX) {
            return None;
        }
        rest = behind;
    }
    if rest.len() == digits.len() {
        return None;
    }
    Some((if negative { -value } else { value }, rest))
}

/// The value of a digit. Unlike that of `char`, it cannot panic, whatever the base.
const fn digit(c: u8, base: u32) -> Option<u32> {
    let value = match c {
        b'0'..=b'9' => c - b'0',
        b'a'..=b'f' => c - b'a' + 10,
        b'A'..=b'F' => c - b'A' + 10,
        _ => return None,
    } as u32;
    if value < base {
        Some(value)
    } else {
        None
    }
}

/// A number that is the whole text but for blanks around it.
fn whole_number(text: &[u8]) -> Option<i64> {
    let (value, rest) = number(text)?;
    rest.trim_ascii().is_empty().then_some(value)
}

/// Whether a child may have `pkey`: any that names a partition.
pub const fn acceptable(pkey: PKey) -> Result<PKey, Refusal> {
    if pkey.is_valid() {
        Ok(pkey)
    } else {
        Err(Refusal::BadPKey)
    }
}

/// The P_Key in what is written to `create_child`, **as written**: the membership bit decides the name.
pub fn parse_create(text: &[u8]) -> Result<PKey, Refusal> {
    let value = whole_number(text).ok_or(Refusal::BadPKey)?;
    acceptable(PKey(u16::try_from(value).map_err(|_| Refusal::BadPKey)?))
}

/// The P_Key in what is written to `delete_child`. It is compared with the children's own, membership bit and
/// all, so 0 is no error but finds nothing (PK-6).
pub fn parse_delete(text: &[u8]) -> Result<PKey, Refusal> {
    let value = whole_number(text).ok_or(Refusal::BadPKey)?;
    Ok(PKey(u16::try_from(value).map_err(|_| Refusal::BadPKey)?))
}

/// What is written to `umcast`: a number above 0 sets it, anything else clears it.
pub fn parse_umcast(text: &[u8]) -> bool {
    number(text).is_some_and(|(value, _)| value > 0)
}

/// Octets of an interface name, the closing zero included (`IFNAMSIZ`).
pub const NAME: usize = 16;
/// How much of the parent's name goes into a child's.
const STEM: usize = 10;

/// The name of a child made by sysfs: the parent's, cut to ten octets, a dot, and the P_Key as written (PK-4).
/// Zeros behind it.
pub fn name(parent: &[u8], written: PKey) -> [u8; NAME] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut name = [0; NAME];
    let stem = parent.iter().copied().take_while(|c| *c != 0).take(STEM);
    let [high, low] = written.0.to_be_bytes();
    let digits = [high >> 4, high & 0xf, low >> 4, low & 0xf]
        .map(|nibble| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0'));
    let all = stem.chain([b'.']).chain(digits);
    for (to, from) in name.iter_mut().take(NAME - 1).zip(all) {
        *to = from;
    }
    name
}
