//! Many connections on one lane: fairness, credits, limits.

use std::time::Duration;

use control::Reason;

use crate::world::{LinkConditions, World};

#[test]
fn a_thousand_connections_share_one_queue_pair() {
    let mut w = World::new(2, 40);
    let apps: Vec<_> = (0..4).map(|_| (w.attach(0, 512), w.attach(1, 512))).collect();
    for (i, (a, b)) in apps.iter().enumerate() {
        w.app(0, *a).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (20_000, true, true);
        w.app(1, *b).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (30_000, true, true);
        let to = w.listen(1, *b, 100 + i as u16, 300);
        for _ in 0..250 {
            w.connect(0, *a, to, 8192);
        }
    }
    w.until("all closed", |w| {
        apps.iter().all(|(a, b)| {
            let (a, b) = (&w.hosts[0].apps[a], &w.hosts[1].apps[b]);
            a.conns.len() == 250 && b.conns.len() == 250 && a.conns.values().chain(b.conns.values()).all(|c| c.closed)
        })
    });
    for (a, b) in &apps {
        assert!(w.app(0, *a).conns.values().all(|c| c.received == 30_000 && c.reset.is_none()));
        assert!(w.app(1, *b).conns.values().all(|c| c.received == 20_000 && c.reset.is_none()));
    }
    w.settle();
    w.assert_clean();
    w.assert_empty();
    for h in &w.hosts {
        let t = h.engine.totals();
        assert_eq!((t.rc_qps, t.cqs, t.srqs), (1, 1, 1));
    }
}

#[test]
fn busy_connections_get_equal_shares() {
    let mut w = World::with(2, 41, |c| c.engine.quantum_bytes = 16384);
    let (a, b) = (w.attach(0, 512), w.attach(1, 512));
    w.app(0, a).defaults = |c| c.to_send = u64::MAX / 2;
    let to = w.listen(1, b, 7, 300);
    for _ in 0..200 {
        w.connect(0, a, to, 65536);
    }
    w.until("all connected", |w| w.app(1, b).conns.len() == 200);
    let before: Vec<u64> = w.app(1, b).conns.values().map(|c| c.received).collect();
    w.until("traffic", |w| w.app(1, b).conns.values().map(|c| c.received).sum::<u64>() > 80_000_000);
    let got: Vec<u64> = w.app(1, b).conns.values().zip(before).map(|(c, before)| c.received - before).collect();
    let (min, max) = (*got.iter().min().unwrap(), *got.iter().max().unwrap());
    // Within a few quanta and one ring.
    assert!(max - min <= 65536 + 4 * 16384, "{min}..{max}");
    w.assert_clean();
}

#[test]
fn an_application_with_a_hundred_connections_gets_no_more_than_one_with_one() {
    // Less in flight than a ring holds, so that the one connection never runs dry while others have their turns.
    let mut w = World::with(2, 46, |c| (c.engine.quantum_bytes, c.engine.lane_inflight_bytes_max) = (16384, 256 << 10));
    let (many, one) = ((w.attach(0, 512), w.attach(1, 512)), (w.attach(0, 64), w.attach(1, 64)));
    for (port, (a, b), connections) in [(7, many, 100), (8, one, 1)] {
        w.app(0, a).defaults = |c| c.to_send = u64::MAX / 2;
        let to = w.listen(1, b, port, 300);
        (0..connections).for_each(|_| _ = w.connect(0, a, to, 1 << 20));
        w.until("all connected", |w| w.app(1, b).conns.len() == connections);
    }
    let received = |w: &mut World, app| w.app(1, app).conns.values().map(|c| c.received).sum::<u64>();
    let before = [received(&mut w, many.1), received(&mut w, one.1)];
    w.until("traffic", |w| received(w, one.1) > before[1] + 50_000_000);
    let shares = [received(&mut w, many.1) - before[0], received(&mut w, one.1) - before[1]];
    // Within what was in flight at the two looks.
    assert!(shares[0].abs_diff(shares[1]) <= 4 * (256 << 10), "{shares:?}");
    w.assert_clean();
}

