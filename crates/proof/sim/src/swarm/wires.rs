//! What carries lanes in a plan: TCP in a part of the seeds, with connections that somebody on the way resets.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Time, WirePolicy};

use super::{pick, up_to};
use crate::content::mix;
use crate::plan::{Fault, Plan, StreamPlan};

/// What tells this draw from the others of a seed. With it the seeds that found planted faults keep their runs.
const LABEL: u64 = 0x13a_99dd;
/// Seeds of a hundred in which all hosts have TCP, and those in which some have.
const ALL_HAVE_TCP: u64 = 25;
const SOME_HAVE_TCP: u64 = 10;
/// Resets in a plan at most: with those of [`super::BREAKS_MAX`] less than a lane's connections survive.
const RESETS_MAX: u32 = 3;
/// Segments of one send, where a plan draws hosts without segmentation: only software NICs have TCP.
const SEGMENTS: usize = 16;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let drawn = mix(plan.seed ^ mix(LABEL)) % 100;
    if drawn >= ALL_HAVE_TCP + SOME_HAVE_TCP {
        return;
    }
    let all = drawn < ALL_HAVE_TCP;
    for host in &mut plan.hosts {
        // Of two hosts that differ both have RoCEv2.
        if all || rng.random_bool(0.7) {
            host.wire = WirePolicy::Auto;
            host.max_gso_segments = host.max_gso_segments.max(SEGMENTS);
        }
    }
    plan.streams = StreamPlan {
        room_bytes: pick(&[32 << 10, 256 << 10, 1 << 20], rng),
        cut_max: pick(&[40, 600, 5_000, 64 << 10, 64 << 10], rng),
    };
    let hosts = plan.hosts.len();
    if rng.random_bool(0.4) {
        for _ in 0..rng.random_range(1..=RESETS_MAX) {
            let start = rng.random_range(0..quiet_us);
            let a = rng.random_range(0..hosts);
            let b = (a + rng.random_range(1..hosts)) % hosts;
            plan.faults.push((at(start), Fault::ResetStreams { a, b }));
            if rng.random_bool(0.3) {
                // Again, while the lane is being made anew.
                let again = start + up_to(&[30, 500, 5_000], rng);
                plan.faults.push((at(again), Fault::ResetStreams { a, b }));
            }
        }
    }
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_seeds_has_tcp_and_those_of_the_docs_have_none() {
        let has_tcp = |seed: u64| Plan::from_seed(seed).hosts.iter().any(|h| h.wire == WirePolicy::Auto);
        let with = (1..=600).filter(|seed| has_tcp(*seed)).count();
        assert!((160..=250).contains(&with), "{with} of 600");
        // These were the first that found a planted fault (docs/proof/testing.md).
        for seed in [1, 2, 3, 13, 25, 29, 31, 35, 39, 42, 55, 70, 113, 1009] {
            assert!(!has_tcp(seed), "seed {seed}");
        }
    }
}
