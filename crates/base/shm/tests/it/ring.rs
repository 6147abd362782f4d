//! Rings over mapped memory: against a model, at the edges of the offsets, and against a lying peer.
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use shm::{PeerFault, Region, RegionError, RingMemory, RingReader, RingWriter, Word64, check_cursor};

/// A ring of `bytes` bytes behind its two words.
struct Fixture {
    memory: RingMemory,
    tail: Word64,
    head: Word64,
}

fn fixture(bytes: u64) -> Fixture {
    let region = Region::anonymous(128 + bytes as usize).unwrap();
    let (tail, head) = (region.word64(0).unwrap(), region.word64(64).unwrap());
    Fixture { memory: RingMemory { region, offset: 128, bytes }, tail, head }
}

impl Fixture {
    fn ends(&self, at: u64) -> (RingWriter, RingReader) {
        self.head.store(at, Ordering::Relaxed);
        let writer = RingWriter::new(self.memory.clone(), self.tail.clone(), self.head.clone(), at).unwrap();
        let reader = RingReader::new(self.memory.clone(), self.tail.clone(), self.head.clone(), at).unwrap();
        (writer, reader)
    }
}

/// The ends of a ring that starts with its `first` bytes, and the word of growth.
fn growing(fixture: &Fixture, first: u64) -> (RingWriter, RingReader, Word64) {
    let grown_at = fixture.memory.region.word64(32).unwrap();
    let words = || (fixture.tail.clone(), fixture.head.clone(), grown_at.clone());
    let writer = RingWriter::growing(fixture.memory.clone(), first, words(), 0).unwrap();
    let reader = RingReader::growing(fixture.memory.clone(), first, words(), 0).unwrap();
    (writer, reader, grown_at)
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Read(usize),
    Peek(usize),
    Consume(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..90).prop_map(Step::Write),
        2 => (0usize..90).prop_map(Step::Read),
        1 => (0usize..90).prop_map(Step::Peek),
        1 => (0u64..90).prop_map(Step::Consume),
    ]
}

