//! Lost answers: requests come again and are answered again, but executed once.

use crate::pair::*;
use verbs::*;

const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const ACK: u8 = 0x11;
const ATOMIC_ACK: u8 = 0x12;

/// Drops the first `n` packets of side 1 with this opcode.
fn lose(world: &mut World, opcode: u8, mut n: usize) {
    world.filter = Some(Box::new(move |seen| {
        let lost = seen.from == 1 && seen.opcode() == opcode && n > 0;
        n -= usize::from(lost);
        !lost
    }));
}

#[test]
fn atomics_run_once() {
    for n in 1..4 {
        let mut world = World::new(Setup::default());
        let [a, b] = connect(&mut world);
        lose(&mut world, ATOMIC_ACK, n);
        for i in 0..3 {
            a.send(&mut world, i, SendOp::FetchAdd { remote: b.remote(0), add: 1 }, 8 * i, 8);
        }
        assert!(a.wait(&mut world, 3).iter().all(|c| c.status == Status::Success));
        assert_eq!(b.read(0, 8), 3u64.to_ne_bytes());
        for i in 0..3 {
            assert_eq!(a.read(8 * i, 8), i.to_ne_bytes(), "{n} lost");
        }
        let counters = world.nics[1].counters_detail();
        assert_eq!(counters.served_atomic, 3);
        assert!(counters.duplicates >= 1);
    }
}

#[test]
fn a_swap_that_succeeded_says_so_again() {
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    lose(&mut world, ATOMIC_ACK, 2);
    a.send(&mut world, 1, SendOp::CmpSwap { remote: b.remote(0), compare: 0, swap: 5 }, 0, 8);
    a.wait_ok(&mut world);
    assert_eq!((a.read(0, 8), b.read(0, 8)), (0u64.to_ne_bytes().to_vec(), 5u64.to_ne_bytes().to_vec()));
}

/// A READ's request that was repeated too early may arrive when its answer has come, and the memory was withdrawn after
/// that. It costs nobody the queue pair.
#[test]
fn a_late_duplicate_of_a_read_finds_the_memory_gone() {
    let mut world = World::new(Setup::default());
    world.record = true;
    let [a, b] = connect(&mut world);
    b.fill(0, 5_000, 3);
    a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 5_000);
    a.wait_ok(&mut world);
    let request = world.seen.iter().find(|s| s.from == 0 && s.opcode() == 0x0c).expect("it was asked");
    let bytes = request.bytes.clone();
    world.nics[1].dereg_mr(b.mr.id).expect("registered");
    world.inject(1, 0, bytes);
    world.settle();
    assert_eq!(b.state(&world), QpState::Rts);
    let counters = world.nics[1].counters_detail();
    assert_eq!((counters.duplicates, counters.drop_stale_duplicate, counters.naks_sent), (1, 1, 0));
}

#[test]
fn reads_are_answered_again_from_where_they_broke() {
    for (opcode, n) in [(READ_FIRST, 1), (READ_MIDDLE, 1), (READ_MIDDLE, 5), (READ_LAST, 1), (READ_LAST, 2)] {
        let mut world = World::new(Setup::default());
        world.record = true;
        let [a, b] = connect(&mut world);
        let data = b.fill(0, 20_000, 3);
        lose(&mut world, opcode, n);
        a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 20_000);
        a.send(&mut world, 2, SendOp::FetchAdd { remote: b.remote(1 << 19), add: 1 }, 1 << 19, 8);
        assert!(a.wait(&mut world, 2).iter().all(|c| c.status == Status::Success));
        assert!(a.read(0, 20_000) == data, "{opcode:#x}");
        let counters = world.nics[1].counters_detail();
        assert_eq!((counters.served_read, counters.served_atomic), (1, 1));
        let again = world.seen.iter().filter(|s| s.from == 0 && s.opcode() == 0x0c).nth(1).expect("asked again");
        // RETH: address and length start where the answer broke.
        let skipped = u64::from(again.psn().wrapping_sub(0xff_fff0) & 0xff_ffff) * 1024;
        assert_eq!(again.bytes[12..20], skipped.to_be_bytes());
        assert_eq!(again.bytes[24..28], (20_000 - skipped as u32).to_be_bytes());
    }
}

#[test]
fn an_answer_implies_what_came_before_it() {
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    lose(&mut world, ACK, 1000);
    for i in 0..10 {
        a.send(&mut world, i, SendOp::Write(b.remote(0)), 0, 100);
    }
    a.send(&mut world, 10, SendOp::Read(b.remote(0)), 0, 10);
    let done = a.wait(&mut world, 11);
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..11).collect::<Vec<_>>());
    assert_eq!(world.nics[0].counters_detail().retransmits, 0);
}

#[test]
fn writes_and_sends_are_acknowledged_again() {
    let mut world = World::new(Setup::default());
    let [a, b] = connect(&mut world);
    lose(&mut world, ACK, 2);
    b.recv(&mut world, 1, 0, 100);
    b.recv(&mut world, 2, 0, 100);
    a.send(&mut world, 1, SendOp::Send, 0, 100);
    a.wait_ok(&mut world);
    a.send(&mut world, 2, SendOp::WriteImm(b.remote(0), 4), 0, 100);
    a.wait_ok(&mut world);
    assert_eq!(b.poll(&mut world).len(), 2, "no receive was taken twice");
    assert!(world.nics[1].counters_detail().duplicates >= 1);
}

#[test]
fn a_long_read_keeps_the_window_and_its_pieces() {
    let limits = roce::NicLimits { window_packets: 32, ..Default::default() };
    for seed in 0..10 {
        let conditions = LinkConditions { loss: 20, ..LinkConditions::CALM };
        let mut world = World::new(Setup { seed, conditions, limits: limits.clone(), ..Setup::default() });
        world.record = true;
        let wish = Wish { timeout: 10, rd_atomic: 2, ..Wish::default() };
        let [a, b] = connect_with(&mut world, [&wish, &wish]);
        let data = b.fill(0, 900_000, seed);
        a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 900_000);
        a.send(&mut world, 2, SendOp::Read(b.remote(5)), 900_000, 50_000);
        assert!(a.wait(&mut world, 2).iter().all(|c| c.status == Status::Success));
        assert!(a.read(0, 900_000) == data && a.read(900_000, 50_000) == data[5..50_005], "seed {seed}");
        for request in world.seen.iter().filter(|s| s.from == 0 && s.opcode() == 0x0c) {
            let len = u32::from_be_bytes(request.bytes[24..28].try_into().expect("4 bytes"));
            assert!(len <= 32 * 1024, "{len} bytes asked for at once");
        }
        assert_eq!(world.nics[1].counters_detail().drop_stale_duplicate, 0, "seed {seed}");
    }
}

#[test]
fn outstanding_reads_keep_to_the_limit() {
    let mut world = World::new(Setup::default());
    world.record = true;
    let wish = Wish { rd_atomic: 2, ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    for i in 0..20 {
        a.send(&mut world, i, SendOp::Read(b.remote(0)), 0, 100);
    }
    a.wait(&mut world, 20);
    let (mut outstanding, mut most) = (0i32, 0);
    for seen in &world.seen {
        outstanding += if seen.from == 0 { 1 } else { -1 };
        most = most.max(outstanding);
    }
    assert_eq!(most, 2);
}
