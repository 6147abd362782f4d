//! Bytes by SEND, by WRITE and by READ: as programs ask for it, and as engines choose.

use std::sync::atomic::Ordering;

use control::ConnectionRow;
use engine::{AppId, Load, Thresholds};
use shm::{app_flag, slot_verb};

use crate::apps::SimConn;
use crate::world::{LinkConditions, World, addr};

/// Of a receive buffer in these tests.
const SEND_BYTES: u64 = 1024;

struct Pair {
    w: World,
    a: (AppId, u32),
    b: (AppId, u32),
}

impl Pair {
    fn with(seed: u64, ring: u32, choice: Thresholds) -> Self {
        let mut w = World::with(2, seed, |c| {
            c.engine.send_bytes_max = SEND_BYTES as u32;
            c.engine.choice = choice;
        });
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        let (sa, sb) = w.pair(a, b, 7, ring);
        Self { w, a: (a, sa), b: (b, sb) }
    }

    fn new(seed: u64, ring: u32) -> Self {
        Self::with(seed, ring, Thresholds::default())
    }

    fn tell(&mut self, host: usize, what: impl FnOnce(&mut SimConn)) {
        let (app, slot) = if host == 0 { self.a } else { self.b };
        self.w.tell(host, app, slot, what);
    }

    fn conn(&mut self, host: usize) -> &mut SimConn {
        let (app, slot) = if host == 0 { self.a } else { self.b };
        self.w.app(host, app).conns.get_mut(&slot).unwrap()
    }

    fn ask(&mut self, host: usize, verb: u32) {
        self.conn(host).words.tx_verb.store(verb, Ordering::Relaxed);
    }

    /// Host 0 writes so many bytes more, and host 1 reads them.
    fn carry(&mut self, bytes: u64) {
        self.tell(0, |c| c.to_send += bytes);
        let all = self.conn(0).to_send;
        let (b, slot) = self.b;
        self.w.until("bytes", |w| w.app(1, b).conns[&slot].received == all);
    }

    fn count(&self, host: usize, names: [&str; 3]) -> [u64; 3] {
        names.map(|name| self.w.counter(host, name))
    }

    /// Pieces sent by SEND and by WRITE, and times that the ring was lent.
    fn sent(&self) -> [u64; 3] {
        self.count(0, ["sends_sent", "writes_sent", "rendezvous"])
    }

    fn row(&self) -> ConnectionRow {
        self.w.hosts[0].engine.connections().remove(0)
    }

    /// Both ends close, and nothing is left.
    fn end(mut self) {
        for host in 0..2 {
            self.tell(host, |c| (c.fin_after, c.close_when_done) = (true, true));
        }
        self.w.settle();
        self.w.assert_clean();
        self.w.assert_empty();
    }
}

#[test]
fn pieces_longer_than_a_receive_are_split_and_put_together() {
    for seed in [1, 2] {
        for (bytes, pieces) in [(1, 1), (SEND_BYTES - 1, 1), (SEND_BYTES, 1), (SEND_BYTES + 1, 2), (3 * SEND_BYTES, 3)]
        {
            let mut p = Pair::new(seed, 16 << 10);
            p.ask(0, slot_verb::SEND);
            p.carry(bytes);
            assert_eq!(p.sent(), [pieces, 0, 0], "{bytes} bytes");
            assert_eq!(p.w.counter(1, "sends_received"), pieces);
            let row = p.row();
            assert_eq!((row.verb.as_deref(), row.verb_asked.as_deref()), (Some("send"), Some("send")));
            assert_eq!(p.w.counter(0, "verb_asked"), pieces);
            p.end();
        }
    }
}

#[test]
fn sends_wrap_at_the_end_of_a_ring() {
    for seed in [3, 4] {
        let mut p = Pair::new(seed, 4096);
        p.ask(0, slot_verb::SEND);
        p.carry(1000);
        p.carry(200_001);
        assert_eq!(p.sent()[1..], [0, 0]);
        p.end();
    }
}

