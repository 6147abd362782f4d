//! What a program asks of a region next.
//!
//! Owns which operations are drawn, and how often.

use histories::Act;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use shm::{AtomicOp, Class, LocalSegment, Opcode, Submission, submission_flag};

use super::WORDS;
use super::local::Used;

/// An operation that is about to be submitted.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) submission: Submission,
    pub(super) act: Act,
    pub(super) word: u64,
    pub(super) value: u64,
    pub(super) local: Option<(Used, LocalSegment)>,
}

pub(super) fn wish(
    (handle, epoch): (u32, u64),
    (word, reads): (Option<u64>, bool),
    is_chained: bool,
    rng: &mut StdRng,
) -> Wish {
    let (word, value) = (word.unwrap_or_else(|| rng.random_range(0..WORDS)), rng.next_u64() >> 8);
    let (opcode, act) = match rng.random_range(0..6) * i32::from(!reads) {
        0 | 1 => (Opcode::Read, Act::Read),
        2 => (Opcode::Write, Act::Write(value)),
        3 => (Opcode::Swap, Act::Change(AtomicOp::Swap(value))),
        4 => (Opcode::CompareSwap, Act::Change(AtomicOp::CompareSwap { expected: 0, new: value })),
        _ => (Opcode::FetchAdd, Act::Change(AtomicOp::Add(1))),
    };
    let fence = if rng.random_bool(if is_chained { 0.5 } else { 0.2 }) { submission_flag::FENCE } else { 0 };
    let submission = Submission {
        tag: 0,
        opcode,
        flags: fence | if is_chained { submission_flag::CHAINED } else { 0 },
        class: Class::Visible,
        segments: 0,
        region: handle,
        epoch,
        offset: word * 8,
        bytes: 8,
        notify: 0,
        operand: if opcode == Opcode::FetchAdd { 1 } else { value },
        compare: 0,
    };
    Wish { submission, act, word, value, local: None }
}
