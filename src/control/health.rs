// SPDX-License-Identifier: GPL-2.0

//! What is known of one queue between its data path, its interrupts and the worker: one word, so that any context
//! can change it at once.

/// Why the worker should look at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// A completion or a post has failed: look at the queue pair.
    Trouble,
    /// The device says that the queue pair or a completion queue is broken, or requests are lost: the queue has to
    /// start over, whatever the queue pair looks like.
    Fatal,
    /// The watchdog has found the queue stuck.
    Stalled,
    /// Receive slots are empty for want of memory.
    Starving,
}

impl Concern {
    const fn bit(self) -> u32 {
        match self {
            Self::Trouble => 1 << 1,
            Self::Fatal => 1 << 2,
            Self::Stalled => 1 << 3,
            Self::Starving => 1 << 4,
        }
    }
}

/// The state word of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health(pub u32);

impl Health {
    /// The queue pair takes posts.
    const RUNNING: u32 = 1 << 0;

    /// The queue starts from RESET: it runs, and nothing that was noted before concerns it any more. What was left
    /// noted would keep every later note from being news.
    #[inline]
    pub const fn started(self) -> Self {
        Self(Self::RUNNING)
    }

    /// Nothing may be posted.
    #[inline]
    pub const fn stopped(self) -> Self {
        Self(self.0 & !Self::RUNNING)
    }

    /// Posts go on where they were stopped; what was noted meanwhile stays noted.
    #[inline]
    pub const fn resumed(self) -> Self {
        Self(self.0 | Self::RUNNING)
    }

    /// Whether the queue pair takes posts.
    #[inline]
    pub const fn running(self) -> bool {
        self.0 & Self::RUNNING != 0
    }

    /// Notes a concern. If the word changes, the worker has to be told. Failed completions and posts are no news of
    /// a queue that does not run: those are to be expected, and somebody is at work on it.
    #[inline]
    pub const fn noted(self, what: Concern) -> Self {
        if matches!(what, Concern::Trouble) && !self.running() {
            return self;
        }
        Self(self.0 | what.bit())
    }

    /// Whether a concern is noted.
    #[inline]
    pub const fn has(self, what: Concern) -> bool {
        self.0 & what.bit() != 0
    }

    /// What stays when the worker takes up all concerns but [`Concern::Starving`], which is dealt with later
    /// ([`Refill`](super::recovery::Refill)).
    #[inline]
    pub const fn taken(self) -> Self {
        Self(self.0 & (Self::RUNNING | Concern::Starving.bit()))
    }

    /// Receive slots are being filled again.
    #[inline]
    pub const fn fed(self) -> Self {
        Self(self.0 & !Concern::Starving.bit())
    }
}
