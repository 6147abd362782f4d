//! What happened, one line an event: always hashed, written down only when asked for.
//!
//! Owns the hash that shows whether two runs of a seed were the same. It must never influence a run: a seed that failed
//! is simply run again with the trace switched on.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use verbs::Time;

/// The hash of a run, and its file if there is one.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: u64,
    file: Option<BufWriter<File>>,
}

impl Trace {
    /// Hashes only.
    pub fn silent() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: 0, file: None }
    }

    /// Hashes, and writes each line to `path`, whose folder is made.
    pub fn to_file(path: &Path) -> std::io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(Self { file: Some(BufWriter::new(File::create(path)?)), ..Self::silent() })
    }

    /// Where the trace of a seed goes: `sim/seed-N.trace` under Cargo's target directory.
    pub fn path(seed: u64) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        target.join("sim").join(format!("seed-{seed}.trace"))
    }

    /// The hash of all lines so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Lines so far.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// One event: `form` with a `{}` for each of `values`. The hash covers both.
    pub fn note(&mut self, now: Time, form: &str, values: &[u64]) {
        self.lines += 1;
        self.eat(now.as_nanos());
        for chunk in form.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.eat(u64::from_le_bytes(bytes));
        }
        values.iter().for_each(|v| self.eat(*v));
        if self.file.is_some() {
            let mut values = values.iter();
            let mut line = String::new();
            for (i, part) in form.split("{}").enumerate() {
                if i > 0 {
                    line += &values.next().map_or_else(|| "?".to_owned(), u64::to_string);
                }
                line += part;
            }
            self.write(now, &line);
        }
    }

    /// Words for a reader of the file, which the hash does not cover.
    pub fn text(&mut self, now: Time, words: impl FnOnce() -> String) {
        if self.file.is_some() {
            let words = words();
            self.write(now, &words);
        }
    }

    fn write(&mut self, now: Time, line: &str) {
        let Some(file) = &mut self.file else { return };
        let ns = now.as_nanos();
        // A trace that cannot be written must not change the run; the file then ends early.
        if writeln!(file, "{:4}.{:09} {line}", ns / 1_000_000_000, ns % 1_000_000_000).is_err() {
            self.file = None;
        }
    }

    fn eat(&mut self, value: u64) {
        self.hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tells_values_forms_and_times_apart() {
        let hash = |now: u64, form: &str, values: &[u64]| {
            let mut trace = Trace::silent();
            trace.note(Time(now), form, values);
            trace.hash()
        };
        let base = hash(1, "a {} {}", &[1, 2]);
        assert_eq!(base, hash(1, "a {} {}", &[1, 2]));
        for other in [hash(2, "a {} {}", &[1, 2]), hash(1, "b {} {}", &[1, 2]), hash(1, "a {} {}", &[2, 1])] {
            assert_ne!(base, other);
        }
    }
}
