//! Applications that break the rules of the shared memory.

use std::sync::atomic::Ordering;

use control::Reason;
use engine::AppId;

use crate::apps::SimConn;
use crate::world::World;

/// The application at host 0 does something to its slot; it alone suffers.
fn misbehave(what: impl FnOnce(&mut SimConn), expect_fault: &str) {
    let mut w = World::new(2, 90);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (good_a, good_b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    let (ga, gb) = w.pair(good_a, good_b, 8, 8192);
    w.tell(0, good_a, ga, |c| c.to_send = 500_000);
    w.tell(0, a, sa, |c| c.to_send = 20_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received == 20_000);
    w.tell(0, a, sa, |c| {
        c.closed = true;
        what(c);
    });
    w.until("fault", |w| !w.hosts[0].faults.is_empty());
    assert_eq!(w.hosts[0].faults[0].0, a);
    assert!(w.hosts[0].faults[0].1.contains(expect_fault), "{:?}", w.hosts[0].faults);
    w.until("reset at the peer", |w| w.app(1, b).conns[&sb].reset.is_some());
    assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::PeerAppDied));
    w.until("memory free", |w| w.hosts[0].gone == [a]);
    w.until("others go on", |w| w.app(1, good_b).conns[&gb].received == 500_000);
    w.hosts[0].faults.clear();
    assert_eq!(w.counter(0, "app_faults"), 1);
    assert!(w.hosts[0].lane_failures.is_empty() && w.hosts[1].lane_failures.is_empty());
}

#[test]
fn a_tail_beyond_the_ring() {
    misbehave(|c| c.words.tx_tail.store(20_000 + 8193, Ordering::Release), "tx_tail");
}

#[test]
fn a_tail_that_goes_back() {
    misbehave(|c| c.words.tx_tail.store(19_999, Ordering::Release), "tx_tail");
}

#[test]
fn a_head_beyond_what_arrived() {
    misbehave(|c| c.words.rx_head.store(1, Ordering::Release), "rx_head");
}

#[test]
fn the_engines_words_are_not_read_back() {
    let mut w = World::new(2, 91);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 1_000_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 50_000);
    // The session is writable on both sides: garbage in the engine's half harms only the reader of it.
    for app in [(0, a, sa), (1, b, sb)] {
        let slot = app.2;
        let words = w.app(app.0, app.1).session.slot(slot);
        words.generation.store(77, Ordering::Release);
        words.state.store(u32::MAX, Ordering::Release);
        words.epoch.store(u64::MAX, Ordering::Release);
    }
    w.until("the rest", |w| w.app(1, b).conns[&sb].received == 1_000_000);
    w.assert_clean();
}

#[test]
fn garbage_doorbells_and_stale_generations_do_nothing() {
    let mut w = World::new(2, 92);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    let free: Vec<u32> = (0..64).filter(|s| *s != sa).collect();
    for slot in &free {
        let words = w.app(0, a).session.slot(*slot);
        words.tx_tail.store(u64::MAX, Ordering::Release);
        words.app_flags.store(u32::MAX, Ordering::Release);
        words.app_generation.store(1, Ordering::Release);
        w.app(0, a).poke(*slot);
    }
    w.settle();
    // A connection that the application did not take yet: its words do not count.
    let words = w.app(0, a).session.slot(sa);
    words.app_generation.store(99, Ordering::Release);
    words.tx_tail.store(u64::MAX, Ordering::Release);
    w.app(0, a).poke(sa);
    w.settle();
    words.app_generation.store(1, Ordering::Release);
    words.tx_tail.store(0, Ordering::Release);
    w.tell(0, a, sa, |c| c.to_send = 1000);
    w.until("bytes", |w| w.app(1, b).conns[&sb].received == 1000);
    w.assert_clean();
}

#[test]
fn ringing_all_the_time_starves_nobody() {
    let mut w = World::new(2, 93);
    let (noisy, a, b) = (w.attach(0, 4096), w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 200_000);
    let ring_all = |w: &mut World, app: AppId| {
        let a2e = w.app(0, app).session.a2e(0);
        (0..4096).for_each(|s| a2e.ring(s));
    };
    ring_all(&mut w, noisy);
    w.until("bytes", |w| {
        if w.steps % 3 == 0 {
            ring_all(w, noisy);
        }
        w.app(1, b).conns[&sb].received == 200_000
    });
    w.assert_clean();
}
