//! What a replica knows, for people who ask why it does not go on.
//!
//! Owns the words. Nothing may depend on them.

use std::fmt::Write as _;

use crate::held::Held;
use crate::machine::Machine;
use crate::memory::{Memory, Stage};
use crate::reign::{Phase, Reign};
use crate::replica::{Replica, What};

impl<M: Machine> Replica<M> {
    /// What it is, and what it knows of each memory: for people, not for programs.
    #[must_use]
    pub fn describe(&self) -> String {
        let (known, applied) = (self.known(), self.applied());
        let what = match self.what() {
            What::Learning(learner) => format!("learns ({})", learner.name()),
            What::Looking(_) => "looks at all memories".to_owned(),
            What::Reigning(reign) => of_reign(reign),
        };
        let (asked, doublings) = (self.asked(), self.doublings());
        format!("{what}; knows term {known}, has applied {applied}, waits for {asked} answers, doublings {doublings}")
    }
}

fn of_reign(reign: &Reign) -> String {
    let phase = match &reign.phase {
        Phase::Gathering => "gathers".to_owned(),
        Phase::Loading(..) => "loads a snapshot".to_owned(),
        Phase::Leading(leading) => leading.describe(),
    };
    let mut words = format!("term {}: {phase}", reign.term);
    for memory in reign.memories.values() {
        let is_member = if reign.members.contains(memory.id, memory.number) { "" } else { ", no member" };
        let _ = write!(words, "; memory {}{is_member}: {}", memory.id, of_memory(memory));
    }
    words
}

fn of_memory(memory: &Memory) -> String {
    let stage = match &memory.stage {
        Stage::Away { until } => format!("away until {until}"),
        Stage::Asked => "asked for".to_owned(),
        Stage::Reading(_) => "read".to_owned(),
        Stage::Naming(..) => "named".to_owned(),
        Stage::Promising(..) => "named, its file is waited for".to_owned(),
        Stage::Ready(_) => "ready".to_owned(),
        Stage::Held(held) => Held::describe(held),
    };
    format!("{stage}, attempt {}", memory.attempt())
}
