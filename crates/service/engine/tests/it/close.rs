//! Ends of connections: close, stop, reset, abort, death.

use std::time::Duration;

use control::Reason;
use engine::AppId;
use shm::app_flag;

use crate::world::{LinkConditions, World};

fn pair(seed: u64, ring: u32) -> (World, AppId, AppId, u32, u32) {
    let mut w = World::new(2, seed);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, ring);
    (w, a, b, sa, sb)
}

fn close(w: &mut World, host: usize, app: AppId, slot: u32, more: u32) {
    w.tell(host, app, slot, |c| c.give_back(more));
}

#[test]
fn closing_both_ends_frees_everything() {
    let (mut w, a, b, sa, sb) = pair(20, 4096);
    close(&mut w, 0, a, sa, 0);
    close(&mut w, 1, b, sb, 0);
    w.settle();
    w.assert_empty();
    w.assert_clean();
    // The slots are free again, with other generations.
    let slot = w.app(0, a).session.slot(sa);
    assert_eq!(slot.state.load(std::sync::atomic::Ordering::SeqCst), shm::slot_state::FREE);
    assert_eq!(slot.generation.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[test]
fn the_peers_end_wakes_nobody_who_gave_the_connection_back() {
    let (mut w, a, b, sa, sb) = pair(29, 4096);
    close(&mut w, 0, a, sa, 0);
    w.settle();
    w.app(0, a).sleep();
    close(&mut w, 1, b, sb, 0);
    w.settle();
    w.assert_empty();
    let sleeps = w.app(0, a).session.app_sleep().load(std::sync::atomic::Ordering::SeqCst);
    assert_ne!(sleeps, 0, "it was woken for a connection that it gave back");
}

#[test]
fn close_delivers_what_was_written() {
    let (mut w, a, b, sa, sb) = pair(21, 4096);
    w.tell(1, b, sb, |c| c.read_limit = 0);
    w.tell(0, a, sa, |c| c.to_send = 4096);
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].sent, 4096);
    close(&mut w, 0, a, sa, 0);
    w.settle();
    w.tell(1, b, sb, |c| (c.read_limit, c.fin_after, c.close_when_done) = (u64::MAX, true, true));
    w.until("eof", |w| w.app(1, b).conns[&sb].closed);
    assert_eq!(w.app(1, b).conns[&sb].received, 4096);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn close_with_unread_data_stops_the_writer() {
    let (mut w, a, b, sa, sb) = pair(22, 4096);
    w.tell(0, a, sa, |c| c.read_limit = 10);
    w.tell(1, b, sb, |c| c.to_send = 100_000);
    w.settle();
    close(&mut w, 0, a, sa, 0);
    w.until("stop at the writer", |w| w.app(1, b).conns[&sb].stopped);
    assert_eq!(w.app(1, b).conns[&sb].reset, None);
    w.tell(1, b, sb, |c| (c.fin_after, c.close_when_done) = (true, true));
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn stop_alone_leaves_the_other_direction_open() {
    let (mut w, a, b, sa, sb) = pair(23, 4096);
    w.tell(1, b, sb, |c| c.to_send = 1_000_000);
    w.tell(0, a, sa, |c| {
        c.read_limit = c.received;
        c.words.app_flags.fetch_or(app_flag::STOP, std::sync::atomic::Ordering::Release);
    });
    w.until("stop", |w| w.app(1, b).conns[&sb].stopped);
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after, c.close_when_done) = (30_000, true, true));
    w.until("eof", |w| w.app(1, b).conns[&sb].eof);
    assert_eq!(w.app(1, b).conns[&sb].received, 30_000);
    w.tell(1, b, sb, |c| (c.fin_after, c.close_when_done) = (true, true));
    w.settle();
    close(&mut w, 0, a, sa, 0);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn abort_resets_the_peer() {
    let (mut w, a, b, sa, sb) = pair(24, 4096);
    w.tell(0, a, sa, |c| c.to_send = 1_000_000);
    w.tell(1, b, sb, |c| c.to_send = 1_000_000);
    w.until("some bytes", |w| w.app(1, b).conns[&sb].received > 10_000);
    close(&mut w, 0, a, sa, app_flag::ABORT);
    w.until("reset", |w| w.app(1, b).conns[&sb].reset.is_some());
    assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::ResetByPeer));
    close(&mut w, 1, b, sb, 0);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn a_dead_application_is_reset_at_the_peer_and_its_memory_kept_until_confirmed() {
    let (mut w, a, b, sa, sb) = pair(25, 65536);
    w.tell(0, a, sa, |c| c.to_send = 100_000_000);
    w.tell(1, b, sb, |c| c.to_send = 100_000_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 1_000_000);
    // WRITEs to its ring are on their way when it dies.
    let mrs = w.hosts[1].mrs();
    let dead = w.kill(1, b);
    w.pass(Duration::from_nanos(1));
    assert!(w.hosts[1].gone.is_empty(), "memory given up with WRITEs in flight");
    assert_eq!(w.hosts[1].mrs(), mrs);
    w.until("reset at the peer", |w| w.app(0, a).conns[&sa].reset.is_some());
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::PeerAppDied));
    w.until("memory free", |w| w.hosts[1].gone == [b]);
    assert!(w.hosts[1].mrs() < mrs);
    drop(dead);
    close(&mut w, 0, a, sa, 0);
    w.settle();
    w.assert_empty();
    w.assert_clean();
    assert!(w.hosts[1].engine.apps().is_empty());
}

