//! Rings that grow when they are full, each direction by itself: nothing is lost, whatever happens meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Path;
use engine::AppId;

use crate::world::desk::HostConfig;
use crate::world::{World, addr};

const FIRST: u32 = 4096;
const GROWN: u32 = 32 << 10;

/// Hosts whose rings grow, and a connection that asked for no size: both applications and slots.
fn world(seed: u64, configure: impl Fn(&mut HostConfig)) -> (World, (AppId, u32), (AppId, u32)) {
    let mut w = World::with(2, seed, |c| {
        (c.engine.ring_bytes_default, c.engine.ring_bytes_grown) = (FIRST, GROWN);
        configure(c);
    });
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 0);
    (w, (a, sa), (b, sb))
}

fn grown(w: &World, host: usize) -> u64 {
    w.counter(host, "rings_grown")
}

/// Both ends write so much.
fn stream(w: &mut World, (a, sa): (AppId, u32), (b, sb): (AppId, u32), bytes: u64) {
    let sent = (w.app(0, a).conns[&sa].to_send, w.app(1, b).conns[&sb].to_send);
    w.tell(0, a, sa, |c| c.to_send += bytes);
    w.tell(1, b, sb, |c| c.to_send += bytes);
    w.until("all bytes", |w| {
        w.app(0, a).conns[&sa].received == sent.1 + bytes && w.app(1, b).conns[&sb].received == sent.0 + bytes
    });
}

#[test]
fn a_stream_grows_both_rings_once_and_loses_nothing() {
    for seed in [300, 301] {
        let (mut w, a, b) = world(seed, |_| {});
        let path = &w.app(0, a.0).conns[&a.1].connection.path;
        assert!(matches!(path, Path::Lane { ring_bytes: FIRST, grown_bytes: GROWN, .. }), "{path:?}");
        stream(&mut w, a, b, 3000);
        assert_eq!((grown(&w, 0), grown(&w, 1)), (0, 0), "it was never full");
        stream(&mut w, a, b, 600_000);
        assert_eq!((grown(&w, 0), grown(&w, 1)), (1, 1));
        stream(&mut w, a, b, 600_000);
        assert_eq!((grown(&w, 0), grown(&w, 1)), (1, 1), "once");
        w.assert_clean();
    }
}

/// As TCP does where nobody reads, wherever in a lap that begins. The peer's ring grows with the own one, and keeps
/// what was written.
#[test]
fn a_ring_that_nobody_reads_holds_what_it_may_when_it_has_grown() {
    for before in [0, 23, u64::from(FIRST) - 1, u64::from(FIRST) + 100, 5 * u64::from(FIRST)] {
        let (mut w, a, b) = world(306, |_| {});
        let mut sent = 0;
        while sent < before {
            // Never so much that it is full.
            sent += (before - sent).min(u64::from(FIRST) / 2);
            w.tell(0, a.0, a.1, |c| c.to_send = sent);
            w.until("some bytes", |w| w.app(1, b.0).conns[&b.1].received == sent);
        }
        w.tell(1, b.0, b.1, |c| c.read_limit = before);
        // What was read and not reported when the place was chosen is not free before that place is read.
        let all = before + u64::from(GROWN - FIRST);
        w.tell(0, a.0, a.1, |c| c.to_send = all);
        w.until("all is written", |w| w.app(0, a.0).conns[&a.1].sent == all);
        assert_eq!((grown(&w, 0), grown(&w, 1)), (1, 0), "one direction alone, {before} bytes before");
        w.tell(1, b.0, b.1, |c| c.read_limit = u64::MAX);
        w.until("all bytes", |w| w.app(1, b.0).conns[&b.1].received == all);
        w.assert_clean();
    }
}

/// Where rings hold much a ring grows when its reader takes nothing for a while: it may be waiting for just that. One that
/// is only slower than the writer does not.
#[test]
fn where_rings_hold_much_a_ring_grows_when_nothing_is_taken_out() {
    let (mut w, a, b) = world(309, |c| c.engine.ring_held_much = 1);
    stream(&mut w, a, b, 600_000);
    assert_eq!((grown(&w, 0), grown(&w, 1)), (0, 0), "its reader goes on");
    let read = w.app(1, b.0).conns[&b.1].received;
    w.tell(1, b.0, b.1, |c| c.read_limit = read);
    let all = read + u64::from(GROWN - FIRST);
    w.tell(0, a.0, a.1, |c| c.to_send = all);
    w.pass(Duration::from_millis(30));
    assert_eq!((grown(&w, 0), w.app(0, a.0).conns[&a.1].sent), (0, read + u64::from(FIRST)), "not at once");
    w.until("all is written", |w| w.app(0, a.0).conns[&a.1].sent == all);
    assert_eq!((grown(&w, 0), grown(&w, 1)), (1, 0));
    w.tell(1, b.0, b.1, |c| c.read_limit = u64::MAX);
    w.until("all bytes", |w| w.app(1, b.0).conns[&b.1].received == all);
    w.assert_clean();
}

