//! Connections that rest: their rings are empty memory, and nothing that anybody may still read is.

use std::time::Duration;

use control::Path;
use engine::AppId;

use crate::apps::SimConn;
use crate::world::World;

const RING: u32 = 16384;
const REST: Duration = Duration::from_secs(3);

/// Two applications and their slots.
struct Ends {
    a: AppId,
    sa: u32,
    b: AppId,
    sb: u32,
}

fn ends(w: &mut World) -> Ends {
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, RING);
    Ends { a, sa, b, sb }
}

fn carry(w: &mut World, e: &Ends, bytes: u64) {
    w.tell(0, e.a, e.sa, |c| c.to_send += bytes);
    w.tell(1, e.b, e.sb, |c| c.to_send += bytes);
    let (to_b, to_a) = (conn(w, 0, e).to_send, conn(w, 1, e).to_send);
    w.until("all bytes", |w| conn(w, 0, e).received == to_a && conn(w, 1, e).received == to_b);
}

fn conn<'a>(w: &'a World, host: usize, e: &Ends) -> &'a SimConn {
    let (app, slot) = if host == 0 { (e.a, e.sa) } else { (e.b, e.sb) };
    &w.hosts[host].apps[&app].conns[&slot]
}

/// Bytes of the transmit and the receive ring that are not zero.
fn filled(w: &World, host: usize, e: &Ends) -> (usize, usize) {
    let Path::Lane { tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, .. } = conn(w, host, e).connection.path
    else {
        panic!("not a lane")
    };
    let app = if host == 0 { e.a } else { e.b };
    let count = |chunk: u32, offset| {
        let mut ring = vec![0; ring_bytes as usize];
        w.hosts[host].apps[&app].chunks[&chunk].read(offset, &mut ring).unwrap();
        ring.iter().filter(|b| **b != 0).count()
    };
    (count(tx_chunk, tx_offset), count(rx_chunk, rx_offset))
}

#[test]
fn rings_are_given_back_and_carry_on_again_and_again() {
    let mut w = World::new(2, 1);
    let e = ends(&mut w);
    for round in 1..=5 {
        carry(&mut w, &e, 9_999);
        for host in 0..2 {
            let (tx, rx) = filled(&w, host, &e);
            assert!(tx > 5_000 && rx > 5_000, "round {round}: {tx} {rx}");
        }
        w.pass(REST);
        for host in 0..2 {
            assert_eq!(filled(&w, host, &e), (0, 0), "round {round}, host {host}");
            assert_eq!(w.counter(host, "rests"), round);
            assert_eq!(w.hosts[host].engine.deadline(), None, "nothing is left to look at");
        }
    }
    w.assert_clean();
}

/// Of connections that are over the application has nothing, and the daemon no pages.
#[test]
fn rings_that_nobody_has_give_their_pages_back() {
    for ring in [RING, 1 << 20] {
        let mut w = World::new(2, 9);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let pairs: Vec<Ends> =
            (0..6).map(|n| w.pair(a, b, 7 + n, ring)).map(|(sa, sb)| Ends { a, sa, b, sb }).collect();
        for e in &pairs {
            carry(&mut w, e, u64::from(ring));
        }
        for e in &pairs[1..] {
            w.tell(0, a, e.sa, |c| c.give_back(0));
            w.tell(1, b, e.sb, |c| c.give_back(0));
        }
        w.pass(Duration::from_millis(10));
        let filled_all = |w: &World| pairs[1..].iter().map(|e| filled(w, 0, e).0 + filled(w, 1, e).1).sum::<usize>();
        assert!(filled_all(&w) > 5 * ring as usize, "the pages are there");
        // One is used again meanwhile, and one stays.
        let (sa, sb) = w.pair(a, b, 99, ring);
        let again = Ends { a, sa, b, sb };
        carry(&mut w, &again, 3_000);
        for _ in 0..30 {
            w.pass(Duration::from_millis(100));
            carry(&mut w, &pairs[0], 100);
            carry(&mut w, &again, 100);
        }
        let used = filled(&w, 0, &again).0 + filled(&w, 1, &again).1;
        assert!(used > 6_000 && filled(&w, 0, &pairs[0]).0 > 1_000);
        let (of_again, mut left) = (conn(&w, 0, &again).connection.path.clone(), 0);
        for e in pairs[1..].iter().filter(|e| conn(&w, 0, e).connection.path != of_again) {
            left += filled(&w, 0, e).0 + filled(&w, 1, e).1;
        }
        assert!(left <= 2 * used, "{left} bytes of free rings are not zero");
        w.tell(0, a, sa, |c| c.give_back(0));
        w.tell(1, b, sb, |c| c.give_back(0));
        w.pass(REST);
        assert_eq!(filled_all(&w), 0);
        assert!(w.counter(0, "ring_rests") >= 10, "{}", w.counter(0, "ring_rests"));
        assert_eq!(w.hosts[0].engine.deadline(), None, "nothing is left to look at");
        w.assert_clean();
    }
}

