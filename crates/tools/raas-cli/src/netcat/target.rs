//! Where `raas recv` writes. A file appears under its name only when it is whole: the bytes go to a file beside it,
//! which gets the name at the end and is removed on any failure. A target that is no file (a terminal, a pipe,
//! /dev/null) is written directly.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::{NamedTempFile, TempPath};

use super::leftover;
use terminal::{Failure, out, signals};

/// Links that lead to a file at most, as in the kernel.
const LINKS_MAX: usize = 40;
/// Files that are made at most until one is this receiver's.
const TRIES_MAX: usize = 100;
/// Mode of a new file; the umask takes bits away.
const FILE_MODE: u32 = 0o666;

/// An open target.
#[derive(Debug)]
pub(super) struct Target {
    writer: File,
    name: String,
    /// The file beside the target; none if the bytes go to the target itself.
    partial: Option<Partial>,
}

/// A file that is not whole. Shared with the thread that removes it when a signal ends the process.
#[derive(Debug)]
struct Partial {
    path: Arc<Mutex<Option<TempPath>>>,
    target: PathBuf,
}

impl Target {
    /// Opens `path` (`-` is stdout) and changes nothing that is there.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            let stdout = io::stdout().as_fd().try_clone_to_owned()?;
            return Ok(Self { writer: stdout.into(), name: "stdout".into(), partial: None });
        }
        let name = path.display().to_string();
        let unusable = |why: io::Error| Failure::Usage(format!("{name}: {why}"));
        let place = resolve(path).map_err(unusable)?;
        let there = match std::fs::metadata(&place.path) {
            Ok(there) => Some(there),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(unusable(e)),
        };
        if there.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(Failure::Usage(format!("{name} is a directory; name a file in it")));
        }
        if place.is_descriptor || there.as_ref().is_some_and(|meta| !meta.is_file()) {
            // A descriptor that another program opened goes on where that one stands, as with `>>`.
            let opened = OpenOptions::new().write(true).append(place.is_descriptor).open(&place.path);
            return Ok(Self { writer: opened.map_err(unusable)?, name, partial: None });
        }
        let (writer, partial) = beside(place.path, there.map(|meta| meta.permissions()), &name)?;
        Ok(Self { writer, name, partial: Some(partial) })
    }

    /// Appends bytes.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.writer.write_all(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderLeft,
            _ => Failure::failed(&self.name, e),
        })
    }

    /// Everything is written: the file takes its name, and stays there if the machine loses power.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Some(partial) = &self.partial else { return Ok(()) };
        let failed = |e: io::Error| Failure::failed(&self.name, e);
        self.writer.sync_all().map_err(failed)?;
        let Some(path) = lock(&partial.path).take() else {
            return Err(Failure::Failed("the command is ending".into()));
        };
        path.persist(&partial.target).map_err(|e| failed(e.error))?;
        // The name too; a file system that cannot sync directories has done what it can.
        let _ = File::open(parent(&partial.target)).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        drop(lock(&self.path).take());
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file in the directory of `target`, where it can take that name in one step, with the mode of what it replaces.
fn beside(target: PathBuf, mode: Option<Permissions>, name: &str) -> Result<(File, Partial), Failure> {
    let Some(file_name) = target.file_name() else {
        return Err(Failure::Usage(format!("{name} names no file")));
    };
    if mode.is_some() && rustix::fs::access(&target, rustix::fs::Access::WRITE_OK).is_err() {
        return Err(Failure::Usage(format!("{name}: {}", io::Error::from(io::ErrorKind::PermissionDenied))));
    }
    let mut prefix = OsString::from(".");
    prefix.push(file_name);
    prefix.push(".");
    let cannot = |e: io::Error| {
        let directory = parent(&target).display();
        Failure::Usage(format!(
            "{name}: the file is written beside its name and cannot be made in {directory}: {e}; \
             `raas recv PORT > FILE` writes to the file itself"
        ))
    };
    for left in leftover::sweep(parent(&target)) {
        out::say(format_args!("raas: removed {left}, which a receiver that was killed had left"));
    }
    let new = held(&prefix, parent(&target)).map_err(cannot)?;
    let (file, path) = new.into_parts();
    if let Some(mode) = mode {
        file.set_permissions(mode).map_err(|e| Failure::failed(name, e))?;
    }
    let path = Arc::new(Mutex::new(Some(path)));
    let ending = Arc::clone(&path);
    signals::watch(move |_| {
        drop(lock(&ending).take());
        std::process::exit(1);
    })
    .map_err(|e| Failure::failed("signal handling", e))?;
    Ok((file, Partial { path, target }))
}

/// A new file that other receivers see to be written.
fn held(prefix: &OsStr, directory: &Path) -> io::Result<NamedTempFile> {
    for _ in 0..TRIES_MAX {
        let new = tempfile::Builder::new()
            .prefix(prefix)
            .rand_bytes(leftover::RANDOM_LETTERS)
            .suffix(leftover::PARTIAL_SUFFIX)
            .permissions(Permissions::from_mode(FILE_MODE))
            .tempfile_in(directory)?;
        if leftover::hold(new.as_file())? {
            return Ok(new);
        }
    }
    Err(io::Error::other("other receivers take it away"))
}

