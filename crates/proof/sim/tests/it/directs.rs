//! Streams of bulk that get a TCP connection of their own (docs/inside/kernel-tcp.md), run to the end with every checker on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sim::plan::{AppPlan, Ending, Fault, LinkConditions, Talk};
use sim::{Plan, Trace, World};
use verbs::{Time, WirePolicy};

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
    for plan in plans.take(crate::size(4, 8)) {
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
    assert!(made[1] > 1, "over a long path: {}", made[1]);
}

#[test]
fn seeds_that_may_have_them_make_such_connections_and_keep_all_promises() {
    let plans = (1..=600).map(Plan::from_seed);
    let plans = plans.filter(|plan| has_bulk(plan) && !plan.has_standby).take(crate::size(3, 20));
    let mut made = Vec::new();
    for plan in plans {
        let seed = plan.seed;
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), [], "seed {seed}");
        made.push(world.directs().0);
    }
    assert_eq!(made.len(), crate::size(3, 20));
    assert!(made.iter().filter(|made| **made > 0).count() > 0, "too few to show something: {made:?}");
}

/// A stream between hosts of which the second makes no such connections. Its path is long, and its writer held back.
fn held_back() -> World {
    let mut plan = Plan::calm(1, 2);
    plan.conditions.delay = Duration::from_millis(20);
    plan.hosts.iter_mut().for_each(|host| host.wire = WirePolicy::Auto);
    plan.hosts[0].bulk_bytes = Some(u64::MAX);
    let talk = Talk { bytes: (0, 0), ..Talk::exactly(0).ending(Ending::HoldOpen) };
    let start = Time::ZERO + Duration::from_millis(1);
    plan.apps =
        vec![AppPlan::new(0, talk.clone()).connecting(1, 7, start, 1, 64 << 10), AppPlan::new(1, talk).listening(7, 1)];
    let mut world = World::new(plan, Trace::silent());
    while world.answers(0).connected == 0 {
        assert!(world.now() < Time::ZERO + Duration::from_secs(20), "{:?}", world.answers(0));
        world.pass(Duration::from_millis(10));
    }
    assert!(hold(&world) > 0);
    world
}

fn hold(world: &World) -> u32 {
    world.slot(0, 0).tx_hold.load(Ordering::Relaxed)
}

/// The peer refused, or never answered.
#[test]
fn a_writer_is_held_back_for_two_seconds_at_most() {
    let mut world = held_back();
    world.pass(Duration::from_millis(1_900));
    assert!(hold(&world) > 0);
    world.pass(Duration::from_millis(200));
    assert_eq!(hold(&world), 0);
    assert_eq!(world.checks().violations(), []);
}

/// As when what came first was lost, and took longer.
#[test]
fn a_writer_is_let_go_when_the_path_turns_out_short() {
    let mut world = held_back();
    let conditions = LinkConditions { delay: Duration::from_millis(1), ..Default::default() };
    world.break_now(&Fault::LinkConditions(conditions));
    // Not each work request tells its completion.
    for _ in 0..50 {
        assert!(world.write_more(0, 0, 100));
        world.pass(Duration::from_millis(10));
    }
    assert_eq!(hold(&world), 0);
    assert_eq!(world.checks().violations(), []);
}

/// What a ring holds at the switch still goes over the lane, and all else waits behind it.
#[test]
fn a_stream_that_may_leave_the_lane_soon_keeps_its_small_ring() {
    let grown = |tells_bulk: bool| {
        let mut plan = Plan::calm(1, 2);
        for host in &mut plan.hosts {
            host.wire = WirePolicy::Auto;
            // Never told, so the stream stays.
            host.bulk_bytes = tells_bulk.then_some(u64::MAX);
            (host.ring_bytes_default, host.ring_bytes_grown) = (16 << 10, 64 << 10);
        }
        let talk = Talk { write_max: 64 << 10, ..Talk::exactly(2 << 20) };
        let start = Time::ZERO + Duration::from_millis(1);
        let reader = Talk { bytes: (0, 0), ..talk.clone() };
        plan.apps = vec![AppPlan::new(0, talk).connecting(1, 7, start, 1, 0), AppPlan::new(1, reader).listening(7, 1)];
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), []);
        world.counter(0, "rings_grown")
    };
    assert_eq!((grown(true), grown(false)), (0, 1));
}