/// A ring so large that it takes several turns, of which the application uses one for something else.
#[test]
fn large_rings_rest_in_parts() {
    let mut w = World::new(2, 8);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 1 << 20);
    let e = Ends { a, sa, b, sb };
    carry(&mut w, &e, 1_500_000);
    w.pass(REST);
    assert_eq!((filled(&w, 0, &e), filled(&w, 1, &e)), ((0, 0), (0, 0)));
    assert_eq!((w.counter(0, "rests"), w.counter(1, "rests")), (1, 1));
    carry(&mut w, &e, 1_500_000);
    let before = w.counter(0, "rests");
    // Into the middle of it.
    let (start, end) = (filled(&w, 0, &e), REST * 2);
    let begin = w.now;
    while filled(&w, 0, &e) == start && w.now < begin + end {
        w.pass(Duration::from_millis(1));
    }
    assert!(filled(&w, 0, &e).0 > 0 && w.counter(0, "rests") == before, "it is under way");
    carry(&mut w, &e, 300_000);
    w.pass(REST);
    assert_eq!((filled(&w, 0, &e), filled(&w, 1, &e)), ((0, 0), (0, 0)));
    w.assert_clean();
}

/// Each connection has carried all of its rings: where they hold much together, they do so no longer than they must.
#[test]
fn where_rings_hold_much_connections_rest_sooner() {
    const LARGE: u32 = 64 << 10;
    const MUCH: u64 = 8 * LARGE as u64;
    for (much, most) in [(u64::MAX, 16 * 2 * u64::from(LARGE)), (MUCH, MUCH)] {
        let mut w = World::with(2, 11, |c| c.engine.ring_held_much = much);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let all: Vec<Ends> =
            (0..16).map(|n| w.pair(a, b, 7 + n, LARGE)).map(|(sa, sb)| Ends { a, sa, b, sb }).collect();
        for e in &all {
            carry(&mut w, e, u64::from(LARGE));
        }
        assert!(w.counter(0, "ring_held_bytes") > MUCH || much == MUCH);
        // Less than the time after which they rest anyway.
        w.pass(Duration::from_millis(200));
        for host in 0..2 {
            let held = w.counter(host, "ring_held_bytes");
            let filled: usize = all.iter().map(|e| filled(&w, host, e)).map(|(tx, rx)| tx + rx).sum();
            assert!(filled as u64 <= held && held <= most, "host {host}: {filled} of {held}, at most {most}");
            assert_eq!(w.counter(host, "rests") > 0, much == MUCH, "host {host}");
        }
        for e in &all {
            carry(&mut w, e, 10_000);
        }
        w.pass(REST);
        assert_eq!((w.counter(0, "ring_held_bytes"), w.counter(1, "ring_held_bytes")), (0, 0));
        w.assert_clean();
    }
}

/// A connection that was used lately, and one that holds little, are left alone.
#[test]
fn who_holds_little_does_not_rest_sooner() {
    let mut w = World::with(2, 12, |c| c.engine.ring_held_much = 1);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let all: Vec<Ends> = (0..8).map(|n| w.pair(a, b, 7 + n, RING)).map(|(sa, sb)| Ends { a, sa, b, sb }).collect();
    for e in &all {
        carry(&mut w, e, u64::from(RING));
    }
    w.pass(Duration::from_millis(500));
    assert_eq!((w.counter(0, "rests"), w.counter(0, "ring_held_bytes")), (0, 8 * 2 * u64::from(RING)));
    w.pass(REST);
    assert_eq!((w.counter(0, "rests"), w.counter(0, "ring_held_bytes")), (8, 0));
}

#[test]
fn busy_connections_are_left_alone() {
    let mut w = World::new(2, 2);
    let e = ends(&mut w);
    for _ in 0..40 {
        carry(&mut w, &e, 500);
        w.pass(Duration::from_millis(100));
    }
    assert_eq!((w.counter(0, "rests"), w.counter(1, "rests")), (0, 0));
}

