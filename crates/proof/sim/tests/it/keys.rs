//! Encrypted lanes on TCP whose keys protect few records: they change under streams, and none fails.

use std::time::Duration;

use records::RecordLimit;
use sim::plan::{AppPlan, Talk};
use sim::{Plan, Trace, World};
use verbs::{Encrypt, Time, WirePolicy};

const PORT: u16 = 7;
const COUNT: usize = 6;
/// As often a lane may be reset for faults in a minute.
const FAULTS_MAX: u64 = 16;

fn at(us: u64) -> Time {
    Time::ZERO + Duration::from_micros(us)
}

#[test]
fn keys_change_more_often_than_a_lane_may_be_reset_and_streams_go_on() {
    for seed in 0..4 {
        let mut plan = Plan::calm(seed, 2);
        for host in &mut plan.hosts {
            (host.wire, host.encrypt) = (WirePolicy::Auto, Encrypt::Preferred);
            host.record_limit = RecordLimit::lowered_to(40, 4000);
        }
        let talk = Talk { write_max: 1000, ..Talk::exactly(400_000) };
        plan.apps.push(AppPlan::new(0, talk.clone()).connecting(1, PORT, at(100), COUNT, 4096));
        plan.apps.push(AppPlan::new(1, talk).listening(PORT, 64));
        plan.quiet_at = at(50_000_000);
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), []);
        assert!(world.checks().explained.is_empty(), "nothing may fail: {:?}", world.checks().explained);
        assert_eq!(world.answers(0).connected, COUNT as u64);
        let of = |name| [0, 1].map(|host| world.counter(host, name));
        let (changes, resets) = (of("keys_renewed"), of("lane_resets"));
        assert!(resets.iter().all(|resets| *resets > FAULTS_MAX), "{changes:?} {resets:?}, seed {seed}");
        assert!(changes.iter().sum::<u64>() > FAULTS_MAX, "{changes:?} {resets:?}, seed {seed}");
        assert_eq!(of("lane_failures"), [0, 0]);
    }
}
