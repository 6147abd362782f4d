//! Tenants of a plan's hosts: weights and rates for their programs, in half of the plans.
//!
//! It is drawn apart from everything else, as datagram sockets are. Rates are far above what a plan needs in its time, but
//! low enough that programs are stopped in the middle of what they do.

use engine::TenantTerms;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::content::mix;
use crate::plan::Plan;

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x7e_4a47;
/// Tenants, among which programs are divided.
const TENANTS: usize = 3;

pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if rng.random_bool(0.5) {
        return;
    }
    let mut tenant = || TenantTerms {
        weight: rng.random_range(1..=5),
        bytes_per_s: rng.random_bool(0.5).then(|| rng.random_range(2_000_000..50_000_000)),
        operations_per_s: rng.random_bool(0.3).then(|| rng.random_range(2_000..50_000)),
        pinned_bytes_max: None,
    };
    plan.hosts.iter_mut().for_each(|host| host.tenants = (0..TENANTS).map(|_| tenant()).collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::HostPlan;

    #[test]
    fn half_of_the_seeds_have_tenants_and_most_of_these_a_rate() {
        let plans: Vec<Plan> = (1..=600).map(Plan::from_seed).collect();
        let with = |plan: &&Plan| plan.hosts.iter().all(|host| !host.tenants.is_empty());
        let has_rate = |host: &HostPlan| host.tenants.iter().any(|tenant| tenant.bytes_per_s.is_some());
        let rated = |plan: &&Plan| plan.hosts.iter().any(has_rate);
        let (with, rated) = (plans.iter().filter(with).count(), plans.iter().filter(rated).count());
        assert!((200..=400).contains(&with) && rated > with / 2, "{rated} of {with}");
    }
}
