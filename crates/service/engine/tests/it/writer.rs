//! The one writer of a region: fenced off by the owner's engine alone, from another host and from its own.

use control::{Reason, RegionAccess, RegionGrant};
use engine::LaneAt;
use shm::{Opcode, OperationStatus, Submission, submission_flag};
use verbs::Region;

use crate::operations::fixture::{BYTES, EPOCH, NUMBER, Use};
use crate::world::{World, addr};

const LANE: u32 = control::LEASED_LANE_FIRST + 3;

fn at(host: usize) -> LaneAt {
    LaneAt::new(addr(1 - host), LANE)
}

/// An application of host 0 writes the region of host 1; others only read it.
fn far(seed: u64) -> Use {
    let mut u = Use::of(World::new(2, seed), RegionAccess::READ);
    let owner = &mut u.w.hosts[1];
    assert!(owner.engine.expect_leased_lane(addr(0), LANE));
    let grant = owner.engine.grant_writer(&mut owner.nic, NUMBER, addr(0), RegionAccess::ALL).unwrap();
    let h = &mut u.w.hosts[0];
    u.handle = h.engine.open_region(&mut h.nic, u.app, at(0), grant).unwrap();
    crate::leased::connect_at(&mut u, [at(0), at(1)], LANE);
    u
}

/// An application of host 0 writes a region of host 0.
fn here(seed: u64) -> Use {
    let mut u = Use::of(World::new(2, seed), RegionAccess::READ);
    u.handle = write_here(&mut u);
    u
}

fn write_here(u: &mut Use) -> u32 {
    let (region, epoch, access) = (NUMBER, EPOCH, RegionAccess::ALL);
    let grant = RegionGrant { region, epoch, bytes: BYTES as u64, access, rkey: 0, addr: 0, last_term: 0 };
    u.w.hosts[0].engine.write_region(u.app, u.region.clone(), grant).unwrap()
}

fn bytes(u: &Use) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    u.region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_writer_of_another_host_has_a_registration_of_its_own() {
    let mut u = far(2000);
    assert_eq!(u.write(4096, b"written!").status, OperationStatus::Ok);
    let tag = u.fetch_add();
    u.w.wake();
    assert_eq!(u.wait(tag).status, OperationStatus::Ok);
    let owner = &mut u.w.hosts[1];
    let again = owner.engine.grant_writer(&mut owner.nic, NUMBER, addr(0), RegionAccess::ALL);
    assert!(again.is_err(), "there is one writer");
    let reader = owner.engine.grant_region(&mut owner.nic, NUMBER, addr(0)).unwrap();
    assert_eq!(reader.access, RegionAccess::READ);
    let h = &mut u.w.hosts[0];
    u.handle = h.engine.open_region(&mut h.nic, u.app, addr(1), reader).unwrap();
    assert_eq!(u.read(4096, 8).bytes, b"written!");
    assert_eq!(u.write(4096, b"no").status, OperationStatus::Access);
    // The fence leaves readers what they have.
    let owner = &mut u.w.hosts[1];
    owner.engine.end_leased_lane(u.w.now, &mut owner.nic, at(1), Reason::Superseded);
    owner.engine.fence_region(&mut owner.nic, NUMBER);
    assert_eq!(u.read(4096, 8).bytes, b"written!");
    let owner = &mut u.w.hosts[1];
    assert!(owner.engine.grant_writer(&mut owner.nic, NUMBER, addr(0), RegionAccess::ALL).is_ok());
    assert!(
        owner.engine.deregister_region(&mut owner.nic, NUMBER, EPOCH),
        "and the next writer's goes with the region"
    );
}

#[test]
fn nothing_of_a_fenced_writer_lands() {
    for seed in 2030..2070 {
        let mut u = far(seed);
        for i in 0..20u64 {
            let s = u.submission(Opcode::Write, 4096 * (1 + i % 8), 2048);
            u.submit(&s, &[7; 2048]);
            u.fetch_add();
        }
        u.w.wake();
        for _ in 0..(seed - 2030) * 10 {
            u.w.step();
        }
        // The owner's daemon asks nobody, and the holder's host does not know.
        let owner = &mut u.w.hosts[1];
        owner.engine.end_leased_lane(u.w.now, &mut owner.nic, at(1), Reason::Superseded);
        owner.engine.fence_region(&mut owner.nic, NUMBER);
        let before = bytes(&u);
        u.w.settle();
        let h = &mut u.w.hosts[0];
        h.engine.lane_lost(u.w.now, &mut h.nic, at(0), Reason::Superseded);
        u.w.settle();
        u.collect();
        assert!(before == bytes(&u), "a late access, seed {seed}");
        assert_eq!(u.ended.len(), 40, "each operation ended");
        let adds = u.ended.iter().filter(|e| e.tag % 2 == 0 && e.status == OperationStatus::Ok).count() as u64;
        let unknown = u.ended.iter().filter(|e| e.status == OperationStatus::OutcomeUnknown).count() as u64;
        assert!((adds..=adds + unknown).contains(&u.word(0)), "{adds} {unknown} {}", u.word(0));
    }
}

