//! Reading a memory's log.
//!
//! Owns which bytes are read next, and where the log ends. Memory that somebody writes meanwhile may only make the log
//! shorter than it is, never other.

use crate::entry::{Decoded, Entry, Kind, decode};
use crate::layout::{HEAD_AT, HEAD_BYTES, Head, LINE_BYTES, Mark, Tail};
use crate::machine::crc_of_snapshot;
use crate::members::Members;
use crate::settings::Settings;

/// The first READ of a log.
const FIRST_BYTES: usize = 1024;

/// What is read next: where, and how much.
pub(crate) type Place = (u64, usize);

/// The entries behind some point of a log.
#[derive(Debug, Clone)]
pub(crate) struct LogScan {
    pub(crate) entries: Vec<Entry>,
    pub(crate) tail: Tail,
    /// No entry of this log ends behind this line.
    end: u64,
    /// Bytes from the tail's line on.
    buffer: Vec<u8>,
    piece: usize,
}

impl LogScan {
    /// Reads on behind `tail`; the ring holds nothing else than what is behind `base`.
    pub(crate) fn new(tail: Tail, base: u64, settings: &Settings) -> Self {
        let end = base + settings.layout.ring_lines();
        Self { entries: vec![], tail, end, buffer: vec![], piece: FIRST_BYTES }
    }

    /// What to read; `None`: the log is whole.
    pub(crate) fn next(&self, settings: &Settings) -> Option<Place> {
        let line = self.tail.line + (self.buffer.len() / LINE_BYTES) as u64;
        let left = self.end.checked_sub(line).filter(|left| *left > 0)? as usize * LINE_BYTES;
        let bytes = self.piece.min(settings.piece_bytes_max).min(left).min(settings.layout.bytes_to_end(line));
        Some((settings.layout.line_at(line), bytes))
    }

    /// `false`: the log ends here.
    pub(crate) fn on_read(&mut self, bytes: &[u8], settings: &Settings) -> bool {
        self.buffer.extend_from_slice(bytes);
        self.piece = (self.piece * 2).min(settings.piece_bytes_max);
        let mut used = 0;
        let goes_on = loop {
            match decode(self.tail, self.buffer.get(used..).unwrap_or_default(), settings.entry_bytes_max()) {
                Decoded::Entry(entry) => {
                    used += entry.lines.len();
                    self.tail = entry.tail;
                    self.entries.push(entry);
                }
                Decoded::Short(_) => break true,
                Decoded::End => break false,
            }
        };
        self.buffer.drain(..used);
        goes_on
    }
}

/// A memory's head and log.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) number: u64,
    pub(crate) head: Head,
    pub(crate) log: LogScan,
}

impl Found {
    /// The members as of the log's end.
    pub(crate) fn members(&self) -> Members {
        let lists = self.log.entries.iter().rev().filter(|entry| entry.kind == Kind::Members);
        lists
            .filter_map(|entry| Members::decode(entry.bytes()))
            .next()
            .unwrap_or_else(|| self.head.mark.members.clone())
    }
}

/// Reads a memory: head, then log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scan {
    found: Option<Found>,
}

/// How a scan goes on.
#[derive(Debug)]
pub(crate) enum Step {
    Read(Place),
    Done(Box<Found>),
    /// The memory is another group's, or another one than before.
    Foreign,
}

impl Scan {
    /// What is read first.
    pub(crate) const HEAD: Place = (HEAD_AT, HEAD_BYTES);

    pub(crate) fn head(&self) -> Option<&Head> {
        self.found.as_ref().map(|found| &found.head)
    }

    pub(crate) fn on_read(&mut self, number: u64, bytes: &[u8], settings: &Settings) -> Step {
        let goes_on = match &mut self.found {
            None => {
                let Some(head) = Head::decode(bytes, settings.group, &settings.first()) else { return Step::Foreign };
                let log = LogScan::new(head.mark.tail, head.mark.tail.line, settings);
                self.found = Some(Found { number, head, log });
                true
            }
            Some(found) if found.number != number => return Step::Foreign,
            Some(found) => found.log.on_read(bytes, settings),
        };
        match self.found.as_ref().and_then(|found| found.log.next(settings)).filter(|_| goes_on) {
            Some(place) => Step::Read(place),
            None => self.found.take().map_or(Step::Foreign, |found| Step::Done(Box::new(found))),
        }
    }
}

/// Reads the snapshot of a mark.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) mark: Mark,
    bank: usize,
    bytes: Vec<u8>,
}

impl Load {
    /// `None`: the mark's snapshot is longer than any may be.
    pub(crate) fn new(mark: &Mark, bank: usize, settings: &Settings) -> Option<Self> {
        let fits = mark.snapshot_bytes <= settings.layout.snapshot_bytes();
        fits.then(|| Self { mark: mark.clone(), bank, bytes: vec![] })
    }

    /// What to read; `None`: it is whole.
    pub(crate) fn next(&self, settings: &Settings) -> Option<Place> {
        let left = (self.mark.snapshot_bytes as usize).saturating_sub(self.bytes.len());
        let at = settings.layout.bank_at(self.bank) + self.bytes.len() as u64;
        (left > 0).then_some((at, left.min(settings.piece_bytes_max)))
    }

    pub(crate) fn on_read(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The snapshot, if nobody wrote into it meanwhile.
    pub(crate) fn snapshot(&self) -> Option<&[u8]> {
        (crc_of_snapshot(&self.bytes) == self.mark.snapshot_crc).then_some(&self.bytes)
    }
}
