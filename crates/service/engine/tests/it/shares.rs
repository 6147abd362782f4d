//! What one user can take of a host, and see of it: shares of lanes, dials and connections, the hosts that may be
//! connected to, and pages of the tables.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{Reason, UserShare};
use engine::{AppId, LaneView, Page, Viewer};

use crate::world::{World, addr};

const USER: u32 = 1000;
const OTHER: u32 = 1001;

/// A host that is no part of the world.
fn absent(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 9, 9, n], 7))
}

/// One step: more would go on to the end of the connects that wait.
const STEP: Duration = Duration::from_nanos(100);

fn refusal(w: &mut World, app: AppId, to: SocketAddr) -> Option<Reason> {
    let request = w.connect(0, app, to, 4096);
    // What the control plane refuses gives the engine nothing to do.
    if !w.app(0, app).answers.contains_key(&request) {
        w.pass(STEP);
    }
    w.app(0, app).answers.get(&request).and_then(|answer| answer.err())
}

#[test]
fn who_dials_hosts_that_do_not_answer_leaves_lanes_to_others() {
    let mut w = World::with(3, 90, |c| c.lanes_max(16));
    let (hostile, again) = (w.attach_as(0, USER, 64), w.attach_as(0, USER, 64));
    let polite = w.attach_as(0, OTHER, 64);
    let server = w.attach(1, 64);
    let to = w.listen(1, server, 7, 8);
    w.connect_wait(0, polite, to, 4096).unwrap();
    w.no_links = true;
    let refused: Vec<_> = (0..70).filter_map(|n| refusal(&mut w, hostile, absent(n))).collect();
    assert_eq!(refused, [Reason::UserLanes; 66], "a quarter of 16 lanes");
    assert_eq!(refusal(&mut w, again, absent(99)), Some(Reason::UserLanes), "whatever program of the user's it is");
    assert_eq!(refusal(&mut w, again, absent(0)), None, "to the same host as the first");
    w.no_links = false;
    let server = w.attach(2, 64);
    let to = w.listen(2, server, 7, 8);
    w.connect_wait(0, polite, to, 4096).unwrap();
    // Every connect ends, and with it what it held.
    for n in 0..70 {
        let h = &mut w.hosts[0];
        h.engine.lane_lost(w.now, &mut h.nic, absent(n).ip(), Reason::PeerUnreachable);
    }
    w.until("all ended", |w| w.hosts[0].apps[&hostile].answers.len() == 70);
    w.connect_wait(0, hostile, to, 4096).unwrap();
    w.assert_clean();
}

#[test]
fn dials_have_a_share_of_their_own_also_those_for_datagrams() {
    let mut w = World::with(1, 91, |c| {
        c.lanes_max(64);
        c.engine.user_share = UserShare::percent(4);
    });
    let app = w.attach_as(0, USER, 64);
    let socket = w.bind(0, app, 700, 0).unwrap();
    w.no_links = true;
    assert_eq!([0, 1].map(|n| refusal(&mut w, app, absent(n))), [None; 2]);
    for n in [1, 2, 3, 4] {
        w.send(0, app, socket, absent(n), b"hello");
    }
    w.until("all datagrams are dropped", |w| w.drops(0, "no_peer") == 4);
    assert_eq!(refusal(&mut w, app, absent(3)), Some(Reason::UserDials), "two connects and one datagram dial");
    assert_eq!(refusal(&mut w, app, absent(2)), None, "that one is being dialed");
    let h = &mut w.hosts[0];
    h.engine.datagram_path(w.now, &mut h.nic, app, 1, absent(5).ip());
    w.pass(STEP);
    assert_eq!(w.app(0, app).paths[&1], Err(Reason::UserDials));
    assert_eq!(w.hosts[0].engine.lanes().len(), 3);
    // A dial that failed leaves its place.
    let h = &mut w.hosts[0];
    h.engine.lane_lost(w.now, &mut h.nic, absent(1).ip(), Reason::PeerUnreachable);
    assert_eq!(refusal(&mut w, app, absent(3)), None);
}

