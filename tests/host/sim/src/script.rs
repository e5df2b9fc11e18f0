// SPDX-License-Identifier: GPL-2.0

//! What happens in a run: made from a seed, printed, and made smaller when it breaks a rule.

use crate::engine::{Micros, Net, Rng, SECOND};
use crate::sa;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// A node sends packets to a peer, all at once.
    Burst {
        /// Who.
        node: u32,
        /// To whom.
        peer: u32,
        /// How many.
        packets: u32,
    },
    /// A node sends to a peer again and again.
    Flow {
        /// Who.
        node: u32,
        /// To whom.
        peer: u32,
        /// The time in between.
        every: Micros,
        /// How many packets.
        packets: u32,
    },
    /// A node sends to a group.
    Mcast {
        /// Who.
        node: u32,
        /// To which.
        group: u8,
        /// How many packets.
        packets: u32,
    },
    /// A node answers somebody who asked under many addresses that nobody has.
    Strangers {
        /// Who.
        node: u32,
        /// How many addresses.
        count: u32,
    },
    /// A node sends to all groups and to all others.
    OneToMany {
        /// Who.
        node: u32,
    },
    /// All send to all.
    AllToAll,
    /// A node wants to hear a group, for some time.
    Listen {
        /// Who.
        node: u32,
        /// Which.
        group: u8,
        /// How long.
        span: Micros,
    },
    /// The subnet manager dies and comes back.
    Restart {
        /// When it is back.
        span: Micros,
        /// Whether it has forgotten the memberships.
        forget: bool,
        /// Whether it hands out other LIDs.
        lids: bool,
    },
    /// Another subnet manager takes over.
    Handover {
        /// Whether it hands out other LIDs.
        lids: bool,
    },
    /// The administrator takes requests and answers nothing.
    Mute {
        /// How long.
        span: Micros,
    },
    /// Messages are lost.
    Loss {
        /// How many of 1000.
        permille: u32,
        /// How long.
        span: Micros,
    },
    /// Messages take longer, and overtake each other.
    Slow {
        /// By how much at most.
        jitter: Micros,
        /// How long.
        span: Micros,
    },
    /// The groups get other parameters, and all nodes are told to register again.
    Params {
        /// The Q_Key.
        qkey: u32,
        /// By how much the MLIDs move.
        mlid: u16,
    },
    /// A node is not in the partition for some time.
    PKey {
        /// Who.
        node: u32,
        /// How long.
        span: Micros,
    },
    /// A node's link is down for some time.
    Flap {
        /// Who.
        node: u32,
        /// How long.
        span: Micros,
        /// Whether the subnet manager notices, and forgets the node.
        noticed: bool,
    },
    /// A node's interface is set down and up.
    Restarted {
        /// Who.
        node: u32,
        /// How long.
        span: Micros,
    },
    /// A node is told to register again.
    Reregister {
        /// Who.
        node: u32,
    },
    /// A node gets another GID.
    Gid {
        /// Who.
        node: u32,
    },
    /// The stack doubts a peer, or hears of it.
    Hint {
        /// Who.
        node: u32,
        /// Which peer.
        peer: u32,
        /// A frame came.
        heard: bool,
    },
    /// The next set-up of a group fails on a node.
    Break {
        /// Who.
        node: u32,
    },
}

/// What does not change during a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Where all randomness of the run comes from.
    pub seed: u64,
    /// Nodes.
    pub nodes: u32,
    /// Distance of the LIDs.
    pub stride: u32,
    /// The network.
    pub net: Net,
    /// The administrator.
    pub sa: sa::Config,
    /// Requests of one port in flight.
    pub flow: usize,
}

/// Groups besides the broadcast group.
pub const GROUPS: u8 = 6;

/// A run.
#[derive(Clone, Debug)]
pub struct Script {
    /// What does not change.
    pub shape: Shape,
    /// What happens, and when.
    pub steps: Vec<(Micros, Op)>,
}

impl Script {
    /// The run of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6970_6f69_6221_0001);
        let nodes = rng.range(2, 7) as u32;
        let rough = rng.chance(600);
        let shape = Shape {
            seed,
            nodes,
            stride: rng.pick(&[1, 1, 1, 40, 400]),
            net: Net {
                loss: if rough {
                    rng.pick(&[0, 10, 50, 200])
                } else {
                    0
                },
                twice: if rough { rng.pick(&[0, 20, 100]) } else { 0 },
                delay: rng.range(5, 500),
                jitter: rng.pick(&[0, 100, 1000, 20_000, 150_000]),
            },
            sa: sa::Config {
                service: rng.pick(&[50, 500, 2_000, 10_000, 25_000]),
                limit: rng.pick(&[2, 10, 100, 1000]) as usize,
                busy: rng.chance(500),
                send_only: rng.chance(800),
            },
            flow: rng.pick(&[2, 16, 16, 1000]) as usize,
        };
        let length = rng.range(5, 60) * SECOND;
        let count = rng.range(4, 40);
        let mut steps: Vec<_> = (0..count)
            .map(|_| (rng.below(length), Op::random(&mut rng, nodes)))
            .collect();
        steps.sort_by_key(|&(at, _)| at);
        Self { shape, steps }
    }

    /// Whether messages arrive in about the order they were sent in. Otherwise a copy of a join may arrive after the
    /// membership has ended, which nobody but the administrator could notice.
    pub fn is_orderly(&self) -> bool {
        let slow = |&(_, op): &(Micros, Op)| matches!(op, Op::Slow { .. });
        self.shape.net.jitter <= 1000 && !self.steps.iter().any(slow)
    }
}

