//! One-sided operations of applications on regions of other hosts, and the regions of this host that others may use.
//!
//! Owns operation queues, operations in flight, and the tables of regions (docs/use/regions.md). It must never post what it
//! did not check: an access error would break the queue pair that other applications share. It must never let an
//! operation end twice, or without its completion.
//!
//! An operation is *taken* out of its queue's ring when it may begin, *posted* in pieces, *asked* for if the owner's
//! engine has to do something, and *ends* when the device and the owner have answered. What of it is on a lane is in
//! `flight`; who does the work is in `engine::operations` and `engine::pump`.

pub(crate) mod answers;
pub(crate) mod buffers;
pub(crate) mod ending;
pub(crate) mod flight;
mod here;
pub(crate) mod kernels;
pub(crate) mod locals;
pub(crate) mod notices;
pub(crate) mod owned;
pub(crate) mod queue;
pub(crate) mod regions;
pub(crate) mod taking;
mod tell_here;

use std::collections::{BTreeMap, VecDeque};

use control::Reason;
use genslab::GenSlab;
use shm::{OperationStatus, Submission};

use crate::ids::{AppId, HandleId, LaneId, OperationId, QueueBindId, QueueId, SlotAt};
use crate::limits::{OPERATION_QUEUES_MAX, REGION_HANDLES_MAX};
use crate::ring_slot::SlotRequest;

use crate::ask::Ask;
use crate::frame::{Run, RunRegion};
use crate::pins::Pins;
use kernels::{KernelLimits, Kernels};
use locals::{Locals, Piece};
use notices::Notices;
use owned::OwnedRegions;
use queue::{OperationQueue, QueueFault};
use regions::OpenRegions;
use tell_here::Tellings;

/// How an operation ended, and what its completion says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: OperationStatus,
    pub(crate) value: u64,
    pub(crate) detail: u64,
}

impl Outcome {
    pub(crate) const DONE: Self = Self { status: OperationStatus::Ok, value: 0, detail: 0 };

    pub(crate) const fn of(status: OperationStatus, detail: u64) -> Self {
        Self { status, value: 0, detail }
    }
}

/// The bytes of an operation on this host.
#[derive(Debug)]
pub(crate) enum Memory {
    /// It has none.
    None,
    /// They travel in the rings, through this slot of the lane's buffers.
    Buffer(u16),
    /// They lie in local regions.
    Local(Vec<Piece>),
}

/// When a record that asks the owner's engine for something was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// Number of the lane's frame.
    pub(crate) frame: u64,
    /// Counts what the engine asks for.
    pub(crate) order: u64,
}

/// The kernel of an operation.
#[derive(Debug)]
pub(crate) struct Running {
    program: u32,
    regions: Vec<RunRegion>,
    request: Vec<u8>,
    /// What the owner said.
    pub(crate) answer: Vec<u8>,
}

impl Running {
    /// As the owner's engine is asked for it.
    pub(crate) fn record(&self, id: u32) -> Run {
        Run { id, program: self.program, regions: self.regions.clone(), request: self.request.clone() }
    }
}

/// An operation that was taken and has not ended.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) queue: QueueId,
    pub(crate) handle: HandleId,
    pub(crate) lane: LaneId,
    pub(crate) submission: Submission,
    /// Number of its chain in the queue.
    pub(crate) chain: u64,
    /// Counts what the engine took.
    pub(crate) sequence: u64,
    pub(crate) memory: Memory,
    /// Bytes that were posted.
    pub(crate) posted: u32,
    /// The last work request of these.
    pub(crate) last_wr: u64,
    /// The device has done all that was posted, and nothing is left to post.
    pub(crate) is_placed: bool,
    /// What the owner's engine has to do behind the bytes.
    pub(crate) ask: Option<Ask>,
    /// The kernel that it is to run.
    pub(crate) run: Option<Box<Running>>,
    pub(crate) asked: Option<Asked>,
    /// What the owner said, or what was decided about it before the device was done.
    pub(crate) verdict: Option<Outcome>,
    /// The application has its completion, and the memory is still in use.
    pub(crate) is_told: bool,
    /// One before it in its chain may not have been done on the queue pair that is gone.
    pub(crate) is_cut_off: bool,
}

