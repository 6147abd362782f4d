//! Names of programs and of links. Owns nothing; no name is ever used again for another.

/// A program attached to the control socket. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A TCP connection to another daemon. A number is never used again for another link. Links that this daemon dials have
/// numbers below [`LinkId::FIRST_ACCEPTED`], from [`crate::Peers`]. Links that it accepted have numbers from there on,
/// from the code that accepts.
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
