//! What can go wrong with a region.
//!
//! Owns the words and kinds. It must never say that nothing happened when something may have.

use std::io;

use control::{RegionAccess, RegionRefusal};
use raas_core::Forked;

use crate::debug_words::debug_says_the_words;
use crate::error::{SessionError, reason_kind};

/// A region could not be made, opened or used.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// No session with this host's daemon, or it was lost.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The daemon said no; nothing was done.
    #[error("region `{name}`: {why}")]
    Refused {
        /// The region.
        name: String,
        /// Why, with the values.
        why: RegionRefusal,
    },
    /// The bytes do not lie in the region; nothing was done.
    #[error("region `{name}`: {len} bytes at offset {offset} do not lie in its {bytes} bytes")]
    OutOfBounds {
        /// The region.
        name: String,
        /// Where they begin.
        offset: u64,
        /// How many they are.
        len: u64,
        /// Bytes of the region.
        bytes: u64,
    },
    /// An operation on 8 bytes that do not begin at a multiple of 8; nothing was done.
    #[error("region `{name}`: offset {offset} is not a multiple of 8, as an operation on 8 bytes needs")]
    Misaligned {
        /// The region.
        name: String,
        /// Where they begin.
        offset: u64,
    },
    /// The handle is not for this; nothing was done.
    #[error("region `{name}`: the handle allows {allowed}, and the operation needs {asked}")]
    NoAccess {
        /// The region.
        name: String,
        /// What the operation needs.
        asked: RegionAccess,
        /// What the handle allows.
        allowed: RegionAccess,
    },
    /// The region was revoked, so the handle is over: open the region again.
    #[error(
        "region `{name}` was revoked: the handle is of epoch {held}, the region of {current}; {}",
        landed(*may_have_landed)
    )]
    Revoked {
        /// The region.
        name: String,
        /// Epoch of the handle.
        held: u64,
        /// Epoch of the region, as far as it is known.
        current: u64,
        /// The operation met the revoke: it may have been done before it. After the revoke it was not.
        may_have_landed: bool,
    },
    /// The region's owner ended, or gave the region up.
    #[error("the owner of region `{name}` ended or gave it up; {}", landed(*may_have_landed))]
    OwnerGone {
        /// The region.
        name: String,
        /// The operation met the end: it may have been done before it.
        may_have_landed: bool,
    },
    /// The lane to the region's host was lost or reset while the operation was under way: it may have been done or not,
    /// and a write in part.
    #[error("region `{name}`: the operation may have been done or not: {reason}")]
    OutcomeUnknown {
        /// The region.
        name: String,
        /// What happened.
        reason: control::Reason,
    },
    /// This program did not make the region, as it must have for this.
    #[error("region `{name}`: only the program that made it may do this, by the handle with which it did")]
    NotOwner {
        /// The region.
        name: String,
    },
    /// No notification came in the time given.
    #[error("region `{name}`: no notification came in time")]
    TimedOut {
        /// The region.
        name: String,
    },
    /// [`Completion::Persistent`](crate::Completion::Persistent) was asked for.
    #[error("no region lies in memory that survives the loss of power: ask for `Visible` at most")]
    NoPersistence,
    /// This process may open no more descriptors, so it could not get the region's memory.
    #[error("region `{name}`: {}", raas_core::at_descriptor_limit(*limit))]
    Descriptors {
        /// The region.
        name: String,
        /// Descriptors that it may have open.
        limit: u64,
    },
}

fn landed(may: bool) -> &'static str {
    if may { "the operation may have been done before that" } else { "nothing was done" }
}

debug_says_the_words!(RegionError);

impl RegionError {
    /// What a refusal by the daemon is called.
    pub(crate) fn refused(name: &str, why: RegionRefusal) -> Self {
        let name = name.to_owned();
        match why {
            RegionRefusal::Revoked { held, current } => Self::Revoked { name, held, current, may_have_landed: false },
            RegionRefusal::OwnerGone => Self::OwnerGone { name, may_have_landed: false },
            why => Self::Refused { name, why },
        }
    }

    /// The daemon's refusal, if it was one.
    pub fn refusal(&self) -> Option<&RegionRefusal> {
        if let Self::Refused { why, .. } = self { Some(why) } else { None }
    }

    fn kind(&self) -> io::ErrorKind {
        use RegionRefusal as Why;
        match self {
            Self::Session(e) => io::Error::from(e.clone()).kind(),
            Self::Refused { why, .. } => match why {
                Why::Unknown => io::ErrorKind::NotFound,
                Why::NameTaken { .. } => io::ErrorKind::AlreadyExists,
                Why::WrongKey | Why::OtherUser { .. } | Why::NoAccess { .. } => io::ErrorKind::PermissionDenied,
                Why::Quota { .. } | Why::TooMany { .. } => io::ErrorKind::QuotaExceeded,
                Why::NoMemory { .. } | Why::NoHugePages { .. } => io::ErrorKind::OutOfMemory,
                Why::Busy => io::ErrorKind::ResourceBusy,
                Why::NotificationsFull { .. } => io::ErrorKind::WouldBlock,
                Why::Reason(reason) => reason_kind(*reason),
                _ => io::ErrorKind::InvalidInput,
            },
            Self::OutOfBounds { .. } | Self::Misaligned { .. } => io::ErrorKind::InvalidInput,
            Self::NoAccess { .. } | Self::NotOwner { .. } => io::ErrorKind::PermissionDenied,
            Self::Revoked { .. } => io::ErrorKind::StaleNetworkFileHandle,
            Self::OwnerGone { .. } => io::ErrorKind::NotConnected,
            Self::OutcomeUnknown { reason, .. } => reason_kind(*reason),
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::NoPersistence => io::ErrorKind::Unsupported,
            Self::Descriptors { .. } => io::ErrorKind::QuotaExceeded,
        }
    }
}

impl From<RegionError> for io::Error {
    fn from(e: RegionError) -> Self {
        Self::new(e.kind(), e)
    }
}

impl From<Forked> for RegionError {
    fn from(forked: Forked) -> Self {
        Self::Session(forked.into())
    }
}
