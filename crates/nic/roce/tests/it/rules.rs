//! Rules of the transport that two of our own ends keep by themselves, judged packet by packet.

use std::time::Duration;

use crate::script::*;
use roce::wire::*;
use verbs::*;

fn events(s: &mut Script) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| s.nic.poll_event()).collect()
}

/// The refused packet was an old copy: the peer had taken the message, and says so during the wait.
#[test]
fn an_rnr_wait_ends_with_progress() {
    let mut s = Script::new();
    s.post(SendOp::Send, 8);
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [200, 201]);
    s.acknowledge(200, Syndrome::RnrNak(0));
    s.acknowledge(201, Syndrome::Ack(31));
    assert_eq!(s.statuses(), [Status::Success; 2]);
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [202], "not after 655 ms");
    s.acknowledge(202, Syndrome::Ack(31));
    s.wait(Duration::from_secs(1));
    assert_eq!((s.psns(), s.nic.counters_detail().timeouts), (vec![], 0));
}

#[test]
fn a_nak_is_repeated_when_the_first_packets_of_a_new_round_are_lost() {
    let mut s = Script::new();
    (101..160).for_each(|psn| s.write(psn, true));
    let again = [(Opcode::Acknowledge, 100, nak(NakCode::SequenceError, 0))];
    assert_eq!(s.lines(), again);
    // Of the new round 100 to 109 are lost.
    s.write(110, true);
    assert_eq!(s.lines(), again);
    (111..160).for_each(|psn| s.write(psn, true));
    assert_eq!(s.lines(), [], "one for each round");
    s.write(120, true);
    assert_eq!(s.lines(), again, "of the next round 120 is the first to arrive");
    // Packets that overtake each other are of one round.
    [150, 130, 131, 149, 148, 160].into_iter().for_each(|psn| s.write(psn, true));
    assert_eq!(s.lines(), []);
    (100..108).for_each(|psn| s.write(psn, true));
    assert_eq!(s.lines(), [(Opcode::Acknowledge, 107, ack(8))]);
}

/// Delivers a packet of the answer to a READ.
fn answer(s: &mut Script, opcode: Opcode, psn: u32, syndrome: Syndrome, len: usize) {
    let mut header = Header::new(&s.bth(opcode, psn, false));
    if opcode != Opcode::ReadResponseMiddle {
        header = header.with_aeth(Aeth { syndrome, msn: 1 });
    }
    s.deliver(header, &vec![5; len]);
}

#[test]
fn answers_to_a_read_are_first_middle_last_or_only() {
    use Opcode::{ReadResponseFirst as First, ReadResponseLast as Last};
    use Opcode::{ReadResponseMiddle as Middle, ReadResponseOnly as Only};
    let ack = Syndrome::Ack(31);
    for (len, opcodes, outcome) in [
        (8, &[Only][..], Status::Success),
        (8, &[Middle], Status::BadRespErr),
        (8, &[First], Status::BadRespErr),
        (8, &[Last], Status::BadRespErr),
        (600, &[First, Middle, Last], Status::Success),
        (600, &[Last], Status::BadRespErr),
        (600, &[Middle], Status::BadRespErr),
        (600, &[Only], Status::BadRespErr),
        (600, &[First, Last], Status::BadRespErr),
        (600, &[First, Only], Status::BadRespErr),
        (600, &[First, Middle, Middle], Status::BadRespErr),
        (600, &[First, Middle, First], Status::BadRespErr),
    ] {
        let mut s = Script::new();
        s.post(SendOp::Read(s.remote()), len);
        assert_eq!(s.psns(), [200]);
        for (i, opcode) in opcodes.iter().enumerate() {
            answer(&mut s, *opcode, 200 + i as u32, ack, (len as usize - i * MTU).min(MTU));
        }
        assert_eq!(s.statuses(), [outcome], "{opcodes:?} for {len} bytes");
    }
    // After going back the answer begins in the middle, as First or as Middle.
    for (begins, ends) in [(First, Last), (Middle, Last)] {
        let mut s = Script::new();
        s.post(SendOp::Read(s.remote()), 600);
        answer(&mut s, First, 200, ack, MTU);
        assert_eq!(s.psns(), [200]);
        answer(&mut s, First, 200, ack, MTU);
        s.wait(Duration::from_millis(100));
        assert_eq!(s.psns(), [201]);
        answer(&mut s, begins, 201, ack, MTU);
        answer(&mut s, ends, 202, ack, 88);
        assert_eq!(s.statuses(), [Status::Success]);
    }
}

