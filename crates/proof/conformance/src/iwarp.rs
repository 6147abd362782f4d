//! Where connections that are set up by endpoints, and iWARP, differ from what the IBTA has, whoever speaks it.

use crate::Difference;

/// Where iWARP differs from what the IBTA has (docs/proof/conformance.md).
pub const ON_IWARP: &[Difference] = &[
    differs("state.responder_works_in_rtr", NO_RTR),
    differs("access.send_with_wrong_lkey", TOLD_OF_FAULT),
    differs("access.send_beyond_the_region", TOLD_OF_FAULT),
    differs("length.full_send_queue_refused", NO_RNR),
    differs("retry.late_receive_succeeds", NO_RNR),
    differs("retry.late_receive_for_write_imm", NO_RNR),
    differs("retry.later_messages_wait_behind_rnr", NO_RNR),
    Difference { case: "retry.peer_without_qp", reason: TOLD_OF_END, sometimes: true },
    Difference { case: "retry.peer_in_error", reason: TOLD_OF_END, sometimes: true },
    Difference { case: "flush.nothing_lands_after_error", reason: TOLD_OF_END, sometimes: true },
];
/// Where a RoCEv2 connection differs that is set up by endpoints, and so in one step.
pub const BY_ENDPOINTS: &[Difference] =
    &[differs("state.responder_works_in_rtr", "endpoints take an end from Init to RTS in one step")];
const NO_RTR: &str = "RFC 5040 has no state in which an end receives and does not send";
const TOLD_OF_FAULT: &str = "the end at fault sends a Terminate message, which flushes the peer's receives";
const NO_RNR: &str = "a message that finds no receive ends the stream: there is no RNR NAK";
const TOLD_OF_END: &str = "a peer that ends tells this end, which may learn of it before the post";

const fn differs(case: &'static str, reason: &'static str) -> Difference {
    Difference { case, reason, sometimes: false }
}
