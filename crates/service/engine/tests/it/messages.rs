//! Messages on UC: whole, in order and at most once, whatever the network, the daemons and the applications do.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Kind, Reason};
use engine::AppId;
use plane::{Connect, Listen};
use shm::app_flag;
use verbs::Capabilities;

use crate::apps::{SimConn, pattern};
use crate::world::desk::HostConfig;
use crate::world::{LinkConditions, World, addr};

mod writes;

const LOSSES: [&str; 4] = ["missing", "torn", "ring_full", "cut"];

/// One end: host, application, slot.
#[derive(Clone, Copy)]
struct End(usize, AppId, u32);

/// A message that says which one it is.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u64).map(|at| pattern(number.into(), at)).collect();
    if let Some(head) = bytes.get_mut(..4) {
        head.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Which one it is; it must be as it was sent.
fn number_of(bytes: &[u8]) -> u32 {
    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == message(number, bytes.len()), "message {number} of {} bytes is not as it was sent", bytes.len());
    number
}

/// Lengths that meet the ends of pieces and of rings at all places.
fn len_of(number: u32) -> usize {
    const LENGTHS: [usize; 9] = [4, 5, 100, 1000, 8168, 8169, 9000, 20_000, 30_001];
    LENGTHS[number as usize % LENGTHS.len()]
}

impl World {
    fn try_connect_uc(
        &mut self,
        from: (usize, AppId),
        to: (usize, AppId),
        port: u16,
        ring: u32,
    ) -> Result<u32, Reason> {
        let at = SocketAddr::new(addr(to.0), port);
        let listen = Listen { port, backlog: 16, ring_bytes: 0, kind: Kind::Unreliable };
        self.hosts[to.0].desk.listen(to.1, listen).unwrap();
        let connect = Connect { to: at, ring_bytes: ring, kind: Kind::Unreliable };
        let request = self.connect_of_kind(from.0, from.1, connect);
        self.until("answer", |w| w.hosts[from.0].apps[&from.1].answers.contains_key(&request));
        self.app(from.0, from.1).answers[&request]
    }

    /// Two ends of a connection of messages between hosts 0 and 1, of applications that read and write by the test's hand.
    fn uc_pair(&mut self, ring: u32) -> (End, End) {
        let (a, b) = (self.attach(0, 64), self.attach(1, 64));
        for (host, app) in [(0, a), (1, b)] {
            self.app(host, app).defaults = |c| c.read_limit = 0;
        }
        let slot = self.try_connect_uc((0, a), (1, b), 7, ring).unwrap();
        self.until("incoming", |w| !w.hosts[1].apps[&b].incoming.is_empty());
        let peer = self.app(1, b).incoming[0].0;
        (End(0, a, slot), End(1, b, peer))
    }

    fn conn(&mut self, End(host, app, slot): End) -> &mut SimConn {
        self.app(host, app).conns.get_mut(&slot).unwrap()
    }

    /// False: the ring has no room.
    fn put(&mut self, end: End, bytes: &[u8]) -> bool {
        let conn = self.conn(end);
        let len = 4 + bytes.len() as u64;
        let is_in = conn.writer.hold()
            && conn.writer.free().expect("the engine keeps to the rules") >= len
            && conn.writer.write_ahead(0, &(bytes.len() as u32).to_le_bytes())
            && conn.writer.write_ahead(4, bytes)
            && conn.writer.commit(len);
        conn.writer.let_go();
        self.app(end.0, end.1).poke(end.2);
        is_in
    }

    /// All whole messages that are there.
    fn take(&mut self, end: End) -> Vec<Vec<u8>> {
        let conn = self.conn(end);
        let mut all = Vec::new();
        loop {
            let available = conn.reader.available().expect("the engine keeps to the rules");
            if available == 0 {
                break;
            }
            let mut length = [0; 4];
            assert_eq!(conn.reader.peek_ahead(0, &mut length), 4);
            let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
            assert!(available >= 4 + bytes.len() as u64, "a message is there as a whole");
            conn.reader.peek_ahead(4, &mut bytes);
            conn.reader.consume(4 + bytes.len() as u64);
            all.push(bytes);
        }
        all
    }

    fn lost(&self, host: usize) -> u64 {
        LOSSES.iter().map(|loss| self.counter(host, &format!("uc_lost_{loss}"))).sum()
    }

    /// Sends so many messages each way, as fast as rings take them; whom they reached.
    fn exchange(&mut self, ends: (End, End), count: u32) -> (Vec<u32>, Vec<u32>) {
        let (mut next, mut got) = ((0, 0), (Vec::new(), Vec::new()));
        while next.0 < count || next.1 < count {
            while next.0 < count && self.put(ends.0, &message(next.0, len_of(next.0))) {
                next.0 += 1;
            }
            while next.1 < count && self.put(ends.1, &message(next.1, len_of(next.1 + 3))) {
                next.1 += 1;
            }
            for _ in 0..20 {
                self.step();
            }
            self.collect(ends, &mut got);
        }
        self.settle();
        self.collect(ends, &mut got);
        got
    }

