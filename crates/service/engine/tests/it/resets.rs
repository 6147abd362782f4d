//! Lanes that get a new queue pair under their connections: by each cause, at each step; nothing is lost or doubled.

use std::time::Duration;

use control::Reason;
use engine::AppId;
use verbs::{Access, Payload, Provider, QpModify, Qpn, Region, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, Sge};

use crate::world::{World, addr};

fn qpn(w: &World, host: usize) -> Option<Qpn> {
    let lanes = w.hosts[host].engine.lanes();
    lanes.first().and_then(|l| l.qpn).filter(|q| *q != 0).map(Qpn)
}

/// The device puts the queue pair into error, and says nothing.
fn silent_error(w: &mut World, host: usize) {
    if let Some(qpn) = qpn(w, host) {
        w.hosts[host].nic.modify_qp(qpn, &QpModify::Err).unwrap();
    }
}

fn resets(w: &World, host: usize) -> u64 {
    w.counter(host, "lane_resets")
}

/// Both ends write and read a lot; `harm` comes in the middle. All arrives, nothing is left.
fn survives(seed: u64, harm: impl FnOnce(&mut World)) -> World {
    const BYTES: u64 = 1_000_000;
    let mut w = World::new(2, seed);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 16384);
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after) = (BYTES, true));
    w.tell(1, b, sb, |c| (c.to_send, c.fin_after) = (BYTES, true));
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 100_000);
    harm(&mut w);
    w.until("both ends", |w| w.app(0, a).conns[&sa].eof && w.app(1, b).conns[&sb].eof);
    assert_eq!((w.app(0, a).conns[&sa].received, w.app(1, b).conns[&sb].received), (BYTES, BYTES));
    assert_eq!((w.app(0, a).conns[&sa].reset, w.app(1, b).conns[&sb].reset), (None, None));
    w.tell(0, a, sa, |c| c.give_back(0));
    w.tell(1, b, sb, |c| c.give_back(0));
    w.settle();
    w.assert_empty();
    for host in 0..2 {
        assert!(resets(&w, host) >= 1, "host {host} noticed nothing");
        assert_eq!(w.counter(host, "violations"), 0);
        assert_eq!((w.hosts[host].nic.counters_detail().rnr_naks_sent, w.hosts[host].lane_failures.len()), (0, 0));
    }
    let (l0, l1) = (w.hosts[0].engine.lanes()[0].clone(), w.hosts[1].engine.lanes()[0].clone());
    assert_eq!((l0.state.as_str(), l1.state.as_str()), ("up", "up"));
    assert_eq!((l0.credits, l1.credits), (l1.granted, l0.granted), "each credit is at one end");
    assert_eq!(l0.resets, l1.resets);
    w
}

#[test]
fn an_error_of_the_local_queue_pair_is_survived() {
    for (seed, hosts) in [(200, &[0][..]), (201, &[1]), (202, &[0, 1])] {
        let w = survives(seed, |w| hosts.iter().for_each(|h| silent_error(w, *h)));
        w.assert_clean();
    }
}

#[test]
fn exceeded_retries_are_survived() {
    let w = survives(203, |w| {
        w.cut.insert((0, 1));
        w.until("failure", |w| w.hosts.iter().any(|h| !h.lane_resets.is_empty()));
        w.cut.clear();
    });
    assert!(w.hosts.iter().flat_map(|h| &h.lane_resets).any(|d| d.contains("RetryExcErr")));
    w.assert_clean();
}

#[test]
fn a_remote_access_error_is_survived() {
    let w = survives(204, |w| {
        let qpn = qpn(w, 0).unwrap();
        let nic = &mut w.hosts[0].nic;
        let region = Region::anonymous(4096).unwrap();
        let sge = Sge { addr: 0, len: 8, lkey: nic.reg_mr(&region, 0, 4096, Access::LOCAL_WRITE).unwrap().lkey };
        let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0x0bad_0bad) });
        let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&[sge]), flags: SendFlags::SIGNALED, dest: None };
        // What the device does with a key that the peer took back.
        nic.post_send(qpn, &[wr]).unwrap();
    });
    // Which end notices first is the control link's affair: the peer's queue pair is in error too.
    let said: Vec<_> = w.hosts.iter().flat_map(|h| h.lane_resets.clone()).collect();
    assert!(said.iter().any(|d| ["RemAccessErr", "WrFlushErr", "in error"].iter().any(|w| d.contains(w))), "{said:?}");
}

