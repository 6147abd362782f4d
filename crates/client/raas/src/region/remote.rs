//! A region of another host: operations on it, through an operation queue of the session.
//!
//! Owns how long copies are cut into pieces, and what the engine's answers mean. It must end each of its operations
//! before the next caller begins one, so that no caller gets another's completion.

use std::io;
use std::sync::{Arc, Mutex};

use control::{Reason, RegionAccess, RegionRefusal};
use raas_core::{Answer, Failed, Rx};
use shm::{AtomicOp, Class, CompletionRecord, OPERATION_INLINE_MAX, Opcode, OperationStatus, Submission};

use super::completion::Completion;
use super::error::RegionError;
use super::handle::ask;
use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::error::{SessionError, StreamError};
use crate::park::lock;

/// Bytes of each ring of a session's queue.
const RING_BYTES: u32 = 256 << 10;
/// Operations of one call that are under way at a time: their records and those of their completions fit the rings.
const UNDER_WAY_MAX: usize = 32;
/// Bytes of one operation.
const PIECE_BYTES: usize = OPERATION_INLINE_MAX as usize;

/// An operation queue. Threads take turns.
#[derive(Debug)]
pub(crate) struct OperationQueue {
    conn: Arc<Conn>,
    /// The next tag.
    turn: Mutex<u64>,
}

impl OperationQueue {
    /// The session's queue, opened when it is first asked for.
    pub(super) fn of(attachment: &Arc<Attachment>) -> Result<Arc<Self>, RegionError> {
        let mut place = lock(&attachment.operations);
        // Dropped with the last handle to a region of another host.
        if let Some(queue) = place.upgrade() {
            return Ok(queue);
        }
        let connection = match ask(attachment, |session| session.open_operations(RING_BYTES))? {
            Answer::Connected(Ok(connection)) => *connection,
            Answer::Connected(Err(Failed::Reason(reason))) => {
                return Err(RegionError::refused("", RegionRefusal::Reason(reason)));
            }
            other => return Err(SessionError::Protocol(format!("the answer to OpenOperations was {other:?}")).into()),
        };
        let queue = Arc::new(Self { conn: Conn::adopt(attachment, connection), turn: Mutex::new(0) });
        *place = Arc::downgrade(&queue);
        Ok(queue)
    }

    /// Submits `count` operations and waits for the end of all; `done` gets each completion with its number.
    fn run<'a>(
        &self,
        count: usize,
        operation: impl Fn(usize) -> (Submission, &'a [u8]),
        mut done: impl FnMut(usize, &CompletionRecord, &Rx),
    ) -> Result<(), RegionError> {
        self.conn.check_fork()?;
        let mut turn = lock(&self.turn);
        let first = *turn;
        *turn += count as u64;
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && begun - ended < UNDER_WAY_MAX {
                let (submission, payload) = operation(begun);
                let submission = Submission { tag: first + begun as u64, ..submission };
                let bytes = usize::try_from(submission.ring_bytes()).unwrap_or(usize::MAX);
                let room = self.conn.reserve(bytes).map_err(|e| lost(&e))?;
                room.put_submission(self.conn.endpoint(), &submission, payload);
                begun += 1;
            }
            let closed = || lost(&io::ErrorKind::BrokenPipe.into());
            let mut lent = self.conn.loan().map_err(|e| lost(&e))?.ok_or_else(closed)?;
            let broken = |e: raas_core::NotARecord| SessionError::Protocol(e.to_string());
            let record = lent.rx.completion(lent.bytes).map_err(broken)?;
            // One of an earlier call that failed in the middle has no caller any more.
            if let Some(number) = record.tag.checked_sub(first).and_then(|n| usize::try_from(n).ok()) {
                done(number, &record, &lent.rx);
                ended += 1;
            }
            self.conn.consume(&mut lent.rx, record.ring_bytes());
        }
        Ok(())
    }
}

/// The queue ended: with the session, or because the daemon has no place for it.
fn lost(error: &io::Error) -> RegionError {
    let reason = StreamError::reason_of(error).unwrap_or(Reason::DaemonLost);
    SessionError::Lost { reason }.into()
}

/// A region of another host, as a handle has it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) queue: Arc<OperationQueue>,
    pub(super) handle: u32,
    pub(super) epoch: u64,
    pub(super) access: RegionAccess,
}

impl Remote {
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