#[test]
fn a_small_sender_is_not_held_up_by_large_ones() {
    let mut w = World::new(2, 42);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 64);
    let small = w.connect_wait(0, a, to, 4096).unwrap();
    w.settle();
    let peer = w.app(1, b).incoming[0].0;
    w.app(0, a).defaults = |c| c.to_send = u64::MAX / 2;
    (0..16).for_each(|_| _ = w.connect(0, a, to, 1 << 20));
    w.until("load", |w| w.app(1, b).conns.values().map(|c| c.received).sum::<u64>() > 20_000_000);
    let config = engine::EngineConfig::new(vec![]);
    for round in 1..=20u64 {
        let total = |w: &mut World| w.app(1, b).conns.values().map(|c| c.received).sum::<u64>();
        let before = total(&mut w);
        w.tell(0, a, small, |c| c.to_send = round * 100);
        w.until("small message", |w| w.app(1, b).conns[&peer].received == round * 100);
        // What was in flight, and one turn of each other connection, may come first.
        let others = total(&mut w) - before;
        let bound = 2 * config.lane_inflight_bytes_max + 17 * u64::from(config.quantum_bytes) + (17 << 20);
        assert!(others <= bound, "{others} bytes before 100 (bound {bound})");
    }
    w.assert_clean();
}

#[test]
fn the_smallest_grant_on_both_sides_never_deadlocks() {
    for seed in 0..8 {
        let mut w = World::with(2, 400 + seed, |c| c.engine.lane_credits = 8);
        if seed % 2 == 1 {
            w.conditions = LinkConditions { loss: 10, duplicate: 10, reorder: 20 };
        }
        let (a, b) = (w.attach(0, 128), w.attach(1, 128));
        w.app(0, a).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (60_000, true, true);
        w.app(1, b).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (60_000, true, true);
        let to = w.listen(1, b, 7, 64);
        (0..30).for_each(|_| _ = w.connect(0, a, to, 4096));
        w.until("all closed", |w| {
            let (a, b) = (&w.hosts[0].apps[&a].conns, &w.hosts[1].apps[&b].conns);
            a.len() == 30 && b.len() == 30 && a.values().chain(b.values()).all(|c| c.closed && c.received == 60_000)
        });
        w.settle();
        assert!(w.counter(0, "credit_stalls") > 0 && w.counter(1, "credit_stalls") > 0, "the test is too easy");
        w.assert_clean();
        w.assert_empty();
    }
}

#[test]
fn an_idle_lane_falls_silent() {
    let mut w = World::with(2, 43, |c| c.engine.lane_credits = 8);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 4096);
    w.tell(0, a, sa, |c| c.to_send = 50_000);
    w.tell(1, b, sb, |c| c.to_send = 50_000);
    w.settle();
    let frames = |w: &World| w.counter(0, "frames_sent") + w.counter(1, "frames_sent");
    let before = frames(&w);
    w.pass(Duration::from_secs(30));
    assert_eq!(frames(&w), before);
    assert_eq!(w.app(1, b).conns[&sb].received, 50_000);
    assert_eq!(w.app(0, a).conns[&sa].received, 50_000);
    w.assert_clean();
}

#[test]
fn full_tables_refuse_with_a_reason_and_recover() {
    let mut w = World::with(2, 44, |c| c.connections_max(10));
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 64);
    let slots: Vec<u32> = (0..10).map(|_| w.connect_wait(0, a, to, 4096).unwrap()).collect();
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::LocalLimit));
    for slot in slots {
        w.tell(0, a, slot, |c| c.give_back(shm::app_flag::ABORT));
    }
    for (slot, ..) in w.app(1, b).incoming.clone() {
        w.tell(1, b, slot, |c| c.give_back(0));
    }
    w.settle();
    w.connect_wait(0, a, to, 4096).unwrap();
    w.assert_clean();
}

#[test]
fn a_users_applications_have_a_share_of_the_listeners() {
    let mut w = World::with(2, 47, |c| c.admission.listeners_max = 8);
    // Both are of one user, who has a quarter of eight.
    let (a, b) = (w.attach_as(0, 1000, 64), w.attach_as(0, 1000, 64));
    let ports = [w.listen(0, a, 0, 1).port(), w.listen(0, b, 0, 1).port()];
    let refused = Err(Reason::UserListeners);
    assert_eq!(w.hosts[0].listen(a, 0, 1, 4096), refused);
    w.hosts[0].unlisten(w.now, a, ports[0]);
    w.listen(0, b, 0, 1);
    assert_eq!(w.hosts[0].listen(a, 0, 1, 4096), refused);
    // What a program leaves behind is given back.
    w.kill(0, b);
    w.settle();
    w.listen(0, a, 0, 1);
    w.listen(0, a, 0, 1);
    w.assert_clean();
}

