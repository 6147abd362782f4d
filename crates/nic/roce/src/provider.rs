//! Verbs calls on a [`Nic`]: checks of arguments and limits, then a change of state. None does I/O.

use std::time::Duration;

use verbs::{
    Access, AddressVector, AhId, AsyncEvent, Completion, Counters, CqId, DeviceAttr, Gid, Mr, MrId, MrInit, PathMarks,
    PdId, PostError, Provider, QpInit, QpModify, QpStatus, QpType, Qpn, RecvWr, Region, Rkey, SendWr, SrqId, SrqInit,
    VerbsError,
};

use crate::nic::Nic;
use crate::path::{Path, Source};
use crate::queue_pair::QueuePair;

fn full(what: &'static str, limit: u32) -> VerbsError {
    VerbsError::Full { what, limit: limit.into() }
}

impl Nic {
    fn unsupported(&self, what: &'static str) -> VerbsError {
        VerbsError::Unsupported { device: self.config.name.clone(), what }
    }

    /// The address of this NIC that packets of an address vector leave from.
    pub(crate) fn source_of(&self, av: &AddressVector) -> Result<Source, VerbsError> {
        let Some(gid) = av.source else { return Ok(self.first()) };
        self.at(gid.ip())
            .ok_or_else(|| self.unsupported("a source that is none of its addresses: see NicConfig::standby"))
    }

    fn check_qp(&self, init: &QpInit) -> Result<(), VerbsError> {
        let limits = &self.config.limits;
        match init.qp_type {
            QpType::Rc | QpType::Uc | QpType::Ud => {}
            _ => return Err(self.unsupported("this transport service")),
        }
        self.dev.check_qp(init)?;
        if self.qps.len() >= limits.max_qp as usize {
            return Err(full("the QP table", limits.max_qp));
        }
        Ok(())
    }
}

/// Posts one by one and says where it stopped.
fn post_each<W>(wrs: &[W], mut post: impl FnMut(&W) -> Result<(), VerbsError>) -> Result<(), PostError> {
    wrs.iter().enumerate().try_for_each(|(index, wr)| post(wr).map_err(|cause| PostError { index, cause }))
}

impl Provider for Nic {
    fn device(&self) -> &DeviceAttr {
        &self.dev.attr
    }

    fn is_at(&self, gid: Gid) -> bool {
        self.at(gid.ip()).is_some()
    }

    fn path_marks(&self) -> PathMarks {
        self.marks()
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        self.dev.create_cq(cqe)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.dev.destroy_cq(cq)
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        self.dev.create_srq(init)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.dev.destroy_srq(srq)
    }

    fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.dev.arm_srq(srq, limit)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.check_qp(init)?;
        let qpn = self.fresh_qpn();
        self.dev.adjust_users(init, true);
        let mtu_bytes = self.dev.attr.mtu.bytes();
        self.qps.insert(qpn, QueuePair::new(qpn, init, &self.config.limits, mtu_bytes));
        Ok(qpn)
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        let source = match to {
            QpModify::Rtr(attr) => self.source_of(&attr.av)?,
            _ => self.first(),
        };
        let qp = self.qps.get_mut(&qpn).ok_or(VerbsError::NoSuch("QP"))?;
        qp.modify(to, source, &self.config.limits, &mut self.dev)?;
        self.after_event(qpn);
        Ok(())
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        self.qps.get(&qpn).map(|qp| qp.status()).ok_or(VerbsError::NoSuch("QP"))
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let mut qp = self.remove_qp(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        qp.release(&mut self.dev);
        self.dev.adjust_users(qp.init(), false);
        Ok(())
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        let other_version = "a peer of the other IP version: give the port an address of the peer's version";
        let path = Path::new(av, self.source_of(av)?).ok_or_else(|| self.unsupported(other_version))?;
        let limit = self.dev.ahs.max();
        self.dev.ahs.insert(path).map(AhId).ok_or_else(|| full("the table of address handles", limit))
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        let path = self.dev.ahs.remove(ah.0).ok_or(VerbsError::NoSuch("address handle"))?;
        if let Some(key) = path.seal {
            self.dev.seals.remove(key);
        }
        Ok(())
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.dev.base.alloc_pd()
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.dev.base.dealloc_pd(pd)
    }

    fn register(&mut self, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        self.dev.base.register(init, &mut self.entropy)
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        self.register(&MrInit::new(region, offset, len, access))
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.dev.mrs.deregister(mr)
    }

    fn pins_memory(&self) -> bool {
        false
    }

    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        if let Some(qpn) = unreported {
            let qp = self.qps.get(&qpn).ok_or(VerbsError::NoSuch("QP"))?;
            let cq = self.dev.cqs.get(qp.init().recv_cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
            // The rkey of a region is its number.
            if !cq.is_empty() || qp.has_unreported(Rkey(mr.0), offset, len) {
                return Ok(false);
            }
        }
        self.dev.mrs.discard(mr, offset, len).map(|()| true)
    }

    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let missing = PostError { index: 0, cause: VerbsError::NoSuch("QP") };
        let qp = self.qps.get_mut(&qpn).ok_or(missing)?;
        let posted = post_each(wrs, |wr| qp.post_send(wr, &mut self.dev));
        self.after_event(qpn);
        posted
    }

    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let missing = PostError { index: 0, cause: VerbsError::NoSuch("QP") };
        let qp = self.qps.get_mut(&qpn).ok_or(missing)?;
        let posted = post_each(wrs, |wr| qp.post_recv(wr, &mut self.dev));
        self.after_event(qpn);
        posted
    }

    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.dev.post_srq_recv(srq, wrs)
    }

    fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        self.dev.withdraw_srq_recv(srq, max, out)
    }

    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        self.dev.poll_cq(cq, out, max)
    }

    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.dev.req_notify_cq(cq, solicited_only)?;
        // A caller that arms is about to sleep, and would be woken only for the ACKs that are owed.
        self.pay_before_sleep();
        Ok(())
    }

    fn poll_cq_event(&mut self) -> Option<CqId> {
        self.dev.take_cq_event()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.dev.take_event()
    }

    /// Counted from the latest time that the NIC was given.
    fn deadline(&self) -> Option<Duration> {
        Self::deadline(self).map(|at| at.saturating_since(self.now))
    }

    fn counters(&self) -> Counters {
        self.counters_detail().list()
    }
}
