//! Daemons that are killed and started again, in one seed of eight: one or several at once, for microseconds or seconds,
//! also again while processes are on their way back.
//!
//! It has random numbers of its own, so other seeds give the same runs as if there were none of these.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::{pick, up_to, users};
use crate::content::mix;
use crate::plan::{DaemonPlan, Fault, LinkConditions, Plan};

/// What separates these random numbers from the others of a seed. By this one no daemon is killed in the seeds that
/// found planted faults.
const LABEL: u64 = 0x0e57_a28d;

pub(super) fn draw(plan: &mut Plan, quiet_us: u64) {
    let own = mix(plan.seed ^ mix(LABEL));
    if !own.is_multiple_of(8) {
        return;
    }
    let rng = &mut StdRng::seed_from_u64(own);
    let wait = Duration::from_millis(pick(&[1000, 5000, 5000], rng));
    plan.hosts.iter_mut().for_each(|host| host.peer_return = wait);
    // In a third nothing else breaks: then nothing but the death of a process ends a connection.
    if rng.random_bool(0.33) {
        plan.faults.clear();
        plan.conditions = LinkConditions { delay: plan.conditions.delay, ..LinkConditions::default() };
        plan.hosts.iter_mut().for_each(|host| host.daemon.handshakes_max = DaemonPlan::default().handshakes_max);
    }
    let at = |us: u64| Time::ZERO + Duration::from_micros(us);
    for _ in 0..rng.random_range(1..=6) {
        let start = rng.random_range(0..quiet_us);
        let first = rng.random_range(0..plan.hosts.len());
        let both = rng.random_bool(0.3);
        for host in [first, (first + 1) % plan.hosts.len()].into_iter().take(1 + usize::from(both)) {
            let late = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..500) };
            let down = up_to(&[100, 3_000, 30_000, 300_000, 3_000_000], rng);
            plan.faults.push((at(start + late), Fault::KillDaemon { host }));
            plan.faults.push((at(start + late + down), Fault::StartDaemon { host }));
        }
    }
    talk_all_the_time(plan, quiet_us, rng);
    use_regions_all_the_time(plan, quiet_us, rng);
    plan.faults.retain(|(at, _)| *at < plan.quiet_at);
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// Datagram sockets send all the time in most of these plans, so that they do when a daemon dies and after it.
fn talk_all_the_time(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    if rng.random_bool(0.2) {
        return;
    }
    let bound: Vec<(usize, u16)> =
        plan.apps.iter().flat_map(|app| app.sockets.iter().map(|socket| (app.host, socket.port))).collect();
    for socket in plan.apps.iter_mut().flat_map(|app| &mut app.sockets) {
        socket.count = rng.random_range(20..=200);
        socket.gap_max = Duration::from_micros(2 * quiet_us / u64::from(socket.count));
        socket.to.push(pick(&bound, rng));
        if rng.random_bool(0.7) {
            socket.close_at = None;
        }
    }
}

/// Programs use regions all the time, in more of these plans than of others, and owners revoke theirs.
fn use_regions_all_the_time(plan: &mut Plan, quiet_us: u64, rng: &mut StdRng) {
    let hosts = plan.hosts.len();
    if plan.users.is_empty() && users::may_be(plan) && rng.random_bool(0.6) {
        for _ in 0..rng.random_range(1..=4) {
            let is_leased = rng.random_bool(0.2);
            plan.users.push(users::one(hosts, quiet_us, is_leased, rng));
        }
    }
    for user in &mut plan.users {
        user.count = rng.random_range(40..=160);
        user.gap_max = Duration::from_micros(2 * quiet_us / u64::from(user.count));
    }
    if !plan.users.is_empty() {
        // Some are under way when the daemon dies.
        let death = |(at, fault): &(Time, Fault)| match fault {
            Fault::KillDaemon { host } => Some((*at, *host)),
            _ => None,
        };
        for (at, host) in plan.faults.iter().filter_map(death).collect::<Vec<_>>() {
            let before_ns = 1000 * up_to(&[300, 3_000, 30_000], rng);
            if rng.random_bool(0.4) {
                plan.faults.push((Time(at.0.saturating_sub(before_ns)), Fault::Revoke { host }));
            } else if rng.random_bool(0.4) {
                // Those whose daemon is dead do not hear of it.
                let host = (host + rng.random_range(1..hosts)) % hosts;
                plan.faults.push((at + Duration::from_nanos(before_ns), Fault::Revoke { host }));
            }
        }
        for _ in 0..rng.random_range(0..=3) {
            let at = Time::ZERO + Duration::from_micros(rng.random_range(0..quiet_us));
            plan.faults.push((at, Fault::Revoke { host: rng.random_range(0..hosts) }));
        }
    }
}
