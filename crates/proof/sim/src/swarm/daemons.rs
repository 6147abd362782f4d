//! What concerns control planes of a plan: dials of both ends at once, daemons that are started again, in other
//! versions or with another cluster key, deaths in the middle of handshakes, hosts that stand still.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use control::WIRE_VERSION;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::{pick, up_to, us};
use crate::content::mix;
use crate::plan::{ConnectPlan, DaemonPlan, Fault, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x7c0_41f3;
/// The earliest connect of the plan: all processes listen by then.
const SETTLED_US: u64 = 250;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    plan.queue_delay_max = us(0..=pick(&[0, 0, 3, 3, 50, 50, 1000, 1000, 100_000], rng), rng);
    if rng.random_bool(0.3) {
        dial_at_once(plan, quiet_us, rng);
    }
    if rng.random_bool(0.2) {
        die_in_handshakes(plan, quiet_us, rng);
    }
    if rng.random_bool(0.15) {
        mix_daemons(plan, quiet_us, rng);
    }
    if rng.random_bool(0.15) {
        stand_still(plan, quiet_us, rng);
    }
    if rng.random_bool(0.15) {
        connect_locally(plan, quiet_us, rng);
    }
    if rng.random_bool(0.1) {
        let places = pick(&[1, 2], rng);
        plan.hosts.iter_mut().for_each(|host| host.daemon.handshakes_max = places);
    }
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// The first processes of two hosts connect to each other at the same moment, as long as they live.
fn dial_at_once(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let hosts = plan.hosts.len();
    for _ in 0..rng.random_range(1..=3) {
        let when = at(SETTLED_US + rng.random_range(0..quiet_us / 2));
        let a = rng.random_range(0..hosts);
        let b = (a + rng.random_range(1..hosts)) % hosts;
        for (host, to) in [(a, b), (b, a)] {
            let Some(port) = plan.apps.iter().find(|app| app.host == to).and_then(|app| app.listens.first()) else {
                continue;
            };
            let (port, patience) = (port.port, None);
            let late = if rng.random_bool(0.5) { Duration::ZERO } else { us(0..=100, rng) };
            let connect = ConnectPlan { at: when + late, to, port, ring_bytes: 4096, patience };
            if let Some(app) = plan.apps.iter_mut().find(|app| app.host == host) {
                app.connects.push(connect);
            }
        }
    }
}

/// Processes of one host connect to each other, or to themselves.
fn connect_locally(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    for _ in 0..up_to(&[3, 30, 150], rng) {
        let from = rng.random_range(0..plan.apps.len());
        let host = plan.apps[from].host;
        let listeners = plan.apps.iter().filter(|app| app.host == host).flat_map(|app| app.listens.first());
        let ports: Vec<u16> = listeners.map(|listen| listen.port).collect();
        if ports.is_empty() {
            continue;
        }
        let when = at(SETTLED_US + rng.random_range(0..quiet_us / 2));
        let patience = rng.random_bool(0.1).then(|| us(1..=3000, rng));
        let ring_bytes = pick(&[4096, 4096, 8192], rng);
        plan.apps[from].connects.push(ConnectPlan {
            at: when,
            to: host,
            port: pick(&ports, rng),
            ring_bytes,
            patience,
        });
    }
}

fn die_in_handshakes(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..=3) {
        let start = if rng.random_bool(0.5) { rng.random_range(0..300) } else { rng.random_range(0..quiet_us) };
        let host = rng.random_range(0..plan.hosts.len());
        let crash = Fault::CrashAt { host, messages: rng.random_range(1..=12), told: rng.random_bool(0.6) };
        plan.faults.push((at(start), crash));
        plan.faults.push((at(start + up_to(&[2_000, 50_000, 1_000_000], rng)), Fault::Restart { host }));
    }
}

/// Some hosts have another daemon, from the start on or after one was installed.
fn mix_daemons(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let other = |rng: &mut StdRng| match rng.random_range(0..3) {
        0 => DaemonPlan { wire_version: WIRE_VERSION + 1, ..DaemonPlan::default() },
        1 => DaemonPlan { key: 1, ..DaemonPlan::default() },
        _ => DaemonPlan { key: 2, wire_version: WIRE_VERSION - 1, ..DaemonPlan::default() },
    };
    for host in 0..plan.hosts.len() {
        if rng.random_bool(0.4) {
            plan.hosts[host].daemon = other(rng);
        }
        if rng.random_bool(0.4) {
            let start = rng.random_range(0..quiet_us);
            let daemon = if rng.random_bool(0.5) { DaemonPlan::default() } else { other(rng) };
            plan.faults.push((at(start), Fault::Install { host, daemon }));
            plan.faults.push((at(start + 1), Fault::Crash { host, told: rng.random_bool(0.8) }));
            plan.faults.push((at(start + up_to(&[1_000, 100_000], rng)), Fault::Restart { host }));
        }
    }
}

/// Hosts that stand still for longer than the short pauses of every plan: some for longer than they are waited for.
fn stand_still(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let patience_us = u64::try_from(plan.link_timeout.as_micros()).unwrap_or(u64::MAX);
    for _ in 0..rng.random_range(1..=2) {
        let host = rng.random_range(0..plan.hosts.len());
        let time = us(1..=pick(&[patience_us / 2, patience_us, 2 * patience_us], rng), rng);
        plan.faults.push((at(rng.random_range(0..quiet_us)), Fault::PauseHost { host, time }));
    }
}
