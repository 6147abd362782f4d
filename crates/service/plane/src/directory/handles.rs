//! Who has a region open.
//!
//! Owns the table of one region's handles, without its owner's, and the name of its one writer. It must never keep one that was closed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use control::RegionAccess;

use crate::ClientId;

/// A handle of a program of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) client: ClientId,
    pub(super) access: RegionAccess,
    /// By which it was opened.
    pub(super) lease: Option<u64>,
}

/// Who writes a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// A program of this host; until the engine has opened its handle, the request that waits for that.
    Here { client: ClientId, pid: u32, open: u64, request: Option<u64> },
    /// A program of another host.
    Far { peer: IpAddr, open: u64 },
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here { pid, .. } => write!(f, "pid {pid}"),
            Self::Far { peer, .. } => peer.fmt(f),
        }
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Handles(BTreeMap<u64, Handle>);

impl Handles {
    pub(super) fn insert(&mut self, open: u64, handle: Handle) {
        self.0.insert(open, handle);
    }

    pub(super) fn remove(&mut self, open: u64) -> Option<Handle> {
        self.0.remove(&open)
    }

    pub(super) fn get(&self, open: u64) -> Option<&Handle> {
        self.0.get(&open)
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn take_all(&mut self) -> BTreeMap<u64, Handle> {
        std::mem::take(&mut self.0)
    }

    pub(super) fn into_all(self) -> BTreeMap<u64, Handle> {
        self.0
    }
}
