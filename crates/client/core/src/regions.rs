//! Regions in a session: requests for them, and what the daemon says of handles that are there.
//!
//! Owns the checks of their memory before it is mapped. It must never leave a handle with the daemon that no caller
//! has.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use control::{OpenedRegion, RegionAccess, RegionKey, RegionPath, RegionRefusal, RegionSpec, Request};
use shm::{Region, RegionMemory, Segment, Sharing, Word64};

use crate::answer::Asked;
use crate::{RequestId, Session, SessionFault};

/// Words of a stamp page at most.
const STAMP_WORDS_MAX: u32 = 65_536;

/// A region of this host, mapped.
#[derive(Debug, Clone)]
pub struct RegionMapping {
    /// The memory; read-only if the handle is only for reading.
    pub memory: Region,
    /// The region's word of the stamp page.
    pub word: Word64,
}

/// A handle as the session gives it out.
#[derive(Debug)]
pub struct NewRegion {
    /// What the daemon says.
    pub opened: OpenedRegion,
    /// The memory of a region of this host. None: it is another host's, or this process had no descriptor left.
    pub mapping: Option<RegionMapping>,
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
    /// Somebody wrote to the owner's region, and wants it told.
    Notified {
        /// The owner's handle.
        open: u64,
        /// The writer's tag.
        tag: u32,
    },
}

impl Session {
    /// Asks for a region.
    pub fn create_region(&mut self, spec: RegionSpec) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionCreate { request: id.number(), spec })
    }

    /// Asks for a handle to a region.
    pub fn open_region(
        &mut self,
        host: IpAddr,
        name: String,
        key: RegionKey,
        access: RegionAccess,
    ) -> (RequestId, Request) {
        let id = self.begin(Asked::Region);
        (id, Request::RegionOpen { request: id.number(), host, name, key, access })
    }

    /// Asks for the end of all handles to a region but its owner's.
    pub fn revoke_region(&mut self, name: String, key: RegionKey, new_key: Option<RegionKey>) -> (RequestId, Request) {
        let id = self.begin(Asked::Revoke);
        (id, Request::RegionRevoke { request: id.number(), name, key, new_key })
    }

    /// Asks that the owner of a region is told of bytes that were written.
    pub fn notify_region(&mut self, open: u64, tag: u32) -> (RequestId, Request) {
        let id = self.begin(Asked::Notify);
        (id, Request::RegionNotify { request: id.number(), open, tag })
    }
}

/// Maps the memory of a handle, if it is a region of this host.
pub(crate) fn admit_region(
    opened: OpenedRegion,
    fds: Vec<OwnedFd>,
    lacks_fds: bool,
) -> Result<NewRegion, SessionFault> {
    let RegionPath::Local { word, words, .. } = opened.path else {
        return Ok(NewRegion { opened, mapping: None });
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
    Ok(NewRegion { opened, mapping })
}

fn map(
    opened: &OpenedRegion,
    memory: OwnedFd,
    stamps: OwnedFd,
    (word, words): (u32, u32),
) -> Result<RegionMapping, String> {
    let says = |e: &dyn std::fmt::Display| e.to_string();
    let writable = opened.info.access.changes();
    let memory = RegionMemory::accept(memory, opened.info.bytes, writable).map_err(|e| says(&e))?;
    let stamps = Segment::accept(stamps, u64::from(words) * 8, Sharing::PeerReadOnly).map_err(|e| says(&e))?;
    let word = stamps.into_region().word64(u64::from(word) * 8).map_err(|e| says(&e))?;
    Ok(RegionMapping { memory, word })
}
