//! Transitions of queue pairs (IBTA 10.3.1, table 91; `ibv_modify_qp(3)`).
//!
//! Owns which attributes a transition asks for. What a state allows is the NIC's.

use std::ffi::c_int;

use rdmacore::abi;
use rdmacore::abi::qp_attr_mask as m;
use verbs::{
    Access, AddressVector, Capabilities, Gid, PathMtu, Provider, Psn, Qkey, QpModify, QpState, Qpn, RtrAttr, RtsAttr,
    VerbsError,
};

use crate::address_handle::way;
use crate::errors::{FORKED, number, say};
use crate::events::lock;
use crate::process::Process;
use crate::process::objects::{Context, Qp};
use crate::queue_pair::state_number;

const RC: u32 = abi::IBV_QPT_RC;
const UD: u32 = abi::IBV_QPT_UD;

/// Names of attributes, for the words about one that is missing.
const NAMES: [(c_int, &str); 15] = [
    (m::ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
    (m::PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
    (m::PORT, "IBV_QP_PORT"),
    (m::QKEY, "IBV_QP_QKEY"),
    (m::AV, "IBV_QP_AV"),
    (m::PATH_MTU, "IBV_QP_PATH_MTU"),
    (m::TIMEOUT, "IBV_QP_TIMEOUT"),
    (m::RETRY_CNT, "IBV_QP_RETRY_CNT"),
    (m::RNR_RETRY, "IBV_QP_RNR_RETRY"),
    (m::RQ_PSN, "IBV_QP_RQ_PSN"),
    (m::MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
    (m::MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
    (m::SQ_PSN, "IBV_QP_SQ_PSN"),
    (m::MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
    (m::DEST_QPN, "IBV_QP_DEST_QPN"),
];

/// What a transition needs beside the state.
fn required(from: QpState, to: u32, qp_type: u32) -> c_int {
    let is_connected = qp_type != UD;
    match (from, to) {
        (QpState::Reset, 1) => m::PKEY_INDEX | m::PORT | if is_connected { m::ACCESS_FLAGS } else { m::QKEY },
        (QpState::Init, 2) if is_connected => {
            m::AV
                | m::PATH_MTU
                | m::DEST_QPN
                | m::RQ_PSN
                | if qp_type == RC { m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER } else { 0 }
        }
        (QpState::Rtr, 3) => {
            let of_rc = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
            m::SQ_PSN | if qp_type == RC { of_rc } else { 0 }
        }
        _ => 0,
    }
}

/// Takes the attributes that `mask` names over.
fn merge(into: &mut abi::ibv_qp_attr, from: &abi::ibv_qp_attr, mask: c_int) {
    macro_rules! take {
        ($($bit:ident: $field:ident),*) => { $( if mask & m::$bit != 0 { into.$field = from.$field; } )* };
    }
    take!(
        ACCESS_FLAGS: qp_access_flags, PKEY_INDEX: pkey_index, PORT: port_num, QKEY: qkey, AV: ah_attr,
        PATH_MTU: path_mtu, TIMEOUT: timeout, RETRY_CNT: retry_cnt, RNR_RETRY: rnr_retry, RQ_PSN: rq_psn,
        MAX_QP_RD_ATOMIC: max_rd_atomic, MIN_RNR_TIMER: min_rnr_timer, SQ_PSN: sq_psn,
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, DEST_QPN: dest_qp_num
    );
}

fn bad(what: &'static str) -> VerbsError {
    VerbsError::NoSuch(what)
}

fn to_rtr(attr: &abi::ibv_qp_attr, qp_type: u32, process: &Process) -> Result<QpModify, VerbsError> {
    if qp_type == UD {
        // Datagrams go where their address handles say.
        let nowhere = AddressVector::new(Gid(process.attr.gid.0));
        return Ok(QpModify::Rtr(RtrAttr::new(Qpn(0), nowhere)));
    }
    let index = usize::try_from(attr.path_mtu).unwrap_or(0).wrapping_sub(1);
    let mtu = *PathMtu::ALL.get(index).ok_or(bad("path MTU: it is 1 to 5"))?;
    let av = way(&attr.ah_attr, process).ok_or(bad("way to the peer"))?;
    let mut rtr = RtrAttr::new(Qpn(attr.dest_qp_num & 0xff_ffff), av);
    (rtr.rq_psn, rtr.mtu) = (Psn::new(attr.rq_psn), mtu);
    (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (attr.max_dest_rd_atomic, attr.min_rnr_timer & 31);
    Ok(QpModify::Rtr(rtr))
}

fn transition(attr: &abi::ibv_qp_attr, to: u32, qp_type: u32, process: &Process) -> Result<QpModify, VerbsError> {
    Ok(match to {
        0 => QpModify::Reset,
        1 => {
            let access = Access::from_bits_truncate(attr.qp_access_flags);
            QpModify::Init { access, qkey: Qkey(attr.qkey) }
        }
        2 => return to_rtr(attr, qp_type, process),
        3 => QpModify::Rts(RtsAttr {
            sq_psn: Psn::new(attr.sq_psn),
            timeout: attr.timeout & 31,
            retry_cnt: attr.retry_cnt & 7,
            rnr_retry: attr.rnr_retry & 7,
            max_rd_atomic: attr.max_rd_atomic,
            // The peer may be any device: nothing is known of it.
            peer: Capabilities::empty(),
            ..RtsAttr::default()
        }),
        4 => QpModify::Sqd,
        6 => QpModify::Err,
        _ => return Err(bad("state of a queue pair that it can be moved to")),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut abi::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a QP that is there, its open context, and the attributes.
    let (whole, wanted) = unsafe { (&mut *qp, &*attr) };
    // SAFETY: as above.
    let process = unsafe { Context::of(whole.public.context) }.process;
    let Some(mut held) = process.nic() else { return FORKED };
    let from = match held.nic.query_qp(whole.qpn) {
        Ok(status) => status.state,
        Err(error) => return number(&error),
    };
    let mut known = lock(&whole.attr);
    let mut merged = *known;
    merge(&mut merged, wanted, mask);
    if mask & m::STATE == 0 {
        // Other attributes alone are those of the next transition, or of none.
        *known = merged;
        return 0;
    }
    let missing = required(from, wanted.qp_state, whole.qp_type) & !mask;
    if missing != 0 {
        let names: Vec<_> = NAMES.iter().filter(|(bit, _)| missing & bit != 0).map(|(_, name)| *name).collect();
        say(&format!("from {from:?} to state {} it needs {}", wanted.qp_state, names.join(", ")));
        return libc::EINVAL;
    }
    if merged.port_num > 1 || merged.pkey_index > 0 {
        say(&"there is port 1 with one partition, that with index 0");
        return libc::EINVAL;
    }
    // A state that is kept takes attributes, of which the NIC has none that it takes there but those of RTS.
    if wanted.qp_state == state_number(from) && matches!(from, QpState::Init | QpState::Rts) {
        *known = merged;
        return 0;
    }
    let moved =
        transition(&merged, wanted.qp_state, whole.qp_type, process).and_then(|to| held.nic.modify_qp(whole.qpn, &to));
    if let Err(error) = moved {
        return number(&error);
    }
    whole.state = wanted.qp_state;
    *known = if wanted.qp_state == 0 { abi::ibv_qp_attr::default() } else { merged };
    0
}
