//! Telling another process of many slots of a pair by one datagram.
//!
//! Owns the handshake between the two: who tells notes the slot in its own segment, for the next look of the other, and
//! sends a datagram only if it has sent none for that look. It must never leave a noted slot without a look: either the
//! one who tells sees that a look has begun, and notes it for the next, or the look sees the note.
//!
//! A look has a number, which the one who looks counts in its own segment: each side writes its own words alone. Notes
//! of one look and of the next lie in different words, so that those of the next wipe out nothing that is being read.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::TOLD_SLOTS as SLOTS_OF_WORD;
use crate::sync::AtomicWord;
use crate::{Pair, Word64};

const SLOTS_MASK: u64 = u32::MAX as u64;
/// Looks that may begin while a slot is noted, after which a datagram for the slot alone is sent: who counts on and on
/// is hostile.
const TRIES: usize = 4;

/// Tells the peer of one slot.
#[derive(Debug)]
pub struct PairTeller {
    /// The word of looks with an even number, and that of the others.
    words: [Word64; 2],
    bit: u64,
    looks: Word64,
}

impl PairTeller {
    /// For slot `i` of the own segment, whose other end lies in the `peer`'s. Panics if there is no such slot.
    pub fn new(own: &Pair, i: u32, peer: &Pair) -> Self {
        Self { words: own.told(i / SLOTS_OF_WORD), bit: 1 << (i % SLOTS_OF_WORD), looks: peer.looks() }
    }

    /// Notes the slot. Whether a datagram with its number must be sent: not if one was `sent` for the same look of the
    /// peer; `sent` is said by [`PairTeller::note_sent`] afterwards. `sent` is one for all slots of a pair.
    #[inline]
    pub fn tell(&self, sent: &AtomicU64) -> Option<Telling> {
        let look = tell(&self.words, self.bit, &self.looks);
        match look {
            Some(look) if sent.load(Ordering::Relaxed) == look => None,
            look => Some(Telling(look)),
        }
    }

    /// The datagram was sent.
    pub fn note_sent(&self, telling: Telling, sent: &AtomicU64) {
        // Not before it was sent: the other threads that tell rely on it.
        if let Some(look) = telling.0 {
            sent.store(look, Ordering::Relaxed);
        }
    }
}

/// A datagram that is to be sent, and the look that it is for.
#[derive(Debug, Clone, Copy)]
pub struct Telling(Option<u64>);

/// The slots of a pair that the peer told of, from all its segments.
#[derive(Debug, Default)]
pub struct PairListener {
    count: u64,
    own: Vec<Option<Word64>>,
    peers: Vec<Option<(u32, Pair)>>,
}

impl PairListener {
    /// A segment of this side, the `index`th: the peer may note slots of it from now on. None: it is there no more.
    pub fn put_own(&mut self, index: usize, pair: Option<&Pair>) {
        // Zero says that nobody looks.
        self.count = self.count.max(1);
        let looks = pair.map(Pair::looks);
        if let Some(looks) = &looks {
            looks.store(self.count, Ordering::Relaxed);
        }
        put(&mut self.own, index, looks);
    }

    /// A segment of the peer, the `index`th, whose slots are numbered from `first`.
    pub fn put_peer(&mut self, index: usize, first: u32, pair: Option<Pair>) {
        put(&mut self.peers, index, pair.map(|pair| (first, pair)));
    }

    /// Appends the slots that were noted since the last look, after the socket was drained.
    pub fn look(&mut self, slots: &mut Vec<u32>) {
        let look = self.count;
        self.count += 1;
        begin(&self.own, self.count);
        for (first, pair) in self.peers.iter().flatten() {
            for (number, word) in (0..).step_by(SLOTS_OF_WORD as usize).zip(pair.told_at(look)) {
                let mut noted = noted(&word, look);
                while noted != 0 {
                    let i = number + noted.trailing_zeros();
                    noted &= noted - 1;
                    if i < pair.slots() {
                        slots.push(first + i);
                    }
                }
            }
        }
    }
}

fn put<T>(all: &mut Vec<Option<T>>, index: usize, one: Option<T>) {
    if all.len() <= index {
        all.resize_with(index + 1, || None);
    }
    all[index] = one;
}

// The algorithm, over any memory.

/// Notes `bit` for the next look; its number. None: nobody looks, or the peer counts on and on.
#[inline]
pub(crate) fn tell<W: AtomicWord<u64>>(words: &[W; 2], bit: u64, looks: &W) -> Option<u64> {
    for _ in 0..TRIES {
        let look = looks.load(Ordering::Relaxed);
        if look == 0 {
            return None;
        }
        if !note(&words[usize::from(look % 2 == 1)], bit, look) {
            continue;
        }
        // PAIRS WITH the fence in `begin`: either that side sees the note, or this one that the look has begun.
        looks.fence_seq_cst();
        if looks.load(Ordering::Relaxed) == look {
            return Some(look);
        }
    }
    None
}

