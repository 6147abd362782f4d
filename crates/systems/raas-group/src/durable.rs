//! A member whose memory is durable: its directory, and the thread that keeps the one in the other.
//!
//! Owns the order at the begin: what the file proves is in the memory, and in a file that is synced, before the memory has
//! its number; and the list of founders is in both before this program takes part. Whoever meets a memory without a number
//! takes it for none. A write or sync that fails ends the thread: what is in the file then nobody knows.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use agree::{Ask, Journal, Kept, Scribe, Title};
use raas::{Region, RegionError};

use crate::class::Class;
use crate::directory::{Directory, FOUNDED, JOURNAL};
use crate::error::GroupError;
use crate::founding::{self, Founded};
use crate::number;

/// Between two looks at a memory in which something comes.
const REST_MIN: Duration = Duration::from_micros(50);

/// A directory, and what it says that the memory is.
pub(crate) struct Durable {
    directory: Directory,
    scribe: Scribe,
    journal: Journal,
    founded: Option<Founded>,
}

/// Why a scribe's wish was not done.
#[derive(Debug)]
enum Failure {
    /// The file.
    File(&'static str, io::Error),
    /// This host's memory is not to be had.
    Memory(RegionError),
}

impl Durable {
    /// Reads the directory. `wanted` is what it must be of; a new one gets its number.
    pub(crate) fn open(path: &Path, wanted: Title) -> Result<Self, GroupError> {
        let directory = Directory::open(path)?;
        let other = |what: &'static str| GroupError::OtherDirectory { path: path.to_owned(), what };
        let founded = directory.read(FOUNDED)?.map(|bytes| founding::decode(&bytes));
        let founded = founded.map(|list| list.ok_or_else(|| other("its list of founders is damaged"))).transpose()?;
        let journal = match directory.read(JOURNAL)? {
            Some(bytes) => Journal::decode(&bytes).map_err(|_| other("the beginning of its journal is damaged"))?,
            None if founded.is_some() => return Err(other("its journal is gone")),
            None => Journal::new(wanted),
        };
        let Title { group, member, layout, command_bytes_max, .. } = journal.title;
        if group != wanted.group {
            return Err(other("it is of another group"));
        }
        if member != wanted.member {
            return Err(other("it is of another member"));
        }
        if (layout, command_bytes_max) != (wanted.layout, wanted.command_bytes_max) {
            return Err(other("it is of a memory of other sizes"));
        }
        Ok(Self { scribe: Scribe::new(journal.clone())?, directory, journal, founded })
    }

    /// The number of the memory.
    pub(crate) fn number(&self) -> u64 {
        self.journal.title.number
    }

    /// Makes of this host's memory what the file proves, if it has no number yet.
    pub(crate) fn restore(&mut self, own: &Region, group: &str) -> Result<(), GroupError> {
        let (number, found) = (self.number(), number::of(own, Class::SyncedMajority)?);
        if founding::list_of(own)?.is_some_and(|list| !list.class.is_synced()) {
            let (group, its, given) = (group.to_owned(), Class::RamMajority, Class::SyncedMajority);
            return Err(GroupError::OtherClass { group, its, given });
        }
        if found != 0 && found != number {
            let path = self.directory.path().to_owned();
            return Err(GroupError::OtherDirectory { path, what: "this host has a memory of another directory" });
        }
        if found == 0 {
            for (offset, bytes) in self.journal.restore() {
                own.write(offset, &bytes)?;
            }
            if let Some(founded) = &self.founded {
                founding::write(own, founded)?;
            }
        }
        self.work(own).map_err(|failure| match failure {
            Failure::File(what, error) => self.directory.failed(what, &error),
            Failure::Memory(error) => error.into(),
        })?;
        tracing::debug!(group, was = found, number, "this host's memory has what its file proves");
        Ok(number::give(own, number)?)
    }

    /// The group began with these.
    pub(crate) fn found(&mut self, founded: &Founded) -> Result<(), GroupError> {
        if self.founded.as_ref() == Some(founded) {
            return Ok(());
        }
        let result = self.directory.replace(FOUNDED, &founding::encode(founded));
        result.map_err(|error| self.directory.failed("writing the list of founders", &error))
    }

    /// Does what the scribe asks for, until there is nothing. Whether it wrote.
    fn work(&mut self, own: &Region) -> Result<bool, Failure> {
        let mut has_written = false;
        while let Some(ask) = self.scribe.ask() {
            match ask {
                Ask::Read { offset, bytes } => {
                    let mut found = vec![0; bytes];
                    own.read(offset, &mut found).map_err(Failure::Memory)?;
                    self.scribe.on_read(&found);
                    continue;
                }
                Ask::Append(bytes) => {
                    has_written = true;
                    self.directory.append(&bytes).map_err(|error| Failure::File("appending to the journal", error))?;
                }
                Ask::Replace(bytes) => {
                    has_written = true;
                    let result = self.directory.replace(JOURNAL, &bytes);
                    result.map_err(|error| Failure::File("writing the journal anew", error))?;
                }
                Ask::Publish { offset, bytes } => own.write(offset, &bytes).map_err(Failure::Memory)?,
            }
            self.scribe.on_done();
        }
        Ok(has_written)
    }
}

/// The thread that keeps a memory in its file. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeping {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeping {
    pub(crate) fn start(mut durable: Durable, own: Region, period: Duration) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let keep = move || {
            let mut rest = REST_MIN;
            while !over.load(Ordering::Acquire) {
                durable.scribe.look();
                match durable.work(&own) {
                    Ok(true) => rest = REST_MIN,
                    Ok(false) => rest = (rest * 2).min(period),
                    Err(failure) => return give_up(&durable, &own, &failure),
                }
                std::thread::park_timeout(rest);
            }
        };
        let thread = std::thread::Builder::new().name("raas-group-file".into()).spawn(keep)?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // What it panicked with it has said.
            let _ = thread.join();
        }
    }
}

fn give_up(durable: &Durable, own: &Region, failure: &Failure) {
    let path = durable.directory.path().display();
    let error = match failure {
        Failure::Memory(error) => {
            tracing::warn!(%path, %error, "this host's memory of a group is gone, so nothing is kept of it");
            return;
        }
        Failure::File(what, error) => {
            tracing::error!(
                %path, what, %error,
                "this member of a group counts for nothing until its program is started again: its file cannot be written"
            );
            error
        }
    };
    let unnamed = rustix::io::Errno::IO.raw_os_error();
    let (offset, bytes) = Kept::of_fault(error.raw_os_error().unwrap_or(unnamed).unsigned_abs());
    if let Err(error) = own.write(offset, &bytes) {
        tracing::warn!(%error, "this host's memory cannot be written");
    }
}
