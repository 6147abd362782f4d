//! For whom the daemon dials other hosts.
//!
//! Owns each user's share of the dials. It must never bound root or the daemon's user, who could end the daemon anyway.

use std::collections::{BTreeMap, BTreeSet};

use control::Reason;

use crate::config::EngineConfig;
use crate::ids::LaneId;

/// See the head of this file. At most as many users as have applications.
#[derive(Debug)]
pub(crate) struct Dials {
    /// Lanes for which the daemon dials, or did when this was last looked at.
    by_user: BTreeMap<u32, BTreeSet<LaneId>>,
    per_user_max: u32,
    owner_uid: u32,
}

impl Dials {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            by_user: BTreeMap::new(),
            per_user_max: config.user_share.of_table(config.lanes_max),
            owner_uid: config.owner_uid,
        }
    }

    /// Whether the daemon may dial one more host because of a user's applications. `is_dialing` knows which dials go
    /// on.
    pub(crate) fn check(&mut self, uid: u32, is_dialing: impl Fn(LaneId) -> bool) -> Result<(), Reason> {
        let Some(lanes) = self.by_user.get_mut(&uid) else { return Ok(()) };
        lanes.retain(|lane| is_dialing(*lane));
        if (lanes.len() as u64) < u64::from(self.per_user_max) { Ok(()) } else { Err(Reason::UserDials) }
    }

    /// A user's application makes the daemon dial for this lane. Forgotten when the dials are next checked after its
    /// end.
    pub(crate) fn add(&mut self, uid: u32, lane: LaneId) {
        if uid != 0 && uid != self.owner_uid {
            self.by_user.entry(uid).or_default().insert(lane);
        }
    }

    /// Whether the daemon dialed for this lane because of a user, the last time that it dialed for him.
    pub(crate) fn has(&self, uid: u32, lane: LaneId) -> bool {
        self.by_user.get(&uid).is_some_and(|lanes| lanes.contains(&lane))
    }

    /// A user has no application any more.
    pub(crate) fn forget(&mut self, uid: u32) {
        self.by_user.remove(&uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    #[test]
    fn dials_that_are_over_count_no_more() {
        let mut config = EngineConfig::new(vec!["10.0.0.1".parse().unwrap()]);
        (config.owner_uid, config.lanes_max) = (77, 8);
        let mut dials = Dials::new(&config);
        for lane in [1, 2] {
            for uid in [0, 5, 77] {
                dials.check(uid, |_| true).unwrap();
                dials.add(uid, LaneId::from_bits(lane));
            }
        }
        assert_eq!(dials.check(5, |_| true), Err(Reason::UserDials));
        dials.check(6, |_| true).unwrap();
        dials.check(5, |lane| lane.bits() == 1).unwrap();
        assert!(dials.has(5, LaneId::from_bits(1)) && !dials.has(5, LaneId::from_bits(2)));
        dials.add(5, LaneId::from_bits(3));
        assert_eq!(dials.check(5, |_| true), Err(Reason::UserDials));
        dials.check(0, |_| true).unwrap();
        dials.check(77, |_| true).unwrap();
        dials.forget(5);
        assert!(dials.by_user.is_empty(), "who has nothing is forgotten, and root and the owner are not counted");
    }
}
