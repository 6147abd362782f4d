//! TCP that fails alone, in a part of the plans whose hosts have RoCEv2 too: it carries nothing for a while, and everything
//! else works. Lanes that break go over RoCEv2.
//!
//! It is drawn apart from everything else, as datagram sockets are. Plans that are over before silence is noticed have none.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Time, Wire, WirePolicy};

use super::up_to;
use crate::content::mix;
use crate::plan::{Fault, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x51_1e47;
/// Plans that end their faults sooner have none.
const QUIET_MIN_US: u64 = 2_000_000;
/// Part of the plans that could have such faults and have none.
const WITHOUT: f64 = 0.4;
/// Times that a wire falls silent, at most.
const FALLS_MAX: u32 = 4;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let with_two: Vec<usize> = (0..plan.hosts.len()).filter(|i| plan.hosts[*i].wire == WirePolicy::Auto).collect();
    if quiet_us < QUIET_MIN_US || with_two.len() < 2 || rng.random_bool(WITHOUT) {
        return;
    }
    let at = |us: u64| Time::ZERO + Duration::from_micros(us);
    for _ in 0..rng.random_range(1..=FALLS_MAX) {
        let first = rng.random_range(0..with_two.len());
        let second = (first + rng.random_range(1..with_two.len())) % with_two.len();
        let (a, b) = (with_two[first], with_two[second]);
        let wire = Wire::Iwarp;
        let start = rng.random_range(0..quiet_us);
        let long = up_to(&[500_000, 2_000_000, 6_000_000, 15_000_000], rng);
        plan.faults.push((at(start), Fault::WireDown { a, b, wire }));
        plan.faults.push((at(start + long), Fault::WireUp { a, b, wire }));
    }
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_part_of_the_seeds_tcp_falls_silent() {
        let falls = |plan: &Plan| plan.faults.iter().any(|(_, f)| matches!(f, Fault::WireDown { .. }));
        let with = (1..=800).map(Plan::from_seed).filter(falls).count();
        assert!((40..=240).contains(&with), "{with} of 800");
    }
}
