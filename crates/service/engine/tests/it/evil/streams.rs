//! Lies about connections: opens and their answers, growth, data, ends; and what is over, or ends in pieces.

use std::time::Duration;

use shm::app_flag;
use verbs::*;

use super::{Evil, reason, record};

#[test]
fn wrong_opens_and_answers_fail_the_lane() {
    for ring in [0, 4095, 5000, 16 << 20] {
        let mut e = Evil::new(true, 64);
        let body = e.open_body(ring, 7);
        e.record(1, 5, &body);
        e.assert_failed("power of two");
    }
    for kind in [2, 3] {
        let mut e = Evil::new(true, 64);
        e.record(kind, 0x0010_0000, if kind == 2 { &[0; 24] } else { &[0; 8] });
        e.assert_failed("not being opened");
    }
    // The answers of a lane that is not up yet cannot leave: nobody may ask more than the limit.
    let mut e = Evil::with(false, |c| c.send_bytes_max = 16 << 10);
    let body = e.open_body(4096, 9);
    let many: Vec<u8> = (0..280).flat_map(|i| record(1, i, &body)).collect();
    for _ in 0..3 {
        let mut f = e.header(280, 0);
        f.extend(&many);
        e.send(&f);
        e.assert_fine();
    }
    let mut f = e.header(280, 0);
    f.extend(&many);
    e.send(&f);
    e.assert_failed("more than 1024 opens");
}

#[test]
fn words_about_growth_that_nobody_may_say_fail_the_lane() {
    type Act = fn(&mut Evil, u32);
    let cases: [(&str, Act); 7] = [
        ("answer that nobody waits for", |e, route| e.record(11, route, &reason(1))),
        ("yes or no", |e, route| e.record(11, route, &reason(2))),
        ("not allowed", |e, route| e.record(12, route, &4096u64.to_be_bytes())),
        ("no sender could choose", |e, route| {
            e.record(10, route, &[]);
            e.assert_fine();
            e.record(12, route, &4097u64.to_be_bytes());
        }),
        ("no sender could choose", |e, route| {
            e.record(10, route, &[]);
            e.assert_fine();
            e.record(12, route, &8192u64.to_be_bytes());
        }),
        ("has grown", |e, route| {
            e.record(10, route, &[]);
            e.assert_fine();
            e.record(12, route, &4096u64.to_be_bytes());
            e.record(12, route, &4096u64.to_be_bytes());
            e.assert_fine();
            e.record(10, route, &[]);
        }),
        ("not allowed", |e, route| {
            e.record(10, route, &[]);
            e.assert_fine();
            e.record(12, route, &4096u64.to_be_bytes());
            e.record(12, route, &0u64.to_be_bytes());
        }),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(true, 64);
        let (route, _) = e.open_growing(4096, 16384);
        act(&mut e, route);
        e.assert_failed(why);
    }
    // Of a connection whose rings do not grow.
    let mut e = Evil::new(true, 64);
    let (route, _) = e.open();
    e.record(10, route, &[]);
    e.assert_failed("does not grow");
}

#[test]
fn data_where_none_may_be_fails_the_lane() {
    type Act = fn(&mut Evil, u32, RemoteAddr);
    let cases: [(&str, Act); 11] = [
        ("does not exist", |e, route, at| e.post(SendOp::WriteImm(at, route + 1), 10)),
        ("does not exist", |e, _, at| e.post(SendOp::WriteImm(at, u32::MAX >> 1), 10)),
        ("operation 0x80000001", |e, _, at| e.post(SendOp::WriteImm(at, 1 << 31 | 1), 10)),
        ("more than 27 bits", |e, _, _| {
            let body = e.open_body(4096, 9);
            e.record(1, 0x1234_5678, &body);
        }),
        ("room for 0", |e, route, at| {
            e.post(SendOp::WriteImm(at, route), 4096);
            e.post(SendOp::WriteImm(at, route), 1);
        }),
        ("after its end", |e, route, at| {
            e.record(5, route, &0u64.to_be_bytes());
            e.post(SendOp::WriteImm(at, route), 1);
        }),
        ("after its end", |e, route, at| {
            e.record(7, route, &reason(9));
            e.post(SendOp::WriteImm(at, route), 1);
        }),
        ("end of connection", |e, route, _| e.record(5, route, &1u64.to_be_bytes())),
        ("end of connection", |e, route, _| {
            e.record(5, route, &0u64.to_be_bytes());
            e.record(5, route, &0u64.to_be_bytes());
        }),
        ("second reset", |e, route, _| {
            e.record(7, route, &reason(9));
            e.record(7, route, &reason(9));
        }),
        ("consumed bytes", |e, route, _| e.record(4, route, &1u64.to_be_bytes())),
    ];
    for (why, act) in cases {
        let mut e = Evil::new(true, 64);
        let (route, at) = e.open();
        e.assert_fine();
        act(&mut e, route, at);
        e.assert_failed(why);
    }
}

