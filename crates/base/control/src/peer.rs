//! Messages between two daemons on the control link (TCP).
//!
//! Both sides send [`PeerMessage::Hello`] first, in the clear. Then each sends a message of a Noise handshake with the
//! cluster key ([`PeerMessage::Noise`]); the key itself is never sent. Only then do lanes follow, in sealed frames. What
//! the handshake binds: docs/inside/control-link.md.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::words::foreign;
use crate::{MeetMessage, Reason, RegionAccess, RegionGrant, RegionKey, RegionLine, RegionRefusal};

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
        #[serde(deserialize_with = "foreign")]
        release: String,
        /// Random number of the sending daemon process. Another number means a restart.
        instance: u64,
        /// The address by which applications name the sender's host.
        address: IpAddr,
        /// Fresh random bytes, which the handshake binds.
        challenge: [u8; CHALLENGE_BYTES],
    },
    /// The sender's message of the Noise handshake, with [`LinkTerms`] as its payload: readable with the cluster key
    /// alone. See docs/inside/control-link.md.
    Noise {
        /// The message.
        message: Vec<u8>,
    },
    /// The sender's end of the lane. The receiver uses it to move its queue pair to RTR and RTS.
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
        /// The sender keeps the lane's connections, to go on with them on the next incarnation. They go on if both ends
        /// say so. Otherwise they end with `reason`.
        resumes: bool,
        /// The sender has nothing to send. If both ends say so, the next round does not follow at once, but when either
        /// end needs it.
        rests: bool,
    },
    /// Sent when nothing else was sent for a while. If it stays away, the peer may be dead.
    Heartbeat,
    /// The sender closes the link.
    Bye {
        /// Why.
        reason: Reason,
        /// Details for a person.
        #[serde(deserialize_with = "foreign")]
        detail: String,
    },
    /// What of the old incarnation arrived at the sender, before the new one is used.
    LaneRoutes(LaneRoutes),
    /// The last LaneRoutes was taken: the next may follow.
    LaneRoutesTaken {
        /// Which lane.
        lane: u32,
        /// The incarnation of the sender's offer.
        incarnation: u32,
    },
    /// The sender offers a TCP connection of its own to a stream of bulk (docs/inside/kernel-tcp.md): the receiver
    /// connects to the sender's port of control links.
    DirectOffer {
        /// Number of the offer among the sender's.
        number: u64,
        /// The lane that carries the stream.
        lane: u32,
        /// The stream, as the receiver names it there: its route id.
        route: u32,
        /// Random bytes that the receiver proves to know. Used once.
        token: [u8; CHALLENGE_BYTES],
    },
    /// The stream of an offer stays on the lane.
    DirectRefused {
        /// The offer.
        number: u64,
        /// It is the receiver's offer; else the sender's own.
        is_yours: bool,
        /// Why.
        reason: Reason,
    },
    /// First and only message of its sender on a TCP connection for an offer.
    DirectHello {
        /// The offer.
        number: u64,
        /// Fresh random bytes.
        nonce: [u8; CHALLENGE_BYTES],
        /// That the sender knows the token.
        mac: [u8; 32],
    },
    /// Its answer: the rest of the TCP connection is the applications'.
    DirectProof {
        /// That the sender knows the token.
        mac: [u8; 32],
    },
    /// About regions.
    Region(RegionMessage),
    /// About TCP connections that streams are to replace.
    Meet(MeetMessage),
}

/// What a daemon says under the cluster key before its link is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTerms {
    /// Engines of the sender. There are as many lanes as the daemon with fewer engines has, numbered from 0. 0 means 1.
    pub engines: u32,
    /// The link whose place this one takes, by the number that both ends gave it; 0: none (docs/operate/failover.md).
    pub replaces: u64,
    /// How often the sender says something at least, in milliseconds.
    pub heartbeat_ms: u32,
}

/// Lanes from this number on are leased: each carries the operations of one handle alone (docs/inside/lanes.md). Lanes
/// below it are shared, and have the numbers of engines.
pub const LEASED_LANE_FIRST: u32 = 1 << 16;

