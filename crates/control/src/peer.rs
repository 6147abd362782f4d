//! Messages between two daemons on the control link (TCP).
//!
//! Both sides send [`PeerMessage::Hello`] first. Then each proves that it has the cluster key by a MAC over both
//! challenges ([`PeerMessage::Proof`]); the key itself is never sent. Only then do lanes follow. What the MAC covers:
//! docs/wire.md.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Reason;

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 32;

/// A message on the control link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// First message of each side. Its encoding never changes in later versions.
    Hello {
        /// [`crate::WIRE_VERSION`] of the sender.
        version: u32,
        /// Release, for messages to people.
        release: String,
        /// Random number of the sending daemon process: tells a restart.
        instance: u64,
        /// The address by which applications name the sender's host.
        address: IpAddr,
        /// Random bytes to be proven over.
        challenge: [u8; CHALLENGE_BYTES],
    },
    /// HMAC-SHA256 under the cluster key, see docs/wire.md.
    Proof {
        /// The MAC.
        mac: [u8; 32],
    },
    /// What the sender's end of the lane is; the receiver moves its queue pair to RTR and RTS with it.
    LaneOffer(LaneOffer),
    /// The sender's queue pair is in RTS: the lane may be used.
    LaneReady {
        /// Which lane.
        lane: u32,
        /// Which incarnation.
        incarnation: u32,
    },
    /// Both ends give the lane's queue pair up.
    LaneReset {
        /// Which lane.
        lane: u32,
        /// The incarnation that is over.
        incarnation: u32,
        /// Why.
        reason: Reason,
    },
    /// Sent when nothing else was for a while; its absence tells a dead peer.
    Heartbeat,
    /// The sender closes the link.
    Bye {
        /// Why.
        reason: Reason,
        /// More words, for a person.
        detail: String,
    },
}

/// One end of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOffer {
    /// Number of the lane between the two hosts.
    pub lane: u32,
    /// Raised with each reset.
    pub incarnation: u32,
    /// Queue pair.
    pub qpn: u32,
    /// First PSN it sends.
    pub psn: u32,
    /// Address of its port.
    pub gid: IpAddr,
    /// UDP port of its port.
    pub udp_port: u16,
    /// Path MTU in bytes that it can take.
    pub mtu_bytes: u32,
    /// Longest message it takes.
    pub max_msg_bytes: u32,
    /// READs and atomics it executes at a time.
    pub max_rd_atomic: u8,
    /// SRQ entries that the receiver of this offer may use from the start.
    pub credits: u32,
    /// Longest SEND that fits an SRQ entry.
    pub send_bytes_max: u32,
    /// Bytes in flight that its port buffers, if known.
    pub rx_budget_bytes: Option<u32>,
}
