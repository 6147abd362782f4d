//! Connecting and listening: answers, refusals, timeouts.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{ConnectionState, Reason};

use crate::world::desk::Local;
use crate::world::{World, addr};

fn to(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(addr(host), port)
}

#[test]
fn nobody_listens() {
    let mut w = World::new(2, 60);
    let a = w.attach(0, 64);
    assert_eq!(w.connect_wait(0, a, to(1, 9), 0), Err(Reason::NoListener));
    assert_eq!(w.connect_wait(0, a, to(0, 9), 0), Err(Reason::NoListener), "on this host");
    w.settle();
    w.assert_clean();
    w.assert_empty();
}

#[test]
fn addresses_that_mean_nothing() {
    let mut w = World::new(1, 61);
    let a = w.attach(0, 64);
    for bad in ["0.0.0.0:5", "255.255.255.255:5", "224.0.0.1:5", "10.0.0.9:0", "[::]:5", "[ff02::1]:5"] {
        assert_eq!(w.connect_wait(0, a, bad.parse().unwrap(), 0), Err(Reason::BadAddress), "{bad}");
    }
    assert_eq!(w.connect_wait(0, a, "10.9.9.9:5".parse().unwrap(), 0), Err(Reason::PeerUnreachable));
}

#[test]
fn a_mapped_address_is_the_address() {
    let mut w = World::new(2, 62);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.listen(1, b, 7, 8);
    let IpAddr::V4(v4) = addr(1) else { panic!() };
    let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), 7);
    let slot = w.connect_wait(0, a, mapped, 0).unwrap();
    assert_eq!(w.app(0, a).conns[&slot].connection.peer, to(1, 7));
}

#[test]
fn both_ends_name_each_other() {
    let mut w = World::new(2, 63);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 0);
    let ca = w.app(0, a).conns[&sa].connection.clone();
    let cb = w.app(1, b).conns[&sb].connection.clone();
    assert_eq!((ca.local, ca.peer), (cb.peer, cb.local));
    assert_eq!((ca.peer, ca.local.ip()), (to(1, 7), addr(0)));
    let row = &w.hosts[0].engine.connections()[0];
    assert_eq!((row.id, row.local, row.peer, row.app_pid), (ca.id, ca.local, ca.peer, 1000));
    assert_eq!(row.state, ConnectionState::Established);
    assert_eq!(row.lane.as_deref(), Some("10.0.0.2/0"));
    assert!(row.route_id.is_some(), "the peer names it by this number");
    let lane = &w.hosts[0].engine.lanes()[0];
    assert_eq!((lane.name.as_str(), lane.state.as_str(), lane.connections), ("10.0.0.2/0", "up", 1));
    assert_eq!(lane.peer_qpn, w.hosts[1].engine.lanes()[0].qpn);
    // One that the peer has not answered has no number there.
    w.stopped.insert(1);
    w.connect(0, a, to(1, 7), 0);
    w.pass(Duration::from_millis(5));
    let rows = w.hosts[0].engine.connections();
    let opening: Vec<_> = rows.iter().filter(|r| r.state == ConnectionState::Connecting).collect();
    assert!(matches!(opening[..], [r] if r.route_id.is_none()), "{rows:?}");
}

#[test]
fn a_full_backlog_refuses_until_one_is_accepted() {
    let mut w = World::new(2, 64);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(1, b).auto_accept = false;
    let to = w.listen(1, b, 7, 2);
    w.connect_wait(0, a, to, 4096).unwrap();
    w.connect_wait(0, a, to, 4096).unwrap();
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::BacklogFull));
    assert_eq!(w.hosts[1].engine.connections()[0].state, ConnectionState::Backlog);
    let (_, port, id) = w.app(1, b).incoming[0];
    w.hosts[1].accepted(b, port, id);
    assert_eq!(w.hosts[1].engine.connections()[0].state, ConnectionState::Established);
    w.hosts[1].accepted(b, port, id);
    w.connect_wait(0, a, to, 4096).unwrap();
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::BacklogFull));
    assert_eq!((w.counter(0, "connects"), w.counter(0, "connects_failed")), (3, 2));
    assert_eq!((w.counter(1, "connects"), w.counter(1, "connects_failed")), (0, 0));
    w.assert_clean();
}

