//! Datagrams in a socket's rings: one record each.
//!
//! Owns where a record's parts lie. It must never take a part of a record for one.

use std::ops::DerefMut;

use shm::{DatagramRecord, RECORD_HEADER_BYTES};

use crate::{Endpoint, Reserved, Rx, Tx};

/// The receive ring does not begin with a whole record: the daemon broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receive ring does not begin with a record")]
pub struct NotARecord;

impl Rx {
    /// The record at the head. `available`: the bytes that [`Rx::available`] returned, more than 0.
    pub fn datagram(&self, available: u64) -> Result<DatagramRecord, NotARecord> {
        let mut header = [0; RECORD_HEADER_BYTES];
        let is_read = self.peek_ahead(0, &mut header) == header.len();
        DatagramRecord::parse(&header).filter(|r| is_read && r.ring_bytes() <= available).ok_or(NotARecord)
    }

    /// Copies the payload of the record at the head; `buf` has its length.
    pub fn datagram_payload(&self, buf: &mut [u8]) {
        self.peek_ahead(RECORD_HEADER_BYTES as u64, buf);
    }
}

impl<T: DerefMut<Target = Tx>> Reserved<T> {
    /// Puts in a datagram, for whose record the room was reserved, and rings the engine's doorbell.
    pub fn put_datagram(mut self, at: &Endpoint, record: &DatagramRecord, payload: &[u8]) {
        let is_in = self.write_ahead(0, &record.to_bytes()) && self.write_ahead(RECORD_HEADER_BYTES as u64, payload);
        debug_assert!(is_in || at.check_fork().is_err(), "the room was reserved");
        self.commit(at, record.ring_bytes());
    }
}
