//! The datagram sockets of a plan, and what breaks for their sake.
//!
//! They have random numbers of their own. So a seed without sockets gives the same run as a plan that cannot have any.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::{FIRST_PORT, pick, up_to, us};
use crate::content::mix;
use crate::plan::{Fault, Plan, SocketPlan};

/// Ports that sockets take, from the first of the listeners on: the two have port spaces of their own.
const PORTS: u16 = 4;
/// What separates these random numbers from the others of a seed.
const LABEL: u64 = 0xda7a_6a35;

/// Sockets for about half of the plans.
pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if rng.random_bool(0.5) {
        return;
    }
    let hosts = plan.hosts.len();
    let busy_us = (quiet_us * 3 / 4).max(1);
    let per_app = pick(&[1, 1, 2, 4], rng);
    let most = pick(&[5, 60, 400], rng);
    for index in 0..plan.apps.len() {
        for _ in 0..rng.random_range(0..=per_app) {
            let at = plan.apps[index].start + us(0..=busy_us / 2, rng);
            let socket = socket(at, hosts, busy_us, most, rng);
            plan.apps[index].sockets.push(socket);
        }
    }
    if rng.random_bool(0.3) {
        for _ in 0..rng.random_range(1..=3) {
            let at = Time::ZERO + Duration::from_micros(rng.random_range(0..quiet_us));
            plan.faults.push((at, Fault::BreakDatagrams { host: rng.random_range(0..hosts) }));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
}

fn socket(at: Time, hosts: usize, busy_us: u64, most: u64, rng: &mut StdRng) -> SocketPlan {
    let port = |rng: &mut StdRng| FIRST_PORT + rng.random_range(0..PORTS);
    let to = (0..rng.random_range(1..=4)).map(|_| {
        let host = rng.random_range(0..hosts);
        // Now and then to the port that nobody can have.
        (host, if rng.random_bool(0.05) { 0 } else { port(rng) })
    });
    let to = to.collect();
    let gap = |rng: &mut StdRng| {
        if rng.random_bool(0.3) { Duration::ZERO } else { us(1..=pick(&[10, 300, 5_000], rng), rng) }
    };
    SocketPlan {
        ring_bytes: pick(&[0, 4096, 16 << 10, 64 << 10], rng),
        count: up_to(&[most], rng) as u32,
        len_max: pick(&[7, 100, 1000, 4080, 5000], rng),
        to,
        gap_max: gap(rng),
        read_gap_max: gap(rng),
        asks: rng.random_bool(0.5),
        close_at: rng.random_bool(0.3).then(|| at + us(1..=busy_us / 2 + 1, rng)),
        ..SocketPlan::new(at, port(rng))
    }
}
