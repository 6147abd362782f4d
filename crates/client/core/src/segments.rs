//! The segments of one side of a pair: which of them holds a slot.
//!
//! Owns the numbering of slots over all segments. It must never let a number of the daemon make it grow without bound.

use shm::{Pair, RegionError};

/// Segments of one side of a pair at most.
const SEGMENTS_MAX: usize = 256;

/// Why a connection could not be opened on a pair.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error("slot {0} lies in no segment of pair {1}")]
    NoSlot(u32, u64),
    #[error("this process had no descriptor for the segment of slot {0} of pair {1}")]
    NotTaken(u32, u64),
    #[error("slot {0} of pair {1} is in use")]
    SlotInUse(u32, u64),
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Segments(Vec<Part>);

/// Slots of one segment.
#[derive(Debug)]
struct Part {
    first: u32,
    slots: u32,
    /// None: this process had no descriptor for it, or never heard of it.
    pair: Option<Pair>,
}

impl Segments {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The numbers of the slots of segment `index`.
    pub(crate) fn slots_of(&self, index: u32) -> std::ops::Range<u32> {
        self.0.get(index as usize).map_or(0..0, |part| part.first..part.first.saturating_add(part.slots))
    }

    /// Segment `index`, if it is there.
    pub(crate) fn pair(&self, index: u32) -> Option<&Pair> {
        self.0.get(index as usize)?.pair.as_ref()
    }

    fn next_slot(&self) -> Option<u32> {
        self.0.last().map_or(Some(0), |part| part.first.checked_add(part.slots))
    }

    /// Puts segment `index` behind the others, after gaps for those that never came, or in the place of another of as
    /// many slots. False: it does not fit.
    pub(crate) fn put(&mut self, index: u32, slots: u32, pair: Option<Pair>) -> bool {
        let index = index as usize;
        if let Some(part) = self.0.get_mut(index) {
            let fits = part.slots == slots;
            if fits {
                part.pair = pair;
            }
            return fits;
        }
        while self.0.len() <= index && self.0.len() < SEGMENTS_MAX {
            let Some(first) = self.next_slot().filter(|first| first.checked_add(slots).is_some()) else { return false };
            self.0.push(Part { first, slots, pair: None });
        }
        let Some(part) = self.0.get_mut(index) else { return false };
        part.pair = pair;
        true
    }

    fn find(&self, slot: u32) -> Option<(Option<&Pair>, u32)> {
        self.0.iter().find_map(|part| {
            let i = slot.checked_sub(part.first)?;
            (i < part.slots).then_some((part.pair.as_ref(), i))
        })
    }

    /// The segment of a slot, and the slot's number in it.
    pub(crate) fn segment(&self, slot: u32, pair: u64) -> Result<(&Pair, u32), PairError> {
        match self.find(slot) {
            Some((Some(segment), i)) => Ok((segment, i)),
            Some((None, _)) => Err(PairError::NotTaken(slot, pair)),
            None => Err(PairError::NoSlot(slot, pair)),
        }
    }
}
