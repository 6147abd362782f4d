//! The traps that others fell into, each as a scenario of its own, run to the end with every checker on.

use std::time::Duration;

use sim::plan::{AppPlan, Break, Cut, Ending, Fault, Talk};
use sim::{Plan, Trace, World};
use verbs::{Status, Time};

const PORT: u16 = 7;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// Host 0 connects `count` times to host 1; both ends talk alike.
fn two(seed: u64, count: usize, talk: &Talk) -> Plan {
    let mut plan = Plan::calm(seed, 2);
    plan.apps.push(AppPlan::new(0, talk.clone()).connecting(1, PORT, at(100), count, 4096));
    plan.apps.push(AppPlan::new(1, talk.clone()).listening(PORT, 4096));
    plan.apps.iter_mut().for_each(|a| a.slots = 1024);
    plan
}

fn world(plan: Plan) -> World {
    World::new(plan, Trace::silent())
}

#[track_caller]
fn assert_sound(world: &World) {
    assert_eq!(world.checks().violations(), []);
}

/// Both sides of a lane run out of the smallest grant there is, at once and again and again: returns of credits must
/// always find a credit to travel on.
#[test]
fn send_and_receive_pools_that_are_both_dry_do_not_deadlock() {
    for seed in 0..6 {
        let mut plan = two(seed, 60, &Talk::exactly(40_000));
        plan.hosts.iter_mut().for_each(|h| h.lane_credits = 8);
        if seed % 2 == 1 {
            (plan.conditions.loss, plan.conditions.reorder) = (100, 300);
            plan.conditions.late_max = Duration::from_micros(100);
        }
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        assert_eq!(world.answers(0).connected, 60);
        let stalls = [0, 1].map(|h| world.counter(h, "credit_stalls"));
        assert!(stalls.iter().all(|s| *s > 10), "too easy: {stalls:?}");
    }
}

/// Packets of a queue pair that was given up arrive after the lane was reset.
#[test]
fn packets_of_an_older_lane_reach_nobody() {
    let mut plan = two(1, 10, &Talk::exactly(400_000));
    plan.quiet_at = at(60_000_000);
    let mut world = world(plan);
    world.run_until(at(2_000));
    assert!(world.moved(0).iter().any(|m| m.0 > 0), "the traffic runs");
    let qpn = |w: &World| w.engine(1).lanes()[0].qpn;
    let old = qpn(&world);
    world.break_now(&Fault::Hold { from: 0, to: 1 });
    // Longer than a queue pair tries, and shorter than the resets without fruit that a lane may have.
    world.pass(Duration::from_secs(10));
    assert!(world.counter(0, "lane_resets") > 0, "the lane failed");
    // A new lane, with traffic on the same rings' memory, and then the old packets.
    world.break_now(&Fault::Heal { a: 0, b: 1 });
    world.break_now(&Fault::Release { from: 0, to: 1 });
    let more = AppPlan::new(0, Talk::exactly(200_000)).connecting(1, PORT, world.now(), 10, 4096);
    let again = world.add_app(more);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.answers(again).connected, 10);
    assert_ne!(qpn(&world), old);
    let dropped = world.tap(1).nic.counters_detail().drop_unknown_qp;
    assert!(dropped > 0, "nothing old arrived");
    world.finish();
    assert_sound(&world);
}

/// The listening host restarts; the other has not noticed when the new daemon dials it, and has not given its end up.
#[test]
fn a_handshake_after_a_restart_is_not_mixed_up_with_the_one_before() {
    for down_us in [1u64, 50, 1_000, 50_000] {
        let mut plan = two(down_us, 4, &Talk::exactly(30_000));
        plan.apps[1].respawn = true;
        // After its restart host 1 connects first, to a host that still believes in the old lane.
        let back = AppPlan::new(1, Talk::exactly(5_000)).connecting(0, PORT + 1, at(100), 3, 4096);
        plan.apps.push(AppPlan { respawn: true, ..back });
        plan.apps.push(AppPlan::new(0, Talk::exactly(5_000)).listening(PORT + 1, 64));
        plan.faults =
            vec![(at(900), Fault::Crash { host: 1, told: false }), (at(900 + down_us), Fault::Restart { host: 1 })];
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        assert!(world.answers(2).connected >= 3, "{down_us}: {:?}", world.answers(2));
    }
}

/// The control link comes up, breaks and comes up while lanes are being made.
#[test]
fn links_that_break_in_the_middle_of_a_handshake() {
    for cut_us in (0..400).step_by(10) {
        let mut plan = two(cut_us, 3, &Talk::exactly(2_000));
        plan.link_timeout = Duration::from_millis(500);
        plan.faults = vec![
            (at(cut_us), Fault::Cut { from: 0, to: 1, what: Cut::CONTROL }),
            (at(2_500_000), Fault::Heal { a: 0, b: 1 }),
        ];
        plan.quiet_at = at(3_000_000);
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
    }
}

