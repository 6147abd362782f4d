//! The suite on two `roce::Nic`s in virtual time, over a perfect link and over one that loses, duplicates and reorders.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use conformance::{CASES, Difference, Rig, Side, run_all};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use roce::{Ipv4IdMode, Nic, NicConfig, Transmit};
use verbs::{PathMtu, Provider, Time};

/// Time that a packet travels at least.
const LATENCY: Duration = Duration::from_micros(5);
/// Clock advance of one step.
const STEP: Duration = Duration::from_micros(10);

/// A datagram on its way: when it arrives, its number (breaks ties), to which side, payload, segment size.
type Flying = Reverse<(Time, u64, usize, Vec<u8>, usize)>;

struct Sim {
    nics: [Nic; 2],
    addresses: [SocketAddr; 2],
    now: Time,
    flying: BinaryHeap<Flying>,
    sent: u64,
    rng: SmallRng,
    per_mille: u32,
    notified: [bool; 2],
}

fn sim(addresses: [&str; 2], per_mille: u32, seed: u64) -> Sim {
    let addresses = addresses.map(|a| a.parse().unwrap());
    let nic = |i: usize| {
        let config = NicConfig {
            local: addresses[i],
            mtu: PathMtu::Mtu4096,
            limits: Default::default(),
            rx_budget_bytes: None,
            name: "sim".into(),
            max_gso_segments: 16,
            id_mode: Ipv4IdMode::SegmentIndex,
        };
        Nic::new(config, [i as u8 + 1; 32])
    };
    Sim {
        nics: [nic(0), nic(1)],
        addresses,
        now: Time(1),
        flying: BinaryHeap::new(),
        sent: 0,
        rng: SmallRng::seed_from_u64(seed),
        per_mille,
        notified: [false; 2],
    }
}

impl Sim {
    fn hit(&mut self) -> bool {
        self.per_mille > 0 && self.rng.random_range(0..1000) < self.per_mille
    }

    fn launch(&mut self, from: usize, transmit: &Transmit, payload: &[u8]) {
        assert_eq!(transmit.destination, self.addresses[1 - from], "a packet left for nowhere");
        let stride = transmit.segment_bytes.map_or(payload.len(), usize::from).max(1);
        if self.per_mille == 0 {
            self.fly(1 - from, payload.to_vec(), stride, Duration::ZERO);
            return;
        }
        // Faults hit single packets, each of which then arrives by itself.
        for segment in payload.chunks(stride) {
            if self.hit() {
                continue;
            }
            let late = if self.hit() { Duration::from_micros(200) } else { Duration::ZERO };
            self.fly(1 - from, segment.to_vec(), segment.len(), late);
            if self.hit() {
                self.fly(1 - from, segment.to_vec(), segment.len(), Duration::from_micros(50));
            }
        }
    }

    fn fly(&mut self, to: usize, payload: Vec<u8>, stride: usize, late: Duration) {
        self.sent += 1;
        self.flying.push(Reverse((self.now + LATENCY + late, self.sent, to, payload, stride)));
    }
}

impl Rig for Sim {
    fn device(&mut self, side: Side) -> &mut dyn Provider {
        &mut self.nics[side as usize]
    }

    fn step(&mut self) {
        let until = self.now + STEP;
        let mut buf = Vec::new();
        for side in 0..2 {
            while let Some(t) = self.nics[side].poll_transmit(self.now, &mut buf) {
                let payload = std::mem::take(&mut buf);
                self.launch(side, &t, &payload);
            }
        }
        while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, to, payload, stride))) = self.flying.pop() else { break };
            self.now = self.now.max(at);
            self.nics[to].handle_batch(self.now, self.addresses[1 - to], &payload, stride);
        }
        // An idle network jumps to the next timer, but by no more than a millisecond, so that `quiet` looks often.
        let deadline = self.nics.iter().filter_map(Nic::deadline).min();
        let idle = self.flying.is_empty() && !self.nics.iter().any(Nic::has_transmit);
        let jump = self.now + Duration::from_millis(1);
        self.now = if idle { deadline.map_or(jump, |d| d.min(jump).max(until)) } else { until };
        for side in 0..2 {
            self.nics[side].handle_timeout(self.now);
            self.notified[side] |= self.nics[side].take_notify();
        }
    }

    fn elapsed(&self) -> Duration {
        self.now - Time::ZERO
    }

    fn notified(&mut self, side: Side) -> Option<bool> {
        self.notified[side as usize] |= self.nics[side as usize].take_notify();
        Some(std::mem::take(&mut self.notified[side as usize]))
    }

    fn lossy(&self) -> bool {
        self.per_mille > 0
    }

    fn differences(&self) -> &'static [Difference] {
        &[]
    }
}

fn check(addresses: [&'static str; 2], per_mille: u32, seed: u64) {
    let mut n = seed;
    let report = run_all(&CASES, || {
        n += 1;
        sim(addresses, per_mille, n)
    });
    assert!(report.failures().is_empty(), "{report}");
    assert!(CASES.len() >= 60, "the suite has {} cases", CASES.len());
}

#[test]
fn perfect_ipv4_link() {
    check(["10.0.0.1:4791", "10.0.0.2:4791"], 0, 1);
}

#[test]
fn perfect_ipv6_link() {
    check(["[fd00::1]:4791", "[fd00::2]:4791"], 0, 2);
}

#[test]
fn faulty_link() {
    for seed in 0..4 {
        check(["10.0.0.1:4791", "10.0.0.2:4791"], 10, 1_000 * seed);
    }
}
