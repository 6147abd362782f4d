//! Each user's share of something that all users of the host have together: places on the control socket, bytes.
//!
//! Owns the count by user. It must never bound root or the daemon's own user by a user's share, and never keep a user
//! who has nothing.

use std::collections::BTreeMap;

/// See the head of this file.
#[derive(Debug)]
pub struct UserPlaces {
    held: BTreeMap<u32, u64>,
    all: u64,
    max: u64,
    per_user_max: u64,
    owner_uid: u32,
}

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPlace {
    /// Whose bound it is: this user's, or that of all.
    pub of: Option<u32>,
    /// How much is taken.
    pub used: u64,
    /// How much there is.
    pub max: u64,
}

impl UserPlaces {
    /// Of `max` a user may have `per_user_max`. `owner_uid`: the daemon's own user. Neither it nor root is bounded by that.
    pub fn new(max: u64, per_user_max: u64, owner_uid: u32) -> Self {
        Self { held: BTreeMap::new(), all: 0, max, per_user_max, owner_uid }
    }

    /// Whether there is so much more for a user.
    pub fn check(&self, uid: u32, amount: u64) -> Result<(), NoPlace> {
        let fits = |used: u64, max: u64| used.checked_add(amount).is_some_and(|sum| sum <= max);
        let used = self.held.get(&uid).copied().unwrap_or(0);
        if !fits(used, self.per_user_max) && uid != 0 && uid != self.owner_uid {
            return Err(NoPlace { of: Some(uid), used, max: self.per_user_max });
        }
        if fits(self.all, self.max) { Ok(()) } else { Err(NoPlace { of: None, used: self.all, max: self.max }) }
    }

    /// Takes so much more for a user.
    pub fn try_take(&mut self, uid: u32, amount: u64) -> Result<(), NoPlace> {
        self.check(uid, amount)?;
        *self.held.entry(uid).or_default() += amount;
        self.all += amount;
        Ok(())
    }

    /// So much of the user's is free again.
    pub fn give_back(&mut self, uid: u32, amount: u64) {
        self.all = self.all.saturating_sub(amount);
        if let Some(held) = self.held.get_mut(&uid) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(&uid);
            }
        }
    }

    /// What all users have together.
    pub fn taken(&self) -> u64 {
        self.all
    }
}

/// One place of `key` is free. Who has none is forgotten.
pub(crate) fn give_back<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_root_and_the_owner_all() {
        let mut places = UserPlaces::new(24, 2, 77);
        let mut take = |uid| places.try_take(uid, 1);
        assert_eq!((take(5), take(5)), (Ok(()), Ok(())));
        assert_eq!(take(5), Err(NoPlace { of: Some(5), used: 2, max: 2 }));
        assert_eq!(take(6), Ok(()));
        places.give_back(5, 1);
        assert_eq!(places.try_take(5, 2), Err(NoPlace { of: Some(5), used: 1, max: 2 }));
        assert_eq!(places.try_take(5, 1), Ok(()));
        for _ in 0..10 {
            assert_eq!((places.try_take(0, 1), places.try_take(77, 1)), (Ok(()), Ok(())));
        }
        let full = NoPlace { of: None, used: 23, max: 24 };
        assert_eq!((places.try_take(9, 2), places.try_take(0, 2)), (Err(full), Err(full)), "the host bounds root too");
        assert_eq!(places.taken(), 23);
        for (uid, held) in [(0, 10), (77, 10), (5, 2), (6, 1), (9, 0)] {
            places.give_back(uid, held);
        }
        assert!(places.held.is_empty() && places.all == 0, "who holds nothing is forgotten");
        assert_eq!(places.try_take(0, u64::MAX), Err(NoPlace { of: None, used: 0, max: 24 }));
    }
}
