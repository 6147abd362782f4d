//! Operations that are submitted together.
//!
//! Owns their order and the checks of all before any begins. It must never submit a part of a batch that it refuses.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use control::RegionAccess;
use shm::{AtomicOp, KERNEL_BYTES_MAX, KERNEL_REGIONS_MAX, OPERATION_BYTES_MAX, SEGMENTS_MAX};

use super::Region;
use super::completion::Completion;
use super::error::RegionError;
use super::flight::Outcomes;
use super::handle::{Handle, Reach};
use super::pending::{Ended, Found, Pending};
use super::remote::{Plan, Told};
use super::slice::RegionSlice;

/// Bytes by which a kernel's request names a region of another host.
const HANDLE_BYTES: usize = 8;
/// Bytes that are copied at a time between two regions of this host.
const COPY_BYTES: usize = 4096;

/// What one operation does.
#[derive(Debug, Clone)]
enum Act {
    Read {
        len: usize,
    },
    Write {
        bytes: Vec<u8>,
        completion: Completion,
        tag: Option<u32>,
    },
    ReadInto(Vec<RegionSlice>),
    WriteFrom {
        slices: Vec<RegionSlice>,
        completion: Completion,
    },
    Atomic(AtomicOp),
    /// With the regions that it may use beside the one that it is about.
    Run {
        request: Vec<u8>,
        others: Vec<Region>,
    },
}

impl Act {
    fn needs(&self) -> RegionAccess {
        match self {
            Self::Read { .. } | Self::ReadInto(_) => RegionAccess::READ,
            Self::Write { .. } | Self::WriteFrom { .. } => RegionAccess::WRITE,
            Self::Atomic(_) => RegionAccess::ATOMIC,
            Self::Run { .. } => RegionAccess::EXECUTE,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Read { len } => *len as u64,
            Self::Write { bytes, .. } => bytes.len() as u64,
            Self::ReadInto(_) | Self::WriteFrom { .. } => {
                self.slices().iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.len()))
            }
            Self::Atomic(_) => 8,
            Self::Run { .. } => 0,
        }
    }

    fn slices(&self) -> &[RegionSlice] {
        match self {
            Self::ReadInto(slices) | Self::WriteFrom { slices, .. } => slices,
            Self::Read { .. } | Self::Write { .. } | Self::Atomic(_) | Self::Run { .. } => &[],
        }
    }
}

#[derive(Debug, Clone)]
struct Operation {
    region: Region,
    offset: u64,
    act: Act,
    is_fenced: bool,
}

/// Operations on regions of one host that are submitted together, in this order, as a *chain*: one entry into the
/// queue, one doorbell, and the daemon posts them together.
///
/// Operations of a chain overlap. After [`Batch::fence`] the next one begins when all before it are done. If one fails,
/// none that has not begun is done: it ends with [`RegionError::NotDone`], which names the one that failed. Behind a
/// fence that is certain; without one, operations behind the one that failed may have begun already. A
/// compare-and-swap that finds another value than expected has not failed: a chain has no conditions, as the verbs have
/// none.
///
/// ```no_run
/// use raas::{Batch, Region};
///
/// fn append(log: &Region, at: u64, entry: &[u8], seen: u64) -> Result<bool, raas::RegionError> {
///     let mut batch = Batch::new();
///     let head = batch.read(log, 0, 8);
///     batch.fence();
///     batch.write(log, at, entry);
///     batch.fence();
///     let swap = batch.compare_swap(log, 0, seen, at);
///     let ended = batch.run()?;
///     ended.check()?;
///     Ok(ended.value(head)? == seen && ended.value(swap)? == seen)
/// }
/// ```
///
/// On one host each operation is done, in order, while the batch is submitted.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    is_fenced: bool,
}

impl Batch {
    /// Without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many operations it has.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The next operation begins when all before it are done.
    pub fn fence(&mut self) {
        self.is_fenced = !self.operations.is_empty();
    }

    fn add(&mut self, region: &Region, offset: u64, act: Act) -> usize {
        let is_fenced = std::mem::take(&mut self.is_fenced);
        self.operations.push(Operation { region: region.clone(), offset, act, is_fenced });
        self.operations.len() - 1
    }