#[test]
fn a_negative_answer_to_a_read_or_atomic_is_a_bad_response() {
    for syndrome in [Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak(1), Syndrome::Reserved(0x40)] {
        let mut s = Script::new();
        s.post(SendOp::Read(s.remote()), 8);
        s.psns();
        answer(&mut s, Opcode::ReadResponseOnly, 200, syndrome, 8);
        assert_eq!(s.statuses(), [Status::BadRespErr], "{syndrome:?}");
        let mut s = Script::new();
        s.post(SendOp::FetchAdd { remote: s.remote(), add: 1 }, 8);
        s.psns();
        let aeth = Aeth { syndrome, msn: 1 };
        s.deliver(Header::new(&s.bth(Opcode::AtomicAcknowledge, 200, false)).with_aeth(aeth).with_original(9), &[]);
        assert_eq!(s.statuses(), [Status::BadRespErr], "{syndrome:?}");
    }
}

#[test]
fn unsupported_opcodes_in_order_are_invalid_requests() {
    // Reserved, FLUSH, ATOMIC WRITE, and the last of the service.
    for byte in [0x15, 0x18, 0x1c, 0x1d, 0x1f] {
        let unsupported = |s: &Script, psn| {
            let bth = Bth { opcode: byte, ..s.bth(Opcode::SendOnly, psn, true) };
            Header::new(&bth)
        };
        let mut s = Script::new();
        s.deliver(unsupported(&s, 99), &[0; 16]);
        assert_eq!(s.lines(), [], "before the expected one it is a duplicate of nothing");
        s.deliver(unsupported(&s, 101), &[0; 16]);
        assert_eq!(s.lines(), [(Opcode::Acknowledge, 100, nak(NakCode::SequenceError, 0))]);
        s.deliver(unsupported(&s, 100), &[0; 16]);
        assert_eq!(s.lines(), [(Opcode::Acknowledge, 100, nak(NakCode::InvalidRequest, 0))], "{byte:#x}");
        assert_eq!(events(&mut s), [AsyncEvent::CommEstablished(s.qpn), AsyncEvent::QpRequestError(s.qpn)][1..]);
        assert_eq!(s.nic.query_qp(s.qpn).expect("there").state, QpState::Err);
    }
    // Of other services.
    let mut s = Script::new();
    for byte in [0x2c, 0x45, 0x60, 0xa0, 0xc0] {
        let bth = Bth { opcode: byte, ..s.bth(Opcode::SendOnly, 100, true) };
        s.deliver(Header::new(&bth), &[0; 16]);
    }
    assert_eq!((s.lines(), s.nic.counters_detail().drop_unknown_opcode), (vec![], 5));
}

#[test]
fn events_name_the_cause() {
    let mut s = Script::new();
    let reth = Reth { addr: 0, rkey: Rkey(s.mr.rkey.0 ^ 1), dma_len: 8 };
    s.deliver(Header::new(&s.bth(Opcode::WriteOnly, 100, true)).with_reth(reth), &[7; 8]);
    assert_eq!(events(&mut s), [AsyncEvent::QpAccessError(s.qpn)]);
    let mut s = Script::new();
    s.deliver(Header::new(&s.bth(Opcode::SendMiddle, 100, true)), &[7; MTU]);
    assert_eq!(events(&mut s), [AsyncEvent::QpRequestError(s.qpn)]);
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 8);
    s.psns();
    s.acknowledge(200, Syndrome::Nak(NakCode::RemoteAccess));
    assert_eq!(events(&mut s), [AsyncEvent::QpFatal(s.qpn)], "the peer's error, not of this end's memory");
}

