//! Daemons with several engines: connections on all of them, hosts with different numbers, and daemons that come back
//! with another number. Each scenario runs to the end with every checker on.

use std::time::Duration;

use sim::plan::{AppPlan, Break, DaemonPlan, Fault, Talk};
use sim::{Plan, Trace, World};
use verbs::Time;

const PORT: u16 = 7;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// Two hosts with so many engines. At each of these times the first connects 12 times, and once 10 ms before, so that
/// there is a link.
fn plan(engines: [u32; 2], times: &[u64]) -> Plan {
    let mut plan = Plan::calm(u64::from(engines[0]) << 8 | u64::from(engines[1]), 2);
    for (host, engines) in plan.hosts.iter_mut().zip(engines) {
        host.daemon.engines = engines;
    }
    let talk = Talk::exactly(20_000);
    let mut from = AppPlan::new(0, talk.clone());
    for time in times {
        from = from.connecting(1, PORT, at(*time - 10_000), 1, 4096).connecting(1, PORT, at(*time), 12, 4096);
    }
    let to = AppPlan::new(1, talk).listening(PORT, 64);
    plan.apps = vec![from, AppPlan { respawn: true, ..to }];
    plan.quiet_at = at(1_000_000);
    plan
}

#[track_caller]
fn run(plan: Plan) -> World {
    let mut world = World::new(plan, Trace::silent());
    world.run();
    assert_eq!(world.checks().violations(), []);
    world
}

/// Of each engine of a host, connects that succeeded and connections that were accepted.
fn carried(world: &World, host: usize) -> Vec<u64> {
    let of = |engine: &engine::Engine| {
        let counters = engine.totals().counters;
        counters.iter().filter(|(name, _)| ["connects", "accepts"].contains(name)).map(|(_, n)| n).sum()
    };
    world.engines(host).map(of).collect()
}

#[test]
fn connections_are_on_all_engines_that_both_hosts_have() {
    for (here, there) in [(1, 1), (2, 2), (4, 4), (3, 2), (2, 3), (1, 4), (4, 1)] {
        let world = run(plan([here, there], &[20_000]));
        assert_eq!(world.answers(0).connected, 13);
        let shared = here.min(there) as usize;
        for host in [0, 1] {
            let carried = carried(&world, host);
            let (used, unused) = carried.split_at(shared);
            // The probes of the end are among them, whose few connections go to the emptiest engine.
            assert!(used.iter().all(|n| *n >= 12 / shared as u64), "{here} and {there} engines: {carried:?}");
            assert!(unused.iter().all(|n| *n == 0), "{here} and {there} engines: {carried:?}");
        }
    }
}

#[test]
fn lanes_of_any_engine_break_and_go_on() {
    for moment in 0..12 {
        let mut plan = plan([3, 3], &[20_000]);
        let how = [Break::Silent, Break::Asked, Break::RemoteKey][moment % 3];
        for (n, host) in [(0, 0), (40, 1), (80, 0)] {
            let when = at(20_200 + 37 * moment as u64 + n);
            plan.faults.push((when, Fault::BreakLane { host, peer: 1 - host, how }));
        }
        let world = run(plan);
        assert_eq!(world.answers(0).connected, 13, "{:?}", world.checks().explained);
        assert!(world.counter(0, "lane_resets") + world.counter(1, "lane_resets") > 0);
    }
}

/// The listener's daemon dies at different moments and comes back with more engines or fewer.
#[test]
fn a_daemon_comes_back_with_another_number() {
    for (before, after) in [(3, 1), (3, 2), (1, 3), (2, 4)] {
        for moment in 0..8 {
            let mut plan = plan([3, before], &[20_000, 600_000]);
            let dies = 20_000 + 150 * moment;
            let daemon = DaemonPlan { engines: after, ..DaemonPlan::default() };
            plan.faults = vec![
                (at(dies), Fault::Install { host: 1, daemon }),
                (at(dies + 1), Fault::Crash { host: 1, told: moment % 2 == 0 }),
                (at(dies + 50_000), Fault::Restart { host: 1 }),
            ];
            let world = run(plan);
            let carried = carried(&world, 1);
            assert_eq!(carried.len(), after as usize);
            // A death that nobody reports is noticed by silence, after the last connects.
            let is_told = moment % 2 == 0;
            assert!(!is_told || carried.iter().take(3).all(|n| *n > 0), "{before} then {after}: {carried:?}");
        }
    }
}