    // ---- operations; each returns its number

    /// Reads `len` bytes, which [`Ended::bytes`] then has. Returns the operation's number, as all of these do.
    pub fn read(&mut self, region: &Region, offset: u64, len: usize) -> usize {
        self.add(region, offset, Act::Read { len })
    }

    /// Writes; done when every later look sees the bytes. A `Vec` is taken over, other bytes are copied.
    pub fn write(&mut self, region: &Region, offset: u64, bytes: impl Into<Vec<u8>>) -> usize {
        self.write_as(region, offset, bytes, Completion::Visible)
    }

    /// As [`Batch::write`], done as soon as `completion` says.
    pub fn write_as(
        &mut self,
        region: &Region,
        offset: u64,
        bytes: impl Into<Vec<u8>>,
        completion: Completion,
    ) -> usize {
        self.add(region, offset, Act::Write { bytes: bytes.into(), completion, tag: None })
    }

    /// As [`Batch::write`], and then tells the owner, as [`Region::write_notify`] does. For a region of this host the
    /// submission waits until the daemon has taken the notification.
    pub fn write_notify(&mut self, region: &Region, offset: u64, bytes: impl Into<Vec<u8>>, tag: u32) -> usize {
        let completion = Completion::Visible;
        self.add(region, offset, Act::Write { bytes: bytes.into(), completion, tag: Some(tag) })
    }

    /// As [`Region::read_into`]: the bytes go straight into parts of other regions. At most 16 of them, of at most 1 GiB
    /// together.
    pub fn read_into(&mut self, region: &Region, offset: u64, slices: &[RegionSlice]) -> usize {
        self.add(region, offset, Act::ReadInto(slices.to_vec()))
    }

    /// As [`Region::write_from`]: the bytes come straight from parts of other regions, as many as with
    /// [`Batch::read_into`]. They must not be changed before the operation has ended.
    pub fn write_from(
        &mut self,
        region: &Region,
        offset: u64,
        slices: &[RegionSlice],
        completion: Completion,
    ) -> usize {
        self.add(region, offset, Act::WriteFrom { slices: slices.to_vec(), completion })
    }

