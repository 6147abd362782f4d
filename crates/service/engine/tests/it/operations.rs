//! Operations on regions of another host: what they do, what is refused, and what becomes of them when something breaks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Reason, RegionAccess};
use shm::{Class, LocalSegment, Opcode, OperationStatus, Submission, app_flag, submission_flag};
use verbs::Region;

use crate::world::{LinkConditions, QUEUE_NUMBERS, World, addr};
use fixture::{BYTES, EPOCH, NUMBER, Use};

pub(crate) mod fixture;
mod kernels;
mod notices;
mod pins;

#[test]
fn operations_do_what_they_say_and_are_counted() {
    for seed in [700, 701] {
        let mut u = Use::new(seed);
        assert_eq!(u.write(16, b"remote words").status, OperationStatus::Ok);
        assert_eq!(u.verbs(), (0, 1, 0));
        let read = u.read(16, 12);
        assert_eq!((read.status, &read.bytes[..]), (OperationStatus::Ok, &b"remote words"[..]));
        assert_eq!(u.verbs(), (1, 1, 0), "a load is one READ");
        assert_eq!(u.posted(), 2);
        let cases = [
            (Opcode::FetchAdd, 5, 0, 0, 5),
            (Opcode::CompareSwap, 9, 5, 5, 9),
            (Opcode::CompareSwap, 1, 5, 9, 9),
            (Opcode::Swap, 0b1100, 0, 9, 0b1100),
            (Opcode::And, 0b0110, 0, 0b1100, 0b0100),
            (Opcode::Or, 0b0011, 0, 0b0100, 0b0111),
            (Opcode::Xor, 0b0101, 0, 0b0111, 0b0010),
            (Opcode::Max, 40, 0, 2, 40),
            (Opcode::Min, 30, 0, 40, 30),
        ];
        for (opcode, operand, compare, found, left) in cases {
            let ended = u.atomic(opcode, 8, operand, compare);
            assert_eq!((ended.status, ended.value, u.word(8)), (OperationStatus::Ok, found, left), "{opcode:?}");
        }
        assert_eq!(u.verbs(), (1, 1, 9), "an atomic is one operation");
        assert_eq!(u.posted(), 2, "and no READ or WRITE");
        assert_eq!(u.read(64, 0).status, OperationStatus::Ok);
        u.w.assert_clean();
    }
}

#[test]
fn long_operations_go_in_pieces_from_and_to_local_memory() {
    let mut u = Use::new(702);
    let local = Region::anonymous(BYTES).unwrap();
    let pattern: Vec<u8> = (0..400_000u32).map(|i| (i * 7 / 3) as u8).collect();
    local.write(100, &pattern).unwrap();
    let h = &mut u.w.hosts[0];
    h.engine.attach_local_region(&mut h.nic, u.app, 5, &local, true).unwrap();
    let segments = [(100, 150_000), (150_100, 1), (150_101, 249_999)];
    let list = |segments: &[(u64, u32)]| -> Vec<u8> {
        segments.iter().flat_map(|&(offset, bytes)| LocalSegment { region: 5, bytes, offset }.to_bytes()).collect()
    };
    let s = Submission { segments: 3, ..u.submission(Opcode::Write, 1000, 400_000) };
    assert_eq!(u.run(&s, &list(&segments)).status, OperationStatus::Ok);
    let mut there = vec![0; pattern.len()];
    u.region.read(1000, &mut there).unwrap();
    assert!(there == pattern, "the bytes of all segments, in order");
    let s = Submission { segments: 2, ..u.submission(Opcode::Read, 1000, 400_000) };
    assert_eq!(u.run(&s, &list(&[(500_000, 300_000), (0, 100_000)])).status, OperationStatus::Ok);
    let mut back = vec![0; pattern.len()];
    local.read(500_000, &mut back[..300_000]).unwrap();
    local.read(0, &mut back[300_000..]).unwrap();
    assert!(back == pattern);
    assert!(u.posted() >= 14, "pieces are bounded");
    // Beyond the local region, another one, another sum.
    for (segments, bytes) in [([(BYTES as u64, 8)], 8), ([(0, 9)], 8)] {
        let s = Submission { segments: 1, ..u.submission(Opcode::Write, 0, bytes) };
        assert_eq!(u.run(&s, &list(&segments)).status, OperationStatus::NoLocalRegion);
    }
    // What the program may only read is written from, and nothing is read into it.
    let shown = Region::anonymous(4096).unwrap();
    shown.write(0, b"to be seen").unwrap();
    let h = &mut u.w.hosts[0];
    h.engine.attach_local_region(&mut h.nic, u.app, 6, &shown, false).unwrap();
    let segment = LocalSegment { region: 6, bytes: 10, offset: 0 }.to_bytes();
    let s = Submission { segments: 1, ..u.submission(Opcode::Write, 8, 10) };
    assert_eq!(u.run(&s, &segment).status, OperationStatus::Ok);
    assert_eq!(u.read(8, 10).bytes, b"to be seen");
    let s = Submission { segments: 1, ..u.submission(Opcode::Read, 0, 10) };
    assert_eq!(u.run(&s, &segment).status, OperationStatus::NoLocalRegion);
    u.w.hosts[0].engine.detach_local_region(u.app, 6);
    u.w.settle();
    let before = u.w.hosts[0].mrs();
    u.w.hosts[0].engine.detach_local_region(u.app, 5);
    u.w.settle();
    assert_eq!(u.w.hosts[0].mrs(), before - 1);
    u.w.assert_clean();
}

