//! Streams of bulk that get a TCP connection of their own (docs/tcp-direct.md), run to the end with every checker on.

use std::time::Duration;

use sim::plan::Fault;
use sim::{Plan, Trace, World};

fn has_bulk(plan: &Plan) -> bool {
    plan.hosts.iter().any(|host| host.bulk_bytes.is_some())
}

/// The same plans with one path make some, so the streams are bulk.
#[test]
fn streams_between_hosts_with_two_paths_keep_to_the_lane() {
    let plans = (1..=900).map(Plan::from_seed).filter(|plan| has_bulk(plan) && plan.has_standby).take(12);
    let (mut count, mut made_with_one) = (0, 0);
    for plan in plans {
        let seed = plan.seed;
        let made = |plan: Plan| {
            let mut world = World::new(plan, Trace::silent());
            world.run();
            assert_eq!(world.checks().violations(), [], "seed {seed}");
            world.directs().0
        };
        let mut with_one = plan.clone();
        with_one.has_standby = false;
        with_one.faults.retain(|(_, fault)| !matches!(fault, Fault::PathDown { .. } | Fault::PathUp { .. }));
        assert_eq!(made(plan), 0, "seed {seed}");
        (count, made_with_one) = (count + 1, made_with_one + made(with_one));
    }
    assert!(count >= 8 && made_with_one > 0, "{count} plans, {made_with_one} connections with one path");
}

/// However much a near one carries.
#[test]
fn streams_over_a_long_path_have_one_from_their_first_bytes_on() {
    let plans = (1..=600).map(Plan::from_seed);
    let plans = plans.filter(|plan| plan.hosts.iter().all(|host| host.bulk_bytes.is_some()) && !plan.has_standby);
    let mut made = [0, 0];
    for plan in plans.take(6) {
        for (made, delay) in made.iter_mut().zip([Duration::from_micros(5), Duration::from_millis(20)]) {
            let mut plan = plan.clone();
            plan.hosts.iter_mut().for_each(|host| host.bulk_bytes = Some(u64::MAX));
            plan.conditions.delay = delay;
            let seed = plan.seed;
            let mut world = World::new(plan, Trace::silent());
            world.run();
            assert_eq!(world.checks().violations(), [], "seed {seed}");
            *made += world.directs().0;
        }
    }
    assert_eq!(made[0], 0, "over a short path");
    assert!(made[1] > 6, "over a long path: {}", made[1]);
}

#[test]
fn seeds_that_may_have_them_make_such_connections_and_keep_all_promises() {
    let plans = (1..=600).map(Plan::from_seed);
    let plans = plans.filter(|plan| has_bulk(plan) && !plan.has_standby).take(20);
    let mut made = Vec::new();
    for plan in plans {
        let seed = plan.seed;
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), [], "seed {seed}");
        made.push(world.directs().0);
    }
    assert_eq!(made.len(), 20);
    assert!(made.iter().filter(|made| **made > 0).count() > 2, "too few to show something: {made:?}");
}
