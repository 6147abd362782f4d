//! MPA (RFC 5044, RFC 6581): frames on a byte stream, and the exchange before them.
//!
//! * [`startup`](Startup): the request and the reply that open a connection, with private data.
//! * [`fpdu`](fpdu_bytes): length field, padding and CRC around each DDP segment.
//! * [`Markers`]: what a peer that asks for markers gets.

mod fpdu;
mod markers;
mod startup;

pub use fpdu::{CRC_BYTES, FPDU_BYTES_MAX, LENGTH_BYTES, crc, fpdu_bytes, pad_bytes, trailer_bytes};
pub use markers::Markers;
pub use startup::{
    ENHANCED_BYTES, Enhanced, FrameKind, IRD_ORD_MAX, PRIVATE_DATA_MAX, Parsed, Revision, STARTUP_BYTES, Startup,
    StartupFault,
};
