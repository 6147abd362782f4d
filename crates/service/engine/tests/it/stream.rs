//! Bytes of one connection, both ways.

use std::sync::atomic::Ordering;

use std::time::Duration;

use crate::world::{LinkConditions, World};
use control::{ConnectionState, Path};

fn both_ways(w: &mut World, bytes: (u64, u64), ring: u32, write_max: usize) {
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, ring);
    w.tell(0, a, sa, |c| (c.to_send, c.write_max) = (bytes.0, write_max));
    w.tell(1, b, sb, |c| (c.to_send, c.write_max) = (bytes.1, write_max));
    w.until("all bytes", |w| w.app(0, a).conns[&sa].received == bytes.1 && w.app(1, b).conns[&sb].received == bytes.0);
    w.assert_clean();
}

#[test]
fn bytes_arrive_whole_and_in_order_both_ways() {
    both_ways(&mut World::new(2, 1), (3_000_000, 5_000_001), 65536, 1 << 20);
}

#[test]
fn the_smallest_ring_wraps_at_odd_places() {
    both_ways(&mut World::new(2, 2), (200_000, 100_003), 4096, 1237);
}

#[test]
fn one_byte_writes_work() {
    both_ways(&mut World::new(2, 3), (3000, 2000), 4096, 1);
}

#[test]
fn loss_duplicates_and_reordering_change_nothing() {
    for seed in 0..6 {
        let mut w = World::new(2, 100 + seed);
        w.conditions = LinkConditions { loss: 10 + 5 * seed as u32, duplicate: 20, reorder: 30 };
        both_ways(&mut w, (400_000, 300_000), 16384, 5000);
    }
}

#[test]
fn many_small_writes_leave_as_few_large_ones() {
    let mut w = World::new(2, 4);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 65536);
    let before = w.counter(0, "writes_sent");
    // All writes of 10 bytes happen before the engine looks again.
    w.tell(0, a, sa, |c| (c.to_send, c.write_max) = (50_000, 10));
    w.until("bytes", |w| w.app(1, b).conns[&sb].received == 50_000);
    assert_eq!(w.counter(0, "writes_sent") - before, 1);
    w.assert_clean();
}

#[test]
fn a_reader_that_stops_holds_the_writer_back_and_nothing_else() {
    let mut w = World::new(2, 5);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(1, b, sb, |c| c.read_limit = 100);
    w.tell(0, a, sa, |c| c.to_send = 100_000);
    w.settle();
    // Both rings are full: the peer's holds what is unread, the own one keeps the same bytes until they are consumed.
    assert_eq!(w.app(0, a).conns[&sa].sent, 8192 + 100);
    assert_eq!(w.app(1, b).conns[&sb].received, 100);
    w.tell(1, b, sb, |c| c.to_send = 50_000);
    w.until("the other direction", |w| w.app(0, a).conns[&sa].received == 50_000);
    w.tell(1, b, sb, |c| c.read_limit = u64::MAX);
    w.until("the rest", |w| w.app(1, b).conns[&sb].received == 100_000);
    w.assert_clean();
}

#[test]
fn consumed_bytes_are_reported_even_if_few() {
    let mut w = World::new(2, 6);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 65536);
    w.tell(0, a, sa, |c| c.to_send = 10);
    w.until("bytes", |w| w.app(1, b).conns[&sb].received == 10);
    w.pass(Duration::from_millis(5));
    let rows = w.hosts[0].engine.connections();
    assert_eq!((rows[0].tx_bytes, rows[0].tx_queued_bytes), (10, 0));
    w.assert_clean();
}

#[test]
fn half_close_and_then_the_rest() {
    let mut w = World::new(2, 7);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(0, a, sa, |c| (c.to_send, c.fin_after, c.close_when_done) = (100_000, true, true));
    w.until("eof at the peer", |w| w.app(1, b).conns[&sb].eof);
    assert_eq!(w.app(1, b).conns[&sb].received, 100_000);
    assert_eq!(w.hosts[0].engine.connections()[0].state, ConnectionState::FinSent);
    assert_eq!(w.hosts[1].engine.connections()[0].state, ConnectionState::FinReceived);
    assert!(!w.app(0, a).conns[&sa].eof);
    w.tell(1, b, sb, |c| (c.to_send, c.fin_after, c.close_when_done) = (70_000, true, true));
    w.until("both ends", |w| w.app(0, a).conns[&sa].closed && w.app(1, b).conns[&sb].closed);
    assert_eq!(w.app(0, a).conns[&sa].received, 70_000);
    w.settle();
    w.assert_clean();
    w.assert_empty();
    assert_eq!(w.counter(0, "closed"), 1);
}

