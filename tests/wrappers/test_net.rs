// SPDX-License-Identifier: GPL-2.0

//! Packets, receive buffers, RTNL and listeners, with a device that is never registered.

use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

use crate::{
    base::buf::{DmaBuffer, Segments},
    common::{add_page, clone_of, in_bottom_half, packet, Netdev, Tally, Token, Watch},
    net::{
        device::Device,
        notifier::{Change, Listener, Listening, Notifier},
        pages::Pages,
        rtnl::Rtnl,
        rxbuf::{Cast, FrameInfo, Layout, RxBuf, GRH_LEN, HARD_LEN},
        skb::{SkBuff, SkbList},
    },
};

/// Octets of the encapsulation header.
const ENCAP: usize = 4;

fn frame(payload: usize, cast: Cast) -> FrameInfo {
    FrameInfo {
        protocol: 0x0800,
        payload,
        cast,
        checked: false,
        queue: 1,
    }
}

/// Fills a buffer as the hardware would.
fn fill(buffer: &RxBuf, octet: u8) {
    for (at, len) in [Some(DmaBuffer::head(buffer)), buffer.tail()]
        .into_iter()
        .flatten()
    {
        // SAFETY: the buffer owns this memory, and nothing refers to it now.
        unsafe { at.write_bytes(octet, len) };
    }
}

/// Hears of changes and counts them.
struct Ear {
    heard: Atomic<u32>,
    _token: Token,
}

impl Listener for Ear {
    fn changed(&self, _dev: &Device, _change: Change) {
        self.heard.fetch_add(1, Relaxed);
    }
}

#[kunit_tests(ipoib_skb)]
mod skb_tests {
    use super::*;

    #[test]
    fn dropping_frees() -> Result {
        let skb = packet(0, 100)?;
        let watch = Watch::on(&skb);
        assert_eq!((skb.len(), watch.others()), (100, 1));
        drop(skb);
        assert_eq!(watch.others(), 0);
        Ok(())
    }

    #[test]
    fn giving_away_does_not_free() -> Result {
        let skb = packet(0, 10)?;
        let watch = Watch::on(&skb);
        let raw = core::ptr::NonNull::new(skb.into_raw()).ok_or(EINVAL)?;
        assert_eq!(watch.others(), 1);
        // SAFETY: it was given away just now.
        drop(unsafe { SkBuff::from_raw(raw) });
        assert_eq!(watch.others(), 0);
        Ok(())
    }

    #[test]
    fn pulls_no_more_than_there_is() -> Result {
        let mut skb = packet(0, 20)?;
        assert!(!skb.pull(21));
        assert_eq!(skb.len(), 20);
        assert!(skb.pull(20));
        assert_eq!(skb.len(), 0);
        assert!(skb.linear().is_none());
        assert!(!skb.pull(1));
        Ok(())
    }

    #[test]
    fn pull_stays_in_the_linear_part() -> Result {
        let mut skb = packet(0, 20)?;
        add_page(&mut skb, 1000)?;
        assert_eq!((skb.len(), skb.segments()), (1020, 2));
        assert!(!skb.pull(21));
        skb.linearize()?;
        assert_eq!(
            (skb.len(), skb.segments(), skb.head().len()),
            (1020, 1, 1020)
        );
        assert!(skb.pull(21));
        assert!(skb.head().iter().all(|octet| *octet == 0));
        Ok(())
    }

    #[test]
    fn push_makes_room_of_its_own() -> Result {
        // No room in front, and a clone that shares the data.
        let mut skb = packet(0, 8)?;
        let other = clone_of(&skb)?;
        skb.push(&[1, 2, 3])?;
        assert_eq!(skb.head().get(..4), Some(&[1, 2, 3, 0x5a][..]));
        assert_eq!((skb.len(), other.len()), (11, 8));
        assert!(other.head().iter().all(|octet| *octet == 0x5a));
        Ok(())
    }

    #[test]
    fn segments_cover_the_packet() -> Result {
        let mut skb = packet(0, 8)?;
        for len in [4096, 100, 1] {
            add_page(&mut skb, len)?;
        }
        assert_eq!(skb.nr_frags(), 3);
        let linear = skb.linear().map_or(0, |(_, len)| len);
        let rest: usize = (0..3)
            .filter_map(|i| skb.frag(i))
            .map(|(_, _, len)| len)
            .sum();
        assert_eq!(linear + rest, skb.len() as usize);
        assert!(skb.frag(3).is_none());
        assert!(skb.frag(usize::MAX).is_none());
        assert!(!skb.has_frag_list());
        Ok(())
    }

