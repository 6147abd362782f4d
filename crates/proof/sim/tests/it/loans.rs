//! Regions as local memory of operations, and leases, in drawn seeds.

use sim::{Plan, Trace, World};

/// What came into local memory is in the histories of the words, which the judges explain; a number or a lease that is over
/// gives nothing.
#[test]
fn operations_use_local_memory_and_leases_in_drawn_seeds() {
    let (mut with_local, mut by_lease) = (0, 0);
    let plans = (1..).map(Plan::from_seed);
    let plans = plans.filter(|plan| plan.users.iter().any(|user| user.local.is_some() && user.borrows));
    for plan in plans.take(crate::size(20, 80)) {
        let seed = plan.seed;
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), [], "seed {seed}");
        (with_local, by_lease) = (with_local + world.checks().with_local, by_lease + world.checks().by_lease);
    }
    assert!(with_local > 40 && by_lease > 20, "{with_local} with local memory, {by_lease} by a lease");
}
