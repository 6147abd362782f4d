//! What waits, by user: users take turns, whatever number of things each has, and each has so many places.
//!
//! Owns the order. It must never keep a user of whom nothing waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct UserTurns<T> {
    /// No list is empty.
    waiting: BTreeMap<u32, VecDeque<T>>,
    /// Users of whom something waits, the one whose turn it is first.
    turns: VecDeque<u32>,
}

impl<T> Default for UserTurns<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), turns: VecDeque::new() }
    }
}

impl<T> UserTurns<T> {
    pub(crate) fn push(&mut self, uid: u32, one: T) {
        let of_user = self.waiting.entry(uid).or_default();
        if of_user.is_empty() {
            self.turns.push_back(uid);
        }
        of_user.push_back(one);
    }

    /// Before everything else of that user, whose turn comes behind those of the others.
    pub(crate) fn put_back(&mut self, uid: u32, one: T) {
        let of_user = self.waiting.entry(uid).or_default();
        if of_user.is_empty() {
            self.turns.push_back(uid);
        }
        of_user.push_front(one);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The next one, of a user that `may` go on. The others keep their turns.
    pub(crate) fn next(&mut self, may: impl Fn(u32) -> bool) -> Option<(u32, T)> {
        let place = self.turns.iter().position(|uid| may(*uid))?;
        let uid = self.turns.remove(place)?;
        let of_user = self.waiting.get_mut(&uid)?;
        let one = of_user.pop_front()?;
        if of_user.is_empty() {
            self.waiting.remove(&uid);
        } else {
            self.turns.push_back(uid);
        }
        Some((uid, one))
    }

    /// Keeps of a user's what `keeps` says.
    pub(crate) fn retain(&mut self, uid: u32, keeps: impl FnMut(&T) -> bool) {
        let Some(of_user) = self.waiting.get_mut(&uid) else { return };
        of_user.retain(keeps);
        if of_user.is_empty() {
            self.waiting.remove(&uid);
            self.turns.retain(|turn| *turn != uid);
        }
    }
}

/// Places of each user, in the order in which they are asked for.
#[derive(Debug)]
pub(crate) struct Rooms {
    of_each: usize,
    rooms: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

impl Rooms {
    pub(crate) fn new(of_each: usize) -> Self {
        Self { of_each, rooms: Mutex::default() }
    }

    /// Waits for a place of this user.
    pub(crate) async fn enter(&self, uid: u32) -> Option<OwnedSemaphorePermit> {
        let room = {
            // The table is whole between statements, whichever thread panicked.
            let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
            // One of which nobody holds or awaits anything is only in this table.
            rooms.retain(|of, room| *of == uid || Arc::strong_count(room) > 1);
            Arc::clone(rooms.entry(uid).or_insert_with(|| Arc::new(Semaphore::new(self.of_each))))
        };
        room.acquire_owned().await.ok()
    }
}

#[cfg(test)]
impl<T> UserTurns<T> {
    pub(crate) fn count_of(&self, uid: u32) -> usize {
        self.waiting.get(&uid).map_or(0, VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_and_who_may_not_go_on_keeps_the_turn() {
        let mut turns = UserTurns::default();
        (0..100).for_each(|n| turns.push(5, n));
        turns.push(6, 200);
        turns.push(7, 201);
        turns.retain(7, |_| false);
        turns.retain(5, |n| *n != 1);
        let order: Vec<_> = (0..4).filter_map(|_| turns.next(|_| true)).collect();
        assert_eq!(order, [(5, 0), (6, 200), (5, 2), (5, 3)]);
        turns.push(8, 300);
        assert_eq!((turns.next(|uid| uid != 5), turns.next(|uid| uid != 5)), (Some((8, 300)), None));
        assert_eq!(turns.next(|_| true), Some((5, 4)));
        turns.push(6, 202);
        turns.put_back(5, 4);
        let order: Vec<_> = (0..3).filter_map(|_| turns.next(|_| true)).collect();
        assert_eq!(order, [(5, 4), (6, 202), (5, 5)], "what is put back comes first, of its user alone");
        turns.retain(5, |_| false);
        assert!(turns.is_empty() && turns.waiting.is_empty());
    }
}
