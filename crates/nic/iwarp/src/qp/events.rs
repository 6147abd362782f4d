//! What the owner of a stream is told, and with what it makes one.

use verbs::{Access, QpInit, Qpn};

use crate::mpa::StartupFault;
use crate::terminate::{Cause, Terminate};

bitflags::bitflags! {
    /// What an end does beyond RFC 5040. It must be known of the peer before it is used.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Extensions: u8 {
        /// Immediate Data of RFC 7306: WRITE with immediate.
        const IMMEDIATE = 1;
        /// Atomics of RFC 7306.
        const ATOMICS = 1 << 1;
        /// An immediate in front of a Send belongs to it ([`crate::rdmap::ImmediateOf::Send`]): SEND with immediate.
        const SEND_IMMEDIATE = 1 << 2;
    }
}

/// How to make a [`crate::Qp`].
#[derive(Debug, Clone)]
pub struct QpAttr {
    /// Its number, which completions carry.
    pub qpn: Qpn,
    /// Its queues and their sizes.
    pub init: QpInit,
    /// What the peer may do through it.
    pub access: Access,
    /// Longest message, at most [`crate::MAX_MESSAGE_BYTES`].
    pub max_msg_bytes: u32,
    /// READs and atomics of the peer that are executed at a time.
    pub ird: u16,
    /// READs and atomics that are outstanding at most; less if the peer executes less.
    pub ord: u16,
    /// CRCs are asked for. If the peer asks, they are used anyhow.
    pub wants_crc: bool,
    /// What both ends do beyond RFC 5040.
    pub extensions: Extensions,
    /// A send completes when the peer's device has executed it, as the IBTA has it, and not when TCP has taken it
    /// (RFC 5040 section 5.1). Only if both ends have this: each executes one READ of no bytes beyond [`Self::ird`].
    pub confirms: bool,
}

/// What happened to a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpEvent {
    /// The exchange at the start is over: frames may go.
    Established {
        /// What the peer's reply brought; empty at the passive end.
        private_data: Vec<u8>,
        /// CRCs are used.
        has_crc: bool,
    },
    /// The stream ended. All work is flushed.
    Ended(Ending),
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ending {
    /// Closed by this end, and everything was done.
    #[error("closed in order")]
    Closed,
    /// Closed by the peer between two frames, with nothing outstanding.
    #[error("the peer closed the connection in order")]
    ClosedByPeer,
    /// Aborted by this end.
    #[error("aborted at this end")]
    Aborted,
    /// The peer refused the connection.
    #[error("the peer refused the connection, with {} bytes of private data", private_data.len())]
    Rejected {
        /// The reason that its upper layer gave.
        private_data: Vec<u8>,
    },
    /// The exchange at the start failed.
    #[error("the MPA exchange failed: {0}")]
    Startup(StartupFault),
    /// The peer did not answer in time.
    #[error("the peer did not finish the MPA exchange within 5 seconds")]
    StartupTimeout,
    /// The peer gave the stream up, and said why.
    #[error("the peer terminated the stream: {0}")]
    TerminatedByPeer(Terminate),
    /// The peer broke a rule.
    #[error("the peer broke a rule: {0}")]
    Violated(Cause),
    /// Memory of a work request, or of a READ that the peer asked for, is not registered any more.
    #[error("memory of this end is no longer registered for what a request does with it")]
    Local,
    /// The TCP connection ended in the middle of something.
    #[error("the TCP connection broke")]
    Broken,
}