#[test]
fn what_the_region_does_not_allow_is_refused_and_never_posted() {
    let mut u = Use::of(World::new(2, 703), RegionAccess::READ);
    let base = u.submission(Opcode::Read, 0, 8);
    let end = BYTES as u64;
    let cases = [
        (Submission { region: u.handle ^ 1, ..base }, OperationStatus::NoRegion, 0),
        (Submission { epoch: EPOCH + 1, ..base }, OperationStatus::Revoked, EPOCH),
        (Submission { offset: end - 7, ..base }, OperationStatus::OutOfBounds, end),
        (Submission { offset: u64::MAX, ..base }, OperationStatus::OutOfBounds, end),
        (Submission { opcode: Opcode::Write, ..base }, OperationStatus::Access, 1),
        (Submission { opcode: Opcode::Swap, ..base }, OperationStatus::Access, 1),
        (Submission { class: Class::Persistent, ..base }, OperationStatus::NoPersistence, 0),
    ];
    for (s, status, detail) in cases {
        u.tags += 1;
        let s = Submission { tag: u.tags, ..s };
        let ended = u.run(&s, &vec![0; s.inline_bytes() as usize]);
        assert_eq!((ended.status, ended.detail), (status, detail), "{s:?}");
    }
    let mut all = Use::new(704);
    let ended = all.atomic(Opcode::FetchAdd, 4, 1, 0);
    assert_eq!(ended.status, OperationStatus::Misaligned);
    for u in [&u, &all] {
        assert_eq!((u.posted(), u.verbs()), (0, (0, 0, 0)));
        assert_eq!(u.w.hosts[0].wanted.len(), 0, "not even a lane was wished for");
        u.w.assert_clean();
    }
}

#[test]
fn chains_with_fences_go_in_order_and_end_where_they_fail() {
    let mut u = Use::new(705);
    u.region.write(0, &9u64.to_le_bytes()).unwrap();
    let (chained, fence) = (submission_flag::CHAINED, submission_flag::FENCE);
    let read = Submission { flags: chained, ..u.submission(Opcode::Read, 0, 8) };
    let write = Submission { flags: chained | fence, ..u.submission(Opcode::Write, 64, 4) };
    let swap = Submission { flags: fence, operand: 10, compare: 9, ..u.submission(Opcode::CompareSwap, 0, 8) };
    u.submit(&read, &[]);
    u.submit(&write, b"body\0\0\0\0");
    let last = u.run(&swap, &[]);
    assert_eq!((last.status, last.value, u.word(0)), (OperationStatus::Ok, 9, 10));
    assert_eq!(u.ended.iter().map(|e| e.tag).collect::<Vec<_>>(), [read.tag, write.tag, swap.tag]);
    // The second of three is out of bounds: the third is not done, what follows the chain is.
    let first = Submission { flags: chained, operand: 1, ..u.submission(Opcode::FetchAdd, 8, 8) };
    let second = Submission { flags: chained, ..u.submission(Opcode::Read, BYTES as u64, 8) };
    let third = Submission { operand: 1, ..u.submission(Opcode::FetchAdd, 8, 8) };
    let fourth = Submission { operand: 1, ..u.submission(Opcode::FetchAdd, 8, 8) };
    for s in [first, second, third] {
        u.submit(&s, &[]);
    }
    assert_eq!(u.run(&fourth, &[]).status, OperationStatus::Ok);
    let status = |u: &mut Use, s: &Submission| u.wait(s.tag).status;
    assert_eq!(status(&mut u, &first), OperationStatus::Ok);
    assert_eq!(status(&mut u, &second), OperationStatus::OutOfBounds);
    assert_eq!(status(&mut u, &third), OperationStatus::ChainBroken);
    assert_eq!(u.word(8), 2);
    u.w.assert_clean();
}

