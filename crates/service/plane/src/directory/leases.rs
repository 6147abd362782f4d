//! Leases: second keys of regions, for reading alone, which the lenders of messages by reference give to the other ends
//! of their connections.
//!
//! Owns who may open a region by which lease, and how many handles are open by it. It must tell a lender that a lease
//! is over only when nobody can look at the region by it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use control::{RegionAccess, RegionKey, RegionRefusal, Reply};
use subtle::ConstantTimeEq;

use super::{Directory, DirectoryConfig, Entry, Stage, too_many};
use crate::ClientId;
use crate::user_places::{NoPlace, UserPlaces};

/// For whom a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lessee {
    /// A program of this host.
    Program(ClientId),
    /// A program of another host that has the key.
    Host(IpAddr),
}

/// A lease.
#[derive(Debug)]
pub(super) struct Lease {
    key: RegionKey,
    lender: ClientId,
    /// The lender's handle.
    open: u64,
    to: Lessee,
    /// Handles that are open by it.
    handles: u32,
    /// Nothing more is opened by it.
    is_ended: bool,
    /// Loans that were given back and that the lender is to be told of.
    back: u64,
    /// The lender was told of some, and has not said that it followed.
    is_told: bool,
}

/// Where leases are found.
#[derive(Debug)]
pub(super) struct Leases {
    /// Their regions, and the users of their lenders.
    regions: BTreeMap<u64, (u64, u32)>,
    /// As many as of handles.
    users: UserPlaces,
    of_lender: BTreeMap<ClientId, BTreeSet<u64>>,
    last: u64,
}

impl Leases {
    pub(super) fn new(config: &DirectoryConfig) -> Self {
        let users = UserPlaces::new(config.handles_max, config.handles_per_user_max, config.owner_uid);
        Self { regions: BTreeMap::new(), users, of_lender: BTreeMap::new(), last: 0 }
    }

    pub(super) fn begin_after(&mut self, number: u64) {
        self.last = number;
    }

    fn forget(&mut self, lender: ClientId, lease: u64) {
        if let Some((_, uid)) = self.regions.remove(&lease) {
            self.users.give_back(uid, 1);
        }
        if let Some(all) = self.of_lender.get_mut(&lender) {
            all.remove(&lease);
            if all.is_empty() {
                self.of_lender.remove(&lender);
            }
        }
    }
}

impl Entry {
    /// A handle was opened by a lease.
    pub(super) fn open_by_lease(&mut self, lease: Option<u64>) {
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.handles += 1;
        }
    }
}

impl Directory {
    /// A program lends a region. `to`: whoever is at the other end of its connection, of which the number is given.
    pub(crate) fn handle_lend(
        &mut self,
        client: ClientId,
        request: u64,
        open: u64,
        (connection, to): (u64, Option<Lessee>),
        key: RegionKey,
    ) {
        let to = to.ok_or(RegionRefusal::NoConnection { connection });
        let result = to.and_then(|to| self.lend(client, open, to, key));
        self.send(client, Reply::RegionLent { request, result });
    }

    fn lend(&mut self, client: ClientId, open: u64, to: Lessee, key: RegionKey) -> Result<u64, RegionRefusal> {
        let region = self.programs.get(&client).and_then(|held| held.get(&open)).copied();
        let region = region.ok_or(RegionRefusal::Unknown)?;
        let used = self.leases.of_lender.get(&client).map_or(0, BTreeSet::len) as u64;
        if used >= u64::from(self.config.handles_per_app_max) {
            return Err(too_many("leases of this program", self.config.handles_per_app_max));
        }
        let entry = self.entries.get_mut(&region).ok_or(RegionRefusal::OwnerGone)?;
        if let Some(handle) = entry.handles.get(open)
            && !handle.access.contains(RegionAccess::READ)
        {
            return Err(RegionRefusal::NoAccess { asked: RegionAccess::READ, allowed: handle.access });
        }
        // A device registers a region for all hosts with what its owner chose.
        let (asked, allowed) = (RegionAccess::READ, entry.spec.access);
        if matches!(to, Lessee::Host(_)) && !allowed.contains(asked) {
            return Err(RegionRefusal::NoAccess { asked, allowed });
        }
        if !matches!(entry.stage, Stage::Live) {
            return Err(RegionRefusal::Busy);
        }
        // Who has a handle has a user.
        let uid = self.uids.get(&client).copied().ok_or(RegionRefusal::Unknown)?;
        self.leases.users.try_take(uid, 1).map_err(|NoPlace { of, used, max }| {
            let whose = if of.is_some() { "user" } else { "host" };
            RegionRefusal::TooMany { what: format!("leases of this {whose}"), used, max }
        })?;
        self.leases.last += 1;
        let lease = self.leases.last;
        let kept = Lease { key, lender: client, open, to, handles: 0, is_ended: false, back: 0, is_told: false };
        entry.leases.insert(lease, kept);
        self.leases.regions.insert(lease, (region, uid));
        self.leases.of_lender.entry(client).or_default().insert(lease);
        Ok(lease)
    }

