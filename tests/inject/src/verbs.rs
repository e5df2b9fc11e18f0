// SPDX-License-Identifier: GPL-2.0

//! A UD queue pair with its buffers, on libibverbs.

use std::ffi::CStr;
use std::io::{Error, ErrorKind, Result};
use std::net::Ipv6Addr;
use std::ptr::{self, NonNull};

#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    unsafe_op_in_unsafe_fn
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

/// Octets in front of every received datagram: the global routing header.
pub const GRH_LEN: usize = 40;
/// The destination QPN of every multicast datagram.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// Octets of a buffer to send from: more than any port takes.
const SEND_SLOT: usize = 9216;
/// Octets of a buffer to receive into: header and the largest payload that any port takes.
const RECEIVE_SLOT: usize = 4096 + GRH_LEN;
/// How many sends may be out at a time.
pub const SENDS: usize = 32;
const RECEIVES: usize = 128;

fn non_null<T>(pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(Error::last_os_error)
}

fn checked(status: i32) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(Error::from_raw_os_error(code.abs())),
    }
}

/// A received datagram.
pub struct Received {
    /// The sender's queue pair number.
    pub src_qp: u32,
    /// The sender's GID, from the IPv6 header that RoCE v2 puts in place of the routing header.
    pub sgid: Ipv6Addr,
    /// Where it was sent to: our GID, or that of a group.
    pub dgid: Ipv6Addr,
    /// What follows the routing header.
    pub payload: Vec<u8>,
}