#[test]
fn the_receiver_reads_what_is_lent() {
    for seed in [5, 6] {
        let mut p = Pair::new(seed, 64 << 10);
        p.ask(0, slot_verb::READ);
        p.carry(1_000_000);
        let [sends, writes, rendezvous] = p.sent();
        assert!((sends, writes) == (0, 0) && rendezvous > 0, "{rendezvous}");
        assert!(p.w.counter(1, "reads_posted") >= rendezvous);
        assert_eq!(p.row().verb.as_deref(), Some("read"));
        // The other direction is as it was.
        p.tell(1, |c| c.to_send = 10_000);
        let (a, slot) = p.a;
        p.w.until("bytes", |w| w.app(0, a).conns[&slot].received == 10_000);
        assert!(p.w.counter(1, "writes_sent") > 0);
        p.end();
    }
}

#[test]
fn a_ring_that_is_lent_is_registered_once_and_given_up_with_its_application() {
    let mut p = Pair::new(7, 64 << 10);
    let before = p.w.hosts[0].mrs();
    p.ask(0, slot_verb::READ);
    p.carry(100_000);
    p.carry(100_000);
    assert_eq!(p.w.hosts[0].mrs(), before + 1);
    let (a, _) = p.a;
    p.w.kill(0, a);
    p.w.settle();
    assert_eq!(p.w.hosts[0].gone, [a]);
    let chunks = p.w.hosts[0].engine.totals().mrs;
    assert!(chunks < before, "the rings of the application that died are deregistered: {chunks} of {before}");
    p.w.assert_clean();
}

/// The verb changes in the middle of a stream, again and again, both ways, over a link that loses packets and through
/// rings that grow.
#[test]
fn verbs_change_in_the_middle_and_no_byte_is_lost() {
    for seed in 0..24 {
        let ring = if seed % 3 == 0 { 4096 } else { 0 };
        let mut p = Pair::new(500 + seed, ring);
        p.w.conditions = LinkConditions { loss: 5 * (seed as u32 % 3), duplicate: 10, reorder: 20 };
        p.tell(0, |c| (c.to_send, c.write_max) = (600_000, 3000));
        p.tell(1, |c| (c.to_send, c.write_max) = (400_000, 5000));
        for turn in 0..40_u64 {
            let host = (turn % 2) as usize;
            p.ask(host, ((seed + turn * 7) % 5) as u32);
            let (a, slot) = p.a;
            let goal = p.w.app(0, a).conns[&slot].received + 3000;
            p.w.until("a part", |w| {
                let c = &w.app(0, a).conns[&slot];
                c.received >= goal.min(400_000)
            });
        }
        let (a, b) = (p.a, p.b);
        p.w.until("all", |w| {
            w.app(0, a.0).conns[&a.1].received == 400_000 && w.app(1, b.0).conns[&b.1].received == 600_000
        });
        p.end();
    }
}

#[test]
fn a_lane_reset_in_the_middle_of_a_read_loses_nothing() {
    for (seed, host) in [(8, 0), (9, 1), (10, 0), (11, 1)] {
        let mut p = Pair::new(seed, 64 << 10);
        p.ask(0, slot_verb::READ);
        p.tell(0, |c| c.to_send = 1_000_000);
        let before = p.w.counter(1, "reads_posted");
        p.w.until("READs", |w| w.counter(1, "reads_posted") > before + 3);
        let h = &mut p.w.hosts[host];
        assert!(h.engine.force_lane_error(&mut h.nic, addr(1 - host)));
        let (b, slot) = p.b;
        p.w.until("all", |w| w.app(1, b).conns[&slot].received == 1_000_000);
        assert!(p.w.counter(0, "lane_resets") > 0);
        p.end();
    }
}

