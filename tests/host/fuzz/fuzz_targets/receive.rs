// SPDX-License-Identifier: GPL-2.0

//! The checks on a received datagram, with a hostile frame and a hostile completion.

#![no_main]

use ipoib_host::wire::gid::Gid;
use ipoib_host::wire::grh::NetworkHeader;
use ipoib_host::wire::mgid;
use ipoib_host::wire::pkey::PKey;
use ipoib_host::wire::qpn::Qpn;
use ipoib_host::wire::rx::{classify, sender, Cast, Completion, Identity, RxDrop, HEAD_LEN};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((control, head)) = data.split_first_chunk::<8>() else {
        return;
    };
    let [len_high, len_low, buffer, kind, flags, qpn, slid, lid] = *control;
    let network = NetworkHeader::from_completion(flags & 1 != 0, (flags & 2 != 0).then_some(kind));
    let completion = Completion {
        byte_len: u32::from(u16::from_be_bytes([len_high, len_low])),
        buffer_len: u32::from(buffer) << 5,
        network,
        head,
        src_qp: Qpn::new(u32::from(qpn)),
        slid: u32::from(slid),
    };
    let me = Identity {
        gid: Gid([0x22; 16]),
        broadcast: mgid::broadcast(2, PKey::DEFAULT),
        lid: (flags & 4 != 0).then_some(u32::from(lid)),
    };
    let is_own_qpn = |qpn: Qpn| qpn.get() < 4;
    match classify(&completion, &me, is_own_qpn) {
        Ok(frame) => {
            let end = HEAD_LEN as u32 + frame.payload_len;
            let _ = sender(&frame, head);
            assert_eq!(end, completion.byte_len);
            assert!(end <= completion.buffer_len && frame.payload_len > 0);
            assert!(head.len() >= 44 && frame.ethertype.is_ethertype());
            let own = is_own_qpn(completion.src_qp);
            assert!(!own || frame.source != Some(me.gid));
            if frame.cast != Cast::Host {
                assert_eq!(head[24], 0xff);
            }
        }
        Err(RxDrop::TooShort) => assert!(completion.byte_len < 44 || head.len() < 44),
        Err(RxDrop::TooLong) => assert!(completion.byte_len > completion.buffer_len),
        Err(RxDrop::Empty) => assert_eq!(completion.byte_len, 44),
        Err(RxDrop::OwnEcho) => assert!(is_own_qpn(completion.src_qp)),
        Err(RxDrop::WrongGid) => assert!(network != NetworkHeader::None),
        Err(RxDrop::BadGrh | RxDrop::BadEtherType) => {}
        Err(other) => panic!("{} is no verdict on a frame", other.name()),
    }
});
