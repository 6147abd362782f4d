//! What members' files have and say decides, step by step.

use agree::{Event, Kept, Role, Term};

use crate::memories::World;

/// Where the ring begins.
const RING_AT: usize = 8192 + 2 * 1024;

/// What a member says of its file: it has the term of its memory's head, and the log there to that entry.
#[derive(Debug, Clone, Copy)]
struct Says {
    promises: bool,
    /// The last entry, by its place from the log's end.
    but: usize,
    /// Its sum is another one.
    is_other: bool,
}

const ALL: Says = Says { promises: true, but: 0, is_other: false };

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn say(world: &mut World, member: u8, says: Says) {
    let memory = world.memory(member).to_vec();
    let term = if says.promises { word(&memory, 8) } else { 0 };
    // Each entry has one line here.
    let count = world.entries(member.into()).len().saturating_sub(says.but);
    let last = &memory[RING_AT + count.saturating_sub(1) * 64..];
    let sum = u64::from(u32::from_le_bytes(last[48..52].try_into().unwrap()) ^ u32::from(says.is_other));
    let synced = if count > 0 { word(last, 0) | sum << 32 } else { 0 };
    let words = [synced, term, count as u64, count as u64 * 64, 0];
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    world.scribble(member, Kept::AT, &bytes);
}

fn live(world: &mut World, periods: usize, says: &[(u8, Says)]) {
    for _ in 0..periods {
        says.iter().for_each(|(member, says)| say(world, *member, *says));
        world.period();
    }
}

fn leads(world: &World) -> bool {
    world.events.iter().any(|(_, event)| matches!(event, Event::Role(Role::Leader { .. })))
}

/// The others' files have all that is written, but not that their memories are no older leader's.
#[test]
fn nobody_leads_by_members_whose_files_do_not_have_the_promise() {
    let mut world = World::synced(3);
    world.awake = vec![0];
    let mute = Says { promises: false, ..ALL };
    live(&mut world, 300, &[(0, ALL), (1, mute), (2, mute)]);
    assert!(!leads(&world), "{:?}", world.events);
    assert!((0..3).all(|member| world.entries(member).is_empty()), "nothing is written before");
    live(&mut world, 300, &[(0, ALL), (1, mute), (2, ALL)]);
    assert!(leads(&world));
}

#[test]
fn a_promise_of_a_greater_term_ends_a_campaign_though_no_head_has_it() {
    let mut world = World::synced(3);
    world.awake = vec![0];
    let greater = Term::new(9, 2).bits();
    for _ in 0..200 {
        let words = [0, greater, 0, 0, 0u64];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        say(&mut world, 0, ALL);
        (1..3).for_each(|member| world.scribble(member, Kept::AT, &bytes));
        world.period();
    }
    assert!(!leads(&world));
    live(&mut world, 400, &[(0, ALL), (1, ALL), (2, ALL)]);
    assert!(leads(&world) && word(world.memory(0), 8) > greater, "it goes on above that term");
}

#[test]
fn an_entry_counts_where_the_file_has_this_very_entry_and_nowhere_else() {
    let mut world = World::synced(3);
    world.awake = vec![0];
    live(&mut world, 300, &[(0, ALL), (1, ALL), (2, ALL)]);
    assert!(leads(&world));
    world.programs[0].propose(1, 1, &[5]).unwrap();
    world.settle(0);
    let (behind, other) = (Says { but: 1, ..ALL }, Says { is_other: true, ..ALL });
    for others in [behind, other] {
        // All memories have it, and one file.
        assert!((0..3).all(|member| world.entries(member).len() == 2));
        live(&mut world, 50, &[(0, ALL), (1, others), (2, others)]);
        assert_eq!((world.committed(), world.programs[0].machine().0), (0, 0), "{others:?}");
    }
    // The leader's own file is one as the others.
    live(&mut world, 50, &[(0, behind), (1, other), (2, ALL)]);
    assert_eq!(world.committed(), 1, "the first file had it before, and what is synced stays");
    assert!(world.programs[0].waits_for_files(), "of the second one nothing is known");
    live(&mut world, 50, &[(0, ALL), (1, ALL), (2, ALL)]);
    assert!(!world.programs[0].waits_for_files());
}

/// Power goes at a host whose file is waited for, and it comes back by its file, with the number that it had.
#[test]
fn a_memory_that_was_made_of_its_file_meanwhile_is_taken_over_again() {
    let mut world = World::synced(3);
    world.awake = vec![0];
    live(&mut world, 300, &[(0, ALL), (1, ALL), (2, ALL)]);
    assert!(leads(&world));
    world.programs[0].propose(1, 1, &[5]).unwrap();
    world.settle(0);
    let behind = Says { but: 1, ..ALL };
    live(&mut world, 5, &[(0, ALL), (1, behind), (2, behind)]);
    assert_eq!((world.committed(), world.entries(2).len()), (0, 2));
    // Nothing is under way to it, and nobody asks for more.
    world.forget(2);
    live(&mut world, 100, &[(0, ALL), (1, behind), (2, ALL)]);
    assert_eq!((world.committed(), world.entries(2).len()), (1, 2), "it is written again");
}
