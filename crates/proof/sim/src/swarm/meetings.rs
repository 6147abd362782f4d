//! Programs under `raas run` in a plan, and where kernel TCP is faster than lanes: in half of the seeds. In half of these
//! some streams are upgraded connections, which may go back.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::pick;
use crate::content::mix;
use crate::plan::{MeetingPlan, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x3e_e71465;
/// Connections, most.
const MEETINGS_MAX: u16 = 12;
/// The first port of ends that connected, and of those that accepted.
const PORTS: [u16; 2] = [40_000, 7_000];

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if rng.random_bool(0.5) {
        return;
    }
    for host in &mut plan.hosts {
        host.tcp_is_faster = rng.random_bool(0.2);
    }
    for number in 0..rng.random_range(1..=MEETINGS_MAX) {
        let hosts = [0, 1].map(|_| rng.random_range(0..plan.hosts.len()));
        let ports = PORTS.map(|first| first + number);
        let meeting = one(hosts, ports, quiet_us, rng);
        // Two containers with the same addresses: only words tell their ends apart.
        if meeting.namespaces.iter().any(Option::is_some) && rng.random_bool(0.5) {
            let twin = one(hosts, ports, quiet_us, rng);
            let namespaces = meeting.namespaces.map(|of| of.map(|of| of + 1000));
            if namespaces.iter().all(Option::is_some) {
                plan.meetings.push(MeetingPlan { namespaces, ..twin });
            }
        }
        plan.meetings.push(meeting);
    }
    plan.has_upgrades = rng.random_bool(0.5);
}

fn one(hosts: [usize; 2], ports: [u16; 2], quiet_us: u64, rng: &mut StdRng) -> MeetingPlan {
    let begin = rng.random_range(0..=quiet_us / 2);
    let apart = pick(&[1, 300, 20_000], rng);
    let at = |us: u64| Time::ZERO + Duration::from_micros(us.min(quiet_us));
    let ask = |rng: &mut StdRng| rng.random_bool(0.9).then(|| at(begin + rng.random_range(0..=apart)));
    let asks = [ask(rng), ask(rng)];
    let give_up = |rng: &mut StdRng, asks: Option<Time>| {
        let asks = asks.filter(|_| rng.random_bool(0.3))?;
        Some((asks + Duration::from_micros(rng.random_range(0..=2 * apart)), rng.random_bool(0.5)))
    };
    let gives_up = [give_up(rng, asks[0]), give_up(rng, asks[1])];
    let is_apart = hosts[0] == hosts[1] && rng.random_bool(0.5);
    let mut namespace = |number| (is_apart && rng.random_bool(0.8)).then_some(number);
    let namespaces = [namespace(u64::from(ports[0])), namespace(u64::from(ports[0]) + 100)];
    MeetingPlan { hosts, ports, asks, gives_up, namespaces }
}
