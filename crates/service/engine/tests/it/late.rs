//! A device whose completions come later than the engine looks for them when it takes a queue pair down, as hardware
//! may have it.

use std::ops::{Deref, DerefMut};

use roce::Nic;
use verbs::*;

/// A NIC that keeps completions back while it is told to.
pub(crate) struct Late {
    nic: Nic,
    pub(crate) holds_back: bool,
}

impl Late {
    pub(crate) fn new(nic: Nic) -> Self {
        Self { nic, holds_back: false }
    }
}

impl Deref for Late {
    type Target = Nic;

    fn deref(&self) -> &Nic {
        &self.nic
    }
}

impl DerefMut for Late {
    fn deref_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }
}

impl Provider for Late {
    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        if self.holds_back { Ok(0) } else { self.nic.poll_cq(cq, out, max) }
    }

    fn device(&self) -> &DeviceAttr {
        self.nic.device()
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        self.nic.create_cq(cqe)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.nic.destroy_cq(cq)
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        self.nic.create_srq(init)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.nic.destroy_srq(srq)
    }

    fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.nic.arm_srq(srq, limit)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.nic.create_qp(init)
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        self.nic.modify_qp(qpn, to)
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        self.nic.query_qp(qpn)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        self.nic.destroy_qp(qpn)
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        self.nic.create_ah(av)
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        self.nic.destroy_ah(ah)
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        self.nic.reg_mr(region, offset, len, access)
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.nic.dereg_mr(mr)
    }

    fn pins_memory(&self) -> bool {
        self.nic.pins_memory()
    }

    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        self.nic.try_discard(mr, offset, len, unreported)
    }

    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.nic.post_send(qpn, wrs)
    }

    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.nic.post_recv(qpn, wrs)
    }

    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.nic.post_srq_recv(srq, wrs)
    }

    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.nic.req_notify_cq(cq, solicited_only)
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.nic.poll_event()
    }

    fn counters(&self) -> Counters {
        self.nic.counters()
    }
}
