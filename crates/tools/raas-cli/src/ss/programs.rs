//! The names that programs gave themselves, by process.
//!
//! Owns nothing else. A process with several sessions may have several names.

use std::collections::BTreeMap;

use control::AppRow;

/// The names of all sessions of each process.
#[derive(Debug, Default)]
pub(crate) struct Programs(BTreeMap<u32, String>);

impl Programs {
    pub(crate) fn of(apps: &[AppRow]) -> Self {
        let mut names: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for app in apps {
            names.entry(app.pid).or_default().push(&app.name);
        }
        let joined = names.into_iter().map(|(pid, mut names)| {
            names.sort_unstable();
            names.dedup();
            (pid, names.join(", "))
        });
        Self(joined.collect())
    }

    /// None if the program ended between two questions to the daemon.
    pub(crate) fn name(&self, pid: u32) -> Option<&str> {
        self.0.get(&pid).map(String::as_str)
    }

    pub(crate) fn cell(&self, pid: u32) -> String {
        self.name(pid).unwrap_or("-").to_owned()
    }
}
