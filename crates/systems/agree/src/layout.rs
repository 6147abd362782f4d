//! Where everything stands in a member's memory.
//!
//! Owns the places, and the codecs of head and mark. It must never take a mark for whole of which a part is missing.
//!
//! ```text
//!      0  head   group, term, commit               written by the holder of the grant
//!    256         mark 0, mark 1 at 512             the same
//!   4096  owner  beat, leads, applied; of its file  written by the program of the memory's host
//!   8192  bank 0, bank 1                           snapshots, one to each mark
//!      .  ring   entries in lines of 64 bytes
//! ```
//!
//! A mark says where the log begins, and what the bank of its number holds: everything before. A leader writes bank
//! and mark that are not in use, and the ring's lines before the new mark are free when that is done. So at each moment
//! one mark is whole, its bank is, and so is the log behind it.

use crate::error::OutOfRange;
use crate::members::{MEMBERS_BYTES, Members};
use crate::term::Term;
use crate::words::{half, put, put_half, word};

/// Bytes of a line, the unit of the ring.
pub const LINE_BYTES: usize = 64;
/// Where the owner's page begins.
pub const OWNER_AT: u64 = 4096;

/// Where the head's words begin: group, term, commit.
pub(crate) const HEAD_AT: u64 = 0;
pub(crate) const TERM_AT: u64 = 8;
pub(crate) const COMMIT_AT: u64 = 16;
/// Bytes of the head's words.
pub(crate) const HEAD_WORDS_BYTES: usize = 24;
/// Bytes of the head with its marks.
pub(crate) const HEAD_BYTES: usize = 768;
pub(crate) const MARK_BYTES: usize = 256;
/// Bytes of the owner's words: beat, leads, applied. Behind them stands what is said of its file.
pub(crate) const OWNER_BYTES: usize = 24;
const BANKS_AT: u64 = 8192;
/// The last index and line that a log may come to: what is more comes from no leader, and no sum with it may overflow.
const PLACE_MAX: u64 = 1 << 56;
const RING_LINES_MIN: u64 = 32;
const RING_LINES_MAX: u64 = 1 << 30;

const _: () = assert!(48 + MEMBERS_BYTES <= MARK_BYTES - 8);

/// Where the mark of a bank stands.
pub(crate) const fn mark_at(bank: usize) -> u64 {
    256 + bank as u64 * MARK_BYTES as u64
}

/// Sizes of a memory's parts. They are the same in all memories of a group, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    snapshot_bytes: u64,
    ring_lines: u64,
}

impl Layout {
    /// Snapshots of at most so many bytes (a multiple of 64), and a ring of so many lines of 64 bytes (32 to 2^30).
    pub fn new(snapshot_bytes: u64, ring_lines: u64) -> Result<Self, OutOfRange> {
        if !(RING_LINES_MIN..=RING_LINES_MAX).contains(&ring_lines) {
            let (min, max) = (RING_LINES_MIN, RING_LINES_MAX);
            return Err(OutOfRange { what: "the lines of the ring", value: ring_lines, min, max });
        }
        if snapshot_bytes == 0 || !snapshot_bytes.is_multiple_of(LINE_BYTES as u64) || snapshot_bytes > 1 << 40 {
            let what = "the bytes of a snapshot (a multiple of 64)";
            return Err(OutOfRange { what, value: snapshot_bytes, min: 64, max: 1 << 40 });
        }
        Ok(Self { snapshot_bytes, ring_lines })
    }

