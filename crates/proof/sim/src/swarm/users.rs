//! The programs of a plan that use regions, and revokes.
//!
//! They have random numbers of their own. So a seed without them gives the same run as a plan that cannot have any.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::{pick, us};
use crate::content::mix;
use crate::plan::{Fault, LocalPlan, Plan, UserPlan};

/// What separates these random numbers from the others of a seed.
const LABEL: u64 = 0x4e6_1035;
/// The same for leased lanes: whether a program has one changes nothing else of a plan.
const LEASES: u64 = 0x1ea_5e5;
/// The same for local memory and leases.
const LOCALS: u64 = 0x10_ca15;

/// The same for regions with one writer.
const WRITERS: u64 = 0x3_217e5;

/// Programs that use regions with one writer.
const WRITERS_MIN: usize = 4;

/// Whether hosts have lanes for all others, which programs that use regions need.
pub(super) fn may_be(plan: &Plan) -> bool {
    let hosts = plan.hosts.len();
    hosts > 1 && plan.hosts.iter().all(|host| (host.lanes_max as usize) >= hosts - 1)
}

/// A program that uses regions.
pub(super) fn one(hosts: usize, quiet_us: u64, is_leased: bool, rng: &mut StdRng) -> UserPlan {
    UserPlan {
        host: rng.random_range(0..hosts),
        start: Time::ZERO + us(1..=quiet_us / 4 + 1, rng),
        depth: pick(&[1, 2, 4, 8], rng),
        count: pick(&[10, 40, 80], rng),
        gap_max: us(1..=pick(&[30, 200, 2_000], rng), rng),
        dies_after: rng.random_bool(0.2).then(|| rng.random_range(1..=30)),
        is_leased,
        local: None,
        borrows: false,
    }
}

/// Programs that use regions for a third of the plans whose hosts have lanes for all others.
pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let hosts = plan.hosts.len();
    if !rng.random_bool(0.35) || !may_be(plan) {
        return;
    }
    let mut leases = StdRng::seed_from_u64(mix(plan.seed ^ mix(LEASES)));
    for _ in 0..rng.random_range(1..=4) {
        let is_leased = leases.random_bool(0.4);
        plan.users.push(one(hosts, quiet_us, is_leased, rng));
    }
    if rng.random_bool(0.5) {
        for _ in 0..rng.random_range(1..=3) {
            let at = Time::ZERO + Duration::from_micros(rng.random_range(0..quiet_us));
            plan.faults.push((at, Fault::Revoke { host: rng.random_range(0..hosts) }));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
}

/// In a third of the plans regions have one writer, and so many programs that they take them from each other.
fn draw_writers(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(WRITERS)));
    plan.has_writers = rng.random_ratio(1, 3);
    let Some(first) = plan.users.first().filter(|_| plan.has_writers).cloned() else { return };
    while plan.users.len() < WRITERS_MIN {
        let host = rng.random_range(0..plan.hosts.len());
        plan.users.push(UserPlan { host, ..first.clone() });
    }
    plan.users.iter_mut().for_each(|user| user.count *= 2);
}

/// Half of the programs have local memory, and a third borrow. Memory of their own is for plans in which owners of hosts' regions have places for
/// all they make.
pub(super) fn draw_loans(plan: &mut Plan) {
    draw_writers(plan);
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LOCALS)));
    for user in &mut plan.users {
        let kinds = [None, None, Some(LocalPlan::Own), Some(LocalPlan::Hosts)];
        user.borrows = rng.random_ratio(1, 3);
        user.local = pick(&kinds, &mut rng).filter(|kind| plan.uids == 1 || *kind == LocalPlan::Hosts);
    }
}
