//! The kernel `sorted`: what it finds beside dead nodes, in other lives and in other regions, and that it ends.

use std::collections::BTreeMap;

use kernels::{
    ANSWER_BYTES_MAX, Begin, Bits, Call, FUEL_MAX, Failure, Job, Library, Links, Pointer, Request, Sorted, Sought, View,
};
use proptest::prelude::*;
use shm::Region;

const BYTES: usize = 64 << 10;
const HEAD: u64 = 8;

/// As crate `rmem` has them.
const LINKS: Links = Links {
    pointer: Pointer { shift: 26, bits: 30, scale: 3 },
    region: Bits { shift: 56, bits: 8 },
    life: Bits { shift: 14, bits: 12 },
    own_life: Bits { shift: 2, bits: 12 },
    mark: Bits { shift: 0, bits: 1 },
    words: Bits { shift: 0, bits: 14 },
};

fn pointer(region: u64, offset: u64, life: u64, tag: u64) -> u64 {
    region << 56 | (offset / 8) << 26 | life << 14 | tag
}

fn store(region: &Region, at: u64, words: &[u64]) {
    for (i, word) in words.iter().enumerate() {
        region.write(at + 8 * i as u64, &word.to_ne_bytes()).unwrap();
    }
}

fn sorted(key: u64) -> Sorted {
    Sorted { begin: Begin::At(HEAD), key, region: 3, value_bytes_max: 864, links: LINKS }
}

fn run(region: &Region, call: &Sorted) -> Result<Sought, Failure> {
    let args = call.args();
    let request = Request { name: Sorted::NAME, args: &args }.to_bytes().expect("short arguments");
    let job = Job::begin(&request, &Library::new(), FUEL_MAX, ANSWER_BYTES_MAX)?;
    let answer = job.finish(&[View::new(region.clone(), true, false)])?;
    Ok(Sorted::answer(&answer).expect("an answer of this kernel"))
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    is_marked: bool,
    has_value: bool,
    words: u64,
}

/// A list of such nodes in region 3, node `i` in life `i + 1`, its value in a block of its own.
fn list(entries: &[Entry]) -> Region {
    let region = Region::anonymous(BYTES).unwrap();
    let node = |i: usize| 1024 + (i as u64 * 7 % 64) * 64;
    let value = |i: usize| 8192 + i as u64 * 512;
    let link_to = |i: usize, tag: u64| match entries.get(i) {
        Some(_) => pointer(3, node(i), i as u64 + 1, tag),
        None => tag,
    };
    store(&region, HEAD, &[link_to(0, 0)]);
    for (i, entry) in entries.iter().enumerate() {
        let link = link_to(i + 1, (i as u64 + 1) << 2 | u64::from(entry.is_marked));
        let value_at = if entry.has_value { pointer(3, value(i), 1, entry.words) } else { 0 };
        store(&region, node(i), &[link, entry.key, value_at]);
        store(&region, value(i), &vec![i as u64 + 100; entry.words as usize]);
    }
    region
}

fn alive(key: u64) -> Entry {
    Entry { key, is_marked: false, has_value: true, words: 2 }
}

#[test]
fn a_block_of_another_life_or_region_is_told() {
    let region = list(&[alive(1), alive(5)]);
    assert!(
        matches!(run(&region, &sorted(5)), Ok(Sought::There { value, .. }) if value == [101u64.to_ne_bytes(); 2].concat())
    );
    // The second node was used again.
    store(&region, 1024 + 7 * 64, &[9 << 2]);
    assert_eq!(run(&region, &sorted(5)), Ok(Sought::Changed));
    // The list goes on elsewhere, and the search there begins with that link.
    let link = pointer(4, 64, 2, 1 << 2);
    store(&region, 1024, &[link]);
    assert_eq!(run(&region, &sorted(5)), Ok(Sought::Elsewhere { link }));
    store(&region, 64, &[2 << 2, 5, pointer(3, 8192, 1, 2)]);
    let there = Sorted { begin: Begin::With(link), region: 4, ..sorted(5) };
    let pointer = pointer(3, 8192, 1, 2);
    assert_eq!(run(&region, &there), Ok(Sought::There { pointer, value: Vec::new() }), "the value is in region 3");
}

#[test]
fn a_value_that_does_not_fit_is_a_pointer() {
    let region = list(&[Entry { words: 60, ..alive(1) }]);
    let find = |value_bytes_max| match run(&region, &Sorted { value_bytes_max, ..sorted(1) }) {
        Ok(Sought::There { value, .. }) => value.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((find(480), find(479), find(0)), (480, 0, 0));
    let too_many = Sorted { value_bytes_max: 865, ..sorted(1) };
    assert!(matches!(run(&region, &too_many), Err(Failure::BadArguments { .. })));
}

#[test]
fn what_cannot_be_is_refused() {
    let region = list(&[]);
    assert_eq!(run(&region, &sorted(1)), Ok(Sought::Absent));
    let outside = Sorted { begin: Begin::At(BYTES as u64), ..sorted(1) };
    assert!(matches!(run(&region, &outside), Err(Failure::OutOfBounds { .. })));
    let nowhere = Sorted { begin: Begin::With(pointer(3, 8 << 29, 1, 0)), ..sorted(1) };
    assert!(matches!(run(&region, &nowhere), Err(Failure::OutOfBounds { .. })));
    for (shift, bits) in [(0, 0), (64, 1), (60, 5), (255, 255)] {
        let links = Links { life: Bits { shift, bits }, ..LINKS };
        assert!(matches!(run(&region, &Sorted { links, ..sorted(1) }), Err(Failure::BadArguments { .. })));
    }
    // A ring ends with the fuel.
    let ring = list(&[alive(1)]);
    store(&ring, 1024, &[pointer(3, 1024, 1, 1 << 2)]);
    assert_eq!(run(&ring, &sorted(7)), Err(Failure::OutOfFuel { limit: FUEL_MAX }));
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = (0u64..12, any::<bool>(), any::<bool>(), 1u64..6);
    let entry = entry.prop_map(|(key, is_marked, has_value, words)| Entry { key, is_marked, has_value, words });
    prop::collection::vec(entry, 0..30).prop_map(|mut entries| {
        entries.sort_by_key(|entry| entry.key);
        // A key is alive in one node at most.
        let mut last = None;
        for entry in &mut entries {
            let is_alive = !entry.is_marked && entry.has_value;
            entry.is_marked |= is_alive && last == Some(entry.key);
            last = if is_alive { Some(entry.key) } else { last };
        }
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn it_finds_what_is_alive(entries in entries()) {
        let region = list(&entries);
        let live = entries.iter().enumerate().filter(|(_, e)| !e.is_marked && e.has_value);
        let model: BTreeMap<u64, Vec<u8>> =
            live.map(|(i, e)| (e.key, (i as u64 + 100).to_ne_bytes().repeat(e.words as usize))).collect();
        for key in 0..13 {
            let found = match run(&region, &sorted(key)) {
                Ok(Sought::There { value, .. }) => Some(value),
                Ok(Sought::Absent) => None,
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(found.as_ref(), model.get(&key), "key {}", key);
        }
    }
}