    /// As [`Region::compare_swap`]: what was there is [`Ended::value`], as of all atomics.
    pub fn compare_swap(&mut self, region: &Region, offset: u64, expected: u64, new: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::CompareSwap { expected, new }))
    }

    /// As [`Region::fetch_add`].
    pub fn fetch_add(&mut self, region: &Region, offset: u64, value: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Add(value)))
    }

    /// As [`Region::swap`].
    pub fn swap(&mut self, region: &Region, offset: u64, value: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Swap(value)))
    }

    /// As [`Region::fetch_and`].
    pub fn fetch_and(&mut self, region: &Region, offset: u64, bits: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::And(bits)))
    }

    /// As [`Region::fetch_or`].
    pub fn fetch_or(&mut self, region: &Region, offset: u64, bits: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Or(bits)))
    }

    /// As [`Region::fetch_xor`].
    pub fn fetch_xor(&mut self, region: &Region, offset: u64, bits: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Xor(bits)))
    }

    /// As [`Region::fetch_min`].
    pub fn fetch_min(&mut self, region: &Region, offset: u64, value: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Min(value)))
    }

    /// As [`Region::fetch_max`].
    pub fn fetch_max(&mut self, region: &Region, offset: u64, value: u64) -> usize {
        self.add(region, offset, Act::Atomic(AtomicOp::Max(value)))
    }

    /// As [`Region::run`]: what the kernel answers is [`Ended::bytes`].
    pub fn run_kernel(&mut self, region: &Region, kernel: &str, args: &[u8]) -> Result<usize, RegionError> {
        self.run_kernel_with(region, kernel, args, &[])
    }

    /// As [`Region::run_with`]. An error says that the request cannot be sent; then nothing was added.
    pub fn run_kernel_with(
        &mut self,
        region: &Region,
        kernel: &str,
        args: &[u8],
        others: &[Region],
    ) -> Result<usize, RegionError> {
        let name = || region.0.name().to_owned();
        let request = kernels::Request { name: kernel, args };
        let request = request.to_bytes().map_err(|why| RegionError::Request { name: name(), why })?;
        for other in others {
            // Of broken ones the way is not known before they are opened again.
            let may_differ_soon = || region.0.is_broken() || other.0.is_broken();
            if !region.0.now().shares_way(&other.0.now()) && (region.is_here() != other.is_here() || !may_differ_soon())
            {
                return Err(RegionError::OtherHost { name: name(), other: other.name().to_owned() });
            }
        }
        let bytes = request.len() + others.len() * HANDLE_BYTES;
        let (regions, max) = (others.len(), u64::from(KERNEL_BYTES_MAX));
        if bytes as u64 > max || regions as u64 > KERNEL_REGIONS_MAX {
            return Err(RegionError::RequestTooLong { name: name(), bytes, regions, max });
        }
        Ok(self.add(region, 0, Act::Run { request, others: others.to_vec() }))
    }

    // ---- submitting

    /// Submits, and waits for the end of all. An error: the batch was refused, and nothing of it was done; how each
    /// operation ended is in [`Ended`]. If the session is lost meanwhile, that is the error of each, or
    /// [`RegionError::OutcomeUnknown`] of those that may have been done.
    pub fn run(self) -> Result<Ended, RegionError> {
        self.submit()?.wait()
    }

    /// Submits, and does not wait. An error: nothing of the batch was done. Batches are begun in the order of their
    /// submission. If the queue is full, the batch waits in this program's memory, and goes in when somebody waits or
    /// polls. While a region of it must be opened again, because a daemon ended (docs/operate/restart.md), it waits for that in the
    /// same way, with all that are submitted behind it; if the region cannot be opened, that is the error of each operation.
    pub fn submit(self) -> Result<Pending, RegionError> {
        for operation in &self.operations {
            operation.check()?;
        }
        let Some(first) = self.operations.first() else { return Ok(Pending::ended(Ended::new(Vec::new()))) };
        if self.regions().any(|region| region.0.is_broken() || region.0.backlog.is_served()) {
            let (way, attachment) = (Arc::clone(&first.region.0), Arc::clone(first.region.0.now().attachment()));
            attachment.check_fork()?;
            return Ok(Pending::later(attachment, way.backlog.add(Box::new(move || self.submit_settled()))?));
        }
        self.submit_now()
    }

    fn regions(&self) -> impl Iterator<Item = &Region> {
        self.operations.iter().flat_map(|operation| {
            let others: &[Region] = if let Act::Run { others, .. } = &operation.act { others } else { &[] };
            std::iter::once(&operation.region).chain(others)
        })
    }

    /// Opens its regions again where they must be, which may wait, and submits.
    fn submit_settled(self) -> Pending {
        let count = self.operations.len();
        let settled = self.regions().try_for_each(|region| region.handle().map(drop));
        let refused = |error| Pending::ended(Ended::new(vec![Err(error); count]));
        settled.and_then(|()| self.submit_now()).unwrap_or_else(refused)
    }

    fn submit_now(self) -> Result<Pending, RegionError> {
        let steps: Vec<Step> = self.operations.into_iter().map(Step::of).collect();
        for step in &steps {
            step.check()?;
        }
        let Some(first) = steps.first() else { return Ok(Pending::ended(Ended::new(Vec::new()))) };
        let all = steps.iter().flat_map(|step| std::iter::once(&step.handle).chain(&step.others));
        if let Some(other) = all.clone().find(|handle| !handle.shares_way(&first.handle)) {
            let [name, other] = [&first.handle, other].map(|handle| handle.name().to_owned());
            return Err(RegionError::OtherHost { name, other });
        }
        match first.handle.reach() {
            Reach::Here(_) => Ok(Pending::ended(run_here(&steps))),
            Reach::There(_) => submit_there(steps),
        }
    }
}

/// An operation by the handles that count for it.
#[derive(Debug)]
struct Step {
    handle: Arc<Handle>,
    offset: u64,
    act: Act,
    is_fenced: bool,
    /// Of a kernel's other regions.
    others: Vec<Arc<Handle>>,
    /// Of a kernel, as another host gets it: by which numbers the engine knows these, and the request.
    request: Vec<u8>,
}

