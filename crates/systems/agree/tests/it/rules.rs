//! Rules whose breach takes a rare order of events, step by step.

use agree::{Action, Answer, Event};

use crate::memories::{GROUP, PERIOD_US, World};

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

/// An older leader has a lease of 400 periods, and the programs of the others miss it after twenty.
#[test]
fn a_new_leader_answers_nothing_while_an_older_one_may_answer_reads_by_itself() {
    let mut world = World::with_lease(3, 400 * PERIOD_US);
    let older = world.elect();
    world.programs[older].propose(1, 1, &[7]).unwrap();
    world.settle(older);
    world.periods(200);
    let reads = world.cost(|world| {
        let read = world.programs[older].read(world.now).unwrap();
        world.settle(older);
        assert!(world.events.contains(&(older, Event::Readable { read })));
    });
    assert_eq!(reads.reads, 0);
    let alone_from = world.now;
    world.awake.retain(|program| *program != older);
    world.events.clear();
    let leader = world.elect();
    assert!(world.now >= alone_from + 400 * PERIOD_US, "{}", world.now - alone_from);
    world.programs[leader].propose(2, 1, &[1]).unwrap();
    world.settle(leader);
    assert_eq!(world.committed(), 1);
    // The older one stood still meanwhile: it asks its clock for each read.
    let reads = world.cost(|world| {
        let read = world.programs[older].read(world.now).unwrap();
        world.settle(older);
        assert!(!world.events.contains(&(older, Event::Readable { read })));
    });
    assert!(reads.reads >= 2, "{reads:?}");
}

/// What was seen at the end of a look says nothing of what was after its begin.
#[test]
fn a_lease_begins_with_the_look_and_not_with_its_answers() {
    let mut world = World::with_lease(1, 4 * PERIOD_US);
    assert_eq!(world.elect(), 0);
    let program = &mut world.programs[0];
    while program.action().is_some() {}
    let begin = world.now + 1000 * PERIOD_US;
    program.read(begin).unwrap();
    let Some(Action::Read { id, bytes, .. }) = program.action() else { panic!("a look at the head") };
    let mut head = vec![0; bytes];
    head[..8].copy_from_slice(&GROUP.to_le_bytes());
    program.read(begin + 3 * PERIOD_US).unwrap();
    program.answer(id, Answer::Read { number: 100, bytes: head });
    assert!(matches!(program.action(), Some(Action::Read { .. })), "for the second read");
    program.read(begin + 3 * PERIOD_US).unwrap();
    assert!(program.action().is_none(), "under the lease");
    program.read(begin + 4 * PERIOD_US).unwrap();
    let readable = std::iter::from_fn(|| program.event()).filter(|event| matches!(event, Event::Readable { .. }));
    assert_eq!(readable.count(), 2);
}
