//! Regions: memory with a name that other programs read and write (docs/use/regions.md). What both control protocols say
//! of them.

use std::ops::{BitAnd, BitOr};
use std::str::FromStr;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::words::foreign;
use crate::{Reason, debug_says_the_words};

/// Bytes of a region's name at most.
pub const REGION_NAME_BYTES_MAX: usize = 64;
/// Bytes of a key.
pub const REGION_KEY_BYTES: usize = 16;
/// Bytes of a region at most: 1 TiB. Users' shares are smaller.
pub const REGION_BYTES_MAX: u64 = 1 << 40;

/// Greatest epoch in which a program may say that its region was.
pub const REGION_EPOCH_MAX: u64 = 1 << 48;

/// What a program must know, beside the name, to open a region: 128 bits that nobody can guess.
///
/// `Display` says it, as 32 hexadecimal digits for people and files, and `FromStr` reads them. `Debug` never says it, so
/// that no log has it by accident.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionKey([u8; REGION_KEY_BYTES]);

impl RegionKey {
    /// A key of these bytes.
    pub const fn new(bytes: [u8; REGION_KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a comparison in constant time.
    pub const fn as_bytes(&self) -> &[u8; REGION_KEY_BYTES] {
        &self.0
    }
}

impl fmt::Display for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegionKey(..)")
    }
}

/// A text is no key.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is {} hexadecimal digits", 2 * REGION_KEY_BYTES)]
pub struct NotAKey;

debug_says_the_words!(NotAKey, NotAnAccess, RegionRefusal);

impl From<NotAKey> for io::Error {
    fn from(e: NotAKey) -> Self {
        Self::new(io::ErrorKind::InvalidInput, e)
    }
}

impl From<NotAnAccess> for io::Error {
    fn from(e: NotAnAccess) -> Self {
        Self::new(io::ErrorKind::InvalidInput, e)
    }
}

impl FromStr for RegionKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let digits: Vec<u8> =
            text.trim().chars().filter_map(|c| c.to_digit(16).and_then(|d| d.try_into().ok())).collect();
        if digits.len() != 2 * REGION_KEY_BYTES || text.trim().chars().count() != digits.len() {
            return Err(NotAKey);
        }
        let mut bytes = [0; REGION_KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(bytes))
    }
}

/// What programs may do with a region, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub struct RegionAccess(u8);

impl RegionAccess {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Read its bytes.
    pub const READ: Self = Self(1);
    /// Write its bytes, with or without a notification.
    pub const WRITE: Self = Self(2);
    /// Read and change 8 bytes in one step.
    pub const ATOMIC: Self = Self(4);
    /// All of these.
    pub const ALL: Self = Self(7);
    /// Run kernels at it, which takes the owner's processor. [`RegionAccess::ALL`] does not include it.
    pub const EXECUTE: Self = Self(8);

    /// Bits that mean something.
    const KNOWN: Self = Self(15);
    const NAMES: [(Self, &str); 4] =
        [(Self::READ, "read"), (Self::WRITE, "write"), (Self::ATOMIC, "atomic"), (Self::EXECUTE, "execute")];

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it changes bytes.
    #[must_use]
    pub const fn changes(self) -> bool {
        self.0 & (Self::WRITE.0 | Self::ATOMIC.0) != 0
    }

    /// As a number: bit 0 read, bit 1 write, bit 2 atomic, bit 3 execute.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl BitAnd for RegionAccess {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for RegionAccess {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Bits that mean nothing are left out.
impl From<u8> for RegionAccess {
    fn from(bits: u8) -> Self {
        Self(bits & Self::KNOWN.0)
    }
}

impl From<RegionAccess> for u8 {
    fn from(access: RegionAccess) -> Self {
        access.0
    }
}

impl fmt::Display for RegionAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Self::NAMES.iter().filter(|(a, _)| self.contains(*a)).map(|(_, n)| *n).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

/// A text is no access mask.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no access: give some of read, write, atomic, execute, with commas between, or none")]
pub struct NotAnAccess(String);

impl FromStr for RegionAccess {
    type Err = NotAnAccess;

