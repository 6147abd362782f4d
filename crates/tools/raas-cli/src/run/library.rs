//! The library that `raas run` loads into programs. Its bytes are in this binary, so that one file is enough; programs
//! and all that they start later need a file with them (docs/use/run.md).
//!
//! Owns where that file is. It must never name one whose bytes are not those of this binary, and never write where
//! another user could change what it wrote.
//!
//! The file is not a sealed memfd, because programs close descriptors that they do not know, and the children that they
//! start afterwards would find nothing at the path of one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::StatVfsMountFlags;
use terminal::Failure;

/// The library's file where it is installed or built.
const NAME: &str = "libraas_preload.so";
/// Where a package has it.
const INSTALLED: &str = "/usr/lib/raas";
/// Environment variable that names another file.
const VARIABLE: &str = "RAAS_PRELOAD";
/// Where root's file is written: users to which its programs change must be able to read it, and /run is often mounted
/// `noexec`.
const OF_ROOT: &str = "/var/cache/raas";
/// Files of other versions go when they are this old: programs that have them may still start others.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Permissions that let other users change something.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// What Cargo built for this package (build.rs); of no bytes where it only checks.
const BYTES: &[u8] = include_bytes!(env!("RAAS_PRELOAD_FILE"));

/// The library. A program without it must not be built; the function is generic because `cargo check`, which makes no
/// library, does not judge the constants of such.
fn bytes<const AT_LEAST: usize>() -> &'static [u8] {
    const { assert!(BYTES.len() >= AT_LEAST, "Cargo left no libraas_preload.so where build.rs expects it") };
    BYTES
}

/// `$RAAS_PRELOAD`, else a file with this binary's own library: beside the binary, where a package has it, or where it
/// is written now.
pub(super) fn library() -> Result<PathBuf, Failure> {
    if let Some(named) = set(VARIABLE) {
        let found = named.canonicalize().and_then(|path| loadable(&path).map(|()| path));
        return found.map_err(|e| Failure::Usage(format!("${VARIABLE}: {}: {e}", named.display())));
    }
    let bytes = bytes::<1>();
    let binary = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let beside = binary.as_deref().and_then(Path::parent).into_iter();
    let beside = beside.flat_map(|dir| [dir.to_owned(), dir.join("deps"), dir.join("../lib/raas")]);
    let mut there = beside.chain([PathBuf::from(INSTALLED)]).filter_map(|dir| dir.join(NAME).canonicalize().ok());
    if let Some(found) = there.find(|path| has_bytes(path, bytes) && loadable(path).is_ok()) {
        return Ok(found);
    }
    let user = rustix::process::geteuid().as_raw();
    let mut failures = vec![];
    for dir in places(user, set) {
        match place(&dir, user, bytes) {
            Ok(path) => return Ok(path),
            Err(e) => failures.push(format!("{}: {e}", dir.display())),
        }
    }
    Err(Failure::Usage(format!(
        "the library that programs load can be written nowhere; set $HOME to a directory of yours, or ${VARIABLE} to the \
         path of {NAME}; {}",
        failures.join("; ")
    )))
}

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Directories in which a user's file may be written. First those that outlive a session, because programs do.
fn places(user: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let within = |name: &str, dir: &str| variable(name).filter(|base| base.is_absolute()).map(|base| base.join(dir));
    let all = [
        within("XDG_CACHE_HOME", "raas"),
        (user == 0).then(|| OF_ROOT.into()),
        within("HOME", ".cache/raas"),
        within("XDG_RUNTIME_DIR", "raas"),
        Some(format!("/tmp/raas-{user}").into()),
    ];
    all.into_iter().flatten().collect()
}

/// The file in this directory, written if it is not there as it must be.
fn place(dir: &Path, user: u32, bytes: &[u8]) -> io::Result<PathBuf> {
    let mode = if user == 0 { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir)?;
    owned(dir, user)?;
    if rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("mounted noexec, so nothing can be loaded from it"));
    }
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    let path = dir.join(format!("libraas_preload-{:016x}.so", hash.finish()));
    loadable(&path)?;
    let is_there = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && is_safe(&found, user));
    if !(is_there && has_bytes(&path, bytes)) {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(bytes)?;
        file.as_file().set_permissions(PermissionsExt::from_mode(0o644))?;
        file.persist(&path)?;
        sweep(dir);
    }
    Ok(path)
}

/// Refuses a directory that another user made or can change, itself or by its parent.
fn owned(dir: &Path, user: u32) -> io::Result<()> {
    let itself = std::fs::symlink_metadata(dir)?;
    let parent = std::fs::metadata(dir.parent().unwrap_or(dir))?;
    let parent_safe =
        is_safe(&parent, user) || is_safe(&parent, 0) || (parent.uid() == 0 && parent.mode() & STICKY != 0);
    match itself.is_dir() && is_safe(&itself, user) && parent_safe {
        true => Ok(()),
        false => Err(io::Error::other("not a directory that this user alone can change")),
    }
}

fn is_safe(found: &std::fs::Metadata, user: u32) -> bool {
    found.uid() == user && found.mode() & OTHERS_WRITE == 0
}

fn has_bytes(path: &Path, bytes: &[u8]) -> bool {
    let size = std::fs::metadata(path).map(|found| found.len());
    size.is_ok_and(|size| size == bytes.len() as u64) && std::fs::read(path).is_ok_and(|found| found == bytes)
}

/// `$LD_PRELOAD` is a list, and no sign makes a colon or a space part of a path in it.
fn loadable(path: &Path) -> io::Result<()> {
    match path.as_os_str().as_bytes().iter().any(|b| *b == b':' || b.is_ascii_whitespace()) {
        true => Err(io::Error::other("a path with a colon or a space cannot be preloaded")),
        false => Ok(()),
    }
}

/// Removes what other versions left long ago. Nothing depends on it.
fn sweep(dir: &Path) {
    let Some(before) = SystemTime::now().checked_sub(KEPT) else { return };
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.as_bytes().starts_with(b"libraas_preload-") && name.as_bytes().ends_with(b".so");
        if ours && entry.metadata().and_then(|found| found.modified()).is_ok_and(|time| time < before) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
