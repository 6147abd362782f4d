//! The waiters for news of one connection, and where to find them.
//!
//! Owns a parker for each direction, a poller, and the table from the numbers under which news come. It must never keep
//! a connection alive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use raas_core::{DirectPlace, Key, Side};

use crate::park::{Parker, lock};
use crate::poller::Poller;

/// The waiters for one connection.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    reader: Arc<Parker>,
    writer: Arc<Parker>,
    pub(crate) poller: Arc<Poller>,
    /// Threads that wait for slices which they lent.
    lenders: Mutex<Vec<Arc<Parker>>>,
    /// Where the stream's own TCP connection is put.
    pub(crate) direct: OnceLock<Arc<DirectPlace>>,
}

impl Bell {
    pub(crate) fn parker(&self, side: Side) -> &Arc<Parker> {
        match side {
            Side::Read => &self.reader,
            Side::Write => &self.writer,
        }
    }

    /// Something changed: every waiter looks again.
    pub(crate) fn notify(&self) {
        self.reader.notify();
        self.writer.notify();
        self.poller.tell();
        for parker in lock(&self.lenders).iter() {
            parker.notify();
        }
    }

    /// A thread waits for a slice that it lent, until [`Self::leave_lenders`].
    pub(crate) fn enter_lenders(&self) -> Arc<Parker> {
        let parker = Arc::new(Parker::default());
        lock(&self.lenders).push(Arc::clone(&parker));
        parker
    }

    pub(crate) fn leave_lenders(&self, parker: &Arc<Parker>) {
        lock(&self.lenders).retain(|one| !Arc::ptr_eq(one, parker));
    }

    /// Whether a thread waits for a slice.
    pub(crate) fn has_lenders(&self) -> bool {
        !lock(&self.lenders).is_empty()
    }
}

/// The bells of a session's connections.
#[derive(Debug)]
pub(crate) struct Bells {
    slots: Vec<Weak<Bell>>,
    pairs: BTreeMap<(u64, u32), Weak<Bell>>,
}

impl Bells {
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots: (0..slots).map(|_| Weak::new()).collect(), pairs: BTreeMap::new() }
    }

    /// News under `key` are for `bell`.
    pub(crate) fn set(&mut self, key: Key, bell: &Arc<Bell>) {
        match key {
            Key::Slot(slot) => {
                if let Some(place) = self.slots.get_mut(slot as usize) {
                    *place = Arc::downgrade(bell);
                }
            }
            Key::PairSlot { pair, slot } => drop(self.pairs.insert((pair, slot), Arc::downgrade(bell))),
        }
    }

    /// The connection is about to be given back: news under its number are another's from then on.
    pub(crate) fn forget(&mut self, key: Key) {
        match key {
            Key::Slot(slot) => {
                if let Some(place) = self.slots.get_mut(slot as usize) {
                    *place = Weak::new();
                }
            }
            Key::PairSlot { pair, slot } => drop(self.pairs.remove(&(pair, slot))),
        }
    }

    /// Those of these slots of the session.
    pub(crate) fn of_slots(&self, slots: &[u32]) -> Vec<Arc<Bell>> {
        slots.iter().filter_map(|slot| self.slots.get(*slot as usize)?.upgrade()).collect()
    }

    /// Those of all slots of the session.
    pub(crate) fn of_session(&self) -> Vec<Arc<Bell>> {
        self.slots.iter().filter_map(Weak::upgrade).collect()
    }

    /// Those of these slots of a pair.
    pub(crate) fn of_pair_slots(&self, pair: u64, slots: &[u32]) -> Vec<Arc<Bell>> {
        slots.iter().filter_map(|slot| self.pairs.get(&(pair, *slot))?.upgrade()).collect()
    }

    /// Those of all slots of a pair.
    pub(crate) fn of_pair(&self, pair: u64) -> Vec<Arc<Bell>> {
        self.pairs.range((pair, 0)..=(pair, u32::MAX)).filter_map(|(_, bell)| bell.upgrade()).collect()
    }
}
