//! Directories of demos that were killed with SIGKILL, which nobody could remove then. Each demo holds a lock on a file
//! in its directory as long as it lives. So the lock shows whether a directory is in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// How the names of the directories begin.
pub(super) const PREFIX: &str = "raas-demo-";
/// The file that is locked.
const LOCK: &str = "lock";

/// Makes and takes the lock of a directory.
pub(super) fn lock(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(LOCK))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes the directories in `place` that belong to this user and to no living demo. What cannot be removed stays.
pub(super) fn remove(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && std::fs::symlink_metadata(entry.path())
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw());
        // One without a lock file is just being made.
        if is_ours && is_abandoned(&entry.path()).is_ok_and(|abandoned| abandoned) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(dir: &Path) -> io::Result<bool> {
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(no_follow).open(dir.join(LOCK))?;
    Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_demo_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let dir = place.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("key"), b"x").unwrap();
            dir
        };
        let (dead, living, young, other) =
            (make("raas-demo-dead"), make("raas-demo-living"), make("raas-demo-young"), make("else"));
        drop(lock(&dead).unwrap());
        drop(lock(&other).unwrap());
        let _held = lock(&living).unwrap();
        std::os::unix::fs::symlink(&other, place.path().join("raas-demo-link")).unwrap();
        remove(place.path());
        assert!(!dead.exists());
        assert!(living.exists() && young.exists() && other.join("key").exists());
    }
}