/// Many atomics while queue pairs break at both ends, at different moments: each is done once, and says so once.
#[test]
fn atomics_are_done_exactly_once_across_resets() {
    const COUNT: u64 = 600;
    for seed in 710..716 {
        let mut u = Use::new(seed);
        u.w.conditions.loss = if seed % 3 == 0 { 30 } else { 0 };
        u.w.wake();
        let (mut submitted, mut broken, mut steps) = (0, 0, 0);
        while (u.ended.len() as u64) < COUNT {
            while submitted < COUNT && submitted < u.ended.len() as u64 + 100 {
                u.fetch_add();
                submitted += 1;
            }
            u.w.wake();
            u.collect();
            steps += 1;
            assert!(steps < 3_000_000, "{} of {COUNT}: {:?}", u.ended.len(), u.w.hosts[0].engine.totals());
            if broken < 10 && u.ended.len() as u64 > broken * 40 + seed % 7 && steps % 3 == 0 {
                u.break_lane((broken + seed) as usize % 2);
                broken += 1;
            }
            u.w.step();
        }
        assert!(u.w.counter(0, "lane_resets") > 2, "{broken} breaks");
        assert_eq!(u.word(0), COUNT);
        let mut values: Vec<u64> = u.ended.iter().map(|e| e.value).collect();
        values.sort_unstable();
        assert_eq!(values, (0..COUNT).collect::<Vec<_>>(), "each found another number");
        assert!(u.ended.iter().all(|e| e.status == OperationStatus::Ok));
        assert_eq!(u.verbs(), (0, 0, COUNT));
        assert_eq!((u.w.hosts[0].lane_failures.len(), u.w.counter(0, "violations")), (0, 0));
        assert_eq!(u.w.counter(1, "operations_executed"), COUNT);
    }
}

/// READs are read again, WRITEs end in order or with an unknown outcome; nothing hangs.
#[test]
fn reads_and_writes_end_across_resets() {
    let mut unknown = 0;
    for seed in 720..728 {
        let mut u = Use::new(seed);
        u.read(0, 8);
        for i in 0..40u64 {
            let read = u.submission(Opcode::Read, i * 8, 4096);
            u.submit(&read, &[]);
            let write = u.submission(Opcode::Write, 65536 + i * 8, 8);
            u.submit(&write, &(i + 1).to_le_bytes());
        }
        u.w.wake();
        for _ in 0..seed % 7 * 40 {
            u.w.step();
        }
        u.break_lane(seed as usize % 2);
        let last = u.fetch_add();
        u.w.wake();
        u.wait(last);
        u.w.settle();
        u.collect();
        assert_eq!(u.ended.len(), 82, "all ended");
        for e in &u.ended {
            let is_write = e.tag > 1 && e.tag < last && e.tag % 2 == 1;
            match e.status {
                OperationStatus::Ok if is_write => assert_eq!(u.word(65536 + (e.tag / 2 - 1) * 8), e.tag / 2),
                OperationStatus::Ok => {}
                OperationStatus::OutcomeUnknown if is_write => unknown += 1,
                other => panic!("operation {} ended with {other:?}", e.tag),
            }
        }
        assert_eq!(u.w.hosts[0].lane_failures.len(), 0);
    }
    assert!(unknown > 0, "no reset met a WRITE");
}

