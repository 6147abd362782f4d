//! Numbers of libibverbs to and from the vocabulary of `verbs`. Pure.

use std::ffi::{c_int, c_uint};

use verbs::{AddressVector, Completion, PathMtu, Placed, QpModify, QpState, QpType, Qpn, Status, VerbsError, WcOpcode};

use crate::abi::*;
use crate::device::Choice;

/// `enum ibv_mtu` of a path MTU.
pub(crate) fn mtu_number(mtu: PathMtu) -> c_uint {
    match mtu {
        PathMtu::Mtu256 => 1,
        PathMtu::Mtu512 => 2,
        PathMtu::Mtu1024 => 3,
        PathMtu::Mtu2048 => 4,
        PathMtu::Mtu4096 => 5,
    }
}

/// The path MTU of an `enum ibv_mtu`.
pub(crate) fn mtu_from_number(n: c_uint) -> Option<PathMtu> {
    PathMtu::ALL.into_iter().find(|&m| mtu_number(m) == n)
}

/// `enum ibv_qp_type`.
pub(crate) fn qp_type_number(t: QpType) -> Option<c_uint> {
    match t {
        QpType::Rc => Some(IBV_QPT_RC),
        QpType::Uc => Some(IBV_QPT_UC),
        QpType::Ud => Some(IBV_QPT_UD),
        _ => None,
    }
}

fn state_number(s: QpState) -> c_uint {
    match s {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

/// The state of an `enum ibv_qp_state`; unknown numbers count as Err.
pub(crate) fn state_from_number(n: c_uint) -> QpState {
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe]
        .into_iter()
        .find(|&s| state_number(s) == n)
        .unwrap_or(QpState::Err)
}

/// `enum ibv_wc_status`.
fn status(n: c_uint) -> Status {
    match n {
        0 => Status::Success,
        1 => Status::LocLenErr,
        2 | 3 => Status::LocQpOpErr,
        4 | 8 => Status::LocProtErr,
        5 => Status::WrFlushErr,
        7 => Status::BadRespErr,
        9 => Status::RemInvReqErr,
        10 => Status::RemAccessErr,
        11 => Status::RemOpErr,
        12 => Status::RetryExcErr,
        13 => Status::RnrRetryExcErr,
        _ => Status::GeneralErr,
    }
}

/// `enum ibv_wc_opcode`; it is meaningless in a failed completion, and unknown ones never come from the verbs used
/// here.
fn opcode(n: c_uint) -> WcOpcode {
    match n {
        1 => WcOpcode::Write,
        2 => WcOpcode::Read,
        3 => WcOpcode::CmpSwap,
        4 => WcOpcode::FetchAdd,
        128 => WcOpcode::Recv,
        129 => WcOpcode::RecvWriteImm,
        _ => WcOpcode::Send,
    }
}

/// A work completion.
pub(crate) fn completion(wc: &ibv_wc) -> Completion {
    Completion {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode),
        byte_len: wc.byte_len,
        qpn: Qpn(wc.qp_num),
        imm: (wc.wc_flags & WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data)),
        src_qpn: (wc.src_qp != 0).then_some(Qpn(wc.src_qp)),
        placed: Placed::Untold,
    }
}

/// An address handle's attributes. Packets leave through the one entry of the GID table that was chosen: another source
/// is refused.
pub(crate) fn ah_attr(av: &AddressVector, at: &Choice) -> Result<ibv_ah_attr, VerbsError> {
    if av.source.is_some_and(|source| source != at.gid.gid) {
        let what = "packets from another address than the one that the device was opened for";
        return Err(VerbsError::Unsupported { device: at.device.clone(), what });
    }
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.gid.0.octets() },
            flow_label: 0,
            sgid_index: at.gid.index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        is_global: 1,
        port_num: at.port,
        ..Default::default()
    })
}

/// Attributes and mask of a transition (the required attributes of `ibv_modify_qp(3)` for each QP type).
pub(crate) fn qp_transition(to: &QpModify, qp_type: QpType, at: &Choice) -> Result<(ibv_qp_attr, c_int), VerbsError> {
    use qp_attr_mask as m;
    let mut attr = ibv_qp_attr::default();
    let rc = qp_type == QpType::Rc;
    let connected = qp_type != QpType::Ud;
    let mask = match to {
        QpModify::Reset => m::STATE,
        QpModify::Init { access, qkey } => {
            attr.qp_state = state_number(QpState::Init);
            attr.port_num = at.port;
            attr.qp_access_flags = access.bits();
            attr.qkey = qkey.0;
            m::STATE | m::PKEY_INDEX | m::PORT | if connected { m::ACCESS_FLAGS } else { m::QKEY }
        }
        QpModify::Rtr(rtr) => {
            attr.qp_state = state_number(QpState::Rtr);
            attr.path_mtu = mtu_number(rtr.mtu);
            attr.dest_qp_num = rtr.dest_qpn.0;
            attr.rq_psn = rtr.rq_psn.get();
            attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic;
            attr.min_rnr_timer = rtr.min_rnr_timer;
            attr.ah_attr = ah_attr(&rtr.av, at)?;
            m::STATE
                | if connected { m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN } else { 0 }
                | if rc { m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER } else { 0 }
        }
        QpModify::Rts(rts) => {
            attr.qp_state = state_number(QpState::Rts);
            attr.sq_psn = rts.sq_psn.get();
            attr.timeout = rts.timeout;
            attr.retry_cnt = rts.retry_cnt;
            attr.rnr_retry = rts.rnr_retry;
            attr.max_rd_atomic = rts.max_rd_atomic;
            m::STATE | m::SQ_PSN | if rc { m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC } else { 0 }
        }
        QpModify::Sqd => {
            attr.qp_state = state_number(QpState::Sqd);
            m::STATE
        }
        QpModify::Err => {
            attr.qp_state = state_number(QpState::Err);
            m::STATE
        }
        _ => return Err(VerbsError::Unsupported { device: "rdma-core".into(), what: "this QP transition" }),
    };
    Ok((attr, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        for mtu in PathMtu::ALL {
            assert_eq!(mtu_from_number(mtu_number(mtu)), Some(mtu));
        }
        assert_eq!(mtu_from_number(0), None);
        for n in 0..7 {
            assert_eq!(state_number(state_from_number(n)), n);
        }
        let wc = ibv_wc {
            wr_id: 9,
            opcode: 129,
            byte_len: 7,
            imm_data: 0x1122_3344u32.to_be(),
            wc_flags: WC_WITH_IMM,
            qp_num: 17,
            ..Default::default()
        };
        let c = completion(&wc);
        assert_eq!((c.status, c.opcode, c.imm), (Status::Success, WcOpcode::RecvWriteImm, Some(0x1122_3344)));
        assert_eq!(completion(&ibv_wc { status: 13, ..wc }).status, Status::RnrRetryExcErr);
        assert_eq!(completion(&ibv_wc { wc_flags: 0, ..wc }).imm, None);
    }
}