/// Where rings hold much a writer keeps little in its ring, until it stands still.
#[test]
fn where_rings_hold_much_a_writer_that_goes_on_keeps_little() {
    const HOLD: u64 = 32 << 10;
    let (mut w, a, b) = world(310, |c| {
        (c.engine.ring_bytes_default, c.engine.ring_bytes_grown) = (256 << 10, 512 << 10);
        c.engine.ring_held_much = 1;
    });
    let held = |w: &mut World| u64::from(w.app(0, a.0).conns[&a.1].words.tx_hold.load(Ordering::Relaxed));
    assert_eq!(held(&mut w), 0);
    stream(&mut w, a, b, 500_000);
    assert_eq!((held(&mut w), grown(&w, 0)), (HOLD, 0), "its reader goes on");
    w.tell(1, b.0, b.1, |c| c.read_limit = 500_000);
    w.tell(0, a.0, a.1, |c| c.to_send = 700_000);
    w.pass(Duration::from_millis(100));
    assert_eq!(w.app(0, a.0).conns[&a.1].sent, 500_000 + HOLD);
    w.until("all is written", |w| w.app(0, a.0).conns[&a.1].sent == 700_000);
    assert_eq!((held(&mut w), grown(&w, 0)), (0, 0));
    w.tell(1, b.0, b.1, |c| c.read_limit = u64::MAX);
    w.until("all bytes", |w| w.app(1, b.0).conns[&b.1].received == 700_000);
    w.assert_clean();
}

#[test]
fn who_asks_for_a_size_keeps_it() {
    let mut w = World::with(2, 302, |c| (c.engine.ring_bytes_default, c.engine.ring_bytes_grown) = (FIRST, GROWN));
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    stream(&mut w, (a, sa), (b, sb), 600_000);
    assert_eq!((grown(&w, 0), grown(&w, 1)), (0, 0));
    w.assert_clean();
}

#[test]
fn a_host_whose_rings_do_not_grow_and_one_whose_do_agree() {
    let mut w = World::with(2, 303, |c| {
        let second = c.engine.addresses.contains(&addr(1));
        (c.engine.ring_bytes_default, c.engine.ring_bytes_grown) = (FIRST, if second { FIRST } else { GROWN });
    });
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 0);
    stream(&mut w, (a, sa), (b, sb), 300_000);
    assert_eq!((grown(&w, 0), grown(&w, 1)), (0, 0));
    w.assert_clean();
}

#[test]
fn memory_that_an_application_may_not_have_is_not_taken() {
    // Four pairs of rings, and no byte for growth, at both hosts or one.
    for without in [&[0, 1][..], &[0], &[1]] {
        let (mut w, a, b) = world(304, |c| {
            if without.iter().any(|host| c.engine.addresses.contains(&addr(*host))) {
                c.engine.ring_memory_per_app_max = u64::from(4 * 2 * FIRST);
            }
        });
        stream(&mut w, a, b, 600_000);
        assert_eq!((grown(&w, 0), grown(&w, 1)), (0, 0), "without memory: {without:?}");
        assert_eq!(w.counter(0, "violations") + w.counter(1, "violations"), 0);
        w.assert_clean();
    }
}

#[test]
fn growth_survives_resets_of_its_lane_at_every_step() {
    for step in 0..60 {
        let (mut w, a, b) = world(305 + step % 2, |_| {});
        w.tell(0, a.0, a.1, |c| c.to_send = 400_000);
        w.tell(1, b.0, b.1, |c| c.to_send = 400_000);
        let at = 25_000 + step * 1_500;
        for (more, host) in [(0, 0), (9_000, 1)] {
            w.until("traffic", |w| w.app(1, b.0).conns[&b.1].received > at + more);
            let lanes = w.hosts[host].engine.lanes();
            if let Some(qpn) = lanes.first().and_then(|l| l.qpn).filter(|q| *q != 0) {
                use verbs::Provider;
                w.hosts[host].nic.modify_qp(verbs::Qpn(qpn), &verbs::QpModify::Err).unwrap();
            }
        }
        w.until("all bytes", |w| {
            let got = (w.app(0, a.0).conns[&a.1].received, w.app(1, b.0).conns[&b.1].received);
            got == (400_000, 400_000)
        });
        assert_eq!((grown(&w, 0), grown(&w, 1)), (1, 1), "step {step}");
        assert!(w.counter(0, "lane_resets") >= 1 && w.counter(0, "violations") + w.counter(1, "violations") == 0);
        w.assert_clean();
    }
}