/// False: the word has notes of a later look, so this one has been over for long.
#[inline]
fn note(word: &impl AtomicWord<u64>, bit: u64, look: u64) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let later = (number(seen).wrapping_sub(number(look << 32))).cast_signed();
        let noted = match later {
            0 => seen,
            1.. => return false,
            // What was noted for an earlier look was read by it.
            _ => look << 32,
        };
        // Also where the bit is there: what was published before must be seen by who sees it.
        match word.compare_exchange(seen, noted | bit, Ordering::AcqRel) {
            Ok(_) => return true,
            Err(found) => seen = found,
        }
    }
}

fn number(word: u64) -> u32 {
    (word >> 32) as u32
}

/// A look begins: notes are for the next one now. The caller reads those that were made for the one before.
#[inline]
pub(crate) fn begin<'w, W: AtomicWord<u64> + 'w>(looks: impl IntoIterator<Item = &'w Option<W>>, next: u64) {
    let mut all = looks.into_iter().flatten().peekable();
    while let Some(word) = all.next() {
        word.store(next, Ordering::Release);
        if all.peek().is_none() {
            // PAIRS WITH the fence in `tell`.
            word.fence_seq_cst();
        }
    }
}

/// The slots that a word notes for this look.
#[inline]
pub(crate) fn noted(word: &impl AtomicWord<u64>, look: u64) -> u32 {
    let seen = word.load(Ordering::Acquire);
    if number(seen) == number(look << 32) { u32::try_from(seen & SLOTS_MASK).unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Region;

    fn pair(slots: u32) -> Pair {
        let region = Region::anonymous(usize::try_from(Pair::bytes(slots, 4096)).unwrap()).unwrap();
        Pair::format(region, slots, 4096).unwrap()
    }

    /// Tells of a slot; whether a datagram was sent for it.
    fn tell_of(teller: &PairTeller, sent: &AtomicU64) -> bool {
        let telling = teller.tell(sent);
        telling.into_iter().for_each(|telling| teller.note_sent(telling, sent));
        telling.is_some()
    }

    #[test]
    fn one_datagram_is_sent_for_each_look_whatever_slots_are_told() {
        let (own, peer) = ([pair(64), pair(128)], [pair(64), pair(128)]);
        let mut listener = PairListener::default();
        for (index, first) in [(0, 0), (1, 64)] {
            listener.put_own(index, Some(&peer[index]));
            listener.put_peer(index, first, Some(own[index].clone()));
        }
        let tellers: Vec<_> = (0..64)
            .map(|i| PairTeller::new(&own[0], i, &peer[0]))
            .chain((0..128).map(|i| PairTeller::new(&own[1], i, &peer[1])))
            .collect();
        let sent = AtomicU64::new(0);
        let mut state = 7u64;
        for round in 0..200 {
            let mut told = BTreeSet::new();
            for place in 0..round % 40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let slot = usize::try_from(state >> 33).unwrap() % tellers.len();
                assert_eq!(tell_of(&tellers[slot], &sent), place == 0, "round {round}, {place}");
                told.insert(u32::try_from(slot).unwrap());
            }
            let mut found = vec![];
            listener.look(&mut found);
            assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), told, "round {round}");
            assert_eq!(found.len(), told.len());
        }
    }

    #[test]
    fn who_never_looks_is_sent_each_slot() {
        let (own, peer) = (pair(64), pair(64));
        let (teller, sent) = (PairTeller::new(&own, 5, &peer), AtomicU64::new(0));
        assert!(tell_of(&teller, &sent) && tell_of(&teller, &sent));
    }

    #[test]
    fn a_segment_that_comes_later_counts_as_the_others() {
        let (own, peer) = (pair(64), [pair(64), pair(64)]);
        let mut listener = PairListener::default();
        listener.put_own(0, Some(&peer[0]));
        (0..5).for_each(|_| listener.look(&mut vec![]));
        listener.put_own(1, Some(&peer[1]));
        listener.put_peer(0, 0, Some(own.clone()));
        assert!(tell_of(&PairTeller::new(&own, 63, &peer[1]), &AtomicU64::new(0)));
        let mut found = vec![];
        listener.look(&mut found);
        assert_eq!(found, [63]);
        // The peer's segment is there no more.
        assert!(tell_of(&PairTeller::new(&own, 1, &peer[1]), &AtomicU64::new(0)));
        listener.put_peer(0, 0, None);
        listener.look(&mut found);
        assert_eq!(found, [63]);
    }

    #[test]
    fn hostile_words_name_slots_that_there_are() {
        let (own, peer) = (pair(4), pair(4));
        let mut listener = PairListener::default();
        listener.put_own(0, Some(&peer));
        listener.put_peer(0, 10, Some(own.clone()));
        own.told(0)[1].store(1 << 32 | 0xffff_ffff, Ordering::Relaxed);
        let mut found = vec![];
        listener.look(&mut found);
        assert_eq!(found, [10, 11, 12, 13]);
        // A peer that says it is far ahead, and then that it is not.
        let (teller, sent) = (PairTeller::new(&own, 0, &peer), AtomicU64::new(0));
        for looks in [u64::MAX, 3, u64::MAX / 2, 1 << 32, 1] {
            peer.looks().store(looks, Ordering::Relaxed);
            teller.tell(&sent);
        }
    }
}
