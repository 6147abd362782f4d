//! A peer that breaks the rules of WRITEs on UC: what it writes where it may not write costs it its own messages.

use shm::slot_verb;

use super::*;

const ASK: u8 = 24;
const PLACES: u8 = 25;
const GRANT: u8 = 26;
/// Places that the engine has.
const COUNT: u32 = 64;
const BYTES: u64 = 8192;

/// The engine's places, which the evil host asked for.
fn asked(e: &mut Evil) -> RemoteAddr {
    e.record(ASK, 0, &[]);
    let frames = e.received();
    let (f, at) = frames.iter().find_map(|f| Some((f, find(f, PLACES)?))).expect("an answer about places");
    let word = |at: usize| u32::from_be_bytes(f[at..at + 4].try_into().unwrap());
    assert_eq!((word(at + 20), u64::from(word(at + 24))), (COUNT, BYTES));
    RemoteAddr { addr: u64::from_be_bytes(f[at + 8..at + 16].try_into().unwrap()), rkey: Rkey(word(at + 16)) }
}

/// The end of the last grant that came, if one did.
fn granted(e: &mut Evil) -> Option<u64> {
    let of = |f: &Vec<u8>| find(f, GRANT).map(|at| u64::from_be_bytes(f[at + 8..at + 16].try_into().unwrap()));
    e.received().iter().filter_map(of).next_back()
}

/// A piece that leaves behind so many WRITEs.
fn behind(writes: u16, mut piece: Vec<u8>) -> Vec<u8> {
    piece[2..4].copy_from_slice(&writes.to_be_bytes());
    piece
}

/// What a place holds: the piece behind its check.
fn checked(piece: &[u8]) -> Vec<u8> {
    [&crc32c::crc32c(piece).to_be_bytes()[..], piece].concat()
}

struct Writer {
    e: Evil,
    qpn: Qpn,
    route: u32,
    first: RemoteAddr,
}

impl Writer {
    fn new() -> Self {
        let mut e = Evil::new(true, 64);
        let route = opened(&mut e);
        let qpn = join_unreliable(&mut e);
        let first = asked(&mut e);
        Self { e, qpn, route, first }
    }

    fn at(&self, place: u64) -> RemoteAddr {
        RemoteAddr { addr: self.first.addr + place * BYTES, ..self.first }
    }

    fn write(&mut self, at: RemoteAddr, immediate: u32, bytes: &[u8]) {
        post_unreliable_by(&mut self.e, self.qpn, SendOp::WriteImm(at, immediate), bytes);
    }

    /// The WRITE of this number, as a good peer sends it: message `number` of one byte.
    fn write_well(&mut self, k: u32, number: u64) {
        let bytes = checked(&behind(k as u16, piece(self.route, number, 1, 0, &[k as u8])));
        self.write(self.at(u64::from(k % COUNT)), k, &bytes);
    }

    fn counters(&self) -> [u64; 4] {
        ["uc_writes_received", "uc_pieces_spoiled", "uc_pieces_late", "uc_pieces_malformed"]
            .map(|n| counter(&self.e, n))
    }
}

#[test]
fn frames_that_break_the_rules_of_places_fail_the_lane() {
    type Act = fn(&mut Evil, u32);
    let places = |count: u32, bytes: u32| {
        [&0u64.to_be_bytes()[..], &7u32.to_be_bytes(), &count.to_be_bytes(), &bytes.to_be_bytes(), &[0; 4]].concat()
    };
    let cases: [(&str, Act); 7] = [
        ("asked for again, or for no queue pair", |e, _| e.record(ASK, 0, &[])),
        ("asked for again, or for no queue pair", |e, _| {
            join_unreliable(e);
            e.record(ASK, 0, &[]);
            e.record(ASK, 0, &[]);
        }),
        ("says 9 bytes", |e, _| e.record(ASK, 0, &[0])),
        ("reserved bits", |e, route| e.record(ASK, route, &[])),
        ("reserved bits", |e, route| e.record(GRANT, route, &[0; 8])),
        ("a grant of places that are not there", |e, _| {
            join_unreliable(e);
            e.record(GRANT, 0, &100u64.to_be_bytes());
        }),
        ("places of", |e, _| e.record(PLACES, 0, &[0xff; 24])),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(true, 64);
        let route = opened(&mut e);
        act(&mut e, route);
        e.assert_failed(why);
    }
    for (why, body) in [
        ("places that nobody asked for", places(64, 8192)),
        ("places of 255 bytes", places(64, 255)),
        ("32769 places", places(32_769, 8192)),
        ("0 places of 8192 bytes", places(0, 8192)),
    ] {
        let mut e = Evil::new(true, 64);
        opened(&mut e);
        join_unreliable(&mut e);
        e.record(PLACES, 0, &body);
        e.assert_failed(why);
    }
}

