//! The numbers of docs/inside/shared-memory.md against the constants, and headers of hostile makers.
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{LAYOUT_VERSION, LayoutError, header, pair, session};
use crate::{ENGINES_MAX, EnginePage, Pair, Region, RegionError, Session, SessionShape};

const DOCUMENT: &str = include_str!("../../../../../docs/inside/shared-memory.md");

/// The rows `| offset | size | field | ...` below a heading: field -> (offset, size).
fn table(heading: &str) -> BTreeMap<String, (u64, u64)> {
    let section = DOCUMENT.split("\n## ").find(|section| section.starts_with(heading)).expect("the document has it");
    let number = |cell: &str| cell.split('+').map(|n| n.trim().parse::<u64>().ok()).sum::<Option<u64>>();
    let mut fields = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let (Some(offset), Some(size)) = (number(cells[1]), number(cells[2])) {
            fields.insert(cells[3].trim_matches('`').to_owned(), (offset, size));
        }
    }
    fields
}

/// The document's table has exactly these fields at these places.
fn documented(heading: &str, expected: &[(&str, u64, u64)]) {
    let expected: BTreeMap<_, _> = expected.iter().map(|&(name, at, size)| (name.to_owned(), (at, size))).collect();
    assert_eq!(table(heading), expected, "docs/inside/shared-memory.md, {heading}");
}

#[test]
fn the_version_is_as_documented() {
    let title = format!("# Shared-memory layout, version {LAYOUT_VERSION}\n");
    assert!(DOCUMENT.starts_with(&title), "docs/inside/shared-memory.md: its title is not `{}`", title.trim());
    let row = format!("| 8 | 4 | layout_version | {LAYOUT_VERSION} |");
    assert!(DOCUMENT.contains(&row), "docs/inside/shared-memory.md, header: no row `{row}`");
}

#[test]
fn the_header_is_as_documented() {
    use header::*;
    let fields = [
        ("magic", MAGIC_AT, 8),
        ("layout_version", VERSION_AT, 4),
        ("kind", KIND_AT, 4),
        ("total_bytes", TOTAL_BYTES_AT, 8),
        ("epoch", EPOCH_AT, 8),
        ("slots", SLOTS_AT, 4),
        ("slot_bytes", SLOT_BYTES_AT, 4),
        ("slots_offset", SLOTS_OFFSET_AT, 8),
        ("a2e_offset", A2E_OFFSET_AT, 8),
        ("e2a_offset", E2A_OFFSET_AT, 8),
        ("ring_bytes", RING_BYTES_AT, 4),
        ("flags", FLAGS_AT, 4),
        ("rings_offset", RINGS_OFFSET_AT, 8),
        ("engines", ENGINES_AT, 4),
        ("owner_0", OWNERS_AT, OWNER_BYTES),
        ("owner_1", OWNERS_AT + OWNER_BYTES, OWNER_BYTES),
    ];
    documented("Header", &fields);
    let owner = [
        ("pid", OWNER_PID_AT, 4),
        ("uid", OWNER_UID_AT, 4),
        ("generation", OWNER_GENERATION_AT, 4),
        ("flags", OWNER_FLAGS_AT, 4),
        ("token", OWNER_TOKEN_AT, 8),
        ("zero", OWNER_TOKEN_AT + 8, OWNER_BYTES - OWNER_TOKEN_AT - 8),
    ];
    documented("Owner word", &owner);
    assert!(DOCUMENT.contains(&format!("layout, version {LAYOUT_VERSION}\n")));
    assert!(DOCUMENT.contains("`RAASSHM1`") && MAGIC.to_le_bytes() == *b"RAASSHM1");
}

