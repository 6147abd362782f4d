//! Which of the lanes to a host is meant.
//!
//! A name without behaviour. It must never use a module that has state.

use std::net::IpAddr;

/// The lane that all programs share, or a leased one, which carries the operations of one program's
/// handles alone (docs/inside/lanes.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneAt {
    /// The other host.
    pub peer: IpAddr,
    /// Number of a leased lane, at least [`control::LEASED_LANE_FIRST`]; none for the shared one.
    pub leased: Option<u32>,
}

/// Between which addresses a lane is, where hosts have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanePath {
    /// The address of this host.
    pub own: IpAddr,
    /// The peer's, which may be another one than its name.
    pub peer: IpAddr,
}

impl LaneAt {
    /// The lane of this number, as messages between daemons have it.
    pub fn new(peer: IpAddr, number: u32) -> Self {
        Self { peer, leased: Some(number).filter(|n| *n >= control::LEASED_LANE_FIRST) }
    }

    /// The host by the form of its address that tables have.
    pub(crate) fn canonical(self) -> Self {
        Self { peer: self.peer.to_canonical(), ..self }
    }
}

impl From<IpAddr> for LaneAt {
    fn from(peer: IpAddr) -> Self {
        Self { peer, leased: None }
    }
}
