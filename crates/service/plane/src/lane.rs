//! What the control plane asks an engine about lanes, and what the engine answers.
//!
//! Owns the two vocabularies. An engine has one shared lane to each peer, the one with its own number, and engine 0 the
//! leased ones: which lane a command is about is said beside it. Each question but `Reset`, `Rest`, `Ready`, `Lost` and
//! `PeerSilent` gets exactly one answer, with the same round; answers come after every event that the engine made before.

use std::net::IpAddr;
use std::time::Duration;

use control::{LaneOffer, LaneRoutes, Reason};

use crate::{LinkPath, Refusal};

/// What an engine does for the lane to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneCommand {
    /// Make this side's end. Answered by [`LaneAnswer::Offered`].
    Offer {
        /// Which peer.
        peer: IpAddr,
        /// The number of the round.
        round: u64,
        /// Between which addresses the lane is to be; none: the device's own, and that of the peer's name.
        path: Option<LinkPath>,
    },
    /// Connect this side's end to the peer's. Answered by [`LaneAnswer::Accepted`].
    Accept {
        /// Which peer.
        peer: IpAddr,
        /// The number of the round.
        round: u64,
        /// The peer's end.
        offer: LaneOffer,
    },
    /// Report what arrived and was not reported yet. Answered by [`LaneAnswer::RoutesTold`].
    TellRoutes {
        /// Which peer.
        peer: IpAddr,
        /// The number of the round.
        round: u64,
    },
    /// Take what arrived at the peer. Answered by [`LaneAnswer::RoutesTaken`].
    TakeRoutes {
        /// Which peer.
        peer: IpAddr,
        /// The number of the round.
        round: u64,
        /// What the peer said.
        routes: LaneRoutes,
    },
    /// The peer gave its queue pair up: so does this side, and keeps the connections.
    Reset {
        /// Which peer.
        peer: IpAddr,
    },
    /// The peer gave its queue pair up because it has nothing to send: so does this side, and keeps the connections until
    /// either side needs the lane.
    Rest {
        /// Which peer.
        peer: IpAddr,
    },
    /// Both ends are connected: the lane may be used.
    Ready {
        /// Which peer.
        peer: IpAddr,
    },
    /// The lane, or the wish for one, is over: its connections and connects end.
    Lost {
        /// Which peer.
        peer: IpAddr,
        /// Why.
        reason: Reason,
    },
    /// The peer's daemon has said nothing for so long, or (`None`) speaks again.
    PeerSilent {
        /// Which peer.
        peer: IpAddr,
        /// For how long.
        silent: Option<Duration>,
    },
}

/// An engine's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneAnswer {
    /// This side's end, or why there is none.
    Offered {
        /// The number of the round.
        round: u64,
        /// The offer.
        result: Result<LaneOffer, Refusal>,
    },
    /// Whether the two ends are connected.
    Accepted {
        /// The number of the round.
        round: u64,
        /// Nothing, or why not.
        result: Result<(), Refusal>,
    },
    /// What arrived.
    RoutesTold {
        /// The number of the round.
        round: u64,
        /// The next part, if there is one.
        routes: Option<LaneRoutes>,
        /// Both sides have reported everything.
        done: bool,
    },
    /// Whether what the peer said can be.
    RoutesTaken {
        /// The number of the round.
        round: u64,
        /// Whether both sides have reported everything, or (for people) why the lane's connections cannot go on.
        result: Result<bool, String>,
    },
}
