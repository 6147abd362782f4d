//! Each user's share of the places on the control socket.
//!
//! Owns the count of programs by user. It must never bound root or the daemon's own user, and never keep a user without
//! programs.

use std::collections::BTreeMap;

/// See the head of this file.
#[derive(Debug)]
pub struct UserPlaces {
    held: BTreeMap<u32, u64>,
    per_user_max: u64,
    owner_uid: u32,
}

impl UserPlaces {
    /// `owner_uid`: the daemon's own user. Neither it nor root is bounded.
    pub fn new(per_user_max: u64, owner_uid: u32) -> Self {
        Self { held: BTreeMap::new(), per_user_max, owner_uid }
    }

    /// Takes a place for one more program of a user; false if there is none.
    #[must_use = "a place that was taken is given back"]
    pub fn try_take(&mut self, uid: u32) -> bool {
        let count = self.held.get(&uid).copied().unwrap_or(0);
        if count >= self.per_user_max && uid != 0 && uid != self.owner_uid {
            return false;
        }
        self.held.insert(uid, count + 1);
        true
    }

    /// A program of the user is gone.
    pub fn give_back(&mut self, uid: u32) {
        if let Some(count) = self.held.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.held.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_and_root_and_the_owner_all() {
        let mut places = UserPlaces::new(2, 77);
        assert!(places.try_take(5) && places.try_take(5) && !places.try_take(5));
        assert!(places.try_take(6));
        places.give_back(5);
        assert!(places.try_take(5) && !places.try_take(5));
        for _ in 0..20 {
            assert!(places.try_take(0) && places.try_take(77));
        }
        for (uid, held) in [(0, 20), (77, 20), (5, 2), (6, 1), (9, 1)] {
            (0..held).for_each(|_| places.give_back(uid));
        }
        assert!(places.held.is_empty(), "who holds nothing is forgotten");
    }
}