#[test]
fn a_key_that_is_not_the_peers_fails_only_its_own_lane() {
    let mut e = Evil::new(true, 64);
    let (route, at) = e.open();
    e.post(SendOp::WriteImm(RemoteAddr { rkey: Rkey(at.rkey.0 ^ 0xff), ..at }, route), 10);
    e.exchange();
    assert_eq!(e.failures.len(), 1, "{:?}", e.failures);
}

#[test]
fn records_for_what_is_over_are_counted_and_nothing_else() {
    let mut e = Evil::new(true, 64);
    for kind in [4u8, 5, 6, 7] {
        e.record(kind, 0x0010_0000, if kind == 6 { &[] } else { &[0; 8] });
    }
    e.assert_fine();
    let totals = e.engine.totals();
    assert_eq!(totals.counters.iter().find(|c| c.0 == "stale_frames").unwrap().1, 4);
}

#[test]
fn a_connection_that_nobody_listens_for_is_refused() {
    let mut e = Evil::new(true, 64);
    let body = e.open_body(4096, 9);
    e.record(1, 0x0234_5678, &body);
    let frames = e.received();
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][24..], [3, 0, 0, 16, 0x02, 0x34, 0x56, 0x78, 0, 0, 0, 2, 0, 0, 0, 0]);
    e.assert_fine();
}

#[test]
fn memory_stays_while_the_device_may_send_it_again() {
    let mut e = Evil::new(true, 64);
    let (route, _) = e.open();
    let slot = e.opened[0];
    e.drop_acks = true;
    let conn = e.app.conns.get_mut(&slot).unwrap();
    (conn.to_send, conn.fin_after) = (1000, true);
    e.app.poke(slot);
    e.exchange();
    e.app.conns.get_mut(&slot).unwrap().give_back(0);
    e.app.poke(slot);
    // The peer took everything, and ended too; only the acknowledgement of it is missing.
    e.record(4, route, &1000u64.to_be_bytes());
    e.record(5, route, &0u64.to_be_bytes());
    e.assert_fine();
    assert_eq!(e.engine.connections().len(), 1, "the WRITE is not completed: it may be read again");
    e.drop_acks = false;
    for _ in 0..20 {
        e.now = e.now + Duration::from_millis(10);
        e.exchange();
    }
    assert_eq!(e.engine.connections().len(), 0);
    e.assert_fine();
}

/// The kinds of records about a connection of the peer's, each with the number of its frame.
fn said_of(route: u32, frames: &[Vec<u8>]) -> Vec<(usize, u8)> {
    let mut said = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let mut rest = &frame[24..];
        while let [kind, _, long, short, a, b, c, d, ..] = *rest {
            if u32::from_be_bytes([a, b, c, d]) == route {
                said.push((number, kind));
            }
            rest = &rest[usize::from(u16::from_be_bytes([long, short]))..];
        }
    }
    said
}

/// An application gives up a connection whose peer's ring is being read, and the last byte of it arrives in the same
/// round, while so many refusals are to be told before. What is said of the connection, after which nothing is left of
/// it.
fn given_up_while_pulling(refusals: u32) -> Vec<(usize, u8)> {
    let mut e = Evil::with(true, |c| c.send_bytes_max = 256);
    let (route, _) = e.open();
    let slot = e.opened[0];
    e.engine_hangs = true;
    let body = e.open_body(4096, 9);
    let opens: Vec<_> = (0..refusals).map(|i| record(1, 0x0020_0000 + i, &body)).collect();
    // As many in a frame as the engine takes.
    for opens in opens.chunks(3) {
        let mut frame = e.header(opens.len() as u16, 0);
        frame.extend(opens.concat());
        e.send(&frame);
    }
    let ring = [100u64.to_be_bytes(), 8192u64.to_be_bytes(), (u64::from(e.rkey) << 32).to_be_bytes()];
    e.record(15, route, &ring.concat());
    // One round, which posts the READ; its bytes come while the engine hangs.
    e.engine.run(e.now, &mut e.nic);
    e.events();
    e.exchange();
    e.received();
    e.app.conns.get_mut(&slot).unwrap().give_back(app_flag::ABORT);
    e.app.poke(slot);
    e.engine_hangs = false;
    e.exchange();
    let frames = e.received();
    e.record(7, route, &reason(9));
    e.assert_fine();
    assert_eq!(e.engine.connections().len(), 0, "with {refusals} refusals");
    said_of(0x0010_0005, &frames)
}

#[test]
fn the_end_of_reading_and_the_reset_may_be_in_two_frames() {
    let mut apart = 0;
    for refusals in 0..16 {
        let said = given_up_while_pulling(refusals);
        let [(first, 16), (second, 7)] = said[..] else { panic!("{said:?} with {refusals} refusals") };
        apart += u32::from(first != second);
    }
    assert_eq!(apart, 1, "a frame has room for one of the two with one number of refusals");
}
