//! Datagram sockets: what arrives, what is dropped and counted, and what applications may do with their rings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::Reason;
use engine::AppId;
use shm::{DatagramRecord, SlotWords, app_flag};
use verbs::{PathMtu, Provider, QpModify, Qpn};

use crate::sockets::SimSocket;
use crate::world::{LinkConditions, World, addr};

/// Longest datagram of the worlds' devices.
fn payload_max(w: &World, host: usize) -> usize {
    w.hosts[host].nic.device().mtu.bytes() - 16
}

impl World {
    pub(crate) fn bind(&mut self, host: usize, app: AppId, port: u16, ring_bytes: u32) -> Result<u32, Reason> {
        let request = 1 << 32 | u64::from(port) << 8 | self.hosts[host].apps[&app].answers.len() as u64;
        self.hosts[host].bind(app, request, port, ring_bytes);
        self.until("answer to a bind", |w| w.hosts[host].apps[&app].answers.contains_key(&request));
        self.app(host, app).answers[&request]
    }

    fn socket(&mut self, host: usize, app: AppId, slot: u32) -> &mut SimSocket {
        self.app(host, app).sockets.get_mut(&slot).unwrap()
    }

    pub(crate) fn path(&mut self, host: usize, app: AppId, to: usize) -> Result<u32, Reason> {
        let request = self.hosts[host].apps[&app].paths.len() as u64;
        let h = &mut self.hosts[host];
        h.engine.datagram_path(self.now, &mut h.nic, app, request, addr(to));
        self.until("answer for a path", |w| w.hosts[host].apps[&app].paths.contains_key(&request));
        self.app(host, app).paths[&request]
    }

    pub(crate) fn send(&mut self, host: usize, app: AppId, slot: u32, to: SocketAddr, payload: &[u8]) {
        assert!(self.socket(host, app, slot).send(to, payload), "no room");
        self.app(host, app).poke(slot);
    }

    fn receive(&mut self, host: usize, app: AppId, slot: u32) -> Vec<(SocketAddr, Vec<u8>)> {
        let socket = self.socket(host, app, slot);
        std::iter::from_fn(|| socket.receive()).collect()
    }

    pub(crate) fn drops(&self, host: usize, reason: &str) -> u64 {
        self.counter(host, &format!("drop_datagram_{reason}"))
    }

    /// Puts the UD queue pair of a host into error, as a failing device does.
    fn break_ud(&mut self, host: usize) {
        let qpn = Qpn(self.hosts[host].ud_qpn);
        self.hosts[host].nic.modify_qp(qpn, &QpModify::Err).unwrap();
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) + seed) as u8).collect()
}

/// Two hosts with an application each, and a socket at port 700 and 701: (app, slot) of both.
fn linked(w: &mut World) -> [(AppId, u32); 2] {
    let apps = [w.attach(0, 64), w.attach(1, 64)];
    let slots = [w.bind(0, apps[0], 700, 0).unwrap(), w.bind(1, apps[1], 701, 0).unwrap()];
    assert_eq!(w.path(0, apps[0], 1), Ok(payload_max(w, 0) as u32));
    assert_eq!(w.path(1, apps[1], 0), Ok(payload_max(w, 1) as u32));
    [(apps[0], slots[0]), (apps[1], slots[1])]
}

const TO: fn(usize, u16) -> SocketAddr = |host, port| SocketAddr::new(addr(host), port);

#[test]
fn datagrams_arrive_with_their_boundaries_and_senders() {
    let mut w = World::new(2, 1);
    let [(a, sa), (b, sb)] = linked(&mut w);
    let max = payload_max(&w, 0);
    let mut expected = Vec::new();
    for (i, len) in [0, 1, 7, 8, 9, 500, max - 1, max].into_iter().cycle().take(800).enumerate() {
        w.send(0, a, sa, TO(1, 701), &pattern(len, i));
        expected.push((TO(0, 700), pattern(len, i)));
        if i % 16 == 15 {
            w.settle();
            assert_eq!(w.receive(1, b, sb), std::mem::take(&mut expected), "on a wire that loses nothing");
        }
    }
    w.send(1, b, sb, TO(0, 700), b"back");
    w.settle();
    assert_eq!(w.receive(0, a, sa), [(TO(1, 701), b"back".to_vec())]);
    let [row] = &w.hosts[1].engine.datagram_sockets()[..] else { panic!() };
    assert_eq!((row.rx_datagrams, row.tx_datagrams, row.tx_bytes, row.app_pid), (800, 1, 4, 1000));
    assert_eq!((w.counter(0, "datagrams_sent"), w.counter(1, "datagrams_received")), (800, 800));
}

