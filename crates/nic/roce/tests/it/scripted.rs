//! One NIC against a script: exact packets in, exact packets out, for what two of our own ends would agree on by
//! themselves.

use std::time::Duration;

use crate::script::*;
use roce::NicLimits;
use roce::wire::*;
use verbs::*;

use Opcode::{
    Acknowledge, AtomicAcknowledge, ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly,
};

#[test]
fn literal_bytes_of_an_ack_and_a_write() {
    let mut s = Script::new();
    s.write(THEIR_PSN, true);
    let packets = s.packets();
    assert_eq!(packets[0][..16], [0x11, 0x40, 0xff, 0xff, 0, 0x11, 0x22, 0x33, 0, 0, 0, 100, 0, 0, 0, 1]);
    let mut written = [0; 8];
    s.region.read(0, &mut written).expect("inside");
    assert_eq!(written, [7; 8]);

    let sges = [Sge { addr: 0, len: 5, lkey: s.mr.lkey }];
    let op = SendOp::WriteImm(s.remote(), 0x0102_0304);
    let wr = SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags: SendFlags::SOLICITED, dest: None };
    s.nic.post_send(s.qpn, &[wr]).expect("posted");
    let expected = [
        0x0b, 0xf0, 0xff, 0xff, 0, 0x11, 0x22, 0x33, 0x80, 0, 0,
        200, // BTH: solicited, migrated, 3 bytes of padding
        0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x77, 0, 0, 0, 5, // RETH
        1, 2, 3, 4, // ImmDt
        7, 7, 7, 7, 7, 0, 0, 0,
    ];
    let packets = s.packets();
    assert_eq!(packets[0][..expected.len()], expected);
    assert_eq!(packets[0].len(), expected.len() + 4);
}

#[test]
fn only_asked_for_acks_and_only_the_latest() {
    let mut s = Script::new();
    s.write(100, false);
    assert_eq!(s.lines(), []);
    s.write(101, true);
    s.write(102, true);
    s.write(103, false);
    assert_eq!(s.lines(), [(Acknowledge, 103, ack(4))]);
}

#[test]
fn acks_do_not_overtake_answers() {
    let mut s = Script::new();
    s.write(100, true);
    s.read(101, 0, 600);
    s.write(104, true);
    s.add(105);
    s.write(106, true);
    let expected = [
        (ReadResponseFirst, 101, ack(5)),
        (ReadResponseMiddle, 102, None),
        (ReadResponseLast, 103, ack(5)),
        (AtomicAcknowledge, 105, ack(5)),
        (Acknowledge, 106, ack(5)),
    ];
    assert_eq!(s.lines(), expected);
}

#[test]
fn a_duplicate_before_an_answer_is_acknowledged_for_itself() {
    let mut s = Script::new();
    s.write(100, true);
    s.read(101, 0, 10);
    s.lines();
    // The answer was lost, and the write is sent again first: its ACK must not claim the READ.
    s.write(100, true);
    assert_eq!(s.lines(), [(Acknowledge, 100, ack(2))]);
    s.read(101, 0, 10);
    assert_eq!(s.lines(), [(ReadResponseOnly, 101, ack(2))]);
    s.write(102, true);
    s.lines();
    s.write(100, true);
    s.write(102, true);
    assert_eq!(s.lines(), [(Acknowledge, 102, ack(3))]);
}

#[test]
fn a_copied_request_does_not_cancel_later_answers() {
    let mut s = Script::new();
    s.read(100, 0, 600);
    s.lines();
    s.read(103, 0, 300);
    s.add(105);
    // The network delivers the first READ twice, while the others wait.
    s.read(100, 0, 600);
    let expected = [
        (ReadResponseFirst, 100, ack(3)),
        (ReadResponseMiddle, 101, None),
        (ReadResponseLast, 102, ack(3)),
        (ReadResponseFirst, 103, ack(3)),
        (ReadResponseLast, 104, ack(3)),
        (AtomicAcknowledge, 105, ack(3)),
    ];
    assert_eq!(s.lines(), expected);
    // Waiting already: nothing is answered twice.
    s.read(106, 0, 10);
    s.read(106, 0, 10);
    assert_eq!(s.lines(), [(ReadResponseOnly, 106, ack(4))]);
}