    fn from_str(text: &str) -> Result<Self, NotAnAccess> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        text.split(',').try_fold(Self::NONE, |all, word| {
            let found = Self::NAMES.iter().find(|(_, name)| *name == word.trim());
            found.map(|(access, _)| all | *access).ok_or_else(|| NotAnAccess(word.to_owned()))
        })
    }
}

/// A region of `raas region ls`. Its keys are part of the JSON interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct RegionRow {
    /// Its name.
    pub name: String,
    /// Its number on this host.
    pub region: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Raised by each revoke, from 1.
    pub epoch: u64,
    /// The program that made it; none if that has ended.
    pub owner_pid: Option<u32>,
    /// The user whose it is.
    pub uid: u32,
    /// What those may do who open it.
    pub access: RegionAccess,
    /// Handles of programs of this host, without the owner's.
    pub opens: u32,
    /// Handles of programs of other hosts.
    pub remote_opens: u32,
    /// It is of huge pages.
    pub huge_pages: bool,
    /// It stays when its owner ends.
    pub outlives: bool,
    /// Programs of other users may open it.
    pub other_users: bool,
    /// It has one writer at a time beside its owner, who takes it over by a term.
    pub single_writer: bool,
    /// The term of the last take-over that this daemon granted; 0: none yet.
    pub term: u64,
    /// Who took it over and has it still: a process of this host, or another host.
    pub writer: Option<String>,
}

/// How a region is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionSpec {
    /// Its name on this host: 1 to [`REGION_NAME_BYTES_MAX`] bytes, all of them plain ([`crate::is_plain`]).
    pub name: String,
    /// Its size in bytes, 1 to [`REGION_BYTES_MAX`].
    pub bytes: u64,
    /// What those may do who open it.
    pub access: RegionAccess,
    /// What they must know.
    pub key: RegionKey,
    /// Of huge pages, or not at all.
    pub huge_pages: bool,
    /// It stays when the program that made it has ended, until it is revoked.
    pub outlives: bool,
    /// Programs of other users may open it too, if they have the key.
    pub other_users: bool,
    /// Beside the owner one program writes it at a time: the last that took it over ([`crate::Request::RegionTakeOver`]).
    pub single_writer: bool,
}

/// Which region it is, over all daemons that have it one after the other, and how often it was revoked. A handle of one of
/// these daemons goes on at the next one if nothing of this has changed (docs/operate/restart.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionLine {
    /// Drawn when the region was made. It is no secret.
    pub id: u64,
    /// The user whose it is, as the daemon knows it.
    pub uid: u32,
    /// Revokes since the region was made.
    pub revokes: u64,
}

/// A region as its directory knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// Number on its host; no other region of that daemon has had it.
    pub region: u64,
    /// Raised by each revoke, and when another daemon takes the region over; from 1.
    pub epoch: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// What the holder of the handle may do: an owner everything.
    pub access: RegionAccess,
    /// Which one it is.
    pub line: RegionLine,
    /// The term of the last take-over that its daemon granted before this handle; 0: none, or an earlier daemon did.
    pub last_term: u64,
}

/// A handle to a region, as a program gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedRegion {
    /// Number of the handle; no other of the program's session has it.
    pub open: u64,
    /// What it is.
    pub info: RegionInfo,
    /// How it is reached.
    pub path: RegionPath,
}

/// How a program reaches a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionPath {
    /// The program maps it. Two descriptors come with the message: the memory, and the page of stamps.
    Local {
        /// The handle holds while the stamp page has this value.
        stamp: u64,
        /// Which word of the stamp page, counted from 0.
        word: u32,
        /// Words of the stamp page. Behind them is the word of the daemon's life.
        words: u32,
    },
    /// Through the engine and a lane to another host.
    Remote {
        /// How the program's operation queues name it.
        handle: u32,
    },
    /// Through the engine, in memory of this host: of a writer that can be fenced off.
    Writer {
        /// How the program's operation queues name it.
        handle: u32,
    },
}

