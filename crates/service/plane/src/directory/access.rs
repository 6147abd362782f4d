//! Who may open what, and how many handles there may be.
//!
//! Owns what a refusal tells: nobody learns from one that another user's private region is there. Counts each handle of a
//! program, and of its user, once.

use std::collections::BTreeMap;

use control::{RegionAccess, RegionKey, RegionRefusal};
use subtle::ConstantTimeEq;

use super::leases::Lessee;
use super::{Directory, Entry, RegionWish, check_name, too_many};
use crate::{ClientId, NoPlace, Party};

impl Directory {
    pub(super) fn check_open(&self, party: Party, asker: Lessee, wish: &RegionWish) -> Result<u64, RegionRefusal> {
        let (region, entry, allowed) = match wish.lease {
            Some(lease) => self.leased(lease, asker, &wish.key)?,
            None => {
                let (region, entry) = self.known(party.uid, &wish.name, &wish.key)?;
                (region, entry, entry.opened_access())
            }
        };
        if !self.may_see(party.uid, entry) {
            return Err(RegionRefusal::OtherUser { uid: entry.uid });
        }
        let asked = wish.access;
        if entry.spec.single_writer && asked.changes() {
            return Err(RegionRefusal::SingleWriter);
        }
        if asked == RegionAccess::NONE || !allowed.contains(asked) {
            return Err(RegionRefusal::NoAccess { asked, allowed });
        }
        // Those of other hosts' programs are counted by host.
        if matches!(asker, Lessee::Program(_)) {
            self.check_handles(party)?;
        }
        Ok(region)
    }

    /// The region of a name, if the key is its own. Without the key nobody learns the name of a region that
    /// [`Self::rows`] does not show him.
    pub(super) fn known(&self, uid: u32, name: &str, key: &RegionKey) -> Result<(u64, &Entry), RegionRefusal> {
        check_name(name)?;
        let region = *self.names.get(name).ok_or(RegionRefusal::Unknown)?;
        let entry = self.entries.get(&region).ok_or(RegionRefusal::Unknown)?;
        if bool::from(entry.spec.key.as_bytes().ct_eq(key.as_bytes())) {
            Ok((region, entry))
        } else if self.may_see(uid, entry) {
            Err(RegionRefusal::WrongKey)
        } else {
            Err(RegionRefusal::Unknown)
        }
    }

    pub(super) fn may_see(&self, uid: u32, entry: &Entry) -> bool {
        entry.spec.other_users || self.may_act_for(uid, entry.uid)
    }

    pub(super) fn check_handles(&self, party: Party) -> Result<(), RegionRefusal> {
        let used = self.programs.get(&party.client).map_or(0, BTreeMap::len) as u64;
        if used >= u64::from(self.config.handles_per_app_max) {
            return Err(too_many("handles of this program", self.config.handles_per_app_max));
        }
        self.user_handles.check(party.uid, 1).map_err(|NoPlace { of, used, max }| {
            let whose = if of.is_some() { "user" } else { "host" };
            RegionRefusal::TooMany { what: format!("handles of this {whose}"), used, max }
        })
    }

    /// Counts a handle, for which there was room.
    pub(super) fn add_handle(&mut self, Party { client, uid, .. }: Party, open: u64, region: u64) {
        if self.user_handles.try_take(uid, 1).is_ok() {
            self.uids.insert(client, uid);
            self.programs.entry(client).or_default().insert(open, region);
        }
    }

    /// So many handles of a program are gone.
    pub(super) fn give_back_handles(&mut self, client: ClientId, count: usize) {
        if let Some(&uid) = self.uids.get(&client) {
            self.user_handles.give_back(uid, count as u64);
        }
        if !self.programs.contains_key(&client) {
            self.uids.remove(&client);
        }
    }

    pub(super) fn may_act_for(&self, uid: u32, of: u32) -> bool {
        uid == of || uid == 0 || uid == self.config.owner_uid
    }
}