#[test]
fn a_queue_pair_that_vanishes_at_the_peer_is_survived() {
    survives(205, |w| {
        let qpn = qpn(w, 1).unwrap();
        w.hosts[1].nic.destroy_qp(qpn).unwrap();
    });
}

#[test]
fn a_reset_that_an_end_asks_for_is_survived() {
    let w = survives(206, |w| {
        let h = &mut w.hosts[1];
        assert!(h.engine.force_lane_error(&mut h.nic, addr(0)));
        assert!(!h.engine.force_lane_error(&mut h.nic, addr(5)));
    });
    w.assert_clean();
}

#[test]
fn errors_again_and_again_are_survived_at_any_step() {
    for seed in 210..230 {
        let w = survives(seed, |w| {
            for n in 0..8_u64 {
                w.pass(Duration::from_micros(37 * ((seed + n) % 11)));
                silent_error(w, (n % 2) as usize);
                if (seed + n) % 3 == 0 {
                    let h = &mut w.hosts[0];
                    h.engine.force_lane_error(&mut h.nic, addr(1));
                }
            }
        });
        w.assert_clean();
    }
}

/// Host 0 connects many times and writes; everything is closed in order.
fn storm(seed: u64, count: usize, mut harm: impl FnMut(&mut World, AppId, AppId)) -> (World, AppId, AppId) {
    let mut w = World::new(2, seed);
    let (a, b) = (w.attach(0, 512), w.attach(1, 512));
    w.app(0, a).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (20_000, true, true);
    w.app(1, b).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (10_000, true, true);
    let to = w.listen(1, b, 7, 512);
    w.connect_wait(0, a, to, 4096).unwrap();
    for _ in 1..count {
        w.connect(0, a, to, 4096);
    }
    harm(&mut w, a, b);
    (w, a, b)
}

#[test]
fn opens_and_closes_in_flight_have_one_answer_on_both_ends() {
    for seed in 230..250 {
        let (mut w, a, b) = storm(seed, 150, |w, _, _| {
            for n in 0..7 {
                w.pass(Duration::from_micros(20 + 53 * (n % 5)));
                silent_error(w, (n % 2) as usize);
                let h = &mut w.hosts[0];
                h.engine.force_lane_error(&mut h.nic, addr(1));
            }
        });
        w.until("all closed", |w| {
            let done = |app: &crate::apps::SimApp| app.conns.len() == 150 && app.conns.values().all(|c| c.closed);
            done(&w.hosts[0].apps[&a]) && done(&w.hosts[1].apps[&b])
        });
        assert!(w.app(0, a).answers.values().all(Result::is_ok));
        assert!(w.app(0, a).conns.values().all(|c| c.received == 10_000 && c.reset.is_none()));
        assert!(w.app(1, b).conns.values().all(|c| c.received == 20_000 && c.reset.is_none()));
        w.settle();
        w.assert_empty();
        w.assert_clean();
    }
}

#[test]
fn a_process_that_dies_during_a_reset_resets_its_connections_alone() {
    for micros in [0, 30, 120, 260, 410, 600] {
        let mut w = World::new(2, 260 + micros);
        let (a, b, other) = (w.attach(0, 64), w.attach(1, 64), w.attach(0, 64));
        let (sa, sb) = w.pair(a, b, 7, 8192);
        let to = (addr(1), 7).into();
        let so = w.connect_wait(0, other, to, 8192).unwrap();
        w.settle();
        let po = w.app(1, b).incoming.last().unwrap().0;
        w.tell(0, a, sa, |c| c.to_send = 10_000_000);
        w.tell(0, other, so, |c| (c.to_send, c.fin_after) = (500_000, true));
        w.until("traffic", |w| w.app(1, b).conns[&sb].received > 50_000);
        silent_error(&mut w, 0);
        w.pass(Duration::from_micros(micros));
        w.kill(0, a);
        w.until("told", |w| w.app(1, b).conns[&sb].reset.is_some() && w.app(1, b).conns[&po].eof);
        assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::PeerAppDied));
        assert_eq!(w.app(1, b).conns[&po].received, 500_000);
        w.settle();
        assert_eq!(w.hosts[0].gone, [a], "its memory is free");
        w.assert_clean();
    }
}

