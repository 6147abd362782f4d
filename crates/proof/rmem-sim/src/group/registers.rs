//! The machine that a group of the model replicates: registers. And what all of its replicas must agree about.
//!
//! Owns the comparison of replicas: whatever one applied at an index, and the state that it had then, every other has too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agree::{BadSnapshot, Machine};

use crate::history::WordAct as Act;

/// Bytes of a command without its filling.
pub(super) const COMMAND_BYTES: usize = 16;

/// The command of an act, filled to some length, so that entries have different ones.
pub(super) fn command_of(act: Act, key: u8, filling: usize) -> Vec<u8> {
    let (what, value) = match act {
        Act::Write(value) => (1, value),
        Act::Add(value, _) => (2, value),
        Act::Max(..) | Act::Read(_) => (0, 0),
    };
    let mut bytes = vec![what, key, 0, 0, 0, 0, 0, 0];
    bytes.extend(value.to_le_bytes());
    bytes.resize(COMMAND_BYTES + filling, value as u8);
    bytes
}

/// What replicas did.
#[derive(Debug, Default)]
pub(super) struct Chronicle {
    commands: BTreeMap<u64, Vec<u8>>,
    states: BTreeMap<u64, BTreeMap<u8, u64>>,
    pub(super) wrong: Vec<String>,
    /// Snapshots that were taken and loaded.
    pub(super) saved: u64,
    pub(super) loaded: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Registers {
    values: BTreeMap<u8, u64>,
    last: u64,
    chronicle: Arc<Mutex<Chronicle>>,
}

impl Registers {
    pub(super) fn new(chronicle: &Arc<Mutex<Chronicle>>) -> Self {
        Self { values: BTreeMap::new(), last: 0, chronicle: Arc::clone(chronicle) }
    }

    pub(super) fn get(&self, key: u8) -> u64 {
        self.values.get(&key).copied().unwrap_or(0)
    }

    fn chronicle(&self) -> MutexGuard<'_, Chronicle> {
        self.chronicle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Machine for Registers {
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8> {
        let (key, value) = (command.get(1).copied().unwrap_or(0), word(command, 8).unwrap_or(0));
        let before = self.get(key);
        match command.first() {
            Some(1) => self.values.insert(key, value),
            Some(2) => self.values.insert(key, before.wrapping_add(value)),
            _ => None,
        };
        let (last, values) = (std::mem::replace(&mut self.last, index), self.values.clone());
        let mut chronicle = self.chronicle();
        if index <= last {
            chronicle.wrong.push(format!("index {index} was applied behind {last}"));
        }
        let known = chronicle.commands.entry(index).or_insert_with(|| command.to_vec()).clone();
        if known != command {
            chronicle.wrong.push(format!("two replicas applied different commands at {index}: {known:?}, {command:?}"));
        }
        if *chronicle.states.entry(index).or_insert_with(|| values.clone()) != values {
            chronicle.wrong.push(format!("two replicas have different states at {index}"));
        }
        before.to_le_bytes().to_vec()
    }

    fn save(&self, into: &mut Vec<u8>) {
        into.extend(self.last.to_le_bytes());
        for (key, value) in &self.values {
            into.extend(u64::from(*key).to_le_bytes());
            into.extend(value.to_le_bytes());
        }
        self.chronicle().saved += 1;
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        self.last = word(bytes, 0).ok_or(BadSnapshot)?;
        let pairs = bytes.get(8..).unwrap_or_default().chunks(16);
        let pair = |pair: &[u8]| Some((u8::try_from(word(pair, 0)?).ok()?, word(pair, 8)?));
        self.values = pairs.map(pair).collect::<Option<_>>().ok_or(BadSnapshot)?;
        let (last, values) = (self.last, self.values.clone());
        let mut chronicle = self.chronicle();
        chronicle.loaded += 1;
        if chronicle.states.get(&last).is_some_and(|state| *state != values) {
            chronicle.wrong.push(format!("a snapshot has another state at {last} than those who applied it"));
        }
        Ok(())
    }
}