/// A wire that loses, repeats and reorders: nothing is invented, and nothing arrives more often than the wire repeated
/// it.
#[test]
fn a_bad_wire_loses_and_repeats_but_invents_nothing() {
    for seed in 0..8 {
        let mut w = World::new(2, seed);
        let [(a, sa), (b, sb)] = linked(&mut w);
        w.conditions = LinkConditions { loss: 100, duplicate: 100, reorder: 200 };
        let mut times: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for i in 0..600usize {
            w.send(0, a, sa, TO(1, 701), &pattern(16 + i, i));
            if i % 8 == 7 {
                w.settle();
                for (from, payload) in w.receive(1, b, sb) {
                    assert_eq!(from, TO(0, 700));
                    let i = payload.len() - 16;
                    assert_eq!(payload, pattern(16 + i, i), "datagram {i} was changed");
                    *times.entry(payload).or_default() += 1;
                }
            }
        }
        assert!(times.values().all(|n| *n <= 2), "the wire repeats once");
        assert!((400..600).contains(&times.len()) && times.values().any(|n| *n == 2), "{}", times.len());
    }
}

#[test]
fn one_host_needs_no_device() {
    let mut w = World::new(1, 3);
    let (a, b) = (w.attach(0, 64), w.attach(0, 64));
    let (sa, sb) = (w.bind(0, a, 1, 0).unwrap(), w.bind(0, b, 0, 0).unwrap());
    let to = w.socket(0, b, sb).local;
    for i in 0..1000 {
        w.send(0, a, sa, to, &pattern(i, i));
        w.until("it is there", |w| w.receive(0, b, sb) == [(TO(0, 1), pattern(i, i))]);
    }
    w.send(0, a, sa, TO(0, 1), b"myself");
    w.settle();
    assert_eq!(w.receive(0, a, sa).len(), 1);
    assert_eq!((w.counter(0, "datagrams_local"), w.counter(0, "datagrams_sent")), (1001, 0));
    assert_eq!(w.path(0, a, 0), Ok(payload_max(&w, 0) as u32));
}

#[test]
fn every_drop_is_counted_by_its_reason() {
    let mut w = World::new(2, 4);
    let [(a, sa), (b, sb)] = linked(&mut w);
    let small = w.bind(1, b, 702, 4096).unwrap();
    w.send(0, a, sa, TO(1, 9), b"no socket");
    w.send(0, a, sa, TO(0, 9), b"no socket here");
    w.send(0, a, sa, TO(1, 0), b"bad address");
    for bad in ["224.0.0.1:1", "255.255.255.255:1", "0.0.0.0:1"] {
        w.send(0, a, sa, bad.parse().unwrap(), b"bad address");
    }
    w.send(0, a, sa, TO(1, 701), &vec![1; payload_max(&w, 0) + 1]);
    w.send(0, a, sa, TO(0, 701), &vec![1; payload_max(&w, 0) + 1]);
    w.send(0, a, sa, "10.9.9.9:1".parse().unwrap(), b"no peer");
    w.settle();
    assert_eq!([w.drops(0, "no_socket"), w.drops(1, "no_socket")], [1, 1]);
    assert_eq!([w.drops(0, "bad_address"), w.drops(0, "too_long"), w.drops(0, "no_peer")], [4, 2, 1]);
    let max = payload_max(&w, 0);
    // 16 KiB is the smallest ring that a socket gets.
    let fit = (16 << 10) / (max + 24).next_multiple_of(8);
    for i in 0..fit + 5 {
        w.send(0, a, sa, TO(1, 702), &pattern(max, i));
        w.settle();
    }
    assert_eq!(w.drops(1, "ring_full"), 5);
    assert_eq!(w.receive(1, b, small).len(), fit);
    let rows = w.hosts[1].engine.datagram_sockets();
    let full = rows.iter().find(|r| r.local.port() == 702).unwrap();
    assert_eq!(full.drops, [("ring_full".to_string(), 5)]);
    let [sender] = &w.hosts[0].engine.datagram_sockets()[..] else { panic!() };
    let expected = [("bad_address", 4), ("no_peer", 1), ("too_long", 2)].map(|(k, n)| (k.to_string(), n));
    assert_eq!(sender.drops, expected);
    assert!(w.receive(1, b, sb).is_empty());
}

