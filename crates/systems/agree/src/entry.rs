//! Entries of the log.
//!
//! Owns their codec, and so what a valid log is. It must never take bytes for an entry that is not what a leader wrote
//! behind the very entries before it.
//!
//! The sum (CRC-32C) of an entry covers header, bytes and **the sum of the entry before**. Without that chain a log that
//! was overwritten half way would show entries of two leaders behind each other: the new leader's, and behind them what
//! an older one left, each whole in itself. With it the valid entries from the mark on are a prefix of one log that
//! was, and index, term and sum of the last one name all of it. So logs are compared at one entry, a torn WRITE only
//! makes a log shorter, and memory that is used again needs no zeroes.

use crate::layout::{LINE_BYTES, Tail};
use crate::term::Term;
use crate::words::{half, put, put_half, word};

/// Bytes of an entry's header; what the client gave stands behind it, so that 8 bytes fit into the first line.
pub(crate) const HEADER_BYTES: usize = 56;
const COVERED_BYTES: usize = 48;

/// What an entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A leader's first.
    Nothing = 1,
    /// A client's command to the machine.
    Command = 2,
    /// A list of members, valid from here on.
    Members = 3,
}

impl Kind {
    fn of(bits: u32) -> Option<Self> {
        [Self::Nothing, Self::Command, Self::Members].into_iter().find(|kind| *kind as u32 == bits)
    }
}

/// An entry before it has a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draft<'b> {
    pub(crate) term: Term,
    pub(crate) kind: Kind,
    pub(crate) client: u64,
    pub(crate) number: u64,
    /// The leader's commit index.
    pub(crate) commit: u64,
    pub(crate) bytes: &'b [u8],
}

/// An entry in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The log's end behind it: its own index, term and sum.
    pub(crate) tail: Tail,
    pub(crate) kind: Kind,
    pub(crate) client: u64,
    pub(crate) number: u64,
    pub(crate) commit: u64,
    bytes: usize,
    /// Its lines.
    pub(crate) lines: Vec<u8>,
}

/// Lines of an entry with so many bytes.
pub(crate) const fn lines_of(bytes: usize) -> u64 {
    (HEADER_BYTES + bytes).div_ceil(LINE_BYTES) as u64
}

fn sum(before: u32, header: &[u8], bytes: &[u8]) -> u32 {
    let chained = crc32c::crc32c(&before.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(chained, header), bytes)
}

impl Entry {
    /// The entry behind `before`.
    pub(crate) fn new(before: Tail, draft: Draft<'_>) -> Self {
        let Draft { term, kind, client, number, commit, bytes } = draft;
        let count = lines_of(bytes.len());
        let mut lines = vec![0; count as usize * LINE_BYTES];
        let index = before.index + 1;
        for (at, value) in [index, term.bits(), client, number, commit].into_iter().enumerate() {
            put(&mut lines, at * 8, value);
        }
        put_half(&mut lines, 40, bytes.len() as u32);
        put_half(&mut lines, 44, kind as u32);
        let crc = sum(before.crc, &lines[..COVERED_BYTES], bytes);
        put_half(&mut lines, 48, crc);
        lines[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
        let tail = Tail { index, term, crc, line: before.line + count };
        Self { tail, kind, client, number, commit, bytes: bytes.len(), lines }
    }

    /// What the client gave.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.lines.get(HEADER_BYTES..HEADER_BYTES + self.bytes).unwrap_or_default()
    }

    /// Where it begins.
    pub(crate) fn line(&self) -> u64 {
        self.tail.line - (self.lines.len() / LINE_BYTES) as u64
    }
}

/// What stands at a place of the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decoded {
    Entry(Entry),
    /// It may be an entry of so many bytes: read on.
    Short(usize),
    /// The log ends before.
    End,
}

/// Looks for the entry behind `before` in `at`, the bytes from its line on.
pub(crate) fn decode(before: Tail, at: &[u8], bytes_max: usize) -> Decoded {
    if at.len() < LINE_BYTES {
        return Decoded::Short(LINE_BYTES);
    }
    decode_line(before, at, bytes_max).unwrap_or(Decoded::End)
}

fn decode_line(before: Tail, at: &[u8], bytes_max: usize) -> Option<Decoded> {
    let (index, term, commit) = (word(at, 0)?, Term::from_bits(word(at, 8)?), word(at, 32)?);
    let (bytes, kind) = (half(at, 40)? as usize, Kind::of(half(at, 44)?)?);
    if index != before.index + 1 || term < before.term || !term.is_possible() || commit >= index || bytes > bytes_max {
        return None;
    }
    let count = lines_of(bytes);
    let all = count as usize * LINE_BYTES;
    let Some(lines) = at.get(..all) else { return Some(Decoded::Short(all)) };
    let crc = sum(before.crc, at.get(..COVERED_BYTES)?, at.get(HEADER_BYTES..HEADER_BYTES + bytes)?);
    let tail = Tail { index, term, crc, line: before.line + count };
    let (client, number, lines) = (word(at, 16)?, word(at, 24)?, lines.to_vec());
    (half(at, 48)? == crc).then_some(Decoded::Entry(Entry { tail, kind, client, number, commit, bytes, lines }))
}

#[cfg(test)]
mod tests;