#[test]
fn data_that_nobody_reads_yet_costs_no_frame() {
    for seed in [64, 65] {
        let mut w = World::new(2, seed);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        w.app(1, b).defaults = |c| c.read_limit = 0;
        let (sa, sb) = w.pair(a, b, 7, 8192);
        w.settle();
        let frames = |w: &World| [0, 1].map(|host| w.counter(host, "frames_sent"));
        let before = frames(&w);
        for bytes in [100, 200, 300] {
            w.tell(0, a, sa, |c| c.to_send = bytes);
            // Longer than consumed bytes would wait for company.
            w.pass(Duration::from_millis(5));
            w.settle();
        }
        assert_eq!(frames(&w), before, "neither end has anything to say");
        w.tell(1, b, sb, |c| c.read_limit = 300);
        w.settle();
        assert_eq!(w.app(1, b).conns[&sb].received, 300);
        let after = frames(&w);
        assert_eq!(after[0], before[0]);
        assert!(after[1] > before[1], "what was consumed is told");
        w.assert_clean();
    }
}

#[test]
fn data_may_come_before_accept() {
    let mut w = World::new(2, 65);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(1, b).auto_accept = false;
    w.app(1, b).defaults = |c| c.read_limit = 0;
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| c.to_send = 8192);
    w.settle();
    let (_, port, id) = w.app(1, b).incoming[0];
    w.hosts[1].accepted(b, port, id);
    w.tell(1, b, sb, |c| c.read_limit = u64::MAX);
    w.until("bytes", |w| w.app(1, b).conns[&sb].received == 8192);
    w.assert_clean();
}

#[test]
fn ports_are_exclusive_and_come_back() {
    let mut w = World::new(2, 66);
    let (b, c) = (w.attach(1, 64), w.attach(1, 64));
    w.listen(1, b, 7, 8);
    assert_eq!(w.hosts[1].listen(c, 7, 8, 0), Err(Reason::PortInUse));
    let any = w.hosts[1].listen(c, 0, 8, 0).unwrap().port();
    assert!(any >= 32768);
    w.kill(1, b);
    assert_eq!(w.hosts[1].listen(c, 7, 8, 0), Ok(to(1, 7)));
    assert_eq!(w.hosts[1].listen(b, 8, 8, 0), Err(Reason::AppFault), "it is gone");
}

#[test]
fn unlisten_resets_what_waits_and_keeps_what_was_accepted() {
    let mut w = World::new(2, 67);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(1, b).auto_accept = false;
    let to = w.listen(1, b, 7, 8);
    let first = w.connect_wait(0, a, to, 4096).unwrap();
    let second = w.connect_wait(0, a, to, 4096).unwrap();
    let (_, port, id) = w.app(1, b).incoming[0];
    let now = w.now;
    let h = &mut w.hosts[1];
    h.accepted(b, port, id);
    h.unlisten(now, b, 7);
    w.settle();
    assert_eq!(w.app(0, a).conns[&first].reset, None);
    assert_eq!(w.app(0, a).conns[&second].reset, Some(Reason::ResetByPeer));
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::NoListener));
    // The listener's application gives the slot back like any other.
    let waiting = w.app(1, b).incoming[1].0;
    assert!(w.app(1, b).conns[&waiting].reset.is_some());
    w.tell(1, b, waiting, |c| c.give_back(0));
    w.tell(0, a, second, |c| c.give_back(0));
    w.settle();
    assert_eq!(w.hosts[1].engine.connections().len(), 1);
    w.assert_clean();
}

