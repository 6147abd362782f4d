//! Local memory that is registered piece by piece, kept, and given up later.

use std::time::Duration;

use shm::{LocalSegment, Opcode, OperationStatus, Submission};
use verbs::Region;

use super::fixture::Use;
use crate::world::World;
use control::RegionAccess;

/// Bytes of a piece.
const PIECE: u64 = 64 << 10;

fn with_pieces(seed: u64) -> Use {
    let world = World::with(2, seed, |c| c.engine.pins.piece_bytes = PIECE);
    Use::of(world, RegionAccess::ALL)
}

fn attach(u: &mut Use, number: u32, memory: &Region) {
    let h = &mut u.w.hosts[0];
    h.engine.attach_local_region(&mut h.nic, u.app, number, memory, true).unwrap();
}

/// Writes all of the memory to the region, and reads it back into it.
fn there_and_back(u: &mut Use, number: u32, memory: &Region, seed: u32) {
    let bytes = memory.len() as u32;
    let pattern: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(seed) >> 3) as u8).collect();
    memory.write(0, &pattern).unwrap();
    let segment = LocalSegment { region: number, bytes, offset: 0 }.to_bytes();
    for opcode in [Opcode::Write, Opcode::Read] {
        let s = Submission { segments: 1, ..u.submission(opcode, 64, bytes) };
        assert_eq!(u.run(&s, &segment).status, OperationStatus::Ok, "{opcode:?}");
        if opcode == Opcode::Write {
            memory.write(0, &vec![0; bytes as usize]).unwrap();
        }
    }
    let mut back = vec![0; bytes as usize];
    memory.read(0, &mut back).unwrap();
    assert!(back == pattern, "the bytes of all pieces, in order");
}

#[test]
fn an_operation_waits_for_the_pieces_that_it_needs_and_finds_them_again() {
    for seed in [750, 751] {
        let mut u = with_pieces(seed);
        let memory = Region::anonymous(10 * PIECE as usize + 100).unwrap();
        attach(&mut u, 1, &memory);
        there_and_back(&mut u, 1, &memory, 7);
        assert_eq!(u.w.counter(0, "pin_pipelined"), 10);
        // Given back and brought again, it is registered still.
        for number in 2..6 {
            u.w.hosts[0].engine.detach_local_region(u.app, number - 1);
            u.w.hosts[0].engine.end_sleep();
            u.w.step();
            attach(&mut u, number, &memory);
            there_and_back(&mut u, number, &memory, number);
        }
        assert_eq!((u.w.counter(0, "pin_hits"), u.w.counter(0, "pin_pipelined")), (4, 10));
        let before = u.w.hosts[0].mrs();
        u.w.hosts[0].engine.detach_local_region(u.app, 5);
        u.w.hosts[0].engine.end_sleep();
        u.w.pass(Duration::from_secs(3));
        u.w.settle();
        assert_eq!(u.w.hosts[0].mrs(), before - 11);
        assert_eq!((u.w.counter(0, "pin_deferred"), u.w.counter(0, "pin_batches")), (1, 1));
        u.w.assert_clean();
    }
}

#[test]
fn the_death_of_an_application_gives_its_registrations_up() {
    let mut u = with_pieces(752);
    let memory = Region::anonymous(4 * PIECE as usize).unwrap();
    attach(&mut u, 1, &memory);
    there_and_back(&mut u, 1, &memory, 3);
    let (app, before) = (u.app, u.w.hosts[0].mrs());
    u.w.kill(0, app);
    u.w.settle();
    assert_eq!(u.w.hosts[0].gone, [app]);
    assert!(u.w.hosts[0].mrs() + 4 <= before, "{} of {before}", u.w.hosts[0].mrs());
    u.w.assert_clean();
}
