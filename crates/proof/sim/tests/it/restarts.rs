//! Daemons that are killed while their processes live: each byte arrives once, and connections fail for no reason.

use std::time::Duration;

use sim::plan::{AppPlan, Ending, Fault, SocketPlan, Talk, UserPlan};
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
    for seed in 0..crate::size(5, 12) {
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
    for seed in 0..crate::size(5, 12) {
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

/// A socket on each of two hosts sends to the other's while daemons die, one or both at once.
#[test]
fn datagram_sockets_keep_their_address_and_receive_again() {
    for seed in 0..crate::size(5, 12) {
        let mut plan = Plan::calm(seed, 2);
        plan.hosts.iter_mut().for_each(|host| host.peer_return = Duration::from_secs(5));
        for host in [0, 1] {
            let socket = SocketPlan::new(at(100), PORT).sending(2_000, &[(1 - host, PORT)]);
            let socket = SocketPlan { gap_max: Duration::from_millis(4), asks: true, len_max: 1000, ..socket };
            plan.apps.push(AppPlan::new(host, Talk::exactly(0)).binding(socket));
        }
        plan.quiet_at = at(20_000_000);
        let mut world = World::new(plan, Trace::silent());
        let taken = |world: &World| world.checks().datagrams.taken;
        assert!(world.run_while(at(5_000_000), |w| taken(w) < 200), "seed {seed}: they do not talk");
        let which: &[usize] = [&[0][..], &[1], &[0, 1], &[1, 0]][seed as usize % 4];
        for _ in 0..2 {
            which.iter().for_each(|&host| world.break_now(&Fault::KillDaemon { host }));
            world.pass(Duration::from_micros(1 + 3_700 * seed * seed));
            which.iter().for_each(|&host| world.break_now(&Fault::StartDaemon { host }));
            world.pass(Duration::from_millis(700));
        }
        world.run();
        let checks = world.checks();
        assert_eq!(checks.violations(), [], "seed {seed}");
        assert!(checks.explained.keys().all(|reason| *reason == "daemon-lost"), "{:?}", checks.explained);
        let datagrams = &checks.datagrams;
        assert_eq!(datagrams.returned, 2 * which.len() as u64, "seed {seed}: not all came back");
        assert!(datagrams.taken_after_return > 500, "seed {seed}: {}", datagrams.taken_after_return);
        // Deaths lose what was on its way, and what was sent without a link; most was sent with one.
        assert!(datagrams.taken * 4 > datagrams.sent, "seed {seed}: {} of {}", datagrams.taken, datagrams.sent);
    }
}

/// The seeds in which daemons die have sockets that come back, and that receive afterwards.
#[test]
fn sockets_come_back_in_drawn_seeds() {
    let has_both = |plan: &Plan| {
        plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::KillDaemon { .. }))
            && plan.apps.iter().any(|app| !app.sockets.is_empty())
    };
    let (mut returned, mut taken) = (0, 0);
    for seed in (1..=200).filter(|seed| has_both(&Plan::from_seed(*seed))) {
        let outcome = run_seed(seed, None);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        returned += outcome.sockets_returned;
        taken += outcome.datagrams_taken_after_return;
    }
    assert!(returned > 10 && taken > 100, "{returned} sockets came back, and took {taken} datagrams");
}

/// Two programs on each of two hosts use the regions of both, whose owners add to them as well.
fn world_with_regions(seed: u64) -> World {
    let mut plan = Plan::calm(seed, 2);
    plan.hosts.iter_mut().for_each(|host| host.peer_return = Duration::from_secs(5));
    for host in [0, 0, 1, 1] {
        let gap_max = Duration::from_millis(12);
        let (depth, count, dies_after, is_leased) = (2, 400, None, false);
        plan.users.push(UserPlan {
            host,
            start: at(100),
            depth,
            count,
            gap_max,
            dies_after,
            is_leased,
            local: None,
            borrows: false,
        });
    }
    plan.quiet_at = at(4_000_000);
    World::new(plan, Trace::silent())
}