/// Values of a word of the stamp page (docs/inside/shared-memory.md).
pub mod region_stamp {
    /// Bits of [`of`] that say what the region is.
    const KIND_BITS: u32 = 2;
    /// The region is there.
    pub const LIVE: u64 = 0;
    /// It was revoked, and nobody owns it.
    pub const REVOKED: u64 = 1;
    /// Its owner ended, or gave it up.
    pub const OWNER_GONE: u64 = 2;

    /// The word of a stamp, which no two epochs of any regions share.
    pub const fn of(stamp: u64, kind: u64) -> u64 {
        stamp << KIND_BITS | kind
    }

    /// What a word says, if it is one of this stamp.
    pub const fn kind_of(word: u64, stamp: u64) -> Option<u64> {
        if word >> KIND_BITS == stamp { Some(word & ((1 << KIND_BITS) - 1)) } else { None }
    }
}

/// What the owner's daemon gives the daemon of a host that opened a region: where the device finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionGrant {
    /// Number on its owner's host.
    pub region: u64,
    /// The epoch for which the grant holds.
    pub epoch: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// What may be done with it.
    pub access: RegionAccess,
    /// Its key at the owner's device.
    pub rkey: u32,
    /// Its first byte at the owner's device.
    pub addr: u64,
    /// As [`RegionInfo::last_term`].
    pub last_term: u64,
}

fn of_user(uid: Option<u32>) -> String {
    uid.map_or_else(String::new, |uid| format!(", of user {uid}"))
}

