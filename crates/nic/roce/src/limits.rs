//! Named bounds of everything that grows.

use crate::wire::rnr_delay;
use std::time::Duration;

/// What a [`crate::Nic`] can hold. The defaults suit a daemon with some thousand peers: nothing
/// is allocated before it is used. A simulator may take less.
#[derive(Debug, Clone)]
pub struct NicLimits {
    /// QPs.
    pub max_qp: u32,
    /// CQs.
    pub max_cq: u32,
    /// SRQs.
    pub max_srq: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Memory regions, at most 65,536.
    pub max_mr: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Work requests of one SRQ.
    pub max_srq_wr: u32,
    /// Completions of one CQ.
    pub max_cqe: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Inline bytes of one send.
    pub max_inline_bytes: u32,
    /// READs and atomics outstanding per QP and direction.
    pub max_rd_atomic: u8,
    /// Bytes of one message, at most 2^31 (IBTA 9.7.7).
    pub max_msg_bytes: u32,
    /// Unacknowledged packets of one QP, at most 2^22.
    pub window_packets: u32,
    /// Unacknowledged bytes of one QP, [`PACKET_CHARGE_BYTES`] for each packet included.
    pub window_bytes: u32,
}

impl Default for NicLimits {
    fn default() -> Self {
        Self {
            max_qp: 16_384,
            max_cq: 4_096,
            max_srq: 1_024,
            max_ah: 65_536,
            max_mr: 65_536,
            max_qp_wr: 32_768,
            max_srq_wr: 65_536,
            max_cqe: 4 << 20,
            max_sge: 16,
            max_inline_bytes: 1_024,
            max_rd_atomic: 64,
            max_msg_bytes: MAX_MESSAGE_BYTES,
            window_packets: 256,
            window_bytes: 1 << 20,
        }
    }
}

/// Longest message of the transport.
pub(crate) const MAX_MESSAGE_BYTES: u32 = 1 << 31;
/// Largest window in packets: far below half of the PSN space, in which "before" and "after" have a meaning.
pub(crate) const MAX_WINDOW_PACKETS: u32 = 1 << 22;
/// Packets of SENDs and WRITEs that a peer can have under way behind one that was lost: 64 MiB at path MTU 1024, 5 ms
/// at 100 Gbit/s. A packet that is further ahead was not sent by the peer, or is sent again after its ACK timeout.
pub(crate) const AHEAD_PACKETS_MAX: u32 = 1 << 16;
/// A packet that comes so many places late at most was overtaken on its way, and does not begin a new round.
pub(crate) const OVERTAKEN_PACKETS_MAX: u32 = 32;
/// What a packet costs of a byte window beyond its payload: headers, and bookkeeping of receive buffers.
pub const PACKET_CHARGE_BYTES: u64 = 128;
/// The bits of a traffic class that are of ECN, and their value for a packet that may be marked (RFC 3168, ECT(0)).
pub(crate) const ECN_BITS: u8 = 0b11;
/// See [`ECN_BITS`].
pub(crate) const ECN_CAPABLE: u8 = 0b10;
/// A QP notifies its peer of marks once in this time at most.
pub(crate) const NOTIFICATIONS_APART: Duration = Duration::from_micros(50);
/// Packets of the path MTU that a new queue pair has in flight before the first of them is answered.
pub(crate) const INITIAL_PACKETS: u64 = 64;
/// From this round trip on a path is far. Below it the host's own scheduling is most of a round trip, and pacing would
/// need timers that no host has.
pub(crate) const FAR_ROUND_TRIP: Duration = Duration::from_micros(500);
/// Bytes in flight over a far path at most: each loss repeats them.
pub(crate) const FAR_WINDOW_MAX: u32 = 4 << 20;
/// The same in packets: what a peer still takes for sent by us ([`AHEAD_PACKETS_MAX`]).
pub(crate) const FAR_PACKETS_MAX: u32 = AHEAD_PACKETS_MAX / 2;
/// Over a far path packets leave in bursts of so much time of the rate.
pub(crate) const PACE_BURST: Duration = Duration::from_micros(250);
/// The same in packets, where the path marks queues: a longer burst would be marked as one. Thresholds begin at 20 packets
/// (DCTCP, Alizadeh et al., SIGCOMM 2010, at 1 Gbit/s).
pub(crate) const MARKED_BURST_PACKETS: u64 = 16;
/// A round trip that is longer than the ACK timeout stretches the timeout, up to this.
pub(crate) const STRETCHED_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// The window is never cut below so many packets of the path MTU.
pub(crate) const WINDOW_FLOOR_PACKETS: u64 = 8;
/// Largest UDP payload of IPv4, which also bounds a GSO batch.
pub(crate) const MAX_UDP_PAYLOAD_BYTES: usize = 65_507;
/// Segments of a GSO batch that Linux accepts.
pub(crate) const MAX_GSO_SEGMENTS: usize = 128;
/// QP numbers that were destroyed last and are not given out again.
pub(crate) const RECENT_QPNS: usize = 4_096;
/// Answers to duplicate READs that wait behind the answers to new ones.
pub(crate) const MAX_DUPLICATE_JOBS: usize = 16;
/// Largest code of the RNR timer and of the ACK timeout.
pub(crate) const MAX_TIMER_CODE: u8 = 31;
/// Largest retry count; for RNR it means "for ever".
pub(crate) const MAX_RETRY: u8 = 7;
/// How long a responder may owe an acknowledgement that was not asked for. Below [`PROBE_FLOOR`], so that the requester
/// does not take the silence for a loss.
pub(crate) const OWED_ACK_MAX: Duration = Duration::from_micros(500);
/// Shortest silence after which the oldest unacknowledged packet is sent again, before the ACK timeout (see
/// [`crate::NicCounters::probes`]).
pub(crate) const PROBE_FLOOR: Duration = Duration::from_millis(1);
/// Such probes without progress in between, each after twice the silence of the one before; then only the ACK timeout
/// is left.
pub(crate) const MAX_PROBES: u32 = 4;
/// After an RNR NAK, how long a responder takes packets behind the refused one for leftovers of the same burst.
pub(crate) const fn rnr_silence(code: u8) -> Duration {
    rnr_delay(code)
}
