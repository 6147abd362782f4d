//! The files of the cluster keys.
//!
//! Owns reading them, refusing one that others can read, and making one at the first start. The key must never be logged,
//! sent or shown.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use plane::{ClusterKey, ClusterKeys, KEY_BYTES, KEY_BYTES_MAX, KEYS_MAX};

use crate::{Config, DaemonError};

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

/// The keys that a configuration names. `directory`: where the key lies if it names none.
pub(crate) fn read_all(config: &Config, directory: &Path) -> Result<ClusterKeys, DaemonError> {
    let first = match &config.key_file {
        Some(path) => read(path)?,
        None => read(&directory.join(KEY_FILE_NAME))?,
    };
    if let Some(path) = config.accept_key_files.get(KEYS_MAX - 1) {
        let what = format!("a daemon has at most {KEYS_MAX} keys: name {} in accept_key_files", KEYS_MAX - 1);
        return Err(DaemonError::Key { path: path.clone(), what });
    }
    let further = config.accept_key_files.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    Ok(ClusterKeys::new(first, further))
}

/// The keys for people.
pub(crate) fn words(config: &Config, keys: &ClusterKeys) -> String {
    let names: Vec<String> = keys.accepted().map(ClusterKey::fingerprint).collect();
    let own = match config.key_file {
        Some(_) => "",
        None => " (no key_file: a key of this host's own, so another host reaches this one only with a copy of it)",
    };
    match &names[1..] {
        [] => format!("cluster key {}{own}: control links are encrypted with it", names[0]),
        further => {
            format!(
                "cluster key {}{own}: control links are encrypted with it; accepted too: {}",
                names[0],
                further.join(", ")
            )
        }
    }
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
    fn keys_of_several_files_are_read_and_their_number_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = |n: u8| {
            let path = dir.path().join(n.to_string());
            std::fs::write(&path, [n; 32]).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let mut config = Config::new([127, 0, 0, 1].into());
        config.key_file = Some(file(1));
        config.accept_key_files = vec![file(2), file(3)];
        let keys = read_all(&config, dir.path()).unwrap();
        let expected: Vec<_> = (1..4).map(|n| ClusterKey::new(vec![n; 32])).collect();
        assert_eq!(keys.accepted().cloned().collect::<Vec<_>>(), expected);
        let said = words(&config, &keys);
        assert!(expected.iter().all(|key| said.contains(&key.fingerprint())), "{said}");
        config.accept_key_files = (2..10).map(file).collect();
        assert!(read_all(&config, dir.path()).unwrap_err().to_string().contains("at most 8 keys"));
        config.accept_key_files = vec![dir.path().join("none")];
        assert!(read_all(&config, dir.path()).is_err());
        // Without a file there is the one beside the socket.
        config.key_file = None;
        config.accept_key_files.clear();
        read_or_create(dir.path()).unwrap();
        let keys = read_all(&config, dir.path()).unwrap();
        assert!(words(&config, &keys).contains("no key_file"));
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