/// An addition behind a WRITE in a chain is not done without it, at whichever moment the queue pair breaks.
#[test]
fn what_is_behind_a_write_is_not_done_without_it_across_resets() {
    const CHAINS: u64 = 30;
    let (mut unknown, mut broken) = (0, 0);
    for seed in 730..760 {
        let mut u = Use::new(seed);
        u.read(0, 8);
        u.ended.clear();
        for i in 0..CHAINS {
            let write = u.submission(Opcode::Write, 65536 + i * 8, 8);
            u.submit(&Submission { flags: submission_flag::CHAINED, ..write }, &(i + 1).to_le_bytes());
            let add = Submission { operand: 1, ..u.submission(Opcode::FetchAdd, 8192 + i * 8, 8) };
            u.submit(&add, &[]);
        }
        u.w.wake();
        for _ in 0..seed % 30 * 12 {
            u.w.step();
        }
        u.break_lane(seed as usize % 2);
        let last = u.fetch_add();
        u.w.wake();
        u.wait(last);
        u.w.settle();
        u.collect();
        for i in 0..CHAINS {
            let (written, added) = (u.word(65536 + i * 8), u.word(8192 + i * 8));
            assert!(added <= 1 && (added == 0 || written == i + 1), "seed {seed}, chain {i}: {written}, {added}");
        }
        let of = |status| u.ended.iter().filter(|e| e.status == status).count();
        unknown += of(OperationStatus::OutcomeUnknown);
        broken += of(OperationStatus::ChainBroken);
        assert_eq!(u.ended.len() as u64, 2 * CHAINS + 1, "all ended");
        assert_eq!(u.w.hosts[0].lane_failures.len(), 0);
    }
    assert!(unknown > 0 && broken > 0, "no reset came between a WRITE and what is behind it: {unknown}, {broken}");
}

#[test]
fn a_revoked_region_is_left_alone_before_it_is_said() {
    for seed in 730..738 {
        let mut u = Use::new(seed);
        u.read(0, 8);
        for i in 0..60u64 {
            match i % 3 {
                0 => _ = u.fetch_add(),
                1 => {
                    let s = u.submission(Opcode::Read, i * 64, 4096);
                    u.submit(&s, &[]);
                }
                _ => {
                    let s = u.submission(Opcode::Write, 4096 + i * 8, 8);
                    u.submit(&s, &i.to_le_bytes());
                }
            }
        }
        u.w.wake();
        for _ in 0..(seed - 730) * 25 {
            u.w.step();
        }
        if seed % 4 == 3 {
            u.break_lane(0);
        }
        u.w.hosts[0].engine.stop_region(addr(1), NUMBER, EPOCH);
        u.w.wake();
        for _ in 0..1_000_000 {
            if u.is_stopped() {
                break;
            }
            u.collect();
            u.w.step();
        }
        assert!(u.is_stopped(), "{:?}", u.w.hosts[0].engine.totals());
        // Nothing of an older access lands from here on.
        let mut before = vec![0; BYTES];
        u.region.read(0, &mut before).unwrap();
        u.w.hosts[1].engine.ungrant_region(NUMBER, addr(0));
        let owner = &mut u.w.hosts[1];
        assert!(owner.engine.deregister_region(&mut owner.nic, NUMBER, EPOCH));
        assert!(!owner.engine.deregister_region(&mut owner.nic, NUMBER, EPOCH));
        assert_eq!(u.read(0, 8).status, OperationStatus::Revoked);
        u.w.settle();
        u.collect();
        let mut after = vec![0; BYTES];
        u.region.read(0, &mut after).unwrap();
        assert!(before == after, "a late access");
        assert_eq!(u.ended.len(), 62);
        let adds = u.ended.iter().filter(|e| e.status == OperationStatus::Ok && e.tag % 3 == 2).count() as u64;
        assert_eq!(u.word(0), adds, "atomics that were not revoked were done");
        if seed % 4 != 3 {
            assert_eq!(u.w.counter(0, "lane_resets"), 0, "no access error");
        }
        assert_eq!(u.w.hosts[0].lane_failures.len() + u.w.hosts[1].lane_failures.len(), 0);
    }
}