#[test]
fn a_partition_at_each_moment_of_a_connect() {
    let mut refused = 0;
    for cut_us in (0..500).step_by(7) {
        for what in [Cut::ALL, Cut::DATA, Cut { one_way: true, ..Cut::ALL }] {
            let mut plan = two(cut_us, 5, &Talk::exactly(3_000));
            plan.faults =
                vec![(at(cut_us), Fault::Cut { from: 0, to: 1, what }), (at(12_000_000), Fault::Heal { a: 0, b: 1 })];
            plan.quiet_at = at(13_000_000);
            let mut world = world(plan);
            world.run();
            assert_sound(&world);
            refused += world.answers(0).refused.values().sum::<u64>();
        }
    }
    assert!(refused > 100, "the partition met {refused} connects only");
}

/// The process dies at each point of connecting, writing, reading and closing, on either side.
#[test]
fn a_crash_at_each_step_of_a_close() {
    for ending in [Ending::ReadToEnd, Ending::CloseAfterWrite, Ending::StopReading, Ending::Abort] {
        for who in 0..2 {
            let mut died = 0;
            for step in (0..70).step_by(crate::size(2, 1)) {
                let mut plan = two(u64::from(step), 2, &Talk::exactly(6_000).ending(ending));
                plan.apps[who].crash_after = Some(step);
                plan.quiet_at = at(200_000);
                let mut world = world(plan);
                world.run_until(at(150_000));
                died += u32::from(!world.is_alive(who));
                world.run();
                assert_sound(&world);
            }
            assert!(died > 4, "{ending:?}: the process of side {who} died {died} times only");
        }
    }
}

/// Both ends close, and one host dies in the middle of it.
#[test]
fn a_host_that_dies_while_connections_close() {
    for step_us in (100..700).step_by(20) {
        let mut plan = two(step_us, 20, &Talk::exactly(500).ending(Ending::CloseAfterWrite));
        plan.faults = vec![
            (at(step_us), Fault::Crash { host: 1, told: step_us % 40 == 0 }),
            (at(50_000), Fault::Restart { host: 1 }),
        ];
        plan.quiet_at = at(100_000);
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
    }
}

/// A lane is lost while connections of it end and opens of it wait for rings: what is freed must not go to those that
/// wait.
#[test]
fn opens_that_wait_for_rings_when_their_lane_is_lost() {
    for step in 0..120u64 {
        let mut plan = two(step, 24, &Talk::exactly(100).ending(Ending::CloseAfterWrite));
        plan.daemon_delay_max = Duration::from_millis(2);
        plan.faults = vec![
            (at(1_000 + step * 100), Fault::Crash { host: 0, told: true }),
            (at(40_000), Fault::Restart { host: 0 }),
        ];
        plan.apps[0].connects.iter_mut().enumerate().for_each(|(i, c)| c.at = at(100 + 250 * i as u64));
        plan.quiet_at = at(100_000);
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
    }
}

/// Readers that stand still hold up only their own writers.
#[test]
fn a_reader_that_stalls_beside_readers_that_do_not() {
    let fast = Talk::exactly(300_000);
    let time_of = |stalled: usize| {
        let mut plan = two(5, 8, &fast);
        plan.hosts.iter_mut().for_each(|h| h.lane_credits = 8);
        plan.quiet_at = at(4_000_000);
        let slow = Talk { endings: vec![Ending::Stall], ..Talk::exactly(0) };
        plan.apps.push(AppPlan { slots: 1024, ..AppPlan::new(1, slow).listening(PORT + 1, 64) });
        let writer = AppPlan::new(0, Talk::exactly(2_000_000)).connecting(1, PORT + 1, at(50), stalled, 65_536);
        plan.apps.push(writer);
        let mut world = world(plan);
        let end = at(700_000);
        let all = |w: &World| w.moved(0).iter().filter(|m| m.1 == 300_000).count() == 8;
        assert!(world.run_while(end, |w| !all(w)), "the fast connections are held up by the stalled ones");
        let took = world.now();
        if stalled > 0 {
            let behind = world.moved(2);
            assert!(behind.iter().all(|m| m.1 <= 8192), "they were to stall: {behind:?}");
            assert!(world.counter(0, "credit_stalls") > 0, "the lane was never short");
        }
        world.finish();
        assert_sound(&world);
        took
    };
    let (alone, beside) = (time_of(0), time_of(30));
    // Half the bytes that the stalled ones' rings take go before; then nothing of theirs does.
    assert!(beside.as_nanos() < 3 * alone.as_nanos() + 20_000_000, "{alone:?} alone, {beside:?} beside");
}

/// A connection may be in the list of those with records and in that of lazy heads; the first serves it, and the second
/// finds nothing to say. Its end must not wait for a frame that was never sent.
#[test]
fn an_end_waits_for_no_frame_that_does_not_exist() {
    let outcome = sim::run_seed(5018, None);
    assert_eq!(outcome.violations, []);
}