    #[test]
    fn lists_keep_the_order() -> Result {
        let mut list = SkbList::new();
        assert!(list.pop().is_none());
        for len in 1..=5 {
            list.push(packet(0, len)?);
        }
        assert_eq!(list.len(), 5);
        assert_eq!(list.pop().map(|skb| skb.len()), Some(1));
        list.push(packet(0, 6)?);
        let mut taken = list.take();
        assert_eq!((list.len(), taken.len()), (0, 5));
        assert!(list.pop().is_none());
        for len in 2..=6 {
            assert_eq!(taken.pop().map(|skb| skb.len()), Some(len));
        }
        assert!(taken.pop().is_none());
        // Used again after it was empty.
        list.push(packet(0, 9)?);
        assert_eq!(list.pop().map(|skb| skb.len()), Some(9));
        Ok(())
    }

    #[test]
    fn dropping_a_list_frees_all() -> Result {
        let mut list = SkbList::new();
        let mut watches = KVec::new();
        for _ in 0..3 {
            let skb = packet(0, 10)?;
            watches.push(Watch::on(&skb), GFP_KERNEL)?;
            list.push(skb);
        }
        let out = list.pop();
        drop(list);
        let others = |i: usize| watches.get(i).map(Watch::others);
        assert_eq!(
            (others(0), others(1), others(2)),
            (Some(1), Some(0), Some(0))
        );
        drop(out);
        assert_eq!(others(0), Some(0));
        Ok(())
    }
}

#[kunit_tests(ipoib_rxbuf)]
mod rxbuf_tests {
    use super::*;

    #[test]
    fn layouts_offer_what_is_asked_for() {
        for area in [44 + 72, 2048 + 44, 3000, 4096, 4092 + 44] {
            let layout = Layout::new(area);
            assert_eq!(layout.area(), area);
        }
    }

    #[test]
    fn both_parts_hold_the_whole_area() -> Result {
        let mut pages = Pages::new(1)?;
        for area in [2044 + 44, 4092 + 44] {
            let buffer = RxBuf::new(Layout::new(area), &mut pages).ok_or(ENOMEM)?;
            let (head, tail) = (DmaBuffer::head(&buffer).1, buffer.tail().map_or(0, |t| t.1));
            assert_eq!(head + tail, area);
            // Out of bounds, this is a report of KASAN's.
            fill(&buffer, 0xff);
        }
        Ok(())
    }

    #[test]
    fn a_buffer_that_needs_two_pages_is_refused() -> Result {
        let mut pages = Pages::new(1)?;
        assert!(RxBuf::new(Layout::new(384 + 4097), &mut pages).is_none());
        Ok(())
    }

    #[test]
    fn a_small_frame_gives_the_page_back() -> Result {
        let dev = Netdev::new()?;
        let mut pages = Pages::new(1)?;
        let buffer = RxBuf::new(Layout::new(4092 + 44), &mut pages).ok_or(ENOMEM)?;
        fill(&buffer, 0x33);
        let page = buffer.tail().map(|(start, _)| start);
        let info = frame(100, Cast::Host);
        let skb = in_bottom_half(|| buffer.into_skb(dev.device(), &info, &mut pages))
            .map_err(|_| ENOMEM)?;
        assert_eq!((skb.len(), skb.segments()), (100, 1));
        assert!(skb.head().iter().all(|octet| *octet == 0x33));
        // The page serves another buffer, and goes with that.
        let again = RxBuf::new(Layout::new(4092 + 44), &mut pages).ok_or(ENOMEM)?;
        assert_eq!(again.tail().map(|(start, _)| start), page);
        drop(again);
        in_bottom_half(|| drop(skb));
        Ok(())
    }