/// What two daemons say of regions (docs/use/regions.md). The asker is the daemon whose program opens a region; it
/// numbers its handles itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionMessage {
    /// A program of the asker wants a handle to a region of the receiver. Answered by [`RegionMessage::Opened`].
    Open {
        /// The asker's number of the handle.
        open: u64,
        /// The program's user on its host.
        uid: u32,
        /// The region's name.
        name: String,
        /// Its key.
        key: RegionKey,
        /// What the handle is for.
        access: RegionAccess,
        /// Opened by a lease of the receiver's: then the name does not count.
        lease: Option<u64>,
        /// Its operations are to have a lane of their own, of this number, for which the asker makes an offer when the
        /// handle is there.
        lane: Option<u32>,
    },
    /// A program of the asker is to be the one writer of a region of the receiver. Answered by [`RegionMessage::Opened`].
    TakeOver {
        /// The asker's number of the handle.
        open: u64,
        /// The program's user on its host.
        uid: u32,
        /// The region's name.
        name: String,
        /// Its key.
        key: RegionKey,
        /// As in [`RegionMessage::Open`].
        lane: u32,
        /// Greater than that of every take-over before.
        term: u64,
    },
    /// The receiver's handle is over, and its lane ends.
    Superseded {
        /// The handle.
        open: u64,
        /// Why.
        why: RegionRefusal,
    },
    /// Answer to [`RegionMessage::Open`] and [`RegionMessage::TakeOver`].
    Opened {
        /// The handle.
        open: u64,
        /// Where the region is and which one it is, or why there is no handle.
        result: Result<(RegionGrant, RegionLine), RegionRefusal>,
    },
    /// Nothing of the handle is in use, or in flight, any more.
    Closed {
        /// The handle.
        open: u64,
    },
    /// All handles of the receiver to this region are over. Answered by [`RegionMessage::Stopped`].
    Stop {
        /// The region, as its owner's daemon numbers it.
        region: u64,
        /// Handles of this epoch, and of those before.
        epoch: u64,
        /// Why.
        why: RegionRefusal,
    },
    /// Nothing that the sender's programs began with that region is in flight any more.
    Stopped {
        /// The region.
        region: u64,
        /// The epoch.
        epoch: u64,
    },
    /// A program of the sender gave slices back that one of the receiver's had lent to it.
    LoansBack {
        /// The lease.
        lease: u64,
        /// Its key.
        key: RegionKey,
        /// The loans: bit n stands for loan n of the connection.
        loans: u64,
    },
}

/// Connections that one [`LaneRoutes`] names at most: with them it is at most 40 KiB long.
pub const ROUTES_PER_MESSAGE: usize = 1024;

/// A part of what of the old incarnation of a lane arrived at the sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRoutes {
    /// Which lane.
    pub lane: u32,
    /// The incarnation of the sender's offer.
    pub incarnation: u32,
    /// Number of the last control frame that the sender handled.
    pub frames_received: u64,
    /// The sender kept nothing of the old incarnation: what it did for the receiver is not known any more.
    pub is_fresh: bool,
    /// At most [`ROUTES_PER_MESSAGE`] connections.
    pub routes: Vec<RouteState>,
    /// No more follow: connections that were not named are none of the sender's.
    pub is_last: bool,
}

/// What the sender knows of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteState {
    /// The receiver's route id; 0 with [`route_flag::OPENING`].
    pub route: u32,
    /// The sender's route id; 0 with [`route_flag::PARKED`].
    pub own_route: u32,
    /// Bytes that arrived.
    pub rx_tail: u64,
    /// Bytes that the sender's application consumed.
    pub rx_head: u64,
    /// Bits of [`route_flag`].
    pub flags: u8,
}

/// Bits of [`RouteState::flags`].
pub mod route_flag {
    /// The sender sent Open and has no answer.
    pub const OPENING: u8 = 1;
    /// The receiver's Open arrived, and its answer is still to come.
    pub const PARKED: u8 = 1 << 1;
    /// The receiver's Fin arrived.
    pub const FIN: u8 = 1 << 2;
    /// The receiver's Stop arrived.
    pub const STOP: u8 = 1 << 3;
    /// The receiver's Reset arrived.
    pub const RESET: u8 = 1 << 4;
}

/// One end of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOffer {
    /// Number of the lane between the two hosts.
    pub lane: u32,
    /// Raised with each reset.
    pub incarnation: u32,
    /// The end itself, as the sender's device describes it to the receiver's (docs/inside/control-link.md,
    /// "Endpoints"). It is empty in no offer that is well-formed, and at most 128 bytes long.
    pub endpoint: Vec<u8>,
    /// What the sender's device does beyond the least (docs/inside/control-link.md, "Capabilities"). Bits that the
    /// receiver does not know are ignored.
    pub capabilities: u32,
    /// Longest message it takes.
    pub max_msg_bytes: u32,
    /// SRQ entries that the receiver of this offer may use from the start.
    pub credits: u32,
    /// Longest SEND that fits an SRQ entry.
    pub send_bytes_max: u32,
    /// Where it takes datagrams, if its device has them.
    pub datagrams: Option<DatagramOffer>,
}

/// Where a host takes datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramOffer {
    /// The port, as [`LaneOffer::endpoint`].
    pub endpoint: Vec<u8>,
    /// Random number of the sending daemon process that stands in its datagrams.
    pub token: u64,
}