#[test]
fn a_way_that_gets_narrower_is_told_at_the_socket() {
    let mut w = World::new(2, 4);
    let [(a, sa), (b, sb)] = linked(&mut w);
    let long = pattern(payload_max(&w, 0), 1);
    w.hosts[0].nic.path_shrank(addr(1), PathMtu::Mtu1024);
    // The lane is made anew, and with it what is known of the way.
    w.until("a narrower lane", |w| w.hosts[0].engine.lanes()[0].mtu_bytes == 1024);
    w.settle();
    assert_eq!(w.path(0, a, 1), Ok(1024 - 16));
    let told = |w: &mut World| w.socket(0, a, sa).words.epoch.load(Ordering::Acquire);
    assert_eq!(told(&mut w), 0);
    w.send(0, a, sa, TO(1, 701), &long);
    w.send(0, a, sa, TO(1, 701), &long[..1008]);
    w.settle();
    assert_eq!((told(&mut w), w.drops(0, "too_long")), (1, 1));
    assert_eq!(w.receive(1, b, sb), [(TO(0, 700), long[..1008].to_vec())], "the ring behind it goes on");
    // What was not too long says nothing.
    w.send(0, a, sa, TO(1, 9), b"no socket");
    w.settle();
    assert_eq!(told(&mut w), 1);
}

#[test]
fn ports_are_taken_once_and_free_when_the_socket_is_closed() {
    let mut w = World::new(1, 5);
    let (a, b) = (w.attach(0, 64), w.attach(0, 64));
    w.listen(0, a, 80, 1);
    let slot = w.bind(0, a, 80, 0).unwrap();
    assert_eq!(w.bind(0, a, 80, 0), Err(Reason::PortInUse));
    assert_eq!(w.bind(0, b, 80, 0), Err(Reason::PortInUse));
    // Closed, and bound again before the engine looked at the doorbell.
    let other = w.bind(0, b, 81, 0).unwrap();
    w.send(0, a, slot, TO(0, 81), b"last words");
    w.socket(0, a, slot).words.app_flags.fetch_or(app_flag::CLOSED, Ordering::Release);
    w.bind(0, b, 80, 0).unwrap();
    w.app(0, a).poke(slot);
    w.settle();
    assert_eq!(w.receive(0, b, other), [(TO(0, 80), b"last words".to_vec())], "what was sent before still leaves");
    assert_eq!(w.hosts[0].engine.datagram_sockets().len(), 2);
    let slots: Vec<u32> = (0..50).map(|_| w.bind(0, a, 0, 0).unwrap()).collect();
    let ports: std::collections::BTreeSet<u16> =
        slots.into_iter().map(|slot| w.socket(0, a, slot).local.port()).collect();
    assert_eq!(ports.len(), 50, "any free port");
}

/// The engine sees what an application did when it looks whether the port that the same application asks for is free.
#[test]
fn a_bind_that_costs_its_own_application_the_session_is_refused() {
    let mut w = World::new(1, 26);
    let a = w.attach(0, 64);
    let slot = w.bind(0, a, 80, 0).unwrap();
    let words = &w.socket(0, a, slot).words;
    words.tx_tail.store(1 << 40, Ordering::Release);
    words.app_flags.fetch_or(app_flag::CLOSED, Ordering::Release);
    assert_eq!(w.bind(0, a, 80, 0), Err(Reason::AppFault));
    w.settle();
    assert_eq!(w.hosts[0].faults.len(), 1);
    assert_eq!(w.hosts[0].gone, [a], "nothing keeps the memory of an application that was detached");
    assert!(w.hosts[0].engine.datagram_sockets().is_empty());
    let b = w.attach(0, 64);
    w.bind(0, b, 80, 0).unwrap();
}

