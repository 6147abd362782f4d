//! What a session has for the daemon.
//!
//! Owns the descriptor that goes with a message until it is sent.

use std::os::fd::BorrowedFd;

use control::Request;
use shm::Segment;

/// A message for the daemon.
#[derive(Debug)]
pub struct Outgoing {
    /// The message.
    pub request: Request,
    pub(crate) segment: Option<Segment>,
}

impl Outgoing {
    /// The descriptor that goes with it, if one does.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.segment.as_ref().map(Segment::fd)
    }
}
