//! Verbs calls on a [`Nic`]: checks of arguments and limits, then a change of state. None does I/O.

use std::time::Duration;

use verbs::{
    Access, AddressVector, AhId, AsyncEvent, Completion, Counters, CqId, DeviceAttr, Mr, MrId, PostError, Provider,
    QpInit, QpModify, QpStatus, QpType, Qpn, RecvWr, Region, Rkey, SendWr, SrqId, SrqInit, VerbsError,
};

use crate::cq::Cq;
use crate::nic::Nic;
use crate::path::Path;
use crate::queue_pair::QueuePair;
use crate::receive_queue::Srq;

fn in_range(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfRange { what, value: value.into(), min: min.into(), max: max.into() })
}

fn full(what: &'static str, limit: u32) -> VerbsError {
    VerbsError::Full { what, limit: limit.into() }
}

impl Nic {
    fn unsupported(&self, what: &'static str) -> VerbsError {
        VerbsError::Unsupported { device: self.config.name.clone(), what }
    }

    fn check_qp(&self, init: &QpInit) -> Result<(), VerbsError> {
        let limits = &self.config.limits;
        match init.qp_type {
            QpType::Rc | QpType::Ud => {}
            QpType::Uc => return Err(self.unsupported("unreliable connections")),
            _ => return Err(self.unsupported("this transport service")),
        }
        for cq in [init.send_cq, init.recv_cq] {
            self.dev.cqs.get(cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
        }
        if let Some(srq) = init.srq {
            self.dev.srqs.get(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?;
        }
        in_range("send work requests of a QP", init.max_send_wr, 0, limits.max_qp_wr)?;
        in_range("receive work requests of a QP", init.max_recv_wr, 0, limits.max_qp_wr)?;
        in_range("gather entries of a send", init.max_send_sge, 0, limits.max_sge)?;
        in_range("scatter entries of a receive", init.max_recv_sge, 0, limits.max_sge)?;
        in_range("inline bytes of a send", init.max_inline_bytes, 0, limits.max_inline_bytes)?;
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

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        in_range("completions of a CQ", cqe, 1, self.config.limits.max_cqe)?;
        let limit = self.dev.cqs.max();
        self.dev.cqs.insert(Cq::new(cqe)).map(CqId).ok_or_else(|| full("the CQ table", limit))
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let queue = self.dev.cqs.get(cq.0).ok_or(VerbsError::NoSuch("CQ"))?;
        if queue.users > 0 {
            return Err(VerbsError::Busy("the CQ"));
        }
        self.dev.cqs.remove(cq.0);
        Ok(())
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        let limits = &self.config.limits;
        in_range("receives of an SRQ", init.max_wr, 1, limits.max_srq_wr)?;
        in_range("scatter entries of a receive", init.max_sge, 0, limits.max_sge)?;
        in_range("limit of an SRQ", init.limit, 0, init.max_wr)?;
        let limit = self.dev.srqs.max();
        self.dev.srqs.insert(Srq::new(init)).map(SrqId).ok_or_else(|| full("the SRQ table", limit))
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        let queue = self.dev.srqs.get(srq.0).ok_or(VerbsError::NoSuch("SRQ"))?;
        if queue.users > 0 {
            return Err(VerbsError::Busy("the SRQ"));
        }
        self.dev.srqs.remove(srq.0);
        Ok(())
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
        let qp = self.qps.get_mut(&qpn).ok_or(VerbsError::NoSuch("QP"))?;
        let local = self.config.local;
        qp.modify(to, local, &self.config.limits, &mut self.dev)?;
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
        let path = Path::new(av, self.config.local).ok_or_else(|| self.unsupported(other_version))?;
        let limit = self.dev.ahs.max();
        self.dev.ahs.insert(path).map(AhId).ok_or_else(|| full("the table of address handles", limit))
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        self.dev.ahs.remove(ah.0).map(|_| ()).ok_or(VerbsError::NoSuch("address handle"))
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        // As on hardware: what a peer may write, the device must be allowed to write (IBTA 10.6.3.1).
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(self.unsupported("remote write or atomic access without local write: add Access::LOCAL_WRITE"));
        }
        if access.contains(Access::LOCAL_WRITE) && !region.is_writable() {
            return Err(self.unsupported("write access to memory that is mapped read-only"));
        }
        self.dev.mrs.register(region, offset, len, access, &mut self.entropy)
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
        let missing = PostError { index: 0, cause: VerbsError::NoSuch("SRQ") };
        let queue = self.dev.srqs.get_mut(srq.0).ok_or(missing)?;
        let counters = &mut self.dev.counters;
        post_each(wrs, |wr| {
            queue.post(wr)?;
            counters.verbs_recv += 1;
            Ok(())
        })
    }

    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        self.dev.cqs.get_mut(cq.0).map(|queue| queue.poll(out, max)).ok_or(VerbsError::NoSuch("CQ"))
    }

    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.dev.cqs.get_mut(cq.0).map(|queue| queue.arm(solicited_only)).ok_or(VerbsError::NoSuch("CQ"))?;
        // A caller that arms is about to sleep, and would be woken only for the ACKs that are owed.
        self.pay_acknowledgements();
        Ok(())
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
