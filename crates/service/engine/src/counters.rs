//! What the engine counts.
//!
//! A list: the code that changes a number knows its meaning. The rows give the names in `raas stat`.

/// Events counted since the engine was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes of ring data sent and received.
    pub(crate) data_bytes: u64,
    /// `None`: the device does not count them.
    pub(crate) rnr_naks: Option<u64>,
    pub(crate) credit_stalls: u64,
    pub(crate) credit_shortages: u64,
    pub(crate) stale_frames: u64,
    pub(crate) app_faults: u64,
    pub(crate) violations: u64,
    pub(crate) lane_failures: u64,
    pub(crate) lane_resets: u64,
    pub(crate) lane_rests: u64,
    /// Lanes that were made anew because their keys were worn.
    pub(crate) keys_renewed: u64,
    pub(crate) device_refusals: u64,
    pub(crate) frames_sent: u64,
    /// Records about connections in these.
    pub(crate) records_sent: u64,
    pub(crate) frames_received: u64,
    pub(crate) writes_sent: u64,
    pub(crate) writes_received: u64,
    /// Ring data by SEND.
    pub(crate) sends_sent: u64,
    pub(crate) sends_received: u64,
    /// READs of peers' rings.
    pub(crate) reads_posted: u64,
    /// Times that a ring was lent to its peer.
    pub(crate) rendezvous: u64,
    /// Choices of a verb, by reason, in the order of [`crate::choice::Why::ALL`].
    pub(crate) choices: [u64; 5],
    /// READs and WRITEs of operations.
    pub(crate) operations_posted: u64,
    pub(crate) connects: u64,
    pub(crate) connects_failed: u64,
    pub(crate) connects_displaced: u64,
    pub(crate) accepts: u64,
    pub(crate) opens_refused: u64,
    pub(crate) closed: u64,
    pub(crate) rests: u64,
    pub(crate) peer_timeouts: u64,
    pub(crate) ring_rests: u64,
    pub(crate) rings_grown: u64,
    /// Connections that waited because their peer's daemon was lost.
    pub(crate) connections_parted: u64,
    /// Of those, and of those that were taken over: met their other ends again.
    pub(crate) connections_returned: u64,
    /// Or did not in time.
    pub(crate) connections_given_up: u64,
    /// Taken over from a daemon before this one.
    pub(crate) connections_adopted: u64,
}
