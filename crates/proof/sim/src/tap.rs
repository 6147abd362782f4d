//! The device as the engine sees it: the software NIC, with a count of what is alive in it.
//!
//! Owns the sets of live QPs and memory regions, from the calls alone, so that a leak shows even if engine and NIC
//! agree on a wrong number. It must never change a call or its result, except the one that the plan spoils.

use std::collections::BTreeSet;

use roce::Nic;
use verbs::{
    AcceptAttr, Access, AddressVector, AhId, AsyncEvent, Completion, Counters, CqId, DeviceAttr, Endpoint, Gid, Link,
    Lkey, Mr, MrId, OfferAttr, Payload, PostError, Provider, QpInit, QpModify, QpStatus, QpType, Qpn, RecvWr, Region,
    RemoteAddr, Rkey, SendOp, SendWr, Sge, SrqId, SrqInit, Status, Time, VerbsError,
};

use crate::plan::Break;
use crate::wire::TcpSide;

/// A [`Nic`] and what lives in it.
#[derive(Debug)]
pub struct Tap {
    /// The NIC.
    pub nic: Nic,
    /// Its wire over TCP.
    pub(crate) tcp: TcpSide,
    /// Now.
    pub(crate) now: Time,
    /// Registered memory.
    pub mrs: BTreeSet<MrId>,
    /// Queue pairs.
    pub qps: BTreeSet<Qpn>,
    /// The queue pair of datagrams.
    pub(crate) ud: Option<Qpn>,
    /// Calls since the start: work requests, registrations, polls that found something.
    pub calls: u64,
    /// What happens to the next work request of a queue pair.
    pub(crate) spoil: Option<(Qpn, Break)>,
}

impl Tap {
    /// Around a NIC in which nothing lives yet.
    pub(crate) fn new(nic: Nic, tcp: TcpSide) -> Self {
        Self { nic, tcp, now: Time::ZERO, mrs: BTreeSet::new(), qps: BTreeSet::new(), ud: None, calls: 0, spoil: None }
    }
}

impl Tap {
    /// Posts work requests of which the first WRITE has a wrong key.
    fn post_spoilt(&mut self, qpn: Qpn, wrs: &[SendWr<'_>], how: Break) -> Result<(), PostError> {
        let Some(at) = wrs.iter().position(|w| matches!(w.op, SendOp::WriteImm(..))) else {
            return self.post_each(qpn, wrs);
        };
        self.spoil = None;
        let mut wrs = wrs.to_vec();
        let sges: Vec<Sge>;
        match (how, wrs[at].op, wrs[at].payload) {
            (Break::RemoteKey, SendOp::WriteImm(to, imm), _) => {
                wrs[at].op = SendOp::WriteImm(RemoteAddr { rkey: Rkey(to.rkey.0 ^ 0x5a5a), ..to }, imm);
            }
            (_, _, Payload::Sges(of)) => {
                sges = of.iter().map(|s| Sge { lkey: Lkey(s.lkey.0 ^ 0x5a5a), ..*s }).collect();
                wrs[at].payload = Payload::Sges(&sges);
            }
            _ => {}
        }
        self.post_each(qpn, &wrs)
    }

    /// Posts to the wire that the queue pair is on.
    fn post_each(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.tcp.status(qpn).is_none() {
            return self.nic.post_send(qpn, wrs);
        }
        for (index, wr) in wrs.iter().enumerate() {
            let posted = self.tcp.post_send(&mut self.nic, qpn, wr).unwrap_or(Ok(()));
            posted.map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.nic.deadline().into_iter().chain(self.tcp.deadline()).min()
    }

    /// The first send that was reported as successful is reported as failed.
    fn spoil_completion(&mut self, qpn: Qpn, status: Status, told: &mut [Completion]) {
        let is_send = |c: &&mut Completion| c.qpn == qpn && c.status == Status::Success && c.wr_id >> 63 == 0;
        let Some(completion) = told.iter_mut().find(is_send) else { return };
        completion.status = status;
        self.spoil = None;
        let _ = self.modify_qp(qpn, &QpModify::Err);
    }
}

impl Provider for Tap {
    fn device(&self) -> &DeviceAttr {
        self.nic.device()
    }
    fn is_at(&self, gid: Gid) -> bool {
        self.nic.is_at(gid)
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
        let qpn = self.nic.create_qp(init)?;
        self.qps.insert(qpn);
        if init.qp_type == QpType::Ud {
            self.ud = Some(qpn);
        }
        Ok(qpn)
    }
    fn offer(&mut self, qpn: Qpn, attr: &OfferAttr) -> Result<Endpoint, VerbsError> {
        self.tcp.offer(&mut self.nic, qpn, attr, self.now)
    }
    fn accept(&mut self, qpn: Qpn, own: &Endpoint, peer: &Endpoint, attr: &AcceptAttr) -> Result<Link, VerbsError> {
        self.tcp.accept(&mut self.nic, qpn, own, peer, attr, self.now)
    }
    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        match self.tcp.modify(&mut self.nic, qpn, to) {
            Some(modified) => modified,
            None => self.nic.modify_qp(qpn, to),
        }
    }
    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        match self.tcp.status(qpn) {
            Some(status) => Ok(status),
            None => self.nic.query_qp(qpn),
        }
    }
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        self.tcp.remove(&mut self.nic, qpn);
        self.nic.destroy_qp(qpn)?;
        self.qps.remove(&qpn);
        Ok(())
    }
    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        self.nic.create_ah(av)
    }
    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        self.nic.destroy_ah(ah)
    }
    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        let mr = self.nic.reg_mr(region, offset, len, access)?;
        self.mrs.insert(mr.id);
        Ok(mr)
    }
    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.nic.dereg_mr(mr)?;
        self.mrs.remove(&mr);
        Ok(())
    }
    fn pins_memory(&self) -> bool {
        self.nic.pins_memory()
    }
    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        // The rkey of a region is its number.
        let of_tcp = unreported.and_then(|qpn| self.tcp.has_unreported(&self.nic, qpn, Rkey(mr.0), offset, len));
        match of_tcp {
            Some(true) => Ok(false),
            Some(false) => self.nic.try_discard(mr, offset, len, None),
            None => self.nic.try_discard(mr, offset, len, unreported),
        }
    }
    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.calls += wrs.len() as u64;
        match self.spoil {
            Some((of, how @ (Break::RemoteKey | Break::LocalKey))) if of == qpn => self.post_spoilt(qpn, wrs, how),
            _ => self.post_each(qpn, wrs),
        }
    }
    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.calls += wrs.len() as u64;
        if self.tcp.status(qpn).is_none() {
            return self.nic.post_recv(qpn, wrs);
        }
        for (index, wr) in wrs.iter().enumerate() {
            let posted = self.tcp.post_recv(&mut self.nic, qpn, wr).unwrap_or(Ok(()));
            posted.map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }
    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.calls += wrs.len() as u64;
        self.nic.post_srq_recv(srq, wrs)
    }
    fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        self.nic.withdraw_srq_recv(srq, max, out)
    }
    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        let first = out.len();
        let found = self.nic.poll_cq(cq, out, max)?;
        self.calls += found as u64;
        if let Some((qpn, Break::Status(status))) = self.spoil {
            self.spoil_completion(qpn, status, out.get_mut(first..).unwrap_or_default());
        }
        Ok(found)
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