#[test]
fn the_session_is_as_documented() {
    use session::*;
    documented("Session segment", &[("app_sleep", APP_SLEEP_AT, 4), ("app_epoch", APP_EPOCH_AT, 8)]);
    let slot = [
        ("tx_tail", TX_TAIL_AT, 8),
        ("rx_head", RX_HEAD_AT, 8),
        ("app_flags", APP_FLAGS_AT, 4),
        ("app_wait", APP_WAIT_AT, 4),
        ("app_generation", APP_GENERATION_AT, 4),
        ("app_owner_pid", APP_OWNER_PID_AT, 4),
        ("tx_use", TX_USE_AT, 4),
        ("peer_timeout_ms", PEER_TIMEOUT_AT, 4),
        ("direct_tx", DIRECT_TX_AT, 8),
        ("direct_rx", DIRECT_RX_AT, 8),
        ("tx_verb", TX_VERB_AT, 4),
        ("tx_written", TX_WRITTEN_AT, 8),
        ("tx_head", TX_HEAD_AT, 8),
        ("rx_tail", RX_TAIL_AT, 8),
        ("state", STATE_AT, 4),
        ("engine_flags", ENGINE_FLAGS_AT, 4),
        ("reason", REASON_AT, 4),
        ("generation", GENERATION_AT, 4),
        ("epoch", LANE_EPOCH_AT, 8),
        ("tx_rest", TX_REST_AT, 4),
        ("engine", ENGINE_AT, 4),
        ("tx_grown_at", TX_GROWN_AT, 8),
        ("rx_grown_at", RX_GROWN_AT, 8),
        ("tx_hold", TX_HOLD_AT, 4),
    ];
    documented("Session slot", &slot);
    assert_eq!(SLOT_BYTES, 256);
    // The formulas of the document, worked out by hand.
    assert_eq!(Session::bytes(64), 8192 + 4096 + 4096 + 16384);
    assert_eq!(Session::bytes(65536), 8192 + 2 * 12288 + (16 << 20));
    // Three engines have ranges of a quarter.
    let three = SessionShape { slots: 256, engines: 3 };
    assert_eq!(Session::bytes(three), 8192 + 3 * 4096 + 4096 + 65536);
    let two = SessionShape { slots: 65536, engines: 2 };
    assert_eq!(Session::bytes(two), 8192 + 2 * 8192 + 12288 + (16 << 20));
}

