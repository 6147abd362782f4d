//! Each operation once, between two queue pairs.

use crate::pair::{Pair, Setup};
use iwarp::{Ending, Extensions, QpEvent};
use verbs::*;

fn statuses(completions: &[Completion]) -> Vec<(u64, Status, WcOpcode)> {
    completions.iter().map(|c| (c.wr_id, c.status, c.opcode)).collect()
}

#[test]
fn both_ends_learn_of_the_connection_and_of_each_others_private_data() {
    let mut pair = Pair::new(&Setup { wants_crc: [false, true], ..Setup::default() });
    let established = |private_data: &[u8]| QpEvent::Established { private_data: private_data.to_vec(), has_crc: true };
    assert_eq!(pair.ends[0].events, [established(b"reply")]);
    assert_eq!(pair.ends[1].events, [established(b"")]);
    assert_eq!(pair.ends.each_mut().map(|end| end.async_events().len()), [0, 0]);
}

#[test]
fn every_operation_in_both_directions() {
    for (wants_crc, confirms) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut pair = Pair::new(&Setup { wants_crc: [wants_crc; 2], confirms, ..Setup::default() });
        for (from, to) in [(0, 1), (1, 0)] {
            every_operation(&mut pair, from, to);
        }
    }
}

/// A peer that may not READ anything still confirms what was sent to it, and what it executed is in its memory by then.
#[test]
fn sends_are_confirmed_without_a_right_to_read() {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut pair = Pair::new(&Setup { access, confirms: true, ..Setup::default() });
    pair.ends[0].fill(0, &[7; 1_000]);
    let (to, sge) = (pair.ends[1].remote(5_000), pair.ends[0].sge(0, 1_000));
    pair.ends[0].send(1, SendOp::Write(to), &[sge]).unwrap();
    pair.settle();
    let done = pair.ends[0].completions();
    assert_eq!(done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(1, Status::Success)]);
    let mut landed = [0; 1_000];
    pair.ends[1].region.read(5_000, &mut landed).unwrap();
    assert_eq!(landed, [7; 1_000]);
    // A READ of the consumer is refused as before.
    let (from, back) = (pair.ends[1].remote(0), pair.ends[0].sge(2_000, 8));
    pair.ends[0].send(2, SendOp::Read(from), &[back]).unwrap();
    pair.settle();
    assert_eq!(pair.ends[0].completions()[0].status, Status::RemAccessErr);
}

/// Sends that are not signalled come before an operation that is. Its answer says that they are executed, so nothing
/// else is waited for.
#[test]
fn an_answer_confirms_the_sends_before_it() {
    let mut pair = Pair::new(&Setup { confirms: true, sig_all: false, ..Setup::default() });
    pair.ends[1].fill(600_000, &42u64.to_ne_bytes());
    let (to, word) = (pair.ends[1].remote(5_000), pair.ends[1].remote(600_000));
    let answered = [
        SendOp::Read(word),
        SendOp::FetchAdd { remote: word, add: 3 },
        SendOp::CmpSwap { remote: word, compare: 45, swap: 99 },
    ];
    for (wr_id, op) in (1..).zip(answered) {
        pair.ends[1].recv(100, 8_000, 1_000);
        let end = &mut pair.ends[0];
        let (data, back) = (end.sge(0, 1_000), end.sge(2_000, 8));
        end.send_flagged(50, SendOp::Write(to), &[data], SendFlags::empty()).unwrap();
        end.send_flagged(51, SendOp::Send, &[data], SendFlags::empty()).unwrap();
        end.send(wr_id, op, &[back]).unwrap();
        // What comes behind it is not confirmed by it.
        end.send_flagged(52, SendOp::Write(to), &[data], SendFlags::empty()).unwrap();
        pair.settle();
        let done = pair.ends[0].completions();
        assert_eq!(done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(wr_id, Status::Success)], "{op:?}");
        assert_eq!(pair.ends[0].qp.status().sq_outstanding, 1, "{op:?}");
    }
}

