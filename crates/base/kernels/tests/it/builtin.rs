//! What the built-in kernels answer, what they refuse, and that they keep to their bounds whatever they are asked.

use std::collections::BTreeSet;

use kernels::{
    ANSWER_BYTES_MAX, Call, Chain, Consistent, Distinct, FUEL_MAX, Failure, Found, Job, Library, Order, Pointer,
    Progress, REQUEST_BYTES_MAX, Request, SLICE_FUEL, Shuffle, Target, Tree, View,
};
use proptest::prelude::*;
use shm::Region;

const BYTES: usize = 64 << 10;

fn region() -> Region {
    Region::anonymous(BYTES).unwrap()
}

fn all(region: &Region) -> Vec<View> {
    vec![View::new(region.clone(), true, true)]
}

fn store(region: &Region, at: u64, words: &[u64]) {
    for (i, word) in words.iter().enumerate() {
        region.write(at + 8 * i as u64, &word.to_ne_bytes()).unwrap();
    }
}

fn job<C: Call>(call: &C) -> Result<Job, Failure> {
    let args = call.args();
    let request = Request { name: C::NAME, args: &args }.to_bytes().expect("short arguments");
    Job::begin(&request, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX)
}

fn run<C: Call>(call: &C, views: &[View]) -> Result<C::Answer, Failure> {
    let answer = job(call)?.finish(views)?;
    Ok(C::answer(&answer).expect("an answer of this kernel"))
}

