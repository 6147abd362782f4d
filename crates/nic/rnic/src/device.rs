//! What all QPs of a device share: memory, completion and receive queues, counters, events.
//!
//! A QP gets it as an argument, so that no QP can reach another one.

use std::collections::VecDeque;

use genslab::GenSlab;
use rand::Rng;
use verbs::{
    Access, AsyncEvent, Completion, CqId, DeviceAttr, Mr, MrInit, PdId, PostError, QpInit, RecvWr, SrqId, SrqInit,
    VerbsError,
};

use crate::counters::DeviceCounters;
use crate::cq::{Cq, Pushed};
use crate::limits::{DeviceLimits, MAX_EVENTS, MAX_PD};
use crate::memory::MrTable;
use crate::receive_queue::{RecvWqe, Srq};

/// Shared state of a software RNIC.
#[derive(Debug)]
pub struct Device {
    /// What the device is and can hold.
    pub attr: DeviceAttr,
    /// Registered memory.
    pub mrs: MrTable,
    /// Completion queues by the number of their [`CqId`].
    pub cqs: GenSlab<u32, Cq>,
    /// Shared receive queues by the number of their [`SrqId`].
    pub srqs: GenSlab<u32, Srq>,
    /// Protection domains beside the device's own by the number of their [`PdId`]; in each, how many QPs are in it.
    pds: GenSlab<u32, u32>,
    /// CQs whose wake-up is due, each once.
    due: VecDeque<CqId>,
    /// What does not depend on the wire.
    pub counters: DeviceCounters,
    overflows: u64,
    notify: bool,
    events: VecDeque<AsyncEvent>,
}

fn in_range(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
}

fn full(what: &'static str, limit: u32) -> VerbsError {
    VerbsError::Full { what, limit: limit.into() }
}

impl Device {
    /// A device with nothing in it.
    pub fn new(attr: DeviceAttr, limits: DeviceLimits) -> Self {
        Self {
            mrs: MrTable::new(attr.max_mr),
            cqs: GenSlab::new(limits.max_cq),
            srqs: GenSlab::new(limits.max_srq),
            pds: GenSlab::new(MAX_PD),
            due: VecDeque::new(),
            counters: DeviceCounters::default(),
            overflows: 0,
            notify: false,
            events: VecDeque::new(),
            attr,
        }
    }

    fn unsupported(&self, what: &'static str) -> VerbsError {
        VerbsError::Unsupported { device: self.attr.name.clone(), what }
    }

