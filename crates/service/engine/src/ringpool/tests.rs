//! Rings come from chunks, go back, and never overlap.

use super::*;
use crate::table::Key;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Of a pool without rings that grow.
const FIXED: RingSize = RingSize::fixed(4096);

fn mr(n: u32, region: &Region) -> Mr {
    Mr { id: MrId(n), lkey: Lkey(n), rkey: Rkey(n + 1000), len: region.len() }
}

fn add(pool: &mut RingPool, number: u32, kind: ChunkKind, ring_bytes: u32, rings: u32) {
    let region = Region::anonymous((ring_bytes * rings) as usize).unwrap();
    assert_eq!(pool.check_chunk(number, RingSize::fixed(ring_bytes), &region), Ok(rings));
    let mr = mr(number, &region);
    pool.add_chunk(number, kind, RingSize::fixed(ring_bytes), region, mr);
}

fn add_both(pool: &mut RingPool, number: u32, ring_bytes: u32, rings: u32) {
    add(pool, number, ChunkKind::Tx, ring_bytes, rings);
    add(pool, number + 1, ChunkKind::Rx, ring_bytes, rings);
}

fn waiter(n: u32) -> Waiter {
    Waiter::Connect(ConnectId::from_bits(n))
}

#[test]
fn chunks_are_checked() {
    let mut pool = RingPool::new(u64::MAX, FIXED);
    let region = Region::anonymous(8192).unwrap();
    for bytes in [0, 1, 2048, 4097, 16 << 20] {
        assert_eq!(pool.check_chunk(1, RingSize::fixed(bytes), &region), Err(ChunkError::RingBytes), "{bytes}");
    }
    assert_eq!(pool.check_chunk(1, RingSize::fixed(16384), &region), Err(ChunkError::Length));
    add(&mut pool, 1, ChunkKind::Tx, 4096, 2);
    assert_eq!(pool.check_chunk(1, RingSize::fixed(4096), &region), Err(ChunkError::Duplicate));
    assert_eq!(pool.bytes(), 8192);
}

#[test]
fn rings_are_asked_for_once_and_served_in_order() {
    let mut pool = RingPool::new(1 << 20, FIXED);
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(None), "nobody waits");
    pool.wait(RingSize::fixed(4096), waiter(1));
    pool.wait(RingSize::fixed(4096), waiter(2));
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(Some(CHUNK_RINGS_FIRST)));
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(None), "asked already");
    add(&mut pool, 1, ChunkKind::Tx, 4096, 1);
    assert_eq!(pool.next_served(RingSize::fixed(4096)), None, "no rx ring yet");
    add(&mut pool, 2, ChunkKind::Rx, 4096, 1);
    assert_eq!(pool.next_served(RingSize::fixed(4096)), Some(waiter(1)));
    assert!(pool.take(RingSize::fixed(4096)).is_some());
    assert_eq!(pool.next_served(RingSize::fixed(4096)), None);
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(Some(CHUNK_RINGS_FIRST)), "one still waits");
    assert_eq!(pool.refuse(RingSize::fixed(4096)), [waiter(2)]);
}

#[test]
fn memory_is_bounded_with_what_was_asked_for() {
    let mut pool = RingPool::new(6 * 8192, FIXED);
    pool.wait(RingSize::fixed(4096), waiter(1));
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(Some(4)));
    pool.wait(RingSize::fixed(8192), waiter(2));
    assert_eq!(pool.ask(RingSize::fixed(8192), u64::MAX), Ok(Some(1)));
    pool.wait(RingSize::fixed(16384), waiter(3));
    assert_eq!(pool.ask(RingSize::fixed(16384), u64::MAX), Err(()));
    assert_eq!(pool.refuse_all().len(), 3);
    assert_eq!(pool.ask(RingSize::fixed(5000), u64::MAX), Err(()));
}

#[test]
fn the_last_byte_of_the_bound_counts() {
    // A pair of rings is two: three pairs fit exactly, and one byte less is one pair less.
    for (bytes_max, rings) in [(3 * 8192, 3), (3 * 8192 - 1, 2), (8192, 1)] {
        let mut pool = RingPool::new(bytes_max, FIXED);
        (0..4).for_each(|n| pool.wait(RingSize::fixed(4096), waiter(n)));
        assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(Some(rings)), "{bytes_max} bytes");
    }
    let mut pool = RingPool::new(8191, FIXED);
    pool.wait(RingSize::fixed(4096), waiter(1));
    assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Err(()));
    // What was asked for counts as there.
    for (more, expected) in [(16_384, Ok(Some(1))), (16_383, Err(()))] {
        let mut pool = RingPool::new(4 * 8192 + more, FIXED);
        (0..4).for_each(|n| pool.wait(RingSize::fixed(4096), waiter(n)));
        assert_eq!(pool.ask(RingSize::fixed(4096), u64::MAX), Ok(Some(4)));
        pool.wait(RingSize::fixed(8192), waiter(9));
        assert_eq!(pool.ask(RingSize::fixed(8192), u64::MAX), expected, "{more} bytes more");
    }
}

