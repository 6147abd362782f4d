//! Every state of small rings, from offsets at which numbers wrap: no unread byte is overwritten, and no room is lost.

use std::collections::{HashSet, VecDeque};

use super::*;
use crate::ring::check_cursor;

/// Offsets from which a ring starts: the usual one, and others after which bits carry far or the offset wraps.
const STARTS: [u64; 4] = [0, (1 << 32) - 16, (1 << 63) - 16, u64::MAX - 15];
/// Laps of the whole ring that are walked through.
const LAPS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    /// Bytes written and read since the start.
    written: u64,
    read: u64,
    grown_at: Option<u64>,
}

/// All states that a writer and a reader reach byte by byte, with the ring growing at any of them.
fn walk(start: u64, first: u64, full: u64) -> usize {
    let span = |state: &State| Span { first, full, grown_at: state.grown_at };
    let begin = State { written: 0, read: 0, grown_at: None };
    let mut seen = HashSet::from([begin]);
    let mut ahead = VecDeque::from([begin]);
    while let Some(state) = ahead.pop_front() {
        let span = span(&state);
        let (head, tail) = (start.wrapping_add(state.read), start.wrapping_add(state.written));
        let unread = state.written - state.read;
        let places: HashSet<u64> = (0..unread).map(|n| span.place(head.wrapping_add(n)).0).collect();
        assert_eq!(places.len() as u64, unread, "two unread bytes at one place: {state:?} of {first}..{full}");
        assert!(places.iter().all(|place| *place < full));
        assert_pieces(&span, head, unread);
        let room = span.room(tail, head);
        assert!(room <= span.fill_max() && (room > 0 || unread > 0), "nothing moves: {state:?} of {first}..{full}");
        let mut next = vec![];
        if room > 0 {
            assert!(!places.contains(&span.place(tail).0), "overwritten: {state:?} of {first}..{full}");
            let left = span.room(tail.wrapping_add(1), head);
            assert!(left + 1 >= room, "room for {room}, after one byte for {left}: {state:?}");
            next.push(State { written: state.written + 1, ..state });
        }
        if unread > 0 {
            next.push(State { read: state.read + 1, ..state });
        }
        // Who chooses, the writer itself or an engine for it, knows this head; the reader may have read on. Offsets wrap
        // after 2^64 bytes: a ring that did not grow until then is left alone, 0 is no place to grow at.
        let mut chosen = span;
        if head >= start
            && let Some(at) = chosen.grow(head)
        {
            for read in state.read..=state.written {
                let mut readers = span;
                assert_eq!(readers.on_told(at, start.wrapping_add(read)), Ok(()), "{state:?}");
                assert_eq!(readers.grown_at, Some(at));
            }
            let mut writers = span;
            assert_eq!((writers.on_told(at, tail), writers), (Ok(()), chosen), "{state:?}");
            assert!(tail <= at, "the place is behind the writer: {state:?}");
            assert_eq!(chosen.room(tail, head), full - unread, "it does not hold all that it could: {state:?}");
            next.push(State { grown_at: Some(at), ..state });
        }
        ahead.extend(next.into_iter().filter(|next| next.written <= LAPS * full && seen.insert(*next)));
    }
    seen.len()
}

/// Bytes that are said to lie together do.
fn assert_pieces(span: &Span, head: u64, unread: u64) {
    span.pieces(head, unread as usize, |place, piece| {
        for (n, byte) in piece.enumerate() {
            assert_eq!(span.place(head.wrapping_add(byte as u64)).0, place + n as u64, "{span:?} from {head}");
        }
    });
}

#[test]
fn small_rings_keep_every_unread_byte() {
    let mut states = 0;
    for start in STARTS {
        for first in [1, 2, 4] {
            for full in [first, 2 * first, 4 * first] {
                states += walk(start, first, full);
            }
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn cursors_are_taken_exactly_within_their_bounds() {
    const NEAR: i128 = 12;
    let wrapped = |n: i128| u64::try_from(n.rem_euclid(1 << 64)).expect("below 2^64");
    for start in STARTS {
        for ring in [1_u64, 2, 8] {
            for span in 0..=ring + 2 {
                for at in -NEAR..=NEAR + i128::from(ring) {
                    let limit = wrapped(i128::from(start) + i128::from(span));
                    let value = wrapped(i128::from(start) + at);
                    let allowed = span <= ring && (0..=i128::from(span)).contains(&at);
                    assert_eq!(
                        check_cursor("cursor", start, value, limit, ring).is_ok(),
                        allowed,
                        "{start} {span} {at}"
                    );
                }
            }
        }
    }
}
