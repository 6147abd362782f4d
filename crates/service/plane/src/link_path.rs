//! The two addresses between which a link and its lanes are.
//!
//! A name without behaviour. It must never use a module that has state.

use std::net::IpAddr;

/// A way between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkPath {
    /// The address of this host.
    pub own: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
}

impl std::fmt::Display for LinkPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.own, self.peer)
    }
}
