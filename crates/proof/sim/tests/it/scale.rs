//! Many connections: a storm of connects, and 65,536 of which a few have something to say.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sim::plan::{AppPlan, Ending, Talk};
use sim::{Plan, Trace, World};
use verbs::Time;

const PORT: u16 = 7;
/// Connections that may wait at one listener.
const BACKLOG_MAX: usize = 4096;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

#[track_caller]
fn assert_sound(world: &World) {
    assert_eq!(world.checks().violations(), []);
}

/// Four applications connect 250 times each in one moment, over a lane that is not yet there.
fn storm(backlog: u32, accept_gap: Duration) -> World {
    let mut plan = Plan::calm(1, 2);
    let talk = Talk::exactly(2_000);
    for app in 0..4 {
        let from = AppPlan::new(0, talk.clone()).connecting(1, PORT + app, at(300), 250, 4096);
        let mut to = AppPlan::new(1, talk.clone()).listening(PORT + app, backlog);
        to.listens[0].accept_gap = accept_gap;
        plan.apps.extend([AppPlan { slots: 512, ..from }, AppPlan { slots: 512, ..to }]);
    }
    plan.quiet_at = at(3_000_000);
    World::new(plan, Trace::silent())
}

#[test]
fn a_storm_of_a_thousand_connects_is_served() {
    let mut world = storm(256, Duration::ZERO);
    world.run();
    assert_sound(&world);
    assert_eq!([0, 2, 4, 6].map(|app| world.answers(app).connected), [250; 4]);
    assert_eq!(world.counter(1, "opens_refused"), 0);
    assert_eq!(world.engine(0).totals().rc_qps, 1, "one lane carried it");
}

#[test]
fn a_storm_against_short_backlogs_is_refused_by_name_and_leaves_nothing() {
    let mut world = storm(16, Duration::from_micros(200));
    world.run();
    assert_sound(&world);
    for app in [0, 2, 4, 6] {
        let answers = world.answers(app);
        let full = answers.refused.get("backlog-full").copied().unwrap_or(0);
        assert_eq!(answers.connected + full, 250, "{answers:?}");
        assert!(answers.connected >= 16 && full > 0, "{answers:?}");
    }
}

/// Two hosts with `count` connections, all open and silent.
fn silent(count: usize) -> World {
    let mut plan = Plan::calm(2, 2);
    let talk = Talk { bytes: (0, 0), ..Talk::exactly(0).ending(Ending::HoldOpen) };
    plan.hosts.iter_mut().for_each(|h| {
        (h.connections_max, h.lane_credits, h.ring_bytes_default) = (65_536, 512, 4096);
        (h.ring_memory_per_app_max, h.connect_timeout) = (4 << 30, Duration::from_secs(60));
    });
    let (mut from, mut to) = (AppPlan::new(0, talk.clone()), AppPlan::new(1, talk));
    for port in PORT..PORT + count.div_ceil(BACKLOG_MAX) as u16 {
        from = from.connecting(1, port, at(300), count.min(BACKLOG_MAX), 4096);
        to = to.listening(port, BACKLOG_MAX as u32);
    }
    plan.apps = vec![from, to];
    plan.apps.iter_mut().for_each(|a| a.slots = (count as u32).next_power_of_two().max(64));
    let mut world = World::new(plan, Trace::silent());
    world.stop_sampling();
    world.run_while(at(60_000_000), |w| w.answers(0).connected < count as u64);
    world.pass(Duration::from_secs(1));
    assert_sound(&world);
    assert_eq!((world.answers(0).connected, world.moved(1).len()), (count as u64, count));
    world
}

/// Connections that talk in the measurement.
const BUSY: u32 = 16;
const ROUNDS: u32 = 60;

/// `BUSY` connections write in turn; what that costs: processor time (the least of several measurements) and device
/// calls.
fn traffic(world: &mut World) -> (Duration, u64) {
    let calls = |w: &World| w.tap(0).calls + w.tap(1).calls;
    let before = calls(world);
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let start = processor_time();
        for round in 0..ROUNDS {
            for slot in (round % 2..BUSY).step_by(2) {
                assert!(world.write_more(0, slot, 100) && world.write_more(1, slot, 100));
            }
            world.pass(Duration::from_millis(2));
        }
        least = least.min(processor_time() - start);
    }
    assert_sound(world);
    (least, calls(world) - before)
}

fn processor_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

const MANY: usize = 65_536;

/// Stores the same tail in the slots of all silent connections.
fn set_tails(world: &World, value: u64) {
    for slot in BUSY..MANY as u32 {
        for app in [0, 1] {
            world.slot(app, slot).tx_tail.store(value, Ordering::Release);
        }
    }
}

/// The cost of traffic is that of the connections that talk. That an engine does not even look at silent ones is shown
/// by words in their slots that would cost the application its session if they were read without a doorbell.
#[test]
fn work_is_bounded_by_the_connections_that_are_ready() {
    let mut few = silent(64);
    let mut many = silent(MANY);
    set_tails(&many, u64::MAX / 3);
    let (few_time, few_calls) = traffic(&mut few);
    let (many_time, many_calls) = traffic(&mut many);
    for host in [0, 1] {
        assert_eq!(many.counter(host, "app_faults"), 0, "the engine looked at a connection that had no news");
    }
    for app in [0, 1] {
        let moved = many.moved(app);
        let per_slot = u64::from(ROUNDS) / 2 * 5 * 100;
        assert!(moved[..BUSY as usize].iter().all(|m| *m == (per_slot, per_slot)), "{:?}", &moved[..BUSY as usize]);
        assert!(moved[BUSY as usize..].iter().all(|m| *m == (0, 0)));
    }
    assert!(
        many_calls <= few_calls + few_calls / 10,
        "{few_calls} device calls with few connections, {many_calls} with many"
    );
    // A walk over all connections would cost a thousand times as much; caches may cost something.
    assert!(many_time < few_time * 12, "{few_time:?} with few connections, {many_time:?} with many");
    eprintln!("{few_time:?} and {few_calls} calls with 64 connections, {many_time:?} and {many_calls} with {MANY}");
    set_tails(&many, 0);
    // All of them end, and nothing is left.
    many.finish();
    assert_sound(&many);
}
