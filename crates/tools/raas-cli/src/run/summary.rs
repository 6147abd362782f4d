//! `raas run --summary`: a file in which all processes of the program count their connections, and the line at the end.
//!
//! Owns the file, whose layout is that of the library (`raas-preload`, `summary`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use control::Reason;
use tempfile::NamedTempFile;

const PATHS: [&str; 3] = ["shm", "lane", "tcp"];
const REASONS: usize = 128;

pub(super) struct Summary(NamedTempFile);

impl Summary {
    pub(super) fn new() -> io::Result<Self> {
        let file = NamedTempFile::with_prefix("raas-run-")?;
        file.as_file().set_len((PATHS.len() * REASONS * size_of::<u32>()) as u64)?;
        Ok(Self(file))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn words(&self) -> io::Result<String> {
        Ok(line(&std::fs::read(self.0.path())?))
    }
}

/// `52 connections: 50 shm, 2 tcp: not-met`.
fn line(bytes: &[u8]) -> String {
    let counts: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect();
    let mut total = 0u64;
    let mut parts = Vec::new();
    for (path, counts) in PATHS.iter().zip(counts.chunks(REASONS)) {
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for (code, count) in (0..).zip(counts).filter(|(_, count)| **count > 0) {
            *reasons.entry(Reason::from_code(code).key()).or_default() += u64::from(*count);
        }
        total += reasons.values().sum::<u64>();
        // Shared memory and lanes have one reason each, which the path says already.
        if *path != "tcp" {
            let count: u64 = reasons.values().sum();
            parts.extend((count > 0).then(|| format!("{count} {path}")));
        } else {
            parts.extend(reasons.iter().map(|(reason, count)| format!("{count} tcp: {reason}")));
        }
    }
    let noun = if total == 1 { "connection" } else { "connections" };
    if parts.is_empty() { format!("{total} {noun}") } else { format!("{total} {noun}: {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_by_path_and_reason() {
        let mut counts = vec![0u32; PATHS.len() * REASONS];
        let told = |counts: &[u32]| line(&counts.iter().flat_map(|count| count.to_ne_bytes()).collect::<Vec<_>>());
        assert_eq!(told(&counts), "0 connections");
        counts[Reason::SameHost.code() as usize] = 50;
        counts[2 * REASONS + Reason::NotMet.code() as usize] = 2;
        assert_eq!(told(&counts), "52 connections: 50 shm, 2 tcp: not-met");
        counts[REASONS + Reason::OtherHost.code() as usize] = 1;
        counts[2 * REASONS + Reason::ForeignSocket.code() as usize] = 3;
        assert_eq!(told(&counts), "56 connections: 50 shm, 1 lane, 3 tcp: foreign-socket, 2 tcp: not-met");
    }

    #[test]
    fn every_reason_has_a_place() {
        assert!(Reason::ALL.iter().all(|reason| (reason.code() as usize) < REASONS));
    }
}