impl Operation {
    /// Whether the device and the owner have answered.
    pub(crate) fn is_done(&self) -> bool {
        self.is_placed && (self.ask.is_none() || self.verdict.is_some())
    }

    /// Whether anything of it may have had an effect on the region that its caller does not know.
    pub(crate) fn may_have_effect(&self) -> bool {
        let changes = !matches!(self.submission.opcode, shm::Opcode::Read);
        changes && (self.posted > 0 || self.asked.is_some())
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.submission.opcode, shm::Opcode::Read)
    }

    /// How it ends behind one that may not have been done, if the owner was not asked for it.
    pub(crate) fn cut_off(&self, reason: Reason) -> Outcome {
        if self.posted > 0 && !self.is_read() {
            Outcome::of(OperationStatus::OutcomeUnknown, reason.code().into())
        } else {
            Outcome::of(OperationStatus::ChainBroken, 0)
        }
    }
}

/// Operations of one application that were begun, by verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VerbCounts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) atomics: u64,
    pub(crate) kernels: u64,
}

/// What the engine counts of operations.
#[derive(Debug, Default)]
pub(crate) struct OperationCounters {
    /// Taken.
    pub(crate) begun: u64,
    /// Ended with an outcome that nobody knows.
    pub(crate) unknown: u64,
    /// Refused before anything was done.
    pub(crate) refused: u64,
    /// Executed for other hosts.
    pub(crate) executed: u64,
    /// Kernels that ended for other hosts.
    pub(crate) kernels_run: u64,
    /// Kernels that ended for other hosts without an answer.
    pub(crate) kernels_failed: u64,
    /// Fuel that they spent.
    pub(crate) kernel_fuel: u64,
    /// READs begun again, and asks repeated, after a lane's reset.
    pub(crate) repeated: u64,
}

/// The engine's part of one-sided memory.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) queues: GenSlab<QueueId, OperationQueue>,
    /// Openings that wait for rings.
    pub(crate) binds: GenSlab<QueueBindId, SlotRequest>,
    pub(crate) regions: OpenRegions,
    pub(crate) owned: OwnedRegions,
    /// Kernels that run for other hosts.
    pub(crate) kernels: Kernels,
    pub(crate) locals: Locals,
    /// What owners of regions of this host are to be told.
    pub(crate) notices: Notices,
    tellings: Tellings,
    table: GenSlab<OperationId, Operation>,
    sequence: u64,
    asked: u64,
    /// Queues that are to be looked at.
    due: VecDeque<QueueId>,
    /// Slots with news, and whether their application waits for it.
    marks: Vec<(SlotAt, bool)>,
    faults: Vec<(QueueId, QueueFault)>,
    /// Closed queues of which nothing is in flight.
    drained: Vec<QueueId>,
    verbs: BTreeMap<AppId, VerbCounts>,
    pub(crate) counters: OperationCounters,
    scratch: Vec<u8>,
}

impl Operations {
    pub(crate) fn new(pins: Pins, kernels: KernelLimits) -> Self {
        Self {
            queues: GenSlab::new(OPERATION_QUEUES_MAX),
            binds: GenSlab::new(OPERATION_QUEUES_MAX),
            regions: OpenRegions::new(REGION_HANDLES_MAX),
            owned: OwnedRegions::default(),
            kernels: Kernels::new(kernels),
            locals: Locals::new(pins),
            notices: Notices::default(),
            tellings: Tellings::default(),
            table: GenSlab::new(crate::limits::TABLE_MAX),
            sequence: 0,
            asked: 0,
            due: VecDeque::new(),
            marks: Vec::new(),
            faults: Vec::new(),
            drained: Vec::new(),
            verbs: BTreeMap::new(),
            counters: OperationCounters::default(),
            scratch: Vec::new(),
        }
    }

    /// Whether a round would do something now.
    pub(crate) fn has_work(&self) -> bool {
        !self.due.is_empty() || self.kernels.has_work() || self.has_news()
    }