#[test]
fn numbers_are_granted_as_writes_come_and_are_lost() {
    let mut w = Writer::new();
    for k in 0..15 {
        w.write_well(k, u64::from(k) + 1);
    }
    assert_eq!((got(&mut w.e).len(), granted(&mut w.e)), (15, None));
    w.write_well(15, 16);
    assert_eq!(granted(&mut w.e), Some(80));
    // A SEND behind WRITEs that were lost; one behind fewer, and one behind more than there may be, change nothing.
    for (writes, number) in [(40, 17), (20, 18), (105, 19)] {
        post_unreliable(&mut w.e, w.qpn, &behind(writes, piece(w.route, number, 1, 0, &[1])));
    }
    assert_eq!((got(&mut w.e).len(), granted(&mut w.e)), (4, Some(104)));
    // The WRITE in front of number 103 is lost, and all before it.
    w.write_well(103, 20);
    assert_eq!((got(&mut w.e), granted(&mut w.e)), (vec![vec![103]], Some(168)));
    assert_eq!(w.counters(), [17, 0, 0, 0]);
    w.e.assert_fine();
}

#[test]
fn writes_that_break_the_rules_cost_the_messages_of_who_sent_them() {
    let mut w = Writer::new();
    w.write_well(0, 1);
    assert_eq!(got(&mut w.e), [[0]]);
    // Again; one that was not granted; one far away.
    for k in [0, 65, u32::MAX] {
        w.write_well(k, 2);
    }
    assert_eq!(w.counters(), [1, 0, 3, 0]);
    // Nothing in the place, as it was written elsewhere; a piece of another number; one that is changed; one that is too
    // long, too short, or empty; one that is whole and no piece.
    let good = piece(w.route, 3, 1, 0, &[7]);
    let (of, mut changed) = (|k: u16| checked(&behind(k, good.clone())), checked(&behind(3, good.clone())));
    changed[20] ^= 1;
    w.write(w.at(9), 1, &of(1));
    w.write(w.at(2), 2, &of(3));
    w.write(w.at(3), 3, &changed);
    let long = vec![0; BYTES as usize + 1];
    w.write(w.at(4), 4, &checked(&long));
    w.write(w.at(5), 5, &[1, 2, 3]);
    w.write(w.at(6), 6, &[]);
    w.write(w.at(7), 7, &checked(&[0; 30]));
    assert_eq!((got(&mut w.e).len(), w.counters()), (0, [1, 7, 3, 0]));
    // What stands in a place when its WRITE completed again is of no use.
    w.write_well(8, 3);
    let later = checked(&behind(72, piece(w.route, 4, 1, 0, &[8])));
    w.write(w.at(8), 8, &later);
    assert_eq!((got(&mut w.e), w.counters()), (vec![vec![8]], [2, 7, 4, 0]));
    w.e.assert_fine();
}

#[test]
fn a_peer_without_places_names_none() {
    let mut e = Evil::new(true, 64);
    let route = opened(&mut e);
    let qpn = join_unreliable(&mut e);
    post_unreliable(&mut e, qpn, &behind(1, piece(route, 1, 1, 0, &[1])));
    assert_eq!((got(&mut e).len(), counter(&e, "uc_pieces_malformed")), (0, 1));
    post_unreliable(&mut e, qpn, &piece(route, 2, 1, 0, &[1]));
    assert_eq!(got(&mut e).len(), 1);
    e.assert_fine();
}