/// A stream cuts anywhere, and programs look at a word while it is written, and write it while it is read.
#[test]
fn a_word_is_never_torn() {
    let (old, new) = ([0x11; 8], [0xee; 8]);
    for wants_crc in [false, true] {
        let mut pair = Pair::new(&Setup { wants_crc: [wants_crc; 2], ..Setup::default() });
        pair.ends[0].fill(0, &new);
        for cut in 1..40 {
            // A WRITE, seen by who looks at the word.
            pair.ends[1].fill(8_000, &old);
            let (to, sge) = (pair.ends[1].remote(8_000), pair.ends[0].sge(0, 8));
            pair.ends[0].send(1, SendOp::Write(to), &[sge]).unwrap();
            for step in 0..200 {
                pair.step(step % 2, cut, cut);
                let seen = pair.ends[1].bytes(8_000, 8);
                assert!(seen == old || seen == new, "cut {cut}: {seen:x?}");
            }
            assert_eq!(pair.ends[1].bytes(8_000, 8), new);
            // A READ, while the word changes at each step.
            let back = pair.ends[0].sge(100, 8);
            pair.ends[0].send(2, SendOp::Read(to), &[back]).unwrap();
            for step in 0..200 {
                pair.step(step % 2, cut, cut);
                pair.ends[1].fill(8_000, if step / 2 % 2 == 0 { &old } else { &new });
            }
            let read = pair.ends[0].bytes(100, 8);
            assert!(read == old || read == new, "cut {cut}: {read:x?}");
            assert_eq!(pair.ends[0].completions().len(), 2, "cut {cut}");
        }
    }
}

fn every_operation(pair: &mut Pair, from: usize, to: usize) {
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    pair.ends[from].fill(0, &data);
    pair.ends[to].fill(600_000, &42u64.to_ne_bytes());
    let remote = |pair: &Pair, addr| pair.ends[to].remote(addr);
    let (write, read, word) = (remote(pair, 200_000), remote(pair, 200_000), remote(pair, 600_000));
    for (wr_id, addr) in [(100, 400_000), (101, 0), (102, 500_000)] {
        pair.ends[to].recv(wr_id, addr, 70_000);
    }
    let end = &mut pair.ends[from];
    let (big, small, back) = (end.sge(0, 100_000), end.sge(10, 1_000), end.sge(700_000, 100_000));
    let (old, older) = (end.sge(900_000, 8), end.sge(900_008, 8));
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    end.send(1, SendOp::Write(write), &[big]).unwrap();
    end.send(2, SendOp::Send, &[small, end.sge(0, 66_000)]).unwrap();
    end.send(3, SendOp::WriteImm(remote_of(write, 100_000), 0xa1b2_c3d4), &[small]).unwrap();
    end.send_flagged(4, SendOp::SendImm(7), &[small], solicited).unwrap();
    end.send_flagged(5, SendOp::Read(read), &[back], SendFlags::SIGNALED | SendFlags::FENCE).unwrap();
    end.send(6, SendOp::FetchAdd { remote: word, add: 3 }, &[old]).unwrap();
    end.send(7, SendOp::CmpSwap { remote: word, compare: 45, swap: 99 }, &[older]).unwrap();
    end.send(8, SendOp::Read(read), &[]).unwrap();
    pair.settle();

    let sent = pair.ends[from].completions();
    let expected = [
        (1, WcOpcode::Write),
        (2, WcOpcode::Send),
        (3, WcOpcode::Write),
        (4, WcOpcode::Send),
        (5, WcOpcode::Read),
        (6, WcOpcode::FetchAdd),
        (7, WcOpcode::CmpSwap),
        (8, WcOpcode::Read),
    ];
    assert_eq!(statuses(&sent), expected.map(|(id, opcode)| (id, Status::Success, opcode)));
    let rkey = pair.ends[to].mr.rkey;
    let got = pair.ends[to].completions();
    let fields = |c: &Completion| (c.wr_id, c.opcode, c.byte_len, c.imm, c.placed);
    let expected = [
        (100, WcOpcode::Recv, 67_000, None, Placed::Piece { rkey, addr: 200_000, len: 100_000 }),
        (101, WcOpcode::RecvWriteImm, 1_000, Some(0xa1b2_c3d4), Placed::Piece { rkey, addr: 300_000, len: 1_000 }),
        (102, WcOpcode::Recv, 1_000, Some(7), Placed::Nothing),
    ];
    assert_eq!(got.iter().map(fields).collect::<Vec<_>>(), expected);

    let end = &pair.ends[to];
    assert_eq!(end.bytes(200_000, 100_000), data);
    assert_eq!(end.bytes(300_000, 1_000), data[10..1_010]);
    assert_eq!(end.bytes(400_000, 1_000), data[10..1_010]);
    assert_eq!(end.bytes(401_000, 66_000), data[..66_000]);
    assert_eq!(end.bytes(500_000, 1_000), data[10..1_010]);
    assert_eq!(end.bytes(600_000, 8), 99u64.to_ne_bytes());
    let end = &pair.ends[from];
    assert_eq!(end.bytes(700_000, 100_000), data);
    assert_eq!(
        (end.bytes(900_000, 8), end.bytes(900_008, 8)),
        (42u64.to_ne_bytes().into(), 45u64.to_ne_bytes().into())
    );
}