#[test]
fn a_duplicate_read_keeps_within_the_original() {
    let mut s = Script::new();
    s.read(100, 1024, 1000);
    s.lines();
    s.read(102, 1024 + 512, 400);
    assert_eq!(s.psns(), [102, 103], "a part of it");
    for (psn, addr, len) in [(102, 1024 + 512, 489), (102, 1024, 100), (101, 1024 + 255, 10)] {
        s.read(psn, addr, len);
        assert_eq!(s.lines(), [], "PSN {psn}, address {addr}, {len} bytes");
    }
    assert_eq!(s.nic.counters_detail().drop_stale_duplicate, 3);
}

#[test]
fn answers_are_kept_for_so_many_and_no_more() {
    let mut s = Script::new();
    for psn in 100..105 {
        s.add(psn);
        s.lines();
    }
    for psn in 100..102 {
        s.add(psn);
    }
    assert_eq!(s.lines(), [], "forgotten");
    for psn in 102..105 {
        s.add(psn);
    }
    let originals: Vec<u64> = s
        .packets()
        .iter()
        .map(|bytes| match Packet::parse(bytes).expect("a packet").body {
            Body::Response(Response::Atomic(_, original)) => original,
            body => panic!("{body:?}"),
        })
        .collect();
    assert_eq!(originals, [2, 3, 4]);
    assert_eq!(s.nic.counters_detail().served_atomic, 5);
}

#[test]
fn more_answers_outstanding_than_agreed_are_an_invalid_request() {
    let mut s = Script::new();
    for psn in 100..103 {
        s.add(psn);
    }
    s.add(103);
    let expected = [
        (AtomicAcknowledge, 100, ack(3)),
        (AtomicAcknowledge, 101, ack(3)),
        (AtomicAcknowledge, 102, ack(3)),
        (Acknowledge, 103, nak(NakCode::InvalidRequest, 3)),
    ];
    assert_eq!(s.lines(), expected, "the answers before it still leave");
    assert_eq!(s.nic.query_qp(s.qpn).expect("there").state, QpState::Err);
}

#[test]
fn one_nak_for_a_gap_and_another_for_its_next_round() {
    let mut s = Script::new();
    s.write(101, true);
    s.write(102, true);
    assert_eq!(s.lines(), [(Acknowledge, 100, nak(NakCode::SequenceError, 0))]);
    s.write(103, true);
    assert_eq!(s.lines(), []);
    // The requester went back, and its first packet was lost again.
    s.write(101, true);
    assert_eq!(s.lines(), [(Acknowledge, 100, nak(NakCode::SequenceError, 0))]);
    s.write(100, true);
    s.write(101, true);
    assert_eq!(s.lines(), [(Acknowledge, 101, ack(2))]);
}

#[test]
fn a_nak_that_has_not_left_follows_what_is_missing() {
    let mut s = Script::new();
    s.write(102, true);
    s.write(103, true);
    s.write(100, true);
    assert_eq!(s.lines(), [(Acknowledge, 101, nak(NakCode::SequenceError, 1))], "101 is missing now");
    let mut s = Script::new();
    s.write(101, true);
    s.write(100, true);
    s.write(101, true);
    assert_eq!(s.lines(), [(Acknowledge, 101, ack(2))], "nothing is");
}

