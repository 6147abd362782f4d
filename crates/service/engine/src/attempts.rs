//! What is on its way to become a connection: connects without an answer, and opens of peers that wait for rings.
//!
//! Types and their tables; the rounds that carry them on are `engine::connect` and `engine::listen`.

use std::net::{IpAddr, SocketAddr};

use control::Kind;
use genslab::GenSlab;

use crate::frame::Open;
use crate::ids::{AppId, ConnectId, LaneId, ParkedId, RouteId};
use crate::ring_size::RingSize;

/// Connects without an answer.
pub(crate) type Connects = GenSlab<ConnectId, Connect>;
/// Opens that wait for rings.
pub(crate) type ParkedOpens = GenSlab<ParkedId, ParkedOpen>;

/// A connect without an answer.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) app: AppId,
    pub(crate) request: u64,
    pub(crate) to: SocketAddr,
    pub(crate) size: RingSize,
    pub(crate) kind: Kind,
    pub(crate) lane: LaneId,
    /// The virtual QP, once it has rings.
    pub(crate) route: Option<RouteId>,
    /// How often its lane made room for another host's before there was an answer.
    pub(crate) displaced: u32,
}

/// A peer's open that waits for rings. Its backlog place is taken.
#[derive(Debug)]
pub(crate) struct ParkedOpen {
    pub(crate) lane: LaneId,
    pub(crate) from: IpAddr,
    pub(crate) open: Open,
    pub(crate) app: AppId,
    /// The rings as they are allocated, and as they will be used.
    pub(crate) allocated: RingSize,
    pub(crate) size: RingSize,
}
