//! The two-level dirty bitmap, over any memory.
//!
//! Owns how a slot is marked dirty and how dirty slots are found in O(dirty). It must never lose a mark: a bit is
//! cleared only to be reported, and what is not reported is marked again. It must never trust the other side: bits
//! beyond the slots are ignored, and one call looks at each word at most twice.
//!
//! One bit per slot in the leaf words; bit `w` of the summary says that leaf word `w` may be non-zero. A producer sets
//! the leaf, then the summary; the consumer clears the summary, then the leaf: so a mark that the consumer's pass over
//! the leaf misses leaves its summary bit set after the pass. All marks are read-modify-writes with release, all clears
//! with acquire. The fences of the sleep handshake are in `sleep`.
//!
//! A producer that finds both bits set leaves them: read-modify-writes of words that the other side reads cost more
//! than everything else in a small write. It publishes its cursor, fences, and looks; the consumer clears, fences, and
//! looks at cursors. So either the producer sees the bits cleared, or the consumer sees the cursor. The producer that
//! set the bits asks whether the consumer sleeps.
use std::sync::atomic::Ordering;

use crate::sync::AtomicRow;

/// Slots of one leaf word, and leaf words of one summary word.
const WORD: usize = u64::BITS as usize;
/// Leaf words start on a cache line of their own.
const LINE_WORDS: usize = 8;

/// Summary words for `slots` slots.
const fn summary_words(slots: u32) -> usize {
    leaf_words(slots).div_ceil(WORD)
}

const fn leaf_words(slots: u32) -> usize {
    (slots as usize).div_ceil(WORD)
}

/// Index of leaf word 0 in the row.
const fn leaf_start(slots: u32) -> usize {
    summary_words(slots).next_multiple_of(LINE_WORDS)
}

/// Words of the row of a bitmap for `slots` slots.
pub(crate) const fn row_words(slots: u32) -> usize {
    leaf_start(slots) + leaf_words(slots)
}

/// A bitmap and the place where its consumer goes on.
#[derive(Debug, Clone)]
pub(crate) struct DirtyBitmap<R> {
    row: R,
    slots: u32,
    /// Slot after the last one taken.
    next: u32,
}

impl<R: AtomicRow> DirtyBitmap<R> {
    /// Over a row of `row_words(slots)` words.
    pub(crate) fn new(row: R, slots: u32) -> Self {
        Self { row, slots, next: 0 }
    }

    /// Marks a slot. False: it was marked already, and the thread that marked it asks whether the consumer sleeps.
    #[inline]
    pub(crate) fn set(&self, slot: u32) -> bool {
        assert!(slot < self.slots, "slot {slot} of a doorbell with {} slots", self.slots);
        let leaf = slot as usize / WORD;
        let (at, bit) = (leaf_start(self.slots) + leaf, 1 << (slot as usize % WORD));
        // PAIRS WITH the fence in `take`: bits that this producer still sees are cleared before the consumer looks at
        // cursors.
        self.row.fence_seq_cst();
        if self.row.load(at, Ordering::Relaxed) & bit != 0
            && self.row.load(leaf / WORD, Ordering::Relaxed) & 1 << (leaf % WORD) != 0
        {
            return false;
        }
        // PAIRS WITH the acquire clear of the leaf in `take_leaf`.
        self.row.fetch_or(at, bit, Ordering::Release);
        self.set_summary(leaf);
        true
    }

    #[inline]
    fn set_summary(&self, leaf: usize) {
        // PAIRS WITH the acquire clear of the summary in `take`: a thread that sees this bit sees the leaf bit that was
        // set before it.
        self.row.fetch_or(leaf / WORD, 1 << (leaf % WORD), Ordering::Release);
    }