    /// [`verbs::Provider::create_cq`].
    pub fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        in_range("completions of a CQ", cqe, 1, self.attr.max_cqe)?;
        let limit = self.cqs.max();
        self.cqs.insert(Cq::new(cqe)).map(CqId).ok_or_else(|| full("the CQ table", limit))
    }

    /// [`verbs::Provider::destroy_cq`].
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let queue = self.cqs.get(cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
        if queue.is_used() {
            return Err(VerbsError::Busy("the CQ"));
        }
        self.cqs.remove(cq.0);
        self.due.retain(|due| *due != cq);
        Ok(())
    }

    /// [`verbs::Provider::create_srq`].
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        in_range("receives of an SRQ", init.max_wr, 1, self.attr.max_srq_wr)?;
        in_range("scatter entries of a receive", init.max_sge, 0, self.attr.max_sge)?;
        in_range("limit of an SRQ", init.limit, 0, init.max_wr)?;
        let limit = self.srqs.max();
        self.srqs.insert(Srq::new(init)).map(SrqId).ok_or_else(|| full("the SRQ table", limit))
    }

    /// [`verbs::Provider::arm_srq`].
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.srqs.get_mut(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?.arm(limit)
    }

    /// [`verbs::Provider::destroy_srq`].
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        let queue = self.srqs.get(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?;
        if queue.is_used() {
            return Err(VerbsError::Busy("the SRQ"));
        }
        self.srqs.remove(srq.0);
        Ok(())
    }

    /// Checks the objects that a new QP names, and the sizes of its queues.
    pub fn check_qp(&self, init: &QpInit) -> Result<(), VerbsError> {
        let attr = &self.attr;
        self.check_pd(init.pd)?;
        for cq in [init.send_cq, init.recv_cq] {
            self.cqs.get(cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
        }
        if let Some(srq) = init.srq {
            self.srqs.get(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?;
        }
        in_range("send work requests of a QP", init.max_send_wr, 0, attr.max_qp_wr)?;
        in_range("receive work requests of a QP", init.max_recv_wr, 0, attr.max_qp_wr)?;
        in_range("gather entries of a send", init.max_send_sge, 0, attr.max_sge)?;
        in_range("scatter entries of a receive", init.max_recv_sge, 0, attr.max_sge)?;
        in_range("inline bytes of a send", init.max_inline_bytes, 0, attr.max_inline_bytes)
    }

    /// [`verbs::Provider::alloc_pd`].
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let limit = self.pds.max();
        self.pds.insert(0).map(PdId).ok_or_else(|| full("the table of protection domains", limit))
    }

    /// [`verbs::Provider::dealloc_pd`].
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let qps = *self.pds.get(pd.0).ok_or(VerbsError::NoSuch("protection domain"))?;
        if qps > 0 || self.mrs.has_of(pd) {
            return Err(VerbsError::Busy("the protection domain"));
        }
        self.pds.remove(pd.0);
        Ok(())
    }

    fn check_pd(&self, pd: PdId) -> Result<(), VerbsError> {
        if pd == PdId::default() || self.pds.get(pd.0).is_some() {
            return Ok(());
        }
        Err(VerbsError::NoSuch("protection domain"))
    }

    /// [`verbs::Provider::register`]. `entropy` decides the key.
    pub fn register(&mut self, init: &MrInit<'_>, entropy: &mut impl Rng) -> Result<Mr, VerbsError> {
        self.check_pd(init.pd)?;
        let access = init.access;
        // As on hardware: what a peer may write, the device must be allowed to write (IBTA 10.6.3.1).
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(self.unsupported("remote write or atomic access without local write: add Access::LOCAL_WRITE"));
        }
        if access.contains(Access::LOCAL_WRITE) && !init.region.is_writable() {
            return Err(self.unsupported("write access to memory that is mapped read-only"));
        }
        self.mrs.register(init, entropy)
    }

    /// [`verbs::Provider::post_srq_recv`].
    pub fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let missing = PostError { index: 0, cause: VerbsError::NoSuch("SRQ") };
        let queue = self.srqs.get_mut(srq.0).ok_or(missing)?;
        for (index, wr) in wrs.iter().enumerate() {
            queue.post(wr).map_err(|cause| PostError { index, cause })?;
            self.counters.verbs_recv += 1;
        }
        Ok(())
    }

    /// [`verbs::Provider::withdraw_srq_recv`].
    pub fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        Ok(self.srqs.get_mut(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?.withdraw(max, out))
    }

    /// Takes completions that are there, as [`verbs::Provider::poll_cq`] does after its progress.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        self.cqs.get_mut(cq.0).map(|queue| queue.poll(out, max)).ok_or(VerbsError::NoSuch("CQ"))
    }

    /// [`verbs::Provider::req_notify_cq`]; [`Self::take_notify`] says when it is due.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.cqs.get_mut(cq.0).map(|queue| queue.arm(solicited_only)).ok_or(VerbsError::NoSuch("CQ"))
    }

    /// Gives a completion to the consumer.
    pub fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool) {
        if completion.status != verbs::Status::Success {
            self.counters.completions_failed += 1;
        }
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(completion, solicited) {
            Pushed::Quiet => {}
            Pushed::Notify => {
                self.notify = true;
                if !self.due.contains(&cq) {
                    self.due.push_back(cq);
                }
            }
            Pushed::Lost => self.counters.cq_overflows += 1,
            Pushed::Overflow => {
                self.counters.cq_overflows += 1;
                self.overflows += 1;
                self.raise(AsyncEvent::CqError(cq));
            }
        }
    }

    /// How many CQs overflowed since the device was made. When it changed, a transport takes down those of its QPs that
    /// use a failed CQ ([`Self::has_failed_cq`]).
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Whether a CQ of the QP overflowed: the QP cannot go on.
    pub fn has_failed_cq(&self, init: &QpInit) -> bool {
        [init.send_cq, init.recv_cq].iter().any(|cq| self.cqs.get(cq.0).is_some_and(Cq::has_failed))
    }

    /// Queues an asynchronous event. A sleeping consumer is woken for it.
    pub fn raise(&mut self, event: AsyncEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.counters.events_lost += 1;
            return;
        }
        self.events.push_back(event);
        self.notify = true;
    }

    /// [`verbs::Provider::poll_cq_event`].
    pub fn take_cq_event(&mut self) -> Option<CqId> {
        self.due.pop_front()
    }

    /// Takes the oldest asynchronous event.
    pub fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Whether an armed CQ got its completion, or an asynchronous event came, since the last call.
    pub fn take_notify(&mut self) -> bool {
        std::mem::take(&mut self.notify)
    }

    /// Takes a receive from a shared queue, raising its limit event.
    pub fn take_shared(&mut self, srq: SrqId) -> Option<RecvWqe> {
        let (wqe, limit_reached) = self.srqs.get_mut(srq.0)?.take();
        if limit_reached {
            self.raise(AsyncEvent::SrqLimit(srq));
        }
        wqe
    }

    /// Counts a QP into, or out of, the objects that it uses.
    pub fn adjust_users(&mut self, init: &QpInit, up: bool) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq.0) {
                cq.adjust_users(up);
            }
        }
        if let Some(qps) = self.pds.get_mut(init.pd.0) {
            *qps = if up { *qps + 1 } else { qps.saturating_sub(1) };
        }
        if let Some(srq) = init.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            srq.adjust_users(up);
        }
    }
}
