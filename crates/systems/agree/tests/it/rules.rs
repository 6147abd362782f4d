//! Rules whose breach takes a rare order of events, step by step.

use crate::memories::World;

/// Where the ring begins.
const RING_AT: u64 = 8192 + 2 * 1024;

/// Figure 8 of the paper on Raft. An entry of an older term is at a majority, and is not committed by that: another log
/// with a greater term may still win. It is committed with the first entry of the leader's own term.
#[test]
fn an_entry_of_an_older_term_is_not_committed_by_being_at_a_majority() {
    let mut world = World::with_pieces(3, 64);
    world.awake = vec![0];
    assert_eq!(world.elect(), 0);
    world.periods(5);
    // Program 0 has its command in its own memory alone, and ends.
    world.is_held_back = |member, offset, _| member != 0 && offset >= RING_AT;
    world.programs[0].propose(1, 1, &[7]).unwrap();
    world.settle(0);
    assert_eq!((world.entries(0), world.entries(1), world.entries(2)), (vec![1, 2], vec![1], vec![1]));
    // Program 1 takes over the others, and its entry gets into its own memory alone.
    (world.awake, world.silent) = (vec![1], vec![0]);
    world.is_held_back = |member, offset, _| member != 1 && offset >= RING_AT;
    world.periods(100);
    assert_eq!((world.entries(1).len() > 1, world.entries(2)), (true, vec![1]));
    // Program 0 is back, without memory 1. Its old entry gets to memory 2, the one of its new term does not.
    world.restart(0);
    (world.awake, world.silent) = (vec![0], vec![1]);
    world.is_held_back = |member, offset, bytes| member == 2 && offset >= RING_AT && bytes[0] > 2;
    world.periods(100);
    assert_eq!((world.entries(0), world.entries(2)), (vec![1, 2, 3], vec![1, 2]));
    assert_eq!((world.programs[0].machine().0, world.programs[0].applied()), (0, 1), "it is not committed");
    world.is_held_back = |_, _, _| false;
    world.programs[0].link_lost(2);
    world.periods(100);
    assert_eq!((world.programs[0].machine().0, world.programs[0].applied()), (7, 3));
}

/// Of two logs the one with the greater last term is taken, though the other is longer.
#[test]
fn a_longer_log_of_an_older_term_does_not_win() {
    let mut world = World::with_pieces(3, 64);
    world.awake = vec![0];
    assert_eq!(world.elect(), 0);
    world.periods(5);
    world.is_held_back = |member, offset, _| member != 0 && offset >= RING_AT;
    (1..=5).for_each(|client| world.programs[0].propose(client, 1, &[1]).unwrap());
    world.settle(0);
    assert_eq!((world.entries(0).len(), world.entries(2).len()), (6, 1));
    (world.awake, world.silent) = (vec![1], vec![0]);
    world.is_held_back = |_, _, _| false;
    world.events.clear();
    assert_eq!(world.elect(), 1);
    world.programs[1].propose(9, 1, &[100]).unwrap();
    world.settle(1);
    assert_eq!((world.committed(), world.entries(2)), (1, vec![1, 2, 3]));
    world.restart(0);
    (world.awake, world.silent) = (vec![0], vec![1]);
    world.events.clear();
    assert_eq!(world.elect(), 0);
    assert_eq!(world.programs[0].machine().0, 100, "what was acknowledged is there, and nothing else");
}
