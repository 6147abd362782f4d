//! TCP connections for streams of bulk (docs/inside/kernel-tcp.md) in a plan: in half of those whose hosts all have TCP in the
//! clear. Streams there are bulk after few bytes, or the path is long, and programs write large pieces. In most of them some
//! connections carry messages by turns.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Encrypt, Time, WirePolicy};

use super::pick;
use crate::content::mix;
use crate::plan::{Fault, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x0d_12ec7;
/// Bytes of one call of a program.
const COPY_BYTES: usize = 64 << 10;
/// Times that something on the way breaks such connections, at most.
const BREAKS_MAX: u32 = 3;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let may_have = |host: &crate::plan::HostPlan| host.wire == WirePolicy::Auto && host.encrypt == Encrypt::Off;
    if !plan.hosts.iter().all(may_have) || rng.random_bool(0.5) {
        return;
    }
    for host in &mut plan.hosts {
        // Where one host makes none, it refuses.
        host.bulk_bytes = rng.random_bool(0.9).then(|| pick(&[1, 4_000, 30_000], rng));
        if rng.random_bool(0.5) {
            (host.ring_bytes_default, host.ring_bytes_grown) = (64 << 10, 256 << 10);
        }
    }
    if rng.random_bool(0.4) {
        plan.conditions.delay = Duration::from_millis(pick(&[3, 12, 20], rng));
    }
    for talk in plan.apps.iter_mut().map(|app| &mut app.talk) {
        talk.copy_bytes = COPY_BYTES;
        if rng.random_bool(0.8) {
            talk.write_max = pick(&[40_000, COPY_BYTES as u32], rng);
            talk.bytes = (talk.bytes.0, talk.bytes.1.max(pick(&[100_000, 300_000], rng)));
        }
    }
    let hosts = plan.hosts.len();
    if rng.random_bool(0.4) {
        for _ in 0..rng.random_range(1..=BREAKS_MAX) {
            let start = Time::ZERO + Duration::from_micros(rng.random_range(0..quiet_us));
            let a = rng.random_range(0..hosts);
            let b = (a + rng.random_range(1..hosts)) % hosts;
            plan.faults.push((start, Fault::BreakDirects { a, b }));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
    plan.has_conversations = rng.random_bool(0.6);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_seeds_with_tcp_has_them_and_no_other() {
        let plans: Vec<Plan> = (1..=600).map(Plan::from_seed).collect();
        let makes = |plan: &&Plan| plan.hosts.iter().any(|host| host.bulk_bytes.is_some());
        let with = plans.iter().filter(makes).count();
        assert!((25..=80).contains(&with), "{with} of 600");
        let mut hosts = plans.iter().filter(makes).flat_map(|plan| &plan.hosts);
        assert!(hosts.all(|host| host.wire == WirePolicy::Auto && host.encrypt == Encrypt::Off));
    }
}
