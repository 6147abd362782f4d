//! What an engine says to the control plane: events of its own, and answers to commands.

use std::net::IpAddr;

use control::{Reason, RegionGrant, RegionRefusal};
use engine::{AppId, BulkStream, Event};
use plane::{ClientId, LaneAnswer};

/// What an engine says to the control plane.
#[derive(Debug)]
pub enum Report {
    /// Of itself.
    Event(Event),
    /// Whether it has taken a program in.
    Attached {
        /// The program.
        client: ClientId,
        /// What the engine calls it, or why not.
        result: Result<AppId, Reason>,
    },
    /// About a lane.
    Lane {
        /// Its peer.
        peer: IpAddr,
        /// Its number.
        lane: u32,
        /// The answer.
        answer: LaneAnswer,
    },
    /// The stream that a peer's offer means.
    StreamOfRoute {
        /// The peer.
        peer: IpAddr,
        /// Number of the offer.
        number: u64,
        /// The stream, if there is one.
        stream: Option<BulkStream>,
    },
    /// Whether there was a lane to reset.
    LaneWasReset {
        /// Who asked.
        client: ClientId,
        /// The program's name for it.
        request: u64,
        /// There was.
        found: bool,
    },
    /// Whether a peer may reach a region.
    RegionGranted {
        /// The peer.
        peer: IpAddr,
        /// The peer's handle.
        open: u64,
        /// By what.
        result: Result<RegionGrant, RegionRefusal>,
        /// The region that was to be registered, and is not.
        not_registered: Option<u64>,
    },
    /// A region's registration is given up.
    RegionDeregistered {
        /// The region.
        region: u64,
    },
    /// Whether a handle to a region of another host is open.
    RegionOpened {
        /// The handle.
        open: u64,
        /// What the engine calls it, or why not.
        result: Result<u32, Reason>,
    },
    /// Whether a region is local memory of a program.
    RegionAttached {
        /// The program.
        app: AppId,
        /// The memory's number.
        number: u32,
        /// Nothing, or why not.
        result: Result<(), RegionRefusal>,
    },
    /// Whether a kernel can be run.
    KernelInstalled {
        /// Who asked.
        client: ClientId,
        /// The program's name for it.
        request: u64,
        /// Nothing, or why not.
        result: Result<(), RegionRefusal>,
    },
}