#[test]
fn a_lane_that_fails_again_and_again_ends_with_a_reason() {
    let mut w = World::new(2, 270);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 1 << 30);
    for _ in 0..40 {
        w.pass(Duration::from_millis(5));
        silent_error(&mut w, 0);
    }
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::LaneFailed));
    assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::LaneFailed));
    assert_eq!(w.hosts.iter().filter(|h| !h.lane_failures.is_empty()).count(), 1);
    assert_eq!((resets(&w, 0), resets(&w, 1)), (16, 16));
    // A new lane serves new connections.
    let slot = w.connect_wait(0, a, (addr(1), 7).into(), 4096).unwrap();
    w.tell(0, a, slot, |c| c.to_send = 5000);
    w.settle();
    let peer = w.app(1, b).incoming.last().unwrap().0;
    assert_eq!(w.app(1, b).conns[&peer].received, 5000);
}

#[test]
fn routes_that_cannot_be_end_the_connections() {
    use control::route_flag::{FIN, PARKED, RESET, STOP};
    type Change = fn(&mut control::LaneRoutes);
    let cases: [Change; 10] = [
        |r| r.routes[0].rx_tail += 1 << 40,
        |r| r.routes[0].rx_tail = u64::MAX,
        |r| r.routes[0].rx_head = r.routes[0].rx_tail + 1,
        |r| r.routes[0].flags = FIN,
        |r| r.routes[0].flags = STOP,
        |r| r.routes[0].flags = RESET,
        |r| r.routes[0].flags = PARKED,
        |r| r.routes[0].own_route ^= 1,
        |r| r.frames_received += 1 << 40,
        |r| r.incarnation += 1,
    ];
    for (i, change) in cases.into_iter().enumerate() {
        let mut w = World::new(2, 280 + i as u64);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, 8192);
        w.tell(0, a, sa, |c| c.to_send = 10_000_000);
        w.until("traffic", |w| w.app(1, b).conns[&sb].received > 50_000);
        w.twist = Some(change);
        silent_error(&mut w, 0);
        w.until("reset", |w| w.app(0, a).conns[&sa].reset.is_some() && w.app(1, b).conns[&sb].reset.is_some());
        assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::LaneFailed), "case {i}");
        assert!(w.twist.is_none() && w.hosts.iter().any(|h| !h.lane_failures.is_empty()), "case {i}");
    }
}

#[test]
fn an_end_that_the_peers_device_confirmed_is_handled_before_the_reset() {
    let mut w = World::new(2, 275);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(1, b, sb, |c| c.fin_after = true);
    w.until("end of one direction", |w| w.app(0, a).conns[&sa].eof);
    // The Fin of the other arrives at a daemon that hangs; its device confirms it, and this end is free.
    w.stopped.insert(1);
    w.tell(0, a, sa, |c| c.give_back(0));
    w.until("the first end is free", |w| w.hosts[0].engine.connections().is_empty());
    let h = &mut w.hosts[0];
    h.engine.force_lane_error(&mut h.nic, addr(1));
    w.settle();
    w.stopped.clear();
    w.until("the other end", |w| w.app(1, b).conns[&sb].eof);
    assert_eq!(w.app(1, b).conns[&sb].reset, None);
    w.tell(1, b, sb, |c| c.give_back(0));
    w.settle();
    assert!(resets(&w, 0) == 1 && resets(&w, 1) == 1);
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn more_connections_than_one_message_names_go_on() {
    const COUNT: usize = 2500;
    let mut w = World::with(2, 276, |c| c.ring_bytes_max(4096));
    let (a, b) = (w.attach(0, 4096), w.attach(1, 4096));
    let to = w.listen(1, b, 7, 4096);
    for _ in 0..COUNT {
        w.connect(0, a, to, 4096);
    }
    w.until("all connected", |w| w.app(0, a).answers.len() == COUNT && w.app(1, b).incoming.len() == COUNT);
    let slots: Vec<u32> = w.app(0, a).conns.keys().copied().collect();
    for slot in &slots {
        w.tell(0, a, *slot, |c| (c.to_send, c.fin_after) = (9_000, true));
    }
    w.until("the first bytes", |w| w.app(1, b).conns.values().any(|c| c.received > 0));
    let h = &mut w.hosts[1];
    h.engine.force_lane_error(&mut h.nic, addr(0));
    w.until("all arrived", |w| w.app(1, b).conns.values().all(|c| c.eof));
    assert!(w.app(1, b).conns.values().all(|c| c.received == 9_000 && c.reset.is_none()));
    assert_eq!((resets(&w, 0), resets(&w, 1)), (1, 1));
    w.assert_clean();
}