fn remote_of(remote: RemoteAddr, more: u64) -> RemoteAddr {
    RemoteAddr { addr: remote.addr + more, ..remote }
}

#[test]
fn a_write_with_immediate_of_no_bytes_says_so_after_one_of_many() {
    let mut pair = Pair::new(&Setup::default());
    for wr_id in [1, 2, 3] {
        pair.ends[1].recv(wr_id, 0, 0);
    }
    let remote = pair.ends[1].remote(0);
    let end = &mut pair.ends[0];
    end.send(1, SendOp::Write(remote), &[end.sge(0, 500)]).unwrap();
    end.send(2, SendOp::WriteImm(remote, 5), &[]).unwrap();
    end.send_inline(3, SendOp::WriteImm(remote, 6), b"abc").unwrap();
    end.send_inline(4, SendOp::Send, b"").unwrap();
    pair.settle();
    let got = pair.ends[1].completions();
    let fields: Vec<_> = got.iter().map(|c| (c.opcode, c.byte_len, c.imm)).collect();
    let (written, received) = (WcOpcode::RecvWriteImm, WcOpcode::Recv);
    assert_eq!(fields, [(written, 0, Some(5)), (written, 3, Some(6)), (received, 0, None)]);
    let counters = &pair.ends[1].dev.counters;
    assert_eq!((counters.served_write_imm, counters.served_send), (2, 1));
}

#[test]
fn work_that_was_posted_before_the_connection_waits_for_it() {
    let mut pair = Pair::unconnected(&Setup::default());
    pair.ends[1].recv(9, 100, 10);
    for side in [0, 1] {
        pair.ends[side].recv(9, 100, 10);
        pair.ends[side].send_inline(1, SendOp::Send, b"early").unwrap();
    }
    assert!(!pair.step(0, 99, 99) && !pair.step(1, 99, 99), "there is no connection");
    pair.connect(b"", b"");
    pair.settle();
    for side in [0, 1] {
        assert_eq!(pair.ends[side].completions().len(), 2);
        assert_eq!(pair.ends[side].bytes(100, 5), b"early");
    }
}