#[test]
fn an_application_that_closed_and_left_still_delivers() {
    let (mut w, a, b, sa, sb) = pair(26, 65536);
    w.tell(1, b, sb, |c| c.read_limit = 0);
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after) = (65_536, true));
    w.until("written", |w| w.app(0, a).conns[&sa].fin_said);
    // The doorbell of the close is the last thing that the process does; the engine sees the death first.
    let mut dying = w.kill_with(0, a, |app| app.conns.get_mut(&sa).unwrap().give_back(0));
    dying.conns.clear();
    w.settle();
    assert!(w.hosts[0].gone.is_empty(), "bytes are still to be consumed");
    w.tell(1, b, sb, |c| (c.read_limit, c.fin_after, c.close_when_done) = (u64::MAX, true, true));
    w.until("everything", |w| w.app(1, b).conns[&sb].eof);
    assert_eq!(w.app(1, b).conns[&sb].received, 65_536);
    w.until("memory free", |w| w.hosts[0].gone == [a]);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn an_orphan_does_not_linger_for_ever() {
    let (mut w, a, b, sa, sb) = pair(27, 4096);
    w.tell(1, b, sb, |c| c.read_limit = 0);
    w.tell(0, a, sa, |c| c.to_send = 4096);
    w.settle();
    let _dead = w.kill_with(0, a, |app| app.conns.get_mut(&sa).unwrap().give_back(0));
    w.pass(Duration::from_secs(59));
    assert!(w.hosts[0].gone.is_empty());
    w.pass(Duration::from_secs(3));
    assert_eq!(w.hosts[0].gone, [a]);
    assert_eq!(w.app(1, b).conns[&sb].reset, Some(Reason::PeerAppDied));
    w.assert_clean();
}

