//! How a member's program keeps its memory in a file.
//!
//! Owns what is appended, and what is said of it. It looks at its own memory, as a learner does, and takes for the file
//! what stands there whole. It must never say of an entry or a term that the file has it before that is synced, and must
//! never drop what it has said but for what its memory has in that place.
//!
//! It is a machine without I/O, beside the [`Replica`](crate::Replica): what it asks for is done one after the other.

use crate::error::OutOfRange;
use crate::journal::{Change, Journal, Title};
use crate::kept::KEPT_AT;
use crate::layout::{Head, LINE_BYTES, Mark, Tail};
use crate::members::Members;
use crate::scan::{Load, LogScan, Scan};
use crate::settings::Settings;
use crate::term::Term;
use crate::words::{half, word};

/// Bytes of a READ of the own memory.
const PIECE_BYTES: usize = 64 << 10;

/// What is to be done next. A read ends with [`Scribe::on_read`], all else with [`Scribe::on_done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Read this host's own memory.
    Read {
        /// From where.
        offset: u64,
        /// How many.
        bytes: usize,
    },
    /// Append to the file, and sync it. If that fails nothing is asked any more: what a failed sync leaves behind nobody
    /// knows, and a later one that succeeds does not say that it is there.
    Append(Vec<u8>),
    /// Make a file of these bytes, sync it, have it take the other one's place, and sync the directory.
    Replace(Vec<u8>),
    /// Write into the owner's page of this host's own memory.
    Publish {
        /// To where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
}

#[derive(Debug)]
enum Doing {
    Nothing,
    Head,
    /// It is looked whether the memory has the file's last entry.
    Tail,
    Log(Box<LogScan>),
    Load(Box<Load>),
    Append(Change, Vec<u8>, u32),
    /// The journal is written anew as it is, or as that.
    Replace(Option<Box<Journal>>),
    Publish,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Scribe {
    settings: Settings,
    journal: Journal,
    /// Of the file's last record.
    sum: u32,
    doing: Doing,
    /// The term in the memory's head, if the file has none as great.
    promise: Option<Term>,
    /// The term in the memory's head.
    term: Term,
    /// What is read next.
    place: Option<(u64, usize)>,
}

impl Scribe {
    /// One for a file as it was read, or a new one. It begins with writing it anew: what was read may be what a sync
    /// failed for, and stand in no more than the system's cache.
    pub fn new(journal: Journal) -> Result<Self, OutOfRange> {
        let Title { group, member, layout, command_bytes_max, .. } = journal.title;
        let settings = Settings {
            group,
            me: member,
            members: vec![],
            layout,
            command_bytes_max: usize::try_from(command_bytes_max).unwrap_or(usize::MAX),
            piece_bytes_max: PIECE_BYTES,
            period_us: 1,
            lease_us: 0,
            is_synced: true,
            seed: 0,
        };
        settings.check_sizes()?;
        Ok(Self {
            settings,
            journal,
            sum: 0,
            doing: Doing::Replace(None),
            promise: None,
            term: Term::NONE,
            place: None,
        })
    }

    /// Looks at the memory, unless something is being done.
    pub fn look(&mut self) {
        if matches!(self.doing, Doing::Nothing) {
            (self.doing, self.place) = (Doing::Head, Some(Scan::HEAD));
        }
    }

    /// What is to be done, if anything is.
    #[must_use]
    pub fn ask(&self) -> Option<Ask> {
        match &self.doing {
            Doing::Nothing => None,
            Doing::Append(_, bytes, _) => Some(Ask::Append(bytes.clone())),
            Doing::Replace(None) => Some(Ask::Replace(self.journal.encode().0)),
            Doing::Replace(Some(journal)) => Some(Ask::Replace(journal.encode().0)),
            Doing::Publish => Some(Ask::Publish { offset: KEPT_AT, bytes: self.journal.kept().encode() }),
            Doing::Head | Doing::Tail | Doing::Log(_) | Doing::Load(_) => {
                self.place.map(|(offset, bytes)| Ask::Read { offset, bytes })
            }
        }
    }

