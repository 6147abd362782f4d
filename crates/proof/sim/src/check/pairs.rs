//! Promises about connections of one host: no slot of a segment is given to a second connection while a process uses
//! it, and each use has another generation.

use std::collections::{BTreeMap, BTreeSet};

use control::{Connection, Path};
use verbs::Time;

use super::{AppUid, Checks};

/// A slot as one end names it: process, pair, slot.
type Slot = (AppUid, u64, u32);

/// Slots in use, and what they were last called.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    open: BTreeSet<Slot>,
    generations: BTreeMap<Slot, u32>,
}

impl Checks {
    /// A process was given an end of a connection.
    pub(crate) fn on_pair_slot(&mut self, now: Time, app: AppUid, connection: &Connection) {
        let Path::Shm { pair, slot, generation } = connection.path else {
            return self.fail(now, "pairs", format!("application {app} was given {connection:?}"));
        };
        let name = (app, pair, slot);
        let is_free = self.pairs.open.insert(name);
        let last = self.pairs.generations.insert(name, generation);
        if !is_free || last == Some(generation) {
            let detail =
                format!("slot {name:?}, generation {generation}, was given out before: {last:?}, free {is_free}");
            self.fail(now, "pairs", detail);
        }
    }

    /// The process gives it back.
    pub(crate) fn on_pair_slot_closed(&mut self, app: AppUid, pair: u64, slot: u32) {
        self.pairs.open.remove(&(app, pair, slot));
    }
}
