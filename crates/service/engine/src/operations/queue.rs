//! One operation queue: a slot of its application's session, with a ring of submissions and one of completions.
//!
//! Owns room for the completion of everything that was taken. It must never read a word of the application's twice for
//! one decision, and never use a submission that it did not check.

use std::collections::VecDeque;

use shm::{
    CompletionRecord, LocalSegment, PeerFault, SEGMENT_BYTES, SUBMISSION_BYTES, Submission, SubmissionError,
    submission_flag,
};

use crate::ids::{LaneId, OperationId, SlotAt};
use crate::limits::OPERATIONS_PER_QUEUE_MAX;
use crate::numbers::index;
use crate::ring_slot::RingSlot;

/// What an application did wrong with the rings of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueFault {
    #[error(transparent)]
    Cursor(#[from] PeerFault),
    #[error("operation queue {queue}: a submission that cannot be: {error}")]
    Submission { queue: u64, error: SubmissionError },
    #[error("operation queue {queue}: {available} bytes in its ring do not begin with a whole submission")]
    Partial { queue: u64, available: u64 },
}

/// An open queue.
#[derive(Debug)]
pub(crate) struct OperationQueue {
    slot: RingSlot,
    is_closed: bool,
    /// The submission at the head, once it was read.
    front: Option<Submission>,
    /// Room of the receive ring for completions of what was taken.
    reserved: u64,
    in_flight: u32,
    /// Counts chains; whether the one that goes on is broken.
    chain: u64,
    is_chained: bool,
    is_broken: bool,
    /// The operation whose bytes are being posted, and those that are to be posted again before others.
    current: Option<OperationId>,
    again: VecDeque<OperationId>,
    is_due: bool,
    /// The lane in one of whose lists it stands.
    lane: Option<LaneId>,
    deficit: u32,
    has_room_to_show: bool,
    /// Bytes of the front submission that were moved in a region of this host.
    done_here: u32,
}

impl OperationQueue {
    pub(crate) fn new(slot: RingSlot) -> Self {
        Self {
            slot,
            is_closed: false,
            front: None,
            reserved: 0,
            in_flight: 0,
            chain: 0,
            is_chained: false,
            is_broken: false,
            current: None,
            again: VecDeque::new(),
            is_due: false,
            lane: None,
            deficit: 0,
            has_room_to_show: false,
            done_here: 0,
        }
    }

    /// Its slot, with its rings.
    pub(crate) fn slot(&self) -> &RingSlot {
        &self.slot
    }

    pub(crate) fn at(&self) -> SlotAt {
        self.slot.at()
    }

    // ---- where it stands

    /// Enters the list of those that are to be looked at. False: it is there already.
    pub(crate) fn enter_due(&mut self) -> bool {
        !std::mem::replace(&mut self.is_due, true)
    }

    pub(crate) fn leave_due(&mut self) {
        self.is_due = false;
    }

    /// Enters a list of a lane. False: it stands in one.
    pub(crate) fn enter_lane(&mut self, lane: LaneId) -> bool {
        if self.lane.is_some() {
            return false;
        }
        (self.lane, self.deficit) = (Some(lane), 0);
        true
    }

    /// Leaves the list of a lane. False: it stood in none of its.
    pub(crate) fn leave_lane(&mut self, lane: LaneId) -> bool {
        let stood = self.lane == Some(lane);
        if stood {
            (self.lane, self.deficit) = (None, 0);
        }
        stood
    }

    pub(crate) fn is_placed(&self) -> bool {
        self.lane.is_some()
    }

    /// Bytes that are left of its turn.
    pub(crate) fn deficit(&self) -> u32 {
        self.deficit
    }

    pub(crate) fn deficit_mut(&mut self) -> &mut u32 {
        &mut self.deficit
    }

    // ---- from the application

    /// The application rang. Whether it has just closed the queue.
    pub(crate) fn on_doorbell(&mut self) -> bool {
        let closes = !self.is_closed && self.slot.is_close_asked();
        if closes {
            self.close();
        }
        closes
    }

