//! Who yields: as many threads at a time as there are processors.
//!
//! Owns the count of them, beside the memory of late yields ([`Crowding`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::backoff::Crowding;

/// Threads that yield at a time. More of them would only pass the processors around among themselves; the others sleep
/// at once.
#[derive(Debug)]
pub struct YieldTurns {
    taken: AtomicU32,
    max: u32,
    crowding: Crowding,
}

/// The right to yield; dropping it gives it back.
#[derive(Debug)]
pub struct YieldTurn<'a>(&'a YieldTurns);

impl Default for YieldTurns {
    /// As many as there are processors.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        Self { taken: AtomicU32::new(0), max: processors, crowding: Crowding::default() }
    }
}

impl YieldTurns {
    /// So many, of whom no yield is late: a test that a busy machine may not decide.
    pub fn never_late(max: u32) -> Self {
        Self { taken: AtomicU32::new(0), max, crowding: Crowding::with_limit(Duration::MAX) }
    }

    /// `None`: all are taken, or yields are late now.
    pub fn take(&self) -> Option<YieldTurn<'_>> {
        if self.is_crowded() {
            return None;
        }
        let turn = YieldTurn(self);
        // Taken before it is known whether it is there: a refused turn is given back by its drop.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.max { Some(turn) } else { None }
    }

    /// How many.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Yields are late now.
    pub fn is_crowded(&self) -> bool {
        self.crowding.is_crowded()
    }

    /// Yields the core once, without a turn: for a task, which others take turns with on its thread. False: yields are
    /// late now, or this one was.
    pub fn yield_core(&self) -> bool {
        !self.is_crowded() && self.crowding.yield_core()
    }

    /// What was waited for came between yields of which none was late.
    pub fn on_time(&self) {
        self.crowding.on_time();
    }
}

impl YieldTurn<'_> {
    /// Yields the core once. False if it came back late: look once more, then block.
    pub fn yield_core(&self) -> bool {
        self.0.crowding.yield_core()
    }

    /// What was waited for came between yields of which none was late.
    pub fn on_time(&self) {
        self.0.on_time();
    }
}

impl Drop for YieldTurn<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_turns_and_they_come_back() {
        let turns = YieldTurns::never_late(2);
        let (first, second) = (turns.take(), turns.take());
        assert!(first.is_some() && second.is_some() && turns.take().is_none());
        drop(first);
        assert!(turns.take().is_some_and(|turn| turn.yield_core()));
    }
}