    /// Bytes of a memory.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.ring_at() + self.ring_lines * LINE_BYTES as u64
    }

    /// Bytes of a snapshot, at most.
    #[must_use]
    pub const fn snapshot_bytes(self) -> u64 {
        self.snapshot_bytes
    }

    /// Lines of the ring.
    #[must_use]
    pub const fn ring_lines(self) -> u64 {
        self.ring_lines
    }

    pub(crate) const fn bank_at(self, bank: usize) -> u64 {
        BANKS_AT + bank as u64 * self.snapshot_bytes
    }

    const fn ring_at(self) -> u64 {
        self.bank_at(2)
    }

    /// Where a line of the log stands: lines are counted on without end.
    pub(crate) const fn line_at(self, line: u64) -> u64 {
        self.ring_at() + line % self.ring_lines * LINE_BYTES as u64
    }

    /// Bytes from that line to the end of the ring.
    pub(crate) const fn bytes_to_end(self, line: u64) -> usize {
        (self.ring_lines - line % self.ring_lines) as usize * LINE_BYTES
    }
}

/// The end of a log: it names the whole of it, since the sum covers all entries before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) index: u64,
    pub(crate) term: Term,
    pub(crate) crc: u32,
    /// The line where the next entry begins.
    pub(crate) line: u64,
}

impl Tail {
    /// The log without entries.
    pub(crate) fn start(group: u64) -> Self {
        Self { index: 0, term: Term::NONE, crc: crc32c::crc32c(&group.to_le_bytes()), line: 0 }
    }

    /// What a leader writes into `commit`: index and sum of the last entry that is committed. Whoever reads it believes
    /// it only of a log that has this very entry, so nothing depends on what is seen first, the word or the log.
    pub(crate) fn commit_word(&self) -> u64 {
        u64::from(self.index as u32) | u64::from(self.crc) << 32
    }

    /// What decides which of two logs is taken.
    pub(crate) fn rank(&self) -> (Term, u64) {
        (self.term, self.index)
    }
}

/// Where a memory's log begins, and what its snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The last entry that is in the snapshot.
    pub(crate) tail: Tail,
    pub(crate) snapshot_bytes: u64,
    pub(crate) snapshot_crc: u32,
    /// The members as of that entry.
    pub(crate) members: Members,
}

impl Mark {
    /// Of a memory that has none.
    pub(crate) fn start(group: u64, members: &Members) -> Self {
        Self { tail: Tail::start(group), snapshot_bytes: 0, snapshot_crc: 0, members: members.clone() }
    }

    pub(crate) fn encode(&self, group: u64) -> Vec<u8> {
        let mut bytes = vec![0; MARK_BYTES];
        put(&mut bytes, 0, self.tail.index);
        put(&mut bytes, 8, self.tail.term.bits());
        put(&mut bytes, 16, self.tail.line);
        put_half(&mut bytes, 24, self.tail.crc);
        put_half(&mut bytes, 28, self.snapshot_crc);
        put(&mut bytes, 32, self.snapshot_bytes);
        put(&mut bytes, 40, group);
        bytes[48..48 + MEMBERS_BYTES].copy_from_slice(&self.members.encode());
        let crc = crc32c::crc32c(&bytes[..MARK_BYTES - 8]);
        put_half(&mut bytes, MARK_BYTES - 8, crc);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], group: u64) -> Option<Self> {
        let covered = bytes.get(..MARK_BYTES - 8)?;
        if half(bytes, MARK_BYTES - 8)? != crc32c::crc32c(covered) || word(bytes, 40)? != group {
            return None;
        }
        let term = Term::from_bits(word(bytes, 8)?);
        let tail = Tail { index: word(bytes, 0)?, term, crc: half(bytes, 24)?, line: word(bytes, 16)? };
        let members = Members::decode(bytes.get(48..48 + MEMBERS_BYTES)?)?;
        let is_possible = tail.term.is_possible() && tail.index.max(tail.line) <= PLACE_MAX;
        (is_possible && tail.index > 0).then_some(Self {
            tail,
            snapshot_bytes: word(bytes, 32)?,
            snapshot_crc: half(bytes, 28)?,
            members,
        })
    }
}

/// The head of a memory, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) term: Term,
    pub(crate) commit: u64,
    /// The mark that counts: the later one of those that are whole.
    pub(crate) mark: Mark,
    /// Its bank.
    pub(crate) bank: usize,
}

