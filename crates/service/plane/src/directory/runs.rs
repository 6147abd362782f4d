//! Kernels that the daemon runs for programs of this host.
//!
//! Owns who may have one run where. None must begin at a region that is being revoked, and the revoke must not go on
//! before the engine has ended those that began.

use control::{RegionAccess, RegionRefusal};

use super::{Directory, Stage};
use crate::ClientId;

impl Directory {
    /// The regions of a run, and what the program's handles to them allow. The first handle needs the right to execute.
    pub fn begin_run(&mut self, client: ClientId, opens: &[u64]) -> Result<Vec<(u64, RegionAccess)>, RegionRefusal> {
        let mut places = Vec::with_capacity(opens.len());
        for &open in opens {
            let held = self.programs.get(&client).and_then(|held| held.get(&open));
            let region = *held.ok_or(RegionRefusal::Unknown)?;
            let entry = self.entries.get(&region).ok_or(RegionRefusal::OwnerGone)?;
            if !matches!(entry.stage, Stage::Live) {
                return Err(RegionRefusal::Busy);
            }
            // Whatever others may do, the owner may do everything.
            let all = RegionAccess::ALL | RegionAccess::EXECUTE;
            places.push((region, entry.handles.get(open).map_or(all, |handle| handle.access)));
        }
        let asked = RegionAccess::EXECUTE;
        if let Some(&(_, allowed)) = places.first().filter(|(_, allowed)| !allowed.contains(asked)) {
            return Err(RegionRefusal::NoAccess { asked, allowed });
        }
        for (region, _) in &places {
            if let Some(entry) = self.entries.get_mut(region) {
                entry.has_runs = true;
            }
        }
        Ok(places)
    }
}
