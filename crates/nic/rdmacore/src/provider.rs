//! An opened device: its objects in tables by number, each destroyed before what it stands on.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

use verbs::*;

use crate::abi::*;
use crate::convert;
use crate::device::{Choice, choose, list_devices};
use crate::library::{Functions, errno};
use crate::open::{OpenError, open_context};
use crate::post::{self, RecvQueue, Scratch};

mod close;
mod settings;

/// Completions taken from the driver in one call.
const POLL_MAX: usize = 32;
/// Events taken from a descriptor in one round, so that a flood cannot hold the caller.
const EVENTS_MAX: usize = 64;
/// Inline bytes asked for; a device that offers less says so when the QP is made.
const INLINE_MAX: u32 = 64;
/// Page size to which the start of a registration must be aligned: addresses run from 0, and the device maps whole
/// pages.
const PAGE: u64 = 4096;

/// Which device to open.
#[derive(Debug, Clone)]
pub struct OpenConfig {
    /// Its name; `None` takes the one that carries `address`.
    pub name: Option<String>,
    /// Address of this host: the RoCEv2 GID to be used.
    pub address: IpAddr,
}

struct QpEntry {
    qp: *mut ibv_qp,
    status: QpStatus,
}

struct MrEntry {
    mr: *mut ibv_mr,
    /// Keeps the memory mapped while the device may touch it.
    _region: Region,
}

/// A device opened through libibverbs.
pub struct RdmaCore {
    lib: Functions,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    choice: Choice,
    attr: DeviceAttr,
    marks: PathMarks,
    cqs: BTreeMap<CqId, *mut ibv_cq>,
    srqs: BTreeMap<SrqId, *mut ibv_srq>,
    qps: BTreeMap<Qpn, QpEntry>,
    mrs: BTreeMap<MrId, MrEntry>,
    ahs: BTreeMap<AhId, *mut ibv_ah>,
    /// Beside the own domain.
    pds: BTreeMap<PdId, *mut ibv_pd>,
    /// CQs whose wake-up was taken from the channel and not yet told.
    due: VecDeque<CqId>,
    next_id: u32,
    scratch: Scratch,
}

// SAFETY: libibverbs objects may be used from any thread; the raw pointers are owned by this value alone, and
// `&mut self` keeps calls from running at the same time.
unsafe impl Send for RdmaCore {}

impl std::fmt::Debug for RdmaCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaCore").field("choice", &self.choice).field("attr", &self.attr).finish_non_exhaustive()
    }
}

fn os(call: &'static str) -> VerbsError {
    VerbsError::Os { call, errno: errno() }
}

fn check(call: &'static str, code: c_int) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::Os { call, errno: if code > 0 { code } else { errno() } }) }
}

/// A device that was chosen. Each of its contexts is one more `ibv_open_device`.
#[derive(Debug, Clone)]
pub struct RdmaDevice {
    choice: Choice,
}

impl RdmaDevice {
    /// Chooses the device and GID for the address. Nothing is opened.
    pub fn choose(config: &OpenConfig) -> Result<Self, OpenError> {
        Ok(Self::of(choose(&list_devices(), config.name.as_deref(), config.address)?))
    }

    /// The device of a choice that was made before.
    pub fn of(choice: Choice) -> Self {
        Self { choice }
    }
}

impl Device for RdmaDevice {
    type Context = RdmaCore;
    type Error = OpenError;

    fn open(&mut self) -> Result<RdmaCore, OpenError> {
        RdmaCore::open_chosen(self.choice.clone())
    }
}

impl RdmaCore {
    /// Loads libibverbs, chooses the device and GID for the address, and opens it.
    pub fn open(config: &OpenConfig) -> Result<Self, OpenError> {
        Self::open_chosen(choose(&list_devices(), config.name.as_deref(), config.address)?)
    }

