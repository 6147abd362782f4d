//! Memory shared with a peer that may be hostile: mappings, sealed segments, rings, doorbells, waiting.
//!
//! Owns every byte that two processes of one host share, and the only `unsafe` code of the data path. Byte tables and
//! the protocol in words: docs/inside/shared-memory.md. It must never make a Rust reference to shared data (only copies and
//! atomics), never index or size anything by a value that it read from a shared page without a check, and never trust
//! a published cursor beyond [`check_cursor`].
//!
//! The algorithms that synchronise two parties ([`RingWriter`] and [`RingReader`], [`Doorbell`], [`prepare_sleep`] and
//! [`must_wake`], [`PairWaiter`]) are written once, over the word traits of the private module `sync`, and run in
//! the unit tests under loom too.
//!
//! May use nothing of the house. Order of calls: whoever waits arms, looks once more, and only then sleeps; whoever
//! changes something looks afterwards whether somebody sleeps.
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

#[cfg(not(all(target_endian = "little", target_pointer_width = "64", target_os = "linux")))]
compile_error!("the shared layout is that of 64-bit little-endian Linux (x86-64, AArch64)");

mod backoff;
mod dirty;
mod doorbell;
mod fault;
mod flags;
#[cfg(feature = "fork-tests")]
mod forking;
mod layout;
mod life;
mod limits;
#[cfg(test)]
mod models;
mod notice;
mod numbers;
mod operation;
mod overcommit;
mod process_word;
mod ready;
mod record;
mod region;
mod rest;
mod ring;
mod segment;
mod sleep;
mod slot;
mod sync;
mod told;
mod undertaker;
mod wake;
mod written;
mod yield_turns;

pub use backoff::{Backoff, Crowding};
pub use doorbell::Doorbell;
pub use fault::{refill as refill_fault_reserve, survive_faults, survived_faults};
pub use flags::{app_flag, engine_flag, owner_flag, slot_state, slot_verb, waiting};
#[cfg(feature = "fork-tests")]
pub use forking::run_in_fork;
pub use layout::{EnginePage, LAYOUT_VERSION, LayoutError, OwnerWords, Pair, PairWords, Session, SlotPlace};
pub use life::Life;
pub use limits::{ENGINES_MAX, RING_BYTES_MAX, RING_BYTES_MIN, SessionShape, round_ring_bytes};
pub use notice::{NOTICE_BYTES, Notice};
pub use numbers::{
    forget_numbers, is_raised, keep_numbers_above, note_closed, raised, raised_numbers, replace_descriptor,
};
pub use operation::{
    COMPLETION_BYTES, Class, CompletionRecord, KERNEL_BYTES_MAX, KERNEL_REGION_BYTES, KERNEL_REGIONS_MAX, LocalSegment,
    OPERATION_BYTES_MAX, OPERATION_INLINE_MAX, Opcode, OperationStatus, SEGMENT_BYTES, SEGMENTS_MAX, SUBMISSION_BYTES,
    Submission, SubmissionError, submission_flag,
};
pub use overcommit::overcommit_is_strict;
pub use process_word::ProcessWord;
pub use ready::ReadyFd;
pub use record::{DatagramRecord, RECORD_HEADER_BYTES};
pub use region::{AtomicOp, Region, RegionError, Word32, Word64};
pub use rest::{begin_rest, end_rest, is_unused, join_rest_barrier, reset_rest, rest_barrier};
pub use ring::{PeerFault, RingMemory, RingReader, RingWriter, Span, check_cursor};
pub use segment::{Extents, RegionMemory, Segment, SegmentError, Sharing};
pub use sleep::{
    PairSleeper, PairWaiter, SleepFlag, arm_slot, claim_wake, end_sleep, must_wake, pair_must_wake, prepare_sleep,
    slot_is_awaited,
};
pub use slot::SlotWords;
pub use told::{PairListener, PairTeller, Telling};
pub use undertaker::{ClosedElsewhere, give_heap_back_soon, take_down_elsewhere};
pub use wake::{Drained, MAX_DRAIN, WakeSocket};
pub use written::{MARK_BYTES, mark, written_at, written_word};
pub use yield_turns::{YieldTurn, YieldTurns};