#[test]
fn an_unused_chunk_goes_only_when_others_suffice() {
    let mut pool = RingPool::new(u64::MAX, FIXED);
    add_both(&mut pool, 1, 4096, 2);
    add_both(&mut pool, 3, 4096, 2);
    let taken: Vec<_> = (0..4).map(|_| pool.take(RingSize::fixed(4096)).unwrap()).collect();
    assert!(pool.take(RingSize::fixed(4096)).is_none());
    let mut retired = Vec::new();
    let mut put_back = |pool: &mut RingPool, pair| retired.extend(pool.put_back(Time(1), pair).retired);
    let (last, first): (Vec<_>, Vec<_>) = taken.iter().partition(|p| p.tx.chunk_number == 1);
    put_back(&mut pool, first[0]);
    put_back(&mut pool, first[1]);
    assert_eq!(pool.chunks(), 4, "the other chunk is full");
    put_back(&mut pool, last[0]);
    assert_eq!(pool.chunks(), 4);
    put_back(&mut pool, last[1]);
    assert_eq!(retired.iter().map(|r| r.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(pool.bytes(), 4 * 4096);
    assert_eq!(pool.retire_all().len(), 2);
    assert_eq!(pool.bytes(), 0);
}

#[test]
fn a_ring_that_came_back_is_watched_once_until_it_rests_or_is_used() {
    let mut pool = RingPool::new(u64::MAX, FIXED);
    add_both(&mut pool, 1, 4096, 2);
    let pair = pool.take(RingSize::fixed(4096)).unwrap();
    assert_eq!(pool.put_back(Time(5), pair).used, [pair.tx, pair.rx]);
    assert_eq!(pool.take(RingSize::fixed(4096)), Some(pair));
    assert!(pool.put_back(Time(9), pair).used.is_empty(), "watched already");
    assert_eq!(pool.look_at_free(&pair.tx, Time(5)), FreeRing::Since(Time(9)));
    assert_eq!(pool.look_at_free(&pair.tx, Time(9)), FreeRing::Rests { mr: MrId(1), bytes: 4096 });
    pool.on_rested(&pair.tx);
    assert_eq!(pool.take(RingSize::fixed(4096)), Some(pair));
    assert_eq!(pool.look_at_free(&pair.rx, Time(9)), FreeRing::Used);
    assert_eq!(pool.put_back(Time(10), pair).used, [pair.tx, pair.rx], "both are let go of");
    pool.retire_all();
    add_both(&mut pool, 7, 8192, 2);
    assert_eq!(pool.look_at_free(&pair.tx, Time(10)), FreeRing::Used, "another chunk has its place");
}

#[test]
fn a_ring_grows_only_beside_what_was_asked_for() {
    let size = RingSize { first: 4096, grown: 8192 };
    let add_growing = |pool: &mut RingPool, number: u32, kind: ChunkKind| {
        let region = Region::anonymous(8192).unwrap();
        let mr = mr(number, &region);
        pool.add_chunk(number, kind, size, region, mr);
    };
    let mut pool = RingPool::new(2 * 8192, size);
    pool.wait(size, waiter(1));
    assert_eq!(pool.ask(size, u64::MAX), Ok(Some(2)));
    add_growing(&mut pool, 1, ChunkKind::Tx);
    add_growing(&mut pool, 2, ChunkKind::Rx);
    let pair = pool.take(size).unwrap();
    pool.wait(FIXED, waiter(2));
    assert_eq!(pool.ask(FIXED, u64::MAX), Ok(Some(1)));
    assert!(!pool.grow(&pair.tx, u64::MAX), "the rest was asked for");
    add(&mut pool, 3, ChunkKind::Tx, 4096, 1);
    assert!(!pool.grow(&pair.tx, u64::MAX), "half of it has not come");
    assert_eq!(pool.bytes(), 3 * 4096);
    add(&mut pool, 4, ChunkKind::Rx, 4096, 1);
    assert!(!pool.grow(&pair.tx, u64::MAX), "and now it counts");
    assert_eq!(pool.bytes(), 2 * 8192);
}

#[test]
fn a_ring_that_grows_counts_with_what_it_uses() {
    let size = RingSize { first: 4096, grown: 16384 };
    let mut pool = RingPool::new(2 * 4096 + 12_288, size);
    pool.wait(size, waiter(1));
    assert_eq!(pool.ask(size, u64::MAX), Ok(Some(2)), "five rings of the first size have room");
    assert_eq!(pool.ask(RingSize { first: 4096, grown: 8192 }, u64::MAX), Err(()), "no other size grows");
    for (number, kind) in [(1, ChunkKind::Tx), (2, ChunkKind::Rx)] {
        let region = Region::anonymous(16384).unwrap();
        assert_eq!(pool.check_chunk(number, size, &region), Ok(1));
        let mr = mr(number, &region);
        pool.add_chunk(number, kind, size, region, mr);
    }
    assert_eq!((pool.take(FIXED), pool.bytes()), (None, 8192));
    let pair = pool.take(size).unwrap();
    assert!(pool.grow(&pair.rx, u64::MAX) && pool.grow(&pair.rx, u64::MAX), "the second time nothing more counts");
    assert_eq!((pool.grow(&pair.tx, u64::MAX), pool.bytes()), (false, 8192 + 12_288));
    pool.shrink(&pair.rx);
    assert!(pool.grow(&pair.tx, u64::MAX));
    pool.put_back(Time(1), pair);
    assert_eq!(pool.bytes(), 8192);
    let pages = |pool: &mut RingPool, place| pool.look_at_free(&place, Time(1));
    assert_eq!(pages(&mut pool, pair.tx), FreeRing::Rests { mr: MrId(1), bytes: 16384 });
    pool.on_rested(&pair.tx);
    assert_eq!(pages(&mut pool, pair.tx), FreeRing::Rests { mr: MrId(1), bytes: 4096 });
}

proptest! {
    #[test]
    fn no_ring_is_in_two_hands(steps in proptest::collection::vec((0u8..4, any::<u32>()), 1..200)) {
        let mut pool = RingPool::new(u64::MAX, FIXED);
        let mut held: Vec<RingPair> = Vec::new();
        let mut retired = Vec::new();
        let mut number = 0;
        for (what, n) in steps {
            match what {
                0 => { add_both(&mut pool, number, 4096, n % 5 + 1); number += 2; }
                1 | 2 => held.extend(pool.take(RingSize::fixed(4096))),
                _ if !held.is_empty() => {
                    let pair = held.swap_remove(n as usize % held.len());
                    retired.extend(pool.put_back(Time(1), pair).retired);
                }
                _ => {}
            }
            let tx: BTreeSet<_> = held.iter().map(|p| (p.tx.chunk_number, p.tx.offset)).collect();
            let rx: BTreeSet<_> = held.iter().map(|p| (p.rx.chunk_number, p.rx.offset)).collect();
            prop_assert_eq!((tx.len(), rx.len()), (held.len(), held.len()));
            let gone: BTreeSet<_> = retired.iter().map(|r| r.number).collect();
            prop_assert!(held.iter().all(|p| !gone.contains(&p.tx.chunk_number) && !gone.contains(&p.rx.chunk_number)));
        }
    }
}

#[test]
fn a_chunk_that_was_not_taken_is_used_no_more_and_leaves_with_its_last_ring() {
    let mut pool = RingPool::new(u64::MAX, FIXED);
    add_both(&mut pool, 1, 4096, 2);
    let in_use = pool.take(RingSize::fixed(4096)).unwrap();
    let mut retired = Vec::new();
    pool.close_chunk(2, &mut retired);
    assert!(retired.is_empty(), "a ring of it is in use");
    assert!(pool.take(RingSize::fixed(4096)).is_none(), "no rx ring is left");
    add(&mut pool, 3, ChunkKind::Rx, 4096, 1);
    let other = pool.take(RingSize::fixed(4096)).unwrap();
    assert_eq!((other.tx.chunk_number, other.rx.chunk_number), (1, 3));
    retired.extend(pool.put_back(Time::ZERO, in_use).retired);
    assert_eq!(retired.iter().map(|r| r.number).collect::<Vec<_>>(), [2]);
    assert_eq!(pool.bytes(), 3 * 4096);
    // One of which nothing is in use leaves at once; a number that nobody has is none.
    pool.put_back(Time::ZERO, other);
    retired.clear();
    pool.close_chunk(3, &mut retired);
    pool.close_chunk(77, &mut retired);
    assert_eq!(retired.iter().map(|r| r.number).collect::<Vec<_>>(), [3]);
    assert_eq!(pool.bytes(), 2 * 4096);
}
