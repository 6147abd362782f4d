//! The `waiting` word of a pair under loom: with data or room published, nobody stays asleep unwoken.
use std::sync::atomic::Ordering;

use loom::thread;

use super::{Cell32, Cell64, Strength, explore, must_fail};
use crate::ring::{Consumer, Producer};
use crate::sleep::{arm, claim_sleep, disarm, waits_for};
use crate::sync::AtomicWord;
use crate::waiting::{ANY, READABLE, WRITABLE};

/// A reader waits for a byte that a writer sends; the ring's cursors are the condition, as in production.
fn reader_waits(strength: Strength) {
    let (tail, head, waiting) = (Cell64::new(strength), Cell64::new(strength), Cell32::new(strength));
    let mut consumer = Consumer::new(tail.clone(), head.clone(), 0, 1);
    let mut producer = Producer::new(tail, head, 0, 0, 1);
    let theirs = waiting.clone();
    let writer = thread::spawn(move || {
        assert_eq!(producer.write(1, |_, _| {}).unwrap(), 1);
        waits_for(&theirs, READABLE)
    });
    let asleep = consumer.available().unwrap() == 0
        && arm(&waiting, READABLE, || consumer.available().expect("an honest producer") > 0);
    let woken = writer.join().unwrap();
    assert!(!asleep || woken, "lost wake: the reader sleeps, the byte is there");
}

/// Both directions at once: a writer waits for room in a full ring while the reader, which makes room, waits for bytes
/// of the other direction on the same pair of processes. Each side first publishes, then goes to sleep.
fn both_wait(strength: Strength) {
    let (a_tail, b_tail) = (Cell64::new(strength), Cell64::new(strength));
    let (a_waiting, b_waiting) = (Cell32::new(strength), Cell32::new(strength));
    let side = |own: Cell64, peer: Cell64, waiting: Cell32, peer_waiting: Cell32| {
        move || {
            own.store(1, Ordering::Release);
            let wakes = waits_for(&peer_waiting, READABLE);
            let asleep = arm(&waiting, READABLE, || peer.load(Ordering::Acquire) == 1);
            (asleep, wakes)
        }
    };
    let b = thread::spawn(side(b_tail.clone(), a_tail.clone(), b_waiting.clone(), a_waiting.clone()));
    let (a_asleep, a_wakes) = side(a_tail, b_tail, a_waiting, b_waiting)();
    let (b_asleep, b_wakes) = b.join().unwrap();
    assert!(!a_asleep || b_wakes, "lost wake: A sleeps, B published and did not wake it");
    assert!(!b_asleep || a_wakes, "lost wake: B sleeps, A published and did not wake it");
}

/// One message for each sleep: a reader that needs two bytes is woken for the first, finds too little, sleeps again,
/// and must be woken for the second.
fn each_sleep_is_answered(strength: Strength) {
    let (data, messages, waiting) = (Cell64::new(strength), Cell64::new(strength), Cell32::new(strength));
    let peer = {
        let (data, messages, waiting) = (data.clone(), messages.clone(), waiting.clone());
        thread::spawn(move || {
            let answered = std::sync::atomic::AtomicU32::new(0);
            for bytes in 1..=2 {
                data.store(bytes, Ordering::Release);
                if claim_sleep(&waiting, &answered, READABLE) {
                    messages.fetch_add(1, Ordering::AcqRel);
                }
            }
        })
    };
    let sleep = || arm(&waiting, READABLE, || data.load(Ordering::Acquire) == 2);
    let mut asleep = sleep();
    if asleep && messages.fetch_and(0, Ordering::AcqRel) > 0 {
        disarm(&waiting, READABLE);
        asleep = sleep();
    }
    peer.join().unwrap();
    let woken = messages.load(Ordering::Acquire) > 0;
    assert!(!asleep || woken, "lost wake: the reader sleeps, both bytes are there");
}

/// A reading and a writing thread of one end share its word: neither wipes out the other's interest.
fn two_waiters_of_one_end(strength: Strength) {
    let (room, data) = (Cell64::new(strength), Cell64::new(strength));
    let waiting = Cell32::new(strength);
    let reader = {
        let (waiting, data) = (waiting.clone(), data.clone());
        thread::spawn(move || {
            let asleep = arm(&waiting, READABLE, || data.load(Ordering::Acquire) == 1);
            if asleep {
                // The bounded block timed out; it looks again and goes away.
                disarm(&waiting, READABLE);
            }
        })
    };
    let peer = {
        let (waiting, room) = (waiting.clone(), room.clone());
        thread::spawn(move || {
            room.store(1, Ordering::Release);
            waits_for(&waiting, WRITABLE)
        })
    };
    let asleep = arm(&waiting, WRITABLE, || room.load(Ordering::Acquire) == 1);
    reader.join().unwrap();
    let woken = peer.join().unwrap();
    assert!(!asleep || woken, "lost wake: the writer sleeps, there is room");
    let left = waiting.load(Ordering::Acquire) & ANY;
    assert_eq!(left, if asleep { WRITABLE } else { 0 }, "only the sleeper's own bit stays");
}

#[test]
fn a_reader_is_woken_for_its_byte() {
    explore(3, || reader_waits(Strength::AsWritten));
}

#[test]
fn without_fences_the_reader_sleeps_on() {
    must_fail("lost wake", 3, || reader_waits(Strength::WithoutFences));
}

#[test]
fn both_sides_may_go_to_sleep_at_once() {
    explore(3, || both_wait(Strength::AsWritten));
}

#[test]
fn without_fences_a_side_sleeps_on() {
    must_fail("lost wake", 3, || both_wait(Strength::WithoutFences));
}

#[test]
fn waiters_of_one_end_keep_their_own_bits() {
    explore(2, || two_waiters_of_one_end(Strength::AsWritten));
}

#[test]
fn no_sleep_stays_unanswered() {
    explore(3, || each_sleep_is_answered(Strength::AsWritten));
}

#[test]
fn without_fences_sleeps_stay_unanswered() {
    must_fail("lost wake", 3, || each_sleep_is_answered(Strength::WithoutFences));
}
