//! Each user's share of the places on the control socket.
//!
//! Owns the count of programs by user. It must never bound root or the daemon's own user, and never keep a user without
//! programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::DaemonLimits;
use crate::limits::share;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct UserPlaces {
    held: Arc<Mutex<BTreeMap<u32, u64>>>,
    max: u64,
    owner_uid: u32,
}

impl UserPlaces {
    pub(crate) fn new(limits: &DaemonLimits, owner_uid: u32) -> Self {
        let max = share(limits.clients_per_user_max, limits.clients_max);
        Self { held: Arc::default(), max, owner_uid }
    }

    /// A place for one more program of a user; None if there is none.
    pub(crate) fn try_take(&self, uid: u32) -> Option<UserPlace> {
        let mut held = lock(&self.held);
        let count = held.entry(uid).or_default();
        if *count >= self.max && uid != 0 && uid != self.owner_uid {
            return None;
        }
        *count += 1;
        Some(UserPlace { held: Arc::clone(&self.held), uid })
    }
}

/// One place; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct UserPlace {
    held: Arc<Mutex<BTreeMap<u32, u64>>>,
    uid: u32,
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(count) = held.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.remove(&self.uid);
            }
        }
    }
}

/// The count is whole between statements, whoever panicked.
fn lock(held: &Mutex<BTreeMap<u32, u64>>) -> MutexGuard<'_, BTreeMap<u32, u64>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_quarter_and_root_and_the_owner_all() {
        let limits = DaemonLimits { clients_max: 8, ..DaemonLimits::default() };
        let places = UserPlaces::new(&limits, 77);
        let mut of_one: Vec<_> = (0..2).map(|_| places.try_take(5).unwrap()).collect();
        assert!(places.try_take(5).is_none());
        let _another = places.try_take(6).unwrap();
        of_one.pop();
        of_one.push(places.try_take(5).unwrap());
        let unbounded: Vec<_> =
            (0..20).flat_map(|_| [places.try_take(0).unwrap(), places.try_take(77).unwrap()]).collect();
        drop((of_one, unbounded));
        assert_eq!(lock(&places.held).len(), 1, "who holds nothing is forgotten");
        let limits = DaemonLimits { clients_per_user_max: 1, ..limits };
        let places = UserPlaces::new(&limits, 77);
        let _only = places.try_take(5).unwrap();
        assert!(places.try_take(5).is_none());
    }
}
