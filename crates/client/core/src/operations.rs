//! Operation queues: submissions in the transmit ring, completions in the receive ring.
//!
//! Owns where a record's parts lie. It must never take a part of a record for one.

use std::ops::DerefMut;

use control::Request;
use shm::{COMPLETION_BYTES, CompletionRecord, NOTICE_BYTES, Notice, SUBMISSION_BYTES, Submission};

use crate::answer::Asked;
use crate::{NotARecord, RequestId, Reserved, Rx, Session, Tx};

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

    /// The notice at the head, and how many bytes of the ring it takes. `available`: as for [`Rx::completion`].
    pub fn notice(&self, available: u64) -> Result<(Notice, u64), NotARecord> {
        let head = self.completion(available)?;
        let mut from = [0; NOTICE_BYTES - COMPLETION_BYTES];
        self.completion_payload(&mut from);
        Notice::parse(&head, from).map(|notice| (notice, head.ring_bytes())).ok_or(NotARecord)
    }

    /// Copies the bytes behind the completion at the head; `buf` has at most as many.
    pub fn completion_payload(&self, buf: &mut [u8]) {
        self.peek_ahead(COMPLETION_BYTES as u64, buf);
    }
}

impl<T: DerefMut<Target = Tx>> Reserved<T> {
    /// Writes a submission `ahead` bytes behind what was sent, and `behind` it what belongs to it, for which the room
    /// was reserved. Returns where the next one begins. Nothing is sent before [`Reserved::commit`].
    pub fn write_submission<'a>(
        &mut self,
        ahead: u64,
        submission: &Submission,
        behind: impl IntoIterator<Item = &'a [u8]>,
    ) -> u64 {
        let mut is_in = self.write_ahead(ahead, &submission.to_bytes());
        let mut at = ahead + SUBMISSION_BYTES as u64;
        for bytes in behind {
            is_in &= self.write_ahead(at, bytes);
            at += bytes.len() as u64;
        }
        debug_assert!(is_in && at <= ahead + submission.ring_bytes(), "the room was reserved");
        ahead + submission.ring_bytes()
    }
}
