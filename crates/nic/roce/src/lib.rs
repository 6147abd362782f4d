//! RoCEv2 as a state machine: the reliable connected, the unreliable connected and the unreliable datagram transport of
//! the InfiniBand Architecture over UDP (IBTA volume 1, annex A17), without I/O.
//!
//! [`Nic`] is a whole RDMA device: memory keys, completion and shared receive queues, queue pairs with SEND, WRITE,
//! READ and atomics, retries and errors, and unreliable queue pairs, connected ones and for datagrams. It implements
//! [`verbs::Provider`]. Sockets, threads, clocks and randomness stay outside: datagrams and time are arguments, and
//! everything replays from one seed.
//!
//! * `handle_*` puts events in: [`Nic::handle_datagram`], [`Nic::handle_batch`], [`Nic::handle_timeout`].
//! * `poll_*` takes results out: [`Nic::poll_transmit`], and `poll_cq`, `poll_event` of the provider.
//!
//! Packets between two NICs that share keys can be sealed ([`Nic::seal_qp`], [`Nic::create_sealed_ah`]).
//!
//! Bytes from the wire never panic and never reach memory that is not registered for what they do. A packet either
//! takes effect or is counted under the reason why not ([`NicCounters`]).
//!
//! Owns queue pairs, their timers and packets. It must never read a clock, draw randomness, or touch memory that is
//! not registered for it. May use `genslab`, `records`, `rnic`, `verbs`. Order of calls: after each `handle_*` the
//! driver polls `poll_transmit` until there is nothing, and asks for the next deadline.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod batch;
mod counters;
mod device;
mod incoming;
mod limits;
mod nic;
mod path;
mod peer;
mod provider;
mod qp;
mod qpn_range;
mod queue_pair;
mod receives;
mod seals;
mod uc;
mod ud;
pub mod wire;

pub use batch::{Ipv4IdMode, Transmit};
pub use counters::NicCounters;
pub use limits::{NicLimits, PACKET_CHARGE_BYTES};
pub use nic::{Arrived, Nic, NicConfig};
pub use qp::LentQp;
pub use qpn_range::QpnRange;
pub use seals::DatagramSeal;
