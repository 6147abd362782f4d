//! Selective repeat between two of our own, judged packet by packet and under loss.

use std::time::Duration;

use roce::wire::*;
use verbs::*;

use crate::script::Script;

/// PSN and report of each selective acknowledgement that the NIC sends now; other packets by their PSN alone.
fn reports(s: &mut Script) -> Vec<(u32, Option<Vec<u8>>)> {
    let packets = s.packets();
    let told = |bytes: &Vec<u8>| {
        let bth = Bth::parse(bytes.first_chunk().expect("a BTH"));
        let is_report = bth.opcode == Opcode::SelectiveAcknowledge.byte();
        let payload = bytes[16..bytes.len() - 4 - usize::from(bth.pad)].to_vec();
        (bth.psn.get(), is_report.then_some(payload))
    };
    packets.iter().map(told).collect()
}

/// Delivers a report of the peer: all through `psn`, and these numbers behind it.
fn report(s: &mut Script, psn: u32, numbers: &[u8]) {
    let bth = Bth { pad: pad_field(numbers.len()), ..s.bth(Opcode::SelectiveAcknowledge, psn, false) };
    let aeth = Aeth { syndrome: Syndrome::Ack(31), msn: 0 };
    s.deliver(Header::new(&bth).with_aeth(aeth), &[numbers, &[0; 3][..pad_bytes(numbers.len())]].concat());
}

#[test]
fn early_packets_are_kept_and_reported_and_executed_in_their_turn() {
    let mut s = Script::towards_our_own(32);
    let place = |s: &mut Script, psn: u32, addr: u64, byte: u8| {
        let reth = Reth { addr, rkey: s.mr.rkey, dma_len: 4 };
        s.deliver(Header::new(&s.bth(Opcode::WriteOnly, psn, false)).with_reth(reth), &[byte; 4]);
    };
    place(&mut s, 101, 0, 1);
    assert_eq!(reports(&mut s), [(99, Some(vec![2, 0, 1, 1]))], "100 is missing, 101 is kept");
    place(&mut s, 102, 0, 2);
    place(&mut s, 103, 4, 3);
    assert_eq!(reports(&mut s), [(99, Some(vec![4, 0, 1, 3]))], "three are enough for a loss");
    place(&mut s, 104, 8, 4);
    assert_eq!(reports(&mut s), []);
    place(&mut s, 107, 12, 5);
    assert_eq!(reports(&mut s), [(99, Some(vec![8, 0, 1, 4, 2, 1]))]);
    let mut memory = [0; 16];
    s.region.read(0, &mut memory).expect("inside");
    assert_eq!(memory, [0; 16], "nothing is placed before its turn");
    place(&mut s, 100, 0, 9);
    assert_eq!(reports(&mut s), [(104, Some(vec![3, 0, 2, 1]))]);
    s.region.read(0, &mut memory).expect("inside");
    assert_eq!(memory, [2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 0, 0, 0, 0], "in order");
    // A copy of what was executed is answered with what is kept.
    s.write(103, true);
    assert_eq!(reports(&mut s), [(104, Some(vec![3, 0, 2, 1]))]);
    place(&mut s, 106, 12, 6);
    place(&mut s, 105, 12, 7);
    assert_eq!(reports(&mut s), [(107, None)], "nothing is missing");
    let counters = s.nic.counters_detail();
    assert_eq!((counters.held, counters.naks_sent, counters.drop_out_of_order), (6, 0, 0));
    s.region.read(12, &mut memory[..4]).expect("inside");
    assert_eq!(memory[..4], [5; 4]);
}

#[test]
fn reads_and_atomics_are_not_kept() {
    let mut s = Script::towards_our_own(32);
    s.read(101, 0, 8);
    s.add(102);
    assert_eq!(reports(&mut s), [(99, None)], "they ask, and nothing is kept");
    s.write(103, false);
    s.write(100, false);
    assert_eq!(reports(&mut s), [(100, Some(vec![3, 0, 2, 1]))]);
    s.read(101, 0, 8);
    s.add(102);
    assert_eq!(s.psns(), [101, 102, 103], "two answers, and one acknowledgement");
    assert_eq!(s.nic.counters_detail().served_atomic, 1);
}

#[test]
fn a_receive_that_is_missing_in_the_middle_is_asked_for() {
    let mut s = Script::towards_our_own(32);
    s.deliver(Header::new(&s.bth(Opcode::SendOnly, 101, true)), &[1; 8]);
    s.write(102, true);
    s.psns();
    s.write(100, true);
    let rnr = Syndrome::RnrNak(10);
    assert_eq!(s.lines(), [(Opcode::Acknowledge, 101, Some(Aeth { syndrome: rnr, msn: 1 }))]);
    let sges = [Sge { addr: 0, len: 64, lkey: s.mr.lkey }];
    s.nic.post_recv(s.qpn, &[RecvWr { wr_id: 4, sges: &sges }]).expect("posted");
    s.deliver(Header::new(&s.bth(Opcode::SendOnly, 101, true)), &[1; 8]);
    assert_eq!(s.psns(), [102], "with what was kept");
    assert_eq!(s.statuses(), [Status::Success]);
}

