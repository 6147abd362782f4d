//! Operation queues: submissions in the transmit ring, completions in the receive ring.
//!
//! Owns where a record's parts lie. It must never take a part of a record for one.

use std::ops::DerefMut;

use control::Request;
use shm::{COMPLETION_BYTES, CompletionRecord, SUBMISSION_BYTES, Submission};

use crate::answer::Asked;
use crate::{Endpoint, NotARecord, RequestId, Reserved, Rx, Session, Tx};

impl Session {
    /// Asks for an operation queue.
    pub fn open_operations(&mut self, ring_bytes: u32) -> (RequestId, Request) {
        let id = self.begin(Asked::Operations);
        (id, Request::OpenOperations { request: id.number(), ring_bytes })
    }
}

impl Rx {
    /// The completion at the head. `available`: the bytes that [`Rx::available`] returned, more than 0.
    pub fn completion(&self, available: u64) -> Result<CompletionRecord, NotARecord> {
        let mut head = [0; COMPLETION_BYTES];
        let is_read = self.peek_ahead(0, &mut head) == head.len();
        CompletionRecord::parse(&head).filter(|r| is_read && r.ring_bytes() <= available).ok_or(NotARecord)
    }

    /// Copies the bytes behind the completion at the head; `buf` has at most as many.
    pub fn completion_payload(&self, buf: &mut [u8]) {
        self.peek_ahead(COMPLETION_BYTES as u64, buf);
    }
}

impl<T: DerefMut<Target = Tx>> Reserved<T> {
    /// Puts in a submission, for whose record the room was reserved, and rings the engine's doorbell.
    pub fn put_submission(mut self, at: &Endpoint, submission: &Submission, payload: &[u8]) {
        let is_in = self.write_ahead(0, &submission.to_bytes()) && self.write_ahead(SUBMISSION_BYTES as u64, payload);
        debug_assert!(is_in || at.check_fork().is_err(), "the room was reserved");
        self.commit(at, submission.ring_bytes());
    }
}
