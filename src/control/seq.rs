// SPDX-License-Identifier: GPL-2.0

//! Ids and jitter of one interface.

/// Hands out attempt ids and pseudo-random numbers to the machines of one interface.
///
/// Ids never repeat within an interface, so that a late answer cannot be taken for that of a newer attempt,
/// even when the machine that asked is gone and another has its place. The numbers spread retries of many
/// nodes over time; they are no secrets.
#[derive(Clone, Copy, Debug)]
pub struct Seq {
    last_id: u64,
    state: u64,
}

impl Seq {
    /// Starts from a seed, which should differ between nodes.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self {
            last_id: 0,
            state: seed,
        }
    }

    /// A fresh id, never zero.
    #[inline]
    pub fn id(&mut self) -> u64 {
        self.last_id = self.last_id.wrapping_add(1).max(1);
        self.last_id
    }

    /// A pseudo-random number (splitmix64, upper half).
    #[inline]
    pub fn random(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }
}
