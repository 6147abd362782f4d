//! One host of a [`super::Fabric`]: its verbs, each a call on its NIC under the fabric's lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use verbs::{
    AcceptAttr, Access, AddressVector, AhId, AsyncEvent, Completion, Counters, CqId, DatagramAttr, DatagramLink,
    DeviceAttr, Encrypt, Endpoint, Link, Mr, MrId, MrInit, OfferAttr, PdId, PostError, Provider, QpInit, QpModify,
    QpStatus, Qpn, RecvWr, Region, SendWr, SrqId, SrqInit, VerbsError,
};

use super::net::{Host, HostId, Net};
use super::{FabricError, HostConfig};
use crate::tcp::Wires;
use wires::{accept_datagrams, accept_roce};

/// A host: a [`Provider`] whose packets go through the fabric that made it.
///
/// `poll_cq` and `progress` send what was posted and take in what is due at the fabric's time; time itself moves only
/// by the fabric. There is no descriptor to wait on: [`Self::take_notify`] returns what a completion channel would.
#[derive(Debug)]
pub struct FabricHost {
    net: Arc<Mutex<Net>>,
    id: HostId,
    device: DeviceAttr,
}

impl FabricHost {
    pub(super) fn new(net: Arc<Mutex<Net>>, config: HostConfig) -> Result<Self, FabricError> {
        let mut guard = lock(&net);
        let address = config.address;
        let id = guard.add(config)?;
        let device = guard.host(id).map(|host| host.nic.device().clone());
        drop(guard);
        match device {
            Some(device) => Ok(Self { net, id, device }),
            None => Err(FabricError::AddressTaken(address)),
        }
    }

    /// Whether an armed CQ got its completion, or an asynchronous event came, since the last call.
    pub fn take_notify(&mut self) -> bool {
        self.with(|host| {
            let earlier = std::mem::take(&mut host.notified);
            host.nic.take_notify() || earlier
        })
        .unwrap_or(false)
    }

    /// The NIC's counters.
    pub fn nic_counters(&self) -> roce::NicCounters {
        self.with(|host| host.nic.counters_detail().clone()).unwrap_or_default()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Host) -> T) -> Option<T> {
        lock(&self.net).host(self.id).map(f)
    }

    /// A verbs call; the host is in its fabric as long as this value lives.
    fn call<T>(&self, f: impl FnOnce(&mut roce::Nic) -> Result<T, VerbsError>) -> Result<T, VerbsError> {
        self.with(|host| f(&mut host.nic)).unwrap_or(Err(VerbsError::NoSuch("host in its fabric")))
    }

    fn post(&self, f: impl FnOnce(&mut roce::Nic) -> Result<(), PostError>) -> Result<(), PostError> {
        let gone = PostError { index: 0, cause: VerbsError::NoSuch("host in its fabric") };
        self.with(|host| f(&mut host.nic)).unwrap_or(Err(gone))
    }
}

fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for FabricHost {
    fn drop(&mut self) {
        lock(&self.net).remove(self.id);
    }
}

impl Provider for FabricHost {
    fn device(&self) -> &DeviceAttr {
        &self.device
    }

    fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        self.call(|nic| nic.create_cq(cqe))
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.call(|nic| nic.destroy_cq(cq))
    }

    fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        self.call(|nic| nic.create_srq(init))
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.call(|nic| nic.destroy_srq(srq))
    }

    fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.call(|nic| nic.arm_srq(srq, limit))
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        self.call(|nic| nic.create_qp(init))
    }

    fn modify_qp(&mut self, qpn: Qpn, to: &QpModify) -> Result<(), VerbsError> {
        let mut net = lock(&self.net);
        // Answers of the QP as it was leave first, as they do on a socket.
        net.progress();
        let Some(host) = net.host(self.id) else { return Err(VerbsError::NoSuch("host in its fabric")) };
        if matches!(to, QpModify::Reset | QpModify::Rtr(_)) {
            host.secrets.forget(qpn);
        }
        host.nic.modify_qp(qpn, to)
    }

    fn query_qp(&self, qpn: Qpn) -> Result<QpStatus, VerbsError> {
        self.call(|nic| nic.query_qp(qpn))
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        self.with(|host| {
            host.secrets.forget(qpn);
            host.nic.destroy_qp(qpn)
        })
        .unwrap_or(Err(VerbsError::NoSuch("host in its fabric")))
    }

    /// Over RoCEv2, which is all that a fabric has: sealed packets, if both ends encrypt.
    fn offer(&mut self, qpn: Qpn, attr: &OfferAttr) -> Result<Endpoint, VerbsError> {
        let gone = VerbsError::NoSuch("host in its fabric");
        self.with(|host| {
            let clear = host.nic.offer(qpn, &OfferAttr { encrypt: Encrypt::Off, ..*attr })?;
            let sealed = host.secrets.offer(qpn, attr.encrypt);
            let wires = Wires { sealed, ..Wires::parse(&clear)? };
            wires.to_endpoint().unwrap_or(Ok(clear))
        })
        .unwrap_or(Err(gone))
    }

    fn accept(&mut self, qpn: Qpn, own: &Endpoint, peer: &Endpoint, attr: &AcceptAttr) -> Result<Link, VerbsError> {
        let gone = VerbsError::NoSuch("host in its fabric");
        self.with(|host| accept_roce(&mut host.nic, &mut host.secrets, qpn, (own, peer), attr)).unwrap_or(Err(gone))
    }

    fn accept_datagrams(
        &mut self,
        peer: &Endpoint,
        beside: Qpn,
        attr: &DatagramAttr,
    ) -> Result<Option<DatagramLink>, VerbsError> {
        let gone = VerbsError::NoSuch("host in its fabric");
        self.with(|host| accept_datagrams(&mut host.nic, &mut host.secrets, peer, beside, attr)).unwrap_or(Err(gone))
    }

    fn create_ah(&mut self, av: &AddressVector) -> Result<AhId, VerbsError> {
        self.call(|nic| nic.create_ah(av))
    }

    fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        self.call(|nic| nic.destroy_ah(ah))
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.call(Provider::alloc_pd)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.call(|nic| nic.dealloc_pd(pd))
    }

    fn register(&mut self, init: &MrInit<'_>) -> Result<Mr, VerbsError> {
        self.call(|nic| nic.register(init))
    }

    fn reg_mr(&mut self, region: &Region, offset: u64, len: u64, access: Access) -> Result<Mr, VerbsError> {
        self.register(&MrInit::new(region, offset, len, access))
    }

    fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.call(|nic| nic.dereg_mr(mr))
    }

    fn pins_memory(&self) -> bool {
        false
    }

    fn try_discard(&mut self, mr: MrId, offset: u64, len: u64, unreported: Option<Qpn>) -> Result<bool, VerbsError> {
        self.call(|nic| nic.try_discard(mr, offset, len, unreported))
    }

    fn post_send(&mut self, qpn: Qpn, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post(|nic| nic.post_send(qpn, wrs))
    }

    fn post_recv(&mut self, qpn: Qpn, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.post(|nic| nic.post_recv(qpn, wrs))
    }

    fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.post(|nic| nic.post_srq_recv(srq, wrs))
    }

    fn withdraw_srq_recv(&mut self, srq: SrqId, max: usize, out: &mut Vec<u64>) -> Result<usize, VerbsError> {
        self.call(|nic| nic.withdraw_srq_recv(srq, max, out))
    }

    fn poll_cq(&mut self, cq: CqId, out: &mut Vec<Completion>, max: usize) -> Result<usize, VerbsError> {
        lock(&self.net).progress();
        self.call(|nic| nic.poll_cq(cq, out, max))
    }

    fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.call(|nic| nic.req_notify_cq(cq, solicited_only))
    }

    fn poll_cq_event(&mut self) -> Option<CqId> {
        self.with(|host| host.nic.poll_cq_event()).flatten()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.with(|host| host.nic.poll_event()).flatten()
    }

    fn progress(&mut self) -> bool {
        lock(&self.net).progress()
    }

    fn deadline(&self) -> Option<Duration> {
        lock(&self.net).next_event()
    }

    fn counters(&self) -> Counters {
        self.with(|host| host.nic.counters()).unwrap_or_default()
    }
}
