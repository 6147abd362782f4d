//! Breaches of the rules of an operation queue's rings.

use std::sync::atomic::Ordering;

use shm::{Class, Opcode, SUBMISSION_BYTES, Submission};

use super::Target;
use crate::raw::{RawApp, RawConnection, RawError};

const RING_BYTES: u32 = 65_536;

/// Opens a queue, writes `bytes` to the beginning of its ring, publishes `tail` and rings.
fn publish(name: &str, target: Target<'_>, bytes: &[u8], tail: u64) -> Result<String, RawError> {
    let (app, queue) = opened(name, target)?;
    commit(app, &queue, bytes, tail)
}

fn opened(name: &str, target: Target<'_>) -> Result<(RawApp, RawConnection), RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    let queue = app.open_operations(RING_BYTES)?;
    Ok((app, queue))
}

fn commit(mut app: RawApp, queue: &RawConnection, bytes: &[u8], tail: u64) -> Result<String, RawError> {
    queue.tx.0.write(queue.tx.1, bytes).map_err(|e| RawError::Unexpected(e.to_string()))?;
    queue.words.tx_tail.store(tail, Ordering::Release);
    app.ring(queue.slot);
    app.wait_for_end()
}

fn submission(opcode: Opcode, bytes: u32) -> Submission {
    Submission {
        tag: 1,
        opcode,
        flags: 0,
        class: Class::Visible,
        segments: 0,
        region: 0,
        epoch: 1,
        offset: 0,
        bytes,
        notify: 0,
        operand: 0,
        compare: 0,
    }
}

pub(super) fn submissions_beyond_the_ring(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &submission(Opcode::Read, 8).to_bytes(), u64::from(RING_BYTES) + 1)
}

pub(super) fn half_of_a_submission(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &submission(Opcode::Read, 8).to_bytes(), SUBMISSION_BYTES as u64 / 2)
}

pub(super) fn a_submission_longer_than_what_is_published(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &submission(Opcode::Write, 4096).to_bytes(), SUBMISSION_BYTES as u64 + 8)
}

pub(super) fn a_submission_longer_than_any(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &submission(Opcode::Write, u32::MAX).to_bytes(), RING_BYTES.into())
}

pub(super) fn an_operation_that_does_not_exist(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut head = submission(Opcode::Read, 8).to_bytes();
    head[8] = 99;
    publish(name, target, &head, SUBMISSION_BYTES as u64)
}

pub(super) fn segments_of_an_atomic(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let head = Submission { segments: 1, ..submission(Opcode::FetchAdd, 8) }.to_bytes();
    publish(name, target, &head, SUBMISSION_BYTES as u64 + 16)
}

pub(super) fn reserved_bytes_of_a_submission(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut head = submission(Opcode::Read, 8).to_bytes();
    head[SUBMISSION_BYTES - 1] = 1;
    publish(name, target, &head, SUBMISSION_BYTES as u64)
}

/// A head beyond what arrived is seen when a completion is to be put behind it.
pub(super) fn a_completion_head_beyond_what_arrived(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let (app, queue) = opened(name, target)?;
    queue.words.rx_head.store(8, Ordering::Release);
    let head = submission(Opcode::Read, 8).to_bytes();
    commit(app, &queue, &head, head.len() as u64)
}
