//! What a replica refuses, and what it says of it.

use agree::{Event, Layout, Member, Refused, Replica, Role, Settings};

use crate::memories::{IS_IGNORANT, Sum, World};

#[test]
fn only_the_leader_takes_commands_and_others_say_who_he_is() {
    let mut world = World::new(3);
    assert_eq!(world.programs[0].propose(1, 1, b"x"), Err(Refused::NotLeader { hint: None }));
    let leader = world.elect();
    (0..20).for_each(|_| world.period());
    let other = (leader + 1) % 3;
    let refused = world.programs[other].propose(1, 1, b"x").unwrap_err();
    assert_eq!(refused, Refused::NotLeader { hint: Some(leader as u8) });
    assert_eq!(refused.to_string(), format!("this member does not lead; ask member {leader}"));
    assert_eq!(world.programs[other].read(0), Err(refused));
}

#[test]
fn a_repeated_number_is_done_once_and_an_older_one_is_over() {
    let mut world = World::new(3);
    let leader = world.elect();
    for number in [1, 1, 2] {
        world.programs[leader].propose(1, number, &[5]).unwrap();
        world.settle(leader);
    }
    let replies: Vec<Vec<u8>> = world
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Committed { reply, .. } => Some(reply.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(replies, [5u64, 5, 10].map(|sum| sum.to_le_bytes().to_vec()));
    let over = Refused::Superseded { client: 1, number: 1, last: 2 };
    assert_eq!(world.programs[leader].propose(1, 1, &[5]), Err(over));
    let long = Refused::TooLong { bytes: 201, max: 200 };
    assert_eq!(world.programs[leader].propose(1, 3, &[0; 201]), Err(long));
}

#[test]
fn a_full_log_refuses_and_takes_more_when_a_majority_is_back() {
    let mut world = World::new(3);
    let leader = world.elect();
    world.silent = (0..3).filter(|id| usize::from(*id) != leader).collect();
    let mut number = 0;
    let refused = loop {
        number += 1;
        match world.programs[leader].propose(number, 1, &[1; 150]) {
            Ok(()) => world.settle(leader),
            Err(refused) => break refused,
        }
        assert!(number < 100, "never full");
    };
    assert!(matches!(refused, Refused::Full { lines: 64, .. }), "{refused}");
    world.silent.clear();
    // What was never answered is lost in the end, and the memories are taken again.
    for member in (0..3).filter(|id| usize::from(*id) != leader) {
        world.programs[leader].link_lost(member);
    }
    (0..10).for_each(|_| world.period());
    assert_eq!(world.committed() as u64, number - 1);
    world.programs[leader].propose(1000, 1, &[1; 150]).unwrap();
    world.settle(leader);
    assert_eq!(world.committed() as u64, number);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let good = Settings {
        group: 1,
        me: 0,
        members: vec![Member { id: 0, number: 1 }],
        layout: Layout::new(64, 32).unwrap(),
        command_bytes_max: 200,
        piece_bytes_max: 64,
        period_us: 1,
        lease_us: 0,
        is_synced: false,
        seed: 0,
    };
    assert!(Replica::new(good.clone(), Sum::default()).is_ok());
    let bad = [
        Settings { members: vec![], ..good.clone() },
        Settings { members: vec![Member { id: 0, number: 1 }; 2], ..good.clone() },
        Settings { command_bytes_max: 201, ..good.clone() },
        Settings { piece_bytes_max: 100, ..good.clone() },
        Settings { lease_us: 3, ..good.clone() },
        Settings { period_us: 0, ..good },
    ];
    for settings in bad {
        assert!(Replica::new(settings.clone(), Sum::default()).is_err(), "{settings:?}");
    }
}

#[test]
fn a_machine_that_does_not_know_a_snapshot_neither_learns_nor_leads() {
    let mut world = World::new(3);
    let leader = world.elect();
    for number in 1..=80 {
        world.programs[leader].propose(1, number, &[1; 100]).unwrap();
        world.settle(leader);
        world.period();
    }
    assert_eq!(world.committed(), 80, "the ring of 64 lines has gone round");
    let other = (leader + 1) % 3;
    IS_IGNORANT.set(true);
    world.restart(other);
    world.periods(20);
    // Everybody else is gone.
    world.awake = vec![other];
    world.periods(1000);
    let its = || world.events.iter().filter(|(program, _)| *program == other).map(|(_, event)| event);
    assert_eq!(its().filter(|event| **event == Event::BadSnapshot).count(), 1, "it says so once");
    let campaigns = |event: &&Event| matches!(event, Event::Role(Role::Candidate { .. } | Role::Leader { .. }));
    assert_eq!(its().skip_while(|event| **event != Event::BadSnapshot).find(campaigns), None);
    assert_eq!(world.programs[other].applied(), 0);
    IS_IGNORANT.set(false);
}
