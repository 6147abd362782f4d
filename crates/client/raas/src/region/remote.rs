//! A region of another host: operations on it as records of an operation queue.
//!
//! Owns how operations are cut into records, and what the engine's answers mean. It must never say that nothing
//! happened when something may have.

use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use control::{Reason, RegionAccess, RegionRefusal};
use shm::{
    AtomicOp, Class, LocalSegment, OPERATION_INLINE_MAX, Opcode, OperationStatus, SUBMISSION_BYTES, Submission,
    submission_flag,
};

use super::completion::Completion;
use super::error::RegionError;
use super::flight::{Failure, Flight, Outcome, Outcomes, Submitted};
use super::queue::{NotTaken, Queue};
use crate::error::SessionError;

/// Records of a long transfer that are submitted together, at most.
const WINDOW_RECORDS: usize = 32;
/// Such parts of one transfer that are under way at a time.
const WINDOWS_MAX: usize = 2;

/// A region of another host, as a handle has it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) queue: Arc<Queue>,
    pub(super) handle: u32,
    pub(super) epoch: u64,
    pub(super) access: RegionAccess,
}

/// What the owner is to be told behind the bytes of a write.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub(super) tag: u32,
    /// Where the bytes begin of which it is told.
    pub(super) offset: u64,
    /// How many they are.
    pub(super) bytes: u64,
}

/// Records that are to go together, as one chain.
#[derive(Debug, Default)]
pub(super) struct Plan {
    records: Vec<Submitted>,
    /// Of each operation, how many bytes it reads.
    sizes: Vec<usize>,
    payload_bytes: usize,
}

impl Plan {
    /// The next record begins when all before it are done.
    fn fence(&mut self, from: usize, is_fenced: bool) {
        if let Some(first) = self.records.get_mut(from).filter(|_| is_fenced) {
            first.submission.flags |= submission_flag::FENCE;
        }
    }

    fn push(&mut self, submission: Submission, payload_bytes: usize, at: usize) {
        let payload = self.payload_bytes..self.payload_bytes + payload_bytes;
        self.payload_bytes = payload.end;
        let operation = self.sizes.len();
        self.records.push(Submitted { submission, payload, segments: Vec::new(), operation, at });
    }

    pub(super) fn read(&mut self, remote: &Remote, offset: u64, len: usize, is_fenced: bool) {
        let from = self.records.len();
        for (at, bytes) in pieces(len, remote.piece_bytes(), false) {
            self.push(remote.submission(Opcode::Read, offset + at as u64, bytes), 0, at);
        }
        self.sizes.push(len);
        self.fence(from, is_fenced);
    }

    /// With a tag the owner gets it after the bytes.
    pub(super) fn write(
        &mut self,
        remote: &Remote,
        offset: u64,
        len: usize,
        (completion, tag): (Completion, Option<Told>),
        is_fenced: bool,
    ) {
        let from = self.records.len();
        for (at, bytes) in pieces(len, remote.piece_bytes(), tag.is_some()) {
            let notify = tag.filter(|_| at + bytes == len);
            let opcode = if notify.is_some() { Opcode::WriteNotify } else { Opcode::Write };
            let submission = remote.submission(opcode, offset + at as u64, bytes);
            let (class, Told { tag, offset, bytes: told }) = (class_of(completion), notify.unwrap_or_default());
            self.push(Submission { class, notify: tag, operand: offset, compare: told, ..submission }, bytes, 0);
        }
        self.sizes.push(0);
        self.fence(from, is_fenced);
    }

    /// An operation whose bytes lie in local regions, `len` of them. With `write` it is a WRITE.
    pub(super) fn direct(
        &mut self,
        remote: &Remote,
        offset: u64,
        (segments, len): (Vec<LocalSegment>, usize),
        write: Option<Completion>,
        is_fenced: bool,
    ) {
        let from = self.records.len();
        let (opcode, class) = write.map_or((Opcode::Read, Class::Visible), |c| (Opcode::Write, class_of(c)));
        if len > 0 {
            let count = u8::try_from(segments.len()).unwrap_or(u8::MAX);
            let submission = remote.submission(opcode, offset, len);
            self.push(Submission { class, segments: count, ..submission }, 0, 0);
        }
        if let Some(record) = self.records.get_mut(from) {
            record.segments = segments;
        }
        self.sizes.push(0);
        self.fence(from, is_fenced);
    }

