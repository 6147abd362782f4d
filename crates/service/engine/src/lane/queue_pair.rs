//! The queue pair of a lane: how far its incarnation is, and what both ends agreed on for it.
//!
//! Owns the order of the states. Numbers of the peer, and what was agreed, stay after the queue pair until there is a
//! next one.

use std::net::IpAddr;

use verbs::{Capabilities, Endpoint, Link, Qpn, Time, Wire};

use crate::immediate::{UNIT_BYTES, UNITS_MAX};
use crate::lane_at::LanePath;

/// How far a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LaneState {
    /// No queue pair.
    #[default]
    Down,
    /// Queue pair in Init: the peer knows it or will.
    Offered,
    /// Ready to send; whether the peer is ready is not known.
    Accepted,
    /// Connections use it.
    Up,
}

/// This end of a new incarnation.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    pub(crate) incarnation: u32,
    pub(crate) qpn: Qpn,
    /// As the peer is told.
    pub(crate) endpoint: Endpoint,
    /// SRQ entries that the peer may use.
    pub(crate) credits: u32,
}

/// The other end of it, and what both have agreed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerEnd {
    pub(crate) incarnation: u32,
    pub(crate) link: Link,
    /// Entries of the peer's SRQ that this end may use.
    pub(crate) credits: u32,
    /// Longest frame that both take.
    pub(crate) frame_bytes_max: usize,
    /// Longest piece of ring data that both take.
    pub(crate) piece_bytes_max: u32,
    /// Longest piece of ring data that goes by SEND.
    pub(crate) send_bytes_max: u32,
    /// Long pieces leave as a WRITE and a WRITE with immediate (see `immediate`).
    pub(crate) splits_pieces: bool,
    /// Longest piece of an operation that both take.
    pub(crate) operation_bytes_max: u32,
    /// The peer's device may answer a WRITE before its processor sees the bytes.
    pub(crate) is_confirming: bool,
    /// What the peer's device can do.
    pub(crate) capabilities: Capabilities,
}

/// How long what leaves may be, as both ends take it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pieces {
    pub(crate) frame_bytes_max: usize,
    pub(crate) piece_bytes_max: u32,
    pub(crate) send_bytes_max: u32,
    pub(crate) splits_pieces: bool,
}

impl Pieces {
    fn of(peer: &PeerEnd) -> Self {
        // The immediate says how much came before the last part of a piece.
        let max = if peer.splits_pieces { UNITS_MAX * UNIT_BYTES } else { u32::MAX };
        Self {
            frame_bytes_max: peer.frame_bytes_max,
            piece_bytes_max: peer.piece_bytes_max.min(max),
            send_bytes_max: peer.send_bytes_max.min(peer.piece_bytes_max),
            splits_pieces: peer.splits_pieces,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct QueuePair {
    state: LaneState,
    incarnation: u32,
    qpn: Qpn,
    /// This end, as the peer was told.
    own: Option<Endpoint>,
    /// Between which addresses it is; none: the device's own and the peer's name.
    path: Option<LanePath>,
    peer_incarnation: u32,
    peer_qpn: u32,
    peer_port: u16,
    peer_capabilities: Capabilities,
    /// What carries and protects it, and why, if it was connected.
    link: Option<Link>,
    pieces: Pieces,
    /// When this incarnation came up.
    up_since: Time,
    /// It failed: it is taken down at the end of the round, for this reason.
    failing: Option<String>,
}

impl QueuePair {
    /// There is none yet.
    pub(super) fn none() -> Self {
        Self {
            state: LaneState::Down,
            incarnation: 0,
            qpn: Qpn(0),
            own: None,
            path: None,
            peer_incarnation: 0,
            peer_qpn: 0,
            peer_port: 0,
            peer_capabilities: Capabilities::empty(),
            link: None,
            pieces: Pieces::default(),
            up_since: Time::ZERO,
            failing: None,
        }
    }

    // ---- what it is

    pub(crate) fn state(&self) -> LaneState {
        self.state
    }

    /// Whether connections use it.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state == LaneState::Up
    }

    /// Whether there is one.
    pub(crate) fn exists(&self) -> bool {
        self.state != LaneState::Down
    }

    /// Whether frames of the peer are understood.
    pub(crate) fn can_receive(&self) -> bool {
        matches!(self.state, LaneState::Accepted | LaneState::Up)
    }

    /// Its number, if it exists.
    #[inline]
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        self.exists().then_some(self.qpn)
    }

    /// The peer's, if it exists.
    pub(super) fn peer_qpn(&self) -> Option<u32> {
        self.exists().then_some(self.peer_qpn)
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    pub(crate) fn peer_incarnation(&self) -> u32 {
        self.peer_incarnation
    }

    /// The peer's UDP port.
    pub(crate) fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// What the peer's device can do.
    pub(crate) fn peer_capabilities(&self) -> Capabilities {
        self.peer_capabilities
    }

    /// What carries and protects it; `None` while it was not connected.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link
    }

    /// What carries it, likewise.
    pub(crate) fn wire(&self) -> Option<Wire> {
        self.link.map(|link| link.wire)
    }

    /// How long what leaves may be.
    #[inline]
    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// When this incarnation, or the last one, came up.
    pub(super) fn up_since(&self) -> Time {
        self.up_since
    }

    // ---- where it is

    /// Between which addresses it is from now on; none: the device's own and the peer's name.
    pub(crate) fn set_path(&mut self, path: Option<LanePath>) {
        self.path = path;
    }

    /// The address of this host at which it is; none: the device's own.
    pub(crate) fn local(&self) -> Option<IpAddr> {
        self.path.map(|path| path.own)
    }

    /// Where the peer is reached, if not by its name.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        self.path.map(|path| path.peer.to_canonical())
    }

    // ---- from nothing to up, and back

    /// It was made, and the peer gets its offer.
    pub(super) fn on_offered(&mut self, own: OwnEnd) {
        self.link = None;
        self.state = LaneState::Offered;
        self.incarnation = own.incarnation;
        self.qpn = own.qpn;
        self.own = Some(own.endpoint);
    }

    /// Its number, and this end as the peer got it, if the peer's end is still to come.
    pub(crate) fn offered(&self) -> Option<(Qpn, &Endpoint)> {
        self.own.as_ref().filter(|_| self.state == LaneState::Offered).map(|own| (self.qpn, own))
    }

    /// The peer's offer was taken.
    pub(super) fn on_accepted(&mut self, peer: &PeerEnd) {
        self.state = LaneState::Accepted;
        self.peer_incarnation = peer.incarnation;
        self.peer_qpn = peer.link.peer_qpn;
        self.peer_port = peer.link.peer.port();
        self.peer_capabilities = peer.capabilities;
        self.link = Some(peer.link);
        self.pieces = Pieces::of(peer);
    }

    /// Connections may use it.
    pub(super) fn on_ready(&mut self, now: Time) {
        self.state = LaneState::Up;
        self.up_since = now;
    }

    /// It is destroyed.
    pub(super) fn forget(&mut self) {
        self.state = LaneState::Down;
        self.failing = None;
    }

    // ---- failing

    /// It failed. False: that is known already, or there is none.
    pub(crate) fn fail(&mut self, detail: String) -> bool {
        let first = self.exists() && self.failing.is_none();
        if first {
            self.failing = Some(detail);
        }
        first
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Why it is to be taken down.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failing.take()
    }
}