    /// Whether any slot may be marked.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        (0..summary_words(self.slots)).any(|s| self.row.load(s, Ordering::Acquire) & self.existing(s) != 0)
    }

    /// Appends up to `budget` marked slots to `out` and clears them; how many. Goes on after the slot taken last, so
    /// each marked slot is taken after at most one round over the others.
    pub(crate) fn take(&mut self, out: &mut Vec<u32>, budget: usize) -> usize {
        let first_leaf = self.next as usize / WORD;
        let below = low_mask(self.next as usize % WORD);
        let words = summary_words(self.slots);
        let mut left = budget;
        // From the slot after the last one, once around; the first leaf comes twice, its upper part first.
        for step in 0..=words {
            let turned = first_leaf / WORD + step;
            let s = if turned < words { turned } else { turned - words };
            let before_first = low_mask(first_leaf % WORD);
            let visit = match step {
                0 => !before_first,
                // The last visit of the first summary word: what step 0 left, the first leaf included.
                _ if step == words => before_first | 1 << (first_leaf % WORD),
                _ => u64::MAX,
            } & self.existing(s);
            if left == 0 || self.row.load(s, Ordering::Relaxed) & visit == 0 {
                continue;
            }
            // PAIRS WITH the release set in `set_summary`.
            let mut named = self.row.fetch_and(s, !visit, Ordering::AcqRel) & visit;
            while named != 0 && left > 0 {
                let leaf = s * WORD + named.trailing_zeros() as usize;
                named &= named - 1;
                let wanted = match step {
                    0 if leaf == first_leaf => !below,
                    _ if step == words && leaf == first_leaf => below,
                    _ => u64::MAX,
                };
                left -= self.take_leaf(leaf, wanted, out, left);
            }
            if named != 0 {
                self.row.fetch_or(s, named, Ordering::Release);
            }
        }
        // PAIRS WITH the fence in `set`: the caller looks at the cursors of what was taken.
        self.row.fence_seq_cst();
        budget - left
    }

    /// Takes up to `budget` of the `wanted` bits of one leaf whose summary bit was cleared; marks the summary again if
    /// anything stays. How many.
    fn take_leaf(&mut self, leaf: usize, wanted: u64, out: &mut Vec<u32>, budget: usize) -> usize {
        let at = leaf_start(self.slots) + leaf;
        let seen = self.row.load(at, Ordering::Relaxed);
        let chosen = lowest(seen & wanted, budget);
        if chosen == 0 {
            if seen != 0 {
                self.set_summary(leaf);
            }
            return 0;
        }
        // PAIRS WITH the release set of the leaf in `set`: the cursors published before the mark are visible now. A
        // hostile peer may have cleared bits since; what was not there is not taken.
        let before = self.row.fetch_and(at, !chosen, Ordering::AcqRel);
        if before & !chosen != 0 {
            self.set_summary(leaf);
        }
        let mut taken = before & chosen;
        let mut count = 0;
        while taken != 0 {
            // Bits beyond the last slot are a peer's; the first of them may be beyond what a slot can be called.
            let slot = u32::try_from(leaf * WORD).map_or(self.slots, |first| first + taken.trailing_zeros());
            taken &= taken - 1;
            if slot < self.slots {
                out.push(slot);
                self.next = (slot + 1) % self.slots;
                count += 1;
            }
        }
        count
    }

    /// The bits of summary word `s` that stand for existing leaf words.
    #[inline]
    fn existing(&self, s: usize) -> u64 {
        let leaves = leaf_words(self.slots) - s * WORD;
        if leaves >= WORD { u64::MAX } else { low_mask(leaves) }
    }
}

/// The bits below bit `count` (0..=63).
const fn low_mask(count: usize) -> u64 {
    (1 << count) - 1
}

/// The lowest `count` set bits of `bits`.
fn lowest(bits: u64, count: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..count.min(WORD) {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use crate::region::Row64;

    #[test]
    fn bits_behind_the_last_slot_of_a_word_are_no_slots() {
        for slots in [1, 63, 64, 65, 70, 128] {
            let region = Region::anonymous(4096).unwrap();
            let mut bitmap = DirtyBitmap::new(Row64::new(&region, 0, row_words(slots)).unwrap(), slots);
            // Any process that shares the memory can set them all.
            region.write(0, &vec![0xff; row_words(slots) * 8]).unwrap();
            let mut out = Vec::new();
            assert_eq!(bitmap.take(&mut out, usize::MAX), slots as usize, "{slots} slots");
            assert_eq!(out, (0..slots).collect::<Vec<_>>());
            assert_eq!((bitmap.take(&mut out, usize::MAX), bitmap.any()), (0, false), "{slots} slots");
        }
    }
}
