//! What is wrong with bytes that are no frame.
//!
//! A list, no behaviour.

use shm::KERNEL_BYTES_MAX;
use verbs::ENDPOINT_BYTES_MAX;

use super::FRAME_VERSION;
use crate::immediate::ROUTE_BITS;
use crate::limits::{PIECE_BYTES_MIN, WRITE_PLACES_MAX};
use crate::ring_size::RingSize;

/// Bytes that are no frame of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("frame ends within {0}")]
    Truncated(&'static str),
    #[error("frame has version {0}, this build speaks {FRAME_VERSION}")]
    Version(u8),
    #[error("record of unknown kind {0}")]
    Kind(u8),
    #[error("record of kind {kind} says {bytes} bytes")]
    Length { kind: u8, bytes: u16 },
    #[error("{0} bytes follow the last record")]
    Trailing(usize),
    #[error("reserved bits are set in {0}")]
    Reserved(&'static str),
    #[error("route {0:#x} is more than {ROUTE_BITS} bits")]
    Route(u32),
    #[error("ring of {} bytes that grows to {}, where a power of two of at most {} and {} is allowed",
            size.first, size.grown, max.first, max.grown)]
    Ring { size: RingSize, max: RingSize },
    #[error("answer {0} to a question for yes or no")]
    Answer(u32),
    #[error("operation {opcode} with operand {operand:#x}, of which there is none")]
    Operation { opcode: u8, operand: u64 },
    #[error("status {0} of an operation, of which there is none")]
    Status(u8),
    #[error("{found} bytes of a kernel, {KERNEL_BYTES_MAX} at most")]
    Kernel { found: usize },
    #[error("endpoint of {found} bytes, where 1 to {ENDPOINT_BYTES_MAX} are allowed")]
    Endpoint { found: usize },
    #[error("pieces of {0} bytes, where {PIECE_BYTES_MIN} are the fewest")]
    Piece(u32),
    #[error(
        "{count} places of {bytes} bytes, where at most {WRITE_PLACES_MAX} of at least {PIECE_BYTES_MIN} are allowed"
    )]
    Places { count: u32, bytes: u32 },
}