#[test]
fn the_peers_limits_are_told_as_the_peers() {
    let mut w = World::new(2, 45);
    w.hosts[1] = World::with(2, 45, |c| c.admission.connections_per_app_max = 3).hosts.remove(1);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 64);
    (0..3).for_each(|_| _ = w.connect_wait(0, a, to, 4096).unwrap());
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::PeerLimit));
    w.hosts[1].refuse_chunks = true;
    w.settle();
    w.assert_clean();
}

#[test]
fn sessions_run_out_of_slots() {
    let mut w = World::new(2, 46);
    let (a, b) = (w.attach(0, 64), w.attach(1, 128));
    let to = w.listen(1, b, 7, 128);
    (0..64).for_each(|_| _ = w.connect_wait(0, a, to, 4096).unwrap());
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::LocalLimit));
    let (c, d) = (w.attach(0, 128), w.attach(1, 64));
    let to = w.listen(1, d, 8, 128);
    (0..64).for_each(|_| _ = w.connect_wait(0, c, to, 4096).unwrap());
    assert_eq!(w.connect_wait(0, c, to, 4096), Err(Reason::PeerLimit));
    w.assert_clean();
}

#[test]
fn ring_memory_is_bounded_and_refused_on_either_side() {
    let mut w = World::with(2, 47, |c| c.engine.ring_memory_per_app_max = 6 * 8192);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 64);
    for _ in 0..6 {
        w.connect_wait(0, a, to, 4096).unwrap();
    }
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::LocalLimit));
    let other = w.attach(0, 64);
    assert_eq!(w.connect_wait(0, other, to, 4096), Err(Reason::PeerLimit));
    assert!(w.hosts[0].engine.apps().iter().all(|a| a.pinned_bytes <= 6 * 8192));
    let third = w.attach(0, 64);
    w.hosts[0].refuse_chunks = true;
    assert_eq!(w.connect_wait(0, third, to, 4096), Err(Reason::LocalLimit));
    w.settle();
    w.assert_clean();
}

#[test]
fn ring_memory_of_a_user_is_bounded_and_others_have_theirs() {
    let mut w = World::with(2, 49, |c| {
        // Of 16 pairs of rings a user has four, which an application gets at once.
        c.engine.ring_memory_max = 16 * 8192;
    });
    let b = w.attach(1, 64);
    let to = w.listen(1, b, 7, 64);
    let user = [5, 5, 6].map(|uid| w.attach_as(0, uid, 64));
    w.connect_wait(0, user[0], to, 4096).unwrap();
    assert_eq!(w.connect_wait(0, user[1], to, 4096), Err(Reason::LocalLimit));
    w.connect_wait(0, user[2], to, 4096).unwrap();
    w.kill(0, user[0]);
    w.until("its memory is free", |w| w.hosts[0].engine.apps().len() == 2);
    w.connect_wait(0, user[1], to, 4096).unwrap();
    // The host bounds its owner too.
    let owner = w.attach(0, 64);
    let made = (0..20).take_while(|_| w.connect_wait(0, owner, to, 4096).is_ok()).count();
    assert_eq!(made, 16 - 2 * 4);
    w.assert_clean();
}

#[test]
fn unused_chunks_go_back() {
    let mut w = World::new(2, 48);
    let (a, b) = (w.attach(0, 256), w.attach(1, 256));
    let to = w.listen(1, b, 7, 256);
    let slots: Vec<u32> = (0..100).map(|_| w.connect_wait(0, a, to, 4096).unwrap()).collect();
    let pinned = w.hosts[0].engine.apps()[0].pinned_bytes;
    for slot in slots {
        w.tell(0, a, slot, |c| c.give_back(shm::app_flag::ABORT));
    }
    w.until("chunks go", |w| !w.app(0, a).chunks_gone.is_empty());
    w.settle();
    assert!(w.hosts[0].engine.apps()[0].pinned_bytes < pinned);
    w.connect_wait(0, a, to, 4096).unwrap();
    w.assert_clean();
}
