//! The same by WRITE: places, their grants, and what becomes of them when WRITEs are lost, late or not possible.

use super::*;
use shm::slot_verb;

/// Opcodes of WRITEs on UC, from the first packet of one to the only one with an immediate.
fn is_write_on_uc(packet: &[u8]) -> bool {
    (0x26..=0x2b).contains(&packet[0])
}

/// Opcodes of SENDs on UC.
fn is_send_on_uc(packet: &[u8]) -> bool {
    (0x20..=0x25).contains(&packet[0])
}

impl World {
    fn ask(&mut self, end: End, verb: u32) {
        self.conn(end).words.tx_verb.store(verb, Ordering::Relaxed);
    }

    fn uc_pair_by_write(&mut self, ring: u32) -> (End, End) {
        let ends = self.uc_pair(ring);
        self.ask(ends.0, slot_verb::WRITE);
        self.ask(ends.1, slot_verb::WRITE);
        ends
    }

    fn writes(&self, host: usize) -> [u64; 3] {
        ["sent", "received", "no_place"].map(|name| self.counter(host, &format!("uc_writes_{name}")))
    }

    fn verbs(&self) -> [(String, String); 2] {
        [0, 1].map(|host| {
            let row = self.hosts[host].engine.connections().remove(0);
            (row.verb.unwrap(), row.verb_reason.unwrap())
        })
    }
}

#[test]
fn messages_by_write_are_whole_and_in_order_round_and_round_the_places() {
    for seed in 0..2 {
        let mut w = World::new(2, 700 + seed);
        let ends = w.uc_pair_by_write(65_536);
        let got = w.exchange(ends, 600);
        let all: Vec<u32> = (0..600).collect();
        assert_eq!(got, (all.clone(), all));
        assert_eq!([w.lost(0), w.lost(1)], [0, 0]);
        for (host, other) in [(0, 1), (1, 0)] {
            let [sent, _, no_place] = w.writes(host);
            assert!(sent > 600 && w.writes(other)[1] == sent, "{:?} {:?}", w.writes(0), w.writes(1));
            assert!(sent + no_place > 1000, "{sent} {no_place}");
        }
        w.must_reach(ends, 600, 20_000);
        let [(verb, why), _] = w.verbs();
        assert_eq!(verb, "uc-write");
        assert!(why.ends_with("601 sent, 601 received, 0 lost before this end"), "{why}");
        w.assert_clean();
    }
}

#[test]
fn the_first_piece_goes_by_write_and_the_wish_holds_until_there_is_another() {
    let mut w = World::new(2, 710);
    let ends = w.uc_pair(65_536);
    w.must_reach(ends, 0, 10);
    assert_eq!((w.writes(0), w.counter(0, "violations")), ([0, 0, 0], 0));
    let before = w.hosts[1].engine.totals().mrs;
    w.ask(ends.0, slot_verb::WRITE);
    w.must_reach(ends, 1, 20_000);
    assert_eq!([w.writes(0), w.writes(1)], [[3, 0, 0], [0, 3, 0]]);
    assert_eq!(w.verbs().map(|(verb, _)| verb), ["uc-write", "uc-send"]);
    assert_eq!(w.hosts[1].engine.totals().mrs, before + 1, "places of host 1 alone");
    w.ask(ends.0, slot_verb::CHOOSE);
    w.must_reach(ends, 2, 20_000);
    assert_eq!(w.writes(0), [3, 0, 0]);
    assert_eq!(w.verbs()[0].0, "uc-send");
}

#[test]
fn what_is_lost_by_write_is_counted_and_nothing_is_torn() {
    for seed in 0..8 {
        let mut w = World::new(2, 720 + seed);
        let ends = w.uc_pair_by_write(65_536);
        w.conditions = LinkConditions { loss: 10 + 10 * seed as u32, duplicate: 100, reorder: 100 };
        w.lose_some(ends, 600);
        assert!(w.writes(0)[1] > 300, "{:?}", w.writes(0));
    }
}

#[test]
fn the_loss_of_every_write_on_its_way_stops_nothing() {
    for round in 0..3 {
        let mut w = World::new(2, 740 + round);
        let ends = w.uc_pair_by_write(65_536);
        w.must_reach(ends, 0, 10);
        let before = w.writes(0);
        w.swallows = is_write_on_uc;
        for number in 1..=100 {
            w.until("room", |w| w.put(ends.0, &message(number, 2000)));
        }
        w.settle();
        // All places are used, and what follows comes by SEND, which gives them back; so do the next ones' losses.
        let got: Vec<u32> = w.take(ends.1).iter().map(|m| number_of(m)).collect();
        judge(&got);
        assert!(!got.is_empty(), "no SEND arrived");
        assert!(w.writes(0)[0] >= before[0] + 63 && w.writes(0)[2] > 0, "{:?}", w.writes(0));
        assert_eq!(w.writes(1)[1], 1);
        w.swallows = |_| false;
        let sent = w.writes(0)[0];
        w.must_reach(ends, 101, 2000);
        w.must_reach(ends, 102, 2000);
        assert!(w.writes(0)[0] > sent, "no place was given back");
        assert_eq!(w.verbs()[0].0, "uc-write");
        w.assert_clean();
    }
}