#[test]
fn ends_in_the_middle_of_a_read_leave_nothing_behind() {
    let flags = app_flag::FIN | app_flag::STOP | app_flag::CLOSED;
    for (seed, host, how) in [
        (20, 0, flags | app_flag::ABORT),
        (21, 1, flags | app_flag::ABORT),
        (22, 1, flags),
        (23, 1, app_flag::STOP),
        (24, 0, flags),
    ] {
        for after in 1..12 {
            let mut p = Pair::new(seed, 64 << 10);
            p.ask(0, slot_verb::READ);
            p.tell(0, |c| c.to_send = 1_000_000);
            for _ in 0..after * 3 {
                p.w.step();
            }
            p.tell(host, |c| {
                c.closed = how & app_flag::CLOSED != 0;
                c.read_limit = c.received;
                c.words.app_flags.fetch_or(how, Ordering::Release);
            });
            p.tell(1 - host, |c| (c.fin_after, c.close_when_done) = (true, true));
            p.w.settle();
            if !p.conn(host).closed {
                p.tell(host, |c| c.give_back(0));
                p.w.settle();
            }
            p.w.assert_clean();
            p.w.assert_empty();
        }
    }
}

#[test]
fn the_death_of_an_application_in_the_middle_of_a_read_releases_its_memory() {
    for (seed, host) in [(30, 0), (31, 1)] {
        for after in 1..12 {
            let mut p = Pair::new(seed, 64 << 10);
            p.ask(0, slot_verb::READ);
            p.tell(0, |c| c.to_send = 1_000_000);
            for _ in 0..after * 3 {
                p.w.step();
            }
            let (app, _) = if host == 0 { p.a } else { p.b };
            p.w.kill(host, app);
            p.w.settle();
            assert_eq!(p.w.hosts[host].gone, [app]);
            p.w.assert_clean();
        }
    }
}

#[test]
fn a_busy_engine_lets_an_idle_peer_fetch_and_stops_when_the_loads_change() {
    let choice = Thresholds { read_bytes_min: 4096, register_bytes_min: 4096, ..Thresholds::default() };
    let mut p = Pair::with(40, 64 << 10, choice);
    p.carry(100_000);
    assert_eq!(p.sent()[2], 0, "nothing speaks against WRITE");
    p.w.hosts[0].engine.set_load(Load::new(97, 10));
    p.w.hosts[1].engine.set_load(Load::new(5, 10));
    p.carry(500_000);
    assert!(p.sent()[2] > 0 && p.w.counter(0, "verb_relief") > 0);
    let row = p.row();
    assert_eq!((row.verb_asked, row.verb.as_deref()), (None, Some("read")));
    assert!(row.verb_reason.unwrap().contains("busy"));
    // The peer says that it is busy with the next frame that leaves anyway.
    p.w.hosts[1].engine.set_load(Load::new(99, 10));
    p.carry(300_000);
    let before = p.sent()[2];
    p.carry(300_000);
    assert_eq!(p.sent()[2], before, "a busy peer is asked for nothing");
    p.end();
}

#[test]
fn short_pieces_go_by_send_where_that_was_measured() {
    let mut p = Pair::with(41, 64 << 10, Thresholds { send_bytes_max: 256, ..Thresholds::default() });
    p.carry(256);
    assert_eq!(p.sent(), [1, 0, 0]);
    p.carry(257);
    assert_eq!(p.sent(), [1, 1, 0]);
    p.end();
}

/// More connections than the lane takes READs: each has its turn.
#[test]
fn many_connections_read_in_turn() {
    let mut w = World::new(2, 42);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let slots: Vec<_> = (0..20).map(|i| w.pair(a, b, 100 + i, 16 << 10)).collect();
    for (sa, _) in &slots {
        w.app(0, a).conns.get_mut(sa).unwrap().words.tx_verb.store(slot_verb::READ, Ordering::Relaxed);
        w.tell(0, a, *sa, |c| c.to_send = 100_000);
    }
    w.until("all", |w| slots.iter().all(|(_, sb)| w.app(1, b).conns[sb].received == 100_000));
    assert_eq!(w.counter(0, "writes_sent"), 0);
    w.assert_clean();
}
