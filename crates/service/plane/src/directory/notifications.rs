//! Notifications: which programs may have the owner of a region told, and where the owner is told.
//!
//! Owns the checks. It must never carry a notification: the engine does that (docs/inside/shared-memory.md).

use control::{RegionAccess, RegionRefusal, Reply};
use shm::Notice;

use super::{Directory, DirectoryAction};
use crate::{ClientId, ProgramCommand};

impl Directory {
    /// A program of this host wrote, and wants the owner told. An error says that it broke the rules.
    pub(crate) fn handle_notify(
        &mut self,
        client: ClientId,
        request: u64,
        open: u64,
        notice: Notice,
    ) -> Result<(), String> {
        let region = self.programs.get(&client).and_then(|held| held.get(&open)).copied();
        let entry = region.and_then(|region| self.entries.get(&region));
        if let Some(bytes) = entry.map(|entry| entry.spec.bytes)
            && notice.offset.checked_add(notice.bytes).is_none_or(|end| end > bytes)
        {
            let Notice { offset, bytes: count, .. } = notice;
            return Err(format!("it told of {count} bytes at offset {offset} of a region of {bytes}"));
        }
        let result = match (region, entry) {
            (None, _) => Err(RegionRefusal::Unknown),
            (_, None) => Err(RegionRefusal::OwnerGone),
            (_, Some(entry)) if entry.owner.is_none() => Err(RegionRefusal::OwnerGone),
            (Some(region), Some(entry)) => match entry.handles.get(open) {
                Some(handle) if !handle.access.contains(RegionAccess::WRITE) => {
                    Err(RegionRefusal::NoAccess { asked: RegionAccess::WRITE, allowed: handle.access })
                }
                _ => Ok(region),
            },
        };
        match result {
            Ok(region) => {
                let command = ProgramCommand::Notify { request, region, notice };
                self.actions.push_back(DirectoryAction::Program { client, command });
            }
            Err(why) => self.send(client, Reply::RegionNotifyTaken { request, result: Err(why) }),
        }
        Ok(())
    }

    /// The owner has a queue for them.
    pub(crate) fn handle_notices(&mut self, client: ClientId, open: u64, queue: u64) {
        let Some(&region) = self.programs.get(&client).and_then(|held| held.get(&open)) else { return };
        let owner = self.entries.get(&region).and_then(|entry| entry.owner);
        if owner.is_some_and(|owner| owner.client == client && owner.open == open) {
            let command = ProgramCommand::NoticesInto { region, queue };
            self.actions.push_back(DirectoryAction::Program { client, command });
        }
    }
}
