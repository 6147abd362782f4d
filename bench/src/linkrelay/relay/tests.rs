//! The relay between two ports in memory, by a clock that the test moves.

use std::collections::VecDeque;

use super::*;

/// Between two turns of the relay: what a machine may be late without the relay's fault.
const STEP_NS: u64 = 10_000;

#[derive(Debug, Default)]
struct Memory {
    incoming: VecDeque<Vec<u8>>,
    outgoing: Vec<Vec<u8>>,
    /// It takes nothing.
    closed: bool,
}

impl Port for Memory {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(frame) = self.incoming.pop_front() else { return Ok(None) };
        into[..frame.len()].copy_from_slice(&frame);
        Ok(Some(frame.len()))
    }

    fn transmit(&mut self, frame: &[u8]) -> io::Result<bool> {
        if !self.closed {
            self.outgoing.push(frame.to_vec());
        }
        Ok(!self.closed)
    }
}

/// A frame that says which it is, with bytes that belong to it alone.
fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u64).map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[..8].try_into().expect("a frame has a number"))
}

fn settings(json: &str) -> Settings {
    serde_json::from_str(json).expect("settings")
}

struct World {
    relay: Relay<Memory>,
    now: u64,
}

impl World {
    fn new(json: &str) -> Self {
        Self { relay: Relay::new(Default::default(), settings(json)), now: 0 }
    }

    fn send(&mut self, from: usize, frame: Vec<u8>) {
        self.relay.ports[from].incoming.push_back(frame);
    }

    fn stats(&self) -> Value {
        self.relay.stats(Time(self.now))
    }

    /// One turn; the frames that port `to` got.
    fn turn(&mut self, to: usize) -> Vec<Vec<u8>> {
        let now = Time(self.now);
        self.relay.turn(&mut || now).expect("memory does not fail");
        self.now += STEP_NS;
        std::mem::take(&mut self.relay.ports[to].outgoing)
    }

    /// Turns until nothing is under way; the numbers that port `to` got.
    fn drain(&mut self, to: usize) -> Vec<Vec<u8>> {
        let mut got = self.turn(to);
        while self.relay.next_at().is_some() || !self.relay.ports[1 - to].incoming.is_empty() {
            got.extend(self.turn(to));
        }
        got
    }
}