/// One step of the reading end, against the model.
fn read_step(step: &Step, reader: &mut RingReader, model: &mut VecDeque<u8>) -> Result<(), TestCaseError> {
    match *step {
        Step::Write(_) => unreachable!("the writing end's"),
        Step::Read(len) => {
            let mut bytes = vec![0; len];
            let count = reader.read(&mut bytes).unwrap();
            prop_assert_eq!(count, len.min(model.len()));
            let expected: Vec<u8> = model.drain(..count).collect();
            prop_assert_eq!(&bytes[..count], expected);
        }
        Step::Peek(len) => {
            let mut bytes = vec![0; len];
            let count = reader.peek(&mut bytes).unwrap();
            prop_assert_eq!(count, len.min(model.len()));
            let expected: Vec<u8> = model.iter().copied().take(count).collect();
            prop_assert_eq!(&bytes[..count], expected);
        }
        Step::Consume(count) => {
            prop_assert_eq!(reader.available().unwrap(), model.len() as u64);
            let dropped = reader.consume(count);
            prop_assert_eq!(dropped, count.min(model.len() as u64));
            model.drain(..dropped as usize);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Whatever is written and read, from wherever the offsets start, is what a queue of bytes would give.
    #[test]
    fn ring_is_a_bounded_byte_queue(
        steps in proptest::collection::vec(step(), 1..200),
        at in prop_oneof![Just(0u64), any::<u64>(), (0u64..300).prop_map(|below| u64::MAX - below)],
        size_log2 in 0u32..8,
    ) {
        let fixture = fixture(1 << size_log2);
        let (mut writer, mut reader) = fixture.ends(at);
        let capacity = 1usize << size_log2;
        let mut model = VecDeque::new();
        let mut counter = 0u8;
        for step in steps {
            match step {
                Step::Write(len) => {
                    let bytes: Vec<u8> = (0..len).map(|i| counter.wrapping_add(i as u8)).collect();
                    let count = writer.write(&bytes).unwrap();
                    prop_assert_eq!(count, len.min(capacity - model.len()));
                    counter = counter.wrapping_add(count as u8);
                    model.extend(&bytes[..count]);
                }
                step => read_step(&step, &mut reader, &mut model)?,
            }
            prop_assert_eq!(writer.free().unwrap(), (capacity - model.len()) as u64);
            prop_assert_eq!(writer.tail().wrapping_sub(reader.head()), model.len() as u64);
        }
    }

    /// A ring that may grow is a queue of bytes too, which never shrinks, and is as large as said once it was
    /// full.
    #[test]
    fn growing_ring_is_a_byte_queue_that_gets_larger(
        steps in proptest::collection::vec(step(), 1..300),
        first_log2 in 0u32..7,
        more_log2 in 0u32..4,
    ) {
        let fixture = fixture(1 << (first_log2 + more_log2));
        let (first, full) = (1usize << first_log2, 1usize << (first_log2 + more_log2));
        let (mut writer, mut reader, _) = growing(&fixture, first as u64);
        let mut model = VecDeque::new();
        let (mut counter, mut largest) = (0u8, 0);
        for step in steps {
            match step {
                Step::Write(len) => {
                    let bytes: Vec<u8> = (0..len).map(|i| counter.wrapping_add(i as u8)).collect();
                    let count = writer.write(&bytes).unwrap();
                    prop_assert!(count >= len.min(first.saturating_sub(model.len())));
                    counter = counter.wrapping_add(count as u8);
                    model.extend(&bytes[..count]);
                    prop_assert!(model.len() <= full);
                    largest = largest.max(model.len());
                }
                step => read_step(&step, &mut reader, &mut model)?,
            }
        }
        // Empty, and asked for more than the first bytes, it has room for all that it may hold.
        let left = model.len() as u64;
        prop_assert_eq!(reader.available().unwrap(), left);
        reader.consume(left);
        prop_assert!(writer.free_for(full as u64).unwrap() >= (full - first) as u64);
        let lap = vec![9; first];
        prop_assert_eq!(writer.write(&lap).unwrap(), first);
        prop_assert_eq!(reader.read(&mut vec![0; first]).unwrap(), first);
        prop_assert_eq!(writer.free().unwrap(), full as u64);
    }

    /// Whatever the writer's word says of growth, the reader stays in the ring, and sees a lie or harmless bytes.
    #[test]
    fn any_word_of_growth_is_refused_or_harmless(lies in proptest::collection::vec(any::<u64>(), 1..20), near in 0u64..200) {
        for lie in lies.into_iter().chain([near, near * 16, u64::MAX - near]) {
            let fixture = fixture(64);
            let (mut writer, mut reader, grown_at) = growing(&fixture, 16);
            writer.write(&[7; 10]).unwrap();
            grown_at.store(lie, Ordering::Relaxed);
            let legal = lie <= 16;
            match reader.read(&mut [0; 100]) {
                Ok(count) => prop_assert!(legal && count == 10),
                Err(fault) => {
                    prop_assert!(!legal);
                    prop_assert_eq!(fault, PeerFault::Cursor { what: "grown_at", from: 0, to: lie, ring_bytes: 16 });
                }
            }
        }
    }

    /// A cursor is accepted exactly in `last..=limit`, modulo 2^64; whatever is refused changes nothing.
    #[test]
    fn check_cursor_accepts_exactly_the_range(last: u64, span in 0u64..5000, ring in 0u64..5000, value: u64, near in 0u64..6000) {
        let limit = last.wrapping_add(span);
        for value in [value, last.wrapping_add(near), last.wrapping_sub(near)] {
            let legal = span <= ring && value.wrapping_sub(last) <= span;
            let verdict = check_cursor("head", last, value, limit, ring);
            let fault = PeerFault::Cursor { what: "head", from: last, to: value, ring_bytes: ring };
            prop_assert_eq!(verdict, if legal { Ok(value) } else { Err(fault) });
        }
    }

    /// No value in the peer's word makes a writer write over unread bytes or a reader run past the ring.
    #[test]
    fn any_peer_cursor_is_refused_or_harmless(heads in proptest::collection::vec(any::<u64>(), 1..20), start: u64, jitter in 0u64..200) {
        let fixture = fixture(64);
        let (mut writer, mut reader) = fixture.ends(start);
        for value in heads.into_iter().chain([start.wrapping_add(jitter), start.wrapping_sub(jitter)]) {
            let before = writer.head();
            fixture.head.store(value, Ordering::Release);
            match writer.write(&[7; 16]) {
                Ok(count) => prop_assert!(count <= 16 && writer.tail().wrapping_sub(writer.head()) <= 64),
                Err(_) => prop_assert_eq!(writer.head(), before),
            }
            let (tail, head) = (reader.tail(), reader.head());
            fixture.tail.store(value, Ordering::Release);
            match reader.read(&mut [0; 200]) {
                Ok(count) => prop_assert!(count <= 64 && reader.tail().wrapping_sub(head) <= 64),
                Err(_) => prop_assert_eq!((reader.tail(), reader.head()), (tail, head)),
            }
        }
    }
}

#[test]
fn a_head_that_goes_back_or_passes_the_tail_is_a_fault() {
    let fixture = fixture(64);
    let (mut writer, mut reader) = fixture.ends(1000);
    assert_eq!(writer.write(&[1; 40]).unwrap(), 40);
    assert_eq!(reader.read(&mut [0; 30]).unwrap(), 30);
    assert_eq!(writer.free().unwrap(), 54);
    for lie in [1029, 1041, 999, 0, u64::MAX, 1030 + (1 << 63)] {
        fixture.head.store(lie, Ordering::Release);
        let fault = PeerFault::Cursor { what: "head", from: 1030, to: lie, ring_bytes: 64 };
        assert_eq!(writer.free(), Err(fault), "head {lie}");
        assert_eq!(writer.write(&[2; 60]), Err(fault), "head {lie}");
        assert_eq!((writer.head(), writer.tail()), (1030, 1040));
    }
}

#[test]
fn a_tail_that_goes_back_or_passes_the_capacity_is_a_fault() {
    let fixture = fixture(64);
    let (mut writer, mut reader) = fixture.ends(0);
    assert_eq!(writer.write(&[1; 40]).unwrap(), 40);
    assert_eq!(reader.available().unwrap(), 40);
    for lie in [39, 65, 1 << 40, u64::MAX] {
        fixture.tail.store(lie, Ordering::Release);
        let fault = PeerFault::Cursor { what: "tail", from: 40, to: lie, ring_bytes: 64 };
        assert_eq!(reader.available(), Err(fault), "tail {lie}");
        assert_eq!(reader.read(&mut [0; 64]), Err(fault), "tail {lie}");
        assert_eq!((reader.head(), reader.tail()), (0, 40));
    }
}

#[test]
fn a_quiet_read_shows_no_room_until_it_is_published() {
    let fixture = fixture(64);
    let (mut writer, mut reader) = fixture.ends(u64::MAX - 20);
    assert_eq!(writer.write(&[1; 64]), Ok(64));
    let mut out = [0; 40];
    assert_eq!(reader.read_quietly(&mut out), Ok(40));
    assert_eq!(writer.write(&[2; 8]), Ok(0), "nothing is known to be free");
    assert_eq!(reader.available(), Ok(24));
    reader.publish();
    assert_eq!(writer.write(&[2; 64]), Ok(40));
    assert_eq!(reader.available(), Ok(64));
}

#[test]
fn own_published_cursor_is_never_read_back() {
    let fixture = fixture(64);
    let (mut writer, mut reader) = fixture.ends(0);
    writer.write(&[1; 10]).unwrap();
    fixture.tail.store(u64::MAX, Ordering::Release); // what a peer with a writable mapping could do
    assert_eq!(writer.free().unwrap(), 54);
    assert_eq!(writer.write(&[2; 10]).unwrap(), 10);
    assert_eq!(writer.tail(), 20);
    assert_eq!(reader.available().unwrap(), 20);
    fixture.head.store(12345, Ordering::Release);
    assert_eq!(reader.read(&mut [0; 5]).unwrap(), 5);
    assert_eq!(fixture.head.load(Ordering::Acquire), 5);
}

#[test]
fn a_ring_grows_when_a_write_finds_it_full() {
    let fixture = fixture(64);
    let (mut writer, mut reader, grown_at) = growing(&fixture, 16);
    assert_eq!((writer.write(&[1; 10]), grown_at.load(Ordering::Relaxed)), (Ok(10), 0));
    assert_eq!((writer.write(&[2; 100]), grown_at.load(Ordering::Relaxed)), (Ok(54), 16));
    assert_eq!(writer.write(&[3; 100]), Ok(0), "the unread bytes of the first span are in the way of more");
    let mut out = [0; 100];
    assert_eq!(reader.read(&mut out), Ok(64));
    assert_eq!((&out[..10], &out[10..64]), (&[1; 10][..], &[2; 54][..]));
    assert_eq!(writer.write(&[4; 100]), Ok(64));
    assert!(RingWriter::growing(fixture.memory.clone(), 128, words_of(&fixture), 0).is_err(), "more than the ring has");
    assert!(RingReader::growing(fixture.memory.clone(), 24, words_of(&fixture), 0).is_err(), "no power of two");
}

/// Wherever in a lap it is full: the reader may be waiting for just what does not fit.
#[test]
fn a_ring_that_grows_holds_all_that_it_may_at_once() {
    for read in 0..40 {
        let fixture = fixture(64);
        let (mut writer, mut reader, grown_at) = growing(&fixture, 16);
        for _ in 0..read {
            assert_eq!((writer.write(&[9]), reader.read(&mut [0])), (Ok(1), Ok(1)));
        }
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!((writer.write(&bytes), grown_at.load(Ordering::Relaxed)), (Ok(64), read + 16), "{read} read before");
        let mut out = [0; 100];
        assert_eq!((reader.read(&mut out), &out[..64]), (Ok(64), &bytes[..64]), "{read} read before");
        assert_eq!((writer.write(&bytes), reader.read(&mut out)), (Ok(64), Ok(64)));
        assert_eq!(out[..64], bytes[..64]);
    }
}

/// A writer that asks for room before it writes would wait for ever if only a write grew the ring.
#[test]
fn a_full_ring_has_room_for_who_asks() {
    let fixture = fixture(64);
    let (mut writer, _reader, grown_at) = growing(&fixture, 16);
    assert_eq!((writer.write(&[1; 16]), grown_at.load(Ordering::Relaxed)), (Ok(16), 0), "what fits makes it no larger");
    assert_eq!((writer.free(), grown_at.load(Ordering::Relaxed)), (Ok(48), 16));
}

#[test]
fn a_writer_leaves_no_more_unread_than_it_was_told() {
    let fixture = fixture(64);
    let (mut writer, mut reader, grown_at) = growing(&fixture, 16);
    writer.write(&[1]).unwrap();
    writer.set_unread_max(8);
    assert_eq!((writer.write(&[2; 100]), writer.free()), (Ok(7), Ok(0)));
    assert_eq!(grown_at.load(Ordering::Relaxed), 0, "it is not the ring that has no room");
    assert_eq!(reader.read(&mut [0; 3]), Ok(3));
    assert_eq!((writer.free(), writer.write(&[3; 2])), (Ok(3), Ok(2)));
    assert_eq!((writer.write(&[3; 2]), writer.write(&[3; 2])), (Ok(1), Ok(0)));
    assert_eq!(writer.free_for(8), Ok(8), "who reserves room has it");
    writer.set_unread_max(4);
    assert_eq!(writer.free(), Ok(0), "fewer than there are");
    writer.set_unread_max(20);
    assert_eq!((writer.write(&[4; 100]), grown_at.load(Ordering::Relaxed)), (Ok(12), 19), "more than it had at first");
    writer.set_unread_max(u64::MAX);
    assert_eq!(writer.write(&[5; 100]), Ok(44), "all that the ring holds");
}

fn words_of(fixture: &Fixture) -> (Word64, Word64, Word64) {
    (fixture.tail.clone(), fixture.head.clone(), fixture.memory.region.word64(32).unwrap())
}

#[test]
fn resume_goes_on_where_another_process_stopped() {
    let fixture = fixture(64);
    let (mut writer, mut reader) = fixture.ends(0);
    writer.write(b"before").unwrap();
    reader.read(&mut [0; 2]).unwrap();
    let (tail, head) = (fixture.tail.clone(), fixture.head.clone());
    let mut writer = RingWriter::resume(fixture.memory.clone(), tail.clone(), head.clone(), writer.tail(), 0).unwrap();
    let mut reader = RingReader::new(fixture.memory.clone(), tail.clone(), head.clone(), reader.head()).unwrap();
    assert_eq!(writer.write(b" after").unwrap(), 6);
    let mut all = [0; 32];
    let count = reader.read(&mut all).unwrap();
    assert_eq!(&all[..count], b"fore after");
    let refused = RingWriter::resume(fixture.memory.clone(), tail, head, 100, 0).unwrap_err();
    assert!(matches!(refused, RegionError::OutOfBounds { len: 100, .. }), "{refused}");
}

#[test]
fn new_refuses_rings_that_do_not_lie_in_the_region() {
    let fixture = fixture(64);
    let words = || (fixture.tail.clone(), fixture.head.clone());
    for (offset, bytes) in [(129, 64), (0, 256), (u64::MAX, 64), (u64::MAX - 63, 64), (0, 1 << 63)] {
        let memory = RingMemory { region: fixture.memory.region.clone(), offset, bytes };
        let (tail, head) = words();
        let writer = RingWriter::new(memory.clone(), tail.clone(), head.clone(), 0).unwrap_err();
        let reader = RingReader::new(memory, tail, head, 0).unwrap_err();
        assert_eq!(writer, RegionError::OutOfBounds { offset, len: bytes, size: 192 });
        assert_eq!(reader, writer);
    }
    for bytes in [0, 3, 63] {
        let memory = RingMemory { region: fixture.memory.region.clone(), offset: 0, bytes };
        let (tail, head) = words();
        let refused = RingReader::new(memory, tail, head, 0).unwrap_err();
        assert!(matches!(refused, RegionError::Geometry { value, .. } if value == bytes), "{refused}");
    }
}

/// Two threads, a small ring, both ends spinning: every byte arrives once and in order.
#[test]
fn two_threads_pass_every_byte_in_order() {
    const TOTAL: u64 = 1 << 20;
    let fixture = fixture(1024);
    let (mut writer, mut reader) = fixture.ends(u64::MAX - TOTAL / 2);
    let pattern = |at: u64| (at ^ (at >> 8) ^ (at >> 16)) as u8;
    let producer = std::thread::spawn(move || {
        let mut sent = 0u64;
        while sent < TOTAL {
            let len = (1 + sent * 7 % 700).min(TOTAL - sent);
            let bytes: Vec<u8> = (sent..sent + len).map(pattern).collect();
            let count = writer.write(&bytes).unwrap();
            sent += count as u64;
            if count == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut received = 0u64;
    let mut buffer = [0; 513];
    while received < TOTAL {
        let count = reader.read(&mut buffer).unwrap();
        for &byte in &buffer[..count] {
            assert_eq!(byte, pattern(received), "byte {received}");
            received += 1;
        }
        if count == 0 {
            assert!(!producer.is_finished() || reader.available().unwrap() > 0, "producer ended early");
            std::thread::yield_now();
        }
    }
    producer.join().unwrap();
}

/// From near the end of the offsets too, bytes written ahead are there once committed, and nothing beyond the room is.
#[test]
fn bytes_are_written_and_looked_at_ahead() {
    for at in [0, 60, u64::MAX - 5] {
        let fixture = fixture(64);
        let (mut writer, mut reader) = fixture.ends(at);
        assert_eq!(writer.free(), Ok(64));
        assert!(writer.write_ahead(4, b"body") && writer.write_ahead(0, b"head") && writer.write_ahead(64, b""));
        assert!(!writer.write_ahead(61, b"long") && !writer.write_ahead(u64::MAX, b"x") && !writer.commit(65));
        assert_eq!(reader.available(), Ok(0), "nothing is committed yet");
        assert!(writer.commit(8) && !writer.commit(57));
        assert!(!writer.write_ahead(56, b"x"), "the room is less now");
        assert_eq!(reader.available(), Ok(8));
        let mut seen = [0; 8];
        assert_eq!((reader.peek_ahead(5, &mut seen), &seen[..3]), (3, &b"ody"[..]));
        assert_eq!((reader.peek_ahead(8, &mut seen), reader.peek_ahead(u64::MAX, &mut seen)), (0, 0));
        assert_eq!((reader.consume_quietly(6), writer.free()), (6, Ok(56)));
        reader.publish();
        assert_eq!((writer.free(), reader.consume_quietly(9)), (Ok(62), 2));
    }
}
