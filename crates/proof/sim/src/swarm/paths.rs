//! Hosts with two addresses (docs/operate/failover.md) in a plan: in most of those whose hosts all have TCP, and in a part of the
//! others, with lanes on RoCEv2, datagram sockets and regions. Paths go down and come up again, one at a time or both.
//!
//! It is drawn apart from everything else, as datagram sockets are. Streams of bulk keep to the lane there, as towards any
//! host with two paths.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Time, WirePolicy};

use super::{pick, up_to};
use crate::address::PATHS;
use crate::content::mix;
use crate::plan::{Fault, HostPlan, Plan};

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x0fa1_105e;
/// Times that a path goes down, at most.
const DOWN_MAX: u32 = 5;
/// Parts of the plans that could have two paths and have one: of those with TCP alone, and of the others, which are many.
const WITH_ONE_OF_TCP: f64 = 0.3;
const WITH_ONE: f64 = 0.9;
/// How long connections wait for another path, where the plan lets them wait for nothing.
const PEER_RETURN: Duration = Duration::from_secs(5);

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let may_have = |h: &HostPlan| h.daemon.engines == 1;
    let has_sockets = plan.apps.iter().any(|app| !app.sockets.is_empty());
    let all_have_tcp = plan.hosts.iter().all(|host| host.wire == WirePolicy::Auto);
    let with_one = if all_have_tcp && !has_sockets { WITH_ONE_OF_TCP } else { WITH_ONE };
    if !plan.hosts.iter().all(may_have) || rng.random_bool(with_one) {
        return;
    }
    plan.has_standby = true;
    for host in plan.hosts.iter_mut().filter(|host| host.peer_return.is_zero()) {
        host.peer_return = PEER_RETURN;
    }
    let hosts = plan.hosts.len();
    let at = |us: u64| Time::ZERO + Duration::from_micros(us);
    for _ in 0..rng.random_range(1..=DOWN_MAX) {
        let start = rng.random_range(0..quiet_us);
        let long = up_to(&[3_000, 100_000, 1_000_000, 6_000_000, 15_000_000], rng);
        let a = rng.random_range(0..hosts);
        let b = (a + rng.random_range(1..hosts)) % hosts;
        let path = pick(&[0, 0, 0, PATHS - 1], rng);
        plan.faults.push((at(start), Fault::PathDown { a, b, path }));
        plan.faults.push((at(start + long), Fault::PathUp { a, b, path }));
    }
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

#[cfg(test)]
mod tests {
    use verbs::Wire;

    use super::*;

    #[test]
    fn a_part_of_the_seeds_has_two_paths_of_which_one_goes_down() {
        let plans: Vec<Plan> = (1..=600).map(Plan::from_seed).filter(|plan| plan.has_standby).collect();
        assert!((40..=160).contains(&plans.len()), "{} of 600", plans.len());
        let falls = |fault: &Fault| matches!(fault, Fault::PathDown { .. });
        assert!(plans.iter().all(|plan| plan.faults.iter().any(|(_, fault)| falls(fault))));
        let count = |of: fn(&Plan) -> bool| plans.iter().filter(|plan| of(plan)).count();
        let wires = [WirePolicy::Auto, WirePolicy::Only(Wire::Roce)];
        let [tcp, roce] = wires.map(|wire| plans.iter().filter(|p| p.hosts.iter().all(|h| h.wire == wire)).count());
        assert!(tcp >= 10 && roce >= 10, "{tcp} with TCP, {roce} with RoCEv2 alone");
        assert!(count(|plan| plan.apps.iter().any(|app| !app.sockets.is_empty())) >= 5);
        assert!(count(|plan| plan.hosts.iter().any(|host| host.bulk_bytes.is_some())) >= 10);
        assert!(count(|plan| !plan.users.is_empty()) >= 5);
    }
}
