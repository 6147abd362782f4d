//! What each operation costs in verbs, exactly.

use agree::Event;

use crate::memories::{Verbs, World};

fn propose(world: &mut World, leader: usize, number: u64) {
    world.programs[leader].propose(1, number, b"12345678").unwrap();
}

#[test]
fn a_proposal_is_one_write_of_a_line_for_each_memory_and_no_verb_of_anybody_else() {
    for members in [3, 5] {
        let mut world = World::new(members);
        let leader = world.elect();
        let n = usize::from(members);
        let cost = world.cost(|world| {
            propose(world, leader, 1);
            world.settle(leader);
        });
        assert_eq!(cost, Verbs { writes: n, written_bytes: n * 64, ..Verbs::default() });
        assert_eq!(world.committed(), 1);
    }
}

#[test]
fn proposals_of_many_clients_go_with_one_write() {
    let mut world = World::new(3);
    let leader = world.elect();
    let cost = world.cost(|world| {
        for client in 1..=8 {
            world.programs[leader].propose(client, 1, b"12345678").unwrap();
        }
        world.settle(leader);
    });
    // The ring may end between them.
    assert!((3..=6).contains(&cost.writes) && cost.written_bytes == 3 * 8 * 64, "{cost:?}");
    assert_eq!(world.committed(), 8);
}

#[test]
fn a_linearizable_read_is_one_read_of_a_head_for_each_memory_whoever_else_asks() {
    let mut world = World::new(3);
    let leader = world.elect();
    let cost = world.cost(|world| {
        let reads: Vec<u64> = (0..5).map(|_| world.programs[leader].read(0).unwrap()).collect();
        world.settle(leader);
        for read in reads {
            assert!(world.events.contains(&(leader, Event::Readable { read })));
        }
    });
    // The first alone, and all that came while it was under way together.
    assert_eq!(cost, Verbs { reads: 2 * 3, read_bytes: 2 * 3 * 24, ..Verbs::default() });
}

#[test]
fn what_is_committed_is_told_once_by_a_word_while_nobody_proposes() {
    let mut world = World::new(3);
    let leader = world.elect();
    (0..20).for_each(|_| world.period());
    propose(&mut world, leader, 1);
    world.settle(leader);
    let cost = world.cost(|world| (0..20).for_each(|_| world.period()));
    assert_eq!((cost.writes, cost.written_bytes), (3, 3 * 8));
    let applied: Vec<u64> = world.programs.iter().map(agree::Replica::applied).collect();
    assert_eq!(applied, [applied[0]; 3], "followers have learned");
    assert!(world.programs.iter().all(|program| program.machine().0 == 420));
}

#[test]
fn a_memory_that_does_not_answer_is_not_waited_for() {
    let mut world = World::new(3);
    let leader = world.elect();
    world.silent = vec![(leader as u8 + 1) % 3];
    (1..=5).for_each(|number| {
        propose(&mut world, leader, number);
        world.settle(leader);
        assert_eq!(world.committed() as u64, number);
    });
}

#[test]
fn whoever_takes_over_reads_a_short_log_however_many_commands_there_were() {
    let mut world = World::with_ring(3, 4096, 16 << 10);
    let leader = world.elect();
    for number in 1..=7000 {
        propose(&mut world, leader, number);
        world.settle(leader);
        if number % 100 == 0 {
            world.period();
        }
    }
    assert_eq!(world.committed(), 7000);
    world.events.clear();
    world.awake.retain(|program| *program != leader);
    let cost = world.cost(|world| assert_ne!(world.elect(), leader));
    // Three memories, a look and a campaign: each reads the head, and at most 2,048 lines and what one READ has more.
    assert!(cost.read_bytes < 6 * (2048 * 64 + 4096 + 1024) + 100_000, "{cost:?}");
}