#[test]
fn broken_messages_are_invalid_requests() {
    type Break = fn(&mut Script);
    let middle_first: Break = |s| s.deliver(Header::new(&s.bth(Opcode::WriteMiddle, 100, false)), &[0; MTU]);
    let last_first: Break = |s| s.deliver(Header::new(&s.bth(Opcode::SendLast, 100, false)), &[0; 8]);
    let short_first: Break = |s| {
        let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 600 };
        s.deliver(Header::new(&s.bth(Opcode::WriteFirst, 100, false)).with_reth(reth), &[0; MTU - 4]);
    };
    let longer_than_said: Break = |s| {
        let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 4 };
        s.deliver(Header::new(&s.bth(Opcode::WriteOnly, 100, false)).with_reth(reth), &[0; 8]);
    };
    let shorter_than_said: Break = |s| {
        let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 12 };
        s.deliver(Header::new(&s.bth(Opcode::WriteOnly, 100, false)).with_reth(reth), &[0; 8]);
    };
    let longer_than_mtu: Break = |s| {
        let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 260 };
        s.deliver(Header::new(&s.bth(Opcode::WriteOnly, 100, false)).with_reth(reth), &[0; 260]);
    };
    let too_long: Break = |s| s.read(100, 0, (1 << 31) + 1);
    for (i, break_it) in
        [middle_first, last_first, short_first, longer_than_said, shorter_than_said, longer_than_mtu, too_long]
            .into_iter()
            .enumerate()
    {
        let mut s = Script::new();
        break_it(&mut s);
        assert_eq!(s.lines(), [(Acknowledge, 100, nak(NakCode::InvalidRequest, 0))], "case {i}");
        assert_eq!(s.nic.query_qp(s.qpn).expect("there").state, QpState::Err);
        s.write(100, true);
        assert_eq!((s.lines(), s.nic.counters_detail().drop_wrong_state), (vec![], 1), "an error state is silent");
    }
    // Another message must not begin within one.
    let mut s = Script::new();
    let reth = Reth { addr: 0, rkey: s.mr.rkey, dma_len: 600 };
    s.deliver(Header::new(&s.bth(Opcode::WriteFirst, 100, false)).with_reth(reth), &[0; MTU]);
    s.read(101, 0, 8);
    assert_eq!(s.lines(), [(Acknowledge, 101, nak(NakCode::InvalidRequest, 0))]);
}

#[test]
fn acks_of_the_future_and_of_the_past_move_nothing() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 1000);
    assert_eq!(s.psns(), [200, 201, 202, 203]);
    s.acknowledge(204, Syndrome::Ack(31));
    s.acknowledge(300, Syndrome::Nak(NakCode::RemoteAccess));
    s.acknowledge(199, Syndrome::Ack(31));
    s.acknowledge(199, Syndrome::Nak(NakCode::RemoteAccess));
    s.acknowledge(200, Syndrome::Reserved(0x40));
    assert_eq!((s.lines(), s.statuses()), (vec![], vec![]));
    let counters = s.nic.counters_detail();
    let seen = (counters.drop_unexpected_response, counters.stale_responses, counters.drop_bad_syndrome);
    assert_eq!(seen, (2, 2, 1));
    s.acknowledge(203, Syndrome::Ack(31));
    assert_eq!(s.statuses(), [Status::Success]);
}

#[test]
fn a_sequence_nak_goes_back_to_it() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 1000);
    s.post(SendOp::Write(s.remote()), 100);
    assert_eq!(s.psns(), [200, 201, 202, 203, 204]);
    s.acknowledge(202, Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(
        s.lines().iter().map(|l| (l.0, l.1)).collect::<Vec<_>>(),
        [(Opcode::WriteMiddle, 202), (Opcode::WriteLast, 203), (Opcode::WriteOnly, 204)]
    );
    s.acknowledge(204, Syndrome::Ack(31));
    assert_eq!(s.statuses(), [Status::Success; 2]);
}

#[test]
fn endless_sequence_naks_end_the_qp() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 100);
    for _ in 0..3 {
        assert_eq!(s.psns(), [200]);
        s.wait(Duration::from_millis(1));
        s.acknowledge(200, Syndrome::Nak(NakCode::SequenceError));
    }
    assert_eq!(s.psns(), [200]);
    s.wait(Duration::from_millis(1));
    s.acknowledge(200, Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(s.statuses(), [Status::RetryExcErr]);
}