#[test]
fn bytes_that_nobody_read_stay_on_both_sides() {
    let mut w = World::new(2, 3);
    let e = ends(&mut w);
    carry(&mut w, &e, 12_000);
    w.tell(1, e.b, e.sb, |c| c.read_limit = 12_100);
    w.tell(0, e.a, e.sa, |c| c.to_send += 6_000);
    w.pass(REST);
    assert_eq!(w.counter(1, "rests"), 1);
    let (tx, rx) = (filled(&w, 0, &e).0, filled(&w, 1, &e).1);
    assert!((5_700..=6_000).contains(&tx) && (5_700..=5_900).contains(&rx), "all else is gone: {tx} {rx}");
    w.tell(1, e.b, e.sb, |c| c.read_limit = u64::MAX);
    w.until("the rest", |w| conn(w, 1, &e).received == 18_000);
    w.pass(REST);
    assert_eq!((filled(&w, 0, &e), filled(&w, 1, &e)), ((0, 0), (0, 0)));
    w.assert_clean();
}

#[test]
fn what_is_being_written_in_place_stays() {
    let mut w = World::new(2, 4);
    let e = ends(&mut w);
    carry(&mut w, &e, 9_000);
    let mut bytes = vec![0; 4_000];
    w.tell(0, e.a, e.sa, |c| {
        let key = c.tx_key;
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = crate::apps::pattern(key, 9_000 + i as u64);
        }
        assert!(c.writer.free().unwrap() >= 4_000 && c.writer.hold());
        assert!(c.writer.write_ahead(0, &bytes[..2_500]));
    });
    w.pass(REST);
    assert!(filled(&w, 0, &e).0 > 2_000, "the ring is in use");
    assert_eq!(filled(&w, 0, &e).1, 0, "the other is not");
    w.pass(10 * REST);
    assert_eq!(w.hosts[0].engine.deadline(), None, "one day it is left alone");
    w.tell(0, e.a, e.sa, |c| {
        assert!(c.writer.write_ahead(2_500, &bytes[2_500..]) && c.writer.commit(4_000));
        c.writer.let_go();
        (c.sent, c.to_send) = (13_000, 13_000);
    });
    w.until("the loan", |w| conn(w, 1, &e).received == 13_000);
    w.pass(REST);
    assert_eq!(filled(&w, 0, &e), (0, 0));
    w.assert_clean();
}

#[test]
fn who_writes_between_the_steps_waits_and_is_told() {
    let mut w = World::new(2, 5);
    let e = ends(&mut w);
    carry(&mut w, &e, 9_000);
    w.hosts[0].holds_rests = true;
    w.pass(REST);
    let now = w.now;
    assert!(w.hosts[0].engine.begin_rests(now));
    // The application rings for nothing: it could not write.
    w.tell(0, e.a, e.sa, |c| {
        assert_eq!((c.writer.free(), c.writer.hold()), (Ok(0), false));
        c.to_send += 100;
    });
    w.pass(REST);
    assert_eq!((conn(&w, 0, &e).sent, conn(&w, 1, &e).received), (9_000, 9_000));
    w.app_sleeps((0, e.a));
    let (now, host) = (w.now, &mut w.hosts[0]);
    host.engine.finish_rests(now, &mut host.nic, true);
    host.holds_rests = false;
    w.until("the bytes", |w| conn(w, 1, &e).received == 9_100);
    w.assert_clean();
}

#[test]
fn without_the_barrier_only_receive_rings_are_given_back() {
    let mut w = World::new(2, 6);
    let e = ends(&mut w);
    carry(&mut w, &e, 9_000);
    w.hosts[0].holds_rests = true;
    w.pass(REST);
    let (now, host) = (w.now, &mut w.hosts[0]);
    assert!(host.engine.begin_rests(now));
    host.engine.finish_rests(now, &mut host.nic, false);
    let (tx, rx) = filled(&w, 0, &e);
    assert!(tx > 5_000 && rx == 0, "{tx} {rx}");
}

/// A reader that takes little from a full ring and then does something else for long need not ring for that.
#[test]
fn a_head_that_nobody_told_is_found() {
    let mut w = World::new(2, 7);
    let e = ends(&mut w);
    w.tell(1, e.b, e.sb, |c| c.read_limit = 0);
    w.tell(0, e.a, e.sa, |c| c.to_send = u64::from(RING) + 2_000);
    w.pass(Duration::from_millis(500));
    assert_eq!(conn(&w, 0, &e).sent, RING.into());
    let mut taken = [0; 2_000];
    w.app(1, e.b).conns.get_mut(&e.sb).unwrap().reader.read(&mut taken).unwrap();
    w.until("room", |w| conn(w, 0, &e).sent == u64::from(RING) + 2_000);
}
