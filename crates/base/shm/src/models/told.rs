//! Slots that are told of in notes, under loom: who notes without a datagram is seen by a look.
use std::sync::atomic::Ordering;

use loom::thread;

use super::{Cell64, Strength, explore, must_fail};
use crate::sync::AtomicWord;
use crate::told::{begin, noted, tell};

/// One side publishes and tells; the other has begun a look already, looks once more for each datagram, and knows in the
/// end what was published.
fn what_is_told_is_looked_at(strength: Strength, threads: u64) {
    let (looks, data) = (Cell64::new(strength), Cell64::new(strength));
    let words = [Cell64::new(strength), Cell64::new(strength)];
    looks.store(1, Ordering::Release);
    let (sent, datagrams) = (Cell64::new(Strength::AsWritten), Cell64::new(Strength::AsWritten));
    let tellers: Vec<_> = (0..threads)
        .map(|slot| {
            let (looks, data, words) = (looks.clone(), data.clone(), words.clone());
            let (sent, datagrams) = (sent.clone(), datagrams.clone());
            thread::spawn(move || {
                data.fetch_or(1 << slot, Ordering::Relaxed);
                let look = tell(&words, 1 << slot, &looks);
                if look.is_none_or(|look| sent.load(Ordering::Relaxed) != look) {
                    datagrams.fetch_add(1, Ordering::AcqRel);
                    sent.store(look.unwrap_or(0), Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut seen = 0;
    let mut look_once = |look: u64| {
        datagrams.fetch_and(0, Ordering::AcqRel);
        begin([&Some(looks.clone())], look + 1);
        let found = u64::from(noted(&words[usize::from(look % 2 == 1)], look));
        // Who sees the note sees what was published before it.
        assert_eq!(data.load(Ordering::Relaxed) & found, found, "a note without its data");
        seen |= found;
    };
    // At any time: it was woken by something else.
    look_once(1);
    tellers.into_iter().for_each(|teller| teller.join().expect("no panic"));
    if datagrams.load(Ordering::Acquire) > 0 {
        look_once(2);
    }
    assert_eq!(seen, (1 << threads) - 1, "lost wake: a slot was noted, and nobody looks");
}

#[test]
fn a_slot_that_was_noted_is_looked_at() {
    explore(3, || what_is_told_is_looked_at(Strength::AsWritten, 1));
}

#[test]
fn slots_of_two_threads_need_one_datagram_and_are_both_looked_at() {
    explore(3, || what_is_told_is_looked_at(Strength::AsWritten, 2));
}

#[test]
fn without_fences_a_note_is_lost() {
    must_fail("lost wake", 3, || what_is_told_is_looked_at(Strength::WithoutFences, 1));
}

#[test]
fn without_orders_a_note_comes_before_its_data() {
    must_fail("a note without its data", 3, || what_is_told_is_looked_at(Strength::Relaxed, 1));
}
