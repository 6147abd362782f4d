//! The policy of a plan's hosts: how many connections their programs may have, for a while, in a quarter of the plans.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use crate::content::mix;
use crate::plan::{Fault, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x90_11c1e5;
/// Times that a policy is read again.
const CHANGES_MAX: u32 = 4;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if rng.random_bool(0.75) {
        return;
    }
    for _ in 0..rng.random_range(1..=CHANGES_MAX) {
        let at = Time::ZERO + Duration::from_micros(rng.random_range(0..quiet_us));
        let connections_max = rng.random_bool(0.7).then(|| rng.random_range(0..=6));
        plan.faults.push((at, Fault::Policy { host: rng.random_range(0..plan.hosts.len()), connections_max }));
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}
