//! A region of another host: operations on it, through an operation queue of the session.
//!
//! Owns how long copies are cut into pieces, and what the engine's answers mean. It must never say that nothing
//! happened when something may have.

use std::sync::Arc;

use control::{Reason, RegionAccess, RegionRefusal};
use shm::{AtomicOp, Class, CompletionRecord, OPERATION_INLINE_MAX, Opcode, OperationStatus, Submission};

use super::completion::Completion;
use super::error::RegionError;
use crate::error::SessionError;
use crate::operation_queue::OperationQueue;

/// Bytes of one operation.
const PIECE_BYTES: usize = OPERATION_INLINE_MAX as usize;

/// A region of another host, as a handle has it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) queue: Arc<dyn OperationQueue>,
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
        self.queue.run(len.div_ceil(PIECE_BYTES), &piece, &mut |n, record, rx| {
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
        self.queue.run(count, &piece, &mut |_, record, _| {
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
        self.queue.run(1, &|_| (submission, &[]), &mut |_, record, _| {
            found = self.verdict(name, record).map(|()| record.value);
        })?;
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
