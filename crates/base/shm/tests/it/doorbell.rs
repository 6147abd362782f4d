//! Doorbells over mapped memory: against a set, fairness, hostile bits; sleep flags, and the waiter.
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use shm::{
    Backoff, Doorbell, PairSleeper, PairWaiter, Region, RegionError, end_sleep, pair_must_wake, prepare_sleep, waiting,
};

fn doorbell(slots: u32) -> (Region, Doorbell) {
    let region = Region::anonymous(Doorbell::bytes(slots) as usize).unwrap();
    let doorbell = Doorbell::new(&region, 0, slots).unwrap();
    (region, doorbell)
}

#[derive(Debug, Clone)]
enum Step {
    Ring(u32),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => any::<u32>().prop_map(Step::Ring), 1 => (0usize..100).prop_map(Step::Take)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Alone, a doorbell is a set of slots from which a call takes as many as it may.
    #[test]
    fn a_doorbell_is_a_set_of_slots(steps in proptest::collection::vec(step(), 1..400), log2 in 6u32..=16, narrow: bool) {
        let slots = 1 << log2;
        let (_region, mut taker) = doorbell(slots);
        let ringer = taker.clone();
        let mut set = BTreeSet::new();
        for step in steps {
            match step {
                Step::Ring(slot) => {
                    // All over the bitmap, or crowded in a few words.
                    let slot = slot % if narrow { slots.min(200) } else { slots };
                    ringer.ring(slot);
                    set.insert(slot);
                }
                Step::Take(budget) => {
                    let mut out = vec![u32::MAX];
                    let count = taker.take(&mut out, budget);
                    prop_assert_eq!(count, budget.min(set.len()));
                    prop_assert_eq!(out.len(), 1 + count);
                    for slot in &out[1..] {
                        prop_assert!(set.remove(slot), "{} was not marked", slot);
                    }
                }
            }
            prop_assert_eq!(taker.is_dirty(), !set.is_empty());
        }
    }

    /// Slots that are marked again at once do not keep the others from their turn.
    #[test]
    fn nobody_starves(marked in proptest::collection::btree_set(0u32..8192, 1..100), crowd: bool, budget in 1usize..70) {
        let marked: BTreeSet<u32> = marked.into_iter().map(|slot| if crowd { slot % 130 } else { slot }).collect();
        let (_region, mut taker) = doorbell(8192);
        marked.iter().for_each(|&slot| taker.ring(slot));
        let mut seen = BTreeSet::new();
        for _ in 0..marked.len().div_ceil(budget) {
            let mut out = Vec::new();
            prop_assert_eq!(taker.take(&mut out, budget), budget.min(marked.len()));
            out.iter().for_each(|&slot| taker.ring(slot));
            seen.extend(out);
        }
        prop_assert_eq!(seen, marked);
    }

    /// Whatever bits a hostile peer writes: only existing slots are reported, each once a call, and calls end.
    #[test]
    fn hostile_bits_report_existing_slots_only(bytes in proptest::collection::vec(any::<u8>(), 2000), log2 in 6u32..=13, ones: bool) {
        let slots = 1u32 << log2;
        let (region, mut taker) = doorbell(slots);
        let bytes = if ones { vec![0xff; 2000] } else { bytes };
        region.write(0, &bytes[..Doorbell::bytes(slots) as usize]).unwrap();
        let mut out = Vec::new();
        let count = taker.take(&mut out, usize::MAX);
        prop_assert_eq!(count, out.len());
        let distinct: BTreeSet<u32> = out.iter().copied().collect();
        prop_assert_eq!(distinct.len(), count);
        prop_assert!(distinct.iter().all(|&slot| slot < slots));
        prop_assert!(!taker.is_dirty());
        prop_assert_eq!(taker.take(&mut out, usize::MAX), 0);
    }
}

#[test]
fn a_summary_without_leaves_goes_away() {
    let (region, mut taker) = doorbell(64);
    let summary = region.word64(0).unwrap();
    summary.store(!1, Ordering::Release); // stands for no leaf at all
    assert!(!taker.is_dirty());
    summary.store(u64::MAX, Ordering::Release);
    assert!(taker.is_dirty());
    assert_eq!(taker.take(&mut Vec::new(), 10), 0);
    assert!(!taker.is_dirty());
}

