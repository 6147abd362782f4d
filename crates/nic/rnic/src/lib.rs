//! What a software RNIC holds whatever its wire: registered memory with its keys, completion queues, posted sends, shared
//! and own receive queues, asynchronous events and the counters of verbs.
//!
//! [`Device`] is that state. Transports (`roce` over UDP, `iwarp` over TCP) get it as an argument, so that queue pairs of
//! several wires share memory, CQs and SRQs. Like the transports it does no I/O, reads no clock and draws no randomness
//! of its own.
//!
//! It must never know a wire. May use `genslab`, `verbs`. Order of calls: as `verbs` says; a NIC hands the [`Device`]
//! to a transport in each call.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod counters;
mod cq;
mod device;
mod limits;
mod memory;
mod number_hash;
mod posted;
mod receive_queue;
mod timers;
mod unreported;

pub use counters::DeviceCounters;
pub use cq::{Cq, Pushed};
pub use device::Device;
pub use limits::{DeviceLimits, MAX_EVENTS, MAX_MR, MAX_PD, RECENT_KEYS};
pub use memory::{AtomicOp, Domain, KeyFault, MemoryRange, MrTable, each_piece};
pub use number_hash::NumberHasher;
pub use posted::{PostedData, SendLimits, SpareData, send_opcode, wants_data};
pub use receive_queue::{ReceiveQueue, RecvWqe, Srq};
pub use timers::Timers;
pub use unreported::Unreported;
