//! A peer that breaks the rules of messages on UC: in frames it loses its lane, with pieces it loses those.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

mod writes;

const OFFER: u8 = 22;
const ANSWER: u8 = 23;
const UC_AT: u64 = 8192;

/// Host 0 listens for messages on UC at port 8, and the evil host has one connection there: its route.
fn opened(e: &mut Evil) -> u32 {
    e.desk.listen(e.app_id, Listen { port: 8, backlog: 20, ring_bytes: 0, kind: Kind::Unreliable }).unwrap();
    let mut body = e.open_body(16_384, 8);
    body[20..24].copy_from_slice(&2u32.to_be_bytes());
    e.record(1, 0x0010_0005, &body);
    let frames = e.received();
    let ack = frames.iter().find_map(|f| {
        let at = find(f, 2)?;
        Some(u32::from_be_bytes(f[at + 8..at + 12].try_into().unwrap()))
    });
    e.offered = frames.iter().find_map(|f| find(f, OFFER).map(|at| endpoint_at(f, at)));
    ack.expect("an OpenAck")
}

/// Where in a frame the first record of a kind begins.
fn find(frame: &[u8], kind: u8) -> Option<usize> {
    let mut at = 24;
    while at + 8 <= frame.len() {
        if frame[at] == kind {
            return Some(at);
        }
        at += usize::from(u16::from_be_bytes([frame[at + 2], frame[at + 3]])).max(8);
    }
    None
}

fn endpoint_at(frame: &[u8], at: usize) -> Vec<u8> {
    let bytes = usize::from(u16::from_be_bytes([frame[at + 2], frame[at + 3]]));
    frame[at + 16..at + bytes].to_vec()
}

fn offer_of(piece_bytes: u32, endpoint: &[u8]) -> Vec<u8> {
    [&piece_bytes.to_be_bytes()[..], &[0; 4], endpoint].concat()
}

/// The evil host's UC queue pair, connected to the engine's, which knows it.
fn join_unreliable(e: &mut Evil) -> Qpn {
    let init = QpInit { srq: Some(e.evil_srq), max_recv_wr: 0, ..QpInit::new(QpType::Uc, e.evil_cq, 100) };
    let qpn = e.evil.create_qp(&init).unwrap();
    let attr = OfferAttr {
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        mtu_max: PathMtu::Mtu1024,
        entropy: 77,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: Encrypt::Off,
        local: None,
    };
    let own = e.evil.offer(qpn, &attr).unwrap();
    e.record(OFFER, 0, &offer_of(8192, own.as_bytes()));
    let theirs = Endpoint::new(e.offered.clone().expect("the engine's offer came before its answer to Open")).unwrap();
    let attr = AcceptAttr { peer: Capabilities::ROCE, timeout: 0, retry_cnt: 0, rnr_retry: 0, min_rnr_timer: 1 };
    e.evil.accept(qpn, &own, &theirs, &attr).unwrap();
    e.record(ANSWER, 0, &[0; 8]);
    let answers = e.received();
    let taken = answers.iter().any(|f| find(f, ANSWER).is_some_and(|at| f[at + 8..at + 12] == [0; 4]));
    assert!(taken, "the engine took the offer");
    qpn
}

fn post_unreliable(e: &mut Evil, qpn: Qpn, bytes: &[u8]) {
    post_unreliable_by(e, qpn, SendOp::Send, bytes);
}

fn post_unreliable_by(e: &mut Evil, qpn: Qpn, op: SendOp, bytes: &[u8]) {
    e.region.write(UC_AT, bytes).unwrap();
    let sges = [Sge { addr: UC_AT, len: bytes.len() as u32, lkey: e.lkey }];
    let wr = SendWr { wr_id: 0, op, payload: Payload::Sges(&sges), flags: SendFlags::SIGNALED, dest: None };
    e.evil.post_send(qpn, &[wr]).unwrap();
    e.exchange();
}