#[test]
fn ports_that_nobody_asked_for_follow_each_other() {
    let mut w = World::new(1, 25);
    let a = w.attach(0, 64);
    let ports: Vec<u16> = (0..4)
        .map(|_| {
            let slot = w.bind(0, a, 0, 0).unwrap();
            w.socket(0, a, slot).local.port()
        })
        .collect();
    assert!(ports[0] >= 32768 && ports.windows(2).all(|p| p[1] == p[0] + 1), "{ports:?}");
}

#[test]
fn binds_that_get_no_rings_are_refused() {
    let mut w = World::with(1, 6, |c| c.engine.datagram_sockets_max = 2);
    let a = w.attach(0, 64);
    w.hosts[0].refuse_chunks = true;
    assert_eq!(w.bind(0, a, 5, 0), Err(Reason::LocalLimit));
    w.hosts[0].refuse_chunks = false;
    w.bind(0, a, 5, 0).unwrap();
    w.bind(0, a, 6, 0).unwrap();
    assert_eq!(w.bind(0, a, 7, 0), Err(Reason::LocalLimit));
    let gone = w.kill(0, a);
    w.settle();
    assert_eq!(w.hosts[0].gone, [a], "nothing keeps the memory of a dead application");
    drop(gone);
    let b = w.attach(0, 64);
    w.bind(0, b, 5, 0).unwrap();
}

#[test]
fn what_a_dying_application_sent_still_leaves() {
    let mut w = World::new(2, 7);
    let [(a, sa), (b, sb)] = linked(&mut w);
    w.kill_with(0, a, |app| {
        for i in 0..100 {
            assert!(app.sockets.get_mut(&sa).unwrap().send(TO(1, 701), &pattern(300, i)));
        }
    });
    w.settle();
    assert_eq!(w.receive(1, b, sb).len(), 100);
    assert!(w.hosts[0].engine.datagram_sockets().is_empty() && w.hosts[0].gone == [a]);
}

#[test]
fn the_link_makes_and_ends_the_path() {
    let mut w = World::new(2, 8);
    let [(a, sa), (b, sb)] = linked(&mut w);
    // A lane that is reset carries nothing for a while; datagrams have a queue pair of their own.
    let h = &mut w.hosts[0];
    assert!(h.engine.force_lane_error(&mut h.nic, addr(1)));
    w.send(0, a, sa, TO(1, 701), b"meanwhile");
    w.settle();
    assert_eq!(w.receive(1, b, sb).len(), 1);
    // The link breaks: both forget each other, and what still comes is a stranger's.
    w.no_links = true;
    let h = &mut w.hosts[1];
    h.engine.lane_lost(w.now, &mut h.nic, addr(0), Reason::PeerLost);
    w.send(0, a, sa, TO(1, 701), b"stranger");
    w.settle();
    assert_eq!(w.drops(1, "stranger"), 1);
    let h = &mut w.hosts[0];
    h.engine.lane_lost(w.now, &mut h.nic, addr(1), Reason::PeerLost);
    w.send(0, a, sa, TO(1, 701), b"nobody there");
    w.settle();
    assert_eq!(w.drops(0, "no_peer"), 1);
    assert!(w.receive(1, b, sb).is_empty());
    let h = &mut w.hosts[0];
    h.engine.datagram_path(w.now, &mut h.nic, a, 77, addr(1));
    w.settle();
    let h = &mut w.hosts[0];
    h.engine.lane_lost(w.now, &mut h.nic, addr(1), Reason::PeerUnreachable);
    w.until("the question is answered", |w| w.hosts[0].apps[&a].paths.contains_key(&77));
    assert_eq!(w.app(0, a).paths[&77], Err(Reason::PeerUnreachable));
}

#[test]
fn a_failed_queue_pair_is_started_again() {
    let mut w = World::new(2, 9);
    let [(a, sa), (b, sb)] = linked(&mut w);
    for host in [0, 1] {
        w.break_ud(host);
        w.settle();
        w.pass(Duration::from_secs(2));
        w.settle();
        for i in 0..100 {
            w.send(0, a, sa, TO(1, 701), &pattern(200, i));
            w.settle();
        }
        assert_eq!(w.receive(1, b, sb).len(), 100, "after the queue pair of host {host} failed");
    }
}

