//! Answers that this end owes: data of READs and values of atomics, in the order in which they were asked for.

use std::collections::VecDeque;

use verbs::Rkey;

use crate::rdmap::{AtomicResponse, ReadRequest};

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Response {
    /// Data; `done` bytes of it are in frames.
    Data { request: ReadRequest, done: u32 },
    /// The value before an atomic.
    Original(AtomicResponse),
}

/// Owed answers, oldest first, as many as this end said that it executes at a time.
#[derive(Debug)]
pub(super) struct Responses {
    queue: VecDeque<Response>,
    limit: u16,
    /// One more, which confirms the peer's sends.
    confirms: bool,
}

impl Responses {
    pub(super) const fn new(limit: u16, confirms: bool) -> Self {
        Self { queue: VecDeque::new(), limit, confirms }
    }

    pub(super) const fn limit(&self) -> u16 {
        self.limit
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < usize::from(self.limit) + usize::from(self.confirms)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, response: Response) {
        self.queue.push_back(response);
    }

    pub(super) fn front(&self) -> Option<Response> {
        self.queue.front().copied()
    }

    /// So many more bytes of the oldest are in frames; with `is_last` it is done.
    pub(super) fn advance(&mut self, bytes: u32, is_last: bool) {
        if is_last {
            self.queue.pop_front();
        } else if let Some(Response::Data { done, .. }) = self.queue.front_mut() {
            *done += bytes;
        }
    }

    /// Whether the oldest is in the middle of its message.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.queue.front(), Some(Response::Data { done, .. }) if *done > 0)
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Where an answer's bytes are.
pub(super) const fn source(request: &ReadRequest) -> (Rkey, u64) {
    (Rkey(request.source_stag), request.source_offset)
}