    /// Loads libibverbs and opens a device that was chosen before. It is for callers that open it many times, because
    /// looking for it reads every entry of every GID table.
    pub fn open_chosen(choice: Choice) -> Result<Self, OpenError> {
        let lib = Functions::load()?;
        let context = open_context(&lib, &choice.device)?;
        // From here on `Drop` closes what was opened: pointers that are still null are skipped.
        let mut this = Self {
            marks: PathMarks::default(),
            attr: DeviceAttr {
                name: choice.device.clone(),
                gid: choice.gid.gid,
                udp_port: ROCE_UDP_PORT,
                mtu: PathMtu::Mtu1024,
                max_msg_bytes: 0,
                max_inline_bytes: INLINE_MAX,
                max_qp_wr: 0,
                max_srq_wr: 0,
                max_cqe: 0,
                max_sge: 0,
                max_rd_atomic: 0,
                max_qp: 0,
                max_mr: 0,
                rx_budget_bytes: u32::MAX,
                capabilities: verbs::Capabilities::ROCE,
            },
            lib,
            context,
            pd: null_mut(),
            channel: null_mut(),
            choice,
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            mrs: BTreeMap::new(),
            ahs: BTreeMap::new(),
            pds: BTreeMap::new(),
            due: VecDeque::new(),
            next_id: 1,
            scratch: Scratch::default(),
        };
        this.query().map_err(|(call, errno)| OpenError::Os { device: this.attr.name.clone(), call, errno })?;
        this.set_up().map_err(|(call, errno)| OpenError::Os { device: this.attr.name.clone(), call, errno })?;
        Ok(this)
    }

