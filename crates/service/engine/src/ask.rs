//! What the owner's engine does for another host, as a record in a control frame says it.
//!
//! Owns the numbers of these (docs/inside/wire.md). It must never judge where: bounds and access are checked where the record
//! is used.

use shm::{AtomicOp, Opcode, Submission};

/// Answers, and does nothing. What was written before it is visible then.
const CONFIRM: u8 = 0;

/// What the owner's engine is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// An answer.
    Confirm,
    /// A notice for the owner: the writer's number, and how many bytes it wrote.
    Notify { tag: u32, bytes: u32 },
    /// A read-modify-write of 8 bytes.
    Atomic(AtomicOp),
    /// A kernel, which has a record of its own.
    Run,
}

impl Ask {
    /// The atomic of a submission; `None`: it is none.
    pub(crate) fn atomic_of(submission: &Submission) -> Option<Self> {
        let (operand, compare) = (submission.operand, submission.compare);
        Self::from_parts(submission.opcode.code(), operand, compare).filter(|ask| matches!(ask, Self::Atomic(_)))
    }

    /// Number, operand and comparand of the record.
    pub(crate) const fn to_parts(self) -> (u8, u64, u64) {
        let (opcode, operand, compare) = match self {
            Self::Confirm => return (CONFIRM, 0, 0),
            Self::Run => (Opcode::Run, 0, 0),
            Self::Notify { tag, bytes } => (Opcode::WriteNotify, tag as u64, bytes as u64),
            Self::Atomic(atomic) => match atomic {
                AtomicOp::CompareSwap { expected, new } => (Opcode::CompareSwap, new, expected),
                AtomicOp::Add(v) => (Opcode::FetchAdd, v, 0),
                AtomicOp::Swap(v) => (Opcode::Swap, v, 0),
                AtomicOp::And(v) => (Opcode::And, v, 0),
                AtomicOp::Or(v) => (Opcode::Or, v, 0),
                AtomicOp::Xor(v) => (Opcode::Xor, v, 0),
                AtomicOp::Min(v) => (Opcode::Min, v, 0),
                AtomicOp::Max(v) => (Opcode::Max, v, 0),
            },
        };
        (opcode.code(), operand, compare)
    }

    /// `None`: no such thing can be asked for.
    pub(crate) fn from_parts(opcode: u8, operand: u64, compare: u64) -> Option<Self> {
        if opcode == CONFIRM {
            return Some(Self::Confirm);
        }
        Some(match Opcode::from_code(opcode)? {
            Opcode::Read | Opcode::Write | Opcode::Run => return None,
            Opcode::WriteNotify => {
                Self::Notify { tag: u32::try_from(operand).ok()?, bytes: u32::try_from(compare).ok()? }
            }
            Opcode::CompareSwap => Self::Atomic(AtomicOp::CompareSwap { expected: compare, new: operand }),
            Opcode::FetchAdd => Self::Atomic(AtomicOp::Add(operand)),
            Opcode::Swap => Self::Atomic(AtomicOp::Swap(operand)),
            Opcode::And => Self::Atomic(AtomicOp::And(operand)),
            Opcode::Or => Self::Atomic(AtomicOp::Or(operand)),
            Opcode::Xor => Self::Atomic(AtomicOp::Xor(operand)),
            Opcode::Min => Self::Atomic(AtomicOp::Min(operand)),
            Opcode::Max => Self::Atomic(AtomicOp::Max(operand)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_there_and_back() {
        for opcode in 0..=u8::MAX {
            let second = if matches!(opcode, 3 | 4) { 9 } else { 0 };
            let Some(ask) = Ask::from_parts(opcode, 7, second) else {
                assert!(matches!(opcode, 1 | 2 | 12..), "{opcode} can be asked for");
                continue;
            };
            let (operand, compare) = if opcode == 0 { (0, 0) } else { (7, second) };
            assert_eq!(ask.to_parts(), (opcode, operand, compare));
        }
        assert_eq!(Ask::from_parts(3, 1 << 32, 0), None, "a tag has 32 bits");
        assert_eq!(Ask::from_parts(3, 0, 1 << 32), None, "a write has less than 4 GiB");
    }
}
