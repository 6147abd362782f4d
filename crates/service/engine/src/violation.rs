//! What a peer daemon can do that fails its lane.
//!
//! A list, no behaviour. A violation costs the peer its lane and the connections on it, never the engine or another
//! lane.

use shm::PeerFault;
use verbs::Placed;

use crate::credit::CreditError;
use crate::frame::FrameError;
use crate::operations::owned::RegionBreach;
use crate::sendq::StrayCompletion;

/// The peer daemon, or the device, broke the protocol of the lane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("malformed control frame: {0}")]
    Frame(#[from] FrameError),
    #[error("receive credits: {0}")]
    Credit(#[from] CreditError),
    #[error("device: {0}")]
    Stray(#[from] StrayCompletion),
    #[error("frame of incarnation {found} on a lane of incarnation {expected}")]
    Incarnation { found: u32, expected: u32 },
    #[error("frame number {found}, expected {expected}")]
    Sequence { found: u64, expected: u64 },
    #[error("frame of {0} bytes is longer than a receive buffer")]
    FrameLength(u32),
    #[error("data for route {0:#x}, which does not exist or is on another lane")]
    DataRoute(u32),
    #[error("message of operation {0:#x}, of which there are none")]
    Operation(u32),
    #[error("record for route {0:#x}, which is on another lane")]
    RecordRoute(u32),
    #[error("answer to an open of route {0:#x}, which is not being opened")]
    Answer(u32),
    #[error("record for connection {id}, which is not open yet")]
    NotOpen { id: u64 },
    #[error("data for connection {id} after its end")]
    DataAfterEnd { id: u64 },
    #[error("data for connection {id}, whose bytes are being read out of the sender's ring")]
    DataWhileLent { id: u64 },
    #[error("{bytes} bytes for connection {id}, which has room for {granted}")]
    DataBeyondGrant { id: u64, bytes: u32, granted: u64 },
    #[error(
        "{bytes} bytes for connection {id} from offset {at}, but the device says that what arrived was placed: {placed:?}"
    )]
    NotPlaced { id: u64, bytes: u32, at: u64, placed: Placed },
    #[error("end of connection {id} at {final_tail}, but {arrived} bytes arrived, or it had ended before")]
    Fin { id: u64, final_tail: u64, arrived: u64 },
    #[error("connection {id}, about larger rings: {what}")]
    Growth { id: u64, what: &'static str },
    #[error("{bytes} bytes by SEND for connection {id}, of which {together} lie together in its ring")]
    Wraps { id: u64, bytes: u32, together: u64 },
    #[error("connection {id} may be read up to {found}, after {from}, with room for {granted}")]
    Ready { id: u64, found: u64, from: u64, granted: u64 },
    #[error("connection {id} is read no more up to {found}, which nobody was told to read")]
    Pulled { id: u64, found: u64 },
    #[error("a ring to be read, on a lane without READs")]
    NoReads,
    #[error("a connection, on a leased lane, which carries operations on regions alone")]
    LeasedOpen,
    #[error("SEND for route {0:#x} that claims bytes of WRITEs")]
    SendUnits(u32),
    #[error("second reset of connection {id}")]
    SecondReset { id: u64 },
    #[error("consumed bytes: {0}")]
    Cursor(#[from] PeerFault),
    #[error("more than {0} opens without an answer")]
    TooManyOpens(u32),
    #[error("{found} frames arrived at the peer, of {sent} that were sent")]
    FramesArrived { found: u64, sent: u64 },
    #[error("connection {id}: {found} bytes arrived at the peer, {first} to {last} can have")]
    BytesArrived { id: u64, found: u64, first: u64, last: u64 },
    #[error("connection {id}: an end arrived at the peer that was not sent")]
    EndArrived { id: u64 },
    #[error("the peer names connection {0:#x} in a state in which it cannot be")]
    RouteState(u32),
    #[error("{0}")]
    Region(#[from] RegionBreach),
    #[error("more than {0} operations without an answer")]
    TooManyOperations(u32),
    #[error("answer about operation {0:#x}, for which the peer was not asked")]
    OperationAnswer(u32),
    #[error("record about bytes of connection {id}, which carries messages on UC")]
    NotAStream { id: u64 },
    #[error("about the UC queue pair: {0}")]
    Unreliable(&'static str),
    #[error("{0} connections in one message")]
    TooManyRoutes(usize),
}
