//! A program becomes the owner of a region that outlived the one that made it.
//!
//! Owns who may. It must never let two programs own one region.

use control::{OpenedRegion, RegionAccess, RegionInfo, RegionPath, RegionRefusal, RegionSpec};

use super::{Directory, DirectoryAction, Handed, Owner, Stage, info_of};
use crate::{ClientId, MemoryCommand, Party};

impl Directory {
    /// A program of this host wants to own a region of this host, which it says how was made.
    pub(crate) fn handle_adopt(&mut self, party: Party, request: u64, spec: &RegionSpec) {
        let Party { client, pid, .. } = party;
        let region = match self.check_adopt(party, spec) {
            Ok(region) => region,
            Err(why) => return self.opened(client, request, Err(why), None),
        };
        let open = self.next_open();
        let Some(entry) = self.entries.get_mut(&region) else { return };
        entry.owner = Some(Owner { client, pid, open });
        self.add_handle(party, open, region);
        self.actions.push_back(DirectoryAction::Memory(MemoryCommand::ForgetKept { region }));
        self.hand_to_owner(client, request, region);
    }

    /// The owner of a region gets it.
    pub(super) fn hand_to_owner(&mut self, client: ClientId, request: u64, region: u64) {
        let Some((owner, entry)) = self.entries.get(&region).and_then(|e| Some((e.owner?, e))) else { return };
        // Whatever others may do, the owner may do everything.
        let info = RegionInfo { access: RegionAccess::ALL | RegionAccess::EXECUTE, ..info_of(region, entry) };
        let path = RegionPath::Local { stamp: entry.stamp, word: entry.word, words: self.config.regions_max };
        let opened = OpenedRegion { open: owner.open, info, path };
        let handed = Handed { region, writable: true, with_stamps: true };
        self.opened(client, request, Ok(opened), Some(handed));
    }

    fn check_adopt(&self, party: Party, spec: &RegionSpec) -> Result<u64, RegionRefusal> {
        let (region, entry) = self.known(party.uid, &spec.name, &spec.key)?;
        if !self.may_act_for(party.uid, entry.uid) {
            return Err(RegionRefusal::OtherUser { uid: entry.uid });
        }
        if let Some(owner) = entry.owner {
            return Err(RegionRefusal::Owned { pid: owner.pid });
        }
        if !matches!(entry.stage, Stage::Live) {
            return Err(RegionRefusal::Busy);
        }
        if entry.spec != *spec {
            return Err(RegionRefusal::OtherSettings);
        }
        self.check_handles(party).map(|()| region)
    }
}