#[test]
fn only_hosts_that_the_operator_allows_are_dialed() {
    let mut w = World::with(2, 92, |c| c.engine.connect_to = vec!["10.0.0.0/24".parse().unwrap()]);
    let app = w.attach(0, 64);
    let server = w.attach(1, 64);
    let to = w.listen(1, server, 7, 8);
    let socket = w.bind(0, app, 700, 0).unwrap();
    w.connect_wait(0, app, to, 4096).unwrap();
    w.no_links = true;
    let mapped: IpAddr = "::ffff:10.9.9.1".parse().unwrap();
    for host in
        [absent(1), SocketAddr::new(mapped, 7), "8.8.8.8:7".parse().unwrap(), "[2001:db8::1]:7".parse().unwrap()]
    {
        assert_eq!(refusal(&mut w, app, host), Some(Reason::Policy), "{host}");
        w.send(0, app, socket, host, b"hello");
    }
    w.until("all datagrams are dropped", |w| w.drops(0, "no_peer") == 4);
    let h = &mut w.hosts[0];
    h.engine.datagram_path(w.now, &mut h.nic, app, 1, absent(1).ip());
    w.pass(STEP);
    assert_eq!(w.app(0, app).paths[&1], Err(Reason::Policy));
    assert_eq!(w.hosts[0].engine.lanes().len(), 1, "nobody was dialed");
}

#[test]
fn connections_have_a_share_that_comes_back() {
    let mut w = World::with(2, 93, |c| c.connections_max(32));
    let (first, second) = (w.attach_as(0, USER, 64), w.attach_as(0, USER, 64));
    let other = w.attach_as(0, OTHER, 64);
    let server = w.attach_as(1, USER, 64);
    let to = w.listen(1, server, 7, 64);
    let slots: Vec<_> = (0..4).map(|_| w.connect_wait(0, first, to, 4096).unwrap()).collect();
    (0..4).for_each(|_| _ = w.connect_wait(0, second, to, 4096).unwrap());
    assert_eq!(w.connect_wait(0, first, to, 4096), Err(Reason::UserConnections));
    assert_eq!(w.connect_wait(0, other, to, 4096), Err(Reason::UserConnections), "the server's user has its share");
    for slot in slots {
        w.tell(0, first, slot, |c| c.give_back(shm::app_flag::ABORT));
    }
    w.settle();
    let incoming: Vec<_> = w.app(1, server).incoming.iter().map(|i| i.0).collect();
    for slot in incoming {
        if w.app(1, server).conns[&slot].reset.is_some() {
            w.tell(1, server, slot, |c| c.give_back(0));
        }
    }
    w.settle();
    w.connect_wait(0, other, to, 4096).unwrap();
    w.connect_wait(0, first, to, 4096).unwrap();
    w.assert_clean();
}

#[test]
fn lanes_without_connections_make_room_the_longest_unused_first() {
    let mut w = World::with(5, 94, |c| c.lanes_max(2));
    let app = w.attach(0, 64);
    for host in 1..5 {
        let server = w.attach(host, 64);
        w.app(host, server).defaults = |c| c.close_when_done = true;
        w.listen(host, server, 7, 8);
    }
    let to = |host| SocketAddr::new(addr(host), 7);
    let stays = w.connect_wait(0, app, to(1), 4096).unwrap();
    for round in 0..3 {
        for host in 2..5 {
            let slot = w.connect_wait(0, app, to(host), 4096).unwrap();
            assert_eq!(w.connect_wait(0, app, to(2 + (host - 1) % 3), 4096), Err(Reason::LocalLimit), "round {round}");
            w.tell(0, app, slot, |c| c.give_back(shm::app_flag::ABORT));
            w.settle();
        }
    }
    assert_eq!(w.app(0, app).conns[&stays].reset, None, "a lane with a connection stays");
    w.assert_clean();
}

/// Hosts whose first has lanes to so many others at most, each with an application that listens; the lanes from the
/// last host to the first, and from the first to those between, were used once.
fn crowded(hosts: usize, lanes_max: u32) -> (World, Vec<AppId>) {
    let mut w = World::with(hosts, 96, |c| c.lanes_max(lanes_max));
    let apps: Vec<_> = (0..hosts).map(|host| w.attach(host, 64)).collect();
    for (host, app) in apps.iter().enumerate() {
        w.app(host, *app).defaults = |c| c.close_when_done = true;
        w.listen(host, *app, 7, 8);
    }
    (w, apps)
}

