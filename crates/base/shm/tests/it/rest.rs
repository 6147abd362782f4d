//! The rest handshake on real processors: a thread writes whenever it likes, another gives the ring's pages back
//! whenever the ring is empty.

use std::sync::atomic::{AtomicBool, Ordering};

use shm::{Region, RingMemory, RingReader, RingWriter, Session};

const RING_BYTES: u64 = 8192;
const MESSAGES: u64 = 4000;

/// Never zero, so that a byte that was given back shows.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8 | 1
}

/// A session with one slot in use, and its ring.
fn slot() -> (Session, RingMemory) {
    let session = Session::format(Region::anonymous(Session::bytes(64) as usize).unwrap(), 64, 1).unwrap();
    let region = Region::anonymous(RING_BYTES as usize).unwrap();
    (session, RingMemory { region, offset: 0, bytes: RING_BYTES })
}

#[test]
fn pages_go_and_bytes_stay() {
    assert!(shm::join_rest_barrier(), "this kernel has no membarrier(2)");
    let (session, memory) = slot();
    let words = session.slot(0);
    let mut reader = RingReader::new(memory.clone(), words.tx_tail.clone(), words.tx_head.clone(), 0).unwrap();
    let writer = RingWriter::new(memory.clone(), words.tx_tail.clone(), words.tx_head.clone(), 0).unwrap();
    let mut writer = writer.may_rest(&words).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            for message in 0..MESSAGES {
                let bytes: Vec<u8> = (at..at + 1 + message % 64).map(byte).collect();
                let mut left = bytes.as_slice();
                while !left.is_empty() {
                    let count = if message % 5 == 0 && writer.hold() {
                        let room = writer.free().unwrap().min(left.len() as u64) as usize;
                        assert!(writer.write_ahead(0, &left[..room]) && writer.commit(room as u64));
                        writer.let_go();
                        room
                    } else {
                        writer.write(left).unwrap()
                    };
                    left = &left[count..];
                    if count == 0 {
                        std::thread::yield_now();
                    }
                }
                at += bytes.len() as u64;
                // Now and then the ring runs empty.
                (0..message % 512).for_each(|_| std::hint::spin_loop());
            }
            done.store(true, Ordering::Release);
        });
        let (mut at, mut rests, mut was_used) = (0, 0, true);
        let mut taken = [0; 256];
        loop {
            let is_last = done.load(Ordering::Acquire);
            let count = reader.read(&mut taken).unwrap();
            for &found in &taken[..count] {
                assert_eq!(found, byte(at), "byte {at}, after {rests} rests");
                at += 1;
            }
            was_used |= count > 0;
            if count > 0 {
                continue;
            }
            if is_last {
                break;
            }
            if !was_used {
                std::thread::yield_now();
                continue;
            }
            shm::begin_rest(&words);
            let passed = shm::rest_barrier();
            if passed && shm::is_unused(&words) && reader.available().unwrap() == 0 {
                memory.region.discard(0, RING_BYTES).unwrap();
                (rests, was_used) = (rests + 1, false);
            }
            shm::end_rest(&words);
        }
        assert!(rests > 10, "too easy: {rests}");
    });
}

#[test]
fn an_application_that_takes_no_part_is_left_alone() {
    let (session, memory) = slot();
    let words = session.slot(0);
    let mut writer = RingWriter::new(memory, words.tx_tail.clone(), words.tx_head.clone(), 0).unwrap();
    shm::begin_rest(&words);
    assert!(shm::rest_barrier());
    assert!(!shm::is_unused(&words));
    assert_eq!(writer.write(b"it never looks").unwrap(), 14);
}

#[test]
fn a_resting_ring_looks_full_and_a_held_one_does_not_rest() {
    let (session, memory) = slot();
    let words = session.slot(0);
    let writer = RingWriter::new(memory, words.tx_tail.clone(), words.tx_head.clone(), 0).unwrap();
    let mut writer = writer.may_rest(&words).unwrap();
    shm::begin_rest(&words);
    assert!(shm::is_unused(&words));
    assert_eq!((writer.free(), writer.write(b"no"), writer.hold()), (Ok(0), Ok(0), false));
    assert!(!writer.write_ahead(0, b"no"), "nobody holds it");
    assert!(shm::is_unused(&words), "who could not write does not use it");
    shm::end_rest(&words);
    assert!(writer.hold() && writer.write_ahead(0, b"yes"));
    assert!(!shm::is_unused(&words));
    shm::begin_rest(&words);
    assert!(writer.commit(3), "what was begun is ended");
    assert_eq!((writer.free(), writer.write(b"more")), (Ok(RING_BYTES - 3), Ok(4)));
    assert!(!shm::is_unused(&words));
    writer.let_go();
    assert!(shm::is_unused(&words));
    assert_eq!(writer.write(b"no"), Ok(0));
    shm::end_rest(&words);
    shm::reset_rest(&words);
    assert!(!shm::is_unused(&words), "a new connection takes part when it says so");
}