impl Step {
    fn of(Operation { region, offset, act, is_fenced }: Operation) -> Self {
        let handle = Arc::clone(&region.0.now());
        let (mut others, mut bytes) = (Vec::new(), Vec::new());
        if let Act::Run { request, others: regions } = &act {
            others = regions.iter().map(|other| Arc::clone(&other.0.now())).collect();
            for other in &others {
                let number = if let Reach::There(remote) = other.reach() { remote.handle } else { 0 };
                bytes.extend_from_slice(&u64::from(number).to_le_bytes());
            }
            bytes.extend_from_slice(request);
        }
        Self { handle, offset, act, is_fenced, others, request: bytes }
    }
}

fn run_here(steps: &[Step]) -> Ended {
    let mut failed = None;
    let results = steps.iter().enumerate().map(|(number, step)| match failed {
        Some(failed) => Err(RegionError::NotDone { name: step.handle.name().to_owned(), operation: number, failed }),
        None => step.run_here().inspect_err(|_| failed = Some(number)),
    });
    Ended::new(results.collect())
}

fn submit_there(steps: Vec<Step>) -> Result<Pending, RegionError> {
    let mut plan = Plan::default();
    let mut way = None;
    let mut used = Vec::new();
    for (number, Step { handle, offset, act, is_fenced, others, request }) in steps.iter().enumerate() {
        let Reach::There(remote) = handle.reach() else { continue };
        way = Some(remote);
        match act {
            Act::Read { len } => plan.read(remote, *offset, *len, *is_fenced),
            Act::Write { bytes, completion, tag } => {
                let told = tag.map(|tag| Told { tag, offset: *offset, bytes: bytes.len() as u64 });
                plan.write(remote, *offset, bytes.len(), (*completion, told), *is_fenced);
            }
            Act::ReadInto(_) | Act::WriteFrom { .. } => {
                let mut segments = Vec::new();
                for slice in act.slices().iter().filter(|slice| !slice.is_empty()) {
                    let (segment, of) = slice.begin()?;
                    segments.push(segment);
                    used.push((number, of));
                }
                let len = usize::try_from(act.bytes()).unwrap_or(usize::MAX);
                let write = if let Act::WriteFrom { completion, .. } = act { Some(*completion) } else { None };
                plan.direct(remote, *offset, (segments, len), write, *is_fenced);
            }
            Act::Atomic(op) => plan.atomic(remote, *offset, *op, *is_fenced),
            Act::Run { .. } => plan.run(remote, (others.len(), request.len()), *is_fenced),
        }
    }
    let handles: Vec<Arc<Handle>> = steps.iter().map(|step| Arc::clone(&step.handle)).collect();
    let flight = plan.into_flight(handles.iter().map(|h| Arc::clone(h) as _).collect());
    if !used.is_empty() {
        let is_read: Vec<bool> = steps.iter().map(|step| matches!(step.act, Act::ReadInto(_))).collect();
        flight.settle_with(Box::new(move |outcomes| {
            for (number, of) in used {
                if let (Some(outcome), Some(is_read)) = (outcomes.get_mut(number), is_read.get(number)) {
                    of.settle(*is_read, outcome);
                }
            }
        }));
    }
    let (Some(remote), Some(first)) = (way, handles.first()) else {
        return Ok(Pending::ended(Ended::new(Vec::new())));
    };
    let payload = steps.iter().filter_map(|step| match &step.act {
        Act::Write { bytes, .. } => Some(IoSlice::new(bytes)),
        Act::Run { .. } => Some(IoSlice::new(&step.request)),
        _ => None,
    });
    let payload: Vec<IoSlice<'_>> = payload.collect();
    remote.submit(first.name(), &flight, &payload)?;
    let queue = Arc::clone(&remote.queue);
    let is_atomic = steps.iter().map(|step| matches!(step.act, Act::Atomic(_))).collect::<Vec<_>>();
    Ok(Pending::going(queue, flight, Box::new(move |outcomes| judge(&handles, &is_atomic, outcomes))))
}