/// A queue pair in Reset takes no work request.
#[test]
fn datagrams_that_the_device_refuses_are_counted_once() {
    let mut w = World::new(2, 24);
    let [(a, sa), (b, sb)] = linked(&mut w);
    let qpn = Qpn(w.hosts[0].ud_qpn);
    w.hosts[0].nic.modify_qp(qpn, &QpModify::Reset).unwrap();
    for i in 0..5 {
        assert!(w.socket(0, a, sa).send(TO(1, 701), &pattern(200, i)));
    }
    w.app(0, a).poke(sa);
    w.settle();
    w.pass(Duration::from_secs(2));
    w.settle();
    assert_eq!(w.drops(0, "device"), 5);
    w.send(0, a, sa, TO(1, 701), b"again");
    w.settle();
    assert_eq!(w.receive(1, b, sb).len(), 1, "the queue pair was started again");
    assert_eq!(w.drops(0, "device"), 5);
}

/// Many senders at once, each with more than the device takes: all get their turns, and streams go on beside them.
#[test]
fn sockets_take_turns() {
    let mut w = World::new(2, 10);
    let [(a, first), (b, sb)] = linked(&mut w);
    let mut slots = vec![first];
    for port in 1..8 {
        slots.push(w.bind(0, a, port, 1 << 20).unwrap());
    }
    for (i, &slot) in slots.iter().enumerate() {
        while w.socket(0, a, slot).send(TO(1, 701), &pattern(900, i)) {}
        w.app(0, a).poke(slot);
    }
    let mut counts = BTreeMap::new();
    for _ in 0..200 {
        for _ in 0..20 {
            w.step();
        }
        for (from, _) in w.receive(1, b, sb) {
            *counts.entry(from.port()).or_insert(0u32) += 1;
        }
        if counts.len() == slots.len() {
            break;
        }
    }
    assert_eq!(counts.len(), slots.len(), "{counts:?}");
}

// ---- applications that break the rules

/// One application's words are wrong: it alone is detached, and the others' datagrams go on.
fn detached_for(what: &str, seed: u64, evil: impl FnOnce(&mut SimSocket)) {
    let mut w = World::new(2, seed);
    let [(a, sa), (b, sb)] = linked(&mut w);
    let victim = w.attach(0, 64);
    let sv = w.bind(0, victim, 703, 0).unwrap();
    evil(w.socket(0, a, sa));
    w.app(0, a).poke(sa);
    w.send(1, b, sb, TO(0, 700), b"for the evil one");
    w.until(&format!("{what} {seed}"), |w| !w.hosts[0].faults.is_empty());
    let (who, detail) = w.hosts[0].faults[0].clone();
    assert_eq!(who, a);
    assert!(detail.contains(what), "{detail}");
    w.hosts[0].apps.remove(&a);
    w.send(1, b, sb, TO(0, 703), b"for the victim");
    w.settle();
    assert_eq!(w.receive(0, victim, sv).len(), 1);
    assert_eq!((w.hosts[0].faults.len(), w.hosts[0].engine.datagram_sockets().len()), (1, 1));
    w.bind(0, victim, 700, 0).unwrap();
}

#[test]
fn evil_words_cost_the_session_alone() {
    let store = |at: fn(&SlotWords) -> &shm::Word64, value: u64| {
        move |s: &mut SimSocket| at(&s.words).store(value, Ordering::Release)
    };
    detached_for("cursor tail", 20, store(|w| &w.tx_tail, 1 << 40));
    detached_for("cursor tail", 21, store(|w| &w.tx_tail, u64::MAX));
    detached_for("cursor head", 22, store(|w| &w.rx_head, 8));
    detached_for("whole record", 23, store(|w| &w.tx_tail, 8));
    detached_for("whole record", 24, store(|w| &w.tx_tail, 16));
    // A record that is longer than what was published.
    detached_for("whole record", 25, |s| {
        let header = DatagramRecord { addr: TO(1, 701), bytes: 100 }.to_bytes();
        assert!(s.writer.write_ahead(0, &header) && s.writer.commit(48));
    });
    detached_for("whole record", 26, |s| {
        let mut header = DatagramRecord { addr: TO(1, 701), bytes: 8 }.to_bytes();
        header[23] = 1;
        assert!(s.writer.write_ahead(0, &header) && s.writer.commit(32));
    });
    detached_for("whole record", 27, |s| {
        s.tx.region.write(s.tx.offset, &[0xff; 4096]).unwrap();
        assert!(s.writer.commit(4096));
    });
}
