//! What can go wrong with tensors.
//!
//! Owns the words. It must never call bytes those of a tensor that they are not.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use raas::RegionError;

/// Who holds a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The reader: its address and number, or this program.
    pub reader: String,
    /// The tensor's name, also if it has lost that.
    pub name: String,
    /// Its generation.
    pub generation: u64,
    /// Its bytes.
    pub bytes: u64,
    /// It was freed, and its memory waits for this reader.
    pub is_freed: bool,
    /// For how long.
    pub held: Duration,
}

/// An operation on a tensor or pool was not done.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another tensor has the name by now.
    #[error("tensor `{name}`: generation {held} is over, {current} has the name: ask for the name again")]
    Stale {
        /// The name.
        name: String,
        /// The generation that was asked for.
        held: u64,
        /// The one that has the name; 0 if the pool itself is another one.
        current: u64,
    },
    /// The tensor was freed, and nothing has its name.
    #[error("tensor `{name}`: generation {generation} was freed")]
    Freed {
        /// The name.
        name: String,
        /// The generation.
        generation: u64,
    },
    /// The pool's memory was taken back, or has moved, while the tensor was held: its bytes may be old.
    #[error("tensor `{name}`: the pool was revoked or has moved: {why}; get the tensor again")]
    Revoked {
        /// The name, or what was done.
        name: String,
        /// What the library said.
        why: String,
    },
    /// The program that owns the pool has ended, or cannot be reached.
    #[error("the owner of pool `{pool}` is gone: {why}")]
    OwnerGone {
        /// The pool.
        pool: String,
        /// What the library said.
        why: String,
    },
    /// The owner's program did not answer in time. It may only stand still: ask again.
    #[error("the owner of pool `{pool}` did not answer within {after:?}: ask again, or look whether it stands still")]
    NoAnswer {
        /// The pool.
        pool: String,
        /// How long was waited.
        after: Duration,
    },
    /// No tensor has that name.
    #[error("pool `{pool}` has no tensor `{name}`")]
    Unknown {
        /// The pool.
        pool: String,
        /// The name.
        name: String,
    },
    /// The type is not that of the tensor that the bytes go into.
    #[error("a tensor of {found} does not go into one of {into}")]
    WrongType {
        /// Of the place.
        into: &'static str,
        /// Of the tensor.
        found: &'static str,
    },
    /// Shape or strides are not those of the tensor that the bytes go into.
    #[error("a tensor of shape {found:?} does not go into one of {into:?} (or their strides differ)")]
    WrongShape {
        /// Of the place.
        into: Vec<u64>,
        /// Of the tensor.
        found: Vec<u64>,
    },
    /// No free piece of the pool is long enough. Nothing was made.
    #[error(
        "pool `{pool}` has no room for a block of {asked} bytes: {free} are free, {largest} in one piece, {tensors} names \
         are in use{}",
        told(held)
    )]
    NoRoom {
        /// The pool.
        pool: String,
        /// Bytes of the block.
        asked: u64,
        /// Bytes that are free.
        free: u64,
        /// Of them in one piece.
        largest: u64,
        /// Tensors that have a name.
        tensors: usize,
        /// Who holds what, longest first.
        held: Vec<Holder>,
    },
    /// The pool has as many names as it may have.
    #[error("pool `{pool}` has {max} names, and may have no more: free some, or make it with more `names_max`")]
    TooManyNames {
        /// The pool.
        pool: String,
        /// Names at most.
        max: usize,
    },
    /// A reader holds as many tensors of a pool as it may.
    #[error("{max} tensors of pool `{pool}` are held by this reader: release some")]
    TooManyHeld {
        /// The pool.
        pool: String,
        /// How many.
        max: usize,
    },
    /// Bytes that do not begin at a multiple of the element's size.
    #[error("offset {offset} is not a multiple of the {bytes} bytes of an element of {dtype}")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// The type.
        dtype: &'static str,
        /// Bytes of an element.
        bytes: u64,
    },
    /// More bytes than a tensor may have.
    #[error("a tensor of {bytes} bytes is larger than {max}: make it of parts")]
    TooLarge {
        /// Its bytes; `u64::MAX` if they cannot be counted.
        bytes: u64,
        /// Bytes at most.
        max: u64,
    },
    /// A shape that no tensor has.
    #[error("{dims} dimensions with {strides} strides: there are at most {max}, with a stride each")]
    BadShape {
        /// Dimensions.
        dims: usize,
        /// Strides.
        strides: usize,
        /// Dimensions at most.
        max: usize,
    },
    /// Bytes of another count than the tensor has.
    #[error("{given} bytes at {at} do not lie in the {bytes} bytes of the tensor")]
    OutOfBounds {
        /// Where they begin.
        at: u64,
        /// How many.
        given: u64,
        /// Bytes of the tensor.
        bytes: u64,
    },
    /// A name that is empty or too long.
    #[error("a name of {bytes} bytes: it has 1 to {max}")]
    BadName {
        /// Its bytes.
        bytes: usize,
        /// Bytes at most.
        max: usize,
    },
    /// Elements in big-endian byte order.
    #[error("{dtype} is big-endian, and tensors are little-endian: convert it first")]
    BigEndian {
        /// As it was given.
        dtype: String,
    },
    /// A type that tensors do not have.
    #[error("there is no type `{dtype}` of elements")]
    UnknownType {
        /// As it was given.
        dtype: String,
    },
    /// The tensor lies on another host, and cannot be mapped.
    #[error("tensor `{name}` lies on another host: fetch it into a pool of this one")]
    NotHere {
        /// The name.
        name: String,
    },
    /// The program at the other end is no owner of a pool, or no reader of this release.
    #[error("pool `{pool}`: {what}")]
    Protocol {
        /// The pool.
        pool: String,
        /// What came.
        what: String,
    },
    /// Any other error of a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Any other error of a connection.
    #[error("pool `{pool}`: {why}")]
    Connection {
        /// The pool.
        pool: String,
        /// What the library said.
        why: String,
    },
}

