//! Where kernel rxe differs from the suite, by the kernel that runs: read in its source and seen here.
//!
//! A case in the table must fail on the kernels that its entry names, so that no entry outlives its difference.

use conformance::Difference;

/// A kernel series, `(6, 1)`.
type Series = (u32, u32);

/// A difference and the kernels that have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    case: &'static str,
    reason: &'static str,
    /// The first series that has it.
    came_in: Series,
    /// The first series without it.
    gone_in: Option<Series>,
    /// A race decides whether it is seen.
    is_racy: bool,
}

const fn always(case: &'static str, reason: &'static str) -> Known {
    Known { case, reason, came_in: (0, 0), gone_in: None, is_racy: false }
}

const fn before(gone_in: Series, case: &'static str, reason: &'static str) -> Known {
    Known { gone_in: Some(gone_in), ..always(case, reason) }
}

const fn since(came_in: Series, case: &'static str, reason: &'static str) -> Known {
    Known { came_in, ..always(case, reason) }
}

const fn racy(known: Known) -> Known {
    Known { is_racy: true, ..known }
}

const LOCAL_ERROR: &str =
    "rxe reports every fault in a local work request but -EFAULT as LOC_QP_OP_ERR (rxe_req.c, rxe_resp.c)";
const TOO_LONG: &str = "rxe takes a message longer than its receive for a malformed receive and answers remote operational error \
     (rxe_resp.c, copy_data gives -EINVAL); IBTA 9.7.5.2.5 wants invalid request";
const LATE_RECEIVE: &str = "rxe flushes a receive posted in the error state only when its responder task runs next (rxe_verbs.c), be it for a late packet";
const UNSOLICITED_FLUSH: &str = "rxe flushes receives as unsolicited completions since it does so outside of its responder task \
     (rxe_resp.c, flush_recv_wqe)";
const FLUSHED_FAULT: &str = "rxe flushes its send queue before it completes the request at fault, which then counts as flushed (rxe_req.c, rxe_comp.c)";
const LAST_WQE: &str = "rxe raises IBV_EVENT_QP_LAST_WQE_REACHED from Linux 6.12 on";
const MISALIGNED: &str = "libibverbs' rxe provider refuses a misaligned atomic when it is posted";
const OWN_KEY: &str =
    "rxe sends the queue key of the work request as it is, highest bit or not (rxe_req.c, init_req_packet)";
const DATAGRAM_TOO_LONG: &str = "rxe takes a datagram longer than its receive for a malformed receive and ends the QP (rxe_resp.c, copy_data gives -EINVAL)";
const SHARED_TOO_SHORT: &str = "rxe completes a receive of an SRQ that is shorter than its datagram with an error (rxe_resp.c, class E; before 6.12 as above)";
const DRAINED_FOR_EVER: &str =
    "rxe does not look at its send queue when a drained QP goes back to RTS, but with the next post (rxe_qp.c)";
const UNRELIABLE_TOO_LONG: &str = "rxe takes a message longer than its receive for a malformed receive and ends the QP (rxe_resp.c, copy_data gives -EINVAL); \
     IBTA 9.8.2.2 has the message dropped";
const NO_SQE: &str = "rxe has no state SQE: a fault of a send ends the QP, as LOC_QP_OP_ERR (rxe_req.c)";

