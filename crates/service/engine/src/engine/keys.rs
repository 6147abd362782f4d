//! Lanes whose keys are worn: they are made anew, and the next queue pair has keys of its own (docs/operate/encryption.md, "How
//! much under one key").
//!
//! Owns when. It must never take a queue pair down while an operation is on it whose outcome would be unknown then: new
//! ones wait, and those that are under way end first. The peer counts the same records, so that its operations wait at the
//! same time.

use verbs::Qpn;

use super::Engine;

impl Engine {
    /// The device says how far the keys of a queue pair are used.
    pub(super) fn on_keys_worn(&mut self, qpn: Qpn, is_due: bool) {
        let Some(id) = self.lanes.of_qp(qpn) else { return };
        let now = self.now;
        if self.lanes.get_mut(id).is_some_and(|lane| lane.wear_keys(now, is_due)) {
            self.lanes.note_worn(id);
        }
    }

    /// Resets the lanes with worn keys for which this is the moment. Says whether there were any.
    pub(super) fn run_worn_lanes(&mut self) -> bool {
        let mut worked = false;
        for id in self.lanes.worn() {
            if !self.lanes.get(id).is_some_and(|lane| lane.may_renew_keys(self.now)) {
                continue;
            }
            self.counters.keys_renewed += 1;
            self.lanes.fail(id, "its keys have protected nearly as much as they may, and it gets new ones".into());
            worked = true;
        }
        worked
    }
}
