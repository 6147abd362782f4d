//! A peer whose daemon stands still: connections wait, but for those that asked for less.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Reason;
use engine::AppId;

use crate::world::{World, addr};

fn silent(w: &mut World, host: usize, for_ms: Option<u64>) {
    let now = w.now;
    w.hosts[host].engine.peer_silent(now, addr(1 - host), for_ms.map(Duration::from_millis));
}

fn asks_for(w: &mut World, (host, app): (usize, AppId), slot: u32, ms: u32) {
    w.tell(host, app, slot, |c| c.words.peer_timeout_ms.store(ms, Ordering::Relaxed));
}

/// Reasons of connections, and the lane's state.
fn shown(w: &World, host: usize) -> (Vec<Reason>, String) {
    let engine = &w.hosts[host].engine;
    (engine.connections().iter().map(|r| r.reason).collect(), engine.lanes()[0].state.clone())
}

#[test]
fn connections_wait_for_a_still_peer_as_long_as_they_asked_to() {
    const BYTES: u64 = 200_000;
    let mut w = World::new(2, 300);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let pairs: Vec<(u32, u32)> = (0..4).map(|n| w.pair(a, b, 7 + n, 16384)).collect();
    asks_for(&mut w, (0, a), pairs[0].0, 5_000);
    asks_for(&mut w, (0, a), pairs[1].0, 9_000);
    w.pass(Duration::from_millis(1));
    w.stopped.insert(1);
    for (slot, _) in &pairs {
        w.tell(0, a, *slot, |c| (c.to_send, c.fin_after) = (BYTES, true));
    }
    w.pass(Duration::from_millis(5));
    assert_eq!(shown(&w, 0), (vec![Reason::OtherHost; 4], "up".into()));
    silent(&mut w, 0, Some(3_000));
    assert_eq!(shown(&w, 0), (vec![Reason::Stalled; 4], "stalled".into()));
    // One asks while it waits already, and one takes its wish back.
    asks_for(&mut w, (0, a), pairs[2].0, 4_000);
    asks_for(&mut w, (0, a), pairs[1].0, 0);
    w.pass(Duration::from_millis(1));
    silent(&mut w, 0, Some(3_999));
    assert_eq!(w.counter(0, "peer_timeouts"), 0);
    silent(&mut w, 0, Some(30_000));
    w.until("those that do not wait", |w| {
        let conns = &w.app(0, a).conns;
        [0, 2].iter().all(|n| conns[&pairs[*n].0].reset == Some(Reason::PeerTimeout))
    });
    assert_eq!(w.counter(0, "peer_timeouts"), 2);
    // The peer goes on: who waited loses nothing, who did not is told there too.
    w.stopped.clear();
    silent(&mut w, 0, None);
    for (n, (sa, sb)) in pairs.iter().enumerate() {
        let (sa, sb) = (*sa, *sb);
        if n % 2 == 0 {
            w.until("the end at the peer", |w| w.app(1, b).conns[&sb].reset == Some(Reason::PeerTimeout));
        } else {
            w.until("all bytes", |w| w.app(1, b).conns[&sb].eof);
            assert_eq!(w.app(1, b).conns[&sb].received, BYTES);
            assert_eq!((w.app(0, a).conns[&sa].reset, w.app(1, b).conns[&sb].reset), (None, None));
        }
        w.tell(0, a, sa, |c| c.give_back(0));
        w.tell(1, b, sb, |c| c.give_back(0));
    }
    assert_eq!(shown(&w, 0).1, "up");
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn a_reset_lane_waits_for_a_still_peer_and_a_lost_link_ends_the_stall() {
    let mut w = World::new(2, 301);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 16384);
    asks_for(&mut w, (0, a), sa, 60_000);
    w.no_links = true;
    let h = &mut w.hosts[0];
    assert!(h.engine.force_lane_error(&mut h.nic, addr(1)));
    w.pass(Duration::from_millis(1));
    silent(&mut w, 0, Some(30_000));
    assert_eq!(shown(&w, 0), (vec![Reason::Stalled], "stalled".into()));
    assert_eq!(w.app(0, a).conns[&sa].reset, None);
    let now = w.now;
    for host in 0..2 {
        let h = &mut w.hosts[host];
        h.engine.lane_lost(now, &mut h.nic, addr(1 - host), Reason::PeerLost);
    }
    w.until("the end", |w| w.app(0, a).conns[&sa].reset == Some(Reason::PeerLost));
    w.until("the end there", |w| w.app(1, b).conns[&sb].reset == Some(Reason::PeerLost));
    assert_ne!(shown(&w, 0).1, "stalled");
    // Silence of a host without a lane, or that nobody knows, is nothing.
    silent(&mut w, 0, Some(1));
    let now = w.now;
    w.hosts[0].engine.peer_silent(now, addr(9), Some(Duration::from_secs(9)));
}
