//! Lanes that break: nobody hangs, everything comes back.

use std::time::Duration;

use control::Reason;
use verbs::PathMtu;

use crate::world::{World, addr, offered};

#[test]
fn a_lost_peer_resets_connections_and_a_new_lane_serves_new_ones() {
    let mut w = World::new(2, 80);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 1_000_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 100_000);
    w.break_link(0, 1, Reason::PeerLost);
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::PeerLost));
    assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::PeerLost));
    assert_eq!(w.hosts[0].engine.totals().rc_qps, 0);
    w.tell(0, a, sa, |c| c.give_back(0));
    w.tell(1, b, sb, |c| c.give_back(0));
    w.settle();
    w.assert_empty();
    let free = w.hosts[0].engine.totals().srq_free;
    for round in 0..20 {
        let slot = w.connect_wait(0, a, (addr(1), 7).into(), 8192).unwrap();
        w.tell(0, a, slot, |c| c.to_send = 100_000);
        w.settle();
        let peer = w.app(1, b).incoming.last().unwrap().0;
        assert_eq!(w.app(1, b).conns[&peer].received, 100_000, "round {round}");
        assert_eq!(w.hosts[0].engine.lanes()[0].incarnation, round + 2);
        w.break_link(0, 1, Reason::PeerLost);
        w.tell(0, a, slot, |c| c.give_back(0));
        w.tell(1, b, peer, |c| c.give_back(0));
        w.settle();
    }
    assert_eq!(w.hosts[0].engine.totals().srq_free, free, "the next lane uses the entries of the last");
    w.assert_clean();
}

#[test]
fn a_cut_network_fails_the_lane_in_bounded_time() {
    let mut w = World::new(2, 81);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 10_000_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 100_000);
    w.cut.insert((0, 1));
    let start = w.now;
    w.until("reset", |w| w.app(0, a).conns[&sa].reset.is_some() && w.app(1, b).conns[&sb].reset.is_some());
    assert!(w.now.saturating_since(start) < Duration::from_secs(100));
    assert_eq!(w.counter(0, "lane_resets"), 3, "resets that were of no use");
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::LaneFailed));
    assert!(w.hosts.iter().any(|h| !h.lane_failures.is_empty()));
    w.cut.clear();
    let slot = w.connect_wait(0, a, (addr(1), 7).into(), 4096).unwrap();
    w.tell(0, a, slot, |c| c.to_send = 5000);
    w.settle();
    let peer = w.app(1, b).incoming.last().unwrap().0;
    assert_eq!(w.app(1, b).conns[&peer].received, 5000);
}

#[test]
fn a_completed_connection_does_not_notice_the_lanes_end() {
    let mut w = World::new(2, 82);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after) = (5000, true));
    w.tell(1, b, sb, |c| (c.to_send, c.fin_after) = (6000, true));
    w.until("both eof", |w| w.app(0, a).conns[&sa].eof && w.app(1, b).conns[&sb].eof);
    w.settle();
    w.break_link(0, 1, Reason::PeerLost);
    w.settle();
    assert_eq!((w.app(0, a).conns[&sa].reset, w.app(1, b).conns[&sb].reset), (None, None));
    w.tell(0, a, sa, |c| c.give_back(0));
    w.tell(1, b, sb, |c| c.give_back(0));
    w.settle();
    w.assert_empty();
}

#[test]
fn connects_that_wait_for_a_lane_fail_with_its_reason() {
    let mut w = World::new(2, 83);
    let a = w.attach(0, 64);
    w.no_links = true;
    let r = w.connect(0, a, (addr(1), 7).into(), 4096);
    w.pass(Duration::from_millis(1));
    w.break_link(0, 1, Reason::PeerAuth);
    w.settle();
    assert_eq!(w.app(0, a).answers[&r], Err(Reason::PeerAuth));
    // The next one asks again.
    w.no_links = false;
    assert_eq!(w.connect_wait(0, a, (addr(1), 7).into(), 4096), Err(Reason::NoListener));
    w.assert_clean();
}