    /// Nothing more is taken.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.front = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether it is closed, and nothing of it is in flight.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.in_flight == 0
    }

    /// The submission that may begin next: it was read once and checked, the whole of it is in the ring, and there is
    /// room for its completion.
    pub(crate) fn front(&mut self) -> Result<Option<Submission>, QueueFault> {
        if self.is_closed || self.in_flight >= OPERATIONS_PER_QUEUE_MAX {
            return Ok(None);
        }
        if self.front.is_none() {
            self.front = self.read_front()?;
        }
        let Some(front) = self.front else { return Ok(None) };
        if front.flags & submission_flag::FENCE != 0 && self.in_flight > 0 {
            return Ok(None);
        }
        if self.slot.room()? < self.reserved + front.completion_ring_bytes() {
            return Ok(None);
        }
        Ok(Some(front))
    }

    fn read_front(&mut self) -> Result<Option<Submission>, QueueFault> {
        let available = self.slot.available()?;
        if available == 0 {
            return Ok(None);
        }
        let partial = QueueFault::Partial { queue: self.slot.id(), available };
        let mut head = [0; SUBMISSION_BYTES];
        if !self.slot.copy(0, &mut head) {
            return Err(partial);
        }
        let refused = |error| QueueFault::Submission { queue: self.slot.id(), error };
        let submission = Submission::parse(&head).map_err(refused)?;
        if submission.ring_bytes() > available {
            return Err(partial);
        }
        Ok(Some(submission))
    }

    /// Whether a submission before the front one in its chain failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_chained && self.is_broken
    }

    /// Copies the segments of the front submission. The application may rewrite them meanwhile; the copy is what
    /// counts.
    pub(crate) fn copy_segments(&self, front: &Submission) -> Vec<LocalSegment> {
        let mut bytes = [0; SEGMENT_BYTES];
        let segments = (0..u64::from(front.segments)).map(|i| {
            let copied = self.slot.copy(SUBMISSION_BYTES + index(i) * SEGMENT_BYTES, &mut bytes);
            debug_assert!(copied, "`front` saw that the whole submission is there");
            LocalSegment::parse(&bytes)
        });
        segments.collect()
    }

    /// Copies the payload of the front submission.
    pub(crate) fn copy_payload(&self, front: &Submission, out: &mut Vec<u8>) {
        out.clear();
        out.resize(front.inline_bytes() as usize, 0);
        let copied = self.slot.copy(SUBMISSION_BYTES, out);
        debug_assert!(copied, "`front` saw that the whole submission is there");
    }

    /// The front submission is taken: number of its chain.
    pub(crate) fn take_front(&mut self) -> u64 {
        let Some(front) = self.front.take() else { return self.chain };
        self.done_here = 0;
        self.slot.consume(front.ring_bytes());
        self.has_room_to_show = true;
        if !std::mem::replace(&mut self.is_chained, front.flags & submission_flag::CHAINED != 0) {
            self.chain += 1;
            self.is_broken = false;
        }
        self.reserved += front.completion_ring_bytes();
        self.chain
    }

    /// Bytes of the front submission that were moved in a region of this host.
    pub(crate) fn done_here(&self) -> u32 {
        self.done_here
    }

    pub(crate) fn set_done_here(&mut self, bytes: u32) {
        self.done_here = bytes;
    }

    /// An operation of the chain failed.
    pub(crate) fn on_failed(&mut self, chain: u64) {
        self.is_broken |= self.chain == chain;
    }

    /// Shows the application the room in its transmit ring, if there is more. Whether a thread of it waits for that.
    pub(crate) fn show_room(&mut self) -> Option<bool> {
        std::mem::take(&mut self.has_room_to_show).then(|| self.slot.show_room())
    }

    // ---- operations

    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    pub(crate) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// The operation whose bytes are posted next.
    pub(crate) fn current(&mut self) -> Option<OperationId> {
        if self.current.is_none() {
            self.current = self.again.pop_front();
        }
        self.current
    }

    pub(crate) fn set_current(&mut self, id: OperationId) {
        self.current = Some(id);
    }

    /// All of its bytes are posted, or none more are to be.
    pub(crate) fn finish_current(&mut self, id: OperationId) {
        if self.current == Some(id) {
            self.current = None;
        }
        self.again.retain(|again| *again != id);
    }

    /// After a reset: an operation is to be posted from its start, behind others of which that holds.
    pub(crate) fn post_again(&mut self, id: OperationId) {
        self.finish_current(id);
        self.again.push_back(id);
    }

    /// Puts a record that no submission asked for into the receive ring, where it takes no room of completions. Whether a
    /// thread of the application waits; `None`: there is no room.
    pub(crate) fn tell(&mut self, head: &[u8], payload: &[u8], bytes: u64) -> Result<Option<bool>, QueueFault> {
        if self.is_closed || !self.slot.has_owner() || self.slot.room()? < self.reserved + bytes {
            return Ok(None);
        }
        let is_in = self.slot.put(head, payload, bytes)?;
        Ok(is_in.then(|| self.slot.is_awaited()))
    }

    /// Says to the application how an operation ended, with the bytes of a READ. Whether a thread of it waits.
    pub(crate) fn complete(
        &mut self,
        submission: &Submission,
        record: &CompletionRecord,
        payload: &[u8],
    ) -> Result<bool, QueueFault> {
        self.reserved = self.reserved.saturating_sub(submission.completion_ring_bytes());
        // The room was there when the submission was taken, unless the application moved its cursor back.
        let written = self.slot.put(&record.to_bytes(), payload, record.ring_bytes())?;
        debug_assert!(written, "a completion has its room from when its submission was taken");
        Ok(self.slot.is_awaited())
    }
}
