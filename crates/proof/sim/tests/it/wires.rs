//! Hosts with two wires, of which one falls silent alone: a lane whose TCP breaks is made anew over RoCEv2; connections go
//! on, and none fails.

use std::time::Duration;

use sim::plan::{AppPlan, Fault, Talk};
use sim::{Plan, Trace, World};
use verbs::{Time, Wire, WirePolicy};

const PORT: u16 = 7;
const COUNT: usize = 6;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// Host 0 connects to host 1; both ends write and read to the end.
fn world(seed: u64) -> World {
    let mut plan = Plan::calm(seed, 2);
    for host in &mut plan.hosts {
        host.wire = WirePolicy::Auto;
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

/// Runs until the lane between the hosts is on this wire at both ends, and bytes go over it.
fn until_on(world: &mut World, wire: Wire, within: Duration) {
    let end = world.now() + within;
    let name = wire.to_string();
    let is_on = |w: &World, a, b| w.wire_of(a, b).as_ref() == Some(&name);
    let moved = world.run_while(end, |w| !(is_on(w, 0, 1) && is_on(w, 1, 0)));
    assert!(moved, "not on {name} but {:?}: {:?}", world.wire_of(0, 1), world.checks().violations());
    let before = world.moved(0);
    let goes_on = |w: &World| w.moved(0).iter().zip(&before).any(|(now, then)| now.1 > then.1 + 3_000);
    assert!(world.run_while(end, |w| !goes_on(w)), "nothing arrives over {name}: {:?}", world.moved(0));
}

fn finish(mut world: World) {
    world.run();
    assert_eq!(world.checks().violations(), []);
    assert!(world.checks().explained.is_empty(), "nothing may fail: {:?}", world.checks().explained);
    assert_eq!(world.answers(0).connected, COUNT as u64);
}

fn silent(wire: Wire) -> Fault {
    Fault::WireDown { a: 0, b: 1, wire }
}

fn healed(wire: Wire) -> Fault {
    Fault::WireUp { a: 0, b: 1, wire }
}

#[test]
fn lanes_that_break_on_a_silent_tcp_go_over_rocev2() {
    for seed in 0..4 {
        let mut world = world(seed);
        until_they_talk(&mut world);
        world.pass(Duration::from_micros(37 * seed * seed));
        until_on(&mut world, Wire::Iwarp, Duration::from_secs(1));
        world.break_now(&silent(Wire::Iwarp));
        until_on(&mut world, Wire::Roce, Duration::from_secs(30));
        world.break_now(&healed(Wire::Iwarp));
        finish(world);
    }
}

#[test]
fn rocev2_that_is_silent_beside_a_lane_on_tcp_is_nobodys_loss() {
    let mut world = world(1);
    until_they_talk(&mut world);
    world.break_now(&silent(Wire::Roce));
    world.pass(Duration::from_secs(3));
    assert_eq!(world.wire_of(0, 1), Some(Wire::Iwarp.to_string()));
    finish(world);
}