/// Where a datagram goes to.
pub struct Destination {
    ah: NonNull<sys::ibv_ah>,
    qpn: u32,
    qkey: u32,
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_ah`, destroyed here only; no send is out, `Endpoint::send` waits.
        unsafe { sys::ibv_destroy_ah(self.ah.as_ptr()) };
    }
}

/// A UD queue pair that can send and receive. Its parts go with the process: nothing needs them in order.
pub struct Endpoint {
    context: NonNull<sys::ibv_context>,
    pd: NonNull<sys::ibv_pd>,
    cq: NonNull<sys::ibv_cq>,
    qp: NonNull<sys::ibv_qp>,
    lkey: u32,
    memory: Box<[u8]>,
    gid: Ipv6Addr,
    gid_index: u8,
    port: u8,
}

fn open(name: &str) -> Result<NonNull<sys::ibv_context>> {
    let mut count = 0;
    // SAFETY: `count` is valid for writes; the list is freed below.
    let list = non_null(unsafe { sys::ibv_get_device_list(&mut count) })?;
    let mut found = Err(Error::new(
        ErrorKind::NotFound,
        format!("there is no device {name}"),
    ));
    for i in 0..count as usize {
        // SAFETY: the list has `count` entries, and its names are C strings that live as long.
        let (device, called) = unsafe {
            let device = *list.as_ptr().add(i);
            (device, CStr::from_ptr(sys::ibv_get_device_name(device)))
        };
        if called.to_bytes() == name.as_bytes() {
            // SAFETY: a device of the list that is not freed yet.
            found = non_null(unsafe { sys::ibv_open_device(device) });
        }
    }
    // SAFETY: the list came from `ibv_get_device_list`; an open device does not need it.
    unsafe { sys::ibv_free_device_list(list.as_ptr()) };
    found
}

impl Endpoint {
    /// Opens a device and brings a queue pair with the given Q_Key to where it can send and receive.
    pub fn new(device: &str, port: u8, gid_index: u8, qkey: u32) -> Result<Self> {
        let context = open(device)?;
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: an open device and a valid place for the result.
        checked(unsafe { sys::ibv_query_gid(context.as_ptr(), port, gid_index.into(), &mut gid) })?;
        // SAFETY: an open device.
        let pd = non_null(unsafe { sys::ibv_alloc_pd(context.as_ptr()) })?;
        let mut memory = vec![0; SEND_SLOT * SENDS + RECEIVE_SLOT * RECEIVES].into_boxed_slice();
        // SAFETY: the region is ours, and lives until the process ends or the endpoint is dropped.
        let mr = non_null(unsafe {
            sys::ibv_reg_mr(
                pd.as_ptr(),
                memory.as_mut_ptr().cast(),
                memory.len(),
                sys::IBV_ACCESS_LOCAL_WRITE as i32,
            )
        })?;
        // SAFETY: an open device; no context and no completion channel.
        let cq = non_null(unsafe {
            sys::ibv_create_cq(
                context.as_ptr(),
                (SENDS + RECEIVES) as i32,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        })?;
        let mut init = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: SENDS as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_UD,
            sq_sig_all: 1,
        };
        // SAFETY: valid PD, CQ and attributes.
        let qp = non_null(unsafe { sys::ibv_create_qp(pd.as_ptr(), &mut init) })?;
        // SAFETY: a union that was filled by its octets.
        let gid = Ipv6Addr::from(unsafe { gid.raw });
        // SAFETY: the region was just registered.
        let lkey = unsafe { (*mr.as_ptr()).lkey };
        let mut this = Self {
            context,
            pd,
            cq,
            qp,
            lkey,
            memory,
            gid,
            gid_index,
            port,
        };
        this.start(qkey)?;
        for slot in 0..RECEIVES {
            this.post_receive(slot)?;
        }
        Ok(this)
    }

    fn modify(&mut self, attr: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: a valid queue pair; `mask` names the fields that are set.
        checked(unsafe {
            sys::ibv_modify_qp(self.qp.as_ptr(), attr, (mask | sys::IBV_QP_STATE) as i32)
        })
    }

    fn start(&mut self, qkey: u32) -> Result<()> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::IBV_QPS_INIT;
        attr.port_num = self.port;
        attr.qkey = qkey;
        self.modify(
            &mut attr,
            sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY,
        )?;
        attr.qp_state = sys::IBV_QPS_RTR;
        self.modify(&mut attr, 0)?;
        attr.qp_state = sys::IBV_QPS_RTS;
        self.modify(&mut attr, sys::IBV_QP_SQ_PSN)
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> u32 {
        // SAFETY: a valid queue pair.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// The GID that our datagrams come from.
    pub fn gid(&self) -> Ipv6Addr {
        self.gid
    }

    /// Makes what is needed to send somewhere; resolves the address on the way.
    pub fn destination(&mut self, gid: Ipv6Addr, qpn: u32, qkey: u32) -> Result<Destination> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: sys::ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.grh.dgid = sys::ibv_gid { raw: gid.octets() };
        attr.grh.sgid_index = self.gid_index;
        attr.grh.hop_limit = 64;
        attr.is_global = 1;
        attr.port_num = self.port;
        // SAFETY: a valid PD and attributes.
        let ah = non_null(unsafe { sys::ibv_create_ah(self.pd.as_ptr(), &mut attr) })?;
        Ok(Destination { ah, qpn, qkey })
    }

    /// Receives what is sent to a group as well.
    pub fn join(&mut self, group: Ipv6Addr) -> Result<()> {
        let gid = sys::ibv_gid {
            raw: group.octets(),
        };
        // SAFETY: a valid queue pair and GID.
        checked(unsafe { sys::ibv_attach_mcast(self.qp.as_ptr(), &gid, 0xc000) })
    }

    /// The buffer of a slot; those below [`SENDS`] are for sending.
    fn slot(&mut self, slot: usize) -> &mut [u8] {
        if slot < SENDS {
            &mut self.memory[slot * SEND_SLOT..][..SEND_SLOT]
        } else {
            &mut self.memory[SENDS * SEND_SLOT + (slot - SENDS) * RECEIVE_SLOT..][..RECEIVE_SLOT]
        }
    }

    fn sge(&mut self, slot: usize, length: usize) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.slot(slot).as_ptr() as u64,
            length: length as u32,
            lkey: self.lkey,
        }
    }

    fn post_receive(&mut self, slot: usize) -> Result<()> {
        let mut sge = self.sge(SENDS + slot, RECEIVE_SLOT);
        let mut wr = sys::ibv_recv_wr {
            wr_id: (SENDS + slot) as u64,
            next: ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request is copied before the call returns; its memory is registered and stays.
        checked(unsafe {
            let post = (*self.context.as_ptr())
                .ops
                .post_recv
                .expect("no post_recv");
            post(self.qp.as_ptr(), &mut wr, &mut bad)
        })
    }

    fn post_send(&mut self, to: &Destination, slot: usize, frame: &[u8]) -> Result<()> {
        let buffer = self.slot(slot).get_mut(..frame.len()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "frame larger than any port's MTU")
        })?;
        buffer.copy_from_slice(frame);
        let mut sge = self.sge(slot, frame.len());
        // SAFETY: plain numbers and null pointers, for which zero is a value.
        let mut wr: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = slot as u64;
        wr.opcode = sys::IBV_WR_SEND;
        wr.send_flags = sys::IBV_SEND_SIGNALED;
        wr.sg_list = &mut sge;
        wr.num_sge = i32::from(!frame.is_empty());
        wr.wr.ud.ah = to.ah.as_ptr();
        wr.wr.ud.remote_qpn = to.qpn;
        wr.wr.ud.remote_qkey = to.qkey;
        let mut bad = ptr::null_mut();
        // SAFETY: the request is copied before the call returns; its memory is registered and stays.
        checked(unsafe {
            let post = (*self.context.as_ptr())
                .ops
                .post_send
                .expect("no post_send");
            post(self.qp.as_ptr(), &mut wr, &mut bad)
        })
    }

    /// Takes one completion, if there is one.
    fn poll(&mut self) -> Result<Option<sys::ibv_wc>> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut wc: sys::ibv_wc = unsafe { std::mem::zeroed() };
        // SAFETY: a valid CQ and room for one completion.
        let n = unsafe {
            let poll = (*self.context.as_ptr()).ops.poll_cq.expect("no poll_cq");
            poll(self.cq.as_ptr(), 1, &mut wc)
        };
        match n {
            0 => Ok(None),
            1 if wc.status == sys::IBV_WC_SUCCESS => Ok(Some(wc)),
            1 => {
                // SAFETY: returns a static C string for every status.
                let text = unsafe { CStr::from_ptr(sys::ibv_wc_status_str(wc.status)) };
                Err(Error::other(format!(
                    "completion: {}",
                    text.to_string_lossy()
                )))
            }
            _ => Err(Error::other("the completion queue cannot be polled")),
        }
    }

    fn take(&mut self, wc: &sys::ibv_wc) -> Result<Received> {
        let slot = wc.wr_id as usize;
        let area = &self.slot(slot)[..wc.byte_len as usize];
        let (grh, payload) = area
            .split_at_checked(GRH_LEN)
            .ok_or_else(|| Error::other("a datagram without a routing header"))?;
        let address = |at: usize| -> Ipv6Addr {
            let octets: [u8; 16] = grh[at..at + 16].try_into().expect("16 octets");
            octets.into()
        };
        let received = Received {
            src_qp: wc.src_qp,
            sgid: address(8),
            dgid: address(24),
            payload: payload.to_vec(),
        };
        self.post_receive(slot - SENDS)?;
        Ok(received)
    }

    /// Sends frames, at most [`SENDS`], waits until they have left, and returns what came in meanwhile.
    pub fn send(&mut self, to: &Destination, frames: &[Vec<u8>]) -> Result<Vec<Received>> {
        assert!(frames.len() <= SENDS);
        for (slot, frame) in frames.iter().enumerate() {
            self.post_send(to, slot, frame)?;
        }
        let mut out = frames.len();
        let mut received = Vec::new();
        while out > 0 {
            match self.poll()? {
                Some(wc) if (wc.wr_id as usize) < SENDS => out -= 1,
                Some(wc) => received.push(self.take(&wc)?),
                None => std::thread::yield_now(),
            }
        }
        Ok(received)
    }

    /// What has come in, if anything.
    pub fn receive(&mut self) -> Result<Option<Received>> {
        match self.poll()? {
            Some(wc) => Ok(Some(self.take(&wc)?)),
            None => Ok(None),
        }
    }
}