#[test]
fn whatever_is_written_the_application_gets_messages_that_were_sent() {
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut w = Writer::new();
        let mut k = 0u32;
        for _ in 0..300 {
            let bytes = rng.random_range(1..4000);
            let message = vec![rng.random(); bytes];
            let number = rng.random_range(1..400);
            let mut place = checked(&behind(k as u16, piece(w.route, number, bytes as u32, 0, &message)));
            if rng.random_bool(0.2) {
                let at = rng.random_range(0..place.len());
                place[at] ^= 1 << rng.random_range(0..8);
            }
            let at = if rng.random_bool(0.2) { rng.random_range(0..64) } else { u64::from(k % COUNT) };
            w.write(w.at(at), k, &place);
            k = if rng.random_bool(0.1) { rng.random_range(0..400) } else { k + 1 };
            for message in got(&mut w.e) {
                assert!(message.iter().all(|byte| *byte == message[0]), "a torn message");
            }
        }
        w.e.assert_fine();
    }
}

/// The application's wish, and messages of one byte.
fn send(e: &mut Evil, verb: u32, count: u8) {
    let slot = e.opened[0];
    let conn = e.app.conns.get_mut(&slot).unwrap();
    conn.words.tx_verb.store(verb, std::sync::atomic::Ordering::Relaxed);
    for byte in 0..count {
        assert!(conn.writer.hold() && conn.writer.write_ahead(0, &1u32.to_le_bytes()));
        assert!(conn.writer.write_ahead(4, &[byte]) && conn.writer.commit(5));
        conn.writer.let_go();
    }
    e.app.poke(slot);
    e.exchange();
}

#[test]
fn grants_of_a_peer_are_bounded_by_its_places() {
    let mut e = Evil::new(true, 64);
    opened(&mut e);
    join_unreliable(&mut e);
    send(&mut e, slot_verb::WRITE, 5);
    let ways = |e: &Evil| ["uc_writes_sent", "uc_writes_no_place"].map(|name| counter(e, name));
    // They wait for its answer.
    assert!(e.received().iter().any(|f| find(f, ASK).is_some()));
    assert_eq!((ways(&e), counter(&e, "uc_messages_sent")), ([0, 0], 0));
    let rkey = e.rkey.to_be_bytes();
    let places = [&0x4_0000u64.to_be_bytes()[..], &rkey, &2u32.to_be_bytes(), &256u32.to_be_bytes(), &[0; 4]].concat();
    e.record(PLACES, 0, &places);
    assert_eq!((ways(&e), counter(&e, "uc_messages_sent")), ([2, 3], 5));
    let mut place = [0; 29];
    e.region.read(0x4_0000 + 256, &mut place).unwrap();
    assert_eq!((place[4..8].to_vec(), place[28]), (vec![1, 0, 0, 1], 1));
    for (end, more) in [(1, 0), (3, 1), (3, 0), (u64::MAX, 2), (u64::MAX, 2)] {
        let [before, _] = ways(&e);
        e.record(GRANT, 0, &u64::to_be_bytes(end));
        send(&mut e, slot_verb::WRITE, 4);
        assert_eq!(ways(&e)[0], before + more, "a grant up to {end}");
    }
    e.record(PLACES, 0, &places);
    e.assert_failed("places that nobody asked for");
}

#[test]
fn a_peer_that_has_no_places_gets_sends() {
    let mut e = Evil::new(true, 64);
    opened(&mut e);
    join_unreliable(&mut e);
    send(&mut e, slot_verb::WRITE, 3);
    e.record(PLACES, 0, &[0; 24]);
    assert_eq!(["uc_writes_sent", "uc_writes_no_place"].map(|name| counter(&e, name)), [0, 3]);
    assert_eq!(e.engine.connections()[0].verb.as_deref(), Some("uc-send"));
    e.assert_fine();
}