#[test]
fn geometry_is_checked() {
    assert_eq!((Doorbell::bytes(64), Doorbell::bytes(4096), Doorbell::bytes(65536)), (72, 576, 128 + 8192));
    let region = Region::anonymous(8192).unwrap();
    for slots in [0, 32, 65, 96, 131_072] {
        let refused = Doorbell::new(&region, 0, slots).unwrap_err();
        assert!(matches!(refused, RegionError::Geometry { min: 64, max: 65536, .. }), "{refused}");
    }
    assert!(matches!(Doorbell::new(&region, 0, 65536), Err(RegionError::OutOfBounds { .. })));
    assert!(matches!(Doorbell::new(&region, 4, 64), Err(RegionError::Misaligned { .. })));
    assert!(matches!(Doorbell::new(&region, 8192 - 64, 64), Err(RegionError::OutOfBounds { .. })));
    assert!(matches!(Doorbell::new(&region, u64::MAX - 7, 64), Err(RegionError::OutOfBounds { .. })));
    Doorbell::new(&region, 8192 - 72, 64).unwrap();
}

#[test]
#[should_panic(expected = "slot 64 of a doorbell with 64 slots")]
fn ringing_a_slot_that_does_not_exist_is_a_bug_of_the_caller() {
    doorbell(64).1.ring(64);
}

#[test]
fn the_sleep_flag_asks_for_a_wake() {
    let (region, doorbell) = doorbell(4096);
    let flag = region.word32(0).unwrap();
    assert!(!doorbell.must_wake(&flag));
    prepare_sleep(&flag);
    assert_eq!(flag.load(Ordering::Relaxed), 1);
    assert!(doorbell.must_wake(&flag) && shm::must_wake(&flag));
    end_sleep(&flag);
    assert!(!doorbell.must_wake(&flag) && !shm::claim_wake(&flag));
    prepare_sleep(&flag);
    assert!(shm::claim_wake(&flag));
    assert!(!shm::claim_wake(&flag), "one wake is enough");
}

#[test]
fn a_pair_waiter_asks_for_its_own_event() {
    let region = Region::anonymous(64).unwrap();
    let word = region.word32(0).unwrap();
    let waiter = PairWaiter::new(word.clone()).unwrap();
    assert!(!pair_must_wake(&word, waiting::ANY));
    assert!(!waiter.arm(waiting::READABLE, || true), "ready: nothing to wait for");
    assert_eq!(word.load(Ordering::Relaxed) & waiting::ANY, 0);
    assert!(waiter.arm(waiting::READABLE, || false));
    assert!(pair_must_wake(&word, waiting::READABLE) && pair_must_wake(&word, waiting::ANY));
    assert!(!pair_must_wake(&word, waiting::WRITABLE));
    assert!(waiter.arm(waiting::WRITABLE, || false));
    waiter.disarm(waiting::READABLE);
    assert!(pair_must_wake(&word, waiting::WRITABLE) && !pair_must_wake(&word, waiting::READABLE));
    waiter.disarm(waiting::WRITABLE);
    assert_eq!(word.load(Ordering::Relaxed) & waiting::ANY, 0);
}

#[test]
fn each_sleep_of_a_pair_is_answered_once() {
    let region = Region::anonymous(64).unwrap();
    let word = region.word32(0).unwrap();
    let (waiter, sleeper) = (PairWaiter::new(word.clone()).unwrap(), PairSleeper::new(word));
    assert!(!sleeper.must_wake(waiting::ANY));
    for _ in 0..3 {
        assert!(waiter.arm(waiting::READABLE, || false));
        assert!(!sleeper.must_wake(waiting::WRITABLE));
        assert!(sleeper.must_wake(waiting::READABLE));
        assert!(!sleeper.must_wake(waiting::ANY), "answered");
        waiter.disarm(waiting::READABLE);
    }
}

#[test]
fn backoff_yields_then_blocks() {
    let mut backoff = Backoff::new(3);
    for _ in 0..2 {
        // Fewer where the machine is crowded.
        let yields = std::iter::repeat_with(|| backoff.snooze()).take_while(|yielded| *yielded).count();
        assert!(yields <= 3, "{yields}");
        assert!(!backoff.snooze() || yields < 3);
        backoff.reset();
    }
    assert!(!Backoff::new(0).snooze());
}