#[test]
fn many_peers_share_the_receive_queue_within_their_grants() {
    let mut w = World::with(6, 84, |c| c.engine.lane_credits = 16);
    let server = w.attach(0, 256);
    let to = w.listen(0, server, 7, 64);
    w.app(0, server).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (200_000, true, true);
    let clients: Vec<_> = (1..6).map(|h| (h, w.attach(h, 64))).collect();
    for (h, app) in &clients {
        w.app(*h, *app).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (200_000, true, true);
        (0..8).for_each(|_| _ = w.connect(*h, *app, to, 4096));
    }
    w.until("all closed", |w| {
        let done = |app: &crate::apps::SimApp, n| app.conns.len() == n && app.conns.values().all(|c| c.closed);
        done(&w.hosts[0].apps[&server], 40) && clients.iter().all(|(h, app)| done(&w.hosts[*h].apps[app], 8))
    });
    assert!(w.app(0, server).conns.values().all(|c| c.received == 200_000));
    w.settle();
    let granted: u64 = w.hosts[0].engine.lanes().iter().map(|lane| lane.granted).sum();
    let free = w.hosts[0].engine.totals().srq_free;
    assert!((5 * 8..=5 * 16).contains(&granted) && granted <= free, "{granted} granted of {free}");
    assert_eq!(w.hosts[0].engine.totals().rc_qps, 5);
    w.assert_clean();
    w.assert_empty();
}

#[test]
fn more_peers_than_lanes() {
    let mut w = World::with(4, 85, |c| c.lanes_max(2));
    let a = w.attach(0, 64);
    let listeners: Vec<_> = (1..4).map(|h| w.attach(h, 64)).collect();
    for (i, app) in listeners.iter().enumerate() {
        w.listen(i + 1, *app, 7, 8);
    }
    let first = w.connect_wait(0, a, (addr(1), 7).into(), 4096).unwrap();
    w.connect_wait(0, a, (addr(2), 7).into(), 4096).unwrap();
    assert_eq!(w.connect_wait(0, a, (addr(3), 7).into(), 4096), Err(Reason::LocalLimit));
    // A lane that is down and unused makes room.
    w.break_link(0, 1, Reason::PeerLost);
    w.tell(0, a, first, |c| c.give_back(0));
    w.settle();
    w.connect_wait(0, a, (addr(3), 7).into(), 4096).unwrap();
    w.assert_clean();
}

#[test]
fn a_new_offer_gives_the_old_lane_up() {
    let mut w = World::new(2, 86);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, _) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 1_000_000);
    w.pass(Duration::from_micros(100));
    let h = &mut w.hosts[0];
    let free = h.engine.totals().srq_free;
    let first = h.engine.lanes()[0].clone();
    let again = h.engine.lane_offer(&mut h.nic, addr(1)).unwrap();
    assert!(Some(offered(&again).qpn.0) != first.qpn && again.incarnation == first.incarnation + 1);
    let third = h.engine.lane_offer(&mut h.nic, addr(1)).unwrap();
    assert!(offered(&third).qpn != offered(&again).qpn && third.incarnation == again.incarnation + 1);
    assert_eq!(h.engine.totals().rc_qps, 1);
    assert_eq!(h.engine.totals().srq_free, free, "as many receives as one grant needs");
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::PeerLost));
}

