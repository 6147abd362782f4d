//! A slot of a session whose rings hold records (datagrams, submissions), as a program without manners uses it.
//!
//! Owns the cursor that its owner keeps; it checks nothing.

use std::sync::atomic::Ordering;

use shm::SlotWords;

use crate::raw::{RawConnection, RawError};

/// A slot, and the cursor that its owner keeps.
#[derive(Debug)]
pub(super) struct Loose {
    slot: RawConnection,
    tail: u64,
}

impl Loose {
    pub(super) fn new(slot: RawConnection) -> Self {
        Self { slot, tail: 0 }
    }

    /// Its number in the session.
    pub(super) fn slot(&self) -> u32 {
        self.slot.slot
    }

    /// Its words.
    pub(super) fn words(&self) -> &SlotWords {
        &self.slot.words
    }

    /// Where the next record begins.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Writes at an offset of the transmit ring's stream, over its end if need be.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<(), RawError> {
        let (region, begin) = &self.slot.tx;
        let from = at % self.slot.ring_bytes;
        let until_end = usize::try_from(self.slot.ring_bytes - from).unwrap_or(usize::MAX).min(bytes.len());
        let (first, second) = bytes.split_at(until_end);
        let text = |e: shm::RegionError| RawError::Unexpected(e.to_string());
        region.write(begin + from, first).map_err(text)?;
        region.write(*begin, second).map_err(text)
    }

    /// Writes somewhere into the receive ring.
    pub(super) fn scribble_over_arrivals(&self, somewhere: u64, noise: &[u8]) -> Result<(), RawError> {
        let at = self.slot.rx.1 + somewhere % (self.slot.ring_bytes - noise.len() as u64 + 1);
        self.slot.rx.0.write(at, noise).map_err(|e| RawError::Unexpected(e.to_string()))
    }

    /// Bytes that the engine has room for, as it says.
    pub(super) fn room(&self) -> u64 {
        let head = self.slot.words.tx_head.load(Ordering::Acquire);
        self.slot.ring_bytes.saturating_sub(self.tail.wrapping_sub(head))
    }

    /// Moves the tail.
    pub(super) fn publish(&mut self, bytes: u64) {
        self.tail = self.tail.wrapping_add(bytes);
        self.slot.words.tx_tail.store(self.tail, Ordering::Release);
    }
}