    /// What was read.
    pub fn on_read(&mut self, bytes: &[u8]) {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Head => self.on_head(bytes),
            Doing::Tail => self.on_tail(bytes),
            Doing::Log(mut scan) => {
                let place = scan.on_read(bytes, &self.settings).then(|| scan.next(&self.settings)).flatten();
                self.read_log(*scan, place);
            }
            Doing::Load(mut load) => {
                load.on_read(bytes);
                self.load(load);
            }
            other => self.doing = other,
        }
    }

    /// What was asked for is done, and synced if it was a file.
    pub fn on_done(&mut self) {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Append(change, _, sum) => {
                self.journal.apply(change);
                (self.sum, self.doing) = (sum, Doing::Publish);
            }
            Doing::Replace(journal) => {
                if let Some(journal) = journal {
                    self.journal = *journal;
                }
                self.sum = self.journal.encode().1;
                // It is in the file, and in the memory.
                self.journal.snapshot = Vec::new();
                self.doing = Doing::Publish;
            }
            Doing::Publish => {}
            other => self.doing = other,
        }
    }

    fn on_head(&mut self, bytes: &[u8]) {
        let Some(head) = Head::decode(bytes, self.settings.group, &Members::default()) else { return };
        self.term = head.term;
        self.promise = Some(head.term).filter(|term| *term > self.journal.promised && term.is_possible());
        let is_newer = head.mark.tail.index > self.journal.base().index;
        match Load::new(&head.mark, head.bank, &self.settings).filter(|_| is_newer) {
            Some(load) => self.load(Box::new(load)),
            None => self.look_at_tail(),
        }
    }

    fn load(&mut self, load: Box<Load>) {
        self.place = load.next(&self.settings);
        if self.place.is_some() {
            self.doing = Doing::Load(load);
            return;
        }
        match load.snapshot().map(<[u8]>::to_vec) {
            Some(snapshot) => self.doing = Doing::Replace(Some(Box::new(self.behind(load.mark, snapshot)))),
            // The leader has written into it meanwhile: the next look finds another one.
            None => self.look_at_tail(),
        }
    }

    /// The file as it is to be from this mark on: with the entries that it has behind it.
    fn behind(&self, mark: Mark, snapshot: Vec<u8>) -> Journal {
        let Journal { title, promised, entries, .. } = &self.journal;
        let has_it = self.journal.tail_at(mark.tail.index) == Some(mark.tail);
        let entries = entries.iter().filter(|entry| has_it && entry.tail.index > mark.tail.index).cloned().collect();
        let promised = self.promise.unwrap_or(*promised);
        Journal { title: *title, mark: Some(mark), snapshot, entries, promised }
    }

    fn look_at_tail(&mut self) {
        match self.journal.entries.last() {
            // An entry of the leader of the head's term was written over by nobody. Behind one of an older leader its bytes
            // may still stand there, and another log ends before them.
            Some(last) if last.tail.term == self.term => {
                let at = self.settings.layout.line_at(last.line());
                (self.doing, self.place) = (Doing::Tail, Some((at, LINE_BYTES)));
            }
            _ => self.scan_behind(self.journal.base()),
        }
    }

    fn on_tail(&mut self, bytes: &[u8]) {
        let tail = self.journal.tail();
        let found = (word(bytes, 0), word(bytes, 8), half(bytes, 48));
        let has_it = found == (Some(tail.index), Some(tail.term.bits()), Some(tail.crc));
        // Else the log was overwritten from somewhere on.
        self.scan_behind(if has_it { tail } else { self.journal.base() });
    }

    fn scan_behind(&mut self, tail: Tail) {
        let scan = LogScan::new(tail, self.journal.base().line, &self.settings);
        let place = scan.next(&self.settings);
        self.read_log(scan, place);
    }

    fn read_log(&mut self, scan: LogScan, place: Option<(u64, usize)>) {
        self.place = place;
        if place.is_some() {
            self.doing = Doing::Log(Box::new(scan));
            return;
        }
        // What is only shorter than the file is no other log: a leader is writing there, or was.
        let is_new = |entry: &&crate::entry::Entry| self.journal.tail_at(entry.tail.index) != Some(entry.tail);
        let entries = scan.entries.iter().skip_while(|entry| !is_new(entry)).cloned().collect();
        let change = Change { promised: self.promise.take(), entries };
        if !change.is_empty() {
            let mut bytes = vec![];
            let sum = change.encode(self.sum, &mut bytes);
            self.doing = Doing::Append(change, bytes, sum);
        }
    }
}
