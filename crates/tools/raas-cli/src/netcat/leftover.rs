//! Files of receivers that were killed before they could take them away.
//!
//! Owns whose they are: a receiver holds a lock on its file as long as it lives, and the kernel lets go of it however it
//! ends. It must never remove what a living receiver writes, what belongs to another user, or what is no regular file
//! under such a name.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RawMode, Stat};

/// The end of the name of a file that is not whole.
pub(super) const PARTIAL_SUFFIX: &str = ".raas-partial";
/// Letters before it that the file has by chance.
pub(super) const RANDOM_LETTERS: usize = 6;

/// Says that a receiver lives and writes this file. False: somebody took the file away before that was said.
pub(super) fn hold(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(rustix::fs::fstat(file)?.st_nlink > 0),
        // Another receiver has it for left over, and is about to remove it.
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        // A file system without locks: nobody can find out that the file is left over, so it stays.
        Err(_) => Ok(true),
    }
}

/// Removes what receivers of this user that live no more left in `directory`. The names of what was removed.
pub(super) fn sweep(directory: &Path) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // By the descriptor from here on: the name may lead elsewhere a moment later.
    let Ok(place) = rustix::fs::open(directory, flags, Mode::empty()) else { return Vec::new() };
    let Ok(entries) = Dir::read_from(&place) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    let left = names.filter(|name| is_partial(name) && take_away(&place, name).unwrap_or(false));
    left.map(|name| name.display().to_string()).collect()
}

/// Whether a receiver gives such names: `.FILE.RANDOM.raas-partial`.
fn is_partial(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let Some(stem) = name.strip_prefix(b".").and_then(|name| name.strip_suffix(PARTIAL_SUFFIX.as_bytes())) else {
        return false;
    };
    let Some((file, random)) = stem.split_at_checked(stem.len().saturating_sub(RANDOM_LETTERS)) else { return false };
    random.len() == RANDOM_LETTERS
        && random.iter().all(u8::is_ascii_alphanumeric)
        && file.len() > 1
        && file.ends_with(b".")
}

/// Removes a file whose receiver lives no more. False: it is none, or not ours.
fn take_away(place: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    let named = rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !is_ours(&named) {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(place, name, flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&file)?;
    if !is_ours(&opened) || (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino) {
        return Ok(false);
    }
    if rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    // With the lock: who made the file a moment ago sees then that it is gone.
    rustix::fs::unlinkat(place, name, AtFlags::empty())?;
    Ok(true)
}

/// A regular file of this user with one name.
fn is_ours(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode as RawMode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_names_of_receivers_count() {
        for name in [".a.Ab12Cd.raas-partial", ".a.b.c.000000.raas-partial", ".ä .zzzzzz.raas-partial"] {
            assert!(is_partial(OsStr::new(name)), "{name}");
        }
        for name in [
            "a.Ab12Cd.raas-partial",
            ".Ab12Cd.raas-partial",
            "..Ab12Cd.raas-partial",
            ".a.Ab1-Cd.raas-partial",
            ".a.Ab12C.raas-partial",
            ".aAb12Cd.raas-partial",
            ".a.Ab12Cd.raas-partial~",
            ".a.Ab12Cd.partial",
            ".raas-partial",
            ".",
        ] {
            assert!(!is_partial(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn what_the_dead_left_goes_and_all_else_stays() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name);
        let partial = |name: &str| at(&format!(".{name}.Ab12Cd.raas-partial"));
        std::fs::write(partial("dead"), "half").unwrap();
        let lives = File::create(partial("lives")).unwrap();
        assert!(hold(&lives).unwrap());
        // What a user calls like that, or a stranger puts there.
        let precious = other.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::fs::write(at("notes.raas-partial"), "mine").unwrap();
        symlink(&precious, partial("link")).unwrap();
        std::fs::hard_link(&precious, partial("second-name")).unwrap();
        std::fs::create_dir(partial("directory")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, partial("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let mut stay = vec!["lives", "link", "second-name", "directory", "pipe"];
        if rustix::process::geteuid().is_root() {
            std::fs::write(partial("stranger"), "theirs").unwrap();
            std::os::unix::fs::lchown(partial("stranger"), Some(7), Some(7)).unwrap();
            stay.push("stranger");
        }
        assert_eq!(sweep(dir.path()), [".dead.Ab12Cd.raas-partial"]);
        assert!(!partial("dead").exists() && at("notes.raas-partial").exists());
        assert!(stay.iter().all(|name| std::fs::symlink_metadata(partial(name)).is_ok()), "{stay:?}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        drop(lives);
        assert_eq!(sweep(dir.path()), [".lives.Ab12Cd.raas-partial"]);
        assert!(sweep(&dir.path().join("nowhere")).is_empty());
    }

    #[test]
    fn who_makes_a_file_sees_that_it_was_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".new.Ab12Cd.raas-partial");
        let new = File::create(&path).unwrap();
        assert_eq!(sweep(dir.path()).len(), 1, "before its lock");
        assert!(!hold(&new).unwrap());
        // In the middle of being taken away.
        let new = File::create(&path).unwrap();
        let sweeper = File::open(&path).unwrap();
        rustix::fs::flock(&sweeper, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!hold(&new).unwrap());
    }
}