/// What the outcomes of operations on regions of another host mean.
fn judge(handles: &[Arc<Handle>], is_atomic: &[bool], outcomes: Outcomes) -> Ended {
    let Outcomes { all, first_failed } = outcomes;
    let each = all.into_iter().zip(handles).zip(is_atomic).enumerate();
    let results = each.map(|(number, ((outcome, handle), is_atomic))| match (outcome.failure, handle.reach()) {
        (Some(failure), Reach::There(remote)) => {
            let cause = first_failed.unwrap_or(0);
            Err(handle.as_told(remote.error(handle.name(), &failure, outcome.may_have_landed, (number, cause))))
        }
        _ if *is_atomic => Ok(Found::Word(outcome.value)),
        _ => Ok(Found::Bytes(outcome.bytes)),
    });
    Ended::new(results.collect())
}

impl Operation {
    /// What every operation needs before any of the batch begins.
    fn check(&self) -> Result<(), RegionError> {
        if let Act::Write { completion: Completion::Persistent, .. }
        | Act::WriteFrom { completion: Completion::Persistent, .. } = self.act
        {
            return Err(RegionError::NoPersistence);
        }
        let (count, bytes) = (self.act.slices().len(), self.act.bytes());
        let (count_max, bytes_max) = (usize::from(SEGMENTS_MAX), u64::from(OPERATION_BYTES_MAX));
        if count > count_max || count > 0 && bytes > bytes_max {
            return Err(RegionError::LocalTooLong { count, bytes, count_max, bytes_max });
        }
        let handle = self.region.0.now();
        for slice in self.act.slices() {
            slice.check(&handle, matches!(self.act, Act::ReadInto(_)))?;
        }
        if matches!(self.act, Act::Atomic(_)) {
            handle.check_aligned(self.offset)?;
        }
        handle.check_may(self.act.needs(), self.offset, bytes)
    }
}

impl Step {
    /// What it needs of the handle by which it is done.
    fn check(&self) -> Result<(), RegionError> {
        self.handle.check_access(self.act.needs(), self.offset, self.act.bytes())
    }

    /// On a region of this host.
    fn run_here(&self) -> Result<Found, RegionError> {
        match &self.act {
            Act::Read { len } => {
                let mut bytes = vec![0; *len];
                self.handle.read(self.offset, &mut [IoSliceMut::new(&mut bytes)])?;
                Ok(Found::Bytes(bytes))
            }
            Act::Write { bytes, completion, tag } => {
                self.handle.write(self.offset, &[IoSlice::new(bytes)], *completion, *tag)?;
                Ok(Found::Nothing)
            }
            Act::ReadInto(slices) => self.copy(slices, |at, slice, piece| {
                self.handle.read(at, &mut [IoSliceMut::new(piece)])?;
                slice.0.write(slice.1, &[IoSlice::new(piece)], Completion::Visible, None)
            }),
            Act::WriteFrom { slices, completion } => self.copy(slices, |at, slice, piece| {
                slice.0.read(slice.1, &mut [IoSliceMut::new(piece)])?;
                self.handle.write(at, &[IoSlice::new(piece)], *completion, None)
            }),
            Act::Atomic(op) => self.handle.atomic(self.offset, *op).map(Found::Word),
            Act::Run { request, .. } => self.handle.run_here(request, &self.others).map(Found::Bytes),
        }
    }

    /// Between two mappings of this program the bytes pass through a piece of its cache. `step` gets a place in the
    /// region, one in a slice's, and the piece.
    fn copy(
        &self,
        slices: &[RegionSlice],
        step: impl Fn(u64, (&Handle, u64), &mut [u8]) -> Result<(), RegionError>,
    ) -> Result<Found, RegionError> {
        let mut piece = [0; COPY_BYTES];
        let mut at = self.offset;
        for slice in slices {
            let mut done = 0;
            while done < slice.len() {
                let count = (slice.len() - done).min(COPY_BYTES as u64);
                step(
                    at,
                    (slice.handle(), slice.offset() + done),
                    &mut piece[..usize::try_from(count).unwrap_or(COPY_BYTES)],
                )?;
                (done, at) = (done + count, at + count);
            }
        }
        Ok(Found::Nothing)
    }
}
