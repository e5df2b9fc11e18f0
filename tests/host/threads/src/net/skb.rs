// SPDX-License-Identifier: GPL-2.0

//! Packets: numbers, which are counted where they end.

/// A packet.
#[derive(Debug)]
pub(crate) struct SkBuff(pub(crate) u32);

impl SkBuff {
    pub(crate) fn len(&self) -> u32 {
        64
    }
}

/// Packets in a row.
#[derive(Default)]
pub(crate) struct SkbList(Vec<SkBuff>);

impl SkbList {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn push(&mut self, skb: SkBuff) {
        self.0.push(skb);
    }

    pub(crate) fn pop(&mut self) -> Option<SkBuff> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    pub(crate) fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
