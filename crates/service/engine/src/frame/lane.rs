//! Records about the lane itself: its receive credits, and how busy the sender's host is.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FrameRecord;
use super::error::FrameError;
use super::reader::RawRecord;
use super::writer::FrameWriter;
use crate::choice::Load;

const KIND_RECLAIM: u8 = 8;
const KIND_YIELD: u8 = 9;
const KIND_LOAD: u8 = 17;
const KIND_UNUSED: u8 = 27;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireLoad {
    cpu: u8,
    memory: u8,
    reserved: [u8; 6],
}

/// One thing about the lane. It does not show that the lane is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneRecord {
    /// The receiver of the record is to hold no more than so many credits.
    Reclaim { most: u32 },
    /// The sender of the record gives up so many credits that it did not use.
    Yield { count: u32 },
    /// How busy the host of the sender is.
    Load(Load),
    /// The sender of the record has not used the lane for so many microseconds. The receiver rests it if it has not
    /// either: READs and WRITEs of regions are known to who posts them alone.
    Unused { us: u32 },
}

impl FrameRecord for LaneRecord {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        if !matches!(raw.kind, KIND_RECLAIM | KIND_YIELD | KIND_LOAD | KIND_UNUSED) {
            return Ok(None);
        }
        raw.no_route()?;
        Ok(Some(match raw.kind {
            KIND_RECLAIM => Self::Reclaim { most: raw.number()? },
            KIND_YIELD => Self::Yield { count: raw.number()? },
            KIND_UNUSED => Self::Unused { us: raw.number()? },
            _ => {
                let l = raw.body::<WireLoad>()?;
                Self::Load(Load::new(l.cpu, l.memory))
            }
        }))
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match *self {
            Self::Reclaim { most } => frame.append_number(KIND_RECLAIM, 0, most),
            Self::Yield { count } => frame.append_number(KIND_YIELD, 0, count),
            Self::Load(Load { cpu, memory }) => {
                frame.append(KIND_LOAD, 0, &[WireLoad { cpu, memory, reserved: [0; 6] }.as_bytes()])
            }
            Self::Unused { us } => frame.append_number(KIND_UNUSED, 0, us),
        }
    }
}
