//! Hosts that cannot be reached: how often they are dialed for datagrams, and that connects do not wait for that.

use std::net::SocketAddr;
use std::time::Duration;

use control::Reason;
use engine::{AppId, Viewer};

use crate::world::{World, addr};

/// Pauses between dials for datagrams, as docs/use/datagrams.md has them.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Time between two datagrams of a busy sender.
const GAP: Duration = Duration::from_millis(10);

/// A host on which no daemon runs.
const DEAD: fn(u16) -> SocketAddr = |n| SocketAddr::new(addr(100 + usize::from(n)), 9);

fn sender(w: &mut World) -> (AppId, u32) {
    let app = w.attach(0, 64);
    let slot = w.bind(0, app, 700, 1 << 20).unwrap();
    (app, slot)
}

/// Sends a datagram to each of `to` every [`GAP`].
fn send_for(w: &mut World, (app, slot): (AppId, u32), to: &[SocketAddr], time: Duration) {
    let end = w.now + time;
    while w.now < end {
        to.iter().for_each(|to| w.send(0, app, slot, *to, b"anybody there?"));
        w.pass(GAP);
    }
}

#[test]
fn datagrams_to_a_dead_host_have_it_dialed_ever_more_rarely() {
    let mut w = World::new(2, 20);
    let from = sender(&mut w);
    send_for(&mut w, from, &[DEAD(0)], Duration::from_secs(60));
    let dials: Vec<_> = w.hosts[0].wanted.iter().map(|(at, _)| *at).collect();
    let mut whole = PAUSE_MIN;
    for pair in dials.windows(2) {
        let pause = pair[1].saturating_since(pair[0]);
        assert!((whole / 2..=whole + 2 * GAP).contains(&pause), "{pause:?} where at most {whole:?} is right");
        whole = (whole * 2).min(PAUSE_MAX);
    }
    assert!((9..=20).contains(&dials.len()), "{} dials in 60 s", dials.len());
    assert_eq!(w.counter(0, "drop_datagram_no_peer"), 6000, "each datagram is counted");
    let row = w.hosts[0].engine.lanes_page(w.now, Viewer::All, 0, 1).rows[0].1.row.clone();
    assert_eq!(row.dials_failed as usize, dials.len());
    assert!(row.redial_in_us > 0 && Duration::from_micros(row.redial_in_us) <= PAUSE_MAX, "{row:?}");
}

#[test]
fn connects_and_questions_dial_at_once_and_count() {
    let mut w = World::new(2, 21);
    let (app, slot) = sender(&mut w);
    for dials in 1..=8 {
        assert_eq!(w.connect_wait(0, app, DEAD(0), 0), Err(Reason::PeerUnreachable));
        assert_eq!(w.hosts[0].wanted.len(), dials, "a connect does not wait");
    }
    w.send(0, app, slot, DEAD(0), b"held back");
    w.pass(GAP);
    assert_eq!(w.hosts[0].wanted.len(), 8, "a datagram does not dial right after them");
    let h = &mut w.hosts[0];
    h.engine.datagram_path(w.now, &mut h.nic, app, 77, DEAD(0).ip());
    w.until("the question is answered", |w| w.hosts[0].apps[&app].paths.contains_key(&77));
    assert_eq!(w.hosts[0].wanted.len(), 9, "a question does");
}

#[test]
fn many_dead_hosts_do_not_make_each_other_forgotten() {
    let mut w = World::with(2, 22, |c| c.lanes_max(2));
    let from = sender(&mut w);
    let hosts: Vec<_> = (0..5).map(DEAD).collect();
    send_for(&mut w, from, &hosts, Duration::from_secs(20));
    let dials = w.hosts[0].wanted.len();
    assert!(dials <= 60, "{dials} dials of {} dead hosts in 20 s", hosts.len());
    // Whoever connects still gets a place.
    assert_eq!(w.connect_wait(0, from.0, SocketAddr::new(addr(1), 9), 0), Err(Reason::NoListener));
}

#[test]
fn a_host_that_is_back_is_found_and_one_that_was_up_for_long_is_dialed_at_once() {
    let mut w = World::new(2, 23);
    let (app, slot) = sender(&mut w);
    w.path(0, app, 1).unwrap();
    w.pass(PAUSE_MAX);
    let lose = |w: &mut World| {
        w.break_link(0, 1, Reason::PeerLost);
        let before = w.hosts[0].wanted.len();
        w.send(0, app, slot, SocketAddr::new(addr(1), 9), b"still there?");
        w.pass(GAP);
        w.hosts[0].wanted.len() - before
    };
    assert_eq!(lose(&mut w), 1, "the first datagram after the loss has the host dialed");
    assert_eq!(lose(&mut w), 1, "it was up for a moment; that happens once");
    assert_eq!(lose(&mut w), 0, "and again: a pause");
    send_for(&mut w, (app, slot), &[SocketAddr::new(addr(1), 9)], 2 * PAUSE_MIN);
    assert_eq!(w.hosts[0].engine.lanes_page(w.now, Viewer::All, 0, 1).rows[0].1.row.state, "up");
}