#[test]
fn both_applications_die_at_once() {
    let (mut w, a, b, sa, sb) = pair(28, 65536);
    w.tell(0, a, sa, |c| c.to_send = 100_000_000);
    w.tell(1, b, sb, |c| c.to_send = 100_000_000);
    w.until("traffic", |w| w.app(1, b).conns[&sb].received > 300_000);
    w.kill(0, a);
    w.kill(1, b);
    w.until("memory free", |w| w.hosts[0].gone == [a] && w.hosts[1].gone == [b]);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn ends_of_every_kind_on_a_bad_link() {
    for seed in 0..12u64 {
        let (mut w, a, b, sa, sb) = pair(300 + seed, 8192);
        w.conditions = LinkConditions { loss: 20, duplicate: 20, reorder: 50 };
        let (more, slow) = (if seed % 2 == 0 { 0 } else { app_flag::ABORT }, seed % 3 == 0);
        w.tell(0, a, sa, |c| c.to_send = 50_000);
        w.tell(1, b, sb, |c| {
            c.to_send = 50_000;
            c.read_limit = if slow { 5_000 } else { u64::MAX };
        });
        w.until("some bytes", |w| w.app(1, b).conns[&sb].received >= 5_000);
        match seed % 4 {
            0 => close(&mut w, 0, a, sa, more),
            1 => drop(w.kill(0, a)),
            2 => {
                close(&mut w, 0, a, sa, more);
                close(&mut w, 1, b, sb, more);
            }
            _ => {
                close(&mut w, 0, a, sa, more);
                drop(w.kill(1, b));
            }
        }
        w.pass(Duration::from_secs(3));
        if w.hosts[1].apps.contains_key(&b) && !w.app(1, b).conns[&sb].closed {
            close(&mut w, 1, b, sb, 0);
        }
        w.pass(Duration::from_secs(3));
        w.assert_empty();
        w.assert_clean();
    }
}

#[test]
fn slots_and_routes_are_used_again_without_confusion() {
    let mut w = World::with(2, 29, |c| c.connections_max(8));
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(0, a).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (5000, true, true);
    w.app(1, b).defaults = |c| (c.to_send, c.fin_after, c.close_when_done) = (3000, true, true);
    let to = w.listen(1, b, 7, 8);
    for round in 0..500 {
        let slot = w.connect_wait(0, a, to, 4096).unwrap_or_else(|e| panic!("round {round}: {e}"));
        w.until("closed", |w| w.app(0, a).conns[&slot].closed);
        assert_eq!(w.app(0, a).conns[&slot].received, 3000);
        w.until("gone", |w| w.hosts.iter().all(|h| h.engine.connections().is_empty()));
    }
    w.assert_clean();
    assert_eq!(w.hosts[0].engine.apps()[0].tx_bytes, 500 * 5000);
    assert_eq!(w.hosts[0].engine.apps()[0].rx_bytes, 500 * 3000);
}

/// How many there are is the application's choice, and others have their turns between.
#[test]
fn the_connections_of_an_application_that_leaves_end_some_in_each_round() {
    let mut w = World::with(2, 31, |c| c.connections_max(512));
    let (a, b) = (w.attach(0, 512), w.attach(1, 512));
    let to = w.listen(1, b, 7, 512);
    for n in 0..300 {
        w.connect_wait(0, a, to, 4096).unwrap_or_else(|e| panic!("connection {n}: {e}"));
    }
    let closing = |w: &World| {
        let rows = w.hosts[0].engine.connections();
        (rows.iter().filter(|row| format!("{:?}", row.state) == "Closing").count(), rows.len())
    };
    assert_eq!(closing(&w), (0, 300));
    w.kill(0, a);
    let (ended, all) = closing(&w);
    assert!(ended <= 64 && all == 300, "{ended} of {all} end at once");
    w.settle();
    assert_eq!(w.hosts[0].gone, [a]);
    assert!(w.hosts[0].engine.connections().is_empty());
    assert!(w.app(1, b).conns.values().all(|c| c.reset.is_some()));
}

#[test]
fn a_peer_that_never_confirms_an_end_loses_its_lane() {
    let (mut w, a, b, sa, _) = pair(30, 4096);
    let mrs = w.hosts[0].mrs();
    // The peer's NIC acknowledges, its daemon hangs.
    w.stopped.insert(1);
    w.kill(0, a);
    w.pass(Duration::from_secs(119));
    assert!(w.hosts[0].gone.is_empty() && w.hosts[0].mrs() == mrs, "the peer may still write to the ring");
    w.pass(Duration::from_secs(2));
    assert_eq!(w.hosts[0].gone, [a]);
    assert_eq!(w.hosts[0].lane_failures.len(), 1);
    assert_eq!(w.hosts[0].engine.totals().rc_qps, 0);
    w.stopped.clear();
    w.settle();
    assert!(w.app(1, b).conns.values().all(|c| c.reset.is_some()), "slot {sa}");
}

#[test]
fn a_connection_that_ended_in_order_is_not_reset_by_a_backlog_that_never_heard_of_its_acceptance() {
    let mut w = World::new(2, 31);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(1, b).auto_accept = false;
    let to = w.listen(1, b, 7, 8);
    let sa = w.connect_wait(0, a, to, 4096).unwrap();
    w.until("incoming", |w| !w.app(1, b).incoming.is_empty());
    let sb = w.app(1, b).incoming[0].0;
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after) = (3000, true));
    w.until("everything", |w| w.app(1, b).conns[&sb].eof);
    // It took the connection, read it to its end and closed it; the engine hears of its leaving before anything else.
    let mut left = w.kill_with(1, b, |app| app.conns.get_mut(&sb).unwrap().give_back(0));
    left.conns.clear();
    w.until("the end", |w| w.app(0, a).conns[&sa].eof);
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].reset, None);
    close(&mut w, 0, a, sa, 0);
    w.settle();
    assert_eq!(w.hosts[1].gone, [b]);
    w.assert_empty();
    w.assert_clean();
}

#[test]
fn a_connection_in_the_backlog_of_a_process_that_dies_is_reset() {
    let mut w = World::new(2, 32);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.app(1, b).auto_accept = false;
    let to = w.listen(1, b, 7, 8);
    let sa = w.connect_wait(0, a, to, 4096).unwrap();
    w.until("incoming", |w| !w.app(1, b).incoming.is_empty());
    w.kill(1, b);
    w.until("reset", |w| w.app(0, a).conns[&sa].reset.is_some());
    assert_eq!(w.app(0, a).conns[&sa].reset, Some(Reason::PeerAppDied));
    close(&mut w, 0, a, sa, 0);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}

/// A dying listener gives rings back while an open waits for rings of its: nobody would ever end that connection.
#[test]
fn an_open_that_waits_for_rings_of_a_listener_that_dies_is_refused() {
    let mut w = World::new(2, 61);
    let (a, b, other) = (w.attach(0, 64), w.attach(1, 64), w.attach(1, 64));
    let (to_a, to_b, to_other) = (w.listen(0, a, 8, 64), w.listen(1, b, 7, 64), w.listen(1, other, 9, 64));
    // The lane is up.
    w.connect_wait(0, a, to_other, 4096).unwrap();
    w.hosts[1].holds_chunks = true;
    // More than the first chunk has rings.
    (0..20).for_each(|_| _ = w.connect(1, b, to_a, 4096));
    let request = w.connect(0, a, to_b, 4096);
    w.pass(Duration::from_micros(500));
    assert!(!w.app(0, a).answers.contains_key(&request), "it waits");
    // The first connects get rings, and the process dies before a word of them has left.
    w.hosts[1].make_chunks();
    w.kill(1, b);
    w.settle();
    assert_eq!(w.app(0, a).answers[&request], Err(Reason::NoListener));
    w.kill(0, a);
    w.kill(1, other);
    w.settle();
    w.assert_empty();
    w.assert_clean();
}
