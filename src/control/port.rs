// SPDX-License-Identifier: GPL-2.0

//! Carrier and MTU of one interface.

use super::actions;
use crate::wire::mtu::{self, MtuError};

/// What changed. Each may be repeated without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The administrator set the interface up (`true`) or down.
    Admin(bool),
    /// The port is ACTIVE (`true`) or not.
    Active(bool),
    /// The interface's P_Key is in the port's table (`true`) or not. Always `true` on RoCE.
    PKey(bool),
    /// The broadcast group was joined; its InfiniBand MTU in octets.
    BroadcastJoined {
        /// 256 to 4096.
        ib_mtu: u32,
    },
    /// The broadcast group is not joined any more. A re-join that keeps the group in use is none of this.
    BroadcastLost,
    /// The largest InfiniBand MTU of the port, in octets, changed.
    Limit {
        /// 256 to 4096.
        ib_mtu: u32,
    },
    /// The mode: connected, with the largest MTU that connections allow, or datagram.
    Connected(Option<u32>),
}

/// What to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the interface's MTU (octets). If that is done later, [`Port::effective`] says what it is by then. It is
    /// no request of the administrator's: it must not come back as [`Port::request_mtu`].
    SetMtu(u32),
    /// Report the carrier as present.
    CarrierOn,
    /// Report the carrier as gone.
    CarrierOff,
}

/// The actions of one step.
pub type Actions = actions::Actions<Action, 2>;

/// Carrier (NET-29) and MTU (NET-17 to NET-20, CM-14, CM-15) of one interface.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    admin: bool,
    active: bool,
    pkey: bool,
    joined: bool,
    carrier: bool,
    /// The port's InfiniBand MTU.
    limit: u32,
    /// What the broadcast group allows, as an IP MTU.
    group: u32,
    /// What the administrator last asked for, unless that was all that group or port allowed: such an MTU
    /// follows them (NET-20).
    wanted: Option<u32>,
    /// In connected mode the largest MTU that connections allow.
    connected: Option<u32>,
    /// What the administrator asked for in connected mode, unless that was all that connections allow.
    wanted_connected: Option<u32>,
    /// What the interface was last told.
    current: u32,
}

impl Port {
    /// An interface that is down, on a port whose largest InfiniBand MTU is `ib_limit`. Until the broadcast
    /// group says otherwise, the MTU is the port's.
    pub const fn new(ib_limit: u32) -> Self {
        let all = mtu::ipoib_mtu(ib_limit);
        Self {
            admin: false,
            active: false,
            pkey: false,
            joined: false,
            carrier: false,
            limit: ib_limit,
            group: all,
            wanted: None,
            connected: None,
            wanted_connected: None,
            current: all,
        }
    }

    /// Takes one event.
    pub fn step(&mut self, event: Event) -> Actions {
        let mut out = Actions::new();
        match event {
            Event::Admin(up) => self.admin = up,
            Event::Active(active) => self.active = active,
            Event::PKey(present) => self.pkey = present,
            Event::BroadcastLost => self.joined = false,
            Event::BroadcastJoined { ib_mtu } => {
                self.joined = true;
                self.group = mtu::ipoib_mtu(ib_mtu);
            }
            Event::Limit { ib_mtu } => self.limit = ib_mtu,
            Event::Connected(most) => {
                self.connected = most;
                self.wanted_connected = None;
            }
        }
        let effective = self.effective();
        if effective != self.current {
            self.current = effective;
            out.push(Action::SetMtu(effective));
        }
        let carrier = self.may_join() && self.joined;
        if carrier != self.carrier {
            self.carrier = carrier;
            out.push(if carrier {
                Action::CarrierOn
            } else {
                Action::CarrierOff
            });
        }
        out
    }

    /// The administrator asks for an MTU. Answers with the one to put in force, which may be smaller, or with the
    /// bound that was broken (NET-18).
    pub fn request_mtu(&mut self, requested: u32) -> Result<u32, MtuError> {
        if let Some(most) = self.connected {
            mtu::check_connected(requested, most)?;
            self.wanted_connected = (requested < most).then_some(requested);
            self.current = self.effective();
            return Ok(self.current);
        }
        mtu::check(requested, self.limit)?;
        let all = requested == self.group || requested == mtu::ipoib_mtu(self.limit);
        self.wanted = if all { None } else { Some(requested) };
        self.current = self.effective();
        Ok(self.current)
    }

    /// The MTU in force: the least of what the administrator, the broadcast group and the port allow; in connected
    /// mode, of what the administrator and connections allow.
    pub fn effective(&self) -> u32 {
        if let Some(most) = self.connected {
            return self.wanted_connected.unwrap_or(most);
        }
        let allowed = self.group_limit();
        self.wanted.map_or(allowed, |wanted| wanted.min(allowed))
    }

    /// The largest datagram as an IP MTU, in either mode: what the broadcast group allows, if that is not more than
    /// the port can.
    pub fn group_limit(&self) -> u32 {
        self.group.min(mtu::ipoib_mtu(self.limit))
    }

    /// Whether groups may be joined: up, port ACTIVE, P_Key present (NET-26, MC-4).
    pub const fn may_join(&self) -> bool {
        self.admin && self.active && self.pkey
    }

    /// Whether the P_Key was there when that was last looked at.
    pub const fn has_pkey(&self) -> bool {
        self.pkey
    }

    /// Whether the mode is connected.
    pub const fn connected(&self) -> bool {
        self.connected.is_some()
    }

    /// Whether the carrier is on.
    pub const fn carrier(&self) -> bool {
        self.carrier
    }
}
