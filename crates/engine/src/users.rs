//! What the programs of each user hold of the host's tables.
//!
//! Owns the counts and their bounds. It must never bound root or the daemon's user, who could end the daemon anyway, and never
//! keep a user who holds nothing.

use std::collections::BTreeMap;

use control::Reason;

use crate::EngineConfig;

/// A user has this part of a table unless the configuration says otherwise.
const SHARE: u32 = 4;

/// See the head of this file. At most as many users as there are applications.
#[derive(Debug)]
pub(crate) struct Users {
    held: BTreeMap<u32, Held>,
    apps_max: u32,
    listeners_max: u32,
    owner_uid: u32,
}

#[derive(Debug, Default)]
struct Held {
    apps: u32,
    listeners: u32,
}

impl Users {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let share = |asked: u32, of: u32| if asked == 0 { of.div_ceil(SHARE) } else { asked };
        Self {
            held: BTreeMap::new(),
            apps_max: share(config.apps_per_user_max, config.apps_max),
            listeners_max: share(config.listeners_per_user_max, config.listeners_max),
            owner_uid: config.owner_uid,
        }
    }

    /// Whether a user may have one more application.
    pub(crate) fn check_app(&self, uid: u32) -> Result<(), Reason> {
        let held = self.held.get(&uid).map_or(0, |h| h.apps);
        if held < self.apps_max || self.is_unbounded(uid) { Ok(()) } else { Err(Reason::UserPrograms) }
    }

    /// Whether a user's applications may have one more listener.
    pub(crate) fn check_listener(&self, uid: u32) -> Result<(), Reason> {
        let held = self.held.get(&uid).map_or(0, |h| h.listeners);
        if held < self.listeners_max || self.is_unbounded(uid) { Ok(()) } else { Err(Reason::UserListeners) }
    }

    pub(crate) fn add_app(&mut self, uid: u32) {
        self.held.entry(uid).or_default().apps += 1;
    }

    pub(crate) fn add_listener(&mut self, uid: u32) {
        self.held.entry(uid).or_default().listeners += 1;
    }

    pub(crate) fn drop_app(&mut self, uid: u32) {
        self.release(uid, |held| held.apps = held.apps.saturating_sub(1));
    }

    pub(crate) fn drop_listener(&mut self, uid: u32) {
        self.release(uid, |held| held.listeners = held.listeners.saturating_sub(1));
    }

    fn release(&mut self, uid: u32, take: impl FnOnce(&mut Held)) {
        if let Some(held) = self.held.get_mut(&uid) {
            take(held);
            if held.apps == 0 && held.listeners == 0 {
                self.held.remove(&uid);
            }
        }
    }

    fn is_unbounded(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner_uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_a_quarter_or_as_configured_and_are_given_back() {
        let mut config = EngineConfig::new(vec!["10.0.0.1".parse().unwrap()]);
        (config.apps_max, config.listeners_per_user_max, config.owner_uid) = (9, 1, 77);
        let mut users = Users::new(&config);
        for uid in [5, 6] {
            for _ in 0..3 {
                users.check_app(uid).unwrap();
                users.add_app(uid);
            }
            assert_eq!(users.check_app(uid), Err(Reason::UserPrograms));
            users.add_listener(uid);
            assert_eq!(users.check_listener(uid), Err(Reason::UserListeners));
        }
        users.drop_listener(5);
        users.check_listener(5).unwrap();
        users.drop_app(5);
        users.check_app(5).unwrap();
        for uid in [0, 77] {
            (0..100).for_each(|_| users.add_app(uid));
            users.check_app(uid).unwrap();
        }
        (0..2).for_each(|_| users.drop_app(5));
        assert!(!users.held.contains_key(&5));
    }
}
