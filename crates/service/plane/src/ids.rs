//! Names of programs and of links. Owns nothing; no name is ever used again for another.

/// A program attached to the control socket. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A TCP connection to another daemon. Never used again for another. Links that this daemon dials have numbers below
/// [`LinkId::FIRST_ACCEPTED`], which [`crate::Peers`] gives out; those that it accepted have numbers from there on, which
/// whoever accepts gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

impl LinkId {
    /// The first link that was accepted.
    pub const FIRST_ACCEPTED: Self = Self(1 << 63);
}

/// A program, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Its attachment.
    pub client: ClientId,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}