impl Op {
    fn random(rng: &mut Rng, nodes: u32) -> Self {
        let node = rng.below(u64::from(nodes)) as u32;
        let peer = rng.below(u64::from(nodes)) as u32;
        let group = rng.below(u64::from(GROUPS) + 1) as u8;
        // Mostly short, sometimes longer than every timer.
        let short = rng.range(1, 3_000) * 1000;
        let long = rng.range(1, 40) * SECOND;
        let span = if rng.chance(700) { short } else { long };
        match rng.below(25) {
            0 | 1 => Self::Burst {
                node,
                peer,
                packets: rng.pick(&[1, 3, 20, 300]),
            },
            2 | 3 => Self::Flow {
                node,
                peer,
                every: rng.range(1, 900) * 1000,
                packets: rng.range(5, 60) as u32,
            },
            4 | 5 => Self::Mcast {
                node,
                group,
                packets: rng.pick(&[1, 5, 300]),
            },
            6 => Self::OneToMany { node },
            7 => Self::AllToAll,
            8 | 9 => Self::Listen {
                node,
                group: group.max(1),
                span,
            },
            10 | 11 => Self::Restart {
                span,
                forget: rng.chance(800),
                lids: rng.chance(500),
            },
            12 => Self::Handover {
                lids: rng.chance(500),
            },
            13 => Self::Mute { span },
            14 => Self::Loss {
                permille: rng.pick(&[100, 500, 1000]),
                span,
            },
            15 => Self::Slow {
                jitter: rng.pick(&[50_000, 400_000, 2 * SECOND]),
                span,
            },
            16 => Self::Params {
                qkey: rng.below(4) as u32 + 0x0b1b,
                mlid: rng.below(3) as u16 * 16,
            },
            17 => Self::PKey { node, span },
            18 | 19 => Self::Flap {
                node,
                span,
                noticed: rng.chance(500),
            },
            20 => Self::Restarted { node, span },
            21 => Self::Reregister { node },
            22 => Self::Hint {
                node,
                peer,
                heard: rng.chance(500),
            },
            23 => Self::Strangers {
                node,
                count: rng.pick(&[1, 8, 30, 100]),
            },
            _ if rng.chance(500) => Self::Gid { node },
            _ => Self::Break { node },
        }
    }

    /// When what this begins ends.
    pub fn span(&self) -> Option<Micros> {
        match *self {
            Self::Listen { span, .. }
            | Self::Restart { span, .. }
            | Self::Mute { span }
            | Self::Loss { span, .. }
            | Self::Slow { span, .. }
            | Self::PKey { span, .. }
            | Self::Flap { span, .. }
            | Self::Restarted { span, .. } => Some(span),
            _ => None,
        }
    }
}

/// Makes a script smaller while `fails` says that it still breaks a rule.
pub fn shrink(script: &Script, fails: impl Fn(&Script) -> bool) -> Script {
    let mut best = script.clone();
    loop {
        let before = best.steps.len();
        let mut chunk = best.steps.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < best.steps.len() {
                let mut smaller = best.clone();
                let end = (at + chunk).min(smaller.steps.len());
                smaller.steps.drain(at..end);
                if fails(&smaller) {
                    best = smaller;
                } else {
                    at += chunk;
                }
            }
            if chunk == 1 {
                break;
            }
            chunk = chunk.div_ceil(2);
        }
        for calmer in calmer_shapes(best.shape) {
            let smaller = Script {
                shape: calmer,
                steps: best.steps.clone(),
            };
            if fails(&smaller) {
                best = smaller;
            }
        }
        if best.steps.len() == before {
            return best;
        }
    }
}

fn calmer_shapes(shape: Shape) -> Vec<Shape> {
    let calm = Net {
        loss: 0,
        twice: 0,
        ..shape.net
    };
    let steady = Net { jitter: 0, ..calm };
    vec![
        Shape { net: calm, ..shape },
        Shape {
            net: steady,
            ..shape
        },
        Shape { stride: 1, ..shape },
        Shape { flow: 16, ..shape },
    ]
}