    /// Sends one message each way, which must arrive.
    fn must_reach(&mut self, ends: (End, End), number: u32, len: usize) {
        assert!(self.put(ends.0, &message(number, len)) && self.put(ends.1, &message(number, len)));
        self.settle();
        for end in [ends.0, ends.1] {
            assert_eq!(self.take(end).iter().map(|m| number_of(m)).collect::<Vec<_>>(), [number]);
        }
    }

    /// Sends so many each way, of which some are lost and counted; the next ones arrive.
    fn lose_some(&mut self, ends: (End, End), count: u32) {
        let got = self.exchange(ends, count);
        let got = [got.0, got.1];
        got.iter().for_each(|got| judge(got));
        assert!(got.iter().all(|got| (41..count as usize).contains(&got.len())), "{:?}", got.map(|got| got.len()));
        // A message behind them shows what is missing before it.
        self.conditions = LinkConditions::default();
        self.must_reach(ends, count, 50);
        for (host, got) in got.iter().enumerate() {
            assert_eq!(got.len() as u64 + self.lost(host), u64::from(count));
        }
        self.assert_clean();
    }

    fn collect(&mut self, ends: (End, End), got: &mut (Vec<u32>, Vec<u32>)) {
        got.0.extend(self.take(ends.0).iter().map(|m| number_of(m)));
        got.1.extend(self.take(ends.1).iter().map(|m| number_of(m)));
    }
}

/// In order, and each at most once.
fn judge(got: &[u32]) {
    assert!(got.is_sorted_by(|a, b| a < b), "{got:?}");
}

#[test]
fn messages_keep_their_boundaries_and_their_order_both_ways() {
    for seed in 0..2 {
        let mut w = World::new(2, 500 + seed);
        let ends = w.uc_pair(65_536);
        let got = w.exchange(ends, 300);
        let all: Vec<u32> = (0..300).collect();
        assert_eq!(got, (all.clone(), all));
        assert_eq!([w.lost(0), w.lost(1)], [0, 0]);
        let row = &w.hosts[0].engine.connections()[0];
        assert_eq!(row.verb.as_deref(), Some("uc-send"));
        assert!(row.verb_reason.as_ref().unwrap().contains("300 sent, 300 received, 0 lost"), "{row:?}");
        w.assert_clean();
    }
}

#[test]
fn empty_messages_and_those_as_long_as_the_ring_arrive() {
    let mut w = World::new(2, 510);
    let (a, b) = w.uc_pair(65_536);
    for len in [0, 65_532, 0, 4, 65_532] {
        let sent: Vec<u8> = (0..len).map(|at| at as u8).collect();
        assert!(w.put(a, &sent));
        w.settle();
        assert_eq!(w.take(b), [sent]);
    }
    assert_eq!(w.lost(1), 0);
    w.assert_clean();
}

#[test]
fn what_is_lost_is_counted_and_holds_nothing_back() {
    for seed in 0..8 {
        let mut w = World::new(2, 520 + seed);
        let ends = w.uc_pair(65_536);
        w.conditions = LinkConditions { loss: 10 + 10 * seed as u32, duplicate: 30, reorder: 40 };
        w.lose_some(ends, 400);
    }
}

#[test]
fn a_program_that_does_not_read_loses_messages_and_holds_nobody_back() {
    let mut w = World::new(2, 530);
    let (a, b) = w.uc_pair(8192);
    for number in 0..50 {
        w.until("room", |w| w.put(a, &message(number, 1000)));
    }
    w.settle();
    let got: Vec<u32> = w.take(b).iter().map(|m| number_of(m)).collect();
    assert_eq!(got, (0..8).collect::<Vec<_>>());
    assert_eq!(w.counter(1, "uc_lost_ring_full"), 42);
    assert!(w.put(a, &message(50, 1000)));
    w.settle();
    assert_eq!(w.take(b).iter().map(|m| number_of(m)).collect::<Vec<_>>(), [50]);
    w.assert_clean();
}

#[test]
fn both_ends_close_and_nothing_is_left() {
    for seed in 0..4 {
        let mut w = World::new(2, 540 + seed);
        let ends = w.uc_pair(16_384);
        w.conditions.loss = 50 * seed as u32;
        for number in 0..10 {
            w.put(ends.0, &message(number, 1000));
        }
        let End(host, app, slot) = ends.0;
        w.tell(host, app, slot, |c| (c.fin_after, c.close_when_done) = (true, true));
        w.settle();
        judge(&w.take(ends.1).iter().map(|m| number_of(m)).collect::<Vec<_>>());
        let End(host, app, slot) = ends.1;
        w.tell(host, app, slot, |c| (c.fin_after, c.close_when_done) = (true, true));
        w.until("both ends", |w| w.conn(ends.0).closed && w.conn(ends.1).closed);
        w.settle();
        w.assert_clean();
        w.assert_empty();
    }
}