fn use_once(w: &mut World, apps: &[AppId], from: usize, to: usize) {
    let slot = w.connect_wait(from, apps[from], SocketAddr::new(addr(to), 7), 4096).unwrap();
    w.tell(from, apps[from], slot, |c| c.give_back(shm::app_flag::ABORT));
    w.settle();
}

#[test]
fn a_connect_whose_lane_made_room_at_the_peer_goes_over_a_new_one() {
    let (mut w, apps) = crowded(4, 2);
    use_once(&mut w, &apps, 3, 0);
    use_once(&mut w, &apps, 0, 1);
    // The Open is on its way when the other end of its lane goes, as the one that was unused for the longest time.
    let request = w.connect(3, apps[3], SocketAddr::new(addr(0), 7), 4096);
    let h = &mut w.hosts[3];
    h.engine.run(w.now, &mut h.nic);
    w.connect_wait(0, apps[0], SocketAddr::new(addr(2), 7), 4096).unwrap();
    w.until("the answer", |w| w.hosts[3].apps[&apps[3]].answers.contains_key(&request));
    let slot = w.app(3, apps[3]).answers[&request].expect("there is room");
    assert_eq!(w.counter(3, "connects_displaced"), 1);
    w.tell(3, apps[3], slot, |c| c.to_send = 10_000);
    w.settle();
    assert_eq!(w.counter(0, "accepts"), 2);
    w.assert_clean();
}

#[test]
fn a_connect_whose_lane_made_room_and_finds_none_says_whose_limit_it_was() {
    let (mut w, apps) = crowded(3, 1);
    use_once(&mut w, &apps, 2, 0);
    let request = w.connect(2, apps[2], SocketAddr::new(addr(0), 7), 4096);
    let h = &mut w.hosts[2];
    h.engine.run(w.now, &mut h.nic);
    // It stays, so that there is no room.
    for host in [0, 1] {
        w.app(host, apps[host]).defaults = |_| {};
    }
    w.connect_wait(0, apps[0], SocketAddr::new(addr(1), 7), 4096).unwrap();
    w.until("the answer", |w| w.hosts[2].apps[&apps[2]].answers.contains_key(&request));
    assert_eq!(w.app(2, apps[2]).answers[&request], Err(Reason::PeerLimit));
    w.settle();
    w.assert_clean();
}

#[test]
fn a_connect_that_waits_for_rings_may_lose_its_lane() {
    for (lanes_max, expected) in [(2, None), (1, Some(Reason::LocalLimit))] {
        let (mut w, apps) = crowded(4, lanes_max);
        use_once(&mut w, &apps, 0, 3);
        if lanes_max > 1 {
            use_once(&mut w, &apps, 0, 1);
        }
        // Rings of this size are not there yet.
        let request = w.connect(0, apps[0], SocketAddr::new(addr(3), 7), 65_536);
        let other = w.connect(0, apps[0], SocketAddr::new(addr(2), 7), 4096);
        for request in [request, other] {
            w.until("the answer", |w| w.hosts[0].apps[&apps[0]].answers.contains_key(&request));
        }
        assert_eq!(w.app(0, apps[0]).answers[&request].err(), expected);
        assert_eq!(w.app(0, apps[0]).answers[&other].err(), None);
        w.settle();
        w.assert_clean();
    }
}

/// One end resets the lane with its connections, while the other end takes it for unused and gives it up.
#[test]
fn a_connect_that_waits_for_a_lane_reset_survives_that_the_peer_gave_the_lane_up() {
    let (mut w, apps) = crowded(2, 2);
    use_once(&mut w, &apps, 0, 1);
    let h = &mut w.hosts[0];
    assert!(h.engine.force_lane_error(&mut h.nic, addr(1)));
    h.engine.run(w.now, &mut h.nic);
    let request = w.connect(0, apps[0], SocketAddr::new(addr(1), 7), 4096);
    // Nobody hears of the reset: the peer's word comes first.
    let h = &mut w.hosts[0];
    while h.engine.poll_event().is_some() {}
    w.break_link(0, 1, Reason::Closed);
    w.until("the answer", |w| w.hosts[0].apps[&apps[0]].answers.contains_key(&request));
    assert_eq!(w.app(0, apps[0]).answers[&request].err(), None);
    assert_eq!(w.counter(0, "connects_displaced"), 1);
    w.settle();
    w.assert_clean();
}

