//! Streams of bulk that get a TCP connection of their own (docs/tcp-direct.md), run to the end with every checker on.

use sim::{Plan, Trace, World};

#[test]
fn seeds_that_may_have_them_make_such_connections_and_keep_all_promises() {
    let plans = (1..=600).map(Plan::from_seed);
    let plans = plans.filter(|plan| plan.hosts.iter().any(|host| host.bulk_bytes.is_some())).take(20);
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