#[test]
fn a_writer_of_the_regions_own_host_reaches_it_by_its_queue() {
    let mut u = here(2100);
    assert_eq!(u.write(8, b"12345678").status, OperationStatus::Ok);
    assert_eq!(u.read(8, 8).bytes, b"12345678");
    let added = u.atomic(Opcode::FetchAdd, 64, 5, 0);
    assert_eq!((added.status, added.value, u.word(64)), (OperationStatus::Ok, 0, 5));
    let swapped = u.atomic(Opcode::CompareSwap, 64, 9, 5);
    assert_eq!((swapped.value, u.word(64)), (5, 9));
    assert_eq!(u.posted(), 0, "no verb");
    // The owner is told behind the bytes.
    let notify = u.submission(Opcode::WriteNotify, 0, 8);
    assert_eq!(u.run(&notify, b"notified").status, OperationStatus::Ok);
    assert_eq!(u.read(0, 8).bytes, b"notified");
    // What would be outside of it is refused and changes nothing.
    let before = bytes(&u);
    assert_eq!(u.write(BYTES as u64 - 4, b"12345678").status, OperationStatus::OutOfBounds);
    assert_eq!(u.atomic(Opcode::FetchAdd, 12, 1, 0).status, OperationStatus::Misaligned);
    let stale = Submission { epoch: EPOCH - 1, ..u.submission(Opcode::Write, 0, 8) };
    assert_eq!(u.run(&stale, b"12345678").status, OperationStatus::Revoked);
    assert!(before == bytes(&u));
    // A chain is broken by its first failure here too.
    let chained = Submission { flags: submission_flag::CHAINED, ..u.submission(Opcode::Write, BYTES as u64, 8) };
    u.submit(&chained, b"outside!");
    let behind = u.submission(Opcode::Write, 0, 8);
    assert_eq!(u.run(&behind, b"12345678").status, OperationStatus::ChainBroken);
    assert!(before == bytes(&u));
}

#[test]
fn a_long_write_of_the_own_host_goes_in_slices_and_the_fence_cuts_it() {
    let mut u = here(2110);
    let source = Region::anonymous(BYTES).unwrap();
    source.write(0, &vec![5; BYTES]).unwrap();
    let h = &mut u.w.hosts[0];
    h.engine.attach_local_region(&mut h.nic, u.app, 1, &source, false).unwrap();
    let segment = shm::LocalSegment { region: 1, bytes: BYTES as u32, offset: 0 };
    let whole = Submission { segments: 1, ..u.submission(Opcode::Write, 0, BYTES as u32) };
    assert_eq!(u.run(&whole, &segment.to_bytes()).status, OperationStatus::Ok);
    assert!(bytes(&u) == vec![5; BYTES]);
    // A READ puts nothing into memory that the program only reads.
    let read = Submission { segments: 1, ..u.submission(Opcode::Read, 0, BYTES as u32) };
    assert_eq!(u.run(&read, &segment.to_bytes()).status, OperationStatus::NoLocalRegion);
    source.write(0, &vec![6; BYTES]).unwrap();
    let cut = Submission { segments: 1, ..u.submission(Opcode::Write, 0, BYTES as u32) };
    u.submit(&cut, &segment.to_bytes());
    u.w.hosts[0].engine.end_sleep();
    u.w.wake();
    while bytes(&u)[0] == 5 {
        assert!(u.w.step(), "it begins");
    }
    let h = &mut u.w.hosts[0];
    h.engine.fence_region(&mut h.nic, NUMBER);
    let before = bytes(&u);
    assert!(before.contains(&5), "it is not whole yet");
    let ended = u.wait(cut.tag);
    assert_eq!(ended.status, OperationStatus::OutcomeUnknown);
    assert_eq!(ended.detail, u64::from(Reason::Superseded.code()));
    assert!(before == bytes(&u));
    assert_eq!(u.write(0, b"12345678").status, OperationStatus::NoRegion);
    assert!(u.is_closed());
    // The next writer is another handle of the same region.
    u.handle = write_here(&mut u);
    assert_eq!(u.write(0, b"12345678").status, OperationStatus::Ok);
}

