// SPDX-License-Identifier: GPL-2.0

//! What of the verbs needs no device: registrations, addresses, completions, translations.

use kernel::{prelude::*, sync::Arc};

use crate::{
    base::netdev::HeldNetdev,
    rdma::{
        client::Slot, Addressee, AhAttr, Client, DeviceHandle, EventKind, Grh, QpState,
        Registration, SaClient, Wc,
    },
    sys::bindings,
    wire::gid::Gid,
};

/// A client that wants no device.
struct Nobody;

static SLOT: Slot = Slot::new();

impl Client for Nobody {
    type Data = ();

    const NAME: &'static CStr = c"wrappers";

    fn slot() -> &'static Slot {
        &SLOT
    }

    fn add(_device: &DeviceHandle) -> Result {
        Err(ENODEV)
    }

    fn remove(_device: &DeviceHandle, (): ()) {}

    fn addressed((): &(), _to: &Addressee) -> Option<HeldNetdev> {
        None
    }
}

#[kunit_tests(ipoib_rdma)]
mod rdma_tests {
    use super::*;

    #[test]
    fn a_client_registers_once_at_a_time() -> Result {
        for _ in 0..3 {
            let one = KBox::pin_init(Registration::<Nobody>::new(), GFP_KERNEL)?;
            assert!(KBox::pin_init(Registration::<Nobody>::new(), GFP_KERNEL).err() == Some(EBUSY));
            // The failure has not taken the slot from the one that has it.
            assert!(KBox::pin_init(Registration::<Nobody>::new(), GFP_KERNEL).is_err());
            drop(one);
        }
        Ok(())
    }

    #[test]
    fn sa_clients_come_and_go() -> Result {
        let one = SaClient::new()?;
        let other = one.clone();
        drop(one);
        let more = SaClient::new()?;
        drop(other);
        drop(more);
        Ok(())
    }

    #[test]
    fn a_blank_completion_completes_nothing() {
        let wcs: [Wc; 3] = Wc::blanks();
        for wc in &wcs {
            assert!(!wc.is_receive() && !wc.has_grh() && !wc.ip_csum_ok());
            assert_eq!(wc.byte_len(), 0);
            assert!(wc.network_hdr_type().is_none());
        }
        assert_eq!(Wc::blank().status().name(), "success");
    }

    #[test]
    fn unknown_states_and_events_are_told_apart() {
        assert_eq!(
            QpState::from(bindings::ib_qp_state::IB_QPS_SQE),
            QpState::SendQueueError
        );
        assert_eq!(QpState::from(bindings::ib_qp_state(77)), QpState::Unknown);
        assert_eq!(
            EventKind::from(bindings::ib_event_type::IB_EVENT_SM_CHANGE),
            EventKind::SmChange
        );
        assert_eq!(
            EventKind::from(bindings::ib_event_type(99)),
            EventKind::Other(99)
        );
    }

    #[test]
    fn addresses_say_where_they_lead() {
        let gid = Gid([
            0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
        ]);
        let ib = AhAttr::ib(1, 17, 3, 0).with_path_bits(1);
        assert_eq!(ib.dlid(), Some(17));
        let routed = ib.with_grh(Grh {
            dgid: gid,
            sgid_index: 0,
            hop_limit: 1,
            flow_label: 0,
            traffic_class: 0,
        });
        assert!(routed != ib);
        let group = AhAttr::roce_multicast(1, gid, 0, 1);
        assert!(group.dlid().is_none());
        assert_eq!(
            group,
            AhAttr::roce_unicast(1, gid, 0, [0x33, 0x33, 1, 2, 3, 4], 1)
        );
    }
}
