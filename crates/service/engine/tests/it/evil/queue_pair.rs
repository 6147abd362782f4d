//! The evil host's end of a lane.

use control::{DatagramOffer, LaneOffer};
use roce::Nic;
use verbs::*;

use super::GRANT;
use crate::world::{addr, offered};

/// A queue pair of the evil host.
pub(super) fn queue_pair(evil: &mut Nic, cq: CqId, srq: SrqId) -> Qpn {
    let init = QpInit {
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
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
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
    let gid = Gid::from(addr(1));
    let endpoint = RoceEndpoint {
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
