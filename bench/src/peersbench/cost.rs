//! What processes cost by the kernel's word: processor time, and how often they were put on a processor.

use std::fs::read_to_string;

use anyhow::{Context, Result};

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Used {
    pub(crate) seconds: f64,
    /// Times that one of its threads was put on a processor.
    pub(crate) runs: f64,
}

impl Used {
    /// Of all threads of a process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let mut used = Self::default();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("a daemon's threads")?.flatten() {
            let text = read_to_string(task.path().join("schedstat"))?;
            used = used + Self::parse(&text).with_context(|| format!("schedstat says {text}"))?;
        }
        Ok(used)
    }

    /// Of several processes together.
    pub(crate) fn of_all(pids: impl Iterator<Item = u32>) -> Result<Self> {
        pids.map(Self::of).try_fold(Self::default(), |sum, one| Ok(sum + one?))
    }

    /// Nanoseconds on a processor, nanoseconds in a queue for one, and times on one.
    fn parse(schedstat: &str) -> Option<Self> {
        let words: Vec<f64> = schedstat.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { seconds: words.first()? / 1e9, runs: *words.get(2)? })
    }
}

impl std::ops::Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { seconds: self.seconds + other.seconds, runs: self.runs + other.runs }
    }
}

impl std::ops::Sub for Used {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { seconds: self.seconds - other.seconds, runs: self.runs - other.runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_word_is_read() -> Result<()> {
        assert_eq!(Used::parse("2500000000 7 12\n"), Some(Used { seconds: 2.5, runs: 12.0 }));
        assert_eq!(Used::parse("1 2"), None);
        assert!(Used::of_all([std::process::id(); 2].into_iter())?.runs >= 2.0);
        Ok(())
    }
}