#[test]
fn a_sleeping_application_is_woken_once_for_its_news() {
    let mut w = World::new(2, 8);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.settle();
    for round in 1..=20u64 {
        w.app(1, b).sleep();
        w.tell(0, a, sa, |c| c.to_send = round * 1000);
        w.until("wake and read", |w| w.app(1, b).conns[&sb].received == round * 1000);
        w.settle();
        assert!(w.hosts[1].wakes.is_empty());
    }
    w.assert_clean();
}

#[test]
fn bytes_that_nobody_waits_for_wake_nobody() {
    let mut w = World::new(2, 8);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.settle();
    w.app(1, b).conns[&sb].words.app_wait.store(0, Ordering::SeqCst);
    w.app(1, b).sleep();
    w.tell(0, a, sa, |c| c.to_send = 1000);
    while w.step() {}
    assert_eq!(w.app(1, b).conns[&sb].received, 0, "woken for nothing");
    shm::arm_slot(&w.app(1, b).conns[&sb].words.app_wait, shm::waiting::READABLE);
    w.tell(0, a, sa, |c| c.to_send = 2000);
    while w.step() {}
    assert_eq!(w.app(1, b).conns[&sb].received, 2000);
}

#[test]
fn a_writer_that_waits_for_room_is_called_when_half_of_its_ring_is_free() {
    // Without rests: one that ends tells all that wait.
    let mut w = World::with(2, 8, |c| c.engine.rest_after = None);
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    let (sa, sb) = w.pair(a, b, 7, 8192);
    w.tell(1, b, sb, |c| c.read_limit = 0);
    w.tell(0, a, sa, |c| c.to_send = 12_000);
    w.settle();
    assert_eq!(w.app(0, a).conns[&sa].sent, 8192, "its ring is full");
    shm::arm_slot(&w.app(0, a).conns[&sa].words.app_wait, shm::waiting::WRITABLE);
    for (limit, sent) in [(4095, 8192), (4096, 12_000)] {
        w.app(0, a).sleep();
        w.tell(1, b, sb, |c| c.read_limit = limit);
        w.settle();
        assert_eq!(w.app(0, a).conns[&sa].sent, sent, "the peer read {limit} bytes");
    }
    w.assert_clean();
}

#[test]
fn ring_sizes_are_agreed_on() {
    let mut w = World::with(2, 9, |c| c.ring_bytes_max(1 << 20));
    let (a, b) = (w.attach(0, 64), w.attach(1, 64));
    w.hosts[1].listen(b, 7, 8, 16384).unwrap();
    w.hosts[1].listen(b, 8, 8, 0).unwrap();
    let to = |port| std::net::SocketAddr::new(crate::world::addr(1), port);
    for (port, asked, expected) in [(7, 65536, 16384), (7, 5000, 8192), (8, 8 << 20, 1 << 20), (8, 0, 512 << 10)] {
        let slot = w.connect_wait(0, a, to(port), asked).unwrap();
        let Path::Lane { ring_bytes, .. } = w.app(0, a).conns[&slot].connection.path else { panic!() };
        assert_eq!(ring_bytes, expected, "port {port}, asked {asked}");
        w.settle();
        let peer = w.app(1, b).incoming.last().unwrap().0;
        let Path::Lane { ring_bytes, .. } = w.app(1, b).conns[&peer].connection.path else { panic!() };
        assert_eq!(ring_bytes, expected);
        // The ring is used to its last byte, in both directions.
        let bytes = 3 * u64::from(expected) + 17;
        w.tell(0, a, slot, |c| c.to_send = bytes);
        w.tell(1, b, peer, |c| c.to_send = bytes);
        w.until("bytes", |w| w.app(0, a).conns[&slot].received == bytes && w.app(1, b).conns[&peer].received == bytes);
    }
    w.assert_clean();
}
