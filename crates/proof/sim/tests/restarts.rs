//! Daemons that are killed while their processes live: each byte arrives once, and connections fail for no reason.

use std::time::Duration;

use sim::plan::{AppPlan, Ending, Fault, Talk};
use sim::{Plan, Trace, World, run_seed};
use verbs::Time;

const PORT: u16 = 7;
const COUNT: usize = 12;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// Host 0 connects to host 1; both ends write so much and read to the end.
fn world(seed: u64, bytes: u64) -> World {
    let mut plan = Plan::calm(seed, 2);
    plan.hosts.iter_mut().for_each(|host| host.peer_return = Duration::from_secs(5));
    plan.apps.push(AppPlan::new(0, Talk::exactly(bytes)).connecting(1, PORT, at(100), COUNT, 4096));
    plan.apps.push(AppPlan::new(1, Talk::exactly(bytes)).listening(PORT, 64));
    plan.quiet_at = at(60_000_000);
    World::new(plan, Trace::silent())
}

/// Runs until all connections move bytes.
fn until_they_talk(world: &mut World) {
    let talk = |w: &World| w.moved(0).len() == COUNT && w.moved(0).iter().all(|(_, read)| *read > 1000);
    assert!(world.run_while(at(10_000_000), |w| !talk(w)), "they do not talk: {:?}", world.moved(0));
}

fn finish(mut world: World) -> World {
    world.run();
    assert_eq!(world.checks().violations(), []);
    assert!(world.checks().explained.is_empty(), "nothing may fail: {:?}", world.checks().explained);
    assert_eq!(world.answers(0).connected, COUNT as u64);
    world
}

#[test]
fn streams_go_on_over_each_daemon_and_both() {
    for seed in 0..12 {
        let mut world = world(seed, 400_000);
        until_they_talk(&mut world);
        let which: &[usize] = [&[0][..], &[1], &[0, 1], &[1, 0]][seed as usize % 4];
        which.iter().for_each(|&host| world.break_now(&Fault::KillDaemon { host }));
        world.pass(Duration::from_micros(37 * seed * seed));
        which.iter().for_each(|&host| world.break_now(&Fault::StartDaemon { host }));
        let came_back = |w: &World| which.iter().all(|&host| w.counter(host, "connections_adopted") == COUNT as u64);
        assert!(world.run_while(at(20_000_000), |w| !came_back(w)), "seed {seed}: not all were adopted");
        assert_eq!(world.checks().violations(), []);
        finish(world);
    }
}

#[test]
fn daemons_die_again_while_processes_come_back() {
    for seed in 0..12 {
        let mut world = world(seed, 400_000);
        until_they_talk(&mut world);
        for turn in 0..8 {
            let host = ((seed + turn) % 2) as usize;
            world.break_now(&Fault::KillDaemon { host });
            world.pass(Duration::from_micros(200 * turn));
            world.break_now(&Fault::StartDaemon { host });
            world.pass(Duration::from_micros(9_000 * seed));
        }
        finish(world);
    }
}

/// A connection that ended in both directions, and that one process still holds, needs no other end.
#[test]
fn what_ended_in_order_before_is_no_loss_afterwards() {
    for holds in [0, 1] {
        let mut plan = Plan::calm(5, 2);
        plan.hosts.iter_mut().for_each(|host| host.peer_return = Duration::from_secs(1));
        let talk = |ending| Talk { endings: vec![ending], ..Talk::exactly(3_000) };
        let of = |host| talk(if host == holds { Ending::HoldOpen } else { Ending::CloseAfterWrite });
        plan.apps.push(AppPlan::new(0, of(0)).connecting(1, PORT, at(100), COUNT, 4096));
        plan.apps.push(AppPlan::new(1, of(1)).listening(PORT, 64));
        plan.quiet_at = at(20_000_000);
        let mut world = World::new(plan, Trace::silent());
        world.run_until(at(2_000_000));
        world.break_now(&Fault::KillDaemon { host: holds });
        world.pass(Duration::from_micros(500));
        world.break_now(&Fault::StartDaemon { host: holds });
        finish(world);
    }
}

/// What the other end's machine does not outlive fails, after the time that it is waited for.
#[test]
fn a_machine_that_dies_while_its_daemon_is_away_ends_the_connections() {
    let mut world = world(3, 400_000);
    until_they_talk(&mut world);
    world.break_now(&Fault::KillDaemon { host: 1 });
    world.pass(Duration::from_micros(500));
    world.break_now(&Fault::Crash { host: 1, told: true });
    world.pass(Duration::from_millis(20));
    world.break_now(&Fault::Restart { host: 1 });
    world.run();
    assert_eq!(world.checks().violations(), []);
    assert_eq!(world.checks().explained.get("peer-lost"), Some(&(COUNT as u64)), "{:?}", world.checks().explained);
}

/// Seeds that found something.
#[test]
fn seeds_that_found_a_fault_stay_clean() {
    // 528: an end that was adopted after both directions had ended.
    // 1287: a connection that was reset before, whose last bytes were read after the next daemon had freed its rings.
    // 3030: a peer that had stopped reading, so that not all was sent, and both daemons were killed.
    // 21794: connections that were given up on a lane that was up, of which the peer knew and to which it sent.
    for seed in [528, 1287, 3030, 21794] {
        let outcome = run_seed(seed, None);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}