#[test]
fn a_silent_peer_times_the_connect_out() {
    let mut w = World::new(2, 68);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let to = w.listen(1, b, 7, 8);
    w.connect_wait(0, a, to, 4096).unwrap();
    // The lane is up, but the peer's daemon hangs: its engine does not run.
    w.stopped.insert(1);
    let start = w.now;
    assert_eq!(w.connect_wait(0, a, to, 4096), Err(Reason::TimedOut));
    assert!(w.now.saturating_since(start) >= Duration::from_secs(10));
    assert_eq!(w.hosts[0].engine.connections().len(), 2, "kept until the peer answers: it may write to the ring");
    w.stopped.clear();
    w.settle();
    // The answer came late: reset at the peer, forgotten here.
    let late = w.app(1, b).incoming.last().unwrap().0;
    assert_eq!(w.app(1, b).conns[&late].reset, Some(Reason::ResetByPeer));
    assert_eq!(w.hosts[0].engine.connections().len(), 1);
    w.assert_clean();
}

#[test]
fn a_connect_to_a_host_that_never_answers_times_out() {
    let mut w = World::new(2, 69);
    let a = w.attach(0, 64);
    w.no_links = true;
    assert_eq!(w.connect_wait(0, a, to(1, 7), 0), Err(Reason::TimedOut));
    assert_eq!(w.hosts[0].engine.apps()[0].connections, 0);
}

#[test]
fn cancelled_connects_leave_nothing() {
    // At each stage: before the lane, before the answer, after it.
    for wait_us in [0u64, 50, 150, 250, 255, 260, 262, 265, 270, 300, 400] {
        let mut w = World::new(2, 70);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let to = w.listen(1, b, 7, 8);
        let request = w.connect(0, a, to, 4096);
        w.pass(Duration::from_micros(wait_us));
        let h = &mut w.hosts[0];
        h.engine.cancel_connect(w.now, &mut h.nic, a, request);
        let answered = w.app(0, a).answers.get(&request).copied();
        w.settle();
        if let Some(Ok(slot)) = answered {
            w.tell(0, a, slot, |c| c.give_back(shm::app_flag::ABORT));
        } else {
            assert_eq!(w.app(0, a).answers.get(&request), None, "after {wait_us} us");
        }
        w.settle();
        for (slot, ..) in w.app(1, b).incoming.clone() {
            assert_eq!(w.app(1, b).conns[&slot].reset, Some(Reason::ResetByPeer), "after {wait_us} us");
            w.tell(1, b, slot, |c| c.give_back(0));
        }
        w.settle();
        w.assert_empty();
        w.assert_clean();
    }
}

#[test]
fn a_connect_to_an_own_address_is_local() {
    let mut w = World::new(1, 71);
    let (a, b) = (w.attach(0, 64), w.attach(0, 64));
    w.hosts[0].listen(b, 7, 1, 16384).unwrap();
    let request = w.connect(0, a, to(0, 7), 65536);
    w.settle();
    let local = w.hosts[0].locals.pop().unwrap();
    let connection = local.connection;
    assert_eq!(local, Local { from: a, request, to: b, port: 7, ring_bytes: 16384, connection });
    assert_eq!(w.connect_wait(0, a, to(0, 7), 0), Err(Reason::BacklogFull));
    w.hosts[0].accepted(b, 7, connection);
    w.connect(0, a, to(0, 7), 0);
    w.settle();
    assert_eq!(w.hosts[0].locals.len(), 1);
    w.assert_clean();
}

#[test]
fn both_sides_dial_at_once() {
    let mut w = World::new(2, 72);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (ta, tb) = (w.listen(0, a, 7, 8), w.listen(1, b, 7, 8));
    let (ra, rb) = (w.connect(0, a, tb, 4096), w.connect(1, b, ta, 4096));
    w.until("both", |w| w.app(0, a).answers.contains_key(&ra) && w.app(1, b).answers.contains_key(&rb));
    assert!(w.app(0, a).answers[&ra].is_ok() && w.app(1, b).answers[&rb].is_ok());
    assert_eq!(w.hosts[0].engine.totals().rc_qps, 1);
    w.assert_clean();
}
