//! What a server holds, and its copy in a region that workers read.
//!
//! The region has a word of 4 bytes for each key, little-endian. Only the server writes there, while it holds the lock,
//! and before it answers; so whoever was answered finds his push in the region.

use std::sync::{Mutex, MutexGuard, PoisonError};

use raas::{Region, RegionError};

use crate::wire::{Floats, Keys, VALUE_BYTES};

/// Most keys of a server.
pub(crate) const KEYS_MAX: u64 = 1 << 24;

/// A request that changed nothing.
#[derive(thiserror::Error)]
pub(crate) enum ValuesError {
    #[error("key {key}: this server holds {keys} keys")]
    Key { key: u64, keys: usize },
    #[error("the values cannot be published any more: {0}")]
    Region(#[from] RegionError),
}

raas::debug_says_the_words!(ValuesError);

/// The values of a server.
#[derive(Debug)]
pub(crate) struct Values(Mutex<State>);

#[derive(Debug)]
struct State {
    values: Vec<f32>,
    region: Option<Region>,
    /// Bytes that go into the region next.
    bytes: Vec<u8>,
}

impl Values {
    /// So many zeroes; a region, if there is one, has room for them.
    pub(crate) fn new(keys: u64, region: Option<Region>) -> Self {
        let values = vec![0.0; usize::try_from(keys.min(KEYS_MAX)).unwrap_or_default()];
        Self(Mutex::new(State { values, region, bytes: vec![] }))
    }

    /// A thread that panicked left whole values: each is one store.
    fn held(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reset(&self) -> Result<(), ValuesError> {
        let mut held = self.held();
        held.values.fill(0.0);
        let all = 0..held.values.len();
        Ok(held.publish(all)?)
    }

    /// Adds all of them, or none.
    pub(crate) fn add(&self, keys: Keys<'_>, values: Floats<'_>) -> Result<(), ValuesError> {
        let mut held = self.held();
        held.check(keys)?;
        // Each run of neighbours is published in one piece.
        let mut run = 0..0;
        for (key, value) in keys.iter().zip(values.iter()) {
            let key = key as usize;
            held.values[key] += value;
            if key == run.end {
                run.end += 1;
            } else {
                let ended = std::mem::replace(&mut run, key..key + 1);
                held.publish(ended)?;
            }
        }
        Ok(held.publish(run)?)
    }

    /// Gives the values of the keys to `put`.
    pub(crate) fn read<T>(
        &self,
        keys: Keys<'_>,
        put: impl FnOnce(&mut dyn Iterator<Item = f32>) -> T,
    ) -> Result<T, ValuesError> {
        let held = self.held();
        held.check(keys)?;
        Ok(put(&mut keys.iter().map(|key| held.values[key as usize])))
    }
}

impl State {
    fn check(&self, keys: Keys<'_>) -> Result<(), ValuesError> {
        let held = self.values.len();
        match keys.iter().find(|key| *key >= held as u64) {
            Some(key) => Err(ValuesError::Key { key, keys: held }),
            None => Ok(()),
        }
    }

    fn publish(&mut self, run: std::ops::Range<usize>) -> Result<(), RegionError> {
        let Self { values, region: Some(region), bytes } = self else { return Ok(()) };
        if run.is_empty() {
            return Ok(());
        }
        let offset = (run.start * VALUE_BYTES) as u64;
        bytes.clear();
        values[run].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        region.write(offset, bytes)
    }
}
