//! iWARP as a state machine: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC 7306) over a TCP
//! connection, without I/O.
//!
//! What is spoken, what is not, and which error answers what: docs/inside/iwarp.md.
//!
//! Memory, completion and receive queues are those of [`rnic::Device`]. Sockets, threads, clocks and randomness stay
//! outside; bytes and time are arguments, and everything replays. Bytes of a peer never panic and never reach memory
//! that is not registered for what they do. A frame that breaks a rule costs its own stream, with the Terminate message
//! that the RFCs name for it.
//!
//! It must never read a clock, draw randomness, or let one stream cost another. May use `rnic`, `verbs`. Order of
//! calls: bytes that arrived go in, bytes to send come out, then completions; after an error only the Terminate
//! message.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod counters;
pub mod ddp;
mod limits;
pub mod mpa;
mod qp;
pub mod rdmap;
pub mod terminate;
mod transfer;

pub use counters::WireCounters;
pub use limits::{LINGER_MAX, MAX_MESSAGE_BYTES, SEGMENT_PAYLOAD_MAX, STARTUP_MAX};
pub use qp::{Ending, Extensions, Qp, QpAttr, QpEvent};
pub use transfer::{Gather, GatherPiece, Scatter};