    /// The region of a lease, if it is for the asker and the key is its own, and what may be done by it.
    pub(super) fn leased(
        &self,
        lease: u64,
        asker: Lessee,
        key: &RegionKey,
    ) -> Result<(u64, &Entry, RegionAccess), RegionRefusal> {
        let over = RegionRefusal::LeaseOver { lease };
        let Some(&(region, _)) = self.leases.regions.get(&lease) else { return Err(over) };
        let Some(entry) = self.entries.get(&region) else { return Err(over) };
        match entry.leases.get(&lease) {
            Some(kept) if kept.is_for(asker, key) && !kept.is_ended => Ok((region, entry, RegionAccess::READ)),
            _ => Err(over),
        }
    }

    /// The lender needs a lease no more.
    pub(crate) fn handle_unlend(&mut self, client: ClientId, lease: u64) {
        let Some((region, kept)) = self.lease_of(lease).filter(|(_, kept)| kept.lender == client) else { return };
        kept.is_ended = true;
        self.end_if_unused(region, lease);
    }

    /// Nothing more is opened by what is lent to a host: it is gone.
    pub(super) fn end_leases_to(&mut self, peer: IpAddr) {
        let mut over = Vec::new();
        for (&region, entry) in &mut self.entries {
            for (&lease, kept) in entry.leases.iter_mut().filter(|(_, kept)| kept.to == Lessee::Host(peer)) {
                kept.is_ended = true;
                over.push((region, lease));
            }
        }
        over.into_iter().for_each(|(region, lease)| self.end_if_unused(region, lease));
    }

    /// A handle that was opened by a lease is closed.
    pub(super) fn close_by_lease(&mut self, region: u64, lease: u64) {
        if let Some((_, kept)) = self.lease_of(lease) {
            kept.handles = kept.handles.saturating_sub(1);
        }
        self.end_if_unused(region, lease);
    }

    fn end_if_unused(&mut self, region: u64, lease: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        if entry.leases.get(&lease).is_some_and(|kept| kept.is_ended && kept.handles == 0)
            && let Some(kept) = entry.leases.remove(&lease)
        {
            self.end_leases(BTreeMap::from([(lease, kept)]));
        }
    }

    /// Leases that are in no table of a region any more: their lenders are told.
    pub(super) fn end_leases(&mut self, leases: BTreeMap<u64, Lease>) {
        for (lease, Lease { lender, open, .. }) in leases {
            self.leases.forget(lender, lease);
            self.send(lender, Reply::RegionLeaseOver { open, lease });
        }
    }

    /// A lender's handle is closed, or all of its handles to a region are: nobody is to be told of its leases.
    pub(super) fn end_leases_of(&mut self, region: u64, lender: ClientId, open: Option<u64>) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let is_its = |kept: &Lease| kept.lender == lender && open.is_none_or(|open| kept.open == open);
        let over: Vec<u64> = entry.leases.iter().filter(|(_, kept)| is_its(kept)).map(|(&lease, _)| lease).collect();
        for lease in over {
            entry.leases.remove(&lease);
            self.leases.forget(lender, lease);
        }
    }

    /// A program, or one of another host, gave slices back.
    pub(crate) fn handle_loans_back(&mut self, from: Lessee, lease: u64, key: &RegionKey, loans: u64) {
        if let Some((_, kept)) = self.lease_of(lease).filter(|(_, kept)| kept.is_for(from, key)) {
            kept.back |= loans;
            self.tell_loans_back(lease);
        }
    }

    /// The lender has followed what it was told of a lease.
    pub(crate) fn handle_loans_taken(&mut self, client: ClientId, lease: u64) {
        if let Some((_, kept)) = self.lease_of(lease).filter(|(_, kept)| kept.lender == client) {
            kept.is_told = false;
            self.tell_loans_back(lease);
        }
    }

    /// One message at a time is under way to a lender, so that nobody can fill its socket by giving back.
    fn tell_loans_back(&mut self, lease: u64) {
        if let Some((_, kept)) = self.lease_of(lease)
            && kept.back != 0
            && !kept.is_told
        {
            kept.is_told = true;
            let (lender, open, loans) = (kept.lender, kept.open, std::mem::take(&mut kept.back));
            self.send(lender, Reply::RegionLoansBack { open, lease, loans });
        }
    }

    /// Leases that are not over, and programs that have lent.
    pub fn leases_in_use(&self) -> (usize, usize) {
        (self.leases.regions.len(), self.leases.of_lender.len())
    }

    fn lease_of(&mut self, lease: u64) -> Option<(u64, &mut Lease)> {
        let (region, _) = *self.leases.regions.get(&lease)?;
        Some((region, self.entries.get_mut(&region)?.leases.get_mut(&lease)?))
    }
}

impl Lease {
    fn is_for(&self, asker: Lessee, key: &RegionKey) -> bool {
        self.to == asker && bool::from(self.key.as_bytes().ct_eq(key.as_bytes()))
    }
}
