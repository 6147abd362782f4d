//! Promises about connections of one host: no slot of a segment is given to a second connection while a process uses
//! it, and each use has another generation.

use std::collections::BTreeMap;

use control::{Connection, Path};
use verbs::Time;

use super::{AppUid, Checks};

/// A slot as one end names it: process, pair, slot.
type Slot = (AppUid, u64, u32);

/// Slots in use, by which connection, and their last generations.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    open: BTreeMap<Slot, u64>,
    generations: BTreeMap<Slot, u32>,
}

impl Pairs {
    /// The daemon hears that a process gave its end of a connection back.
    pub(crate) fn on_closed(&mut self, app: AppUid, connection: u64) {
        self.open.retain(|(owner, ..), id| (*owner, *id) != (app, connection));
    }
}

impl Checks {
    /// A process was given an end of a connection.
    pub(crate) fn on_pair_slot(&mut self, now: Time, app: AppUid, connection: &Connection) {
        let Path::Shm { pair, slot, generation } = connection.path else {
            return self.fail(now, "pairs", format!("application {app} was given {connection:?}"));
        };
        let name = (app, pair, slot);
        let is_free = self.pairs.open.insert(name, connection.id).is_none();
        let last = self.pairs.generations.insert(name, generation);
        if !is_free || last == Some(generation) {
            let detail =
                format!("slot {name:?}, generation {generation}, was given out before: {last:?}, free {is_free}");
            self.fail(now, "pairs", detail);
        }
    }
}
