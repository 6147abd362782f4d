//! What each user's programs carried, as counts that never fall though programs end.
//!
//! Owns the names of users that have a series of their own: the first [`TENANTS_MAX`] that were seen. All others are one
//! sum, so that nobody can make series without end. What a program carried after the last look before its end is not
//! counted.

use std::collections::BTreeMap;

use control::Stat;

/// Users with counts of their own.
pub const TENANTS_MAX: usize = 64;

/// Counts of a user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Programs now.
    pub programs: u64,
    /// Their connections now.
    pub connections: u64,
    /// Registered bytes now.
    pub pinned_bytes: u64,
    /// Bytes sent, through lanes and to programs of the host, since the first look.
    pub tx_bytes: u64,
    /// Received.
    pub rx_bytes: u64,
    /// Operations on regions of other hosts that were begun.
    pub operations: u64,
}

/// What a session had carried at the last look.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    tx_bytes: u64,
    rx_bytes: u64,
    operations: u64,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Tenants {
    by_uid: BTreeMap<u32, Tenant>,
    other: Tenant,
    sessions: BTreeMap<u64, Seen>,
    uptime_seconds: u64,
}

impl Tenants {
    /// Takes a look in.
    pub fn update(&mut self, stat: &Stat) {
        if stat.uptime_seconds < self.uptime_seconds {
            // A new daemon counts its sessions anew.
            self.sessions.clear();
        }
        self.uptime_seconds = stat.uptime_seconds;
        for tenant in self.by_uid.values_mut().chain([&mut self.other]) {
            (tenant.programs, tenant.connections, tenant.pinned_bytes) = (0, 0, 0);
        }
        let before = std::mem::take(&mut self.sessions);
        for app in &stat.apps {
            let is = Seen {
                tx_bytes: app.tx_bytes,
                rx_bytes: app.rx_bytes,
                operations: app.reads + app.writes + app.atomics,
            };
            let was = before.get(&app.session).copied().unwrap_or_default();
            self.sessions.insert(app.session, is);
            let has_room = self.by_uid.len() < TENANTS_MAX;
            let tenant = match self.by_uid.entry(app.uid) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) if has_room => new.insert(Tenant::default()),
                std::collections::btree_map::Entry::Vacant(_) => &mut self.other,
            };
            tenant.programs += 1;
            tenant.connections += u64::from(app.connections);
            tenant.pinned_bytes += app.pinned_bytes;
            tenant.tx_bytes += is.tx_bytes.saturating_sub(was.tx_bytes);
            tenant.rx_bytes += is.rx_bytes.saturating_sub(was.rx_bytes);
            tenant.operations += is.operations.saturating_sub(was.operations);
        }
    }

    /// Each user by its number, and `other` if there were more users than have series.
    pub fn rows(&self) -> impl Iterator<Item = (String, Tenant)> + '_ {
        let other = (self.other != Tenant::default()).then(|| ("other".to_owned(), self.other));
        self.by_uid.iter().map(|(uid, tenant)| (uid.to_string(), *tenant)).chain(other)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::rates::tests::{app, sample};

    fn row(tenants: &Tenants, name: &str) -> Tenant {
        tenants.rows().find(|(n, _)| n == name).map(|(_, t)| t).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn counts_do_not_fall_when_programs_end_or_daemons_start_anew() {
        let mut stat = sample(Instant::now()).stat;
        let mut tenants = Tenants::default();
        stat.apps = vec![app(1, 7, 100), app(2, 7, 10)];
        tenants.update(&stat);
        stat.apps = vec![app(2, 7, 30), app(3, 7, 5)];
        tenants.update(&stat);
        let seven = row(&tenants, "7");
        assert_eq!((seven.tx_bytes, seven.programs, seven.connections), (135, 2, 2));
        stat.apps.clear();
        tenants.update(&stat);
        assert_eq!((row(&tenants, "7").tx_bytes, row(&tenants, "7").programs), (135, 0));
        stat.uptime_seconds = 0;
        stat.apps = vec![app(1, 7, 1)];
        tenants.update(&stat);
        assert_eq!(row(&tenants, "7").tx_bytes, 136);
    }

    #[test]
    fn users_beyond_the_limit_are_one_sum() {
        let mut stat = sample(Instant::now()).stat;
        let users = TENANTS_MAX as u32 + 10;
        stat.apps = (0..users).map(|uid| app(u64::from(uid), uid, 1)).collect();
        let mut tenants = Tenants::default();
        tenants.update(&stat);
        tenants.update(&stat);
        assert_eq!(tenants.rows().count(), TENANTS_MAX + 1);
        assert_eq!((row(&tenants, "other").tx_bytes, row(&tenants, "other").programs), (10, 10));
        assert_eq!(tenants.rows().map(|(_, t)| t.tx_bytes).sum::<u64>(), u64::from(users));
    }
}