#[test]
fn only_what_was_lost_is_sent_again() {
    let mut s = Script::towards_our_own(32);
    (0..8).for_each(|_| s.post(SendOp::Write(s.remote()), 8));
    assert_eq!(s.psns(), (200..208).collect::<Vec<_>>());
    report(&mut s, 199, &[3, 0, 1, 2]);
    assert_eq!(s.psns(), [], "two may have overtaken it");
    report(&mut s, 199, &[7, 0, 1, 2, 1, 3]);
    assert_eq!(s.psns(), [200, 203]);
    report(&mut s, 199, &[7, 0, 1, 2, 1, 3]);
    assert_eq!(s.psns(), [], "once");
    // New packets arrive and the two do not: they were lost again.
    (0..4).for_each(|_| s.post(SendOp::Write(s.remote()), 8));
    assert_eq!(s.psns(), (208..212).collect::<Vec<_>>());
    report(&mut s, 199, &[12, 0, 1, 2, 1, 8]);
    assert_eq!(s.psns(), [200, 203]);
    s.acknowledge(211, Syndrome::Ack(31));
    s.wait(Duration::from_secs(1));
    let counters = s.nic.counters_detail();
    assert_eq!((counters.retransmits, counters.selective_losses, counters.timeouts), (4, 4, 0));
    assert_eq!(s.psns(), []);
}

#[test]
fn a_silence_sends_what_is_in_doubt() {
    let mut s = Script::towards_our_own(32);
    (0..5).for_each(|_| s.post(SendOp::Write(s.remote()), 8));
    assert_eq!(s.psns().len(), 5);
    report(&mut s, 200, &[3, 0, 2, 1]);
    assert_eq!(s.psns(), []);
    s.wait(Duration::from_millis(20));
    assert_eq!(s.psns(), [201, 202], "before what arrived");
    s.wait(Duration::from_millis(100));
    assert_eq!(s.psns(), [201, 202, 204], "the timeout");
    s.acknowledge(204, Syndrome::Ack(31));
    s.wait(Duration::from_secs(1));
    assert_eq!(s.psns(), []);
}

/// Reports that no software NIC sends cost their sender its own progress at most.
#[test]
fn false_reports_do_no_harm() {
    let reports: [(u32, &[u8]); 8] = [
        (199, &[]),
        (199, &[0x80, 0x80, 0x80, 0x80]),
        (199, &[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
        (199, &[0, 0, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
        (199, &[0, 0, 0, 0, 0, 0]),
        (150, &[9, 0, 1, 100]),
        (300, &[9, 0, 1, 3]),
        (203, &[9, 0, 1, 3]),
    ];
    for (psn, numbers) in reports {
        let mut s = Script::towards_our_own(32);
        (0..4).for_each(|_| s.post_with(SendOp::Write(s.remote()), 8, SendFlags::SIGNALED));
        s.psns();
        report(&mut s, psn, numbers);
        let done = s.statuses().len();
        assert_eq!(done, if psn == 203 { 4 } else { 0 }, "{psn} {numbers:?}");
        let mut sent = s.psns();
        for _ in 0..20 {
            s.wait(Duration::from_millis(70));
            sent.extend(s.psns());
        }
        let ends = s.statuses();
        if psn == 203 {
            assert!(ends.is_empty());
        } else {
            assert_eq!(ends, [Status::RetryExcErr, Status::WrFlushErr, Status::WrFlushErr, Status::WrFlushErr]);
        }
    }
}

#[test]
fn a_storm_takes_nothing_and_repeats_little() {
    use crate::pair::*;
    for seed in 0..30 {
        let conditions = LinkConditions { reorder: if seed % 2 == 0 { 0 } else { 20 }, ..LinkConditions::STORM };
        let mut world = World::new(Setup { seed, conditions, ..Setup::default() });
        let wish = Wish { budget: Some(1 << 20), ..Wish::default() };
        let [a, b] = connect_with(&mut world, [&wish, &wish]);
        for i in 0..60_u64 {
            b.recv(&mut world, i, 0, 0);
            let (at, len) = (i * 16_384, 16_000);
            a.fill(at, len as usize, i);
            match i % 3 {
                0 => a.send(&mut world, i, SendOp::WriteImm(b.remote(at), 1), at, len),
                1 => a.send(&mut world, i, SendOp::Write(b.remote(at)), at, len),
                _ => a.send(&mut world, i, SendOp::Read(b.remote(0)), at, 3_000),
            }
        }
        let done = a.wait(&mut world, 60);
        assert!(done.iter().all(|c| c.status == Status::Success), "seed {seed}: {done:?}");
        assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>(), "in order");
        for i in (0..60_u64).filter(|i| i % 3 < 2) {
            assert!(b.read(i * 16_384, 16_000) == pattern(16_000, i), "seed {seed}, WRITE {i}");
        }
        assert_eq!(b.poll(&mut world).len(), 20, "seed {seed}");
        assert_eq!(world.nics[1].counters_detail().naks_sent, 0, "seed {seed}");
    }
}