#[test]
fn offers_that_cannot_be_are_refused() {
    let mut w = World::new(2, 87);
    let (one, two) = w.hosts.split_at_mut(1);
    let (a, b) = (&mut one[0], &mut two[0]);
    let good = b.engine.lane_offer(&mut b.nic, addr(0)).unwrap();
    assert!(a.engine.lane_accept(&mut a.nic, addr(1), &good).is_err(), "nothing was offered");
    a.engine.lane_offer(&mut a.nic, addr(1)).unwrap();
    let bad: [fn(&mut control::LaneOffer); 12] = [
        |o| o.lane = 1,
        // The bytes of docs/inside/control-link.md: kind, queue pair, PSN, path MTU; none, too few, too many.
        |o| o.endpoint[0] = 2,
        |o| o.endpoint[1..5].fill(0),
        |o| o.endpoint[1] = 1,
        |o| o.endpoint[5] = 1,
        |o| o.endpoint[28] = 7,
        |o| o.endpoint.clear(),
        |o| o.endpoint.truncate(33),
        |o| o.endpoint.resize(129, 0),
        |o| o.credits = 7,
        |o| o.send_bytes_max = 255,
        |o| o.max_msg_bytes = 100,
    ];
    for (i, change) in bad.into_iter().enumerate() {
        let mut offer = good.clone();
        change(&mut offer);
        assert!(a.engine.lane_accept(&mut a.nic, addr(1), &offer).is_err(), "case {i}");
    }
    a.engine.lane_accept(&mut a.nic, addr(1), &good).unwrap();
    assert!(a.engine.lane_accept(&mut a.nic, addr(1), &good).is_err(), "accepted already");
}

#[test]
fn a_device_that_changes_ports_is_told_and_connects_through_it_fail() {
    // Two software NICs, as an even seed has them.
    let mut w = World::new(2, 80);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 16);
    w.changed_ports.insert(0, 40_791);
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::TimedOut));
    let dropped = w.hosts[1].nic.counters_detail().drop_wrong_port;
    let told = w.hosts[1].strange_ports.clone();
    // Once for each queue pair of the lane, whatever came.
    assert!((1..=1 + w.counter(0, "lane_resets")).contains(&(told.len() as u64)), "{told:?}");
    assert!(dropped > told.len() as u64, "{dropped} packets, told {} times", told.len());
    assert!(told.iter().all(|t| *t == (addr(0), 40_791, 4791)), "{told:?}");
    assert_eq!(w.hosts[0].strange_ports, [], "the other way nothing is changed");
    w.hosts.iter_mut().for_each(|h| h.strange_ports.clear());
    w.changed_ports.clear();
    assert!(w.connect_wait(0, a, to, 4096).is_ok(), "without the device all is well");
}

/// Longest UDP payload of a packet of this path MTU: RETH and immediate, BTH, padding, ICRC.
const fn longest(mtu: usize) -> usize {
    mtu + 16 + 4 + 12 + 3 + 4
}

/// Path MTU of the lane at both ends.
fn path_mtu(w: &World) -> [u32; 2] {
    [0, 1].map(|host: usize| w.hosts[host].engine.lanes()[0].mtu_bytes)
}

#[test]
fn a_path_that_gets_narrower_costs_a_pause_and_no_byte() {
    for seed in [80, 81] {
        let mut w = World::new(2, seed);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, 65_536);
        w.tell(0, a, sa, |c| c.to_send = 5_000_000);
        w.tell(1, b, sb, |c| c.to_send = 5_000_000);
        w.until("traffic", |w| w.app(1, b).conns[&sb].received > 100_000);
        assert_eq!(path_mtu(&w), [4096, 4096]);
        // From now on the kernel of host 0 refuses what is longer, and says what fits. Host 1 hears it from its peer.
        w.swallowed_above = longest(1024);
        w.hosts[0].nic.path_shrank(addr(1), PathMtu::Mtu1024);
        w.until("the rest", |w| {
            w.app(1, b).conns[&sb].received == 5_000_000 && w.app(0, a).conns[&sa].received == 5_000_000
        });
        assert_eq!(path_mtu(&w), [1024, 1024]);
        assert_eq!(w.counter(0, "lane_resets") + w.counter(1, "lane_resets"), 2, "one at each end");
        // Once more, and what fits the lane as it is.
        w.hosts[0].nic.path_shrank(addr(1), PathMtu::Mtu1024);
        w.hosts[1].nic.path_shrank(addr(0), PathMtu::Mtu2048);
        w.pass(Duration::from_secs(1));
        assert_eq!(w.counter(0, "lane_resets") + w.counter(1, "lane_resets"), 2);
        // Whoever is no peer of a lane is nobody's affair.
        w.hosts[0].nic.path_shrank(addr(7), PathMtu::Mtu256);
        w.settle();
        w.assert_clean();
        // An operator who mended the way has the lane made anew.
        w.swallowed_above = usize::MAX;
        for host in [0, 1] {
            let h = &mut w.hosts[host];
            assert!(h.engine.force_lane_error(&mut h.nic, addr(1 - host)));
        }
        w.tell(0, a, sa, |c| c.to_send = 6_000_000);
        w.until("more", |w| w.app(1, b).conns[&sb].received == 6_000_000);
        assert_eq!(path_mtu(&w), [4096, 4096]);
    }
}

