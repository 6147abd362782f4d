//! Records about regions: what their owners are asked for, and the answers.

use control::RegionAccess;
use shm::{KERNEL_BYTES_MAX, OperationStatus};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FrameRecord;
use super::error::FrameError;
use super::reader::RawRecord;
use super::writer::FrameWriter;
use crate::ask::Ask;

const KIND_EXECUTE: u8 = 13;
const KIND_EXECUTED: u8 = 14;
const KIND_RUN: u8 = 18;
const KIND_ANSWER: u8 = 19;

/// Bytes of a frame that are not a kernel's: the header, records that come first in every frame, and the record's own.
pub(crate) const KERNEL_OVERHEAD_BYTES: usize = 128;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireExecute {
    id: U32,
    opcode: u8,
    reserved: [u8; 3],
    offset: U64,
    operand: U64,
    compare: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireExecuted {
    value: U64,
    status: u8,
    reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRun {
    id: U32,
    program: U32,
    access: u8,
    regions: u8,
    reserved: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRunRegion {
    key: U32,
    access: u8,
    reserved: [u8; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireAnswer {
    failed: u8,
    reserved: [u8; 3],
}

/// A region that a kernel is to run at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunRegion {
    /// Its key at the owner's device.
    pub(crate) key: u32,
    /// What the program's handle allows.
    pub(crate) access: RegionAccess,
}

/// Asks the owner of a region to run a kernel at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Comes back in the answer.
    pub(crate) id: u32,
    /// Which of the sender's programs asks: those of one host have their turns.
    pub(crate) program: u32,
    /// The region, and then those that the kernel may use beside it.
    pub(crate) regions: Vec<RunRegion>,
    /// The kernel's name and arguments.
    pub(crate) request: Vec<u8>,
}

impl Run {
    fn read(raw: &RawRecord<'_>) -> Result<Self, FrameError> {
        let (r, mut rest) = raw.front::<WireRun>()?;
        check_kernel_bytes(rest)?;
        let mut regions = vec![RunRegion { key: raw.route, access: r.access.into() }];
        for _ in 0..r.regions {
            let (region, behind) = raw.front_of::<WireRunRegion>(rest)?;
            regions.push(RunRegion { key: region.key.get(), access: region.access.into() });
            rest = behind;
        }
        Ok(Self { id: r.id.get(), program: r.program.get(), regions, request: rest.to_vec() })
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        let Some((first, others)) = self.regions.split_first() else { return true };
        let front = WireRun {
            id: self.id.into(),
            program: self.program.into(),
            access: first.access.bits(),
            regions: u8::try_from(others.len()).unwrap_or(u8::MAX),
            reserved: 0.into(),
        };
        let wire = |r: &RunRegion| WireRunRegion { key: r.key.into(), access: r.access.bits(), reserved: [0; 3] };
        let others: Vec<_> = others.iter().map(wire).collect();
        frame.append(KIND_RUN, first.key, &[front.as_bytes(), others.as_slice().as_bytes(), &self.request])
    }
}

/// One thing about a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OperationRecord {
    /// Asks the owner of a region to do something with it; `id` comes back.
    Execute { key: u32, id: u32, offset: u64, ask: Ask },
    /// It is done.
    Executed { id: u32, status: OperationStatus, value: u64 },
    /// Asks the owner to run a kernel.
    Run(Run),
    /// What a kernel says, or why it has no answer.
    Answer { id: u32, failed: bool, bytes: Vec<u8> },
}

impl FrameRecord for OperationRecord {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        Ok(Some(match raw.kind {
            KIND_EXECUTE => {
                let e = raw.body::<WireExecute>()?;
                let (opcode, operand) = (e.opcode, e.operand.get());
                let ask = Ask::from_parts(opcode, operand, e.compare.get());
                let ask = ask.ok_or(FrameError::Operation { opcode, operand })?;
                Self::Execute { key: raw.route, id: e.id.get(), offset: e.offset.get(), ask }
            }
            KIND_EXECUTED => {
                let e = raw.body::<WireExecuted>()?;
                let status = OperationStatus::from_code(e.status).ok_or(FrameError::Status(e.status))?;
                Self::Executed { id: raw.route, status, value: e.value.get() }
            }
            KIND_RUN => Self::Run(Run::read(raw)?),
            KIND_ANSWER => {
                let (a, bytes) = raw.front::<WireAnswer>()?;
                check_kernel_bytes(bytes)?;
                Self::Answer { id: raw.route, failed: a.failed != 0, bytes: bytes.to_vec() }
            }
            _ => return Ok(None),
        }))
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match self {
            Self::Execute { key, id, offset, ask } => {
                let (opcode, operand, compare) = ask.to_parts();
                let body = WireExecute {
                    id: (*id).into(),
                    opcode,
                    reserved: [0; 3],
                    offset: (*offset).into(),
                    operand: operand.into(),
                    compare: compare.into(),
                };
                frame.append(KIND_EXECUTE, *key, &[body.as_bytes()])
            }
            Self::Executed { id, status, value } => {
                let body = WireExecuted { value: (*value).into(), status: status.code(), reserved: [0; 7] };
                frame.append(KIND_EXECUTED, *id, &[body.as_bytes()])
            }
            Self::Run(run) => run.write(frame),
            Self::Answer { id, failed, bytes } => {
                let front = WireAnswer { failed: (*failed).into(), reserved: [0; 3] };
                frame.append(KIND_ANSWER, *id, &[front.as_bytes(), bytes])
            }
        }
    }
}

fn check_kernel_bytes(bytes: &[u8]) -> Result<(), FrameError> {
    let found = bytes.len();
    if found > KERNEL_BYTES_MAX as usize { Err(FrameError::Kernel { found }) } else { Ok(()) }
}