    pub(super) fn read(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        let len = buf.len();
        let mut failed = None;
        let piece = |n: usize| {
            let bytes = (len - n * PIECE_BYTES).min(PIECE_BYTES);
            (self.submission(Opcode::Read, offset + (n * PIECE_BYTES) as u64, bytes), &[][..])
        };
        self.queue.run(len.div_ceil(PIECE_BYTES), piece, |n, record, rx| {
            match self.verdict(name, record) {
                Ok(()) => {
                    let place = &mut buf[n * PIECE_BYTES..];
                    let bytes = place.len().min(record.bytes as usize);
                    rx.completion_payload(&mut place[..bytes]);
                }
                Err(e) => drop(failed.get_or_insert(e)),
            };
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Writes; with a tag the owner gets it after the bytes.
    pub(super) fn write(
        &self,
        name: &str,
        offset: u64,
        buf: &[u8],
        completion: Completion,
        tag: Option<u32>,
    ) -> Result<(), RegionError> {
        let class = match completion {
            Completion::Posted => Class::Posted,
            Completion::Acked => Class::Acked,
            Completion::Visible => Class::Visible,
            Completion::Persistent => Class::Persistent,
        };
        let count = buf.len().div_ceil(PIECE_BYTES).max(usize::from(tag.is_some()));
        let piece = |n: usize| {
            let bytes = &buf[(n * PIECE_BYTES).min(buf.len())..((n + 1) * PIECE_BYTES).min(buf.len())];
            let notify = tag.filter(|_| n + 1 == count);
            let opcode = if notify.is_some() { Opcode::WriteNotify } else { Opcode::Write };
            let at = offset + (n * PIECE_BYTES) as u64;
            let submission = self.submission(opcode, at, bytes.len());
            (Submission { class, notify: notify.unwrap_or(0), ..submission }, bytes)
        };
        let mut failed = None;
        self.queue.run(count, piece, |_, record, _| {
            if let Err(e) = self.verdict(name, record) {
                failed.get_or_insert(e);
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    pub(super) fn atomic(&self, name: &str, offset: u64, op: AtomicOp) -> Result<u64, RegionError> {
        let (opcode, operand, compare) = match op {
            AtomicOp::CompareSwap { expected, new } => (Opcode::CompareSwap, new, expected),
            AtomicOp::Add(v) => (Opcode::FetchAdd, v, 0),
            AtomicOp::Swap(v) => (Opcode::Swap, v, 0),
            AtomicOp::And(v) => (Opcode::And, v, 0),
            AtomicOp::Or(v) => (Opcode::Or, v, 0),
            AtomicOp::Xor(v) => (Opcode::Xor, v, 0),
            AtomicOp::Min(v) => (Opcode::Min, v, 0),
            AtomicOp::Max(v) => (Opcode::Max, v, 0),
        };
        let submission = Submission { operand, compare, ..self.submission(opcode, offset, 8) };
        let mut found = Ok(0);
        self.queue.run(
            1,
            |_| (submission, &[]),
            |_, record, _| {
                found = self.verdict(name, record).map(|()| record.value);
            },
        )?;
        found
    }

    /// What a completion says.
    fn verdict(&self, name: &str, record: &CompletionRecord) -> Result<(), RegionError> {
        let name = name.to_owned();
        let reason = || u32::try_from(record.detail).map_or(Reason::Unspecified, Reason::from_code);
        let held = self.epoch;
        Err(match record.status {
            OperationStatus::Ok => return Ok(()),
            OperationStatus::Revoked | OperationStatus::NoRegion => {
                RegionError::Revoked { name, held, current: held + 1, may_have_landed: false }
            }
            OperationStatus::OutcomeUnknown => RegionError::OutcomeUnknown { name, reason: reason() },
            OperationStatus::PeerLost | OperationStatus::Failed => {
                RegionError::Refused { name, why: RegionRefusal::Reason(reason()) }
            }
            OperationStatus::NotificationsFull => {
                RegionError::Refused { name, why: RegionRefusal::NotificationsFull { max: record.detail } }
            }
            OperationStatus::NoPersistence => RegionError::NoPersistence,
            OperationStatus::Access => RegionError::NoAccess { name, asked: RegionAccess::ALL, allowed: self.access },
            // The handle checked these before: the daemon and the library do not agree.
            other => SessionError::Protocol(format!("region `{name}`: {other:?}, {}", record.detail)).into(),
        })
    }
}
