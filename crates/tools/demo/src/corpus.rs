//! The real files that the demo sends: those of a directory, or by default those of the Rust toolchain and of /usr, in
//! a mix of sizes. The demo writes none of them and makes up no data.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use terminal::Failure;

/// Directory entries looked at.
const WALK_ENTRIES_MAX: usize = 400_000;
/// Depth of directories looked at.
const WALK_DEPTH_MAX: usize = 40;
/// Files sent at most.
const FILES_MAX: usize = 50_000;
/// Bytes of a run by default; the promise is 200 MB.
const DEFAULT_BYTES: u64 = 400_000_000;
/// Largest file of the default choice: one giant would only measure a single connection at the end.
const DEFAULT_FILE_BYTES_MAX: u64 = 32 << 20;
/// Bytes that repeated files may add.
const REPEAT_BYTES_MAX: u64 = 4_000_000_000;
/// Size classes: powers of two.
const CLASSES: usize = 64;

/// A file to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceFile {
    /// Where.
    pub(crate) path: PathBuf,
    /// Its size when it was found.
    pub(crate) bytes: u64,
}

/// What will be sent.
#[derive(Debug, Default)]
pub(crate) struct Corpus {
    /// Distinct files.
    pub(crate) files: Vec<SourceFile>,
    /// Indices of files in `files`, one for each transfer: more than files when files are repeated.
    pub(crate) transfers: Vec<u32>,
    /// Sum over the transfers.
    pub(crate) bytes: u64,
    /// What a person should know about the choice.
    pub(crate) notes: Vec<String>,
}

/// Chooses at least one file for each of `channels` directions of connections.
pub(crate) fn choose(path: Option<&Path>, channels: usize, deadline: Instant) -> Result<Corpus, Failure> {
    let mut corpus = Corpus::default();
    match path {
        Some(dir) => {
            let mut walk = Walk::new(u64::MAX, deadline);
            walk.add(dir).map_err(|e| Failure::Usage(format!("--path {}: {e}", dir.display())))?;
            walk.note_what_was_left(&mut corpus.notes);
            corpus.files = walk.files;
            if corpus.files.len() > FILES_MAX {
                corpus.notes.push(format!("only the first {FILES_MAX} of {} files are sent", corpus.files.len()));
                corpus.files.truncate(FILES_MAX);
            }
            if corpus.files.is_empty() {
                return Err(Failure::Usage(format!("--path {}: no readable files in it", dir.display())));
            }
        }
        None => {
            let mut walk = Walk::new(DEFAULT_FILE_BYTES_MAX, deadline);
            for root in default_roots() {
                // A root that this machine lacks adds nothing; that all are missing is checked below.
                let _ = walk.add(&root);
            }
            corpus.files = mix(walk.files, DEFAULT_BYTES, channels);
            if corpus.files.is_empty() {
                return Err(Failure::Usage(
                    "no real files found in the usual places: name some with --path DIR".into(),
                ));
            }
        }
    }
    let minimum = if path.is_none() { DEFAULT_BYTES.min(200_000_000) } else { 0 };
    repeat(&mut corpus, channels, minimum)?;
    Ok(corpus)
}