fn piece(route: u32, number: u64, bytes: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let head = [&[1, 0, 0, 0][..], &route.to_be_bytes(), &number.to_be_bytes()].concat();
    [&head[..], &bytes.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

fn counter(e: &Evil, name: &str) -> u64 {
    e.engine.totals().counters.iter().find(|c| c.0 == name).unwrap().1
}

/// All that the application got, which are whole messages.
fn got(e: &mut Evil) -> Vec<Vec<u8>> {
    let slot = e.opened[0];
    let conn = e.app.conns.get_mut(&slot).unwrap();
    let mut all = Vec::new();
    while conn.reader.available().unwrap() > 0 {
        let mut length = [0; 4];
        conn.reader.peek_ahead(0, &mut length);
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        assert!(conn.reader.available().unwrap() >= 4 + bytes.len() as u64);
        conn.reader.peek_ahead(4, &mut bytes);
        conn.reader.consume(4 + bytes.len() as u64);
        all.push(bytes);
    }
    all
}

#[test]
fn frames_that_break_the_rules_of_uc_fail_the_lane() {
    type Act = fn(&mut Evil, u32);
    let cases: [(&str, Act); 11] = [
        ("a second offer", |e, _| {
            join_unreliable(e);
            e.record(OFFER, 0, &offer_of(8192, &[4; 34]));
        }),
        ("an answer to no offer", |e, _| {
            join_unreliable(e);
            e.record(ANSWER, 0, &[0; 8]);
        }),
        ("endpoint of 0 bytes", |e, _| e.record(OFFER, 0, &offer_of(8192, &[]))),
        ("endpoint of 129 bytes", |e, _| e.record(OFFER, 0, &offer_of(8192, &[4; 129]))),
        ("pieces of 255 bytes", |e, _| e.record(OFFER, 0, &offer_of(255, &[4; 34]))),
        ("reserved bits", |e, route| e.record(OFFER, route, &offer_of(8192, &[4; 34]))),
        ("record about bytes", |e, route| e.record(10, route, &[])),
        ("record about bytes", |e, route| e.record(12, route, &4096u64.to_be_bytes())),
        ("record about bytes", |e, route| {
            let ready = [&100u64.to_be_bytes()[..], &0x1000u64.to_be_bytes(), &e.rkey.to_be_bytes(), &[0; 4]].concat();
            e.record(15, route, &ready);
        }),
        ("end of connection", |e, route| e.record(5, route, &10u64.to_be_bytes())),
        ("consumed bytes", |e, route| e.record(4, route, &10u64.to_be_bytes())),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(true, 64);
        let route = opened(&mut e);
        act(&mut e, route);
        e.assert_failed(why);
    }
}

#[test]
fn bytes_of_a_stream_for_a_connection_on_uc_fail_the_lane() {
    let mut e = Evil::new(true, 64);
    let route = opened(&mut e);
    e.post(SendOp::SendImm(route), 100);
    e.assert_failed("record about bytes");
}

#[test]
fn an_offer_that_cannot_be_connected_ends_the_connections_alone() {
    let mut e = Evil::new(true, 64);
    opened(&mut e);
    e.record(OFFER, 0, &offer_of(8192, &[9; 34]));
    e.assert_fine();
    let frames = e.received();
    let code = frames.iter().find_map(|f| find(f, ANSWER).map(|at| f[at + 11])).expect("an answer");
    assert_eq!(u32::from(code), Reason::NoUnreliable.code());
    assert_eq!(e.app.conns[&e.opened[0]].reset, Some(Reason::NoUnreliable));
    // Streams go on.
    e.open();
    e.assert_fine();
}

#[test]
fn pieces_that_cannot_be_are_dropped_and_counted() {
    let mut e = Evil::new(true, 64);
    let route = opened(&mut e);
    let qpn = join_unreliable(&mut e);
    post_unreliable(&mut e, qpn, &piece(route, 1, 3, 0, &[7, 8, 9]));
    assert_eq!(got(&mut e), [[7, 8, 9]]);
    // Again; torn; of no connection; of a stream; no pieces; longer than the ring; out of their place.
    post_unreliable(&mut e, qpn, &piece(route, 1, 3, 0, &[7, 8, 9]));
    post_unreliable(&mut e, qpn, &piece(route, 2, 6, 0, &[1, 2, 3]));
    post_unreliable(&mut e, qpn, &piece(route, 3, 6, 3, &[1, 2, 3]));
    post_unreliable(&mut e, qpn, &piece(route ^ 1, 4, 3, 0, &[1, 2, 3]));
    post_unreliable(&mut e, qpn, &[0; 40]);
    post_unreliable(&mut e, qpn, &[]);
    post_unreliable(&mut e, qpn, &piece(route, 5, u32::MAX, 0, &[1]));
    post_unreliable(&mut e, qpn, &piece(route, u64::MAX, 4, 0, &[1]));
    post_unreliable(&mut e, qpn, &piece(route, u64::MAX, 5, 1, &[1]));
    post_unreliable(&mut e, qpn, &piece(route, u64::MAX, 4, 1, &[1]));
    assert_eq!(got(&mut e), Vec::<Vec<u8>>::new());
    assert!(counter(&e, "uc_pieces_malformed") >= 3 && counter(&e, "uc_pieces_no_connection") == 1);
    assert_eq!((counter(&e, "uc_lost_torn"), counter(&e, "violations")), (3, 0));
    e.assert_fine();
}

#[test]
fn whatever_pieces_come_the_application_gets_whole_messages() {
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut e = Evil::new(true, 64);
        let route = opened(&mut e);
        let qpn = join_unreliable(&mut e);
        for _ in 0..200 {
            let bytes = rng.random_range(0..40);
            let offset = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..40) };
            let payload = vec![rng.random(); rng.random_range(0..40)];
            let mut piece = piece(route, rng.random_range(0..300), bytes, offset, &payload);
            if rng.random_bool(0.1) {
                let at = rng.random_range(0..piece.len());
                piece[at] ^= 1 << rng.random_range(0..8);
            }
            post_unreliable(&mut e, qpn, &piece);
            got(&mut e).iter().for_each(|message| assert!(message.len() < 1 << 24));
        }
        e.assert_fine();
    }
}

#[test]
fn pieces_behind_a_breach_cost_no_receive_of_a_lane() {
    let free = |pieces: u64| {
        let mut e = Evil::new(true, 64);
        let route = opened(&mut e);
        let qpn = join_unreliable(&mut e);
        // The engine finds the breach and what came behind it in one look.
        e.engine_hangs = true;
        e.record(10, route, &[]);
        for number in 1..=pieces {
            post_unreliable(&mut e, qpn, &piece(route, number, 1, 0, &[1]));
        }
        e.engine_hangs = false;
        e.assert_failed("record about bytes");
        e.engine.totals().srq_free
    };
    assert_eq!(free(20), free(0));
}