#[test]
fn a_drained_queue_says_so_once() {
    let mut s = Script::new();
    s.nic.modify_qp(s.qpn, &QpModify::Sqd).expect("SQD");
    assert_eq!(events(&mut s), [AsyncEvent::SqDrained(s.qpn)], "nothing was under way");
    s.nic.modify_qp(s.qpn, &QpModify::Rts(rts())).expect("RTS");
    s.post(SendOp::Write(s.remote()), 3000);
    assert_eq!(s.psns().len(), 8, "the window");
    s.post(SendOp::Write(s.remote()), 8);
    s.nic.modify_qp(s.qpn, &QpModify::Sqd).expect("SQD");
    s.acknowledge(207, Syndrome::Ack(31));
    assert_eq!(events(&mut s), [], "the message is not finished");
    assert_eq!(s.psns(), [208, 209, 210, 211]);
    s.acknowledge(211, Syndrome::Ack(31));
    assert_eq!(events(&mut s), [AsyncEvent::SqDrained(s.qpn)]);
    assert_eq!((s.psns(), s.statuses()), (vec![], vec![Status::Success]), "the second message waits");
    s.wait(Duration::from_secs(1));
    assert_eq!(events(&mut s), []);
    s.nic.modify_qp(s.qpn, &QpModify::Rts(rts())).expect("RTS");
    assert_eq!(s.psns(), [212]);
}

/// What [`Script`] uses.
fn rts() -> RtsAttr {
    RtsAttr { sq_psn: Psn::new(OUR_PSN), timeout: 14, retry_cnt: 3, rnr_retry: 3, ..RtsAttr::default() }
}

#[test]
fn timers_change_while_the_qp_runs() {
    let mut s = Script::new();
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [200]);
    let attr = RtsAttr { sq_psn: Psn::new(7), timeout: 0, ..rts() };
    s.nic.modify_qp(s.qpn, &QpModify::Rts(attr)).expect("RTS to RTS");
    s.wait(Duration::from_secs(100));
    assert_eq!((s.psns(), s.nic.counters_detail().timeouts), (vec![], 0), "no ACK timeout any more");
    s.acknowledge(200, Syndrome::Ack(31));
    s.nic.modify_qp(s.qpn, &QpModify::Rts(rts())).expect("RTS to RTS");
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [201], "its PSN goes on");
    // The round trip was 100 s, and stretches the timeout as far as it goes.
    s.wait(Duration::from_secs(2));
    assert_eq!(s.nic.counters_detail().timeouts, 1);
}

#[test]
fn acknowledgements_carry_the_receives_that_are_posted() {
    let mut s = Script::new();
    let post = |s: &mut Script, n: u64| {
        let sges = [Sge { addr: 0, len: 64, lkey: s.mr.lkey }];
        (0..n).for_each(|wr_id| s.nic.post_recv(s.qpn, &[RecvWr { wr_id, sges: &sges }]).expect("posted"));
    };
    post(&mut s, 5);
    s.write(100, true);
    let credits = |code, msn| Some(Aeth { syndrome: Syndrome::Ack(code), msn });
    assert_eq!(s.lines(), [(Opcode::Acknowledge, 100, credits(4, 1))], "5 rounds down to 4");
    s.deliver(Header::new(&s.bth(Opcode::SendOnly, 101, true)), &[1; 8]);
    s.deliver(Header::new(&s.bth(Opcode::SendOnly, 102, true)), &[1; 8]);
    assert_eq!(s.lines(), [(Opcode::Acknowledge, 102, credits(3, 3))]);
    s.add(103);
    assert_eq!(s.lines(), [(Opcode::AtomicAcknowledge, 103, credits(3, 4))]);
}

