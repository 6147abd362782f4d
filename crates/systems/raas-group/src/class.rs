//! What an acknowledgement of a group is worth.
//!
//! Owns the names, which users see.

use std::fmt;

/// Where a command is that was acknowledged. All members of a group have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// In the memories of a majority. Power that fails at a majority of hosts takes it.
    RamMajority,
    /// In the memories of a majority and synced to files there. It is there again when as many members are opened again with
    /// their directories, whatever became of all programs, daemons and memories.
    SyncedMajority,
}

impl Class {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RamMajority => "ram-majority",
            Self::SyncedMajority => "synced-majority",
        }
    }

    pub(crate) const fn is_synced(self) -> bool {
        matches!(self, Self::SyncedMajority)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