/// A completion that comes between the last look and the arming of the CQ, or a doorbell between the last look and the
/// sleep flag, must not be slept over: with delays of a few hundred nanoseconds every interleaving of sleep and news is
/// met.
#[test]
fn news_that_comes_while_a_side_goes_to_sleep() {
    for seed in 0..40 {
        let mut plan = two(seed, 2, &Talk { write_max: 40, read_max: 40, ..Talk::exactly(4_000) });
        plan.conditions.delay = Duration::from_nanos(50 + seed * 37);
        plan.hosts.iter_mut().for_each(|h| h.wake_delay_max = Duration::from_nanos(seed * 61));
        let mut world = world(plan);
        let end = at(500_000);
        let done = world.run_while(end, |w| w.moved(0).iter().filter(|m| m.1 == 4_000).count() < 2);
        assert!(done, "seed {seed}: somebody slept over news");
        world.finish();
        assert_sound(&world);
    }
}

/// A queue pair breaks at any moment of connecting, writing and closing, in each way, at one end or at both, once or
/// again while the lane is being reset: there is a pause, and no connection is lost.
#[test]
fn queue_pairs_that_fail_at_any_moment_cost_nobody_a_connection() {
    let ways = [
        Break::Silent,
        Break::Asked,
        Break::RemoteKey,
        Break::LocalKey,
        Break::Status(Status::RetryExcErr),
        Break::Status(Status::RnrRetryExcErr),
        Break::Status(Status::RemOpErr),
    ];
    let mut resets = 0;
    for (n, us) in (150..2_500u64).step_by(45).enumerate() {
        let mut plan = two(us, 8, &Talk::exactly(40_000));
        let how = ways[n % ways.len()];
        plan.faults = vec![(at(us), Fault::BreakLane { host: n % 2, peer: 1 - n % 2, how })];
        if n % 3 == 0 {
            // While the new queue pair is being made, or just after.
            let again = Fault::BreakLane { host: 1 - n % 2, peer: n % 2, how: Break::Silent };
            plan.faults.push((at(us + 40 * (n as u64 % 9)), again));
        }
        if n % 4 == 0 {
            (plan.conditions.loss, plan.conditions.duplicate, plan.conditions.reorder) = (200, 200, 500);
        }
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        assert_eq!(world.answers(0).connected, 8, "broken at {us} us: {:?}", world.answers(0));
        assert!(world.checks().explained.is_empty(), "broken at {us} us: {:?}", world.checks().explained);
        resets += world.counter(0, "lane_resets");
    }
    assert!(resets > 30, "too easy: {resets} resets");
}

/// A path for packets is cut for longer than all retries, while the daemons still talk to each other. The lane is
/// reset, in vain at first, and connections go on when the path is back.
#[test]
fn a_data_path_that_comes_back_finds_its_connections() {
    for (seed, cut_us) in [(1, 5_000_000), (2, 9_000_000), (3, 30_000)] {
        let mut plan = two(seed, 6, &Talk::exactly(300_000));
        plan.faults = vec![
            (at(1_500), Fault::Cut { from: 0, to: 1, what: Cut { one_way: seed == 2, ..Cut::DATA } }),
            (at(1_500 + cut_us), Fault::Heal { a: 0, b: 1 }),
        ];
        plan.quiet_at = at(12_000_000);
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        assert_eq!(world.answers(0).connected, 6);
        assert!(world.checks().explained.is_empty(), "cut for {cut_us} us: {:?}", world.checks().explained);
        assert_eq!(world.counter(0, "lane_resets") > 0, cut_us > 1_000_000);
    }
}

/// A process is killed around the moment at which its lane fails: its own connections are reset, those of others go on.
#[test]
fn a_kill_during_a_reset_reaches_only_its_own_connections() {
    for us in (0..600u64).step_by(60) {
        let mut plan = two(us, 5, &Talk::exactly(200_000));
        plan.apps.push(AppPlan::new(0, Talk::exactly(200_000)).connecting(1, PORT, at(1_000), 5, 4096));
        plan.faults = vec![
            (at(2_000), Fault::BreakLane { host: 0, peer: 1, how: Break::Asked }),
            (at(1_800 + us), Fault::KillApp { app: 2 }),
        ];
        plan.quiet_at = at(3_000_000);
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        assert_eq!((world.answers(0).connected, world.counter(0, "lane_resets")), (5, 1));
        assert!(world.checks().explained.keys().all(|k| ["peer-app-died", "reset-by-peer"].contains(k)));
    }
}

/// The receiver of a transfer takes it, closes in order and dies, while its word that it took the connection from its
/// backlog is still on the way to the daemon, which may hear of the death first.
#[test]
fn a_receiver_that_leaves_at_once_turns_no_complete_transfer_into_a_reset() {
    let mut left = 0;
    for kill_us in (200..8_000).step_by(crate::size(60, 20)) {
        let mut plan = two(kill_us, 1, &Talk::exactly(2_000));
        plan.daemon_delay_max = Duration::from_millis(2);
        // The sender looks at what comes back in small pieces and late: after the end, and after whatever follows it.
        let talk = &mut plan.apps[0].talk;
        (talk.read_max, talk.read_gap_max) = (200, Duration::from_millis(1));
        plan.faults = vec![(at(kill_us), Fault::KillApp { app: 1 })];
        let mut world = world(plan);
        world.run();
        assert_sound(&world);
        left += u32::from(world.answers(0).connected == 1 && world.moved(0).iter().all(|m| m.0 == 2_000));
    }
    assert!(left > 20, "too easy: {left}");
}
