//! READs and atomics that this end has outstanding, and what the peer's answers may be.

use std::collections::VecDeque;

use crate::ddp::Tagged;
use crate::rdmap::AtomicResponse;
use crate::terminate::Cause;

/// What is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Data { stag: u32, offset: u64, len: u32, received: u32 },
    Original { id: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    /// Number of its work request; of a confirmation, the first that it does not cover.
    number: u64,
    awaited: Awaited,
    is_confirmation: bool,
}

/// What an answer is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// A work request.
    Request(u64),
    /// All work requests before that one are executed.
    Before(u64),
}

/// Outstanding requests, oldest first. Answers come in this order (RFC 5040 section 5.5).
#[derive(Debug)]
pub(super) struct Requests {
    queue: VecDeque<Request>,
    limit: u16,
}

impl Requests {
    pub(super) const fn new(limit: u16) -> Self {
        Self { queue: VecDeque::new(), limit }
    }

    /// The peer executes no more than that at a time.
    pub(super) fn limit_to(&mut self, limit: u16) {
        self.limit = self.limit.min(limit);
    }

    pub(super) fn has_room(&self) -> bool {
        self.of_consumer() < usize::from(self.limit)
    }

    /// Those that the consumer posted.
    fn of_consumer(&self) -> usize {
        self.queue.iter().filter(|request| !request.is_confirmation).count()
    }

    /// Whether the consumer's are all answered.
    pub(super) fn lets_fence_pass(&self) -> bool {
        self.of_consumer() == 0
    }

    /// A READ of no bytes goes out, which confirms all work requests before that one.
    pub(super) fn push_confirmation(&mut self, before: u64) {
        let awaited = Awaited::Data { stag: 0, offset: 0, len: 0, received: 0 };
        self.queue.push_back(Request { number: before, awaited, is_confirmation: true });
    }

    pub(super) const fn limit(&self) -> u16 {
        self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A READ goes out whose answer names that buffer.
    pub(super) fn push_read(&mut self, number: u64, stag: u32, offset: u64, len: u32) {
        let awaited = Awaited::Data { stag, offset, len, received: 0 };
        self.queue.push_back(Request { number, awaited, is_confirmation: false });
    }

    /// An atomic goes out.
    pub(super) fn push_atomic(&mut self, number: u64, id: u32) {
        self.queue.push_back(Request { number, awaited: Awaited::Original { id }, is_confirmation: false });
    }

    /// Judges a segment of an answer with data: which work request's, and where in it.
    pub(super) fn judge_data(&self, header: &Tagged, payload: u32) -> Result<(u64, u32), Cause> {
        let Some(Request { number, awaited: Awaited::Data { stag, offset, len, received }, .. }) = self.queue.front()
        else {
            return Err(Cause::RdmapOpcode);
        };
        if header.stag != *stag {
            return Err(Cause::TaggedInvalidStag);
        }
        let left = len - received;
        // The answer has as many bytes as were asked for, in order.
        let is_next = header.offset == offset.wrapping_add((*received).into());
        if !is_next || payload > left || header.is_last != (payload == left) {
            return Err(Cause::TaggedBounds);
        }
        Ok((*number, *received))
    }

    /// A judged segment was placed. What is done, if that was its last.
    pub(super) fn on_data(&mut self, payload: u32, is_last: bool) -> Option<Answered> {
        if let Some(Request { awaited: Awaited::Data { received, .. }, .. }) = self.queue.front_mut() {
            *received += payload;
        }
        let request = if is_last { self.queue.pop_front() } else { None }?;
        let Request { number, is_confirmation, .. } = request;
        Some(if is_confirmation { Answered::Before(number) } else { Answered::Request(number) })
    }

    /// Whether an atomic is awaited next.
    pub(super) fn awaits_original(&self) -> bool {
        matches!(self.queue.front(), Some(Request { awaited: Awaited::Original { .. }, .. }))
    }

    /// The work request that an atomic's answer is for.
    pub(super) fn take_original(&mut self, response: &AtomicResponse) -> Result<u64, Cause> {
        match self.queue.front() {
            Some(Request { number, awaited: Awaited::Original { id }, .. }) if *id == response.id => {
                let number = *number;
                self.queue.pop_front();
                Ok(number)
            }
            _ => Err(Cause::RdmapStream),
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(stag: u32, offset: u64, is_last: bool) -> Tagged {
        Tagged { is_last, ulp: 0x42, stag, offset }
    }

    #[test]
    fn an_answer_is_what_was_asked_for() {
        let mut requests = Requests::new(2);
        assert_eq!(requests.judge_data(&segment(7, 100, true), 0), Err(Cause::RdmapOpcode), "nothing was asked");
        requests.push_read(5, 7, 100, 10);
        requests.push_atomic(6, 1);
        assert!(!requests.has_room() && !requests.awaits_original());
        let wrong = [
            (segment(8, 100, false), 4, Cause::TaggedInvalidStag),
            (segment(7, 101, false), 4, Cause::TaggedBounds),
            (segment(7, 100, false), 11, Cause::TaggedBounds),
            (segment(7, 100, true), 9, Cause::TaggedBounds),
            (segment(7, 100, false), 10, Cause::TaggedBounds),
        ];
        for (header, payload, cause) in wrong {
            assert_eq!(requests.judge_data(&header, payload), Err(cause), "{header:?}");
        }
        assert_eq!(requests.judge_data(&segment(7, 100, false), 4), Ok((5, 0)));
        assert_eq!(requests.on_data(4, false), None);
        assert_eq!(requests.judge_data(&segment(7, 104, true), 6), Ok((5, 4)));
        assert_eq!(requests.take_original(&AtomicResponse { id: 1, original: 0 }), Err(Cause::RdmapStream));
        assert_eq!(requests.on_data(6, true), Some(Answered::Request(5)));
        assert_eq!(requests.take_original(&AtomicResponse { id: 2, original: 0 }), Err(Cause::RdmapStream));
        assert_eq!(requests.take_original(&AtomicResponse { id: 1, original: 0 }), Ok(6));
        assert!(requests.is_empty());
    }

    #[test]
    fn a_confirmation_takes_no_place_of_the_consumer() {
        let mut requests = Requests::new(1);
        requests.push_confirmation(9);
        assert!(requests.has_room() && requests.lets_fence_pass() && !requests.is_empty());
        requests.push_read(9, 7, 0, 4);
        assert!(!requests.has_room() && !requests.lets_fence_pass());
        assert_eq!(requests.judge_data(&segment(0, 0, true), 1), Err(Cause::TaggedBounds), "it has no bytes");
        assert_eq!(requests.judge_data(&segment(0, 0, true), 0), Ok((9, 0)));
        assert_eq!(requests.on_data(0, true), Some(Answered::Before(9)));
        assert_eq!(requests.judge_data(&segment(7, 0, true), 4), Ok((9, 0)));
        assert_eq!(requests.on_data(4, true), Some(Answered::Request(9)));
    }
}