/// What a path leads to.
#[derive(Debug)]
struct Destination {
    path: PathBuf,
    /// It is a descriptor of some process: /dev/stdout, /dev/fd/3, /proc/PID/fd/3.
    is_descriptor: bool,
}

/// Follows links by hand, so that the file which a link names is replaced and not the link, and so that a descriptor is
/// not taken for the file behind it.
fn resolve(path: &Path) -> io::Result<Destination> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let is_descriptor = is_descriptor(&path);
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if !is_descriptor && is_strangers(&path, meta.uid())? => {
                return Err(io::Error::other(format!(
                    "{} was made by user {} in a directory where everybody may write; remove it or name another file",
                    path.display(),
                    meta.uid()
                )));
            }
            Ok(meta) if meta.is_symlink() && !is_descriptor => {
                let to = std::fs::read_link(&path)?;
                path = parent(&path).join(to);
            }
            // A name that ends in a slash is no file's.
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => return Ok(Destination { path, is_descriptor }),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Whether `path` is an entry of another user in a sticky directory that others may write, as /tmp is: the kernel does not
/// follow such a link, nor open such a file to make it (`fs.protected_symlinks`, `fs.protected_regular`). Links are
/// followed here by hand, and files replaced, so the rule is held here.
fn is_strangers(path: &Path, owner: u32) -> io::Result<bool> {
    let directory = std::fs::metadata(parent(path))?;
    Ok(may_be_a_trap(owner, rustix::process::geteuid().as_raw(), directory.uid(), directory.mode()))
}

fn may_be_a_trap(owner: u32, own: u32, directory_owner: u32, directory_mode: u32) -> bool {
    const STICKY: u32 = 0o1000;
    const WRITABLE: u32 = 0o022;
    let is_shared = directory_mode & STICKY != 0 && directory_mode & WRITABLE != 0;
    is_shared && owner != own && owner != directory_owner
}

fn is_descriptor(path: &Path) -> bool {
    let Ok(directory) = std::fs::canonicalize(parent(path)) else { return false };
    let mut parts = directory.components();
    parts.next() == Some(Component::RootDir)
        && parts.next() == Some(Component::Normal("proc".as_ref()))
        && directory.file_name().is_some_and(|name| name == "fd")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut target = Target::open(&path).unwrap();
        target.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()).len(), 2);
        drop(target);
        assert_eq!((std::fs::read(&path).unwrap(), names(dir.path())), (b"old".to_vec(), vec!["file".to_owned()]));
        let mut target = Target::open(&path).unwrap();
        target.write_all(b"new").unwrap();
        target.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(dir.path())), (b"new".to_vec(), vec!["file".to_owned()]));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn what_another_user_put_into_a_shared_directory_is_left_alone() {
        let (own, other) = (1000, 7);
        assert!(may_be_a_trap(other, own, 0, 0o1777), "a stranger's link in /tmp");
        assert!(may_be_a_trap(other, 0, 0, 0o1777), "for root most of all");
        assert!(!may_be_a_trap(own, own, 0, 0o1777));
        assert!(!may_be_a_trap(0, own, 0, 0o1777), "the directory's owner could do anything");
        assert!(!may_be_a_trap(other, own, 0, 0o755), "nobody else writes there");
        assert!(!may_be_a_trap(other, own, 0, 0o777), "here a stranger could take away what is made, too");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // As root, whose trap it would be.
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let (victim, link) = (dir.path().join("victim"), dir.path().join("out"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(other), Some(other)).unwrap();
        let refused = Target::open(&link).map(drop).unwrap_err();
        assert!(refused.to_string().contains("user 7"), "{refused}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn links_lead_to_the_file_that_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for (link, to, file) in [("a", "sub/one", "sub/one"), ("b", "a", "sub/one")] {
            std::os::unix::fs::symlink(to, dir.path().join(link)).unwrap();
            let mut target = Target::open(&dir.path().join(link)).unwrap();
            target.write_all(link.as_bytes()).unwrap();
            target.finish().unwrap();
            assert!(dir.path().join(link).is_symlink());
            assert_eq!(std::fs::read(dir.path().join(file)).unwrap(), link.as_bytes());
        }
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        assert!(matches!(Target::open(&dir.path().join("circle")), Err(Failure::Usage(_))));
    }

    #[test]
    fn what_is_no_file_is_written_as_it_is() {
        let mut target = Target::open(Path::new("/dev/null")).unwrap();
        assert!(target.partial.is_none());
        target.write_all(b"gone").unwrap();
        target.finish().unwrap();
        assert!(matches!(Target::open(Path::new("/dev/full")).unwrap().write_all(b"x"), Err(Failure::Failed(_))));
        // A descriptor, with a file behind it.
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("log")).unwrap();
        (&file).write_all(b"line, ").unwrap();
        let descriptor = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let mut target = Target::open(Path::new(&descriptor)).unwrap();
        target.write_all(b"and another").unwrap();
        target.finish().unwrap();
        assert_eq!(std::fs::read(dir.path().join("log")).unwrap(), b"line, and another");
        for bad in [dir.path().to_path_buf(), dir.path().join("nowhere/file"), dir.path().join("log/file")] {
            assert!(matches!(Target::open(&bad), Err(Failure::Usage(_))), "{}", bad.display());
        }
        assert_eq!(names(dir.path()), ["log"]);
    }
}
