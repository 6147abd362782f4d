//! The file of the cluster key.
//!
//! Owns reading it, refusing one that others can read, and making one at the first start. The key must never be logged,
//! sent or shown.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use plane::{ClusterKey, KEY_BYTES, KEY_BYTES_MAX};

use crate::DaemonError;

/// File name of the key that is made beside the socket when none is configured.
pub const KEY_FILE_NAME: &str = "cluster.key";
/// Reads a key file. It must belong to this user or root and be closed to everyone else.
pub fn read(path: &Path) -> Result<ClusterKey, DaemonError> {
    let fail = |what: String| DaemonError::Key { path: path.to_path_buf(), what };
    // A link is followed: secrets are often mounted as one, and owner and mode are those of what it leads to. A pipe is
    // not waited for.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(|e| {
        fail(format!("{e}; make one with: head -c 32 /dev/urandom > FILE; chmod 600 FILE, and copy it to every host"))
    })?;
    let meta = file.metadata().map_err(|e| fail(e.to_string()))?;
    if !meta.is_file() {
        return Err(fail("not a regular file".into()));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(fail(format!("mode {mode:04o} lets others use it: chmod 600 it, and change it if others saw it")));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(fail(format!("belongs to user {}, not to user {own} or root", meta.uid())));
    }
    let mut bytes = Vec::new();
    (&file).take(KEY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
    if !(KEY_BYTES..=KEY_BYTES_MAX).contains(&bytes.len()) {
        let len =
            if bytes.len() > KEY_BYTES_MAX { format!("more than {KEY_BYTES_MAX}") } else { bytes.len().to_string() };
        return Err(fail(format!("has {len} bytes, allowed are {KEY_BYTES}..={KEY_BYTES_MAX}")));
    }
    Ok(ClusterKey::new(bytes))
}

/// The key in `directory`, made if there is none. Daemons that start at the same time get the same one: it appears
/// complete, by a link that only one of them can make.
pub(crate) fn read_or_create(directory: &Path) -> Result<ClusterKey, DaemonError> {
    let path = directory.join(KEY_FILE_NAME);
    if !path.exists() {
        let made = create(directory, &path);
        made.map_err(|e| DaemonError::Key { path: path.clone(), what: format!("cannot be made: {e}") })?;
    }
    read(&path)
}

fn create(directory: &Path, path: &Path) -> io::Result<()> {
    let mut random = [0; KEY_BYTES + 8];
    getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
    let (key, suffix) = random.split_at(KEY_BYTES);
    let suffix: String = suffix.iter().map(|b| format!("{b:02x}")).collect();
    let draft = TemporaryFile(directory.join(format!(".{KEY_FILE_NAME}.{suffix}")));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft.0)?;
    file.write_all(key)?;
    file.sync_all()?;
    match std::fs::hard_link(&draft.0, path) {
        Ok(()) => {
            tracing::info!(path = %path.display(), "made a cluster key; hosts that must reach this one need a copy");
            Ok(())
        }
        // Another daemon was first: its key is as good.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removed when dropped.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn daemons_that_start_together_get_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                read_or_create(dir.path()).unwrap();
                std::fs::read(dir.path().join(KEY_FILE_NAME)).unwrap()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|k| *k == keys[0] && k.len() == KEY_BYTES));
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [KEY_FILE_NAME]);
        let mode = std::fs::metadata(dir.path().join(KEY_FILE_NAME)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_others_read_or_that_is_short_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let error = |mode: u32, bytes: usize| {
            std::fs::write(&path, vec![7; bytes]).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path).map(|_| ()).unwrap_err().to_string()
        };
        assert!(error(0o640, 32).contains("mode 0640"));
        assert!(error(0o604, 32).contains("mode 0604"));
        assert!(error(0o600, 31).contains("31 bytes"));
        assert!(error(0o600, 1025).contains("more than 1024"));
        std::fs::write(&path, [7; 32]).unwrap();
        assert!(read(&path).is_ok());
        assert!(read(&dir.path().join("none")).unwrap_err().to_string().contains("/dev/urandom"));
        assert_eq!(format!("{:?}", ClusterKey::new(vec![1; 32])), "ClusterKey(..)");
    }
}