impl Head {
    /// `None`: too short, or another group's. `members` are those with which the group began.
    pub(crate) fn decode(bytes: &[u8], group: u64, members: &Members) -> Option<Self> {
        let found = word(bytes, 0)?;
        if found != 0 && found != group || bytes.len() < HEAD_BYTES {
            return None;
        }
        let mark = |bank: usize| {
            let at = mark_at(bank) as usize;
            Some((Mark::decode(bytes.get(at..at + MARK_BYTES)?, group)?, bank))
        };
        let later = (0..2).filter_map(mark).max_by_key(|(mark, _)| mark.tail.index);
        let (mark, bank) = later.unwrap_or_else(|| (Mark::start(group, members), 1));
        Some(Self { term: Term::from_bits(word(bytes, TERM_AT as usize)?), commit: word(bytes, 16)?, mark, bank })
    }

    /// What a leader writes into the head before anything else.
    pub(crate) fn name(group: u64, term: Term) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        put(&mut bytes, 0, group);
        put(&mut bytes, 8, term.bits());
        bytes
    }
}

/// The owner's words, as they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) beat: u64,
    /// The term in which the program leads, or tries to.
    pub(crate) leads: Term,
    pub(crate) applied: u64,
}

impl Owner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; OWNER_BYTES];
        put(&mut bytes, 0, self.beat);
        put(&mut bytes, 8, self.leads.bits());
        put(&mut bytes, 16, self.applied);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let leads = Term::from_bits(word(bytes, 8)?);
        Some(Self { beat: word(bytes, 0)?, leads, applied: word(bytes, 16)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Member;

    fn members() -> Members {
        Members::new(&[Member { id: 1, number: 10 }, Member { id: 2, number: 20 }])
    }

    fn mark(index: u64) -> Mark {
        let tail = Tail { index, term: Term::new(3, 1), crc: 77, line: index * 2 };
        Mark { tail, snapshot_bytes: 100, snapshot_crc: 5, members: members() }
    }

    fn head(marks: [Option<Mark>; 2]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[..16].copy_from_slice(&Head::name(9, Term::new(4, 2)));
        for (bank, mark) in marks.iter().enumerate() {
            let at = mark_at(bank) as usize;
            mark.iter().for_each(|mark| bytes[at..at + MARK_BYTES].copy_from_slice(&mark.encode(9)));
        }
        bytes
    }

    #[test]
    fn the_later_mark_that_is_whole_counts() {
        let read = |bytes: &[u8]| Head::decode(bytes, 9, &members()).unwrap();
        assert_eq!(read(&vec![0; HEAD_BYTES]).mark, Mark::start(9, &members()));
        let both = head([Some(mark(7)), Some(mark(12))]);
        assert_eq!((read(&both).mark, read(&both).bank, read(&both).term), (mark(12), 1, Term::new(4, 2)));
        for at in mark_at(1)..mark_at(1) + 248 {
            let mut torn = both.clone();
            torn[at as usize] ^= 1;
            assert_eq!((read(&torn).mark, read(&torn).bank), (mark(7), 0), "byte {at}");
        }
        assert_eq!(Head::decode(&both, 8, &members()), None, "another group's");
    }

    #[test]
    fn parts_do_not_overlap() {
        let layout = Layout::new(128, 32).unwrap();
        assert!(mark_at(1) as usize + MARK_BYTES <= HEAD_BYTES && HEAD_BYTES as u64 <= OWNER_AT);
        assert!(OWNER_AT + OWNER_BYTES as u64 <= layout.bank_at(0));
        assert_eq!(layout.line_at(0), layout.bank_at(1) + 128);
        assert_eq!((layout.line_at(33), layout.bytes_to_end(31)), (layout.line_at(1), 64));
        assert_eq!(layout.line_at(31) + 64, layout.bytes());
        assert!(Layout::new(100, 32).is_err() && Layout::new(128, 31).is_err());
    }
}
