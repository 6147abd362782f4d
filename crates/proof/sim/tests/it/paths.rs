//! Hosts with two addresses, of whose paths one goes down and comes up again: connections go on over the other one, and
//! back, and none fails.

use std::time::Duration;

use sim::plan::{AppPlan, Fault, Talk};
use sim::{Plan, Trace, World};
use verbs::{Time, Wire, WirePolicy};

const PORT: u16 = 7;
const COUNT: usize = 6;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// The wires that lanes may be on.
const WIRES: [WirePolicy; 2] = [WirePolicy::Auto, WirePolicy::Only(Wire::Roce)];

/// Host 0 connects to host 1; both ends write and read to the end. Half of them pause, and take some seconds.
fn world(seed: u64, wire: WirePolicy) -> World {
    let mut plan = Plan::calm(seed, 2);
    plan.has_standby = true;
    plan.link_timeout = Duration::from_millis(800);
    for host in &mut plan.hosts {
        host.peer_return = Duration::from_secs(5);
        host.wire = wire;
    }
    let talk = Talk { write_max: 1000, write_gap_max: Duration::from_millis(20), ..Talk::exactly(400_000) };
    plan.apps.push(AppPlan::new(0, talk.clone()).connecting(1, PORT, at(100), COUNT, 4096));
    plan.apps.push(AppPlan::new(1, talk).listening(PORT, 64));
    plan.quiet_at = at(120_000_000);
    World::new(plan, Trace::silent())
}

fn until_they_talk(world: &mut World) {
    let talk = |w: &World| w.moved(0).len() == COUNT && w.moved(0).iter().all(|(_, read)| *read > 1000);
    assert!(world.run_while(at(10_000_000), |w| !talk(w)), "they do not talk: {:?}", world.moved(0));
}

/// Runs until both hosts reach each other by the second addresses, or by the first ones.
fn until_elsewhere(world: &mut World, is: bool, end: Time) {
    let both = |w: &World| w.is_elsewhere(0, 1) == is && w.is_elsewhere(1, 0) == is;
    assert!(world.run_while(end, |w| !both(w)), "the links do not move: {:?}", world.checks().violations());
}

fn finish(mut world: World) {
    world.run();
    assert_eq!(world.checks().violations(), []);
    assert!(world.checks().explained.is_empty(), "nothing may fail: {:?}", world.checks().explained);
    assert_eq!(world.answers(0).connected, COUNT as u64);
}

#[test]
fn streams_go_on_over_the_second_path_and_back() {
    for (seed, wire) in (0..3).flat_map(|seed| WIRES.map(|wire| (seed, wire))) {
        let mut world = world(seed, wire);
        until_they_talk(&mut world);
        world.pass(Duration::from_micros(37 * seed * seed));
        assert!(!world.is_elsewhere(0, 1), "seed {seed}");
        world.break_now(&Fault::PathDown { a: 0, b: 1, path: 0 });
        until_elsewhere(&mut world, true, at(10_000_000));
        let before = world.moved(0);
        let goes_on = |w: &World| w.moved(0).iter().zip(&before).any(|(now, then)| now.1 > then.1 + 5_000);
        let is_on = world.run_while(at(20_000_000), |w| !goes_on(w));
        assert!(is_on, "seed {seed}, {wire}: nothing arrives over the second path: {:?}", world.moved(0));
        world.break_now(&Fault::PathUp { a: 0, b: 1, path: 0 });
        until_elsewhere(&mut world, false, at(100_000_000));
        finish(world);
    }
}

#[test]
fn a_second_path_that_goes_down_is_nobodys_loss() {
    let mut world = world(1, WirePolicy::Auto);
    until_they_talk(&mut world);
    world.break_now(&Fault::PathDown { a: 0, b: 1, path: 1 });
    world.pass(Duration::from_secs(3));
    assert!(!world.is_elsewhere(0, 1) && !world.is_elsewhere(1, 0));
    finish(world);
}
