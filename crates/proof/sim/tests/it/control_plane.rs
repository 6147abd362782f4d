//! Control planes against each other, each trap as a scenario of its own, run to the end with every checker on.

use std::time::Duration;

use control::WIRE_VERSION;
use sim::plan::{AppPlan, DaemonPlan, Fault, Talk};
use sim::{Plan, Trace, World};
use verbs::Time;

const PORT: u16 = 7;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

/// Both hosts listen, and connect to each other: the first at 100 us, the second `later_us` after it.
fn both(seed: u64, later_us: u64) -> Plan {
    let mut plan = Plan::calm(seed, 2);
    for (host, when) in [(0, 100), (1, 100 + later_us)] {
        let app =
            AppPlan::new(host, Talk::exactly(2_000)).listening(PORT, 64).connecting(1 - host, PORT, at(when), 2, 4096);
        plan.apps.push(AppPlan { respawn: true, ..app });
    }
    plan
}

#[track_caller]
fn run(plan: Plan) -> World {
    let mut world = World::new(plan, Trace::silent());
    world.run();
    assert_eq!(world.checks().violations(), []);
    world
}

/// Whichever Hello comes first, and however slowly the control plane hears of it: one link, and no connect fails.
#[test]
fn dials_of_both_ends_at_once_leave_one_link() {
    for later_us in 0..60 {
        for queue_us in [0, 40] {
            let mut plan = both(later_us * 2 + queue_us, later_us * 3);
            plan.queue_delay_max = Duration::from_micros(queue_us);
            let world = run(plan);
            let connected = [world.answers(0).connected, world.answers(1).connected];
            assert_eq!(connected, [2, 2], "{later_us} {queue_us}: {:?}", world.checks().explained);
        }
    }
}

/// The daemon, or its machine, dies at each message of handshake and set-up of a lane, and comes back.
#[test]
fn a_death_at_each_message_of_a_handshake() {
    let mut refused = 0;
    for host in 0..2 {
        for messages in 1..=16 {
            for told in [true, false] {
                let mut plan = both(u64::from(messages), 5);
                plan.faults =
                    vec![(at(50), Fault::CrashAt { host, messages, told }), (at(40_000), Fault::Restart { host })];
                let world = run(plan);
                refused += [0, 1].iter().map(|app| world.answers(*app).refused.values().sum::<u64>()).sum::<u64>();
            }
        }
    }
    assert!(refused > 20, "the deaths met {refused} connects only");
}

/// Another version or key is refused with its reason from whichever side, and speaks once it is the same.
#[test]
fn daemons_that_do_not_fit_refuse_with_the_reason_until_they_do() {
    let other = [
        (DaemonPlan { wire_version: WIRE_VERSION + 1, ..DaemonPlan::default() }, "peer-version"),
        (DaemonPlan { wire_version: WIRE_VERSION - 1, key: 3, ..DaemonPlan::default() }, "peer-version"),
        (DaemonPlan { key: 3, ..DaemonPlan::default() }, "peer-auth"),
    ];
    for (daemon, reason) in other {
        for later_us in [0, 3, 40, 2_000] {
            let mut plan = both(later_us, later_us);
            plan.hosts[1].daemon = daemon.clone();
            let mut world = World::new(plan, Trace::silent());
            world.run_until(at(900_000));
            for app in 0..2 {
                let answers = world.answers(app);
                assert_eq!((answers.connected, answers.refused.get(reason)), (0, Some(&2)), "{reason}: {answers:?}");
            }
            world.break_now(&Fault::Install { host: 1, daemon: DaemonPlan::default() });
            world.break_now(&Fault::Crash { host: 1, told: true });
            world.break_now(&Fault::Restart { host: 1 });
            world.pass(Duration::from_millis(100));
            let again = world.add_app(AppPlan::new(0, Talk::exactly(10)).connecting(1, PORT, world.now(), 1, 4096));
            world.pass(Duration::from_secs(2));
            assert_eq!(world.answers(again).connected, 1, "{reason}: {:?}", world.answers(again));
            world.finish();
            assert_eq!(world.checks().violations(), []);
        }
    }
}

/// A host that stands still is waited for: with connections in use, with a lane half made, with a handshake under way.
#[test]
fn a_host_that_stands_still_is_waited_for() {
    for host in 0..2 {
        for start_us in [100, 130, 160, 200, 250, 300, 400, 1_000] {
            let mut plan = both(start_us, 10);
            plan.apps.iter_mut().for_each(|app| app.talk = Talk::exactly(400_000));
            plan.hosts.iter_mut().for_each(|host| host.connect_timeout = Duration::from_secs(60));
            plan.link_timeout = Duration::from_secs(40);
            // A handshake is waited for less long than a link that is up.
            let time = Duration::from_secs(if start_us < 400 { 4 } else { 30 });
            plan.faults = vec![(at(start_us), Fault::PauseHost { host, time })];
            plan.quiet_at = at(35_000_000);
            let world = run(plan);
            let connected = [world.answers(0).connected, world.answers(1).connected];
            assert_eq!(connected, [2, 2], "host {host} from {start_us}: {:?}", world.checks().explained);
            assert!(world.checks().explained.is_empty(), "host {host} from {start_us}: {:?}", world.checks().explained);
        }
    }
}

/// One that stands still for longer is given up, with a reason, and is there again afterwards.
#[test]
fn a_host_that_stands_still_for_too_long_is_given_up_and_comes_back() {
    for host in 0..2 {
        let mut plan = both(7, 10);
        plan.apps.iter_mut().for_each(|app| app.talk = Talk::exactly(4_000_000));
        plan.link_timeout = Duration::from_secs(3);
        plan.faults = vec![(at(1_000), Fault::PauseHost { host, time: Duration::from_secs(9) })];
        plan.quiet_at = at(12_000_000);
        let world = run(plan);
        assert!(world.checks().explained.contains_key("peer-lost"), "{:?}", world.checks().explained);
    }
}