#[test]
fn receives_of_a_shared_queue_serve_the_stream() {
    let mut pair = Pair::new(&Setup { has_srq: true, ..Setup::default() });
    pair.ends[1].recv(5, 0, 100);
    pair.ends[1].recv(6, 100, 100);
    pair.ends[0].send_inline(1, SendOp::Send, b"first").unwrap();
    pair.settle();
    let got = pair.ends[1].completions();
    assert_eq!(statuses(&got), [(5, Status::Success, WcOpcode::Recv)]);
    let end = &mut pair.ends[1];
    end.qp.abort(&mut end.dev);
    pair.settle();
    assert_eq!(pair.ends[1].completions(), [], "a receive of the SRQ stays there");
    assert_eq!(pair.ends[1].async_events(), [AsyncEvent::LastWqeReached(Qpn(11))]);
}

#[test]
fn what_the_peer_does_not_do_is_refused_when_posted() {
    let mut pair = Pair::new(&Setup { extensions: Extensions::empty(), ..Setup::default() });
    let remote = pair.ends[1].remote(0);
    let sge = pair.ends[0].sge(0, 8);
    let named = [
        (SendOp::SendImm(1), "SEND with immediate toward this peer over TCP: use SEND"),
        (SendOp::WriteImm(remote, 1), "WRITE with immediate toward a peer without RFC 7306: use WRITE and SEND"),
        (SendOp::FetchAdd { remote, add: 1 }, "atomics toward a peer without RFC 7306"),
        (SendOp::CmpSwap { remote, compare: 1, swap: 1 }, "atomics toward a peer without RFC 7306"),
    ];
    for (op, what) in named {
        let refused = Err(VerbsError::Unsupported { device: "end0".to_owned(), what });
        assert_eq!(pair.ends[0].send(1, op, &[sge]), refused);
    }
    let end = &mut pair.ends[0];
    end.send(1, SendOp::Write(remote), &[sge]).expect("RFC 5040");
    pair.settle();
    assert_eq!(pair.ends[0].completions().len(), 1);
}

#[test]
fn no_more_reads_are_outstanding_than_the_peer_executes() {
    let mut pair = Pair::new(&Setup { ird: 2, ord: 16, ..Setup::default() });
    let remote = pair.ends[1].remote(0);
    let end = &mut pair.ends[0];
    for wr_id in 0..20 {
        end.send(wr_id, SendOp::Read(remote), &[end.sge(wr_id * 64, 64)]).unwrap();
    }
    pair.settle_by(|| 9);
    let done = pair.ends[0].completions();
    assert!(done.iter().all(|c| c.status == Status::Success) && done.len() == 20);
}

#[test]
fn a_read_toward_a_peer_that_executes_none_fails_and_does_not_wait() {
    let mut pair = Pair::new(&Setup { ird: 0, ..Setup::default() });
    let remote = pair.ends[1].remote(0);
    let end = &mut pair.ends[0];
    end.send(1, SendOp::Read(remote), &[end.sge(0, 8)]).unwrap();
    pair.settle();
    assert_eq!(statuses(&pair.ends[0].completions()), [(1, Status::LocQpOpErr, WcOpcode::Read)]);
    assert_eq!(pair.ends[0].ending(), Some(Ending::Local));
}

/// What the kernel copies straight into its place is not copied again, also where each message comes alone.
#[test]
fn large_messages_are_placed_without_a_copy() {
    let mut pair = Pair::new(&Setup::default());
    let remote = pair.ends[1].remote(0);
    for wr_id in 0..20 {
        pair.ends[1].recv(wr_id, 0, 0);
        let end = &mut pair.ends[0];
        end.send(wr_id, SendOp::WriteImm(remote, 1), &[end.sge(0, 60_000)]).expect("it is allowed");
        pair.settle();
    }
    assert_eq!(pair.ends[1].completions().len(), 20);
    let copied = pair.ends[1].qp.take_counters().tcp_bytes_copied;
    // The first one comes while nothing is known of what comes: up to 16 KiB. Of the others 128 bytes follow a header.
    assert!((1..=(16 << 10) + 19 * 128).contains(&copied), "{copied} of 1,200,000 bytes");
}
