// SPDX-License-Identifier: GPL-2.0

//! Sending: datagrams, and messages over a connection.
//!
//! A ring of slots connects the two ends: [`SendQueue`] fills slots and posts, under the transmit
//! lock; [`SendCompletions`] empties them, in the poll. A slot owns all that its send needs: the
//! payload, its DMA mapping and the address handle.

use core::{
    mem::{forget, replace},
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::flags::GFP_KERNEL,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

use super::{
    ah::Ah,
    dma::{DmaDevice, GatherList, MapError, Mapping},
    qp::{first_unposted, Kept, Qp, QpReset},
    wc::{Wc, WrTag},
};
use crate::{
    base::{
        buf::Segments,
        rcu::RcuArc,
        ring::{ring, Consumer, Producer, Ring},
    },
    sys::bindings as sys,
    wire::qpn::Qpn,
};

pub(crate) use super::dma::MAX_SEGMENTS;

/// Requests that are posted with one call at most.
const CHAIN: usize = 16;
/// The same for the end of a connection, where packets seldom come several at a time for one peer.
const CHAIN_CONNECTED: usize = 1;

/// Why a payload was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// All slots are in use.
    Full,
    /// A post failed; the queue waits for [`SendQueue::recover`].
    Broken,
    /// The address handle is of another protection domain.
    WrongDomain,
    /// The payload has no bytes.
    Empty,
    /// The payload has more segments than a request may have: make it linear.
    TooManySegments,
    /// The queue pair cannot cut payloads, or not one with these headers.
    Lso,
    /// The payload could not be mapped for DMA.
    Mapping,
}

impl From<MapError> for SendError {
    fn from(e: MapError) -> Self {
        match e {
            MapError::Empty => Self::Empty,
            MapError::TooManySegments => Self::TooManySegments,
            MapError::Failed => Self::Mapping,
        }
    }
}

/// What the device does to a payload on its way out. Only what it offers may be asked for
/// ([`DeviceAttrs::ip_csum`](super::DeviceAttrs::ip_csum), [`Qp::lso`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    /// Fill in IP, TCP and UDP checksums.
    pub(crate) checksum: bool,
    /// Cut the payload into segments.
    pub(crate) lso: Option<Lso>,
}

/// How to cut a payload (large send offload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lso {
    /// Octets of headers at the start of the linear part, which each segment gets a copy of: 1 to
    /// [`LSO_HEADERS`].
    pub(crate) headers: usize,
    /// Octets behind the headers in each segment but the last.
    pub(crate) mss: u16,
}

/// The most octets of headers of an LSO request. The device's driver copies them into its own
/// request, where the tightest of those that offer LSO (mlx4) has room for 128 together with a word
/// of its own. It is also what an encapsulation header, IPv4 and TCP come to with all their options.
pub(crate) const LSO_HEADERS: usize = 124;

/// A request that is about to be posted. Drivers copy all of it when it is.
#[repr(C)]
struct Request {
    wr: sys::ib_ud_wr,
    list: GatherList,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            wr: sys::ib_ud_wr::default(),
            list: core::array::from_fn(|_| sys::ib_sge::default()),
        }
    }
}

/// What one send needs until it completes.
///
/// # Invariants
///
/// `mapping` is empty or maps `payload`. Slots live in a ring that the queue pair keeps until it is
/// destroyed, and the queue pair holds the device.
struct Slot<P: Segments> {
    payload: Option<P>,
    ah: Option<RcuArc<Ah>>,
    mapping: Mapping,
}

impl<P: Segments> Default for Slot<P> {
    fn default() -> Self {
        Self {
            payload: None,
            ah: None,
            mapping: Mapping::default(),
        }
    }
}

impl<P: Segments> Slot<P> {
    /// Empties the slot.
    ///
    /// # Safety
    ///
    /// The hardware must be done with the payload.
    #[inline]
    unsafe fn take(&mut self) -> Option<P> {
        // SAFETY: By the safety requirement; the device is valid as the type invariants say.
        unsafe { self.mapping.unmap() };
        self.ah = None;
        self.payload.take()
    }
}