#[test]
fn frames_arrive_whole_once_and_in_order() {
    let mut world = World::new(r#"{"rate_bits_per_s": 1000000000, "queue_packets": 100000, "delay_ns": 1000000}"#);
    let sent: Vec<_> = (0..1000).map(|n| frame(n, 60 + (n as usize * 37) % 1454)).collect();
    sent.iter().for_each(|f| world.send(0, f.clone()));
    sent.iter().for_each(|f| world.send(1, f.clone()));
    assert_eq!(world.drain(1), sent);
    world.drain(0);
    assert_eq!(world.stats()["back"]["frames"], 1000);
    assert_eq!(world.relay.ways.each_ref().map(|way| way.held_bytes), [0, 0]);
}

#[test]
fn the_same_seed_drops_the_same_frames_at_any_pace() {
    let lost = |seed: u64, at_once: usize| {
        let mut world = World::new(&format!(r#"{{"seed": {seed}, "loss_per_million": 50000, "delay_ns": 77}}"#));
        let mut got = vec![];
        for numbers in (0..5000).collect::<Vec<u64>>().chunks(at_once) {
            numbers.iter().for_each(|n| world.send(0, frame(*n, 60)));
            got.extend(world.drain(1));
        }
        let got: Vec<u64> = got.iter().map(|f| number(f)).collect();
        assert!(got.is_sorted() && got.len() < 4900, "{} arrived", got.len());
        got
    };
    assert_eq!(lost(5, 1), lost(5, 64));
    assert_ne!(lost(5, 1), lost(6, 1));
}

#[test]
fn each_frame_leaves_after_its_delay_and_at_most_a_turn_later() {
    const DELAY_NS: u64 = 5_000_000;
    let mut world = World::new(&format!(r#"{{"delay_ns": {DELAY_NS}}}"#));
    let mut left_at = vec![];
    for n in 0..3000 {
        if n < 2000 {
            world.send(0, frame(n, 60));
        }
        let now = world.now;
        left_at.extend(world.turn(1).iter().map(|f| (number(f), now)));
    }
    assert_eq!(left_at.len(), 2000);
    for (n, at) in left_at {
        let took = at - n * STEP_NS;
        assert!((DELAY_NS..=DELAY_NS + STEP_NS).contains(&took), "frame {n} took {took} ns");
    }
    let late = world.stats()["late"]["max_us"].as_f64().expect("a lateness");
    assert!(late * 1e3 <= STEP_NS as f64 * 1.01, "{late} us late");
}

#[test]
fn the_rate_is_held_over_any_stretch() {
    // 100 Mbit/s: 1,514 bytes and 24 of framing take 123,040 ns.
    const EACH_NS: u64 = 123_040;
    let mut world = World::new(r#"{"rate_bits_per_s": 100000000, "queue_packets": 1000}"#);
    (0..500).for_each(|n| world.send(0, frame(n, 1514)));
    let mut left_at = vec![];
    while left_at.len() < 500 {
        let now = world.now;
        left_at.extend(world.turn(1).iter().map(|_| now));
    }
    for (n, at) in left_at.iter().enumerate() {
        // The relay takes a burst a turn; all of them are there before the first has left.
        let due = (n as u64 + 1) * EACH_NS;
        assert!((due..=due + STEP_NS).contains(at), "frame {n} left at {at} ns, not {due}");
    }
}

#[test]
fn a_full_queue_drops_what_comes_last() {
    let mut world = World::new(r#"{"rate_bits_per_s": 1000000, "queue_packets": 100}"#);
    (0..150).for_each(|n| world.send(0, frame(n, 100)));
    let got: Vec<u64> = world.drain(1).iter().map(|f| number(f)).collect();
    assert_eq!(got, (0..100).collect::<Vec<_>>());
    assert_eq!(world.stats()["there"]["queue_full"], 50);
}

#[test]
fn late_frames_are_overtaken_and_none_is_harmed() {
    let json = r#"{"reorder_per_million": 200000, "late_max_ns": 300000, "delay_ns": 100000}"#;
    let mut world = World::new(json);
    let mut got = vec![];
    for n in 0..2000 {
        world.send(0, frame(n, 200));
        got.extend(world.turn(1));
    }
    got.extend(world.drain(1));
    let order: Vec<u64> = got.iter().map(|f| number(f)).collect();
    assert!(!order.is_sorted());
    got.sort_by_key(|f| number(f));
    assert_eq!(got, (0..2000).map(|n| frame(n, 200)).collect::<Vec<_>>());
}

#[test]
fn a_long_queue_marks_capable_frames_and_no_other() {
    let mut world = World::new(r#"{"rate_bits_per_s": 1000000, "queue_packets": 100, "mark_above_packets": 20}"#);
    let ip = |tos: u8| [&[0; 12][..], &[8, 0, 0x45, tos], &[0; 44]].concat();
    (0..60).for_each(|n| world.send(0, ip(n as u8 % 2 * 2)));
    let got = world.drain(1);
    for (n, frame) in got.iter().enumerate() {
        let wanted = match (n % 2, n > 20) {
            (0, _) => 0b00,
            (_, false) => 0b10,
            (_, true) => 0b11,
        };
        assert_eq!(frame[15], wanted, "frame {n}");
    }
}

#[test]
fn new_settings_hold_for_new_frames_and_counts_begin_anew() {
    let mut world = World::new(r#"{"delay_ns": 1000000}"#);
    world.send(0, frame(1, 60));
    assert!(world.turn(1).is_empty());
    world.relay.set(Time(world.now), settings(r#"{"loss_per_million": 1000000}"#));
    world.send(0, frame(2, 60));
    let got: Vec<u64> = world.drain(1).iter().map(|f| number(f)).collect();
    assert_eq!(got, [1]);
    let stats = world.stats();
    assert_eq!((&stats["there"]["frames"], &stats["there"]["lost"]), (&json!(1), &json!(1)));
}

#[test]
fn what_is_under_way_is_bounded_and_counted() {
    const LEN: usize = 9_000;
    let fits = HELD_BYTES_MAX / LEN;
    let mut world = World::new(r#"{"delay_ns": 1000000000}"#);
    for n in 0..fits as u64 + 10 {
        world.send(0, frame(n, LEN));
        world.turn(1);
    }
    assert_eq!(world.stats()["there"]["overrun"], 10);
    world.now += 10_000_000_000;
    assert_eq!(world.drain(1).len(), fits);
}

#[test]
fn a_port_that_takes_nothing_loses_frames_and_says_so() {
    let mut world = World::new("{}");
    world.relay.ports[1].closed = true;
    world.send(0, frame(1, 60));
    assert!(world.turn(1).is_empty());
    assert_eq!(world.stats()["there"]["refused"], 1);
}