/// What was acknowledged is there once, whoever did it: the judge has the history of each word over all daemons.
#[test]
fn regions_come_back_with_their_bytes_and_handles_go_on() {
    let (mut reopened, mut unknown) = (0, 0);
    for seed in 0..crate::size(5, 12) {
        let mut world = world_with_regions(seed);
        world.pass(Duration::from_micros(200_000 + 7 * seed));
        let which: &[usize] = [&[0][..], &[1], &[0, 1], &[1, 0]][seed as usize % 4];
        for turn in 1..=2 {
            which.iter().for_each(|&host| world.break_now(&Fault::KillDaemon { host }));
            world.pass(Duration::from_micros(1 + 3_700 * seed * seed));
            which.iter().for_each(|&host| world.break_now(&Fault::StartDaemon { host }));
            let returned = turn * which.len() as u64;
            assert!(world.run_while(at(3_900_000), |w| w.checks().regions_returned < returned), "seed {seed}: {turn}");
            if seed.is_multiple_of(3) {
                which.iter().for_each(|&host| world.break_now(&Fault::Revoke { host }));
            }
            world.pass(Duration::from_millis(300));
        }
        world.run();
        let checks = world.checks();
        assert_eq!(checks.violations(), [], "seed {seed}");
        let (done, not_known) = checks.operations();
        assert!(done > 500, "seed {seed}: {done} operations");
        (reopened, unknown) = (reopened + checks.handles_reopened, unknown + not_known);
    }
    assert!(reopened > 15 && unknown > 0, "{reopened} handles went on, of {unknown} operations nobody knows");
}

/// The next daemon dies too, while owners and programs are on their way to it.
#[test]
fn regions_go_on_when_daemons_die_again_while_owners_bring_them() {
    let mut returned = 0;
    for seed in 0..crate::size(5, 12) {
        let mut world = world_with_regions(seed);
        world.pass(Duration::from_millis(100));
        for turn in 0..10 {
            let host = ((seed + turn) % 2) as usize;
            world.break_now(&Fault::Revoke { host });
            world.pass(Duration::from_micros(37 * (seed + turn) * (seed + turn)));
            world.break_now(&Fault::KillDaemon { host });
            world.pass(Duration::from_micros(200 * turn));
            world.break_now(&Fault::StartDaemon { host });
            world.pass(Duration::from_micros(9_000 * seed + 1_300 * turn));
        }
        world.run();
        assert_eq!(world.checks().violations(), [], "seed {seed}");
        returned += world.checks().regions_returned;
    }
    assert!(returned > 10, "{returned} regions came back");
}

/// The seeds in which daemons die have owners that bring their regions back, and handles that go on.
#[test]
fn regions_come_back_in_drawn_seeds() {
    let has_both = |plan: &Plan| {
        plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::KillDaemon { .. })) && !plan.users.is_empty()
    };
    let (mut returned, mut reopened) = (0, 0);
    for seed in (1..=250).filter(|seed| has_both(&Plan::from_seed(*seed))) {
        let outcome = run_seed(seed, None);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        returned += outcome.regions_returned;
        reopened += outcome.handles_reopened;
    }
    assert!(returned > 30 && reopened > 2, "{returned} regions came back, and {reopened} handles went on");
}

/// Seeds that found something.
#[test]
fn seeds_that_found_a_fault_stay_clean() {
    // 528: an end that was adopted after both directions had ended.
    // 1287: a connection that was reset before, whose last bytes were read after the next daemon had freed its rings.
    // 3030: a peer that had stopped reading, so that not all was sent, and both daemons were killed.
    // 21794: connections that were given up on a lane that was up, of which the peer knew and to which it sent.
    // 2943: a bind that one daemon refused, and whose answer was read when there was the next one (of the checker).
    // 795908731464: a program that read between the two words by which its end came back, and a ring that was full.
    // 2262: a reader that was reset before it had read what it was told that it may, and a writer that ended behind it.
    // 1867: a queue of one program that another one, which had not come back, took for its own (of the simulated programs).
    for seed in [528, 1287, 1867, 2262, 2943, 3030, 21794, 795908731464] {
        let outcome = run_seed(seed, None);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}
