//! The doorbell and the sleep flag under loom: no mark and no wake is lost.
use std::sync::atomic::Ordering;

use loom::thread;

use super::{Cell32, Cell64, Row, Strength, explore, must_fail};
use crate::dirty::DirtyBitmap;
use crate::sleep::{announce, claim, retract, sleeps, waits_for, want};
use crate::sync::AtomicWord;
use crate::waiting;

/// How a producer asks whether it must wake.
type Asks = fn(&Cell32) -> bool;

/// What the two sides share.
#[derive(Clone)]
struct Shared {
    row: Row,
    slots: u32,
    cursors: Vec<Cell64>,
    sleep: Cell32,
    wakes: Cell32,
}

impl Shared {
    fn new(slots: u32, cursors: usize, strength: Strength) -> Self {
        Self {
            row: Row::new(slots.div_ceil(64) as usize, strength),
            slots,
            cursors: (0..cursors).map(|_| Cell64::new(strength)).collect(),
            sleep: Cell32::new(strength),
            wakes: Cell32::new(Strength::AsWritten),
        }
    }

    fn bitmap(&self) -> DirtyBitmap<Row> {
        DirtyBitmap::new(self.row.clone(), self.slots)
    }

    /// Producer: publishes cursor number `of`, marks `slot`, wakes if the consumer sleeps.
    fn publish(&self, of: usize, value: u64, slot: u32, asks: Asks) {
        self.cursors[of].store(value, Ordering::Release);
        if self.bitmap().set(slot) && asks(&self.sleep) {
            self.wakes.fetch_or(1, Ordering::AcqRel);
        }
    }

    /// Consumer: takes what is marked and, before it would block, looks again. Whether it would block.
    fn consume_until_blocked(&self, bitmap: &mut DirtyBitmap<Row>, done: &mut Vec<u32>) -> bool {
        bitmap.take(done, 8);
        announce(&self.sleep);
        if bitmap.any() {
            retract(&self.sleep);
            bitmap.take(done, 8);
            return false;
        }
        true
    }
}

/// Two producers in one leaf word, one consumer that goes to sleep.
fn sleeping(strength: Strength, asks: Asks) {
    let shared = Shared::new(64, 2, strength);
    let producers: Vec<_> = (0..2)
        .map(|i| {
            let shared = shared.clone();
            thread::spawn(move || shared.publish(i, 5, i as u32, asks))
        })
        .collect();
    let (mut bitmap, mut done) = (shared.bitmap(), Vec::new());
    let mut asleep = shared.consume_until_blocked(&mut bitmap, &mut done);
    if asleep && shared.wakes.fetch_and(0, Ordering::AcqRel) != 0 {
        // Woken by the first, it may sleep again before the second comes.
        retract(&shared.sleep);
        asleep = shared.consume_until_blocked(&mut bitmap, &mut done);
    }
    for producer in producers {
        producer.join().unwrap();
    }
    if asleep && shared.wakes.load(Ordering::Acquire) == 0 {
        assert!(!bitmap.any(), "lost wake: asleep with {done:?} done, others marked");
    }
    bitmap.take(&mut done, 8);
    done.sort_unstable();
    assert_eq!(done, [0, 1], "each slot is reported once for one mark");
}

/// A waiter that says in a slot's waiting word that it waits, and then sleeps as the leader of its process; an engine
/// that wakes only for slots which somebody waits for.
fn awaited(strength: Strength) {
    let shared = Shared::new(64, 1, strength);
    let wait = Cell32::new(strength);
    let (theirs, their_wait) = (shared.clone(), wait.clone());
    let engine = thread::spawn(move || {
        theirs.cursors[0].store(5, Ordering::Release);
        let awaited = waits_for(&their_wait, waiting::READABLE);
        assert!(theirs.bitmap().set(7), "nobody else marks");
        if awaited && claim(&theirs.sleep) {
            theirs.wakes.fetch_or(1, Ordering::AcqRel);
        }
    });
    let (mut bitmap, mut done) = (shared.bitmap(), Vec::new());
    let is_ready = || shared.cursors[0].load(Ordering::Acquire) == 5;
    want(&wait, waiting::READABLE);
    let mut asleep = !is_ready();
    if asleep {
        announce(&shared.sleep);
        bitmap.take(&mut done, 8);
        asleep = done.is_empty() && !is_ready();
    }
    engine.join().unwrap();
    if asleep {
        assert!(
            shared.wakes.load(Ordering::Acquire) != 0,
            "lost wake: asleep, and the engine thinks that nobody waits"
        );
    }
}