impl<P: Segments> Drop for Slot<P> {
    fn drop(&mut self) {
        // SAFETY: A slot is dropped with its ring, that is, not before the queue pair is destroyed,
        // or if it was never linked to one.
        drop(unsafe { self.take() });
    }
}

impl<P: Segments + 'static> Kept for Ring<Slot<P>> {}

/// Room for requests that are posted together. They point to each other, so that there is no reference
/// to the whole.
///
/// # Invariants
///
/// `first` is the start of a `KVec` of `room` requests, with that capacity, that this value owns. The gather list of
/// each is its own.
struct Chain {
    first: NonNull<Request>,
    room: usize,
    capacity: usize,
}

// SAFETY: The requests belong to this value alone.
unsafe impl Send for Chain {}

impl Chain {
    /// Room for `room` requests, which is not 0. Sleeps.
    fn new(room: usize) -> Result<Self> {
        let mut requests = KVec::with_capacity(room, GFP_KERNEL)?;
        for _ in 0..room {
            requests
                .push_within_capacity(Request::default())
                .map_err(|_| ENOMEM)?;
        }
        let (first, room, capacity) = requests.into_raw_parts();
        // INVARIANT: The vector has been taken apart into these, and the lists are put in below.
        let chain = Self {
            first: NonNull::new(first).ok_or(EINVAL)?,
            room,
            capacity,
        };
        for i in 0..room {
            let request = chain.at(i);
            // SAFETY: One of the requests, which nobody else uses.
            unsafe { (*request).wr.wr.sg_list = (&raw mut (*request).list).cast() };
        }
        Ok(chain)
    }

    /// Address of request `i`, which must be below `room` to be used.
    #[inline]
    fn at(&self, i: usize) -> *mut Request {
        self.first.as_ptr().wrapping_add(i)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: By the type invariants these are the parts of a vector of ours; drivers do not refer
        // to requests after a post.
        drop(unsafe { KVec::from_raw_parts(self.first.as_ptr(), self.room, self.capacity) });
    }
}

/// Makes the two ends of a send queue of `slots` slots on `qp`; `slots` is a power of two and not
/// more than the send requests the queue pair was created for. Sleeps.
///
/// The completions of `qp`'s send queue must all be given to the [`SendCompletions`]. Make one send
/// queue per queue pair: the memory of each stays until the queue pair is destroyed.
pub(crate) fn send_queue<P: Segments + 'static>(
    qp: &Qp,
    slots: usize,
) -> Result<(SendQueue<P>, SendCompletions<P>)> {
    let dma = DmaDevice::new(qp.device())?;
    let (producer, consumer) = ring::<Slot<P>>(slots)?;
    qp.keep(producer.storage())?;
    let tag = WrTag::new();
    let unposted = Arc::new(Atomic::new(0), GFP_KERNEL)?;
    let chain = Chain::new(if qp.is_connected() {
        CHAIN_CONNECTED
    } else {
        CHAIN
    })?;
    Ok((
        // INVARIANT: The chain is empty and nothing was posted.
        SendQueue {
            ring: producer,
            chain,
            filled: 0,
            broken: false,
            unposted: unposted.clone(),
            posted: 0,
            max_sges: qp.send_sge().min(MAX_SEGMENTS),
            lkey: qp.pd().local_dma_lkey(),
            lso: qp.lso(),
            domain: qp.domain(),
            dma,
            tag,
            qp: qp.clone(),
        },
        SendCompletions {
            ring: consumer,
            unposted,
            tag,
            spurious: 0,
            _qp: qp.clone(),
        },
    ))
}