    /// Which device, port and GID were taken, and why.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    fn query(&mut self) -> Result<(), (&'static str, i32)> {
        // SAFETY: the structure is plain data for which all-zero is a value.
        let mut device: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the library writes one `ibv_device_attr`, whose size is asserted.
        let code = unsafe { (self.lib.ibv_query_device)(self.context, &mut device) };
        if code != 0 {
            return Err(("ibv_query_device", code));
        }
        let mut port = ibv_port_attr::default();
        // SAFETY: as above; the library writes at most one `ibv_port_attr`.
        let code = unsafe { (self.lib.ibv_query_port)(self.context, self.choice.port, &mut port) };
        if code != 0 {
            return Err(("ibv_query_port", code));
        }
        if port.state != PORT_ACTIVE {
            return Err(("ibv_query_port (the port is not active)", libc::ENETDOWN));
        }
        let count = |n: c_int| u32::try_from(n).unwrap_or(0);
        let depth = count(device.max_qp_rd_atom).min(count(device.max_qp_init_rd_atom));
        self.attr.mtu = convert::mtu_from_number(port.active_mtu).unwrap_or(PathMtu::Mtu1024);
        self.attr.max_msg_bytes = port.max_msg_sz;
        self.attr.max_qp_wr = count(device.max_qp_wr);
        self.attr.max_srq_wr = count(device.max_srq_wr);
        self.attr.max_cqe = count(device.max_cqe);
        self.attr.max_sge = count(device.max_sge);
        self.attr.max_rd_atomic = u8::try_from(depth.min(count(device.max_res_rd_atom))).unwrap_or(u8::MAX);
        self.attr.max_qp = count(device.max_qp);
        self.attr.max_mr = count(device.max_mr);
        Ok(())
    }

    fn set_up(&mut self) -> Result<(), (&'static str, i32)> {
        // SAFETY: the context is open.
        self.pd = unsafe { (self.lib.ibv_alloc_pd)(self.context) };
        if self.pd.is_null() {
            return Err(("ibv_alloc_pd", errno()));
        }
        // SAFETY: the context is open.
        self.channel = unsafe { (self.lib.ibv_create_comp_channel)(self.context) };
        if self.channel.is_null() {
            return Err(("ibv_create_comp_channel", errno()));
        }
        for fd in self.fds() {
            // SAFETY: the descriptors belong to the open context and its channel; fcntl touches flags alone.
            let code = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
            if code != 0 {
                return Err(("fcntl(O_NONBLOCK)", errno()));
            }
        }
        Ok(())
    }

    fn fds(&self) -> [RawFd; 2] {
        // SAFETY: context and channel are open; both fields are plain data that do not change.
        unsafe { [(*self.channel).fd, (*self.context).async_fd] }
    }

    fn fresh(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    fn cq(&self, id: CqId) -> Result<*mut ibv_cq, VerbsError> {
        self.cqs.get(&id).copied().ok_or(VerbsError::NoSuch("CQ"))
    }

    fn srq(&self, id: SrqId) -> Result<*mut ibv_srq, VerbsError> {
        self.srqs.get(&id).copied().ok_or(VerbsError::NoSuch("SRQ"))
    }

    fn qp(&self, qpn: Qpn) -> Result<&QpEntry, VerbsError> {
        self.qps.get(&qpn).ok_or(VerbsError::NoSuch("QP"))
    }

    /// Takes what the completion channel holds; each event is acknowledged at once, so that CQs can be destroyed.
    fn drain_channel(&mut self) -> bool {
        let mut any = false;
        for _ in 0..EVENTS_MAX {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is open and non-blocking; both out-pointers are valid.
            if unsafe { (self.lib.ibv_get_cq_event)(self.channel, &mut cq, &mut context) } != 0 {
                break;
            }
            // SAFETY: the library returned a live CQ, which cannot be destroyed before this acknowledgement.
            unsafe { (self.lib.ibv_ack_cq_events)(cq, 1) };
            let id = self.cqs.iter().find(|(_, known)| **known == cq).map(|(id, _)| *id);
            self.due.extend(id.filter(|id| !self.due.contains(id)));
            any = true;
        }
        any
    }

    fn event(&self, event: &ibv_async_event) -> Option<AsyncEvent> {
        let qpn = || self.qps.iter().find(|(_, e)| e.qp.cast() == event.element).map(|(&q, _)| q);
        let srq = || self.srqs.iter().find(|(_, p)| p.cast() == event.element).map(|(&s, _)| s);
        let cq = || self.cqs.iter().find(|(_, p)| p.cast() == event.element).map(|(&c, _)| c);
        match event.event_type {
            0 => cq().map(AsyncEvent::CqError),
            1 => qpn().map(AsyncEvent::QpFatal),
            2 => qpn().map(AsyncEvent::QpRequestError),
            3 => qpn().map(AsyncEvent::QpAccessError),
            5 => qpn().map(AsyncEvent::SqDrained),
            4 => qpn().map(AsyncEvent::CommEstablished),
            8 => Some(AsyncEvent::DeviceFatal),
            9 => Some(AsyncEvent::PortUp),
            10 => Some(AsyncEvent::PortDown),
            15 => srq().map(AsyncEvent::SrqLimit),
            16 => qpn().map(AsyncEvent::LastWqeReached),
            _ => None,
        }
    }
}

impl Provider for RdmaCore {
    fn device(&self) -> &DeviceAttr {
        &self.attr
    }

    fn path_marks(&self) -> PathMarks {
        self.marks
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        let depth = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open.
        let cq = unsafe { (self.lib.ibv_create_cq)(self.context, depth, null_mut(), self.channel, 0) };
        if cq.is_null() {
            return Err(os("ibv_create_cq"));
        }
        let id = CqId(self.fresh());
        self.cqs.insert(id, cq);
        Ok(id)
    }