#[test]
fn the_death_of_either_program_ends_the_connection() {
    for dying in [0, 1] {
        let mut w = World::new(2, 550);
        let ends = w.uc_pair(16_384);
        w.put(ends.0, &message(1, 9000));
        let (dead, left) = if dying == 0 { ends } else { (ends.1, ends.0) };
        drop(w.kill(dead.0, dead.1));
        w.until("reset", |w| w.conn(left).reset == Some(Reason::PeerAppDied));
        w.conn(left).give_back(0);
        w.app(left.0, left.1).poke(left.2);
        w.settle();
        w.assert_empty();
    }
}

#[test]
fn a_lane_that_is_reset_loses_what_was_on_its_way_and_the_connection_goes_on() {
    for seed in 0..6 {
        let mut w = World::new(2, 560 + seed);
        let ends = w.uc_pair(65_536);
        let (mut got, mut next) = ((Vec::new(), Vec::new()), 0);
        for round in 0..5 {
            for _ in 0..30 {
                w.put(ends.0, &message(next, len_of(next)));
                w.put(ends.1, &message(next, len_of(next + 1)));
                next += 1;
                w.step();
            }
            let h = &mut w.hosts[round % 2];
            assert!(h.engine.force_lane_error(&mut h.nic, addr(1 - round % 2)), "there is a lane");
            w.collect(ends, &mut got);
            w.settle();
        }
        w.settle();
        w.collect(ends, &mut got);
        judge(&got.0);
        judge(&got.1);
        let before = got.0.len();
        let is_in = w.put(ends.1, &message(next, 20_000)) && w.put(ends.0, &message(next, 20_000));
        assert!(is_in, "{seed}: no room");
        w.settle();
        w.collect(ends, &mut got);
        assert_eq!(got.0.len(), before + 1, "nothing arrives after the resets");
        assert_eq!(w.counter(0, "violations") + w.counter(1, "violations"), 0);
    }
}

#[test]
fn connections_go_on_with_the_next_daemon() {
    for which in [&[0][..], &[1], &[0, 1]] {
        let configure = |c: &mut HostConfig| c.engine.peer_return = Duration::from_secs(60);
        let mut w = World::with(2, 570, configure);
        let ends = w.uc_pair(65_536);
        w.put(ends.0, &message(0, 9000));
        w.settle();
        w.put(ends.0, &message(1, 30_000));
        w.restart(which, &configure);
        w.put(ends.1, &message(0, 5000));
        w.settle();
        let mut got = (Vec::new(), Vec::new());
        w.pass(Duration::from_secs(2));
        assert!(w.put(ends.0, &message(2, 20_000)) && w.put(ends.1, &message(2, 20_000)));
        w.settle();
        w.collect(ends, &mut got);
        judge(&got.0);
        judge(&got.1);
        assert_eq!((got.0.last(), got.1.last()), (Some(&2), Some(&2)), "{which:?}: {got:?}");
        w.assert_clean();
    }
}

#[test]
fn an_end_with_nothing_to_send_goes_on_with_the_next_daemon() {
    for which in [&[0][..], &[1], &[0, 1]] {
        let configure = |c: &mut HostConfig| c.engine.peer_return = Duration::from_secs(60);
        let mut w = World::with(2, 575, configure);
        let ends = w.uc_pair(65_536);
        for number in 0..3 {
            assert!(w.put(ends.0, &message(number, 9000)) && w.put(ends.1, &message(number, 9000)));
            w.settle();
            assert_eq!((w.take(ends.0).len(), w.take(ends.1).len()), (1, 1));
            if number == 1 {
                w.restart(which, &configure);
                w.pass(Duration::from_secs(2));
            }
        }
        w.assert_clean();
    }
}

/// Nothing but the other end's word says that it may leave.
#[test]
fn what_was_written_before_the_other_program_is_back_leaves_when_it_is() {
    let configure = |c: &mut HostConfig| c.engine.peer_return = Duration::from_secs(60);
    let mut w = World::with(2, 580, configure);
    let ends = w.uc_pair(65_536);
    w.must_reach(ends, 0, 100);
    let left = w.restart_alone(&[1], &configure);
    assert!(w.put(ends.0, &message(1, 20_000)));
    w.pass(Duration::from_secs(2));
    for (host, apps) in left {
        w.bring_back(host, apps);
    }
    w.settle();
    assert_eq!(w.take(ends.1).iter().map(|m| number_of(m)).collect::<Vec<_>>(), [1]);
    w.assert_clean();
}