/// A peer that says again and again that it had to give the lane up.
#[test]
fn a_connect_is_not_displaced_without_end() {
    let (mut w, apps) = crowded(2, 2);
    w.hosts[1].gives_lanes_up = true;
    let answer = w.connect_wait(0, apps[0], SocketAddr::new(addr(1), 7), 4096);
    assert_eq!(answer, Err(Reason::PeerLimit));
    assert_eq!(w.counter(0, "connects_displaced"), 8);
    w.hosts[1].gives_lanes_up = false;
    w.connect_wait(0, apps[0], SocketAddr::new(addr(1), 7), 4096).unwrap();
    w.assert_clean();
}

/// All pages, none of which looks at more than `looks` places.
fn all<T>(looks: u32, mut page: impl FnMut(u32) -> Page<T>) -> Vec<T> {
    let (mut rows, mut at) = (Vec::new(), Some(0));
    while let Some(from) = at {
        let page = page(from);
        assert!(page.rows.len() <= looks as usize, "more rows than places");
        assert!(page.next.is_none_or(|next| next == from + looks));
        rows.extend(page.rows.into_iter().map(|(_, row)| row));
        at = page.next;
    }
    rows
}

#[test]
fn pages_show_a_user_its_own_rows_and_no_queue_pairs() {
    let mut w = World::new(3, 95);
    let (app, other) = (w.attach_as(0, USER, 64), w.attach_as(0, OTHER, 64));
    for host in [1, 2] {
        let server = w.attach(host, 64);
        w.listen(host, server, 7, 64);
    }
    let slots: Vec<_> = (0..10).map(|_| w.connect_wait(0, app, (addr(1), 7).into(), 4096).unwrap()).collect();
    (0..3).for_each(|_| _ = w.connect_wait(0, other, (addr(2), 7).into(), 4096).unwrap());
    w.bind(0, app, 700, 0).unwrap();
    w.bind(0, other, 701, 0).unwrap();
    w.tell(0, app, slots[0], |c| c.to_send = 5000);
    w.settle();
    let (now, engine) = (w.now, &mut w.hosts[0].engine);
    for (viewer, expected) in
        [(Viewer::All, [13, 2, 2, 2]), (Viewer::User(USER), [10, 1, 2, 1]), (Viewer::User(7), [0, 0, 2, 0])]
    {
        let connections = all(4, |at| engine.connections_page(viewer, at, 4));
        let datagrams = all(1, |at| engine.datagrams_page(viewer, at, 1));
        let lanes = all(1, |at| engine.lanes_page(now, viewer, at, 1));
        let mut at = Some(0);
        while let Some(from) = at {
            at = engine.count_bytes(from, 4);
            assert!(at.is_none_or(|next| next == from + 4));
        }
        let apps: Vec<_> = all(1, |at| engine.apps_page(viewer, at, 1)).into_iter().map(|(_, row)| row).collect();
        assert_eq!([connections.len(), datagrams.len(), lanes.len(), apps.len()], expected, "{viewer:?}");
        if viewer == Viewer::User(USER) {
            assert!(apps[0].uid == USER && apps[0].tx_bytes == 5000 && apps[0].connections == 10);
            assert_eq!(apps, &engine.apps()[..1]);
            assert!(
                connections
                    .iter()
                    .chain(&all(4, |at| engine.connections_page(viewer, at, 4)))
                    .all(|c| c.app_pid == apps[0].pid)
            );
            let of_users = |l: &LaneView| (l.row.qpn, l.row.peer_qpn, l.row.connections) == (None, None, 0);
            assert!(lanes.iter().all(of_users), "the control plane knows the connections of a user");
            assert_eq!(lanes.iter().map(|l| l.is_dialed).collect::<Vec<_>>(), [true, false]);
        } else if viewer == Viewer::All {
            assert!(lanes.iter().all(|l| l.row.qpn.is_some_and(|q| q > 0) && l.row.peer_qpn.is_some_and(|q| q > 0)));
        }
    }
    w.assert_clean();
}