/// The sending end. Used under the transmit lock of its queue; nothing here sleeps.
///
/// # Invariants
///
/// - The ring is kept by `qp`. Slots between its head and tail hold what a request refers to that
///   was posted, or is in the chain, or failed to be posted.
/// - The first `filled` requests of `chain` are linked, refer to the newest slots of the ring, and are
///   not posted.
/// - `posted` is what the last post returned.
pub(crate) struct SendQueue<P: Segments + 'static> {
    ring: Producer<Slot<P>>,
    chain: Chain,
    filled: usize,
    broken: bool,
    /// How many of the newest slots hold requests that a broken queue has not posted for certain.
    unposted: Arc<Atomic<u64>>,
    posted: u64,
    max_sges: usize,
    lkey: u32,
    lso: bool,
    /// Of the queue pair, to compare with; null if it is the end of a connection, where no handle fits.
    domain: *mut sys::ib_pd,
    dma: DmaDevice,
    tag: WrTag,
    qp: Qp,
}

// SAFETY: The pointer to the domain is only compared; everything else is `Send`.
unsafe impl<P: Segments> Send for SendQueue<P> {}

impl<P: Segments> SendQueue<P> {
    /// Takes a payload for the queue pair `dst` behind `ah`, which checks `qkey` (host order; the
    /// device puts its own key in if the top bit is set), and has `offload` done to it.
    ///
    /// It is mapped and put on the chain, to be posted by [`SendQueue::flush`] or, if the chain is
    /// full, with the next call: never by this one, so the caller may account for it afterwards. A
    /// failure of the automatic post breaks the queue, see [`SendQueue::is_broken`]. On failure the
    /// payload comes back as it was.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        ah: RcuArc<Ah>,
        dst: Qpn,
        qkey: u32,
        payload: P,
        offload: Offload,
    ) -> Result<(), (SendError, P)> {
        if !ah.is_of(self.domain) {
            return Err((SendError::WrongDomain, payload));
        }
        self.chain(Some(ah), dst, qkey, payload, offload)
    }

    /// Takes a payload for the other end of the connection that the queue pair is an end of; else
    /// like [`SendQueue::push`].
    pub(crate) fn push_connected(&mut self, payload: P) -> Result<(), (SendError, P)> {
        if !self.qp.is_connected() {
            return Err((SendError::WrongDomain, payload));
        }
        self.chain(None, Qpn::new(0), 0, payload, Offload::default())
    }

    /// Puts one request on the chain. The handle, destination and key fit the queue pair's transport.
    #[inline(always)]
    fn chain(
        &mut self,
        ah: Option<RcuArc<Ah>>,
        dst: Qpn,
        qkey: u32,
        payload: P,
        offload: Offload,
    ) -> Result<(), (SendError, P)> {
        if self.filled == self.chain.room {
            self.make_room();
        }
        if self.broken {
            return Err((SendError::Broken, payload));
        }
        let (headers, mss) = match offload.lso {
            None => (0, 0),
            Some(lso) if self.lso && (1..=LSO_HEADERS).contains(&lso.headers) => {
                (lso.headers, lso.mss)
            }
            Some(_) => return Err((SendError::Lso, payload)),
        };
        let Some((seq, slot)) = self.ring.reserve() else {
            return Err((SendError::Full, payload));
        };
        let request = self.chain.at(self.filled);
        // SAFETY: `filled` is below the room here, since a flush empties a full chain or breaks the
        // queue, so this is a request of the chain, which nobody else uses.
        let list = unsafe { &mut (*request).list };
        // SAFETY: A free slot has an empty mapping. The payload moves into the slot and stays until
        // the mapping is undone; the queue pair keeps slot and device.
        let mapped = unsafe {
            slot.mapping
                .map(self.dma, self.lkey, self.max_sges, &payload, headers, list)
        };
        let num_sge = match mapped {
            // At most `MAX_SEGMENTS`.
            Ok(entries) => entries as i32,
            Err(e) => return Err((e.into(), payload)),
        };
        let (mut opcode, mut header) = (sys::ib_wr_opcode::IB_WR_SEND, null_mut());
        if headers != 0 {
            if let Some((start, _)) = payload.linear() {
                (opcode, header) = (sys::ib_wr_opcode::IB_WR_LSO, start.cast_mut().cast());
            }
        }
        let raw_ah = ah.as_ref().map_or(null_mut(), |ah| ah.as_ptr());
        // A free slot holds nothing that would have to be dropped.
        forget(slot.payload.replace(payload));
        forget(replace(&mut slot.ah, ah));
        self.ring.advance();

        // SAFETY: As above; the one before it is in the chain as well.
        unsafe {
            let wr = &raw mut (*request).wr;
            (*wr).wr.next = null_mut();
            (*wr).wr.__bindgen_anon_1.wr_id = self.tag.wr_id(seq);
            (*wr).wr.num_sge = num_sge;
            (*wr).wr.opcode = opcode;
            (*wr).wr.send_flags = send_flags(offload);
            (*wr).ah = raw_ah;
            // Copied by the device's driver when it is posted, and ours until the send completes.
            (*wr).header = header;
            (*wr).hlen = headers as i32;
            (*wr).mss = i32::from(mss);
            (*wr).remote_qpn = dst.get();
            (*wr).remote_qkey = qkey;
            if let Some(before) = self.filled.checked_sub(1) {
                (*self.chain.at(before)).wr.wr.next = &raw mut (*wr).wr;
            }
        }
        // INVARIANT: One more request is linked, and refers to the newest slot.
        self.filled = self.filled.wrapping_add(1);
        Ok(())
    }

    /// Posts a full chain.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        // A failure is remembered in `broken`.
        let _ = self.flush();
    }

    /// Posts what is on the chain, with one call of the device driver.
    ///
    /// Fails if the queue is or becomes broken (`EIO`, or what the driver said). Then all payloads
    /// stay in their slots, those too that the driver has not posted, until [`SendQueue::recover`] or
    /// the destruction of the queue pair.
    #[inline]
    pub(crate) fn flush(&mut self) -> Result {
        if self.broken {
            return Err(EIO);
        }
        if self.filled == 0 {
            return Ok(());
        }
        // The consumer must know of the slots before a completion can arrive.
        self.ring.publish();
        let first = self.chain.at(0);
        // SAFETY: By the type invariants the chain is linked and its slots are kept by the queue
        // pair; the address handles are of its domain, which `push` checked; the end of a connection
        // looks at nothing but the plain request. Slots are emptied only
        // by a completion, or by `recover`, which asks for a `QpReset` that covers this post.
        let (result, bad, posted) = unsafe { self.qp.post_send(&raw const (*first).wr.wr) };
        // INVARIANT: The chain is empty again.
        self.posted = posted;
        if result.is_err() {
            self.unposted.store(self.not_posted(bad), Relaxed);
            self.broken = true;
        }
        self.filled = 0;
        result
    }

    /// How many requests at the end of the chain were not posted, `bad` being the first of them; none
    /// if the driver did not say.
    #[cold]
    fn not_posted(&self, bad: *const sys::ib_send_wr) -> u64 {
        // SAFETY: The chain's first request, of which only the address is taken.
        let first = unsafe { &raw const (*self.chain.at(0)).wr.wr };
        first_unposted::<Request, _>(first, bad, self.filled)
            .map_or(0, |index| self.filled.saturating_sub(index) as u64)
    }

    /// Whether a post has failed since the last [`SendQueue::recover`].
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Segments that a payload may have.
    #[inline]
    pub(crate) fn max_segments(&self) -> usize {
        self.max_sges
    }

    /// Free slots; a completion may free more at any time.
    #[inline]
    pub(crate) fn free_slots(&mut self) -> usize {
        self.ring.free()
    }

    /// Slots that are free for certain; [`SendQueue::free_slots`] may find more.
    #[inline]
    pub(crate) fn free_at_least(&self) -> usize {
        self.ring.free_at_least()
    }

    /// Number of slots.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Sends that are on the chain and not yet posted.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.filled
    }

    /// Hands all unfinished payloads to `f` and makes the queue usable again.
    ///
    /// `done` must be the other end of this queue and `proof` of its queue pair (`EINVAL`). Fails
    /// with `EAGAIN` if a post raced with the reset: reset again. Completions that are still in the
    /// completion queue are recognised later and ignored.
    pub(crate) fn recover(
        &mut self,
        done: &mut SendCompletions<P>,
        proof: &QpReset<'_>,
        mut f: impl FnMut(P),
    ) -> Result {
        if !self.ring.feeds(&done.ring) {
            return Err(EINVAL);
        }
        proof.covers(&self.qp, self.posted)?;
        // INVARIANT: The requests on the chain are dropped with their slots below.
        self.filled = 0;
        self.ring.publish();
        while let Some((_, slot)) = done.ring.front() {
            // SAFETY: The request was never posted, or the hardware has forgotten it, as the proof
            // says.
            if let Some(payload) = unsafe { slot.take() } {
                f(payload);
            }
            done.ring.advance();
        }
        done.ring.publish();
        self.unposted.store(0, Relaxed);
        self.broken = false;
        Ok(())
    }
}

