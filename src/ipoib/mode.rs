// SPDX-License-Identifier: GPL-2.0

//! Datagram and connected mode (facts CM-14 to CM-16).
//!
//! The mode decides how packets are sent, and so the MTU; connections of peers are served in both.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    child::Failure,
    interface::Interface,
    worker, //
};
use crate::{
    control::{
        child::{
            Mode,
            Refusal, //
        },
        port::Event, //
    },
    net::{
        device::Device,
        rtnl::Rtnl, //
    },
};

impl Interface {
    /// Sets the mode, and with it the MTU: both, or neither. RTNL is held throughout. May sleep.
    pub(super) fn set_mode(
        self: &Arc<Self>,
        dev: &Device,
        mode: Mode,
        rtnl: &Rtnl,
    ) -> Result<(), Failure> {
        let connected = mode == Mode::Connected;
        if connected == self.connected() {
            return Ok(());
        }
        self.note_mode(connected)?;
        if let Err(e) = self.tell_mtu(dev, rtnl) {
            // Somebody who depends on the MTU objects: it is the former one, and so is the mode.
            self.note_mode(!connected)?;
            return Err(e.into());
        }
        dev.update_features(rtnl);
        if !connected {
            // Connections that are up are closed.
            self.post(worker::CONNECTION);
        }
        Ok(())
    }

    /// Notes the mode, for a device whose MTU is set afterwards. May sleep.
    ///
    /// # Errors
    ///
    /// [`Refusal::Connected`].
    pub(super) fn note_mode(&self, connected: bool) -> Result<(), Refusal> {
        let mut control = self.control.lock();
        let most = match (connected, &control.hw) {
            (false, _) => None,
            (true, Some(hw)) => Some(hw.lane.as_ref().ok_or(Refusal::Connected)?.max_mtu()),
            (true, None) => return Err(Refusal::Connected),
        };
        let _ = control.port.step(Event::Connected(most));
        self.set_connected(connected);
        Ok(())
    }
}