raas::debug_says_the_words!(Error);

impl Error {
    /// The stable key of what happened.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "stale",
            Self::Freed { .. } => "freed",
            Self::Revoked { .. } => "revoked",
            Self::OwnerGone { .. } => "owner-gone",
            Self::NoAnswer { .. } => "no-answer",
            Self::Unknown { .. } => "no-tensor",
            Self::WrongType { .. } => "wrong-type",
            Self::WrongShape { .. } => "wrong-shape",
            Self::NoRoom { .. } => "no-room",
            Self::TooManyNames { .. } => "too-many-names",
            Self::TooManyHeld { .. } => "too-many-held",
            Self::Misaligned { .. } => "misaligned",
            Self::TooLarge { .. } => "too-large",
            Self::BadShape { .. } => "bad-shape",
            Self::OutOfBounds { .. } => "out-of-bounds",
            Self::BadName { .. } => "bad-name",
            Self::BigEndian { .. } => "big-endian",
            Self::UnknownType { .. } => "unknown-type",
            Self::NotHere { .. } => "not-here",
            Self::Protocol { .. } => "protocol",
            Self::Region(_) => "region",
            Self::Connection { .. } => "connection",
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Stale { .. } | Self::Freed { .. } | Self::Revoked { .. } => io::ErrorKind::StaleNetworkFileHandle,
            Self::OwnerGone { .. } => io::ErrorKind::ConnectionReset,
            Self::NoAnswer { .. } => io::ErrorKind::TimedOut,
            Self::Unknown { .. } => io::ErrorKind::NotFound,
            Self::NoRoom { .. } => io::ErrorKind::OutOfMemory,
            Self::TooManyNames { .. } | Self::TooManyHeld { .. } => io::ErrorKind::QuotaExceeded,
            Self::NotHere { .. } => io::ErrorKind::Unsupported,
            Self::Protocol { .. } => io::ErrorKind::InvalidData,
            Self::Connection { .. } => io::ErrorKind::NotConnected,
            Self::Region(error) => io::Error::from(error.clone()).kind(),
            _ => io::ErrorKind::InvalidInput,
        }
    }

    /// An error of a region that belongs to a pool, or of a look at a tensor.
    pub(crate) fn of_region(error: RegionError, what: &str) -> Self {
        let (name, why) = (what.to_owned(), error.to_string());
        match error {
            RegionError::Revoked { .. } | RegionError::DaemonLost { .. } => Self::Revoked { name, why },
            RegionError::OwnerGone { .. } => Self::OwnerGone { pool: name, why },
            RegionError::Refused { why: refusal, .. } if is_gone(&refusal) => Self::OwnerGone { pool: name, why },
            other => Self::Region(other),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

/// Whether a refusal says that the region, or its host, is not there.
fn is_gone(refusal: &raas::RegionRefusal) -> bool {
    use raas::{Reason, RegionRefusal};
    match refusal {
        RegionRefusal::OwnerGone | RegionRefusal::Unknown => true,
        RegionRefusal::Reason(reason) => matches!(reason, Reason::PeerLost | Reason::PeerAppDied),
        _ => false,
    }
}

fn told(held: &[Holder]) -> String {
    let mut words = String::new();
    for holder in held.iter().take(4) {
        let Holder { reader, name, generation, bytes, held, .. } = holder;
        let freed = if holder.is_freed { ", freed" } else { "" };
        let _ = write!(
            words,
            "; {reader} holds `{name}` (generation {generation}{freed}, {bytes} bytes) for {:.1} s",
            held.as_secs_f64()
        );
    }
    if held.len() > 4 {
        let _ = write!(words, "; and {} more", held.len() - 4);
    }
    words
}
