//! What tools see of regions, and what is counted of them.
//!
//! Owns nothing. It must never show a key.

use std::collections::BTreeMap;

use control::RegionRow;

use super::{Directory, Entry};

impl Directory {
    /// Regions from number `from` on that a user may see, at most `looks` of them are looked at; `None` sees all. The
    /// number to go on from, if there are more.
    pub fn rows(&self, uid: Option<u32>, from: u64, looks: usize) -> (Vec<(u64, RegionRow)>, Option<u64>) {
        let mut rest = self.entries.range(from..);
        let seen = |entry: &Entry| uid.is_none_or(|uid| uid == entry.uid || entry.spec.other_users);
        let rows = rest.by_ref().take(looks).filter(|(_, e)| seen(e)).map(|(&region, e)| (region, row_of(region, e)));
        let rows = rows.collect();
        (rows, rest.next().map(|(&region, _)| region))
    }

    /// Bytes of the regions that programs of a tenant made.
    pub fn bytes_of_tenant(&self, tenant: &str) -> u64 {
        self.shares.bytes_of_tenant(tenant)
    }

    /// Regions, handles, and stamp words in use: all zero when nobody has anything.
    pub fn in_use(&self) -> (usize, usize, usize) {
        (self.entries.len(), self.programs.values().map(BTreeMap::len).sum(), self.stamps.in_use())
    }

    /// Handles that are counted for users.
    pub fn places_taken(&self) -> u64 {
        self.user_handles.taken()
    }
}

fn row_of(region: u64, entry: &Entry) -> RegionRow {
    let spec = &entry.spec;
    RegionRow {
        name: spec.name.clone(),
        region,
        bytes: spec.bytes,
        epoch: entry.epoch,
        owner_pid: entry.owner.map(|owner| owner.pid),
        uid: entry.uid,
        access: spec.access,
        opens: entry.handles.count(),
        remote_opens: entry.remote.values().sum(),
        huge_pages: spec.huge_pages,
        outlives: spec.outlives,
        other_users: spec.other_users,
        single_writer: spec.single_writer,
        term: entry.term,
        writer: entry.writer.as_ref().map(ToString::to_string),
    }
}