#[test]
fn hosts_without_uc_are_refused_before_anything_is_asked() {
    let lacks = Capabilities::SOFTWARE_NIC - Capabilities::UNRELIABLE;
    for able in [[lacks, Capabilities::SOFTWARE_NIC], [Capabilities::SOFTWARE_NIC, lacks]] {
        let mut w = World::of_devices(&able, 580);
        let (a, b) = (w.attach(0, 64), w.attach(1, 64));
        assert_eq!(w.try_connect_uc((0, a), (1, b), 7, 0), Err(Reason::NoUnreliable));
        assert_eq!((w.counter(1, "opens_refused"), w.counter(1, "accepts")), (0, 0));
        assert!(w.app(1, b).incoming.is_empty());
        // Streams go on beside it.
        let (slot, _) = w.pair(a, b, 8, 0);
        w.tell(0, a, slot, |c| c.to_send = 100_000);
        w.settle();
        assert_eq!(w.app(1, b).conns.values().map(|c| c.received).sum::<u64>(), 100_000);
    }
}

#[test]
fn a_program_that_breaks_the_framing_is_detached_and_no_other() {
    type Break = fn(&mut SimConn);
    let wrongs: [Break; 4] = [
        // Longer than what is there.
        |c| assert!(c.writer.hold() && c.writer.write_ahead(0, &100u32.to_le_bytes()) && c.writer.commit(50)),
        // Longer than any ring.
        |c| assert!(c.writer.hold() && c.writer.write_ahead(0, &u32::MAX.to_le_bytes()) && c.writer.commit(50)),
        // Not even a length.
        |c| assert!(c.writer.commit(3)),
        // A tail that cannot be.
        |c| c.words.tx_tail.store(1 << 40, Ordering::Release),
    ];
    for wrong in wrongs {
        let mut w = World::new(2, 590);
        let ends = w.uc_pair(16_384);
        let (c, d) = (w.attach(0, 64), w.attach(1, 64));
        let (good, _) = w.pair(c, d, 9, 0);
        wrong(w.conn(ends.0));
        w.app(ends.0.0, ends.0.1).poke(ends.0.2);
        w.tell(0, c, good, |c| c.to_send = 50_000);
        w.until("the fault", |w| w.hosts[0].faults.len() == 1);
        w.until("the peer's reset", |w| w.conn(ends.1).reset.is_some());
        w.settle();
        assert_eq!(w.app(1, d).conns.values().map(|c| c.received).sum::<u64>(), 50_000);
        assert_eq!((w.counter(0, "app_faults"), w.counter(0, "violations") + w.counter(1, "violations")), (1, 0));
    }
}

#[test]
fn a_read_cursor_that_cannot_be_costs_the_program_that_wrote_it() {
    let mut w = World::new(2, 600);
    let (a, b) = w.uc_pair(16_384);
    w.conn(b).words.rx_head.store(77, Ordering::Release);
    assert!(w.put(a, &message(1, 10)));
    w.until("the fault", |w| w.hosts[1].faults.len() == 1);
    w.until("the other end", |w| w.conn(a).reset.is_some());
    assert_eq!(w.counter(0, "app_faults"), 0);
}

#[test]
fn what_is_sent_after_a_stop_ends_with_the_connection() {
    let mut w = World::new(2, 610);
    let (a, b) = w.uc_pair(8192);
    w.conn(b).words.app_flags.fetch_or(app_flag::STOP, Ordering::Release);
    w.app(b.0, b.1).poke(b.2);
    w.settle();
    assert!(w.put(a, &message(1, 1000)));
    w.settle();
    assert!(w.conn(a).stopped);
    w.tell(a.0, a.1, a.2, |c| (c.fin_after, c.close_when_done) = (true, true));
    w.tell(b.0, b.1, b.2, |c| (c.fin_after, c.close_when_done) = (true, true));
    w.until("both ends", |w| w.conn(a).closed && w.conn(b).closed);
    w.settle();
    w.assert_clean();
    w.assert_empty();
}

#[test]
fn a_lane_that_rested_wakes_for_a_message() {
    let mut w = World::with(2, 620, |c| c.engine.lane_rest_after = Some(Duration::from_millis(100)));
    let (a, b) = w.uc_pair(16_384);
    for number in 0..5 {
        w.pass(Duration::from_secs(1));
        assert!(w.counter(0, "lane_rests") >= u64::from(number), "the lane rests");
        assert!(w.put(a, &message(number, 9000)));
        w.pass(Duration::from_millis(50));
        let got = w.take(b).iter().map(|m| number_of(m)).collect::<Vec<_>>();
        assert_eq!(got, [number]);
    }
    w.assert_clean();
}