    pub(super) fn atomic(&mut self, remote: &Remote, offset: u64, op: AtomicOp, is_fenced: bool) {
        let from = self.records.len();
        let (opcode, operand, compare) = words_of(op);
        let submission = Submission { operand, compare, ..remote.submission(opcode, offset, 8) };
        self.push(submission, 0, 0);
        self.sizes.push(0);
        self.fence(from, is_fenced);
    }

    /// A kernel. Its request goes with the payload, behind the regions that it names.
    pub(super) fn run(&mut self, remote: &Remote, (regions, bytes): (usize, usize), is_fenced: bool) {
        let from = self.records.len();
        let submission = Submission { operand: regions as u64, ..remote.submission(Opcode::Run, 0, bytes) };
        self.push(submission, bytes, 0);
        self.sizes.push(0);
        self.fence(from, is_fenced);
    }

    /// `held` lives until the last operation has ended.
    pub(super) fn into_flight(self, held: Vec<Arc<dyn Any + Send + Sync>>) -> Arc<Flight> {
        Arc::new(Flight::new(self.records, self.sizes.into_iter(), held))
    }
}

/// Where the pieces of an operation begin, and their lengths. One of no bytes has no piece, or `needs_one`.
fn pieces(len: usize, piece: usize, needs_one: bool) -> impl Iterator<Item = (usize, usize)> {
    let empty = (len == 0 && needs_one).then_some((0, 0));
    (0..len).step_by(piece).map(move |at| (at, (len - at).min(piece))).chain(empty)
}

fn class_of(completion: Completion) -> Class {
    match completion {
        Completion::Posted => Class::Posted,
        Completion::Acked => Class::Acked,
        Completion::Visible => Class::Visible,
        Completion::Persistent => Class::Persistent,
    }
}

fn words_of(op: AtomicOp) -> (Opcode, u64, u64) {
    match op {
        AtomicOp::CompareSwap { expected, new } => (Opcode::CompareSwap, new, expected),
        AtomicOp::Add(v) => (Opcode::FetchAdd, v, 0),
        AtomicOp::Swap(v) => (Opcode::Swap, v, 0),
        AtomicOp::And(v) => (Opcode::And, v, 0),
        AtomicOp::Or(v) => (Opcode::Or, v, 0),
        AtomicOp::Xor(v) => (Opcode::Xor, v, 0),
        AtomicOp::Min(v) => (Opcode::Min, v, 0),
        AtomicOp::Max(v) => (Opcode::Max, v, 0),
    }
}

/// Bytes of one record in rings of so many, and of what is submitted together of a long transfer: the operator may
/// allow small rings only.
fn sizes(ring_bytes: usize) -> (usize, usize) {
    let piece = ring_bytes.saturating_sub(SUBMISSION_BYTES).clamp(8, OPERATION_INLINE_MAX as usize);
    let records = ring_bytes / 2 / (piece + SUBMISSION_BYTES);
    (piece, piece * records.clamp(1, WINDOW_RECORDS))
}

impl Remote {
    fn piece_bytes(&self) -> usize {
        sizes(self.queue.ring_bytes()).0
    }

    fn window_bytes(&self) -> usize {
        sizes(self.queue.ring_bytes()).1
    }

    fn submission(&self, opcode: Opcode, offset: u64, bytes: usize) -> Submission {
        Submission {
            tag: 0,
            opcode,
            flags: 0,
            class: Class::Visible,
            segments: 0,
            region: self.handle,
            epoch: self.epoch,
            offset,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            notify: 0,
            operand: 0,
            compare: 0,
        }
    }

    // ---- waiting for the end