#[test]
fn credits_of_the_peer_hold_back_what_takes_a_receive() {
    let mut s = Script::new();
    let credits = |s: &mut Script, psn, code, msn| {
        let aeth = Aeth { syndrome: Syndrome::Ack(code), msn };
        s.deliver(Header::new(&s.bth(Opcode::Acknowledge, psn, false)).with_aeth(aeth), &[]);
    };
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [200]);
    credits(&mut s, 200, 2, 1);
    for _ in 0..4 {
        s.post(SendOp::Send, 8);
    }
    s.post(SendOp::Write(s.remote()), 8);
    assert_eq!(s.psns(), [201, 202], "two receives");
    credits(&mut s, 202, 0, 3);
    assert_eq!(s.psns(), [203], "one more, which asks for credits");
    assert_eq!(s.psns(), []);
    credits(&mut s, 203, 4, 4);
    assert_eq!(s.psns(), [204, 205]);
    credits(&mut s, 205, 0, 6);
    s.post(SendOp::Write(s.remote()), 8);
    s.post(SendOp::Read(s.remote()), 8);
    assert_eq!(s.psns(), [206, 207], "what takes no receive goes on");
    s.post(SendOp::WriteImm(s.remote(), 1), 8);
    assert_eq!(s.psns(), []);
    // An acknowledgement that moves nothing brings credits.
    credits(&mut s, 205, 3, 6);
    assert_eq!(s.psns(), [208]);
}

#[test]
fn packets_carry_the_hop_limit_of_their_address() {
    let mut s = Script::new();
    let mut buf = Vec::new();
    s.post(SendOp::Write(s.remote()), 8);
    let transmit = s.nic.poll_transmit(s.now, &mut buf).expect("a packet");
    assert_eq!((transmit.hop_limit, transmit.traffic_class), (64, 0));
    let cq = s.cq;
    let qpn = s.nic.create_qp(&QpInit::new(QpType::Rc, cq, 4)).expect("a QP");
    let av = AddressVector { hop_limit: 3, traffic_class: 0xb8, ..AddressVector::new(Gid::from(s.peer.ip())) };
    s.nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).expect("Init");
    let rtr = RtrAttr { mtu: PathMtu::Mtu256, ..RtrAttr::new(PEER_QPN, av) };
    s.nic.modify_qp(qpn, &QpModify::Rtr(rtr)).expect("RTR");
    s.nic.modify_qp(qpn, &QpModify::Rts(RtsAttr::default())).expect("RTS");
    let op = SendOp::Write(s.remote());
    let wr = SendWr { wr_id: 1, op, payload: Payload::Inline(&[1]), flags: SendFlags::empty(), dest: None };
    s.nic.post_send(qpn, &[wr]).expect("posted");
    let transmit = s.nic.poll_transmit(s.now, &mut buf).expect("a packet");
    assert_eq!((transmit.hop_limit, transmit.traffic_class), (3, 0xb8));
}

#[test]
fn the_limit_of_a_shared_queue_is_armed_again() {
    let mut s = Script::new();
    let srq = s.nic.create_srq(&SrqInit { max_wr: 8, max_sge: 1, limit: 0 }).expect("an SRQ");
    let refused = VerbsError::OutOfRange { what: "limit of an SRQ", value: 9, min: 0, max: 8 };
    assert_eq!(s.nic.arm_srq(srq, 9), Err(refused));
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, s.cq, 4) };
    let qpn = s.nic.create_qp(&init).expect("a QP");
    s.nic.modify_qp(qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).expect("Init");
    let av = AddressVector::new(Gid::from(s.peer.ip()));
    let rtr = RtrAttr { mtu: PathMtu::Mtu256, ..RtrAttr::new(PEER_QPN, av) };
    s.nic.modify_qp(qpn, &QpModify::Rtr(rtr)).expect("RTR");
    s.qpn = qpn;
    for wr_id in 0..4 {
        s.nic.post_srq_recv(srq, &[RecvWr { wr_id, sges: &[] }]).expect("posted");
    }
    let mut told = Vec::new();
    for (psn, limit) in [(0, 0), (1, 3), (2, 2), (3, 0)] {
        s.nic.arm_srq(srq, limit).expect("armed");
        s.deliver(Header::new(&s.bth(Opcode::SendOnly, psn, true)), &[]);
        told.push(events(&mut s).contains(&AsyncEvent::SrqLimit(srq)));
    }
    assert_eq!(told, [false, true, true, false]);
}
