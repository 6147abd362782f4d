//! Ring cursors under loom: what the consumer reads was written, what the producer writes over was read.
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{Cell64, Strength, explore, must_fail};
use crate::ring::{Consumer, Producer, Span};
use crate::sync::AtomicWord;

const RING_BYTES: usize = 2;

/// Bytes whose unordered accesses loom reports.
type Bytes = [UnsafeCell<u8>];

fn write(producer: &mut Producer<Cell64>, bytes: &Bytes, src: &[u8]) -> usize {
    let copy = |at: u64, piece: std::ops::Range<usize>| {
        for (cell, &byte) in bytes[at as usize..].iter().zip(&src[piece]) {
            // SAFETY: loom checks the access; that no other thread is at this byte is what the model shows.
            cell.with_mut(|place| unsafe { *place = byte });
        }
    };
    producer.write(src.len(), copy).expect("an honest consumer")
}

fn read(consumer: &mut Consumer<Cell64>, bytes: &Bytes, most: usize) -> Vec<u8> {
    let mut out = vec![0; most];
    let copy = |at: u64, piece: std::ops::Range<usize>| {
        for (cell, byte) in bytes[at as usize..].iter().zip(&mut out[piece]) {
            // SAFETY: as in `write`.
            *byte = cell.with(|place| unsafe { *place });
        }
    };
    let count = consumer.peek(most, copy).expect("an honest producer");
    consumer.consume(count as u64);
    out.truncate(count);
    out
}

/// One byte, then as many of two more as fit at once, then the rest; wraps the ring and the offsets.
fn model(strength: Strength) {
    let bytes: Arc<[UnsafeCell<u8>; RING_BYTES]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
    let (tail, head) = (Cell64::new(strength), Cell64::new(strength));
    let at = u64::MAX;
    let mut consumer = Consumer::new(tail.clone(), head.clone(), at, RING_BYTES as u64);
    let mut producer = Producer::new(tail, head, at, at, RING_BYTES as u64);
    let theirs = bytes.clone();
    let writer = thread::spawn(move || {
        let src = [1, 2, 3];
        let mut sent = write(&mut producer, &theirs[..], &src[..1]);
        sent += write(&mut producer, &theirs[..], &src[sent..]);
        sent += write(&mut producer, &theirs[..], &src[sent..]);
        (producer, sent)
    });
    let mut seen = read(&mut consumer, &bytes[..], 1);
    seen.extend(read(&mut consumer, &bytes[..], 2));
    let (mut producer, mut sent) = writer.join().unwrap();
    seen.extend(read(&mut consumer, &bytes[..], 2));
    sent += write(&mut producer, &bytes[..], &[1, 2, 3][sent..]);
    assert_eq!(sent, 3);
    seen.extend(read(&mut consumer, &bytes[..], 3));
    assert_eq!(seen, [1, 2, 3]);
}

const GROWN_BYTES: usize = 4;

/// A ring that grows while it is read: a reader that sees a byte beyond the place of growth knows that place.
fn growing(strength: Strength) {
    let bytes: Arc<[UnsafeCell<u8>; GROWN_BYTES]> = Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)));
    let words = || Cell64::new(strength);
    let (tail, head, grown_at) = (words(), words(), words());
    let span = Span::growing(RING_BYTES as u64, GROWN_BYTES as u64);
    let mut consumer = Consumer::growing((tail.clone(), head.clone(), grown_at.clone()), 0, span);
    let mut producer = Producer::growing((tail, head, grown_at), 0, span);
    let theirs = bytes.clone();
    let src = [1, 2, 3, 4, 5, 6];
    let mut sent = write(&mut producer, &theirs[..], &src[..2]);
    let mut seen = read(&mut consumer, &bytes[..], 2);
    sent += write(&mut producer, &theirs[..], &src[sent..4]);
    let writer = thread::spawn(move || {
        // It is full.
        let count = write(&mut producer, &theirs[..], &src[sent..]);
        (producer, sent + count)
    });
    seen.extend(read(&mut consumer, &bytes[..], 6));
    let (mut producer, mut sent) = writer.join().unwrap();
    seen.extend(read(&mut consumer, &bytes[..], 6));
    sent += write(&mut producer, &bytes[..], &src[sent..]);
    seen.extend(read(&mut consumer, &bytes[..], 6));
    assert_eq!((sent, seen), (6, src.to_vec()));
}

#[test]
fn growth_is_visible_before_the_bytes_after_it() {
    explore(3, || growing(Strength::AsWritten));
}

#[test]
fn growth_behind_relaxed_cursors_is_missed() {
    must_fail("Causality violation", 3, || growing(Strength::Relaxed));
}

/// A ring whose place of growth the reader's side chooses, as an engine does: a writer that uses more than the first
/// span knows the place, and the bytes that it writes over were read.
fn growing_when_told(strength: Strength) {
    let bytes: Arc<[UnsafeCell<u8>; GROWN_BYTES]> = Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)));
    let words = || Cell64::new(strength);
    let (tail, head, grown_at) = (words(), words(), words());
    let mut span = Span::growing(RING_BYTES as u64, GROWN_BYTES as u64);
    let mut consumer = Consumer::growing((tail.clone(), head.clone(), grown_at.clone()), 0, span);
    let mut producer = Producer::growing_when_told((tail, head, grown_at.clone()), 0, span);
    let theirs = bytes.clone();
    let src = [1, 2, 3, 4, 5, 6];
    let sent = write(&mut producer, &theirs[..], &src[..2]);
    let writer = thread::spawn(move || {
        let count = write(&mut producer, &theirs[..], &src[sent..]);
        (producer, sent + count)
    });
    grown_at.store(span.grow(0).unwrap(), std::sync::atomic::Ordering::Relaxed);
    let mut seen = read(&mut consumer, &bytes[..], 1);
    let (mut producer, mut sent) = writer.join().unwrap();
    while sent < src.len() {
        sent += write(&mut producer, &bytes[..], &src[sent..]);
        seen.extend(read(&mut consumer, &bytes[..], 6));
    }
    seen.extend(read(&mut consumer, &bytes[..], 6));
    assert_eq!(seen, src);
}

#[test]
fn a_writer_that_is_told_where_its_ring_grows_loses_nothing() {
    explore(3, || growing_when_told(Strength::AsWritten));
}

#[test]
fn a_told_writer_behind_relaxed_cursors_races() {
    must_fail("Causality violation", 3, || growing_when_told(Strength::Relaxed));
}

#[test]
fn every_byte_is_visible_before_its_cursor() {
    explore(3, || model(Strength::AsWritten));
}

#[test]
fn relaxed_cursors_race_on_the_bytes() {
    must_fail("Causality violation", 3, || model(Strength::Relaxed));
}