#[test]
fn a_path_that_swallows_long_packets_is_found_out() {
    for (swallows, expected) in [(longest(1024), 1024), (longest(256), 256)] {
        let mut w = World::new(2, 80);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, 65_536);
        w.tell(0, a, sa, |c| c.to_send = 2_000_000);
        w.until("traffic", |w| w.app(1, b).conns[&sb].received > 100_000);
        w.swallowed_above = swallows;
        w.until("the rest", |w| w.app(1, b).conns[&sb].received == 2_000_000);
        assert_eq!(path_mtu(&w), [expected, expected]);
        assert!(w.hosts[0].lane_resets.iter().any(|detail| detail.contains("long packets are swallowed")));
        // Longer ones are tried again, and given up after the first failure.
        let resets = w.counter(0, "lane_resets");
        w.pass(Duration::from_secs(301));
        w.tell(0, a, sa, |c| c.to_send = 2_500_000);
        w.until("still narrow", |w| w.app(1, b).conns[&sb].received == 2_500_000);
        assert_eq!(path_mtu(&w), [expected, expected]);
        let steps = if expected == 1024 { 2 } else { 3 };
        assert_eq!(w.counter(0, "lane_resets"), resets + steps);
        // The next time is twice as far off.
        w.swallowed_above = usize::MAX;
        for (wait, bytes, mtu, more) in
            [(400, 2_600_000, expected, 0), (210, 2_700_000, 4096, 1), (10_000, 2_800_000, 4096, 1)]
        {
            w.pass(Duration::from_secs(wait));
            w.tell(0, a, sa, |c| c.to_send = bytes);
            w.until("more", |w| w.app(1, b).conns[&sb].received == bytes);
            w.settle();
            assert_eq!((path_mtu(&w), w.counter(0, "lane_resets")), ([mtu, mtu], resets + steps + more));
        }
        w.assert_clean();
    }
}

#[test]
fn an_outage_is_not_taken_for_a_narrow_path() {
    let mut w = World::new(2, 80);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 65_536);
    w.tell(0, a, sa, |c| c.to_send = 100_000_000);
    for wanted in [1_000_000, 2_000_000, 3_000_000] {
        w.until("traffic", |w| w.app(1, b).conns[&sb].received > wanted);
        w.cut.insert((0, 1));
        let resets = w.counter(0, "lane_resets");
        w.until("a reset", |w| w.counter(0, "lane_resets") > resets);
        w.cut.clear();
        w.until("traffic again", |w| w.app(1, b).conns[&sb].received > wanted + 100_000);
        // Longer than a row of failures lasts.
        w.tell(0, a, sa, |c| c.to_send = c.sent);
        w.pass(Duration::from_secs(40));
        w.tell(0, a, sa, |c| c.to_send = 100_000_000);
    }
    assert_eq!(path_mtu(&w), [4096, 4096]);
}
