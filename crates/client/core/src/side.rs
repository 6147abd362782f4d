//! The two directions of a connection, and how each ends.
//!
//! Owns what a reason in shared memory means. It must never let such a word say that nothing is wrong.

use control::Reason;

use crate::Forked;

/// A direction of this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Bytes that come.
    Read,
    /// Bytes that leave.
    Write,
}

impl Side {
    /// Its bit in a slot's `app_wait` and in a pair's `waiting` (docs/inside/shared-memory.md).
    pub const fn bit(self) -> u32 {
        match self {
            Self::Read => shm::waiting::READABLE,
            Self::Write => shm::waiting::WRITABLE,
        }
    }
}

/// How a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In order: no more bytes come, or the reader wants none.
    Finished,
    /// Broken.
    Reset(Reason),
    /// This process is a child made by `fork`, and the connection its parent's.
    Forked(Forked),
}

impl End {
    /// Why it is broken, if it is.
    pub fn failure(self) -> Option<Reason> {
        match self {
            Self::Reset(reason) => Some(reason),
            Self::Finished | Self::Forked(_) => None,
        }
    }
}

/// A reason found in shared memory. It always means a failure, whatever number is there.
pub(crate) fn failure(code: u32) -> Reason {
    match Reason::from_code(code) {
        Reason::Unspecified
        | Reason::Closed
        | Reason::SameHost
        | Reason::OtherHost
        | Reason::TcpFallback
        | Reason::BulkStream => Reason::ResetByPeer,
        reason => reason,
    }
}