/// Every send is asked to complete, so that what it holds comes back soon.
#[inline]
fn send_flags(offload: Offload) -> i32 {
    let signalled = sys::ib_send_flags::IB_SEND_SIGNALED.0;
    if offload.checksum {
        signalled | sys::ib_send_flags::IB_SEND_IP_CSUM.0
    } else {
        signalled
    }
}

/// The completing end. Used in the poll; nothing here sleeps.
pub(crate) struct SendCompletions<P: Segments + 'static> {
    ring: Consumer<Slot<P>>,
    unposted: Arc<Atomic<u64>>,
    tag: WrTag,
    spurious: u64,
    _qp: Qp,
}

impl<P: Segments> SendCompletions<P> {
    /// Takes back the payload of the send that `wc` completes, and those of earlier sends without a
    /// completion of their own. `f` gets each, and whether it was sent.
    ///
    /// Fails with `EINVAL`, and counts, if `wc` is not a completion of a send that is under way: of
    /// a send from before a reset, or not of this queue.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc, mut f: impl FnMut(P, bool)) -> Result {
        let ahead = match self.tag.distance(wc, self.ring.head()) {
            Some(ahead) if self.ring.reaches(ahead) => ahead,
            _ => return Err(self.refused()),
        };
        let success = wc.status().is_success();
        self.ring.consume(ahead.wrapping_add(1), |slot, left| {
            // SAFETY: Sends complete in the order in which they were posted, so the hardware is done with all up to
            // this one.
            if let Some(payload) = unsafe { slot.take() } {
                // A send that fails always completes, asked for or not, so the earlier ones went well.
                f(payload, success || left != 0);
            }
        });
        self.ring.publish();
        Ok(())
    }

    /// Counts a completion that is none of a send under way.
    #[cold]
    #[inline(never)]
    fn refused(&mut self) -> Error {
        self.spurious = self.spurious.wrapping_add(1);
        EINVAL
    }

    /// What [`Wc::tag`] says of completions of this queue.
    pub(crate) fn tag(&self) -> u16 {
        self.tag.get()
    }

    /// Slots in use: sends posted and not completed, and those of a broken queue that were not posted.
    #[inline]
    pub(crate) fn used(&mut self) -> usize {
        self.ring.len()
    }

    /// Sends posted, as far as is known, and not completed.
    pub(crate) fn outstanding(&mut self) -> usize {
        self.ring
            .len()
            .saturating_sub(self.unposted.load(Relaxed) as usize)
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Completions that were refused.
    pub(crate) fn spurious(&self) -> u64 {
        self.spurious
    }
}