/// Each word of a slot is the memory that the document names, and of that slot alone.
#[test]
fn the_words_of_a_session_slot_lie_where_the_document_says() {
    const SLOTS: u32 = 64;
    let session = Session::format(region(Session::bytes(SLOTS)), SLOTS, 1).unwrap();
    for slot in [0, 1, SLOTS - 1] {
        let w = session.slot(slot);
        let wide = [
            ("tx_tail", &w.tx_tail),
            ("rx_head", &w.rx_head),
            ("direct_tx", &w.direct_tx),
            ("direct_rx", &w.direct_rx),
            ("tx_written", &w.tx_written),
            ("tx_head", &w.tx_head),
            ("rx_tail", &w.rx_tail),
            ("epoch", &w.epoch),
            ("tx_grown_at", &w.tx_grown_at),
            ("rx_grown_at", &w.rx_grown_at),
        ];
        let narrow = [
            ("app_flags", &w.app_flags),
            ("app_wait", &w.app_wait),
            ("app_generation", &w.app_generation),
            ("app_owner_pid", &w.app_owner_pid),
            ("tx_use", &w.tx_use),
            ("peer_timeout_ms", &w.peer_timeout_ms),
            ("tx_verb", &w.tx_verb),
            ("tx_hold", &w.tx_hold),
            ("state", &w.state),
            ("engine_flags", &w.engine_flags),
            ("reason", &w.reason),
            ("generation", &w.generation),
            ("tx_rest", &w.tx_rest),
            ("engine", &w.engine),
        ];
        wide.iter().for_each(|(_, word)| word.store(0, Ordering::Relaxed));
        narrow.iter().for_each(|(_, word)| word.store(0, Ordering::Relaxed));
        let places = table("Session slot");
        assert_eq!(places.len(), wide.len() + narrow.len(), "a word of the document is not tried here");
        let begin = Session::bytes(SLOTS) - u64::from(SLOTS) * 256 + u64::from(slot) * 256;
        let marked = || {
            let mut bytes = [0; 256];
            session.region().read(begin, &mut bytes).unwrap();
            let first = bytes.iter().position(|b| *b != 0).map(|at| at as u64);
            (first, bytes.iter().filter(|b| **b != 0).count() as u64)
        };
        for (name, word) in narrow {
            word.store(u32::MAX, Ordering::Relaxed);
            assert_eq!(marked(), (Some(places[name].0), places[name].1), "{name} of slot {slot}");
            word.store(0, Ordering::Relaxed);
        }
        for (name, word) in wide {
            word.store(u64::MAX, Ordering::Relaxed);
            assert_eq!(marked(), (Some(places[name].0), places[name].1), "{name} of slot {slot}");
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[test]
fn the_engine_page_and_the_pair_are_as_documented() {
    use super::engine_page::{ENGINE_SLEEP_AT, ENGINE_SLEEP_STRIDE, LIFE_AT};
    use pair::*;
    documented("Engine page", &[("life", LIFE_AT, 4), ("engine_sleep", ENGINE_SLEEP_AT, 4)]);
    assert!(DOCUMENT.contains(&format!("every {ENGINE_SLEEP_STRIDE} bytes")));
    assert!(ENGINE_SLEEP_AT + u64::from(ENGINES_MAX) * ENGINE_SLEEP_STRIDE <= EnginePage::BYTES);
    let slot = [
        ("tail", TAIL_AT, 8),
        ("head", HEAD_AT, 8),
        ("flags", FLAGS_AT, 4),
        ("waiting", WAITING_AT, 4),
        ("reason", REASON_AT, 4),
        ("generation", GENERATION_AT, 4),
        ("owner_pid", OWNER_PID_AT, 4),
        ("reserved", OWNER_PID_AT + 4, 4),
        ("grown_at", GROWN_AT_AT, 8),
        ("unused", GROWN_AT_AT + 8, GIVEN_BACK_AT - GROWN_AT_AT - 8),
        ("given_back", GIVEN_BACK_AT, 8),
        ("carried", CARRIED_AT, 8),
        ("zero", CARRIED_AT + 8, u64::from(SLOT_BYTES) - CARRIED_AT - 8),
    ];
    documented("Pair slot", &slot);
    let notes =
        [("looks", LOOKS_AT, 8), ("told_even", TOLD_AT, TOLD_BYTES), ("told_odd", TOLD_AT + TOLD_BYTES, TOLD_BYTES)];
    documented("Pair notes", &notes);
    assert_eq!(TOLD_AT + 2 * TOLD_BYTES, SLOTS_AT, "they fill the header's page");
    assert_eq!(Pair::bytes(1, 4096), 4096 + 4096 + 4096);
    assert_eq!(Pair::bytes(4096, 8 << 20), 4096 + 4096 * 128 + (32 << 30));
}

/// The words that a process gets for a slot lie where the table of the document says.
#[test]
fn the_words_of_a_pair_slot_lie_where_they_are_documented() {
    const SLOTS: u32 = 4;
    let memory = region(Pair::bytes(SLOTS, 4096));
    let pair = Pair::format(memory.clone(), SLOTS, 4096).unwrap();
    let mut expected = vec![0; SLOTS as usize * 128];
    for slot in 0..SLOTS {
        let words = pair.slot(slot);
        let base = slot as usize * 128;
        for (word, at) in [(&words.tail, 0), (&words.head, 8), (&words.grown_at, 40), (&words.given_back, 64)] {
            let value = 0x0101_0101_0101_0101 * (1 + u64::from(slot) * 16 + at / 8);
            word.store(value, Ordering::Relaxed);
            expected[base + at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let narrow = [
            (&words.flags, 16),
            (&words.waiting, 20),
            (&words.reason, 24),
            (&words.generation, 28),
            (&words.owner_pid, 32),
        ];
        for (word, at) in narrow {
            let value = 0x0101_0101 * (8 + slot * 16 + at / 4);
            word.store(value, Ordering::Relaxed);
            expected[base + at as usize..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }
    let mut found = vec![0; expected.len()];
    memory.read(4096, &mut found).unwrap();
    assert_eq!(found, expected);
}

fn region(bytes: u64) -> Region {
    Region::anonymous(bytes as usize).unwrap()
}

#[test]
fn what_is_formatted_can_be_opened() {
    for slots in [64, 1024, 65536] {
        let made = Session::format(region(Session::bytes(slots)), slots, 77).unwrap();
        let opened = Session::open(made.region().clone(), slots).unwrap();
        assert_eq!((opened.slots(), opened.epoch().load(Ordering::Relaxed)), (slots, 77));
        made.slot(slots - 1).epoch.store(5, Ordering::Relaxed);
        assert_eq!(opened.slot(slots - 1).epoch.load(Ordering::Relaxed), 5);
    }
    let page = region(EnginePage::BYTES);
    EnginePage::format(page.clone(), 78).unwrap().engine_sleep(0).store(1, Ordering::Relaxed);
    let opened = EnginePage::open(page).unwrap();
    assert_eq!((opened.epoch(), opened.engine_sleep(0).load(Ordering::Relaxed)), (78, 1));
    let pair = region(Pair::bytes(4, 8192));
    Pair::format(pair.clone(), 4, 8192).unwrap().owner().pid.store(9, Ordering::Relaxed);
    let opened = Pair::open(pair.clone(), 4, 8192).unwrap();
    assert_eq!((opened.slots(), opened.ring_bytes(), opened.owner().pid.load(Ordering::Relaxed)), (4, 8192, 9));
    let last = opened.ring(3);
    assert_eq!(last.offset + last.bytes, pair.len());
}

/// No two words, doorbells or rings of a segment share bytes.
#[test]
fn nothing_overlaps() {
    let session = Session::format(region(Session::bytes(64)), 64, 0).unwrap();
    let (first, last) = (session.slot(0), session.slot(63));
    let wide =
        [&first.tx_tail, &first.rx_head, &first.tx_head, &first.rx_tail, &first.epoch, &last.tx_tail, &last.epoch];
    let narrow = [&first.app_flags, &first.app_wait, &first.app_generation, &first.app_owner_pid, &first.state];
    let more = [&first.engine_flags, &first.reason, &first.generation, &session.app_sleep(), &session.owner(1).flags];
    for (value, word) in wide.iter().enumerate() {
        word.store(1000 + value as u64, Ordering::Relaxed);
    }
    for (value, word) in narrow.iter().chain(&more).enumerate() {
        word.store(2000 + value as u32, Ordering::Relaxed);
    }
    (0..64).for_each(|slot| session.a2e(0).ring(slot));
    assert!(session.a2e(0).is_dirty() && !session.e2a().is_dirty());
    for (value, word) in wide.iter().enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), 1000 + value as u64);
    }
    for (value, word) in narrow.iter().chain(&more).enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), 2000 + value as u32);
    }
    let mut taken = Vec::new();
    assert_eq!(session.a2e(0).take(&mut taken, 100), 64);
    (0..64).for_each(|slot| session.e2a().ring(slot));
    assert!(!session.a2e(0).is_dirty());
    Session::open(session.region().clone(), 64).unwrap();
}

/// Each header field, changed by a hostile maker, is refused by name; words that may change are not looked at.
#[test]
fn each_wrong_header_field_is_refused() {
    type Open = fn(Region) -> Result<(), LayoutError>;
    let opens: [(Region, Open); 3] = [
        (Session::format(region(Session::bytes(64)), 64, 1).unwrap().region().clone(), |r| {
            Session::open(r, 64).map(drop)
        }),
        (formatted_page(), |r| EnginePage::open(r).map(drop)),
        (formatted_pair(), |r| Pair::open(r, 4, 4096).map(drop)),
    ];
    use header::*;
    let narrow = [
        ("kind", KIND_AT),
        ("slots", SLOTS_AT),
        ("slot_bytes", SLOT_BYTES_AT),
        ("ring_bytes", RING_BYTES_AT),
        ("flags", FLAGS_AT),
        ("engines", ENGINES_AT),
    ];
    let wide = [
        ("magic", MAGIC_AT),
        ("total_bytes", TOTAL_BYTES_AT),
        ("slots_offset", SLOTS_OFFSET_AT),
        ("a2e_offset", A2E_OFFSET_AT),
        ("e2a_offset", E2A_OFFSET_AT),
        ("rings_offset", RINGS_OFFSET_AT),
    ];
    for (region, open) in opens {
        for (name, at) in narrow {
            let word = region.word32(at).unwrap();
            let right = word.fetch_or(1 << 30, Ordering::Relaxed);
            let (found, expected) = (u64::from(right | 1 << 30), u64::from(right));
            assert_eq!(open(region.clone()), Err(LayoutError::Header { what: name, found, expected }));
            word.store(right, Ordering::Relaxed);
        }
        for (name, at) in wide {
            let word = region.word64(at).unwrap();
            let expected = word.fetch_add(1 << 60, Ordering::Relaxed);
            let found = expected.wrapping_add(1 << 60);
            assert_eq!(open(region.clone()), Err(LayoutError::Header { what: name, found, expected }));
            word.store(expected, Ordering::Relaxed);
        }
        let version = region.word32(VERSION_AT).unwrap();
        let other = LAYOUT_VERSION + 1;
        version.store(other, Ordering::Relaxed);
        assert_eq!(open(region.clone()), Err(LayoutError::Version { found: other }));
        version.store(LAYOUT_VERSION, Ordering::Relaxed);
        region.word64(EPOCH_AT).unwrap().store(u64::MAX, Ordering::Relaxed);
        region.write(OWNERS_AT, &[0xff; 64]).unwrap();
        assert_eq!(open(region), Ok(()));
    }
}

fn formatted_page() -> Region {
    let page = region(EnginePage::BYTES);
    EnginePage::format(page.clone(), 1).unwrap();
    page
}

fn formatted_pair() -> Region {
    let pair = region(Pair::bytes(4, 4096));
    Pair::format(pair.clone(), 4, 4096).unwrap();
    pair
}

#[test]
fn another_geometry_than_the_messages_is_refused() {
    let session = Session::format(region(Session::bytes(128)), 128, 0).unwrap();
    let refused = Session::open(session.region().clone(), 64).unwrap_err();
    assert!(matches!(refused, LayoutError::Header { .. }), "{refused}");
    let refused = Session::open(session.region().clone(), 256).unwrap_err();
    assert!(matches!(refused, LayoutError::Region(RegionError::OutOfBounds { .. })), "{refused}");
    let pair = region(Pair::bytes(8, 8192));
    Pair::format(pair.clone(), 8, 8192).unwrap();
    for (slots, ring_bytes) in [(4, 8192), (8, 4096), (4, 16384)] {
        let refused = Pair::open(pair.clone(), slots, ring_bytes).unwrap_err();
        assert!(matches!(refused, LayoutError::Header { .. }), "{slots} {ring_bytes}: {refused}");
    }
    for (slots, ring_bytes) in [(0, 4096), (3, 4096), (8192, 4096), (1, 0), (1, 2048), (1, 5000), (1, 16 << 20)] {
        let refused = Pair::open(pair.clone(), slots, ring_bytes).unwrap_err();
        assert!(
            matches!(refused, LayoutError::Region(RegionError::Geometry { .. })),
            "{slots} {ring_bytes}: {refused}"
        );
    }
    for slots in [0, 32, 65, 100, 131_072, u32::MAX] {
        let refused = Session::open(pair.clone(), slots).unwrap_err();
        assert!(matches!(refused, LayoutError::Region(RegionError::Geometry { .. })), "{slots}: {refused}");
    }
    let small = region(100);
    assert!(matches!(EnginePage::open(small.clone()), Err(LayoutError::Region(RegionError::OutOfBounds { .. }))));
    assert!(EnginePage::format(small, 0).is_err());
}

/// Each engine has its own slots and its own doorbell, and the application finds them by the slot.
#[test]
fn slots_are_divided_among_engines() {
    for engines in 1..=ENGINES_MAX {
        let shape = SessionShape::for_engines(engines, 64);
        let session = Session::format(region(Session::bytes(shape)), shape, 1).unwrap();
        let opened = Session::open(session.region().clone(), shape).unwrap();
        let mut bells: Vec<_> = (0..engines).map(|engine| session.a2e(engine)).collect();
        let mut owned = 0;
        for slot in 0..shape.slots {
            let Some(place) = opened.place_of(slot) else { continue };
            owned += 1;
            assert_eq!(shape.first_slot(place.engine) + place.in_range, slot);
            place.ring();
            for (engine, bell) in bells.iter_mut().enumerate() {
                let mut taken = Vec::new();
                bell.take(&mut taken, 64);
                let expected: &[u32] = if engine as u32 == place.engine { &[place.in_range] } else { &[] };
                assert_eq!(taken, expected, "slot {slot} of {engines} engines, engine {engine}");
            }
        }
        assert_eq!(owned, engines * 64);
        assert!(opened.place_of(shape.slots).is_none() && opened.place_of(u32::MAX).is_none());
        assert!(!session.e2a().is_dirty());
        // Another number of engines has other doorbells.
        let other = SessionShape { engines: if engines == 1 { 2 } else { 1 }, ..shape };
        assert!(Session::open(session.region().clone(), other).is_err());
    }
    for (slots, engines) in [(64, 2), (64, 0), (128, 3), (65536, ENGINES_MAX + 1), (65536, u32::MAX)] {
        let refused = Session::open(region(1 << 20), SessionShape { slots, engines }).unwrap_err();
        let is_geometry = matches!(refused, LayoutError::Region(RegionError::Geometry { .. }));
        assert!(is_geometry, "{slots} slots of {engines} engines: {refused}");
    }
    let most = SessionShape::for_engines(3, 65_536);
    assert_eq!((most.slots, most.slots_per_engine()), (65_536, 16_384));
}

#[test]
#[should_panic(expected = "slot 64 of a session with 64 slots")]
fn a_session_slot_beyond_the_last_is_a_bug_of_the_caller() {
    Session::format(region(Session::bytes(64)), 64, 0).unwrap().slot(64);
}

#[test]
#[should_panic(expected = "ring 4 of a pair segment with 4 slots")]
fn a_ring_beyond_the_last_is_a_bug_of_the_caller() {
    Pair::open(formatted_pair(), 4, 4096).unwrap().ring(4);
}
