//! The states of a QP and the transitions between them (IBTA 10.3.1, figure 124).
//!
//! ```text
//!   Reset -> Init -> Rtr -> Rts <-> Sqd        any -> Err        any -> Reset
//!             |              ^ |
//!             |              | +-> Rts (timers, retries and the peer's budget may change)
//!             |              +--- Sqe (a datagram QP whose send failed, which goes there by itself)
//!             +-> Init (rights may change until Rtr)
//! ```

use verbs::{QpModify, QpState, RtrAttr, RtsAttr, VerbsError};

use crate::limits::{MAX_RETRY, MAX_TIMER_CODE};

/// The state after a transition, if it is one.
pub(crate) fn transition(from: QpState, to: &QpModify) -> Result<QpState, VerbsError> {
    let (what, state) = match (from, to) {
        (_, QpModify::Reset) => return Ok(QpState::Reset),
        (_, QpModify::Err) => return Ok(QpState::Err),
        (QpState::Reset | QpState::Init, QpModify::Init { .. }) => return Ok(QpState::Init),
        (QpState::Init, QpModify::Rtr(_)) => return Ok(QpState::Rtr),
        (QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe, QpModify::Rts(_)) => return Ok(QpState::Rts),
        (QpState::Rts, QpModify::Sqd) => return Ok(QpState::Sqd),
        (_, QpModify::Init { .. }) => ("a transition to Init", from),
        (_, QpModify::Rtr(_)) => ("a transition to RTR", from),
        (_, QpModify::Rts(_)) => ("a transition to RTS", from),
        (_, QpModify::Sqd) => ("a transition to SQD", from),
        _ => ("this transition", from),
    };
    Err(VerbsError::WrongState { state, what })
}

/// Whether packets of a peer have a meaning in a state. A reliable connected QP is never in SQE.
pub(crate) const fn takes_packets(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

/// Whether a send that is posted in a state is flushed at once. Refused if none may be posted (IBTA 10.8.3.2).
pub(crate) const fn flushes_sends(state: QpState) -> Result<bool, VerbsError> {
    match state {
        QpState::Rts | QpState::Sqd => Ok(false),
        QpState::Err | QpState::Sqe => Ok(true),
        state => Err(VerbsError::WrongState { state, what: "posting sends: move it to RTS first" }),
    }
}

fn at_most(what: &'static str, value: u8, max: u8) -> Result<(), VerbsError> {
    if value <= max {
        return Ok(());
    }
    Err(VerbsError::OutOfRange { what, value: value.into(), min: 0, max: max.into() })
}

/// Checks the numbers of a transition to RTR. `max_mtu_bytes` is the port's.
pub(crate) fn check_rtr(attr: &RtrAttr, max_mtu_bytes: usize, max_rd_atomic: u8) -> Result<(), VerbsError> {
    at_most("max_dest_rd_atomic", attr.max_dest_rd_atomic, max_rd_atomic)?;
    at_most("min_rnr_timer", attr.min_rnr_timer, MAX_TIMER_CODE)?;
    let (value, max) = (attr.mtu.bytes() as u64, max_mtu_bytes as u64);
    if value > max {
        return Err(VerbsError::OutOfRange { what: "path MTU", value, min: 256, max });
    }
    if attr.dest_qpn.0 >= 1 << 24 {
        let value = attr.dest_qpn.0.into();
        return Err(VerbsError::OutOfRange { what: "destination QP number", value, min: 0, max: (1 << 24) - 1 });
    }
    Ok(())
}

/// Checks the numbers of a transition to RTS.
pub(crate) fn check_rts(attr: &RtsAttr, max_rd_atomic: u8) -> Result<(), VerbsError> {
    at_most("max_rd_atomic", attr.max_rd_atomic, max_rd_atomic)?;
    at_most("timeout", attr.timeout, MAX_TIMER_CODE)?;
    at_most("retry_cnt", attr.retry_cnt, MAX_RETRY)?;
    at_most("rnr_retry", attr.rnr_retry, MAX_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Access, AddressVector, Gid, PathMtu, Psn, Qkey, Qpn};

    fn rtr() -> RtrAttr {
        RtrAttr {
            dest_qpn: Qpn(2),
            rq_psn: Psn::new(0),
            av: AddressVector::new(Gid::from(std::net::IpAddr::from([127, 0, 0, 2]))),
            mtu: PathMtu::Mtu1024,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            source_port: None,
        }
    }

    fn rts() -> RtsAttr {
        RtsAttr {
            sq_psn: Psn::new(0),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            peer_rx_budget_bytes: u32::MAX,
            peer: verbs::Capabilities::empty(),
        }
    }

    #[test]
    fn every_pair_of_states() {
        use QpState::*;
        let init = QpModify::Init { access: Access::empty(), qkey: Qkey(0) };
        let requests =
            [QpModify::Reset, init, QpModify::Rtr(rtr()), QpModify::Rts(rts()), QpModify::Sqd, QpModify::Err];
        let table = [
            (Reset, [Some(Reset), Some(Init), None, None, None, Some(Err)]),
            (Init, [Some(Reset), Some(Init), Some(Rtr), None, None, Some(Err)]),
            (Rtr, [Some(Reset), None, None, Some(Rts), None, Some(Err)]),
            (Rts, [Some(Reset), None, None, Some(Rts), Some(Sqd), Some(Err)]),
            (Sqd, [Some(Reset), None, None, Some(Rts), None, Some(Err)]),
            (Sqe, [Some(Reset), None, None, Some(Rts), None, Some(Err)]),
            (Err, [Some(Reset), None, None, None, None, Some(Err)]),
        ];
        for (from, expected) in table {
            for (to, expected) in requests.iter().zip(expected) {
                let got = transition(from, to);
                match expected {
                    Some(state) => assert_eq!(got, Ok(state)),
                    None => assert!(matches!(got, Result::Err(VerbsError::WrongState { state, .. }) if state == from)),
                }
            }
        }
    }

    #[test]
    fn numbers_are_checked() {
        assert_eq!(check_rtr(&rtr(), 1024, 1), Ok(()));
        assert!(check_rtr(&rtr(), 512, 1).is_err());
        assert!(check_rtr(&rtr(), 1024, 0).is_err());
        assert!(check_rtr(&RtrAttr { min_rnr_timer: 32, ..rtr() }, 1024, 1).is_err());
        let last = RtrAttr { dest_qpn: Qpn(0xff_ffff), min_rnr_timer: 31, ..rtr() };
        assert_eq!(check_rtr(&last, 1024, 1), Ok(()));
        let qpn = VerbsError::OutOfRange { what: "destination QP number", value: 1 << 24, min: 0, max: 0xff_ffff };
        assert_eq!(check_rtr(&RtrAttr { dest_qpn: Qpn(1 << 24), ..rtr() }, 1024, 1), Err(qpn));
        let mtu = VerbsError::OutOfRange { what: "path MTU", value: 1024, min: 256, max: 512 };
        assert_eq!(check_rtr(&rtr(), 512, 1), Err(mtu));
        assert_eq!(check_rts(&rts(), 1), Ok(()));
        assert!(check_rts(&rts(), 0).is_err());
        assert!(check_rts(&RtsAttr { retry_cnt: 8, ..rts() }, 1).is_err());
        assert!(check_rts(&RtsAttr { rnr_retry: 8, ..rts() }, 1).is_err());
        assert!(check_rts(&RtsAttr { timeout: 32, ..rts() }, 1).is_err());
    }
}
