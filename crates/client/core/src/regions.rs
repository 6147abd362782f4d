//! Handles to regions as the daemon describes them, and what it says of those that are there.
//!
//! Owns the checks of a region's memory before it is mapped. It must never map more than the daemon described.

use std::os::fd::OwnedFd;

use control::{OpenedRegion, RegionKey, RegionPath, RegionRefusal};
use shm::{Extents, Region, RegionMemory, Segment, Sharing, Word32, Word64};

use crate::SessionFault;

/// Words of a stamp page at most.
const STAMP_WORDS_MAX: u32 = 65_536;

/// A region of this host, mapped.
#[derive(Debug, Clone)]
pub struct RegionMapping {
    /// The memory; read-only if the handle is only for reading.
    pub memory: Region,
    /// The region's word of the stamp page.
    pub word: Word64,
    /// Says that the daemon has ended: [`shm::Life::is_over`].
    pub life: Word32,
    /// Where the memory has pages, for an owner, who may have to move it.
    pub extents: Option<Extents>,
}

/// A handle as the session gives it out.
#[derive(Debug)]
pub struct NewRegion {
    /// What the daemon says.
    pub opened: OpenedRegion,
    /// The memory of a region of this host. None: it is another host's, or this process had no descriptor left.
    pub mapping: Option<RegionMapping>,
    /// Which daemon of the session gave it: [`crate::Session::daemons_before`].
    pub daemon: u64,
}

/// What the daemon says of a handle, for whoever has it.
#[derive(Debug)]
pub enum RegionNews {
    /// The owner is to move the region to this memory. None: this process had no descriptor for it.
    Move {
        /// The owner's handle.
        open: u64,
        /// Epoch of the new memory.
        epoch: u64,
        /// Stamp of the new epoch.
        stamp: u64,
        /// The key that opens the region from now on.
        key: RegionKey,
        /// The new memory.
        memory: Option<OwnedFd>,
    },
    /// The handle is over.
    Ended {
        /// Which.
        open: u64,
        /// Why.
        why: RegionRefusal,
    },
    /// Slices that were lent by a lease of this handle came back.
    LoansBack {
        /// The lender's handle.
        open: u64,
        /// The lease.
        lease: u64,
        /// Bit n stands for loan n of the connection.
        loans: u64,
    },
    /// Nobody reaches the region by this lease any more.
    LeaseOver {
        /// The lender's handle.
        open: u64,
        /// The lease.
        lease: u64,
    },
}

impl RegionNews {
    /// The handle that they are of.
    pub fn open(&self) -> u64 {
        match *self {
            Self::Move { open, .. }
            | Self::Ended { open, .. }
            | Self::LoansBack { open, .. }
            | Self::LeaseOver { open, .. } => open,
        }
    }
}

/// Maps the memory of a handle, if it is a region of this host.
pub(crate) fn admit_region(
    opened: OpenedRegion,
    fds: Vec<OwnedFd>,
    lacks_fds: bool,
) -> Result<NewRegion, SessionFault> {
    let RegionPath::Local { word, words, .. } = opened.path else {
        return Ok(NewRegion { opened, mapping: None, daemon: 0 });
    };
    if word >= words || words > STAMP_WORDS_MAX {
        return Err(SessionFault::Protocol(format!("word {word} of a stamp page of {words}")));
    }
    let mut fds = fds.into_iter();
    let mapping = match (fds.next(), fds.next()) {
        (Some(memory), Some(stamps)) => Some(
            map(&opened, memory, stamps, (word, words))
                .map_err(|what| SessionFault::Protocol(format!("region {}: {what}", opened.info.region)))?,
        ),
        _ if lacks_fds => None,
        _ => return Err(SessionFault::Protocol("a region without its two descriptors".into())),
    };
    Ok(NewRegion { opened, mapping, daemon: 0 })
}

fn map(
    opened: &OpenedRegion,
    memory: OwnedFd,
    stamps: OwnedFd,
    (word, words): (u32, u32),
) -> Result<RegionMapping, String> {
    let says = |e: &dyn std::fmt::Display| e.to_string();
    let writable = opened.info.access.changes();
    let (memory, extents) =
        RegionMemory::accept_with_extents(memory, opened.info.bytes, writable).map_err(|e| says(&e))?;
    let life_at = u64::from(words) * 8;
    let stamps = Segment::accept(stamps, life_at + 8, Sharing::PeerReadOnly).map_err(|e| says(&e))?.into_region();
    let word = stamps.word64(u64::from(word) * 8).map_err(|e| says(&e))?;
    let life = stamps.word32(life_at).map_err(|e| says(&e))?;
    Ok(RegionMapping { memory, word, life, extents: Some(extents) })
}