#[test]
fn when_writes_and_all_sends_behind_them_are_lost_later_ones_go_on() {
    let mut w = World::new(2, 750);
    let ends = w.uc_pair_by_write(65_536);
    w.must_reach(ends, 0, 10);
    w.swallows = |packet| is_write_on_uc(packet) || is_send_on_uc(packet);
    for number in 1..=200 {
        w.until("room", |w| w.put(ends.0, &message(number, 2000)));
    }
    w.settle();
    assert_eq!(w.take(ends.1).len(), 0);
    w.swallows = |_| false;
    w.must_reach(ends, 201, 2000);
    let (verb, why) = &w.verbs()[0];
    assert!(verb == "uc-send" && why.ends_with("by SEND, as the peer had no place for a WRITE"), "{verb}: {why}");
    w.must_reach(ends, 202, 2000);
    assert_eq!(w.verbs()[0].0, "uc-write");
    assert_eq!(w.lost(1), 200);
}

/// The engine of the receiver does not look for a while, and the network repeats packets: old ones land on places that
/// were filled again.
#[test]
fn packets_that_come_late_spoil_places_and_no_message() {
    let mut spoiled = 0;
    for seed in 0..6 {
        let mut w = World::new(2, 760 + seed);
        let ends = w.uc_pair_by_write(262_144);
        w.must_reach(ends, 0, 10);
        w.conditions = LinkConditions { loss: 0, duplicate: 500, reorder: 500 };
        let (mut next, mut got) = (1, (Vec::new(), Vec::new()));
        for _ in 0..60 {
            w.stopped.insert(1);
            for _ in 0..20 {
                w.put(ends.0, &message(next, len_of(next)));
                next += 1;
                w.pass(Duration::from_micros(3));
            }
            w.stopped.remove(&1);
            w.pass(Duration::from_micros(20));
            w.collect(ends, &mut got);
        }
        w.settle();
        w.collect(ends, &mut got);
        judge(&got.1);
        assert!(got.1.len() > 100, "{}", got.1.len());
        spoiled += w.counter(1, "uc_pieces_spoiled");
        w.conditions = LinkConditions::default();
        w.must_reach(ends, next, 9000);
        w.assert_clean();
    }
    assert!(spoiled > 0, "no late packet met a place that was filled again");
}

#[test]
fn a_peer_that_knows_of_no_places_gets_sends_and_the_connection_says_so() {
    let old = Capabilities::SOFTWARE_NIC - Capabilities::UNRELIABLE_WRITES;
    for able in [[old, Capabilities::SOFTWARE_NIC], [Capabilities::SOFTWARE_NIC, old]] {
        let mut w = World::of_devices(&able, 770);
        let ends = w.uc_pair_by_write(65_536);
        let before = [0, 1].map(|host| w.hosts[host].engine.totals().mrs);
        w.must_reach(ends, 0, 20_000);
        w.must_reach(ends, 1, 20_000);
        assert_eq!([w.writes(0), w.writes(1)], [[0, 0, 6], [0, 0, 6]]);
        // It is not asked either.
        assert_eq!(before, [0, 1].map(|host| w.hosts[host].engine.totals().mrs));
        assert_eq!(w.counter(0, "violations") + w.counter(1, "violations"), 0);
        for (verb, why) in w.verbs() {
            assert_eq!(verb, "uc-send");
            assert!(why.ends_with("by SEND, as the peer had no place for a WRITE"), "{why}");
        }
        w.assert_clean();
    }
}

#[test]
fn places_begin_again_with_each_queue_pair() {
    for seed in 0..4 {
        let mut w = World::new(2, 780 + seed);
        let ends = w.uc_pair_by_write(65_536);
        let (mut got, mut next) = ((Vec::new(), Vec::new()), 0);
        let mrs = |w: &World| [0, 1].map(|host| w.hosts[host].engine.totals().mrs);
        let mut registered = None;
        for round in 0..5 {
            for _ in 0..40 {
                w.put(ends.0, &message(next, len_of(next)));
                w.put(ends.1, &message(next, len_of(next + 1)));
                next += 1;
                w.step();
            }
            let h = &mut w.hosts[round % 2];
            assert!(h.engine.force_lane_error(&mut h.nic, addr(1 - round % 2)), "there is a lane");
            w.collect(ends, &mut got);
            w.settle();
            w.collect(ends, &mut got);
            w.must_reach(ends, next, 20_000);
            next += 1;
            assert_eq!(w.verbs().map(|(verb, _)| verb), ["uc-write", "uc-write"]);
            assert_eq!(*registered.get_or_insert(mrs(&w)), mrs(&w), "places of a queue pair that is gone are left");
        }
        judge(&got.0);
        judge(&got.1);
        assert_eq!(w.counter(0, "violations") + w.counter(1, "violations"), 0);
    }
}

#[test]
fn places_go_on_with_the_next_daemon_and_after_a_rest() {
    for which in [&[0][..], &[1], &[0, 1]] {
        let configure = |c: &mut HostConfig| {
            c.engine.peer_return = Duration::from_secs(60);
            c.engine.lane_rest_after = Some(Duration::from_millis(100));
        };
        let mut w = World::with(2, 790, configure);
        let ends = w.uc_pair_by_write(65_536);
        for number in 0..3 {
            w.must_reach(ends, number, 9000);
            assert!(w.counter(0, "lane_rests") > number.into(), "the lane rests");
        }
        w.put(ends.0, &message(3, 30_000));
        w.restart(which, &configure);
        w.pass(Duration::from_secs(2));
        w.take(ends.1);
        w.must_reach(ends, 4, 20_000);
        assert_eq!(w.verbs().map(|(verb, _)| verb), ["uc-write", "uc-write"]);
        w.assert_clean();
    }
}