#[test]
fn a_lost_link_ends_operations_and_handles() {
    let mut u = Use::new(740);
    u.read(0, 8);
    let tags: Vec<_> = (0..10).map(|_| u.fetch_add()).collect();
    u.w.wake();
    u.w.step();
    let h = &mut u.w.hosts[0];
    h.engine.lane_lost(u.w.now, &mut h.nic, addr(1), Reason::PeerLost);
    u.w.wake();
    for tag in tags {
        let ended = u.wait(tag);
        let expected = [OperationStatus::OutcomeUnknown, OperationStatus::PeerLost, OperationStatus::Ok];
        assert!(expected.contains(&ended.status), "{ended:?}");
    }
    let ended = u.read(0, 8);
    assert_eq!((ended.status, ended.detail), (OperationStatus::PeerLost, Reason::PeerLost.code().into()));
    u.w.hosts[0].engine.close_region(u.app, u.handle, false);
    u.w.settle();
    assert!(u.is_closed());
    assert_eq!(u.read(0, 8).status, OperationStatus::NoRegion);
}

#[test]
fn an_application_that_dies_or_closes_leaves_nothing() {
    for dies in [true, false] {
        let mut u = Use::new(750 + u64::from(dies));
        let local = Region::anonymous(BYTES).unwrap();
        let h = &mut u.w.hosts[0];
        h.engine.attach_local_region(&mut h.nic, u.app, 1, &local, true).unwrap();
        u.read(0, 8);
        for i in 0..20 {
            let segment = LocalSegment { region: 1, bytes: 50_000, offset: i * 1000 }.to_bytes();
            let opcode = if i % 2 == 0 { Opcode::Write } else { Opcode::Read };
            let s = Submission { segments: 1, ..u.submission(opcode, 0, 50_000) };
            u.submit(&s, &segment);
            u.fetch_add();
        }
        u.w.wake();
        u.w.step();
        let app = u.app;
        if dies {
            u.w.kill(0, app);
            u.w.until("memory free", |w| w.hosts[0].gone == [app]);
        } else {
            let slot = u.slot;
            u.w.app(0, app).sockets[&slot].words.app_flags.fetch_or(app_flag::CLOSED, Ordering::Release);
            u.w.app(0, app).poke(slot);
            u.w.hosts[0].engine.close_region(app, u.handle, false);
        }
        u.w.until("the queue is over", |w| w.hosts[0].queues_over == [QUEUE_NUMBERS + 1]);
        u.w.settle();
        assert!(u.is_closed());
        assert_eq!(u.w.counter(0, "operations_in_flight"), 0);
        assert_eq!((u.w.counter(0, "lane_resets"), u.w.counter(1, "lane_resets")), (0, 0));
        u.w.assert_clean();
    }
}

#[test]
fn an_answer_for_a_queue_that_was_closed_meanwhile_harms_nobody() {
    for steps in 0..60 {
        let mut u = Use::new(900 + steps);
        u.read(0, 8);
        // So that the device hears late that bytes arrived.
        u.w.conditions = LinkConditions { loss: 200, duplicate: 0, reorder: 0 };
        for _ in 0..8 {
            let s = Submission { notify: 9, ..u.submission(Opcode::WriteNotify, 0, 2000) };
            u.submit(&s, &[7; 2000]);
            u.fetch_add();
        }
        u.w.wake();
        for _ in 0..steps * 4 {
            u.w.step();
        }
        let (app, slot) = (u.app, u.slot);
        u.w.app(0, app).sockets[&slot].words.app_flags.fetch_or(app_flag::CLOSED, Ordering::Release);
        u.w.app(0, app).poke(slot);
        u.w.pass(Duration::from_secs(5));
        assert_eq!(u.w.hosts[0].queues_over, [QUEUE_NUMBERS + 1], "{steps}");
        let failures: Vec<_> = u.w.hosts.iter().flat_map(|h| h.lane_failures.clone()).collect();
        assert_eq!((failures, u.w.counter(0, "operations_in_flight")), (Vec::new(), 0), "{steps}");
    }
}

