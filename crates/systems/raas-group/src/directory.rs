//! A member's directory.
//!
//! Owns the files in it, and that one program at a time has them. A file is replaced as a whole: written beside the older
//! one, synced, renamed, and the directory is synced. It must never call bytes synced of which the system did not say so.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::error::GroupError;

/// The memory of the member: see [`agree::Journal`].
pub(crate) const JOURNAL: &str = "journal";
/// Who the members were when the group began.
pub(crate) const FOUNDED: &str = "founded";
const LOCK: &str = "lock";

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The journal, to append to.
    journal: Option<File>,
    _lock: File,
}

impl Directory {
    /// Makes it, or takes it as another program left it.
    pub(crate) fn open(path: &Path) -> Result<Self, GroupError> {
        let failed = |what| move |error| failed(path, what, &error);
        if !path.is_dir() {
            fs::create_dir_all(path).map_err(failed("making it"))?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("syncing its parent"))?;
        }
        let lock = File::options().write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(failed("opening its lock"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), journal: None, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(GroupError::DirectoryInUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(failed("locking it")(error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file; none if it was never made.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, GroupError> {
        match fs::read(self.path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("reading a file", &error)),
        }
    }

    pub(crate) fn failed(&self, what: &'static str, error: &io::Error) -> GroupError {
        failed(&self.path, what, error)
    }

    /// Makes a file of these bytes, in the place of the one of this name. It is synced when this returns.
    pub(crate) fn replace(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (at, beside) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &at)?;
        File::open(&self.path)?.sync_all()?;
        if name == JOURNAL {
            self.journal = Some(file);
        }
        Ok(())
    }

    /// Appends to the journal, which this program has replaced. It is synced when this returns.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let journal = self.journal.as_mut().ok_or(ErrorKind::NotFound)?;
        journal.write_all(bytes)?;
        journal.sync_data()
    }
}

fn failed(path: &Path, what: &'static str, error: &io::Error) -> GroupError {
    GroupError::Directory { path: path.to_owned(), what, cause: error.to_string() }
}
