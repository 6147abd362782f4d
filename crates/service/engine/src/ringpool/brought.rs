//! Chunks that an application brings along: its connections take their rings before the others are free.
//!
//! Owns that no ring has to be looked for among the free ones: how many there are is the application's choice.

use control::ChunkKind;
use verbs::{Mr, Region};

use super::{Place, Retired, RingPair, RingPool, direction};
use crate::numbers::count;
use crate::ring_size::RingSize;

impl RingPool {
    /// Adds one in which connections lie already: [`Self::take_again`], then [`Self::list`].
    pub(crate) fn add_brought(&mut self, number: u32, kind: ChunkKind, size: RingSize, region: Region, mr: Mr) {
        self.add_unlisted(number, kind, size, region, mr);
    }

    /// Takes the very rings that a connection had under a daemon before this one, in chunks that were brought along.
    pub(crate) fn take_again(&mut self, tx: (u32, u64), rx: (u32, u64), size: RingSize) -> Option<RingPair> {
        let class = self.class_of(size)?;
        let pair =
            RingPair { tx: self.brought(class, ChunkKind::Tx, tx)?, rx: self.brought(class, ChunkKind::Rx, rx)? };
        self.classes[class].in_use += 1;
        self.mark_taken(&pair);
        Some(pair)
    }

    /// A free ring of a chunk that was brought along and whose rings are not listed yet.
    fn brought(&mut self, class: usize, kind: ChunkKind, (number, offset): (u32, u64)) -> Option<Place> {
        let index = *self.by_number.get(&number)?;
        let chunk = self.chunks.get_mut(index as usize)?.as_mut()?;
        let place = Place { offset, ..chunk.place(index, 0) };
        let fits = chunk.class == class && chunk.kind == kind && !chunk.is_listed && !chunk.is_closed;
        let is_ring = offset.is_multiple_of(u64::from(chunk.size.grown));
        let is_free = chunk.ring_at(&place).is_some_and(|ring| !ring.is_taken);
        (fits && is_ring && is_free).then_some(place)
    }

    /// All connections of a chunk that was brought along have their rings: the others are free, and a chunk without any
    /// leaves.
    pub(crate) fn list(&mut self, number: u32, retired: &mut Vec<Retired>) {
        let Some(&index) = self.by_number.get(&number) else { return };
        let Some(chunk) = self.chunks.get_mut(index as usize).and_then(Option::as_mut) else { return };
        if chunk.used == 0 {
            return self.retire(index as usize, retired);
        }
        chunk.is_listed = true;
        let free = &mut self.classes[chunk.class].free[direction(chunk.kind)];
        let rings = (0..count(chunk.rings.len())).rev().filter(|i| !chunk.rings[*i as usize].is_taken);
        free.extend(rings.map(|i| chunk.place(index, i)));
    }
}
