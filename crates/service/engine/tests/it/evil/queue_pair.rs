//! The evil host's end of a lane.

use control::{DatagramOffer, LaneOffer};
use engine::Engine;
use roce::Nic;
use verbs::*;

use super::GRANT;
use crate::world::{addr, offered};

/// A queue pair of the evil host.
pub(super) fn queue_pair(evil: &mut Nic, cq: CqId, srq: SrqId) -> Qpn {
    let init = QpInit {
        pd: verbs::PdId::default(),
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: Some(srq),
        max_send_wr: 500,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
        sq_sig_all: true,
    };
    evil.create_qp(&init).unwrap()
}

/// Connects it to the engine's, as the offer says.
pub(super) fn join(evil: &mut Nic, qpn: Qpn, offer: &LaneOffer) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let offer = offered(offer);
    evil.modify_qp(qpn, &QpModify::Init { access, qkey: Qkey(0) }).unwrap();
    let rtr = RtrAttr {
        dest_qpn: offer.qpn,
        rq_psn: offer.psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..RtrAttr::new(offer.qpn, AddressVector::new(Gid::from(addr(0))))
    };
    evil.modify_qp(qpn, &QpModify::Rtr(rtr)).unwrap();
    let rts = RtsAttr { sq_psn: Psn::new(5), max_rd_atomic: 1, ..RtsAttr::default() };
    evil.modify_qp(qpn, &QpModify::Rts(rts)).unwrap();
}

pub(super) fn their_offer(qpn: Qpn, incarnation: u32) -> LaneOffer {
    offer_of(1, qpn, incarnation)
}

fn offer_of(host: usize, qpn: Qpn, incarnation: u32) -> LaneOffer {
    let gid = Gid::from(addr(host));
    let endpoint = RoceEndpoint {
        qp_type: verbs::QpType::Rc,
        qpn,
        psn: Psn::new(5),
        gid,
        udp_port: 4791,
        mtu: PathMtu::Mtu1024,
        max_rd_atomic: 1,
        rx_budget_bytes: u32::MAX,
    };
    let port = RocePort { qpn: Qpn(78), qkey: Qkey(1), gid, udp_port: 4791 };
    LaneOffer {
        lane: 0,
        incarnation,
        endpoint: endpoint.to_endpoint().into_bytes(),
        capabilities: Capabilities::ROCE.bits(),
        max_msg_bytes: 1 << 30,
        credits: GRANT,
        send_bytes_max: 4096,
        datagrams: Some(DatagramOffer { endpoint: port.to_endpoint().into_bytes(), token: 1 }),
    }
}

/// Another peer of the engine, host 2, which sends as many frames as it is told.
pub(super) struct Second {
    pub(super) nic: Nic,
    qpn: Qpn,
    srq: SrqId,
    region: Region,
    lkey: Lkey,
    sequence: u64,
}

impl Second {
    const INCARNATION: u32 = 77;

    /// Its lane is up.
    pub(super) fn new(now: Time, engine: &mut Engine, of_engine: &mut impl Provider) -> Self {
        let mut nic = super::nic(2);
        let cq = nic.create_cq(1000).unwrap();
        let srq = nic.create_srq(&SrqInit { max_wr: 1000, max_sge: 1, limit: 0 }).unwrap();
        let qpn = queue_pair(&mut nic, cq, srq);
        let region = Region::anonymous(1 << 20).unwrap();
        let lkey = nic.reg_mr(&region, 0, 1 << 20, Access::LOCAL_WRITE).unwrap().lkey;
        let offer = engine.lane_offer(of_engine, addr(2)).unwrap();
        join(&mut nic, qpn, &offer);
        engine.lane_accept(of_engine, addr(2), &offer_of(2, qpn, Self::INCARNATION)).unwrap();
        engine.lane_ready(now, of_engine, addr(2));
        let mut second = Self { nic, qpn, srq, region, lkey, sequence: 0 };
        (0..GRANT).for_each(|_| second.post_recv());
        second
    }

    fn post_recv(&mut self) {
        let sges = [Sge { addr: 1 << 19, len: 4096, lkey: self.lkey }];
        self.nic.post_srq_recv(self.srq, &[RecvWr { wr_id: 0, sges: &sges }]).unwrap();
    }

    /// Posts a frame without records.
    pub(super) fn speak(&mut self) {
        self.sequence += 1;
        let mut frame = vec![1, 0, 0, 0];
        frame.extend(Self::INCARNATION.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        frame.extend(0u64.to_be_bytes());
        self.region.write(0, &frame).unwrap();
        let sges = [Sge { addr: 0, len: frame.len() as u32, lkey: self.lkey }];
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 0, op: SendOp::Send, payload: Payload::Sges(&sges), flags, dest: None };
        let _ = self.nic.post_send(self.qpn, &[wr]);
    }
}
