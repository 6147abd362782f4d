//! What a process costs by the kernel's word: anonymous memory, page tables, its share of shared memory, descriptors.
//! Reads /proc only.

use std::fs::read_to_string;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What a process has, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Held {
    anonymous: f64,
    page_tables: f64,
    /// Its proportional share: a page that two processes map counts half.
    shared: f64,
    descriptors: f64,
}

/// The same for one of many connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    anonymous: f64,
    page_tables: f64,
    shared: f64,
    pub(super) descriptors: f64,
}

/// What process `pid` has now.
pub(super) fn of(pid: u32) -> Result<Held> {
    let rollup = read_to_string(format!("/proc/{pid}/smaps_rollup")).context("a daemon's memory")?;
    let status = read_to_string(format!("/proc/{pid}/status"))?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64;
    let bytes = |text: &str, name: &str| kibibytes(text, name).map(|k| k * 1024.0).with_context(|| name.to_owned());
    Ok(Held {
        anonymous: bytes(&rollup, "Pss_Anon:")?,
        shared: bytes(&rollup, "Pss_Shmem:")?,
        page_tables: bytes(&status, "VmPTE:")?,
        descriptors,
    })
}

impl Held {
    /// All memory.
    pub(super) fn bytes(&self) -> f64 {
        self.anonymous + self.page_tables + self.shared
    }

    /// What each of `count` connections added.
    pub(super) fn since(&self, before: &Self, count: u32) -> Cost {
        let each = |after: f64, before: f64| (after - before) / f64::from(count);
        Cost {
            anonymous: each(self.anonymous, before.anonymous),
            page_tables: each(self.page_tables, before.page_tables),
            shared: each(self.shared, before.shared),
            descriptors: each(self.descriptors, before.descriptors),
        }
    }
}

impl Cost {
    /// All memory.
    pub(super) fn bytes(&self) -> f64 {
        self.anonymous + self.page_tables + self.shared
    }

    /// The parts.
    pub(super) fn to_json(self) -> Value {
        json!({
            "anonymous_bytes": self.anonymous, "page_table_bytes": self.page_tables, "ring_share_bytes": self.shared,
            "descriptors": self.descriptors,
        })
    }
}

fn kibibytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_seen_and_shared_out() -> Result<()> {
        let now = of(std::process::id())?;
        assert!(now.anonymous > 0.0 && now.page_tables > 0.0 && now.descriptors >= 3.0, "{now:?}");
        let more = Held { anonymous: now.anonymous + 4096.0, shared: now.shared + 8192.0, ..now };
        assert_eq!(more.since(&now, 2).bytes(), 6144.0);
        Ok(())
    }
}