    /// Whether there is something for the engine to settle.
    pub(crate) fn has_news(&self) -> bool {
        !self.marks.is_empty()
            || !self.faults.is_empty()
            || !self.drained.is_empty()
            || self.regions.has_quiet()
            || self.locals.has_unused()
    }

    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        self.table.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.table.get_mut(id)
    }

    /// Operations of a lane, those that were taken first first.
    pub(crate) fn of_lane(&self, lane: LaneId) -> Vec<OperationId> {
        self.those(|op| op.lane == lane).into_iter().map(|(id, _)| id).collect()
    }

    /// Operations of a kind, with their lanes, those that were taken first first.
    pub(crate) fn those(&self, which: impl Fn(&Operation) -> bool) -> Vec<(OperationId, LaneId)> {
        let chosen = self.table.iter().filter(|(_, op)| which(op));
        let mut found: Vec<_> = chosen.map(|(id, op)| (op.sequence, id, op.lane)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id, lane)| (id, lane)).collect()
    }

    /// After a reset: nothing of an operation was done, and it begins again.
    pub(crate) fn begin_again(&mut self, id: OperationId) {
        let Some(op) = self.table.get_mut(id) else { return };
        self.counters.repeated += u64::from(op.posted > 0);
        op.posted = 0;
        if let Some(queue) = self.queues.get_mut(op.queue) {
            queue.post_again(id);
        }
        let queue = op.queue;
        self.note_due(queue);
    }

    /// Number of the next thing that an owner is asked for.
    pub(crate) fn next_ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Shows the application of a queue the room in its transmit ring.
    pub(crate) fn show_room(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(id)
            && let Some(awaited) = queue.show_room()
        {
            self.marks.push((queue.at(), awaited));
        }
    }

    // ---- queues to be looked at

    /// Something about a queue changed: it is looked at in this round or the next.
    pub(crate) fn note_due(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(id)
            && queue.enter_due()
        {
            self.due.push_back(id);
        }
    }

    /// How many are to be looked at.
    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// Takes the first of those.
    pub(crate) fn next_due(&mut self) -> Option<QueueId> {
        let id = self.due.pop_front()?;
        if let Some(queue) = self.queues.get_mut(id) {
            queue.leave_due();
        }
        Some(id)
    }

    /// Queues that stand in the lists of a lane stand in none any more, and are looked at again.
    pub(crate) fn free_places(&mut self, lane: LaneId) {
        for id in self.queues.keys() {
            if self.queues.get_mut(id).is_some_and(|q| q.leave_lane(lane)) {
                self.note_due(id);
            }
        }
    }

    // ---- news for the engine

    pub(crate) fn take_marks(&mut self) -> Vec<(SlotAt, bool)> {
        std::mem::take(&mut self.marks)
    }

    pub(crate) fn take_faults(&mut self) -> Vec<(QueueId, QueueFault)> {
        std::mem::take(&mut self.faults)
    }

    /// Closed queues of which nothing is in flight.
    pub(crate) fn take_drained(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.drained)
    }

    /// A queue was closed: it is over as soon as nothing of it is in flight.
    pub(crate) fn note_closed(&mut self, id: QueueId) {
        if self.queues.get(id).is_some_and(OperationQueue::is_over) {
            self.drained.push(id);
        }
    }

    // ---- counts

    /// Operations that an application began.
    pub(crate) fn verbs(&self, app: AppId) -> VerbCounts {
        self.verbs.get(&app).copied().unwrap_or_default()
    }

    /// An application is gone.
    pub(crate) fn forget_app(&mut self, app: AppId) {
        self.verbs.remove(&app);
    }

    /// Counters for [`crate::EngineTotals`].
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let c = &self.counters;
        [
            ("operation_queues", self.queues.len().into()),
            ("operations_in_flight", self.table.len().into()),
            ("operations_begun", c.begun),
            ("operations_refused", c.refused),
            ("operations_unknown", c.unknown),
            ("operations_repeated", c.repeated),
            ("operations_executed", c.executed),
            ("notices_told", self.notices.told),
            ("notices_refused", self.notices.refused),
            ("notices_waiting", self.notices.waiting()),
            ("kernels_waiting", self.kernels.len() as u64),
            ("kernels_run", c.kernels_run),
            ("kernels_failed", c.kernels_failed),
            ("kernel_fuel", c.kernel_fuel),
            ("region_handles", self.regions.len()),
            ("regions_registered", self.owned.len()),
            ("regions_local", self.locals.len()),
        ]
        .into_iter()
    }
}
