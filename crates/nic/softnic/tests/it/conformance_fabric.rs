//! The conformance suite on two hosts of a fabric in virtual time, over a perfect link and over one that loses,
//! duplicates and reorders.

use std::net::IpAddr;
use std::time::Duration;

use conformance::{BY_ENDPOINTS, CASES, Difference, Rig, Side, run_all};
use softnic::{Fabric, FabricHost, Faults};
use verbs::{Encrypt, Provider, Time, Wire};

/// Least that one step moves the clock.
const STEP_MIN: Duration = Duration::from_micros(10);
/// Most that one step moves the clock, so that `quiet` looks often.
const STEP_MAX: Duration = Duration::from_millis(1);

struct Virtual {
    fabric: Fabric,
    hosts: [FabricHost; 2],
    faults: Faults,
    encrypt: Encrypt,
}

fn two_hosts(addresses: [&str; 2], faults: Faults, seed: u64) -> Virtual {
    let fabric = Fabric::new(seed);
    fabric.set_faults(faults);
    let hosts = addresses.map(|a| fabric.host(a.parse::<IpAddr>().unwrap()).unwrap());
    Virtual { fabric, hosts, faults, encrypt: Encrypt::Off }
}

impl Rig for Virtual {
    fn device(&mut self, side: Side) -> &mut dyn Provider {
        &mut self.hosts[side as usize]
    }

    fn step(&mut self) {
        let next = self.fabric.next_event().unwrap_or(STEP_MAX);
        self.fabric.advance(next.clamp(STEP_MIN, STEP_MAX));
    }

    fn elapsed(&self) -> Duration {
        self.fabric.now() - Time::ZERO
    }

    fn notified(&mut self, side: Side) -> Option<bool> {
        Some(self.hosts[side as usize].take_notify())
    }

    fn lossy(&self) -> bool {
        self.faults.any()
    }

    fn differences(&self) -> &[Difference] {
        if self.encrypt == Encrypt::Off { &[] } else { BY_ENDPOINTS }
    }

    /// Keys are exchanged in endpoints.
    fn wire(&self) -> Option<Wire> {
        (self.encrypt != Encrypt::Off).then_some(Wire::Roce)
    }

    fn encrypt(&self) -> Encrypt {
        self.encrypt
    }
}

fn check(addresses: [&'static str; 2], faults: Faults, seed: u64) {
    check_encrypted(addresses, faults, seed, Encrypt::Off);
}

fn check_encrypted(addresses: [&'static str; 2], faults: Faults, seed: u64, encrypt: Encrypt) {
    let mut n = seed;
    let report = run_all(&CASES, || {
        n += 1;
        Virtual { encrypt, ..two_hosts(addresses, faults, n) }
    });
    assert!(report.failures().is_empty(), "{report}");
    assert!(CASES.len() >= 155, "the suite has {} cases", CASES.len());
}

#[test]
fn perfect_ipv4_link() {
    check(["10.0.0.1", "10.0.0.2"], Faults::default(), 1);
}

#[test]
fn perfect_ipv6_link() {
    check(["fd00::1", "fd00::2"], Faults::default(), 2);
}

#[test]
fn faulty_link() {
    for seed in 0..4 {
        check(["10.0.0.1", "10.0.0.2"], Faults::per_mille(10), 1_000 * seed);
    }
}

#[test]
fn sealed_packets_over_a_perfect_and_over_a_faulty_link() {
    check_encrypted(["10.0.0.1", "10.0.0.2"], Faults::default(), 5, Encrypt::Required);
    check_encrypted(["fd00::1", "fd00::2"], Faults::per_mille(10), 7_000, Encrypt::Required);
}
