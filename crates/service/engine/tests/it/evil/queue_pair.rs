//! The evil host's end of a lane.

use control::LaneOffer;
use roce::Nic;
use verbs::*;

use super::GRANT;
use crate::world::addr;

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
    evil.modify_qp(qpn, &QpModify::Init { access, qkey: Qkey(0) }).unwrap();
    let rtr = RtrAttr {
        dest_qpn: Qpn(offer.qpn),
        rq_psn: Psn::new(offer.psn),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..RtrAttr::new(Qpn(offer.qpn), AddressVector::new(Gid::from(addr(0))))
    };
    evil.modify_qp(qpn, &QpModify::Rtr(rtr)).unwrap();
    let rts = RtsAttr { sq_psn: Psn::new(5), max_rd_atomic: 1, ..RtsAttr::default() };
    evil.modify_qp(qpn, &QpModify::Rts(rts)).unwrap();
}

pub(super) fn their_offer(qpn: Qpn, incarnation: u32) -> LaneOffer {
    LaneOffer {
        lane: 0,
        incarnation,
        qpn: qpn.0,
        psn: 5,
        gid: addr(1),
        udp_port: 4791,
        mtu_bytes: 1024,
        max_msg_bytes: 1 << 30,
        max_rd_atomic: 1,
        credits: GRANT,
        send_bytes_max: 4096,
        rx_budget_bytes: None,
        ud_qpn: 78,
        ud_qkey: 1,
        ud_token: 1,
    }
}
