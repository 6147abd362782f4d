//! What can go wrong with a region.
//!
//! Owns the words and kinds. It must never say that nothing happened when something may have.

use std::io;

use control::{RegionAccess, RegionRefusal, debug_says_the_words};
use raas_core::Forked;

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
    /// Another program took the region over, so this one does not write it any more.
    #[error(
        "region `{name}` was taken over by term {term}: take it over by a greater one to write it again; {}",
        landed(*may_have_landed)
    )]
    Superseded {
        /// The region.
        name: String,
        /// The greatest term that was granted, as far as it is known.
        term: u64,
        /// The operation met that: it may have been done before it. Afterwards it was not.
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
    /// The daemon of this host that gave the handle has ended. With `may_have_landed` the operation met that; the next use
    /// opens the region again by itself, if it was opened by [`Region::open`](crate::Region::open). Otherwise the region
    /// did not come back in time, or what was used is of the memory of before: open the region again. If the owner's
    /// handle says this, the region could not be brought to the next daemon: make it again.
    #[error(
        "region `{name}`: the daemon that gave this handle has ended: open the region again, or make it again if it was \
         this program's; {}",
        landed(*may_have_landed)
    )]
    DaemonLost {
        /// The region.
        name: String,
        /// The operation met the end: it may have been done before it.
        may_have_landed: bool,
    },
    /// The daemon of this host has ended, and may have had notifications for this owner. It is said once; notifications
    /// from here on come as before. Look at the bytes, and receive again.
    #[error(
        "region `{name}`: the daemon has ended, and notifications may be lost: look at the bytes, and receive again"
    )]
    NotificationsLost {
        /// The region.
        name: String,
    },
    /// The lane to the region's host was lost or reset while the operation was under way: it may have been done or not,
    /// and a write in part. So also with reason `daemon-lost`, if this host's daemon ended meanwhile.
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
    /// The region is another host's, and only a program there can lend it to messages.
    #[error("region `{name}` is another host's: only programs of its host can lend slices of it")]
    NotHere {
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
    /// An operation of a batch was not done, because one before it failed.
    #[error("region `{name}`: operation {operation} of the batch was not done, because operation {failed} failed")]
    NotDone {
        /// The region.
        name: String,
        /// The operation's number in its batch.
        operation: usize,
        /// The number of the one that failed.
        failed: usize,
    },
    /// The operations of a batch do not fit into the queue together; nothing was done.
    #[error("the batch takes {bytes} bytes of a queue that has {max}: submit it in parts")]
    BatchTooLong {
        /// Bytes that it takes.
        bytes: usize,
        /// Bytes that there are.
        max: usize,
    },
    /// A local buffer must be of a region of this host that was made or opened in the same session; nothing was done.
    #[error("region `{name}` cannot be a local buffer: take a region of this host, opened in the same session")]
    NotLocal {
        /// The region.
        name: String,
    },
    /// More local buffers than one operation has, or more bytes in them; nothing was done.
    #[error("{count} local buffers of {bytes} bytes: one operation has at most {count_max}, of {bytes_max} bytes")]
    LocalTooLong {
        /// How many buffers.
        count: usize,
        /// Bytes of all.
        bytes: u64,
        /// Buffers of one operation at most.
        count_max: usize,
        /// Bytes of them at most.
        bytes_max: u64,
    },
    /// A kernel has no answer; `failure` says why, and whether anything was done.
    #[error("region `{name}`: {failure}")]
    Kernel {
        /// The region.
        name: String,
        /// Why.
        failure: kernels::Failure,
    },
    /// A kernel's request cannot be sent; nothing was done.
    #[error("region `{name}`: {why}")]
    Request {
        /// The region.
        name: String,
        /// Why.
        why: kernels::BadRequest,
    },
    /// More regions, or more bytes, than a kernel's request to that host has room for; nothing was done.
    #[error(
        "region `{name}`: a request of {bytes} bytes with {regions} other regions, where {max} bytes and 16 can be"
    )]
    RequestTooLong {
        /// The region.
        name: String,
        /// Bytes of the request, with 8 for each other region.
        bytes: usize,
        /// Other regions.
        regions: usize,
        /// Bytes that there may be.
        max: u64,
    },
    /// As many batches wait for room in the queue as may; nothing of this one was done.
    #[error("{max} batches wait for room in the queue to that host: take the end of some first")]
    TooManyPending {
        /// How many may wait.
        max: usize,
    },
    /// The operations of a batch are on regions of several hosts; nothing was done.
    #[error("regions `{name}` and `{other}` are of different hosts: make a batch for each")]
    OtherHost {
        /// The region of the first operation.
        name: String,
        /// One of another host.
        other: String,
    },
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
            RegionRefusal::Superseded { term } => Self::Superseded { name, term, may_have_landed: false },
            why => Self::Refused { name, why },
        }
    }

    /// What came behind bytes that are written already: they stay.
    pub(in crate::region) fn behind_bytes(self) -> Self {
        match self {
            Self::DaemonLost { name, .. }
            | Self::Refused { name, why: RegionRefusal::Reason(control::Reason::DaemonLost) } => {
                Self::DaemonLost { name, may_have_landed: true }
            }
            error => error,
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
                Why::WrongKey | Why::OtherUser { .. } | Why::NoAccess { .. } | Why::SingleWriter => {
                    io::ErrorKind::PermissionDenied
                }
                Why::Quota { .. } | Why::TooMany { .. } => io::ErrorKind::QuotaExceeded,
                Why::NoMemory { .. } | Why::NoHugePages { .. } => io::ErrorKind::OutOfMemory,
                Why::Busy => io::ErrorKind::ResourceBusy,
                Why::NotOwner => io::ErrorKind::PermissionDenied,
                Why::LeaseOver { .. } | Why::NoConnection { .. } => io::ErrorKind::NotConnected,
                Why::NotificationsFull { .. } => io::ErrorKind::WouldBlock,
                Why::Reason(reason) => reason_kind(*reason),
                _ => io::ErrorKind::InvalidInput,
            },
            Self::OutOfBounds { .. } | Self::Misaligned { .. } => io::ErrorKind::InvalidInput,
            Self::NoAccess { .. } | Self::NotOwner { .. } => io::ErrorKind::PermissionDenied,
            Self::Revoked { .. } | Self::Superseded { .. } => io::ErrorKind::StaleNetworkFileHandle,
            Self::OwnerGone { .. } => io::ErrorKind::NotConnected,
            Self::DaemonLost { .. } | Self::NotificationsLost { .. } => reason_kind(control::Reason::DaemonLost),
            Self::OutcomeUnknown { reason, .. } => reason_kind(*reason),
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::NoPersistence | Self::NotHere { .. } => io::ErrorKind::Unsupported,
            Self::NotDone { .. } => io::ErrorKind::Other,
            Self::BatchTooLong { .. } | Self::OtherHost { .. } | Self::NotLocal { .. } | Self::LocalTooLong { .. } => {
                io::ErrorKind::InvalidInput
            }
            Self::Request { .. } | Self::RequestTooLong { .. } => io::ErrorKind::InvalidInput,
            Self::Kernel { failure, .. } => kernel_kind(failure),
            Self::TooManyPending { .. } => io::ErrorKind::WouldBlock,
            Self::Descriptors { .. } => io::ErrorKind::QuotaExceeded,
        }
    }
}

fn kernel_kind(failure: &kernels::Failure) -> io::ErrorKind {
    use kernels::Failure as Why;
    match failure {
        Why::Unknown { .. } => io::ErrorKind::NotFound,
        Why::NoRight { .. } => io::ErrorKind::PermissionDenied,
        Why::BadArguments { .. } | Why::OutOfBounds { .. } => io::ErrorKind::InvalidInput,
        Why::Revoked => io::ErrorKind::StaleNetworkFileHandle,
        Why::QueueFull { .. } | Why::NotConsistent { .. } => io::ErrorKind::WouldBlock,
        Why::AnswerTooLong { .. } | Why::PartitionFull { .. } => io::ErrorKind::StorageFull,
        Why::OutOfFuel { .. } => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
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
