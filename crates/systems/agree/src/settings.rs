//! What a replica is told about its group and itself.
//!
//! Owns the ranges. Times are in microseconds of whatever clock the driver has.

use crate::entry::lines_of;
use crate::error::OutOfRange;
use crate::layout::{LINE_BYTES, Layout};
use crate::members::{MEMBERS_MAX, Member, Members};

/// Periods after which a campaign that found no majority is given up.
pub(crate) const CAMPAIGN_PERIODS: u64 = 20;
/// Periods for which a look at the memories waits for those that do not answer.
pub(crate) const LOOK_PERIODS: u64 = 6;
/// Periods, at most, that one who misses the leader waits by chance before he campaigns.
pub(crate) const JITTER_PERIODS: u64 = 12;
/// Periods after which a leader asks again for a memory that he lost.
pub(crate) const RETRY_PERIODS: u64 = 3;
/// How often that time doubles while the memory stays lost.
pub(crate) const RETRY_DOUBLINGS: u32 = 4;
/// Periods for which a leader without a majority goes on.
pub(crate) const PATIENCE_PERIODS: u64 = 30;
/// Periods after which a leader that nobody asked anything looks whether he still is one.
pub(crate) const CHECK_PERIODS: u64 = 8;
/// Of the ring's lines, those that commands leave to leaders' own entries: one in so many.
pub(crate) const RESERVED_SHARE: u64 = 4;
/// A snapshot is due when the log behind the last one has so many times its lines, and at least so many: whoever takes
/// over reads that log, and snapshots cost no more than a part of what the log does.
pub(crate) const LOG_PER_SNAPSHOT: u64 = 4;
/// See [`LOG_PER_SNAPSHOT`]: 128 KiB.
pub(crate) const LOG_LINES_MIN: u64 = 2048;
/// WRITEs of entries to one memory that are under way at a time, at most.
pub(crate) const WRITES_MAX: usize = 64;
/// The same of those that could take more.
pub(crate) const SMALL_WRITES_MAX: usize = 4;

/// Microseconds of a lease, at most.
const LEASE_US_MAX: u64 = 4 * 3_600_000_000;

/// See the head of this file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The group's number, so that no memory of another group is taken for one of this.
    pub group: u64,
    /// The member whose host this program runs on.
    pub me: u8,
    /// The members with which the group began, the same in all programs.
    pub members: Vec<Member>,
    /// The sizes, the same in all programs.
    pub layout: Layout,
    /// Bytes of a command, at most. Eight of them must fit into the ring.
    pub command_bytes_max: usize,
    /// Bytes of one READ or WRITE, at most, unless an entry is longer: a multiple of 64, from 1024 on for good speed.
    pub piece_bytes_max: usize,
    /// How often the leader is looked at, and the own memory: microseconds, from 1.
    pub period_us: u64,
    /// For how long a leader answers reads by itself after a look at a majority: microseconds, the same in all
    /// programs, 0 for never, else from four periods on. A new leader waits for as long, and a 64th more, before it
    /// does anything. That must be more than the clocks of two hosts run apart in this time.
    pub lease_us: u64,
    /// Whether an entry counts where a member's program has synced it to a file (see [`crate::Scribe`]), and not where its
    /// memory holds it. The same in all programs. A member's number is then that of its file.
    pub is_synced: bool,
    /// Of all that is left to chance.
    pub seed: u64,
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        let range = |what, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(OutOfRange { what, value, min, max }) }
        };
        range("the members of the group", self.members.len() as u64, 1, MEMBERS_MAX as u64)?;
        range("the hosts of the group's members", self.first().len() as u64, self.members.len() as u64, 9)?;
        range("the period in microseconds", self.period_us, 1, 3_600_000_000)?;
        if self.lease_us > 0 {
            range("the lease in microseconds", self.lease_us, 4 * self.period_us, LEASE_US_MAX)?;
        }
        self.check_sizes()
    }

    pub(crate) fn check_sizes(&self) -> Result<(), OutOfRange> {
        let range = |what, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(OutOfRange { what, value, min, max }) }
        };
        let piece = self.piece_bytes_max.next_multiple_of(LINE_BYTES) as u64;
        range("the bytes of a READ or WRITE (a multiple of 64)", self.piece_bytes_max as u64, piece.max(64), 1 << 30)?;
        let lines = lines_of(self.command_bytes_max);
        range("the lines of the longest command", lines, 1, self.layout.ring_lines() / 8)
    }

    pub(crate) fn first(&self) -> Members {
        Members::new(&self.members)
    }

    /// Bytes of an entry, at most: a list of members must fit too.
    pub(crate) fn entry_bytes_max(&self) -> usize {
        self.command_bytes_max.max(crate::members::MEMBERS_BYTES)
    }
}