/// Packets that overtake each other cause several NAKs for one gap before the first retransmission can have arrived.
#[test]
fn many_sequence_naks_for_one_gap_are_one() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 100);
    s.post(SendOp::Write(s.remote()), 100);
    assert_eq!(s.psns(), [200, 201]);
    s.acknowledge(200, Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(s.psns(), [200, 201]);
    for _ in 0..20 {
        s.acknowledge(200, Syndrome::Nak(NakCode::SequenceError));
        assert_eq!((s.psns(), s.statuses()), (vec![], vec![]));
    }
    s.acknowledge(201, Syndrome::Ack(31));
    assert_eq!(s.statuses(), [Status::Success; 2]);
}

#[test]
fn the_window_stops_with_a_question() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 5000);
    let packets = s.packets();
    let asks: Vec<bool> = packets.iter().map(|p| p[8] & 0x80 != 0).collect();
    assert_eq!(asks, [false, true, false, true, false, true, false, true]);
    s.acknowledge(203, Syndrome::Ack(31));
    assert_eq!(s.psns(), [208, 209, 210, 211]);
}

#[test]
fn a_probe_is_one_packet() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 1000);
    assert_eq!(s.psns().len(), 4);
    s.wait(Duration::from_millis(4));
    let packets = s.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0][0], packets[0][8] & 0x80, packets[0][11]), (Opcode::WriteFirst.byte(), 0x80, 200));
    // The peer had all of them.
    s.acknowledge(203, Syndrome::Ack(31));
    assert_eq!((s.lines(), s.statuses()), (vec![], vec![Status::Success]));
    assert_eq!(s.nic.counters_detail().retransmits, 1);

    s.post(SendOp::Write(s.remote()), 1000);
    assert_eq!(s.psns().len(), 4);
    s.wait(Duration::from_millis(40));
    assert_eq!(s.psns(), [204]);
    // The peer had none.
    s.acknowledge(204, Syndrome::Ack(31));
    assert_eq!(s.psns(), [205, 206, 207]);
}

#[test]
fn answers_of_the_wrong_kind_or_length() {
    let answer = |s: &mut Script, opcode, psn, len: usize| {
        let aeth = Aeth { syndrome: Syndrome::Ack(31), msn: 1 };
        s.deliver(Header::new(&s.bth(opcode, psn, false)).with_aeth(aeth), &vec![5; len]);
    };
    let mut s = Script::new();
    s.post(SendOp::Read(s.remote()), 300);
    assert_eq!(s.psns(), [200]);
    answer(&mut s, ReadResponseFirst, 200, 252);
    assert_eq!(s.statuses(), [Status::BadRespErr]);

    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 300);
    s.lines();
    answer(&mut s, ReadResponseOnly, 200, 44);
    assert_eq!((s.statuses(), s.nic.counters_detail().drop_unexpected_response), (vec![], 1));

    let mut s = Script::new();
    s.post(SendOp::Read(s.remote()), 8);
    s.lines();
    let aeth = Aeth { syndrome: Syndrome::Ack(31), msn: 1 };
    s.deliver(Header::new(&s.bth(AtomicAcknowledge, 200, false)).with_aeth(aeth).with_original(9), &[]);
    assert_eq!((s.statuses(), s.nic.counters_detail().drop_unexpected_response), (vec![], 1));
    answer(&mut s, ReadResponseOnly, 200, 8);
    assert_eq!(s.statuses(), [Status::Success]);
}

#[test]
fn an_ack_behind_an_unanswered_read_asks_for_it_again() {
    let mut s = Script::new();
    s.post(SendOp::Read(s.remote()), 8);
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [200, 201]);
    s.acknowledge(201, Syndrome::Ack(31));
    assert_eq!(s.psns(), [200, 201]);
    assert_eq!((s.statuses(), s.nic.counters_detail().implied_naks), (vec![], 1));
    // A NAK behind it is not believed before, either.
    s.wait(Duration::from_millis(1));
    s.acknowledge(201, Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!((s.psns(), s.statuses()), (vec![200, 201], vec![]));
}

