// SPDX-License-Identifier: GPL-2.0

//! The kind of link by which `ip link` makes, shows and deletes interfaces (facts NL-1 to NL-9).

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    child::{
        self,
        Failure,
        Wish, //
    },
    interface::Interface,
    queue, //
};
use crate::{
    base::params::Params,
    control::child::{
        self as rules,
        Mode,
        Refusal, //
    },
    net::{
        device::{
            Device,
            ALEN, //
        },
        extack::ExtAck,
        link::{
            self,
            Kind,
            LinkKind,
            NewLink,
            Request,
            Slot, //
        },
    },
    wire::pkey::PKey, //
};

/// Attribute numbers of the kind (NL-1), as user space has them.
const PKEY: u16 = 1;
const MODE: u16 = 2;
const UMCAST: u16 = 3;

/// Registers the kind that the parameter `link_kind` names. One that is taken costs nothing but
/// itself.
pub(crate) fn kind() -> impl PinInit<Kind<Interface>, Error> {
    let name = Params::get().map(|params| params.link_kind);
    Kind::new(name.unwrap_or(c"")).pin_chain(move |kind| {
        if let (Ok(name), false) = (name, kind.registered()) {
            if name.is_empty() {
                pr_info!("no kind of link, as asked for\n");
            } else {
                pr_warn!(
                    "link kind '{}' is taken, by ib_ipoib perhaps: 'ip link add type {}' is not for \
                     our interfaces, and 'ip -d link' does not show their attributes; all else \
                     works. Parameter link_kind gives another name\n",
                    name,
                    name
                );
            }
        }
        Ok(())
    })
}

fn refuse(extack: &ExtAck<'_>, refusal: Refusal) -> Error {
    extack.refuse(child::errno(refusal), refusal.reason())
}

/// The mode that is asked for.
fn mode(request: &Request<'_>, extack: &ExtAck<'_>) -> Result<Option<Mode>> {
    let mode = request.attr(MODE).map(Mode::from_number).transpose();
    mode.map_err(|refusal| refuse(extack, refusal))
}

impl LinkKind for Interface {
    const ATTRS: usize = UMCAST as usize;

    fn slot() -> &'static Slot {
        static SLOT: Slot = Slot::new();
        &SLOT
    }

    fn default_queues() -> u32 {
        Params::get().map_or(1, |params| queue::most(&params))
    }

    fn new_link(new: NewLink<'_, Self>, request: &Request<'_>, extack: &ExtAck<'_>) -> Result {
        if !request.names_lower() {
            return Err(refuse(extack, Refusal::NoLower));
        }
        let rtnl = request.rtnl();
        let Some((lower, parent)) = request
            .lower()
            .and_then(|dev| Some((dev, link::data_of::<Self>(dev, rtnl)?)))
        else {
            return Err(refuse(extack, Refusal::BadLower));
        };
        let mode = mode(request, extack)?;
        let pkey = match request.attr(PKEY) {
            None => parent.pkey(),
            Some(pkey) => {
                rules::acceptable(PKey(pkey)).map_err(|refusal| refuse(extack, refusal))?
            }
        };
        let address = request.address();
        if address.is_some_and(|address| address.len() != ALEN) {
            return Err(refuse(extack, Refusal::BadAddress));
        }
        let wish = Wish {
            pkey,
            mtu: request.mtu(),
            umcast: request.attr(UMCAST).is_some_and(|umcast| umcast > 0),
            connected: mode == Some(Mode::Connected),
        };
        let made = child::create_link(&parent.into(), lower, new, &wish, rtnl);
        let real = made.map_err(|failure| match failure {
            Failure::Refused(refusal) => refuse(extack, refusal),
            // With a message, users are not shown the errno.
            Failure::Failed(e) if e == ENOMEM => {
                extack.refuse(e, c"Cannot allocate memory: the child could not be set up")
            }
            Failure::Failed(e) => extack.refuse(
                e,
                c"the child could not be set up: the kernel log may say why",
            ),
        })?;
        // The address is the queue pair's and the port's, which nobody can choose (B56).
        if address.is_some_and(|address| address != real) {
            extack.say(c"address not taken over: it is the port's GID and the queue pair's number");
        }
        Ok(())
    }

    fn change_link(
        this: ArcBorrow<'_, Self>,
        dev: &Device,
        request: &Request<'_>,
        extack: &ExtAck<'_>,
    ) -> Result {
        if let Some(mode) = mode(request, extack)? {
            let this: Arc<Self> = this.into();
            this.set_mode(dev, mode, request.rtnl())
                .map_err(|failure| match failure {
                    Failure::Refused(refusal) => refuse(extack, refusal),
                    Failure::Failed(e) => {
                        extack.refuse(e, c"somebody objects to the MTU of that mode")
                    }
                })?;
        }
        if let Some(umcast) = request.attr(UMCAST) {
            Arc::<Self>::from(this).set_umcast(umcast > 0);
        }
        // No error, for scripts that repeat what the interface was made with (NL-3).
        let other = |pkey| !PKey(pkey).full().same_partition(this.pkey());
        if request.attr(PKEY).is_some_and(other) {
            extack.say(c"the P_Key of an interface cannot be changed");
        }
        Ok(())
    }

    fn show(this: ArcBorrow<'_, Self>, f: &mut dyn FnMut(u16, u16)) {
        f(PKEY, this.pkey().0);
        f(MODE, this.connected().into());
        f(UMCAST, this.umcast().into());
    }

    fn lower(this: ArcBorrow<'_, Self>) -> Option<ARef<Device>> {
        this.child().map(|child| child.lower.clone())
    }
}
