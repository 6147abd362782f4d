//! A member whose program writes into its own memory what no leader would, and takes memories over out of turn: the others
//! go on without that memory, say whose it is, and nothing that it holds ends their programs.

use agree::{Event, OWNER_AT, Role};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::memories::World;

/// The member that misbehaves; no program of the group's runs there.
const WILD: u8 = 2;
/// Words of a head: term, commit.
const TERM_AT: u64 = 8;
const COMMIT_AT: u64 = 16;
/// Where the two marks stand, and their bytes.
const MARKS_AT: [u64; 2] = [256, 512];
const MARK_BYTES: usize = 256;
/// What the first campaign of the others has.
const FIRST_ROUND: u64 = 1;

/// The others, and who of them leads.
fn world() -> (World, usize) {
    let mut world = World::new(3);
    world.elect();
    world.awake = vec![0, 1];
    world.periods(200);
    let leader = (0..2).find(|program| world.programs[*program].leader() == Some(*program as u8)).unwrap();
    (world, leader)
}

/// Whoever of the others leads commits so many commands; how many periods that took.
fn commits(world: &mut World, count: usize, client: u64) -> usize {
    let (before, mut number) = (world.committed(), 0);
    for period in 0..5000 {
        if world.committed() >= before + count {
            return period;
        }
        for program in [0, 1] {
            number += u64::from(world.programs[program].propose(client, number + 1, &[1]).is_ok());
            world.settle(program);
        }
        world.period();
    }
    panic!("nothing is committed: {:?}", world.events.iter().rev().take(10).collect::<Vec<_>>());
}

fn is_named(world: &World) -> bool {
    let by_others = |(program, event): &(usize, Event)| *program < 2 && *event == Event::Wild { member: WILD };
    world.events.iter().any(by_others)
}

#[test]
fn a_term_that_nobody_can_have_replaces_no_leader_and_is_named() {
    for term in [u64::MAX, 1 << 63 | 2, (1 << 40) | 2, u64::from(u32::MAX) << 8 | 2, 1 << 30 << 8 | 2, 1 << 20 << 8 | 1]
    {
        let (mut world, _) = world();
        let before = world.events.len();
        for _ in 0..100 {
            world.scribble(WILD, TERM_AT, &term.to_le_bytes());
            world.period();
        }
        commits(&mut world, 20, 7);
        let campaigns = |(_, event): &(usize, Event)| matches!(event, Event::Role(Role::Candidate { .. }));
        assert_eq!(world.events[before..].iter().filter(|event| campaigns(event)).count(), 0, "{term:#x}");
        assert!(is_named(&world), "{term:#x}");
    }
}

#[test]
fn a_memory_that_was_taken_with_a_fence_that_nobody_can_have_is_done_without() {
    for fence in [u64::MAX, 1 << 62, (1 << 30 << 8 | 2) << 24] {
        let (mut world, leader) = world();
        world.grant(WILD, fence);
        commits(&mut world, 20, 7);
        assert!(is_named(&world), "{fence:#x}");
        // Nor is it in the way of the next leader.
        world.awake = vec![1 - leader];
        world.periods(300);
        world.awake = vec![0, 1];
        commits(&mut world, 20, 8);
        let greatest = world.events.iter().filter_map(|(_, event)| match event {
            Event::Role(Role::Leader { term }) => Some(term.round()),
            _ => None,
        });
        assert!(greatest.max().is_some_and(|round| round < FIRST_ROUND + 100), "{fence:#x}");
    }
}

#[test]
fn terms_and_fences_that_may_be_cost_fail_overs_and_nothing_else() {
    let (mut world, _) = world();
    for round in (FIRST_ROUND..100).map(|round| round * 5) {
        let term = round << 8 | u64::from(WILD);
        match round % 2 {
            0 => world.scribble(WILD, TERM_AT, &term.to_le_bytes()),
            _ => world.grant(WILD, term << 24),
        }
        world.periods(20);
    }
    // Then it falls back, which changes nothing.
    world.scribble(WILD, TERM_AT, &0u64.to_le_bytes());
    commits(&mut world, 20, 7);
    let [first, second] = [0, 1].map(|program: usize| world.programs[program].machine().0);
    world.periods(50);
    assert!(first >= 20 && second <= world.programs[1].machine().0);
}

/// A leader that takes hold of a memory again within its term knows what it wrote there.
#[test]
fn a_memory_that_took_back_what_its_leader_wrote_is_named_and_written_again() {
    let (mut world, leader) = world();
    commits(&mut world, 20, 7);
    world.periods(3);
    let written = world.entries(WILD.into()).len();
    world.programs[leader].link_lost(WILD);
    world.periods(20);
    assert!(!is_named(&world) && world.entries(WILD.into()).len() == written, "nothing is missing");
    let ring_at = world.memory(WILD).len() as u64 - 64 * 64;
    let last = ring_at + (written as u64 - 1) * 64;
    world.scribble(WILD, last, &[0; 64]);
    world.programs[leader].link_lost(WILD);
    world.periods(20);
    assert!(is_named(&world) && world.entries(WILD.into()).len() == written, "it is written again");
    commits(&mut world, 20, 8);
}

/// A mark whose sum is right, and whose words are not.
fn wild_mark(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; MARK_BYTES];
    let wild = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => u64::MAX,
        1 => u64::MAX - rng.random_range(0..100),
        2 => rng.random(),
        _ => rng.random_range(0..1000),
    };
    // Index, term, line, sums, length of the snapshot.
    for at in (0..40).step_by(8) {
        bytes[at..at + 8].copy_from_slice(&wild(rng).to_le_bytes());
    }
    bytes[40..48].copy_from_slice(&crate::memories::GROUP.to_le_bytes());
    let count = rng.random_range(1..10u64);
    bytes[48..56].copy_from_slice(&count.to_le_bytes());
    for member in 0..count as usize {
        bytes[56 + member * 16..][..8].copy_from_slice(&(member as u64).to_le_bytes());
        bytes[64 + member * 16..][..8].copy_from_slice(&wild(rng).to_le_bytes());
    }
    let sum = crc32c::crc32c(&bytes[..MARK_BYTES - 8]);
    bytes[MARK_BYTES - 8..][..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn a_memory_full_of_anything_ends_no_program_and_the_others_go_on() {
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..30 {
        let (mut world, _) = world();
        for _ in 0..200 {
            match rng.random_range(0..6) {
                0 => world.scribble(WILD, TERM_AT, &rng.random::<u64>().to_le_bytes()),
                1 => world.scribble(WILD, COMMIT_AT, &rng.random::<u64>().to_le_bytes()),
                2 | 3 => {
                    let mark = wild_mark(&mut rng);
                    world.scribble(WILD, MARKS_AT[rng.random_range(0..2)], &mark);
                }
                4 => {
                    let beat: Vec<u8> = (0..32).map(|_| rng.random()).collect();
                    world.scribble(WILD, OWNER_AT, &beat);
                }
                _ => {
                    let bytes: Vec<u8> = (0..512).map(|_| rng.random()).collect();
                    world.scribble(WILD, OWNER_AT + 8 * rng.random_range(0..1000), &bytes);
                }
            }
            world.period();
        }
        // A leader falls, so that the memory is read as a candidate's.
        world.awake = vec![rng.random_range(0..2)];
        world.periods(200);
        world.awake = vec![0, 1];
        commits(&mut world, 10, 7);
    }
}