/// One more region of host 1, which the application writes on the same lane.
fn another(u: &mut Use, number: u64) -> (Region, u32) {
    let region = Region::anonymous(BYTES).unwrap();
    let owner = &mut u.w.hosts[1];
    let engine = &mut owner.engine;
    engine.register_region(&mut owner.nic, number, EPOCH, region.clone(), RegionAccess::READ).unwrap();
    assert!(engine.expect_leased_lane(addr(0), LANE));
    let grant = engine.grant_writer(&mut owner.nic, number, addr(0), RegionAccess::ALL).unwrap();
    let h = &mut u.w.hosts[0];
    (region, h.engine.open_region(&mut h.nic, u.app, at(0), grant).unwrap())
}

/// A fence of one region breaks the queue pair if something of it was on its way, and the lane goes on for the others.
#[test]
fn a_fenced_writer_leaves_its_lane_to_the_other_regions() {
    let (mut resets, mut kept) = (0, 0);
    for seed in 2200..2240 {
        let mut u = far(seed);
        let (other, handle) = another(&mut u, NUMBER + 1);
        let fenced = u.handle;
        for i in 0..10u64 {
            for at in [fenced, handle] {
                u.handle = at;
                let s = u.submission(Opcode::Write, 4096 * (1 + i % 8), 2048);
                u.submit(&s, &[7; 2048]);
                u.fetch_add();
            }
        }
        u.handle = fenced;
        let reads: Vec<u64> = (0..5)
            .map(|_| {
                let s = u.submission(Opcode::Read, 8192, 2048);
                u.submit(&s, &[])
            })
            .collect();
        u.w.wake();
        for _ in 0..(seed - 2200) {
            u.w.step();
        }
        let owner = &mut u.w.hosts[1];
        owner.engine.fence_region(&mut owner.nic, NUMBER);
        let before = bytes(&u);
        // The holder hears of it late, and perhaps when its queue pair has broken.
        for _ in 0..(seed % 5) * 2 {
            u.w.step();
        }
        u.w.hosts[0].engine.close_region(u.app, fenced, true);
        u.w.settle();
        if u.w.counter(0, "lane_resets") + u.w.counter(1, "lane_resets") > 0 {
            for (host, at) in [(0, at(0)), (1, at(1))] {
                let h = &mut u.w.hosts[host];
                h.engine.lane_reset(u.w.now, &mut h.nic, at);
            }
            crate::leased::connect_at(&mut u, [at(0), at(1)], LANE);
            resets += 1;
        }
        u.w.settle();
        u.collect();
        assert!(before == bytes(&u), "a late access, seed {seed}");
        assert_eq!(u.ended.len(), 45, "each operation ended, seed {seed}");
        u.ended.retain(|e| !reads.contains(&e.tag));
        assert!(u.w.counter(0, "lane_resets") <= 1, "what is fenced off begins again, seed {seed}");
        let of = |u: &Use, first: u64| {
            let all = u.ended.iter().filter(|e| (e.tag - 1) % 4 / 2 == first);
            let count = |status| all.clone().filter(|e| e.tag % 2 == 0 && e.status == status).count() as u64;
            (count(OperationStatus::Ok), count(OperationStatus::OutcomeUnknown))
        };
        let (adds, unknown) = of(&u, 0);
        assert!((adds..=adds + unknown).contains(&u.word(0)), "{adds} {unknown} {}", u.word(0));
        // Records of the other region are repeated over a reset, and done once.
        let mut word = [0; 8];
        other.read(0, &mut word).unwrap();
        assert_eq!((of(&u, 1).0, u64::from_ne_bytes(word)), (10, 10), "seed {seed}");
        u.handle = handle;
        assert_eq!(u.write(64, b"goes on!").status, OperationStatus::Ok);
        u.handle = fenced;
        assert_eq!(u.write(64, b"too late").status, OperationStatus::NoRegion);
        assert_eq!(u.w.counter(0, "leased_lanes"), 1);
        kept += u64::from(adds < 10);
    }
    assert!(resets > 0 && kept > 0, "the fence met nothing on its way: {resets} resets, {kept} cut short");
}
