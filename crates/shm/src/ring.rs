//! Single-producer single-consumer byte rings over absolute 64-bit offsets.
use crate::{Region, RegionError, Word64};

/// A peer's published cursor broke the rules; the connection (or session) must be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// A cursor went back, or beyond what the ring can hold.
    #[error("cursor {what} jumped from {from} to {to}, ring of {ring_bytes} bytes")]
    Cursor { /// Which. 
        what: &'static str, /// Last accepted. 
        from: u64, /// Now seen. 
        to: u64, /// Capacity. 
        ring_bytes: u64 },
}

/// Accepts a peer-published cursor: `value` must be in `last..=limit`.
pub fn check_cursor(what: &'static str, last: u64, value: u64, limit: u64, ring_bytes: u64) -> Result<u64, PeerFault> { todo!() }

/// Where a ring lies.
#[derive(Debug, Clone)]
pub struct RingMemory { /// Memory. 
    pub region: Region, /// Offset of the ring in it. 
    pub offset: u64, /// Capacity, a power of two. 
    pub bytes: u64 }

/// The producing end: copies in, publishes `tail`, reads the consumer's `head`.
#[derive(Debug)]
pub struct RingWriter { _r: Region }
impl RingWriter {
    /// Starts at absolute offset `at` (head = tail = at).
    pub fn new(memory: RingMemory, tail: Word64, head: Word64, at: u64) -> Result<Self, RegionError> { todo!() }
    /// Bytes that can be written now.
    pub fn free(&mut self) -> Result<u64, PeerFault> { todo!() }
    /// Copies as much as fits and publishes it; says how many bytes. 0 means full.
    pub fn write(&mut self, src: &[u8]) -> Result<usize, PeerFault> { todo!() }
    /// Own tail.
    pub fn tail(&self) -> u64 { todo!() }
    /// Last accepted head.
    pub fn head(&self) -> u64 { todo!() }
}

/// The consuming end: reads the producer's `tail`, copies out, publishes `head`.
#[derive(Debug)]
pub struct RingReader { _r: Region }
impl RingReader {
    /// Starts at absolute offset `at`.
    pub fn new(memory: RingMemory, tail: Word64, head: Word64, at: u64) -> Result<Self, RegionError> { todo!() }
    /// Bytes that can be read now.
    pub fn available(&mut self) -> Result<u64, PeerFault> { todo!() }
    /// Copies out up to `dst.len()` bytes and publishes the head; 0 means empty.
    pub fn read(&mut self, dst: &mut [u8]) -> Result<usize, PeerFault> { todo!() }
    /// Own head.
    pub fn head(&self) -> u64 { todo!() }
    /// Last accepted tail.
    pub fn tail(&self) -> u64 { todo!() }
}