/// One slot, marked twice: the thread that takes the mark sees the cursor published before it.
fn visibility(strength: Strength) {
    let shared = Shared::new(64, 1, strength);
    let theirs = shared.clone();
    let producer = thread::spawn(move || {
        theirs.publish(0, 1, 7, sleeps);
        theirs.publish(0, 2, 7, sleeps);
    });
    let (mut bitmap, mut done, mut seen) = (shared.bitmap(), Vec::new(), 0);
    for _ in 0..2 {
        if bitmap.take(&mut done, 1) > 0 {
            seen = shared.cursors[0].load(Ordering::Relaxed);
            assert!(seen > 0, "stale cursor: a mark was taken before its cursor was visible");
        }
    }
    // No join before the last look: the join itself would make everything visible.
    if !bitmap.any() && seen == 1 {
        // Nothing marked yet, or not visible yet; the mark for 2 must still come.
        producer.join().unwrap();
        assert_eq!(bitmap.take(&mut done, 1), 1, "lost mark");
        assert_eq!(shared.cursors[0].load(Ordering::Relaxed), 2);
    }
}

/// Two threads that publish in one slot, as reader and writer of a connection do: one of them may leave the mark, and
/// the wake, to the other. The consumer sleeps when it finds nothing.
fn shared_slot(strength: Strength) {
    let shared = Shared::new(64, 2, strength);
    let producers: Vec<_> = (0..2)
        .map(|i| {
            let shared = shared.clone();
            thread::spawn(move || shared.publish(i, 5, 7, sleeps))
        })
        .collect();
    let (mut bitmap, mut done, mut seen) = (shared.bitmap(), Vec::new(), [0; 2]);
    let asleep = shared.consume_until_blocked(&mut bitmap, &mut done);
    // Before the join, which would make everything visible.
    let look = |seen: &mut [u64; 2]| *seen = [0, 1].map(|i| shared.cursors[i].load(Ordering::Relaxed));
    if !done.is_empty() {
        look(&mut seen);
    }
    for producer in producers {
        producer.join().unwrap();
    }
    let marked = bitmap.any();
    assert!(marked || seen == [5, 5], "lost mark: {seen:?} seen, and nothing is marked");
    if asleep && marked {
        assert!(shared.wakes.load(Ordering::Acquire) != 0, "lost wake: asleep, with a mark");
    }
}

/// Slots of two leaf words marked while the consumer takes one at a time and puts the rest back.
fn budget(strength: Strength) {
    let shared = Shared::new(128, 0, strength);
    shared.bitmap().set(1);
    let theirs = shared.clone();
    let producer = thread::spawn(move || {
        theirs.bitmap().set(2);
        theirs.bitmap().set(64);
    });
    let (mut bitmap, mut done) = (shared.bitmap(), Vec::new());
    bitmap.take(&mut done, 1);
    bitmap.take(&mut done, 1);
    producer.join().unwrap();
    while bitmap.take(&mut done, 1) > 0 {}
    assert!(!bitmap.any());
    done.sort_unstable();
    assert_eq!(done, [1, 2, 64], "each slot is reported once for one mark");
}

#[test]
fn no_wake_is_lost() {
    explore(2, || sleeping(Strength::AsWritten, sleeps));
}

#[test]
fn no_wake_of_an_awaited_slot_is_lost() {
    explore(3, || awaited(Strength::AsWritten));
}

#[test]
fn without_fences_wakes_of_awaited_slots_are_lost() {
    must_fail("lost wake", 3, || awaited(Strength::WithoutFences));
}

#[test]
fn no_claimed_wake_is_lost() {
    explore(2, || sleeping(Strength::AsWritten, claim));
}

#[test]
fn without_fences_claimed_wakes_are_lost() {
    must_fail("lost wake", 2, || sleeping(Strength::WithoutFences, claim));
}

#[test]
fn without_fences_wakes_are_lost() {
    must_fail("lost wake", 2, || sleeping(Strength::WithoutFences, sleeps));
}

#[test]
fn a_taken_mark_shows_its_cursor() {
    explore(3, || visibility(Strength::AsWritten));
}

#[test]
fn without_fences_a_mark_that_was_found_hides_a_cursor() {
    must_fail("lost mark", 3, || visibility(Strength::WithoutFences));
}

#[test]
fn relaxed_marks_are_lost() {
    must_fail("lost mark", 3, || visibility(Strength::Relaxed));
}

#[test]
fn a_mark_that_another_thread_set_is_enough() {
    explore(3, || shared_slot(Strength::AsWritten));
}

#[test]
fn without_fences_the_mark_of_another_thread_is_not_enough() {
    must_fail("lost", 3, || shared_slot(Strength::WithoutFences));
}

#[test]
fn marks_beyond_the_budget_stay() {
    explore(3, || budget(Strength::AsWritten));
}
