//! What every client of the daemon does, without waiting: sessions, connections, rings, readiness, messages.
//!
//! The crate starts no thread, blocks on nothing, takes no lock and asks no clock. Each call looks once and says what
//! it found; how to wait for more is the caller's part. Threads that park (`raas`), tasks (`raas::aio`), the
//! simulator's processes, and programs that bring their own loop stand on the same code.
//!
//! | part | owns | the caller does |
//! |---|---|---|
//! | [`Greeting`] | the first exchange with the daemon | moves its two messages over the socket |
//! | [`Session`] | requests, listeners' backlogs, chunks, pairs, slots | hands in each message of the daemon, sends what [`Session::next_outgoing`] gives |
//! | [`Endpoint`], [`Rx`], [`Tx`] | one end of a connection and its two rings | tries, and arms before it waits |
//! | [`Incoming`] | the framing of messages | gives it bytes |
//! | [`Life`] | whether a session or pair still stands, in this very process | nothing |
//!
//! **Waiting.** A caller that finds nothing arms the side that it waits for ([`Endpoint::arm`]), looks once more, and
//! only then waits, for the session's doorbell and wake socket or for the pair's socket. This order makes a lost wake
//! impossible: a side that changes a ring looks for armed sides after the change.
//!
//! **Threads.** An [`Endpoint`] may be used by any number of threads; its [`Rx`] and [`Tx`] each by one at a time,
//! which `&mut` enforces. One thread may read while another writes.
//!
//! **fork.** Whatever a child made by `fork` tries with its parent's session fails with [`End::Forked`] or
//! [`SessionFault::Forked`] and touches nothing that the parent uses; dropping closes nothing. See [`Life`].
//!
//! **Failures.** The core checks what the daemon says before it uses memory by it. A message that cannot be true is a
//! [`SessionFault`], and then the session cannot be used any more. The core checks what a peer process stores at each
//! look. A peer that breaks the rules ends its own connection with [`control::Reason::AppFault`].
//!
//! It must never wait, start a thread, take a lock or ask a clock. May use `control`, `shm`. Order of calls: the
//! greeting first, then the session; of an end: try, arm, look once more, wait.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod admit;
mod answer;
mod asked;
mod asking;
mod connection;
mod daemon;
mod datagram;
mod direct;
mod direct_messages;
mod direct_rx;
mod direct_tx;
mod endpoint;
mod fault;
mod forked;
mod framing;
mod greeting;
mod inflow;
mod lane;
mod life;
mod loans;
mod operations;
mod outgoing;
mod pair;
mod pair_link;
mod pair_socket;
mod ports;
mod readiness;
mod region_again;
mod region_owner;
mod region_place;
mod region_requests;
mod regions;
mod returning;
mod rx;
mod segments;
mod session;
mod side;
mod sizes;
mod stamp;
pub mod switch;
mod tx;
mod unsent;
pub mod way_back;

pub use admit::{DaemonMessage, PeerSegment, admit};
pub use answer::{Answer, Failed, News, RequestId};
pub use connection::{Connection, readiness};
pub use daemon::{Daemon, Wake};
pub use datagram::NotARecord;
pub use direct::{Direct, DirectBroken, DirectPlace, DirectSocket};
pub use endpoint::{Endpoint, Key};
pub use fault::{SessionFault, at_descriptor_limit, other_release};
pub use forked::Forked;
pub use framing::{
    FramingError, Incoming, MESSAGE_BYTES_MAX, MESSAGE_HEADER_BYTES, Next, ReceiveError, message_header,
};
pub use greeting::{Attached, Given, Greeting};
pub use lane::Clock;
pub use life::Life;
pub use loans::{LEASES_MAX, LOAN_BYTES_MAX, LOAN_RECORD_BYTES, LOANS_MAX, LeaseRecord, LoanRecord};
pub use outgoing::Outgoing;
pub use pair_socket::{PairSocket, Woken};
pub use readiness::Readiness;
pub use region_again::{NotThatRegion, RegionIdentity, RegionTries, is_loss, may_change};
pub use region_owner::{RegionBrought, RegionKnown, RegionReturn};
pub use region_place::{RegionMade, RegionOver, RegionPlace};
pub use regions::{NewRegion, RegionMapping, RegionNews};
pub use returning::Returned;
pub use rx::Rx;
pub use session::{EngineEnd, Session, SessionMemory};
pub use side::{End, Side};
pub use tx::{Reserved, Tx};