#[test]
fn an_rnr_nak_holds_everything_back() {
    let mut s = Script::new();
    s.post(SendOp::Send, 300);
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [200, 201, 202]);
    s.acknowledge(200, Syndrome::RnrNak(14));
    s.acknowledge(200, Syndrome::RnrNak(14));
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.lines(), [], "the wait is 1.28 ms");
    s.wait(Duration::from_micros(1279));
    assert_eq!(s.lines(), []);
    s.wait(Duration::from_micros(1));
    assert_eq!(s.psns(), [200, 201, 202, 203]);
    for _ in 0..2 {
        s.acknowledge(200, Syndrome::RnrNak(1));
        s.wait(Duration::from_micros(10));
        assert_eq!(s.psns().len(), 4);
    }
    s.acknowledge(200, Syndrome::RnrNak(1));
    assert_eq!(s.statuses(), [Status::RnrRetryExcErr, Status::WrFlushErr, Status::WrFlushErr]);
}

#[test]
fn request_headers_parse_as_what_was_posted() {
    let mut s = Script::new();
    let remote = s.remote();
    s.post(SendOp::CmpSwap { remote, compare: 1, swap: 2 }, 8);
    s.post(SendOp::FetchAdd { remote, add: 3 }, 8);
    s.post(SendOp::Read(remote), 700);
    let packets = s.packets();
    let bodies: Vec<Body<'_>> = packets.iter().map(|p| Packet::parse(p).expect("a packet").body).collect();
    let eth = |swap_or_add, compare| AtomicEth { addr: 0x1000, rkey: Rkey(0x77), swap_or_add, compare };
    assert_eq!(
        bodies,
        [
            Body::Request(Request::CompareSwap(eth(2, 1))),
            Body::Request(Request::FetchAdd(eth(3, 0))),
            Body::Request(Request::Read(Reth { addr: 0x1000, rkey: Rkey(0x77), dma_len: 700 })),
        ]
    );
}

/// A SEND of several packets into the posted receive; how it and the QP ended.
fn send_of(s: &mut Script, bytes: usize) -> (Vec<Status>, QpState) {
    let pieces: Vec<usize> = (0..bytes).step_by(MTU).map(|at| (bytes - at).min(MTU)).collect();
    for (i, psn) in (0..pieces.len()).zip(THEIR_PSN..) {
        let opcode = match (i == 0, i + 1 == pieces.len()) {
            (true, true) => Opcode::SendOnly,
            (true, false) => Opcode::SendFirst,
            (false, false) => Opcode::SendMiddle,
            (false, true) => Opcode::SendLast,
        };
        s.deliver(Header::new(&s.bth(opcode, psn, true)), &vec![5; pieces[i]]);
    }
    (s.statuses(), s.nic.query_qp(s.qpn).expect("the QP").state)
}

#[test]
fn a_send_is_as_long_as_its_receive_and_the_device_allow_and_no_longer() {
    let cases = [
        (700, 4096, 700, Status::Success),
        (700, 4096, 704, Status::LocLenErr),
        (4096, 700, 700, Status::Success),
        (4096, 700, 704, Status::LocLenErr),
    ];
    for (receive, longest, bytes, expected) in cases {
        let mut s = Script::with_limits(NicLimits { max_msg_bytes: longest, ..NicLimits::default() });
        let sges = [Sge { addr: 8192, len: receive, lkey: s.mr.lkey }];
        s.nic.post_recv(s.qpn, &[RecvWr { wr_id: 1, sges: &sges }]).expect("posted");
        let (statuses, state) = send_of(&mut s, bytes);
        let goes_on = expected == Status::Success;
        assert_eq!(statuses, [expected], "{bytes} bytes into {receive}, at most {longest}");
        assert_eq!(state, if goes_on { QpState::Rts } else { QpState::Err });
        let mut behind = [0; 4];
        s.region.read(8192 + u64::from(receive.min(longest)), &mut behind).expect("inside");
        assert_eq!(behind, [0; 4], "nothing lands behind it");
    }
}