#[test]
fn an_application_that_writes_no_submissions_is_detached_alone() {
    let scribbles: [fn(&mut [u8; 64]); 3] = [|b| b[8] = 12, |b| b[60] = 1, |b| (b[8], b[11]) = (2, 9)];
    for (i, scribble) in scribbles.into_iter().enumerate() {
        let mut u = Use::new(760 + i as u64);
        let (good_a, good_b) = (u.w.attach(0, 64), u.w.attach(1, 64));
        let (ga, gb) = u.w.pair(good_a, good_b, 8, 8192);
        u.w.tell(0, good_a, ga, |c| c.to_send = 300_000);
        let mut bytes = u.submission(Opcode::Read, 0, 8).to_bytes();
        scribble(&mut bytes);
        let (app, slot) = (u.app, u.slot);
        let socket = u.w.app(0, app).sockets.get_mut(&slot).unwrap();
        assert_eq!(socket.writer.write(&bytes).unwrap(), 64);
        u.w.app(0, app).poke(slot);
        u.w.until("fault", |w| !w.hosts[0].faults.is_empty());
        assert_eq!(u.w.hosts[0].faults[0].0, app);
        u.w.until("memory free", |w| w.hosts[0].gone == [app]);
        u.w.until("others go on", |w| w.app(1, good_b).conns[&gb].received == 300_000);
        assert_eq!(u.w.counter(0, "operations_in_flight"), 0);
        assert!(u.w.hosts[0].lane_resets.is_empty() && u.w.hosts[0].lane_failures.is_empty());
    }
}

#[test]
fn a_lane_with_operations_does_not_rest_and_wakes_for_them() {
    let rest = Duration::from_secs(5);
    let w = World::with(2, 770, |c| c.engine.lane_rest_after = Some(rest));
    let mut u = Use::of(w, RegionAccess::ALL);
    assert_eq!(u.write(0, b"before").status, OperationStatus::Ok);
    u.w.pass(rest * 3);
    assert!(u.w.counter(0, "lane_rests") >= 1, "nothing was used");
    for _ in 0..3 {
        let ended = u.read(0, 6);
        assert_eq!((ended.status, &ended.bytes[..]), (OperationStatus::Ok, &b"before"[..]));
        assert_eq!(u.atomic(Opcode::Swap, 8, 1, 0).status, OperationStatus::Ok);
        u.w.pass(rest * 3);
    }
    u.w.assert_clean();
}

/// What READs and WRITEs of regions do is not seen at the region's end, which must not take the lane for an unused one.
#[test]
fn a_lane_that_only_operations_of_one_end_use_stays_up() {
    let rest = Duration::from_secs(5);
    let w = World::with(2, 771, |c| c.engine.lane_rest_after = Some(rest));
    let mut u = Use::of(w, RegionAccess::ALL);
    for _ in 0..40 {
        assert_eq!(u.write(0, b"again").status, OperationStatus::Ok);
        assert_eq!(u.read(0, 5).bytes, b"again");
        u.w.pass(rest / 5);
    }
    let used = |w: &World| [0, 1].map(|host| w.counter(host, "lane_rests") + w.counter(host, "lane_resets"));
    assert_eq!(used(&u.w), [0, 0]);
    u.w.pass(rest * 3);
    assert_eq!([0, 1].map(|host| u.w.counter(host, "lane_rests")), [1, 1], "nothing was used");
    u.w.assert_clean();
}

#[test]
fn operations_share_a_lane_with_streams() {
    let mut u = Use::new(780);
    let (a, b) = (u.w.attach(0, 64), u.w.attach(1, 64));
    let (sa, sb) = u.w.pair(a, b, 8, 65536);
    u.w.tell(0, a, sa, |c| c.to_send = 3_000_000);
    let local = Region::anonymous(BYTES).unwrap();
    let h = &mut u.w.hosts[0];
    h.engine.attach_local_region(&mut h.nic, u.app, 1, &local, true).unwrap();
    let segment = LocalSegment { region: 1, bytes: BYTES as u32, offset: 0 }.to_bytes();
    let mut tags = Vec::new();
    for opcode in [Opcode::Write, Opcode::Read, Opcode::Write] {
        let s = Submission { segments: 1, ..u.submission(opcode, 0, BYTES as u32) };
        tags.push(u.submit(&s, &segment));
    }
    u.w.wake();
    let last = *tags.last().unwrap();
    let status = u.wait(last).status;
    let failures = |w: &World| w.hosts.iter().flat_map(|h| h.lane_failures.clone()).collect::<Vec<_>>();
    assert_eq!((status, failures(&u.w)), (OperationStatus::Ok, Vec::new()));
    let carried = u.w.app(1, b).conns[&sb].received;
    assert!(carried >= 65536, "the stream had {carried} bytes of turns meanwhile");
    u.w.until("the stream goes on", |w| w.app(1, b).conns[&sb].received == 3_000_000);
    u.w.assert_clean();
}
