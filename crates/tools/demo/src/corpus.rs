//! The real files that the demo sends: those of a directory, or by default those of the Rust toolchain and of /usr. The
//! demo writes none of them and makes up no data.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use terminal::Failure;

/// Directory entries looked at, and their depth.
const WALK_ENTRIES_MAX: usize = 400_000;
const WALK_DEPTH_MAX: usize = 40;
/// Files sent at most.
const FILES_MAX: usize = 50_000;
/// Bytes of a run by default, and what small files are repeated for if there are fewer: the promise.
const DEFAULT_BYTES: u64 = 400_000_000;
const DEFAULT_BYTES_MIN: u64 = 200_000_000;
/// Largest file of the default choice: one giant would only measure a single connection at the end.
const DEFAULT_FILE_BYTES_MAX: u64 = 32 << 20;
/// Bytes that repeated files may add.
const REPEAT_BYTES_MAX: u64 = 4_000_000_000;
/// Bytes of a file hashed at once.
const HASH_BYTES: usize = 256 << 10;

/// A file to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// Its size when it was found; never 0.
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
    let mut walk = Walk { files: Vec::new(), file_bytes_max: u64::MAX, entries: 0, skipped: 0, deadline };
    let mut bytes_min = 0;
    if let Some(dir) = path {
        walk.descend(dir, 0).map_err(|e| Failure::Usage(format!("--path {}: {e}", dir.display())))?;
        corpus.files = walk.files;
        if walk.skipped > 0 {
            corpus.notes.push(format!("{} entries were left out: not readable, or too many", walk.skipped));
        }
        if corpus.files.is_empty() {
            return Err(Failure::Usage(format!("--path {}: no readable files in it", dir.display())));
        }
    } else {
        (walk.file_bytes_max, bytes_min) = (DEFAULT_FILE_BYTES_MAX, DEFAULT_BYTES_MIN);
        for root in default_roots() {
            // A root that this machine lacks adds nothing; that all are missing is checked below.
            let _ = walk.descend(&root, 0);
        }
        corpus.files = spread(walk.files, DEFAULT_BYTES);
        if corpus.files.is_empty() {
            return Err(Failure::Usage("no real files found in the usual places: name some with --path DIR".into()));
        }
    }
    if corpus.files.len() > FILES_MAX {
        corpus.notes.push(format!("only the first {FILES_MAX} of {} files are sent", corpus.files.len()));
        corpus.files.truncate(FILES_MAX);
    }
    repeat(&mut corpus, channels, bytes_min)?;
    Ok(corpus)
}

/// The Rust toolchain's files, then those of the system.
fn default_roots() -> Vec<PathBuf> {
    let sysroot =
        Command::new("rustc").args(["--print", "sysroot"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let sysroot = sysroot.ok().and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    let system = ["/usr/lib", "/usr/share", "/usr/bin"];
    [sysroot.trim()].into_iter().filter(|path| !path.is_empty()).chain(system).map(PathBuf::from).collect()
}

/// Takes about so many bytes of files, from everywhere alike: sizes are mixed as they are on this machine.
fn spread(mut files: Vec<SourceFile>, wanted: u64) -> Vec<SourceFile> {
    let all: u64 = files.iter().map(|file| file.bytes).sum();
    let (mut seen, mut taken) = (0, 0);
    files.retain(|file| {
        seen += file.bytes;
        let lags = u128::from(taken) * u128::from(all) < u128::from(seen) * u128::from(wanted);
        taken += if lags { file.bytes } else { 0 };
        lags
    });
    files
}

/// Fills `transfers`: every file once, then small files again until there are `channels` of them and `minimum` bytes.
fn repeat(corpus: &mut Corpus, channels: usize, minimum: u64) -> Result<(), Failure> {
    let distinct = corpus.files.len();
    let size = |i: u32| corpus.files.get(i as usize).map_or(0, |f| f.bytes);
    corpus.transfers = (0..distinct as u32).collect();
    let once: u64 = corpus.files.iter().map(|f| f.bytes).sum();
    corpus.bytes = once;
    let mut by_size = corpus.transfers.clone();
    by_size.sort_by_key(|&i| size(i));
    for &i in by_size.iter().cycle() {
        let enough = corpus.transfers.len() >= channels && corpus.bytes >= minimum;
        if enough || corpus.transfers.len() >= FILES_MAX.max(channels) {
            break;
        }
        corpus.bytes += size(i);
        corpus.transfers.push(i);
        if corpus.bytes - once > REPEAT_BYTES_MAX {
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

/// The SHA-256 of each file, computed from the file by as many threads as there are processors.
pub(crate) fn digests(files: &[SourceFile], deadline: Instant) -> Result<Vec<String>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let hash = |part: &[SourceFile]| part.iter().map(|file| digest(file, deadline)).collect::<Result<Vec<_>, _>>();
    std::thread::scope(|scope| {
        let parts = files.chunks(files.len().div_ceil(threads).max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || hash(part))).collect();
        let parts = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        parts.collect::<Result<Vec<_>, _>>().map(|parts| parts.concat())
    })
}

fn digest(file: &SourceFile, deadline: Instant) -> Result<String, String> {
    let read = || -> io::Result<String> {
        let mut hasher = Sha256::new();
        let (mut source, mut buffer) = (File::open(&file.path)?, vec![0; HASH_BYTES]);
        loop {
            if Instant::now() >= deadline {
                return Err(io::Error::other(crate::TIME_IS_UP));
            }
            match io::Read::read(&mut source, &mut buffer)? {
                0 => return Ok(hex(&hasher.finalize())),
                n => hasher.update(buffer.get(..n).unwrap_or_default()),
            }
        }
    };
    read().map_err(|e| format!("{}: {e}", file.path.display()))
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|b| format!("{b:02x}")).collect()
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
    /// Adds the regular files below `dir`, sorted by path; links are not followed.
    fn descend(&mut self, dir: &Path, depth: usize) -> io::Result<()> {
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
    fn files_of_every_size_are_taken_from_everywhere() {
        let mut files = Vec::new();
        for i in 0..400 {
            files.push(file(&format!("small{i}"), 100 + i % 20));
            files.push(file(&format!("large{i}"), 1_000_000 + i));
        }
        let chosen = spread(files.clone(), 20_000_000);
        let bytes: u64 = chosen.iter().map(|f| f.bytes).sum();
        assert!((19_000_000..22_000_000).contains(&bytes), "{bytes}");
        assert!(chosen.iter().any(|f| f.bytes < 200) && chosen.iter().any(|f| f.bytes >= 1_000_000));
        let last = chosen.last().unwrap().path.to_str().unwrap();
        assert!(last.ends_with("39") || last[5..].parse::<u32>().unwrap() > 350, "{last}");
        assert_eq!(spread(files.clone(), u64::MAX), files, "more than there is: everything");
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
    fn directories_are_walked_without_links_and_files_are_hashed() {
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
        let expected = ["12345", "678"].map(|text| hex(&Sha256::digest(text)));
        assert_eq!(digests(&corpus.files, soon()).unwrap(), expected);
        assert!(digests(&corpus.files, Instant::now()).unwrap_err().contains("--seconds-max"));
        std::fs::remove_file(dir.path().join("sub/b")).unwrap();
        assert!(digests(&corpus.files, soon()).unwrap_err().contains("sub/b"));
        for missing in [Path::new("/nonexistent/x"), &dir.path().join("a")] {
            assert!(matches!(choose(Some(missing), 1, soon()), Err(Failure::Usage(_))));
        }
    }
}