/// A list of so many nodes [next, key, value], its head at 8, keys 10, 20, ..., values 1000 and more.
fn list(nodes: u64) -> Region {
    let region = region();
    let at = |i: u64| 256 + (i * 7919 % 1000) * 32;
    store(&region, 8, &[at(0)]);
    for i in 0..nodes {
        let next = if i + 1 < nodes { at(i + 1) } else { 0 };
        store(&region, at(i), &[next, 10 * (i + 1), 1000 + i]);
    }
    region
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

#[test]
fn a_chain_is_followed_to_the_key() {
    let views = all(&list(64));
    for i in [0u64, 1, 3, 63] {
        let key = 10 * (i + 1);
        let call = Chain::list(8).equal(8, &key.to_ne_bytes()).value(16, 8);
        let Found { node, steps, value } = run(&call, &views).unwrap();
        assert_eq!((node.is_some(), steps, word(&value)), (true, i + 1, 1000 + i));
    }
    let none = run(&Chain::list(8).equal(8, &7u64.to_ne_bytes()), &views).unwrap();
    assert_eq!((none.node, none.steps, none.value.len()), (None, 64, 0));
    let sorted = run(&Chain::list(8).at_least(8, 101).value(8, 8), &views).unwrap();
    assert_eq!((word(&sorted.value), sorted.steps), (110, 11));
    let nth = run(&Chain { order: Order::Nth(5), ..Chain::list(8) }.value(16, 8), &views).unwrap();
    assert_eq!(word(&nth.value), 1005);
}

#[test]
fn a_bucket_is_one_chain_of_a_table() {
    let region = region();
    let views = all(&region);
    store(&region, 64, &[0, 512, 0, 0]);
    store(&region, 512, &[0, 77, 5]);
    let there = Chain::bucket(64, 4, 9).equal(8, &77u64.to_ne_bytes()).value(16, 8);
    assert_eq!(word(&run(&there, &views).unwrap().value), 5);
    assert_eq!(run(&Chain::bucket(64, 4, 8), &views).unwrap().node, None);
    assert_eq!(Chain::bucket(64, 0, 8).head, 64, "a table of no buckets is no panic");
}

#[test]
fn pointers_may_be_some_bits_of_a_word() {
    let region = region();
    let pointer = Pointer { shift: 26, bits: 30, scale: 3 };
    store(&region, 0, &[(512 / 8) << 26 | 0xff << 56 | 3]);
    store(&region, 512, &[0xff << 56, 42]);
    let call = Chain { pointer, ..Chain::list(0).at_least(8, 42) };
    assert_eq!(run(&call, &all(&region)).unwrap().node, Some(512));
    for wrong in [(0, 0, 0), (60, 5, 0), (64, 1, 0), (0, 64, 64), (255, 255, 255)] {
        let (shift, bits, scale) = wrong;
        let call = Chain { pointer: Pointer { shift, bits, scale }, ..Chain::list(0) };
        assert!(matches!(run(&call, &all(&region)), Err(Failure::BadArguments { .. })), "{wrong:?}");
    }
    // Bits that fall off the top name no other node.
    let call = Chain { pointer: Pointer { shift: 0, bits: 64, scale: 3 }, ..Chain::list(0).at_least(8, 1) };
    store(&region, 0, &[1 << 63 | 64]);
    assert!(matches!(run(&call, &all(&region)), Err(Failure::OutOfBounds { .. })));
}

#[test]
fn a_tree_is_searched() {
    let region = region();
    // 50 (25, 75 (60, -))
    store(&region, 0, &[128]);
    store(&region, 128, &[50, 192, 256, 5]);
    store(&region, 192, &[25, 0, 0, 2]);
    store(&region, 256, &[75, 320, 0, 7]);
    store(&region, 320, &[60, 0, 0, 6]);
    let views = all(&region);
    for (key, value, steps) in [(50, 5, 1), (25, 2, 2), (75, 7, 2), (60, 6, 3)] {
        let found = run(&Tree::new(0, key).value(24, 8), &views).unwrap();
        assert_eq!((word(&found.value), found.steps), (value, steps));
    }
    assert_eq!(run(&Tree::new(0, 61), &views).unwrap().node, None);
}

#[test]
fn bytes_are_read_again_until_their_checksum_is_right() {
    let region = region();
    let views = all(&region);
    let old: Vec<u8> = (0..200).collect();
    region.write(64, &old).unwrap();
    store(&region, 0, &[Consistent::checksum(&old)]);
    let call = Consistent { offset: 64, bytes: 200, checksum_at: 0, tries_max: 3 };
    assert_eq!(run(&call, &views).unwrap(), old);
    // A writer is half done: the kernel waits for it in slices.
    region.write(64, &[9; 100]).unwrap();
    let mut job = job(&call).unwrap();
    assert_eq!(job.run(&views, SLICE_FUEL).0, Progress::More);
    let new = [[9; 100].as_slice(), &old[100..]].concat();
    store(&region, 0, &[Consistent::checksum(&new)]);
    let Progress::Done(answer) = job.run(&views, SLICE_FUEL).0 else { panic!("the bytes are whole") };
    assert_eq!(Consistent::answer(&answer), Some(new));
    store(&region, 0, &[1]);
    assert_eq!(run(&call, &views), Err(Failure::NotConsistent { tries: 3 }));
}

#[test]
fn items_are_dealt_to_partitions_of_several_regions() {
    let (region, other) = (region(), region());
    let views = [all(&region), all(&other)].concat();
    let items: Vec<u64> = (0..100).map(|i| i * 2_654_435_761u64 % 1009).collect();
    store(&region, 0, &items);
    let target = |p: u64| Target { region: p as u32 % 2, offset: 16384 + p * 4096, capacity: 100 };
    let targets = (0..4).map(target).collect::<Vec<_>>();
    let call = Shuffle { offset: 0, items: 100, item_bytes: 8, key_at: 0, shift: 0, bits: 2, targets };
    let counts = run(&call, &views).unwrap();
    assert_eq!(counts.iter().sum::<u64>(), 100);
    for p in 0..4 {
        let wanted: Vec<u64> = items.iter().copied().filter(|item| item % 4 == p).collect();
        let mut bytes = vec![0; wanted.len() * 8];
        [&region, &other][p as usize % 2].read(16384 + p * 4096, &mut bytes).unwrap();
        let found: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        assert_eq!(found, wanted, "partition {p}, in order");
    }
    let mut small = call.clone();
    small.targets[1].capacity = 3;
    assert_eq!(run(&small, &views), Err(Failure::PartitionFull { partition: 1, capacity: 3 }));
    assert!(matches!(run(&call, &views[..1]), Err(Failure::BadArguments { .. })), "a region that is not there");
    let read_only = [View::new(region.clone(), true, false), views[1].clone()];
    assert_eq!(run(&call, &read_only), Err(Failure::NoRight { right: "write".into() }));
}

#[test]
fn distinct_items_are_counted_about() {
    let region = Region::anonymous(1 << 20).unwrap();
    let views = all(&region);
    for distinct in [0u64, 1, 100, 5_000, 50_000] {
        let items = 100_000;
        let bytes: Vec<u8> = (0..items).flat_map(|i| (i % distinct.max(1)).to_ne_bytes()).collect();
        region.write(0, &bytes).unwrap();
        let items = if distinct == 0 { 0 } else { items };
        let call = Distinct { offset: 0, items, stride: 8, item_bytes: 8, precision: 14, sketch_at: None };
        let found = run(&call, &views).unwrap();
        // Five times the standard error, and one for rounding.
        let slack = distinct as f64 * 5.0 * 1.04 / 128.0 + 1.0;
        assert!((found as f64 - distinct as f64).abs() <= slack, "{found} for {distinct}");
    }
}

#[test]
fn a_sketch_goes_on_where_it_was_left() {
    let region = Region::anonymous(1 << 20).unwrap();
    let views = all(&region);
    let bytes: Vec<u8> = (0..20_000u64).flat_map(u64::to_ne_bytes).collect();
    region.write(65536, &bytes).unwrap();
    let part = |from: u64, items| Distinct {
        offset: 65536 + 8 * from,
        items,
        stride: 8,
        item_bytes: 8,
        precision: 12,
        sketch_at: Some(0),
    };
    run(&part(0, 10_000), &views).unwrap();
    let both = run(&part(5_000, 15_000), &views).unwrap();
    region.write(0, &[0; 4096]).unwrap();
    assert_eq!(both, run(&part(0, 20_000), &views).unwrap(), "merged, they are what one count finds");
    let read_only = [View::new(region.clone(), true, false)];
    assert_eq!(run(&part(0, 1), &read_only), Err(Failure::NoRight { right: "write".into() }));
}

#[test]
fn a_list_that_is_a_ring_ends_with_its_fuel_in_slices() {
    let region = region();
    store(&region, 0, &[64]);
    store(&region, 64, &[64, 1]);
    let mut job = job(&Chain::list(0).equal(8, &2u64.to_ne_bytes())).unwrap();
    let mut total = 0;
    let failure = loop {
        let (progress, spent) = job.run(&all(&region), SLICE_FUEL);
        assert!(spent <= SLICE_FUEL + 256, "a slice is at most a step too long: {spent}");
        total += spent;
        match progress {
            Progress::More => {}
            Progress::Failed(failure) => break failure,
            Progress::Done(answer) => panic!("{answer:?}"),
        }
    };
    assert_eq!(failure, Failure::OutOfFuel { limit: FUEL_MAX });
    assert!(total <= FUEL_MAX + SLICE_FUEL);
}

#[test]
fn a_chain_of_64_needs_one_slice() {
    let views = all(&list(64));
    let mut job = job(&Chain::list(8).equal(8, &640u64.to_ne_bytes()).value(16, 8)).unwrap();
    assert!(matches!(job.run(&views, SLICE_FUEL), (Progress::Done(_), _)));
}

#[test]
fn what_lies_outside_is_refused_with_its_numbers() {
    let region = region();
    let views = all(&region);
    let bytes = BYTES as u64;
    let outside = |offset, len| Err(Failure::OutOfBounds { offset, len, bytes });
    assert_eq!(run(&Chain::list(bytes - 4), &views), outside(bytes - 4, 8));
    assert_eq!(run(&Chain::list(u64::MAX), &views), outside(u64::MAX, 8));
    store(&region, 0, &[bytes - 8]);
    assert_eq!(run(&Chain::list(0).value(0, 16), &views), outside(bytes - 8, 16));
    store(&region, 0, &[u64::MAX - 3]);
    assert_eq!(run(&Chain::list(0).at_least(8, 1), &views), outside(u64::MAX, 8));
}

#[test]
fn no_right_no_bytes() {
    let region = list(1);
    let blind = [View::new(region, false, true)];
    assert_eq!(run(&Chain::list(8), &blind), Err(Failure::NoRight { right: "read".into() }));
}

#[test]
fn requests_and_failures_are_read_as_they_are_written() {
    let request = Request { name: "chain", args: b"\0\xff" };
    assert_eq!(Request::parse(&request.to_bytes().unwrap()), Ok(request));
    let long = vec![0; REQUEST_BYTES_MAX];
    assert!(Request { name: "chain", args: &long }.to_bytes().is_err());
    assert!(Request { name: "", args: b"" }.to_bytes().is_err());
    assert!(Request { name: &"n".repeat(65), args: b"" }.to_bytes().is_err());
    let begin = |bytes: &[u8]| Job::begin(bytes, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX).err();
    for bytes in [b"".as_slice(), b"\0", b"\x05chai", b"\x02\xff\xfe", &long] {
        assert!(matches!(begin(bytes), Some(Failure::BadArguments { .. })), "{bytes:?}");
    }
    assert_eq!(begin(b"\x03sed"), Some(Failure::Unknown { name: "sed".into() }));
    for failure in [
        Failure::OutOfBounds { offset: u64::MAX, len: 8, bytes: 1 << 40 },
        Failure::OutOfFuel { limit: 7 },
        Failure::Trap { words: "unreachable".into() },
        Failure::Revoked,
    ] {
        assert_eq!(Failure::parse(&failure.to_bytes()), Some(failure));
    }
    assert_eq!(Failure::parse(&[]), None);
    assert_eq!(Failure::parse(&[0xff; 40]), None);
}

#[test]
fn every_name_is_a_kernel() {
    let names: BTreeSet<_> = Library::builtin_names().into_iter().collect();
    assert_eq!(names.len(), 6);
    for name in names {
        let request = Request { name, args: &[] }.to_bytes().unwrap();
        let failure = Job::begin(&request, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX).unwrap_err();
        assert!(matches!(failure, Failure::BadArguments { .. }), "`{name}` has arguments: {failure}");
    }
}

/// Runs whatever comes, as a daemon does; how much fuel it took.
fn run_anything(request: &[u8], views: &[View]) -> u64 {
    let limit = 50_000;
    let Ok(mut job) = Job::begin(request, &Library::new(), limit, ANSWER_BYTES_MAX) else { return 0 };
    let mut total = 0;
    for _ in 0..limit {
        let (progress, spent) = job.run(views, 1_000);
        total += spent;
        match progress {
            Progress::More => {}
            Progress::Done(answer) => {
                assert!(answer.len() <= ANSWER_BYTES_MAX);
                return total;
            }
            Progress::Failed(failure) => {
                assert!(failure.to_bytes().len() <= ANSWER_BYTES_MAX);
                return total;
            }
        }
    }
    panic!("it does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_is_asked_ends_within_its_fuel(
        which in 0usize..6,
        args in prop::collection::vec(any::<u8>(), 0..200),
        memory in prop::collection::vec(any::<u8>(), 1..4096),
    ) {
        let region = Region::anonymous(memory.len()).unwrap();
        region.write(0, &memory).unwrap();
        let name = Library::builtin_names()[which];
        let request = Request { name, args: &args }.to_bytes().unwrap();
        prop_assert!(run_anything(&request, &all(&region)) <= 60_000);
    }

    #[test]
    fn any_chain_over_any_bytes_ends(
        head in 0u64..64, next_at in 0u32..64, key_at in 0u32..64, key: u64, value_bytes in 0u32..900,
        links in prop::collection::vec(0u64..600, 64),
    ) {
        let region = Region::anonymous(512).unwrap();
        store(&region, 0, &links);
        let call = Chain { next_at, ..Chain::list(head * 8).at_least(key_at, key).value(0, value_bytes) };
        let request = Request { name: Chain::NAME, args: &call.args() }.to_bytes().unwrap();
        prop_assert!(run_anything(&request, &all(&region)) <= 60_000);
    }
}