    /// `put` gets the bytes in order, part by part.
    pub(super) fn read(
        &self,
        name: &str,
        offset: u64,
        len: usize,
        put: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RegionError> {
        let mut transfer = Transfer::new(self, name, put);
        let window = self.window_bytes();
        for at in (0..len).step_by(window) {
            let mut plan = Plan::default();
            plan.read(self, offset + at as u64, (len - at).min(window), false);
            transfer.go_on(plan, &[], WINDOWS_MAX)?;
        }
        transfer.finish().map(drop)
    }

    /// With a tag the owner gets it after the bytes.
    pub(super) fn write(
        &self,
        name: &str,
        offset: u64,
        bufs: &[IoSlice<'_>],
        completion: Completion,
        tag: Option<u32>,
    ) -> Result<(), RegionError> {
        let len = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        let told = tag.map(|tag| Told { tag, offset, bytes: len as u64 });
        let mut nobody = |_: &[u8]| {};
        let mut transfer = Transfer::new(self, name, &mut nobody);
        let window = self.window_bytes();
        for at in (0..len).step_by(window).chain((len == 0 && told.is_some()).then_some(0)) {
            let bytes = (len - at).min(window);
            let told = told.filter(|_| at + bytes == len);
            let mut plan = Plan { payload_bytes: at, ..Plan::default() };
            plan.write(self, offset + at as u64, bytes, (completion, told), false);
            // The owner must not be told while bytes before may still fail.
            transfer.go_on(plan, bufs, if told.is_some() { 1 } else { WINDOWS_MAX })?;
        }
        transfer.finish().map(drop)
    }

    /// Has the owner told of bytes that are there.
    pub(super) fn tell(&self, name: &str, told: Told) -> Result<(), RegionError> {
        let mut plan = Plan::default();
        plan.write(self, told.offset, 0, (Completion::Visible, Some(told)), false);
        let mut nobody = |_: &[u8]| {};
        let mut transfer = Transfer::new(self, name, &mut nobody);
        transfer.go_on(plan, &[], 1)?;
        transfer.finish().map(drop)
    }

    pub(super) fn atomic(&self, name: &str, offset: u64, op: AtomicOp) -> Result<u64, RegionError> {
        let mut plan = Plan::default();
        plan.atomic(self, offset, op, false);
        let mut nobody = |_: &[u8]| {};
        let mut transfer = Transfer::new(self, name, &mut nobody);
        transfer.go_on(plan, &[], 1)?;
        transfer.finish()
    }

    // ---- not waiting

    /// Submits, and does not wait. `payload`: the bytes of the plan's writes, one behind the other.
    pub(super) fn submit(&self, name: &str, flight: &Arc<Flight>, payload: &[IoSlice<'_>]) -> Result<(), RegionError> {
        let (bytes, max) = (flight.ring_bytes(), self.queue.ring_bytes());
        if bytes > max {
            return Err(RegionError::BatchTooLong { bytes, max });
        }
        self.queue.submit(flight, payload).map_err(|not| match not {
            NotTaken::Over(error) => self.over(name, error),
            NotTaken::Full(_) => RegionError::TooManyPending { max: super::queue::BACKLOG_MAX },
        })
    }

    /// The queue has ended, and nothing was done.
    fn over(&self, name: &str, error: SessionError) -> RegionError {
        if self.queue.is_parted() {
            return RegionError::DaemonLost { name: name.to_owned(), may_have_landed: false };
        }
        error.into()
    }

    /// What a failure says. `number`: of the operation in its batch, and of the one that failed first.
    pub(super) fn error(
        &self,
        name: &str,
        failure: &Failure,
        may_have_landed: bool,
        number: (usize, usize),
    ) -> RegionError {
        let (status, detail) = match failure {
            Failure::Told { status, detail } => (*status, *detail),
            Failure::Kernel(bytes) => return kernel_error(name, bytes),
            Failure::Lost(SessionError::Lost { reason }) if may_have_landed => {
                return RegionError::OutcomeUnknown { name: name.to_owned(), reason: *reason };
            }
            Failure::Lost(error) => return self.over(name, error.clone()),
            Failure::Here(error) => return error.clone(),
        };
        let name = name.to_owned();
        let reason = || u32::try_from(detail).map_or(Reason::Unspecified, Reason::from_code);
        let held = self.epoch;
        match status {
            OperationStatus::Revoked | OperationStatus::NoRegion => {
                RegionError::Revoked { name, held, current: held + 1, may_have_landed }
            }
            OperationStatus::OutcomeUnknown => RegionError::OutcomeUnknown { name, reason: reason() },
            // Of a long write a part may be done.
            OperationStatus::PeerLost | OperationStatus::Failed if may_have_landed => {
                RegionError::OutcomeUnknown { name, reason: reason() }
            }
            OperationStatus::PeerLost | OperationStatus::Failed => {
                RegionError::Refused { name, why: RegionRefusal::Reason(reason()) }
            }
            OperationStatus::NotificationsFull => {
                RegionError::Refused { name, why: RegionRefusal::NotificationsFull { max: detail } }
            }
            OperationStatus::TooLong => RegionError::RequestTooLong { name, bytes: 0, regions: 0, max: detail },
            OperationStatus::NoPersistence => RegionError::NoPersistence,
            OperationStatus::ChainBroken => RegionError::NotDone { name, operation: number.0, failed: number.1 },
            OperationStatus::Access => RegionError::NoAccess { name, asked: RegionAccess::ALL, allowed: self.access },
            // The handle checked these before: the daemon and the library do not agree.
            other => SessionError::Protocol(format!("region `{name}`: {other:?}, {detail}")).into(),
        }
    }
}

/// What a daemon says instead of a kernel's answer. It may be any bytes.
pub(super) fn kernel_error(name: &str, bytes: &[u8]) -> RegionError {
    match kernels::Failure::parse(bytes) {
        Some(failure) => RegionError::Kernel { name: name.to_owned(), failure },
        None => SessionError::Protocol(format!("region `{name}`: {} bytes that are no failure", bytes.len())).into(),
    }
}

/// A transfer that may be long enough to go in several parts, of which some are under way at a time.
struct Transfer<'a> {
    remote: &'a Remote,
    name: &'a str,
    put: &'a mut dyn FnMut(&[u8]),
    going: VecDeque<Arc<Flight>>,
    /// A part of it was done, or may have been.
    may_have_landed: bool,
    /// What failed first, and which operation that was.
    failed: Option<(Failure, usize)>,
    /// What the last part found.
    value: u64,
}

impl<'a> Transfer<'a> {
    fn new(remote: &'a Remote, name: &'a str, put: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { remote, name, put, going: VecDeque::new(), may_have_landed: false, failed: None, value: 0 }
    }

    /// Begins the next part, when fewer than `most` are under way.
    fn go_on(&mut self, plan: Plan, payload: &[IoSlice<'_>], most: usize) -> Result<(), RegionError> {
        while self.going.len() >= most {
            self.take()?;
        }
        if self.failed.is_some() {
            return self.finish().map(drop);
        }
        let flight = plan.into_flight(Vec::new());
        match self.remote.queue.submit_blocking(&flight, payload) {
            Ok(()) => self.going.push_back(flight),
            // Parts before this one may have been done.
            Err(error) => {
                self.failed = Some((Failure::Lost(error), 0));
                return self.finish().map(drop);
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Result<(), RegionError> {
        let Some(flight) = self.going.pop_front() else { return Ok(()) };
        self.remote.queue.wait(&flight, None)?;
        let Outcomes { all, first_failed } = flight.take_outcomes();
        let Outcome { bytes, value, failure, may_have_landed } = all.into_iter().next().unwrap_or_default();
        self.may_have_landed |= may_have_landed;
        self.value = value;
        match failure {
            Some(failure) if self.failed.is_none() => self.failed = Some((failure, first_failed.unwrap_or(0))),
            None if self.failed.is_none() => (self.put)(&bytes),
            _ => {}
        }
        Ok(())
    }

    /// Waits for all parts: nothing of the transfer is done after it.
    fn finish(&mut self) -> Result<u64, RegionError> {
        while !self.going.is_empty() {
            self.take()?;
        }
        let Some((failure, first)) = self.failed.take() else { return Ok(self.value) };
        // What came behind it counts too.
        Err(self.remote.error(self.name, &failure, self.may_have_landed, (0, first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_goes_in_pieces_of_what_a_record_holds() {
        assert_eq!(pieces(0, 4096, false).count(), 0);
        assert_eq!(pieces(0, 4096, true).collect::<Vec<_>>(), [(0, 0)]);
        assert_eq!(pieces(8, 4096, true).collect::<Vec<_>>(), [(0, 8)]);
        assert_eq!(pieces(8193, 4096, false).last(), Some((8192, 1)));
    }

    #[test]
    fn what_is_submitted_together_fits_any_ring() {
        assert_eq!(sizes(256 << 10), (4096, 31 * 4096));
        for ring in (12..23).map(|bits| 1usize << bits) {
            let (piece, window) = sizes(ring);
            assert!(piece.is_multiple_of(8) && piece > 0, "{ring}");
            assert!(window.div_ceil(piece) * (piece + SUBMISSION_BYTES) <= ring, "{ring}");
        }
    }
}