    fn destroy_cq(&mut self, id: CqId) -> Result<(), VerbsError> {
        let cq = self.cq(id)?;
        self.drain_channel();
        // SAFETY: the CQ is alive; all its events were acknowledged, so the call does not wait.
        check("ibv_destroy_cq", unsafe { (self.lib.ibv_destroy_cq)(cq) })?;
        self.cqs.remove(&id);
        self.due.retain(|due| *due != id);
        Ok(())
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        let attr = ibv_srq_attr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: init.limit };
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the PD is alive, the attributes are a valid structure.
        let srq = unsafe { (self.lib.ibv_create_srq)(self.pd, &mut attr) };
        if srq.is_null() {
            return Err(os("ibv_create_srq"));
        }
        let id = SrqId(self.fresh());
        self.srqs.insert(id, srq);
        Ok(id)
    }

    fn destroy_srq(&mut self, id: SrqId) -> Result<(), VerbsError> {
        let srq = self.srq(id)?;
        // SAFETY: the SRQ is alive.
        check("ibv_destroy_srq", unsafe { (self.lib.ibv_destroy_srq)(srq) })?;
        self.srqs.remove(&id);
        Ok(())
    }

    fn arm_srq(&mut self, id: SrqId, limit: u32) -> Result<(), VerbsError> {
        const IBV_SRQ_LIMIT: c_int = 1 << 1;
        let srq = self.srq(id)?;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the SRQ is alive; the attributes live during the call, which reads only what the mask names.
        check("ibv_modify_srq", unsafe { (self.lib.ibv_modify_srq)(srq, &mut attr, IBV_SRQ_LIMIT) })
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        let unsupported = VerbsError::Unsupported { device: self.attr.name.clone(), what: "this QP type" };
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq(init.send_cq)?,
            recv_cq: self.cq(init.recv_cq)?,
            srq: match init.srq {
                Some(srq) => self.srq(srq)?,
                None => null_mut(),
            },
            cap: ibv_qp_cap {
                max_send_wr: init.max_send_wr,
                max_recv_wr: if init.srq.is_some() { 0 } else { init.max_recv_wr },
                max_send_sge: init.max_send_sge,
                max_recv_sge: init.max_recv_sge,
                max_inline_data: init.max_inline_bytes,
            },
            qp_type: convert::qp_type_number(init.qp_type).ok_or(unsupported)?,
            sq_sig_all: c_int::from(init.sq_sig_all),
        };
        // SAFETY: PD, CQs and SRQ are alive, the attributes are a valid structure.
        let qp = unsafe { (self.lib.ibv_create_qp)(self.pd(init.pd)?, &mut attr) };
        if qp.is_null() {
            return Err(os("ibv_create_qp"));
        }
        // SAFETY: the QP was just made; `qp_num` does not change.
        let qpn = Qpn(unsafe { (*qp).qp_num });
        let status = QpStatus {
            qp_type: init.qp_type,
            state: QpState::Reset,
            sq_outstanding: 0,
            sq_psn: Psn::default(),
            rq_psn: Psn::default(),
            dest_qpn: None,
        };
        self.qps.insert(qpn, QpEntry { qp, status });
        Ok(qpn)
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        // Coming from RTR a QP is set up for RTS; coming from elsewhere it only goes on, and takes no attributes.
        let goes_on = matches!(to, QpModify::Rts(_))
            && matches!(self.query_qp(qpn)?.state, QpState::Rts | QpState::Sqd | QpState::Sqe);
        let entry = self.qps.get_mut(&qpn).ok_or(VerbsError::NoSuch("QP"))?;
        let (mut attr, mut mask) = convert::qp_transition(to, entry.status.qp_type, &self.choice)?;
        if goes_on {
            mask = qp_attr_mask::STATE;
        }
        // SAFETY: the QP is alive, the attributes are a valid structure.
        check("ibv_modify_qp", unsafe { (self.lib.ibv_modify_qp)(entry.qp, &mut attr, mask) })?;
        if let QpModify::Rtr(rtr) = to {
            entry.status.dest_qpn = Some(rtr.dest_qpn);
        }
        Ok(())
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        let entry = self.qp(qpn)?;
        let mut attr = ibv_qp_attr::default();
        // SAFETY: the structure is plain data for which all-zero is a value.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let mask = qp_attr_mask::STATE | qp_attr_mask::SQ_PSN | qp_attr_mask::RQ_PSN;
        // SAFETY: the QP is alive, both structures are valid.
        check("ibv_query_qp", unsafe { (self.lib.ibv_query_qp)(entry.qp, &mut attr, mask, &mut init) })?;
        Ok(QpStatus {
            state: convert::state_from_number(attr.qp_state),
            sq_psn: Psn::new(attr.sq_psn),
            rq_psn: Psn::new(attr.rq_psn),
            ..entry.status.clone()
        })
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let qp = self.qp(qpn)?.qp;
        // SAFETY: the QP is alive; its asynchronous events are acknowledged as they are taken.
        check("ibv_destroy_qp", unsafe { (self.lib.ibv_destroy_qp)(qp) })?;
        self.qps.remove(&qpn);
        Ok(())
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        let mut attr = convert::ah_attr(av, &self.choice)?;
        // SAFETY: the PD is alive, the attributes are a valid structure.
        let ah = unsafe { (self.lib.ibv_create_ah)(self.pd, &mut attr) };
        if ah.is_null() {
            return Err(os("ibv_create_ah"));
        }
        let id = AhId(self.fresh());
        self.ahs.insert(id, ah);
        Ok(id)
    }

    fn destroy_ah(&mut self, id: AhId) -> Result<(), VerbsError> {
        let ah = *self.ahs.get(&id).ok_or(VerbsError::NoSuch("address handle"))?;
        // SAFETY: the address handle is alive.
        check("ibv_destroy_ah", unsafe { (self.lib.ibv_destroy_ah)(ah) })?;
        self.ahs.remove(&id);
        Ok(())
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        // SAFETY: the context is open.
        let pd = unsafe { (self.lib.ibv_alloc_pd)(self.context) };
        if pd.is_null() {
            return Err(os("ibv_alloc_pd"));
        }
        let id = PdId(self.fresh());
        self.pds.insert(id, pd);
        Ok(id)
    }

    fn dealloc_pd(&mut self, id: PdId) -> Result<(), VerbsError> {
        let pd = *self.pds.get(&id).ok_or(VerbsError::NoSuch("protection domain"))?;
        // SAFETY: the PD is alive.
        check("ibv_dealloc_pd", unsafe { (self.lib.ibv_dealloc_pd)(pd) })?;
        self.pds.remove(&id);
        Ok(())
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        self.register(&MrInit::new(region, offset, len, access))
    }

    fn register(&mut self, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        let MrInit { pd, region, offset, len, iova, access } = *init;
        let size = region.len();
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(VerbsError::OutOfRange {
                what: "end of the registration",
                value: offset.saturating_add(len),
                min: 1,
                max: size,
            });
        }
        if !iova.wrapping_sub(offset).is_multiple_of(PAGE) {
            return Err(VerbsError::OutOfRange {
                what: "distance of the registration's address and offset modulo the page size",
                value: iova.wrapping_sub(offset) % PAGE,
                min: 0,
                max: 0,
            });
        }
        let start = usize::try_from(offset).map_err(|_| VerbsError::NoSuch("memory"))?;
        let bytes = usize::try_from(len).map_err(|_| VerbsError::NoSuch("memory"))?;
        let address = region.as_ptr().wrapping_add(start);
        // SAFETY: the range lies in the region (checked above), which stays mapped while the entry holds it; the
        // device's accesses to it are those of a hostile peer to shared memory, which `Region` allows for.
        let mr = unsafe { (self.lib.ibv_reg_mr_iova2)(self.pd(pd)?, address.cast(), bytes, iova, access.bits()) };
        if mr.is_null() {
            return Err(os("ibv_reg_mr_iova2"));
        }
        let id = MrId(self.fresh());
        // SAFETY: the MR was just made; its keys do not change.
        let (lkey, rkey) = unsafe { (Lkey((*mr).lkey), Rkey((*mr).rkey)) };
        self.mrs.insert(id, MrEntry { mr, _region: region.clone() });
        Ok(Mr { id, lkey, rkey, len })
    }

    fn dereg_mr(&mut self, id: MrId) -> Result<(), VerbsError> {
        let mr = self.mrs.get(&id).ok_or(VerbsError::NoSuch("MR"))?.mr;
        // SAFETY: the MR is alive.
        check("ibv_dereg_mr", unsafe { (self.lib.ibv_dereg_mr)(mr) })?;
        self.mrs.remove(&id);
        Ok(())
    }

    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let entry = self.qp(qpn).map_err(|cause| PostError { index: 0, cause })?;
        let (qp, qp_type) = (entry.qp, entry.status.qp_type);
        // Drivers differ in what they make of an operation that the service does not have, and they take datagrams that
        // are too long, and drop them with a successful completion.
        let refused = post::first_refused(wrs, qp_type, self.attr.mtu, &self.attr.name);
        let ahs = &self.ahs;
        let good = refused.as_ref().map_or(wrs, |refused| wrs.get(..refused.index).unwrap_or(&[]));
        post::post_send(self.context, qp, good, &mut self.scratch, |dest| ahs.get(&dest.ah).copied())?;
        refused.map_or(Ok(()), Err)
    }

    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let qp = self.qp(qpn).map_err(|cause| PostError { index: 0, cause })?.qp;
        post::post_recv(self.context, RecvQueue::Qp(qp), wrs, &mut self.scratch)
    }

    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let srq = self.srq(srq).map_err(|cause| PostError { index: 0, cause })?;
        post::post_recv(self.context, RecvQueue::Srq(srq), wrs, &mut self.scratch)
    }

    fn poll_cq(&mut self, id: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        let cq = self.cq(id)?;
        // SAFETY: the context is open; `ops` is plain data.
        let poll = unsafe { (*self.context).ops.poll_cq }.ok_or(VerbsError::NoSuch("poll_cq"))?;
        let mut taken = 0;
        let mut wcs = [ibv_wc::default(); POLL_MAX];
        while taken < max {
            let want = (max - taken).min(POLL_MAX);
            // SAFETY: the CQ is alive; the array has room for `want` <= POLL_MAX completions.
            let n = unsafe { poll(cq, c_int::try_from(want).unwrap_or(1), wcs.as_mut_ptr()) };
            let n = usize::try_from(n).map_err(|_| VerbsError::Os { call: "ibv_poll_cq", errno: -n })?.min(want);
            out.extend(wcs[..n].iter().map(convert::completion));
            taken += n;
            if n < want {
                break;
            }
        }
        Ok(taken)
    }

    fn req_notify_cq(&mut self, id: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        let cq = self.cq(id)?;
        // SAFETY: the context is open, the CQ alive.
        let code = unsafe { (*self.context).ops.req_notify_cq.map(|f| f(cq, c_int::from(solicited_only))) };
        check("ibv_req_notify_cq", code.unwrap_or(libc::ENOSYS))
    }

    fn poll_cq_event(&mut self) -> Option<CqId> {
        self.drain_channel();
        self.due.pop_front()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        for _ in 0..EVENTS_MAX {
            let mut event = ibv_async_event { element: null_mut(), event_type: 0 };
            // SAFETY: the context is open and its event descriptor non-blocking; the out-pointer is valid.
            if unsafe { (self.lib.ibv_get_async_event)(self.context, &mut event) } != 0 {
                return None;
            }
            let known = self.event(&event);
            // SAFETY: the event was just taken from the library and is acknowledged once.
            unsafe { (self.lib.ibv_ack_async_event)(&mut event) };
            if known.is_some() {
                return known;
            }
        }
        None
    }

    fn progress(&mut self) -> bool {
        self.drain_channel()
    }

    fn wait_fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        // SAFETY: context and channel stay open as long as `self`, which the result borrows.
        out.extend(self.fds().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }));
    }
}