/// rxe with itself.
pub(crate) const RXE: &[Known] = &[
    always("atomic.misaligned", MISALIGNED),
    always("access.send_with_wrong_lkey", LOCAL_ERROR),
    since((6, 12), "access.send_beyond_the_region", FLUSHED_FAULT),
    always("access.receive_without_local_write", LOCAL_ERROR),
    always("length.message_longer_than_receive", TOO_LONG),
    always("length.multi_packet_longer_than_receive", TOO_LONG),
    racy(always("flush.receive_to_error_state", LATE_RECEIVE)),
    since((6, 12), "event.error_counts_as_solicited", UNSOLICITED_FLUSH),
    before((6, 12), "event.last_wqe_with_srq", LAST_WQE),
    always("ud_drop.high_bit_takes_own_key", OWN_KEY),
    always("ud_state.send_with_wrong_lkey", NO_SQE),
    always("ud_state.drained_sends_nothing", DRAINED_FOR_EVER),
    before((6, 12), "ud_drop.longer_than_receive", DATAGRAM_TOO_LONG),
    before((6, 12), "ud_drop.receive_shorter_than_header", DATAGRAM_TOO_LONG),
    always("ud_drop.shared_receive_too_short", SHARED_TOO_SHORT),
    always("ud_state.receive_without_local_write", LOCAL_ERROR),
    always("uc_drop.longer_than_receive", UNRELIABLE_TOO_LONG),
    always("uc_drop.longer_by_a_packet", UNRELIABLE_TOO_LONG),
    always("uc_state.send_with_wrong_lkey", NO_SQE),
    always("uc_state.drained_sends_nothing", DRAINED_FOR_EVER),
    always("uc_state.receive_without_local_write", LOCAL_ERROR),
];
/// rxe as responder to the software NIC.
pub(crate) const RXE_RESPONDS: &[Known] = &[
    always("access.receive_without_local_write", LOCAL_ERROR),
    always("length.message_longer_than_receive", TOO_LONG),
    always("length.multi_packet_longer_than_receive", TOO_LONG),
    racy(always("flush.receive_to_error_state", LATE_RECEIVE)),
    since((6, 12), "event.error_counts_as_solicited", UNSOLICITED_FLUSH),
    before((6, 12), "event.last_wqe_with_srq", LAST_WQE),
    before((6, 12), "ud_drop.longer_than_receive", DATAGRAM_TOO_LONG),
    before((6, 12), "ud_drop.receive_shorter_than_header", DATAGRAM_TOO_LONG),
    always("ud_drop.shared_receive_too_short", SHARED_TOO_SHORT),
    always("ud_state.receive_without_local_write", LOCAL_ERROR),
    always("uc_drop.longer_than_receive", UNRELIABLE_TOO_LONG),
    always("uc_drop.longer_by_a_packet", UNRELIABLE_TOO_LONG),
    always("uc_state.receive_without_local_write", LOCAL_ERROR),
];
/// rxe as requester of the software NIC.
pub(crate) const RXE_REQUESTS: &[Known] = &[
    always("atomic.misaligned", MISALIGNED),
    always("access.send_with_wrong_lkey", LOCAL_ERROR),
    since((6, 12), "access.send_beyond_the_region", FLUSHED_FAULT),
    always("ud_drop.high_bit_takes_own_key", OWN_KEY),
    always("ud_state.send_with_wrong_lkey", NO_SQE),
    always("ud_state.drained_sends_nothing", DRAINED_FOR_EVER),
    always("uc_state.send_with_wrong_lkey", NO_SQE),
    always("uc_state.drained_sends_nothing", DRAINED_FOR_EVER),
];

/// The differences of the kernel that runs.
pub(crate) fn differences(known: &[Known]) -> Vec<Difference> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    of_series(known, series(&release).unwrap_or((0, 0)))
}

fn of_series(known: &[Known], running: Series) -> Vec<Difference> {
    let there = known.iter().filter(|k| running >= k.came_in && k.gone_in.is_none_or(|gone_in| running < gone_in));
    there.map(|k| Difference { case: k.case, reason: k.reason, sometimes: k.is_racy }).collect()
}

/// The series of a release such as `6.12.38-amd64`.
fn series(release: &str) -> Option<Series> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert_eq!(series("6.1.0-47-amd64\n"), Some((6, 1)));
        assert_eq!(series("6.12.38+deb12-amd64"), Some((6, 12)));
        assert_eq!(series("7.0-rc1"), Some((7, 0)));
        assert_eq!(series("linux"), None);
    }

    #[test]
    fn a_table_for_each_kernel() {
        let has = |running| of_series(RXE, running).iter().any(|d| d.case == "event.last_wqe_with_srq");
        assert!(has((6, 1)) && has((6, 11)) && !has((6, 12)) && !has((7, 0)));
        let newer = |running| of_series(RXE, running).into_iter().find(|d| d.case == "event.error_counts_as_solicited");
        assert!(newer((6, 1)).is_none() && newer((6, 12)).is_some_and(|d| !d.sometimes));
        let flush = of_series(RXE, (6, 1)).into_iter().find(|d| d.case == "flush.receive_to_error_state");
        assert!(flush.is_some_and(|d| d.sometimes));
        assert_eq!(of_series(RXE_REQUESTS, (6, 12)).len(), RXE_REQUESTS.len());
    }

    #[test]
    fn entries_name_cases() {
        let cases: Vec<&str> = conformance::CASES.iter().map(|case| case.name).collect();
        assert!([RXE, RXE_RESPONDS, RXE_REQUESTS].iter().flat_map(|t| t.iter()).all(|k| cases.contains(&k.case)));
    }
}
