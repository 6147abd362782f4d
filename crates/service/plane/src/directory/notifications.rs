//! Notifications: what writers tell the owner of a region, in order.
//!
//! Owns how many wait. It must never give an owner more at a time than it has room for.

use control::{RegionAccess, RegionRefusal, Reply};

use super::{Directory, DirectoryAction, Entry, Owner};
use crate::{ClientId, RegionCommand};

/// Notifications of one region that wait for its owner, at most.
pub(super) const NOTIFICATIONS_MAX: usize = 1024;

impl Directory {
    /// A program of this host wrote, and wants the owner told.
    pub(crate) fn handle_notify(&mut self, client: ClientId, request: u64, open: u64, tag: u32) {
        let region = self.programs.get(&client).and_then(|held| held.get(&open)).copied();
        let result = region.ok_or(RegionRefusal::Unknown).and_then(|region| {
            let entry = self.entries.get(&region).ok_or(RegionRefusal::OwnerGone)?;
            if let Some(handle) = entry.handles.get(open)
                && !handle.access.contains(RegionAccess::WRITE)
            {
                return Err(RegionRefusal::NoAccess { asked: RegionAccess::WRITE, allowed: handle.access });
            }
            self.notify(region, tag)
        });
        self.send(client, Reply::RegionNotifyTaken { request, result });
    }

    /// Puts a tag behind those that wait for the owner.
    pub(super) fn notify(&mut self, region: u64, tag: u32) -> Result<(), RegionRefusal> {
        let entry = self.entries.get_mut(&region).filter(|e| e.owner.is_some()).ok_or(RegionRefusal::OwnerGone)?;
        if entry.tags.len() >= NOTIFICATIONS_MAX {
            return Err(RegionRefusal::NotificationsFull { max: NOTIFICATIONS_MAX as u64 });
        }
        entry.tags.push_back((tag, false));
        self.pump_tags(region);
        Ok(())
    }

    /// The owner took notifications.
    pub(crate) fn handle_notifications_taken(&mut self, client: ClientId, open: u64, count: u32) {
        let Some(&region) = self.programs.get(&client).and_then(|held| held.get(&open)) else { return };
        let is_owners = |e: &&mut Entry| e.owner.is_some_and(|o| o.client == client && o.open == open);
        if let Some(entry) = self.entries.get_mut(&region).filter(is_owners) {
            let count = entry.untaken.len().min(count as usize);
            let remote = entry.untaken.drain(..count).filter(|is_remote| *is_remote).count();
            if let Some(count) = u32::try_from(remote).ok().filter(|count| *count > 0) {
                self.actions.push_back(DirectoryAction::Engine(RegionCommand::NotificationsTaken { region, count }));
            }
            self.pump_tags(region);
        }
    }

    pub(super) fn pump_tags(&mut self, region: u64) {
        let Some(entry) = self.entries.get_mut(&region) else { return };
        let Some(Owner { client, open, .. }) = entry.owner else { return };
        while entry.untaken.len() < control::NOTIFICATIONS_UNTAKEN_MAX as usize {
            let Some((tag, is_remote)) = entry.tags.pop_front() else { break };
            entry.untaken.push_back(is_remote);
            let reply = Reply::RegionNotification { open, tag };
            self.actions.push_back(DirectoryAction::Send { client, reply, memory: None });
        }
    }
}