/// Why a region was not made, opened or revoked, or an operation on it was refused.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RegionRefusal {
    /// The name is empty, too long, or has control characters.
    #[error(
        "a name of {bytes} bytes cannot be: give 1 to {REGION_NAME_BYTES_MAX} bytes without control and format characters"
    )]
    BadName {
        /// Its length.
        bytes: u64,
    },
    /// No region can have this size.
    #[error("a region cannot have {bytes} bytes: give 1 to {max}")]
    BadSize {
        /// The size that was asked for.
        bytes: u64,
        /// The greatest that can be.
        max: u64,
    },
    /// There is a region of this name.
    #[error("there is a region of this name already{}: take another name, or revoke that one", of_user(*uid))]
    NameTaken {
        /// Whose it is, if the program's user may see it.
        uid: Option<u32>,
    },
    /// There is no region of this name.
    #[error(
        "there is no region of this name on that host that your user may see (`raas region ls` lists those that are there)"
    )]
    Unknown,
    /// The key is not the region's.
    #[error("the key is not that of the region")]
    WrongKey,
    /// The region is another user's, who did not open it to others.
    #[error("the region belongs to user {uid}, who did not let other users open it, and only that user may revoke it")]
    OtherUser {
        /// Whose it is.
        uid: u32,
    },
    /// More was asked for than the region allows.
    #[error("{asked} was asked for, and the region allows {allowed}")]
    NoAccess {
        /// What was asked for.
        asked: RegionAccess,
        /// What it allows.
        allowed: RegionAccess,
    },
    /// The user's regions have as many bytes as they may.
    #[error(
        "{asked} more bytes were asked for, and the regions of this user have {used} of {max}: drop some, or raise \
         `region_bytes_max` or `user_share_percent` in the daemon's [limits]"
    )]
    Quota {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that the user's regions have.
        used: u64,
        /// Bytes that they may have.
        max: u64,
    },
    /// The user has, or the host holds, as many regions or open handles as it may.
    #[error("{used} of {max} {what} are in use: drop some, or raise the limit in the daemon's [limits]")]
    TooMany {
        /// Of what.
        #[serde(deserialize_with = "foreign")]
        what: String,
        /// How many there are.
        used: u64,
        /// How many there may be.
        max: u64,
    },
    /// The system has no huge pages for it.
    #[error("the system has no huge pages for {bytes} bytes ({cause}): raise vm.nr_hugepages, or do without")]
    NoHugePages {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        #[serde(deserialize_with = "foreign")]
        cause: String,
    },
    /// The system gives no memory.
    #[error("the system gives no memory for {bytes} bytes ({cause})")]
    NoMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        #[serde(deserialize_with = "foreign")]
        cause: String,
    },
    /// The region was revoked since the handle was made.
    #[error("the region was revoked: the handle is of epoch {held}, and the region of epoch {current}: open it again")]
    Revoked {
        /// Epoch of the handle.
        held: u64,
        /// Epoch of the region.
        current: u64,
    },
    /// The program that owned the region ended, or gave it up.
    #[error("the owner of the region ended or gave it up; it does not exist any more")]
    OwnerGone,
    /// The region is being revoked.
    #[error("the region is being revoked: try again when that is done")]
    Busy,
    /// The owner has as many notifications as it has room for, and took none for long; this one is not among them.
    #[error("{max} notifications wait for the owner, which took none for long: try again")]
    NotificationsFull {
        /// For how many it has room.
        max: u64,
    },
    /// The host, or the region's memory there, cannot be reached.
    #[error("{0}")]
    Reason(Reason),
    /// A slice was lent by a lease that is over, or that is another program's.
    #[error("lease {lease} is over, or is not for this program: the lender ended, or took the region back")]
    LeaseOver {
        /// The lease.
        lease: u64,
    },
    /// A module cannot be a kernel.
    #[error("this is no kernel: {why}")]
    BadKernel {
        /// Why.
        #[serde(deserialize_with = "foreign")]
        why: String,
    },
    /// Only the program that made a region installs kernels at it.
    #[error("only the program that made the region may install kernels at it")]
    NotOwner,
    /// A program has the region, so no other can become its owner.
    #[error("process {pid} owns the region: another one becomes its owner when that has ended")]
    Owned {
        /// Which.
        pid: u32,
    },
    /// The region was made with other settings than were given.
    #[error("the region was made with another size or other settings: give those with which it was made")]
    OtherSettings,
    /// Somebody took the region over by this term, which is not below the one that was asked for, or that was held.
    #[error("the region was taken over by term {term}: take it over by a greater one to write it")]
    Superseded {
        /// The greatest term that was granted.
        term: u64,
    },
    /// The region has one writer at a time, who is to be fenced off by the next.
    #[error(
        "the region has one writer at a time: open it for reading, or take it over by a term (`Region::take_over`)"
    )]
    SingleWriter,
    /// Only a region with one writer can be taken over.
    #[error(
        "the region was not made for one writer at a time (`RegionOptions::single_writer`), so nobody takes it over"
    )]
    ManyWriters,
    /// A region cannot be lent to whoever is at the other end of a connection that is not there.
    #[error("this program has no connection {connection} to lend a region to")]
    NoConnection {
        /// The connection's number.
        connection: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_access_are_read_as_they_are_written() {
        let key = RegionKey::new(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(key.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(key.to_string().parse(), Ok(key));
        let small = RegionKey::new([0; REGION_KEY_BYTES]);
        assert_eq!(small.to_string().parse(), Ok(small), "zeroes in front are digits too");
        assert_eq!(format!("{NotAKey:?}"), "a key is 32 hexadecimal digits");
        assert_eq!(format!("{key:?}"), "RegionKey(..)", "no log has a key");
        for wrong in ["", "0", "zz112233445566778899aabbccddeeff", "00112233445566778899aabbccddeeff0", "00 12"] {
            assert_eq!(wrong.parse::<RegionKey>(), Err(NotAKey), "{wrong}");
        }
        for bits in 0..16 {
            let access = RegionAccess::from(bits);
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert!("read,fly".parse::<RegionAccess>().unwrap_err().to_string().contains("fly"));
        assert_eq!(RegionAccess::from(0xff), RegionAccess::ALL | RegionAccess::EXECUTE);
        assert!(RegionAccess::ALL.contains(RegionAccess::READ | RegionAccess::WRITE));
        assert!(RegionAccess::ATOMIC.changes() && !RegionAccess::READ.changes());
    }
}
