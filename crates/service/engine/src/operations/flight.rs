//! What of operations is on one lane: posted, to be asked for, waiting for room; and what this end owes the peer.
//!
//! Owns the lane's limits: operations and READs at a time, and slots of its buffers.

use std::collections::VecDeque;

use shm::KERNEL_BYTES_MAX;
use verbs::MrId;

use crate::frame::KERNEL_OVERHEAD_BYTES;
use crate::ids::{OperationId, QueueId};
use crate::lane_part::LanePart;
use crate::limits::OPERATIONS_PER_LANE_MAX;

use super::answers::Answers;
use super::buffers::Buffers;

/// One lane's part.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Operations that are posted as a whole, by their last work request.
    posted: VecDeque<(u64, OperationId)>,
    /// A WRITE is visible only when the owner's processor says so.
    is_confirming: bool,
    /// Bytes of a kernel's request, or answer, that fit a frame.
    kernel_bytes_max: u32,
    /// Operations that the owner's engine is to be asked for.
    asks: VecDeque<OperationId>,
    pub(crate) answers: Answers,
    in_flight: u32,
    /// Nothing new begins, since the queue pair is to be taken down.
    is_held: bool,
    /// Queues that wait for room.
    waiting: Vec<QueueId>,
    /// Queues that wait until the lane is up.
    parked: Vec<QueueId>,
    pub(crate) buffers: Option<Buffers>,
    /// Handles of regions of the peer's, and regions that the peer has open.
    uses: u32,
}

impl Flight {
    /// The peer's offer was taken; its frames are this long.
    pub(crate) fn on_accepted(&mut self, frame_bytes_max: usize, is_confirming: bool) {
        self.is_confirming = is_confirming;
        let bytes = frame_bytes_max.saturating_sub(KERNEL_OVERHEAD_BYTES);
        self.kernel_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX).min(KERNEL_BYTES_MAX);
    }

    pub(crate) fn kernel_bytes_max(&self) -> u32 {
        self.kernel_bytes_max
    }

    pub(crate) fn is_confirming(&self) -> bool {
        self.is_confirming
    }

    // ---- who needs the lane

    pub(crate) fn add_use(&mut self) {
        self.uses += 1;
    }

    pub(crate) fn drop_use(&mut self) {
        self.uses = self.uses.saturating_sub(1);
    }

    // ---- limits

    pub(crate) fn is_full(&self) -> bool {
        self.is_held || self.in_flight >= OPERATIONS_PER_LANE_MAX
    }

    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    pub(crate) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    pub(crate) fn wait(&mut self, queue: QueueId) {
        self.waiting.push(queue);
    }

    /// There may be room: those that wait for it.
    pub(crate) fn take_waiting(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn park(&mut self, queue: QueueId) {
        self.parked.push(queue);
    }

    /// The lane is up.
    pub(crate) fn take_parked(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.parked)
    }

    // ---- posted

    /// The last work request of an operation was posted.
    pub(crate) fn on_posted(&mut self, wr: u64, id: OperationId) {
        self.posted.push_back((wr, id));
    }

    /// Work requests up to this one are done. The next operation of which that is all.
    pub(crate) fn take_placed(&mut self, wr: u64) -> Option<OperationId> {
        let &(last, id) = self.posted.front()?;
        if last > wr {
            return None;
        }
        self.posted.pop_front();
        Some(id)
    }

    // ---- to be asked for

    pub(crate) fn push_ask(&mut self, id: OperationId) {
        self.asks.push_back(id);
    }

    /// After a reset: what was asked for, in the old order, and did not arrive.
    pub(crate) fn ask_again(&mut self, ids: Vec<OperationId>) {
        ids.into_iter().rev().for_each(|id| self.asks.push_front(id));
    }

    pub(crate) fn front_ask(&self) -> Option<OperationId> {
        self.asks.front().copied()
    }

    pub(crate) fn pop_ask(&mut self) {
        self.asks.pop_front();
    }

    /// An operation is not to be asked for after all. False: it was asked for, or never to be.
    pub(crate) fn take_back_ask(&mut self, id: OperationId) -> bool {
        let place = self.asks.iter().position(|ask| *ask == id);
        place.and_then(|place| self.asks.remove(place)).is_some()
    }
}

impl LanePart for Flight {
    #[inline]
    fn wants_frame(&self) -> bool {
        !self.asks.is_empty() || self.answers.front().is_some()
    }

    fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.answers.front().is_none() && self.parked.is_empty() && self.waiting.is_empty()
    }

    fn is_needed(&self) -> bool {
        self.uses > 0 || self.in_flight > 0
    }

    fn is_still(&self) -> bool {
        self.in_flight == 0
    }

    fn hold(&mut self) {
        self.is_held = true;
    }

    /// Operations, and answers, are carried on by `engine::operations::resume`.
    fn forget_queue_pair(&mut self) {
        self.posted.clear();
        self.waiting.clear();
        self.parked.clear();
        self.is_held = false;
    }

    fn take_idle_memory(&mut self) -> Option<MrId> {
        self.buffers.take_if(|_| self.in_flight == 0).map(|buffers| buffers.mr)
    }
}
