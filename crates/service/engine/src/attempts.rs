//! What is on its way to become a connection: connects without an answer, and opens of peers without an answer.
//!
//! Types and their tables; the rounds that carry them on are `engine::connect` and `engine::listen`.

use std::net::SocketAddr;

use control::Kind;
use genslab::GenSlab;

use crate::event::Admission;
use crate::frame::Open;
use crate::ids::{AppId, ConnectId, LaneId, OpenId, RouteId};
use crate::ring_size::RingSize;

/// Connects without an answer.
pub(crate) type Connects = GenSlab<ConnectId, Connect>;
/// Opens of peers without an answer.
pub(crate) type ParkedOpens = GenSlab<OpenId, ParkedOpen>;

/// A connect without an answer.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) app: AppId,
    pub(crate) request: u64,
    /// Number of the connection.
    pub(crate) connection: u64,
    pub(crate) local: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) size: RingSize,
    pub(crate) kind: Kind,
    pub(crate) lane: LaneId,
    /// The virtual QP, once it has rings.
    pub(crate) route: Option<RouteId>,
    /// How often its lane made room for another host's before there was an answer.
    pub(crate) displaced: u32,
}

/// A peer's open that waits for the control plane, and then for rings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParkedOpen {
    pub(crate) lane: LaneId,
    pub(crate) open: Open,
    pub(crate) admitted: Option<Admitted>,
}

/// What the control plane granted to a peer's open, and the rings that the connection gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admitted {
    pub(crate) admission: Admission,
    /// The rings as they are allocated, and as they will be used.
    pub(crate) allocated: RingSize,
    pub(crate) size: RingSize,
}