/// The Rust toolchain's files, then those of the system.
fn default_roots() -> Vec<PathBuf> {
    let sysroot =
        Command::new("rustc").args(["--print", "sysroot"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let mut roots = Vec::new();
    if let Some(text) = sysroot.ok().and_then(|o| String::from_utf8(o.stdout).ok()) {
        roots.extend((!text.trim().is_empty()).then(|| PathBuf::from(text.trim())));
    }
    roots.extend(["/usr/lib", "/usr/share", "/usr/bin"].map(PathBuf::from));
    roots
}

/// Takes about the same number of bytes from each size class until there are `bytes_wanted` and `files_wanted`.
fn mix(files: Vec<SourceFile>, bytes_wanted: u64, files_wanted: usize) -> Vec<SourceFile> {
    let mut classes: Vec<Vec<SourceFile>> = vec![Vec::new(); CLASSES];
    for file in files.into_iter().rev() {
        let class = file.bytes.checked_ilog2().unwrap_or(0) as usize;
        if let Some(c) = classes.get_mut(class) {
            c.push(file);
        }
    }
    let used = classes.iter().filter(|c| !c.is_empty()).count().max(1);
    let mut quota_bytes = bytes_wanted / used as u64;
    let mut quota_files = files_wanted / used + 1;
    let mut taken = vec![(0u64, 0usize); CLASSES];
    let mut chosen = Vec::new();
    let mut bytes = 0;
    loop {
        for (class, (class_bytes, class_files)) in classes.iter_mut().zip(&mut taken).rev() {
            while *class_bytes < quota_bytes && *class_files < quota_files {
                let enough = bytes >= bytes_wanted && chosen.len() >= files_wanted;
                if enough || chosen.len() >= FILES_MAX {
                    return chosen;
                }
                let Some(file) = class.pop() else { break };
                *class_bytes += file.bytes;
                *class_files += 1;
                bytes += file.bytes;
                chosen.push(file);
            }
        }
        if classes.iter().all(Vec::is_empty) {
            return chosen;
        }
        quota_bytes = quota_bytes.saturating_mul(2).max(1);
        quota_files = quota_files.saturating_mul(2);
    }
}

/// Fills `transfers`: every file once, then small files again until there are `channels` of them and `minimum` bytes.
fn repeat(corpus: &mut Corpus, channels: usize, minimum: u64) -> Result<(), Failure> {
    let distinct = corpus.files.len();
    corpus.transfers = (0..u32::try_from(distinct).unwrap_or(u32::MAX)).collect();
    corpus.bytes = corpus.files.iter().map(|f| f.bytes).sum();
    let mut by_size = corpus.transfers.clone();
    let size = |files: &[SourceFile], i: u32| files.get(i as usize).map_or(0, |f| f.bytes);
    by_size.sort_by_key(|&i| size(&corpus.files, i));
    let mut added = 0u64;
    for &i in by_size.iter().cycle() {
        let enough = corpus.transfers.len() >= channels && corpus.bytes >= minimum;
        if enough || corpus.transfers.len() >= FILES_MAX.max(channels) {
            break;
        }
        added += size(&corpus.files, i);
        corpus.bytes += size(&corpus.files, i);
        corpus.transfers.push(i);
        if added > REPEAT_BYTES_MAX {
            return Err(Failure::Usage(format!(
                "{distinct} files are too few and too large for {channels} directions of connections, each of which \
                 carries one: use fewer --connections, or a --path with more files"
            )));
        }
    }
    let repeats = corpus.transfers.len() - distinct;
    if repeats > 0 {
        corpus.notes.push(format!("{distinct} distinct files: {repeats} of the transfers repeat one of them"));
    }
    Ok(())
}

/// Gathers files, bounded.
struct Walk {
    files: Vec<SourceFile>,
    file_bytes_max: u64,
    entries: usize,
    skipped: usize,
    deadline: Instant,
}

impl Walk {
    fn new(file_bytes_max: u64, deadline: Instant) -> Self {
        Self { files: Vec::new(), file_bytes_max, entries: 0, skipped: 0, deadline }
    }

    /// Adds the regular files below `root`, sorted by path; links are not followed.
    fn add(&mut self, root: &Path) -> std::io::Result<()> {
        if !std::fs::metadata(root)?.is_dir() {
            return Err(std::io::Error::other("not a directory"));
        }
        self.descend(root, 0)
    }

    fn descend(&mut self, dir: &Path, depth: usize) -> std::io::Result<()> {
        let mut entries: Vec<_> = std::fs::read_dir(dir)?.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            self.entries += 1;
            if self.entries > WALK_ENTRIES_MAX || Instant::now() >= self.deadline {
                self.skipped += 1;
                return Ok(());
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if depth >= WALK_DEPTH_MAX || self.descend(&entry.path(), depth + 1).is_err() {
                    self.skipped += 1;
                }
            } else if kind.is_file() {
                self.consider(entry.path(), entry.metadata().map_or(0, |m| m.len()));
            }
        }
        Ok(())
    }

    fn consider(&mut self, path: PathBuf, bytes: u64) {
        if bytes == 0 || bytes > self.file_bytes_max {
            return;
        }
        // Names travel as text between the demo's processes; and what cannot be opened cannot be sent.
        if path.to_str().is_none() || rustix::fs::access(&path, rustix::fs::Access::READ_OK).is_err() {
            self.skipped += 1;
            return;
        }
        self.files.push(SourceFile { path, bytes });
    }

    fn note_what_was_left(&self, notes: &mut Vec<String>) {
        if self.skipped > 0 {
            notes.push(format!("{} entries were left out: not readable, or too many", self.skipped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn file(name: &str, bytes: u64) -> SourceFile {
        SourceFile { path: name.into(), bytes }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn mix_takes_every_size_and_stops() {
        let mut files = Vec::new();
        for i in 0..400 {
            files.push(file(&format!("small{i}"), 100 + i % 20));
            files.push(file(&format!("large{i}"), 1_000_000 + i));
        }
        let chosen = mix(files.clone(), 20_000_000, 100);
        let bytes: u64 = chosen.iter().map(|f| f.bytes).sum();
        assert!((20_000_000..22_000_000).contains(&bytes), "{bytes}");
        assert!(chosen.len() >= 100);
        assert!(chosen.iter().any(|f| f.bytes < 200) && chosen.iter().any(|f| f.bytes >= 1_000_000));
        // More than there is: everything.
        assert_eq!(mix(files.clone(), u64::MAX, 1).len(), files.len());
    }

    #[test]
    fn few_files_are_repeated_smallest_first_and_said() {
        let mut corpus = Corpus { files: vec![file("big", 1000), file("small", 10)], ..Corpus::default() };
        repeat(&mut corpus, 5, 0).unwrap();
        assert_eq!(corpus.transfers, [0, 1, 1, 0, 1]);
        assert_eq!(corpus.bytes, 1000 + 10 + 10 + 1000 + 10);
        assert!(corpus.notes[0].contains("3 of the transfers repeat"));
        let mut giant = Corpus { files: vec![file("giant", 3_000_000_000)], ..Corpus::default() };
        assert!(matches!(repeat(&mut giant, 1000, 0), Err(Failure::Usage(_))));
    }

    #[test]
    fn directories_are_walked_without_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("a"), b"12345").unwrap();
        std::fs::write(dir.path().join("sub/b"), b"678").unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let corpus = choose(Some(dir.path()), 2, soon()).unwrap();
        let names: Vec<_> =
            corpus.files.iter().map(|f| (f.path.file_name().unwrap().to_str().unwrap(), f.bytes)).collect();
        assert_eq!(names, [("a", 5), ("b", 3)]);
        assert_eq!(corpus.bytes, 8);
        assert!(corpus.notes.is_empty());
        let missing = choose(Some(Path::new("/nonexistent/x")), 1, soon());
        assert!(matches!(missing, Err(Failure::Usage(_))));
    }
}
