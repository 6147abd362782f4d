//! Messages that may be lost, in drawn seeds.

use sim::{Plan, Trace, World};

/// Each that comes is whole, once and in order: the checkers look at every one.
#[test]
fn messages_that_may_be_lost_are_sent_in_drawn_seeds_and_some_are_lost() {
    let (mut sent, mut came, mut seeds) = (0, 0, 0);
    for plan in (1..=200).map(Plan::from_seed).filter(|plan| plan.has_unreliable()).take(crate::size(5, 40)) {
        let seed = plan.seed;
        let mut world = World::new(plan, Trace::silent());
        world.run();
        assert_eq!(world.checks().violations(), [], "seed {seed}");
        (sent, came) = (sent + world.checks().messages_sent, came + world.checks().messages_received);
        seeds += 1;
    }
    assert_eq!(seeds, crate::size(5, 40));
    assert!(came > 50 && came < sent, "{came} of {sent}");
}