    #[test]
    fn a_full_frame_takes_the_page_along() -> Result {
        let dev = Netdev::new()?;
        // Room for the page and another: a full store would let the page go.
        let mut pages = Pages::new(2)?;
        let buffer = RxBuf::new(Layout::new(4092 + 44), &mut pages).ok_or(ENOMEM)?;
        fill(&buffer, 0x44);
        let info = frame(4092, Cast::Multicast);
        let page = buffer.tail().map(|(start, _)| start);
        let mut skb = in_bottom_half(|| buffer.into_skb(dev.device(), &info, &mut pages))
            .map_err(|_| ENOMEM)?;
        assert_eq!((skb.len(), skb.segments()), (4092, 2));
        // While the packet has it, nobody else gets it; afterwards the next buffer does.
        let other = RxBuf::new(Layout::new(4092 + 44), &mut pages).ok_or(ENOMEM)?;
        assert_ne!(other.tail().map(|(start, _)| start), page);
        skb.linearize()?;
        assert!(skb.head().iter().all(|octet| *octet == 0x44));
        in_bottom_half(|| drop(skb));
        let again = RxBuf::new(Layout::new(4092 + 44), &mut pages).ok_or(ENOMEM)?;
        assert_eq!(again.tail().map(|(start, _)| start), page);
        drop(other);
        drop(again);
        Ok(())
    }

    #[test]
    fn a_frame_beyond_the_area_leaves_the_buffer() -> Result {
        let dev = Netdev::new()?;
        let mut pages = Pages::new(1)?;
        for area in [2044 + GRH_LEN + ENCAP, 4092 + GRH_LEN + ENCAP] {
            let mut buffer = RxBuf::new(Layout::new(area), &mut pages).ok_or(ENOMEM)?;
            for payload in [area - GRH_LEN - ENCAP + 1, area, 0xffff_ffff] {
                let info = frame(payload, Cast::Broadcast);
                let taken = in_bottom_half(|| buffer.into_skb(dev.device(), &info, &mut pages));
                buffer = match taken {
                    Ok(_) => return Err(EINVAL),
                    Err(back) => back,
                };
                assert_eq!(buffer.layout().area(), area);
            }
        }
        Ok(())
    }

    #[test]
    fn an_empty_payload_is_a_packet() -> Result {
        let dev = Netdev::new()?;
        let mut pages = Pages::new(1)?;
        let buffer = RxBuf::new(Layout::new(2044 + 44), &mut pages).ok_or(ENOMEM)?;
        assert!(buffer.tail().is_none());
        let info = frame(0, Cast::Host);
        let mut skb = in_bottom_half(|| buffer.into_skb(dev.device(), &info, &mut pages))
            .map_err(|_| ENOMEM)?;
        assert_eq!(skb.len(), 0);
        // The link-layer header lies in front of it.
        skb.push(&[7; HARD_LEN])?;
        assert_eq!(skb.len() as usize, HARD_LEN);
        in_bottom_half(|| drop(skb));
        Ok(())
    }
}

#[kunit_tests(ipoib_rtnl)]
mod rtnl_tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let held = Rtnl::lock();
        assert!(Rtnl::try_lock().is_none());
        // The attempt has not given it back.
        assert!(Rtnl::try_lock().is_none());
        drop(held);
        let held = Rtnl::try_lock();
        assert!(held.is_some());
        drop(held);
    }

    #[test]
    fn a_borrowed_token_keeps_rtnl() {
        let held = Rtnl::lock();
        // SAFETY: held, until after its drop.
        drop(unsafe { Rtnl::assume_held() });
        assert!(Rtnl::try_lock().is_none());
        drop(held);
    }

    #[test]
    fn listeners_hear_until_they_go() -> Result {
        let tally = Tally::new()?;
        let ear = Arc::new(
            Ear {
                heard: Atomic::new(0),
                _token: Token::new(&tally, 0),
            },
            GFP_KERNEL,
        )?;
        assert!(Listening::new(ear.clone()).is_err());
        let notifier = KBox::pin_init(Notifier::new(), GFP_KERNEL)?;
        // There is one notifier for each module.
        assert!(KBox::pin_init(Notifier::new(), GFP_KERNEL).is_err());
        let first = Listening::new(ear.clone())?;
        let second = Listening::new(ear.clone())?;
        drop(first);
        assert_eq!(tally.dropped(), 0);
        drop(ear);
        assert_eq!(tally.dropped(), 0);
        // Listeners may be there still when the notifier goes.
        drop(notifier);
        assert_eq!(tally.dropped(), 0);
        drop(second);
        assert_eq!(tally.dropped(), 1);
        Ok(())
    }
}
