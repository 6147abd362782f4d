//! Unreliable connections: literal packets, what a gap does, what is refused and dropped, states, and a bad link.

use std::collections::BTreeSet;

use crate::pair::*;
use roce::wire::{Bth, DEFAULT_PKEY, Header, Opcode, PseudoHeader};
use verbs::*;

fn wish() -> Wish {
    Wish { qp_type: QpType::Uc, ..Wish::default() }
}

fn connected(world: &mut World) -> [End; 2] {
    connect_with(world, [&wish(), &wish()])
}

fn calm() -> World {
    World::new(Setup::default())
}

/// A world that loses the packets whose places in the order of sending are given.
fn losing(lost: &'static [usize]) -> World {
    let mut world = calm();
    let mut place = 0;
    world.filter = Some(Box::new(move |_| {
        place += 1;
        !lost.contains(&(place - 1))
    }));
    world
}

/// Completions as (request, status, opcode).
fn ends(end: &End, world: &mut World) -> Vec<(u64, Status, WcOpcode)> {
    end.poll(world).iter().map(|c| (c.wr_id, c.status, c.opcode)).collect()
}

const OK: Status = Status::Success;

#[test]
fn literal_bytes_on_the_wire() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    world.record = true;
    a.region.write(0, b"hello").expect("inside");
    a.send(&mut world, 1, SendOp::Send, 0, 5);
    a.send(&mut world, 2, SendOp::WriteImm(b.remote(0x1234), 0x0a0b_0c0d), 0, 0);
    world.settle();
    let to = b.qpn.0.to_be_bytes();
    let mut plain = vec![0x24, 0x40 | 3 << 4, 0xff, 0xff, 0, to[1], to[2], to[3], 0, 0xff, 0xff, 0xf0];
    plain.extend(b"hello\0\0\0");
    let mut write = vec![0x2b, 0x40, 0xff, 0xff, 0, to[1], to[2], to[3], 0, 0xff, 0xff, 0xf1];
    write.extend([0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    write.extend(b.mr.rkey.0.to_be_bytes());
    write.extend([0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    assert_eq!(world.seen.len(), 2, "nothing is answered");
    for (seen, expected) in world.seen.iter().zip([plain, write]) {
        let (found, icrc) = seen.bytes.split_at(seen.bytes.len() - 4);
        assert_eq!(found, expected);
        assert!([0, 1].iter().any(|&id| route.icrc(&expected, id) == icrc), "ICRC");
    }
}

#[test]
fn opcodes_of_a_long_message_and_psns_across_the_end_of_their_space() {
    for (op, opcodes) in
        [(0, [0x20, 0x21, 0x22]), (1, [0x20, 0x21, 0x23]), (2, [0x26, 0x27, 0x28]), (3, [0x26, 0x27, 0x29])]
    {
        let mut world = calm();
        let short = Wish { sq_psn: 0xff_ffff, ..wish() };
        let [a, b] = connect_with(&mut world, [&short, &wish()]);
        world.record = true;
        b.recv(&mut world, 1, 0, 4096);
        let to = b.remote(8_000);
        let op = [SendOp::Send, SendOp::SendImm(7), SendOp::Write(to), SendOp::WriteImm(to, 7)][op];
        let data = a.fill(0, 2_050, 3);
        a.send(&mut world, 5, op, 0, 2_050);
        world.settle();
        let seen: Vec<_> = world.seen.iter().map(|s| (s.opcode(), s.psn())).collect();
        assert_eq!(seen, [(opcodes[0], 0xff_ffff), (opcodes[1], 0), (opcodes[2], 1)]);
        assert!(world.seen.iter().all(|s| s.bytes[8] & 0x80 == 0), "no acknowledgement is asked for");
        let at = if matches!(op, SendOp::Write(_) | SendOp::WriteImm(..)) { 8_000 } else { 0 };
        assert!(b.read(at, 2_050) == data);
        assert_eq!(a.poll(&mut world).len(), 1);
        assert_eq!(b.poll(&mut world).len(), usize::from(!matches!(op, SendOp::Write(_))));
        let (sender, receiver) = (world.nics[0].counters_detail(), world.nics[1].counters_detail());
        assert_eq!((sender.tx_packets, receiver.tx_packets, receiver.drops()), (3, 0, 0));
    }
}

#[test]
fn counters_and_completions() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    for id in 0..3 {
        b.recv(&mut world, id, 0, 4096);
    }
    let to = b.remote(8_000);
    for (id, op) in
        [SendOp::Send, SendOp::SendImm(9), SendOp::Write(to), SendOp::WriteImm(to, 8)].into_iter().enumerate()
    {
        a.send(&mut world, id as u64, op, 0, 3_000);
    }
    assert_eq!(a.poll(&mut world).len(), 0, "nothing has left yet");
    world.settle();
    let sent = [WcOpcode::Send, WcOpcode::Send, WcOpcode::Write, WcOpcode::Write];
    let sent: Vec<_> = (0..).zip(sent).map(|(id, opcode)| (id, OK, opcode)).collect();
    assert_eq!(ends(&a, &mut world), sent);
    let got = b.poll(&mut world);
    assert_eq!(got.iter().map(|c| c.imm).collect::<Vec<_>>(), [None, Some(9), Some(8)]);
    assert!(got.iter().all(|c| c.byte_len == 3_000 && c.src_qpn.is_none() && c.qpn == b.qpn));
    assert_eq!(got[0].placed, Placed::Nothing);
    assert_eq!(got[2].placed, Placed::Scattered, "the same place twice");
    let c = world.nics[1].counters_detail();
    assert_eq!((c.served_send, c.served_write, c.served_write_imm), (2, 1, 1));
    let c = world.nics[0].counters_detail();
    assert_eq!((c.verbs_send, c.verbs_send_imm, c.verbs_write, c.verbs_write_imm), (1, 1, 1, 1));
}

#[test]
fn operations_that_need_an_answer_are_refused() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    let remote = b.remote(0);
    for (op, verb) in [
        (SendOp::Read(remote), Verb::Read),
        (SendOp::FetchAdd { remote, add: 1 }, Verb::FetchAdd),
        (SendOp::CmpSwap { remote, compare: 0, swap: 1 }, Verb::CmpSwap),
    ] {
        let refused = a.try_send(&mut world, 1, op, 0, 8, SendFlags::SIGNALED).expect_err("it does not exist");
        assert_eq!(refused.cause, VerbsError::NotOnTransport { qp_type: QpType::Uc, verb });
    }
    assert!(!world.nics[0].has_transmit());
}

/// Three messages of three packets; of the second one packet is lost.
#[test]
fn a_message_without_one_of_its_packets_does_not_arrive() {
    for (lost, abandoned, gap, rest) in [(&[3][..], 0, 0, 2), (&[4], 1, 1, 0), (&[5], 1, 0, 0), (&[3, 5], 0, 0, 1)] {
        let lost: &'static [usize] = match lost {
            [3] => &[3],
            [4] => &[4],
            [5] => &[5],
            _ => &[3, 5],
        };
        let mut world = losing(lost);
        let [a, b] = connected(&mut world);
        for id in 0..3 {
            b.recv(&mut world, id, id * 4_096, 4_096);
        }
        for id in 0..3 {
            a.fill(id * 4_096, 3_000, id);
            a.send(&mut world, id, SendOp::SendImm(id as u32), id * 4_096, 3_000);
        }
        world.settle();
        assert_eq!(a.poll(&mut world).len(), 3, "the sender does not hear of it");
        let got = b.poll(&mut world);
        // The receive that the second message took serves the third.
        let seen: Vec<_> = got.iter().map(|c| (c.wr_id, c.imm, c.byte_len)).collect();
        assert_eq!(seen, [(0, Some(0), 3_000), (1, Some(2), 3_000)], "without {lost:?}");
        assert!(b.read(4_096, 3_000) == pattern(3_000, 2));
        let c = world.nics[1].counters_detail();
        assert_eq!(
            (c.messages_abandoned, c.drop_out_of_order, c.drop_rest_of_message),
            (abandoned, gap, rest),
            "without {lost:?}"
        );
        assert_eq!((c.naks_sent, c.tx_packets), (0, 0));
    }
}

#[test]
fn a_dropped_write_is_not_told_and_leaves_the_receive() {
    let mut world = losing(&[1]);
    let [a, b] = connected(&mut world);
    b.recv(&mut world, 1, 0, 64);
    a.fill(0, 3_000, 1);
    a.send(&mut world, 1, SendOp::WriteImm(b.remote(8_000), 1), 0, 3_000);
    a.send(&mut world, 2, SendOp::WriteImm(b.remote(20_000), 2), 0, 3_000);
    world.settle();
    let got = b.poll(&mut world);
    assert_eq!(got.iter().map(|c| (c.wr_id, c.imm)).collect::<Vec<_>>(), [(1, Some(2))]);
    assert!(b.read(20_000, 3_000) == pattern(3_000, 1));
    assert!(b.read(8_000, 1_024) == pattern(3_000, 1)[..1_024], "what came before the gap was placed");
    assert_eq!(b.read(9_024, 1_976), [0; 1_976], "and nothing behind it");
    assert_eq!(got[0].placed, Placed::Scattered, "the completion does not claim one whole piece");
}

/// Between two messages that arrive, others may be lost as a whole.
#[test]
fn lost_messages_are_skipped() {
    let mut world = losing(&[1, 2]);
    let [a, b] = connected(&mut world);
    for id in 0..4 {
        b.recv(&mut world, id, 0, 64);
        a.send(&mut world, id, SendOp::SendImm(id as u32), 0, 8);
    }
    world.settle();
    assert_eq!(b.poll(&mut world).iter().map(|c| c.imm).collect::<Vec<_>>(), [Some(0), Some(3)]);
    assert_eq!(world.nics[1].counters_detail().drops(), 0);
}

#[test]
fn a_message_without_receive_is_dropped_as_a_whole() {
    for op in [SendOp::Send, SendOp::SendImm(1)] {
        let mut world = calm();
        let [a, b] = connected(&mut world);
        a.send(&mut world, 1, op, 0, 3_000);
        world.settle();
        b.recv(&mut world, 9, 0, 4_096);
        a.send(&mut world, 2, op, 0, 8);
        world.settle();
        assert_eq!(ends(&b, &mut world), [(9, OK, WcOpcode::Recv)]);
        let c = world.nics[1].counters_detail();
        assert_eq!((c.drop_no_receive, c.drop_rest_of_message, c.rnr_naks_sent), (1, 2, 0));
    }
}

/// A receive that is posted while the message is under way does not save it.
#[test]
fn a_receive_in_the_middle_of_a_message_is_not_taken() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    world.step();
    b.recv(&mut world, 9, 0, 4_096);
    world.settle();
    assert_eq!(b.poll(&mut world), []);
}

#[test]
fn a_message_longer_than_its_receive_is_dropped_and_the_receive_kept() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    b.region.write(0, &[0xee; 8_192]).expect("inside");
    b.recv(&mut world, 9, 0, 2_000);
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    a.send(&mut world, 2, SendOp::Send, 0, 2_001);
    a.send(&mut world, 3, SendOp::Send, 0, 2_000);
    world.settle();
    let got = b.poll(&mut world);
    assert_eq!(got.iter().map(|c| (c.wr_id, c.byte_len)).collect::<Vec<_>>(), [(9, 2_000)]);
    assert_eq!(b.read(2_000, 6_192), [0xee; 6_192]);
    assert_eq!(world.nics[1].counters_detail().drop_receive_too_short, 2);
}

#[test]
fn wrong_keys_and_rights_are_dropped_silently() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    let end = b.mr.len;
    for to in [RemoteAddr { rkey: Rkey(b.mr.rkey.0 ^ 1), addr: 0 }, b.remote(end - 2_999), b.remote(u64::MAX - 5)] {
        a.send(&mut world, 1, SendOp::Write(to), 0, 3_000);
    }
    world.settle();
    let c = world.nics[1].counters_detail();
    assert_eq!((c.drop_invalid_request, c.drop_rest_of_message, c.served_write), (3, 6, 0));
    assert_eq!((b.state(&world), a.poll(&mut world).len()), (QpState::Rts, 3));
    assert_eq!(b.read(0, 4_096), [0; 4_096]);
    // The QP itself may forbid WRITEs; SENDs go on.
    let mut world = calm();
    let [a, b] = connect_with(&mut world, [&wish(), &Wish { qp_access: Access::empty(), ..wish() }]);
    b.recv(&mut world, 1, 0, 64);
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 8);
    a.send(&mut world, 2, SendOp::Send, 0, 8);
    world.settle();
    assert_eq!(ends(&b, &mut world), [(1, OK, WcOpcode::Recv)]);
    assert_eq!(world.nics[1].counters_detail().drop_invalid_request, 1);
}

#[test]
fn a_shared_receive_queue_serves_connections_of_both_kinds() {
    let mut world = calm();
    let srq = world.nics[1].create_srq(&SrqInit { max_wr: 8, max_sge: 2, limit: 2 }).expect("an SRQ");
    let on_srq = Wish { srq: Some(srq), ..wish() };
    let [a, b] = connect_with(&mut world, [&wish(), &on_srq]);
    let [c, d] = connect_with(&mut world, [&Wish::default(), &Wish { srq: Some(srq), ..Wish::default() }]);
    for id in 1..=3 {
        b.recv(&mut world, id, 0, 4_096);
    }
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    world.settle();
    c.send(&mut world, 1, SendOp::Send, 0, 50);
    world.settle();
    assert_eq!(ends(&b, &mut world), [(1, OK, WcOpcode::Recv)]);
    assert_eq!(ends(&d, &mut world), [(2, OK, WcOpcode::Recv)]);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::SrqLimit(srq)));
    // In error the QP gives no receive of the SRQ back that it did not take.
    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("Err");
    assert_eq!(b.poll(&mut world), []);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::LastWqeReached(b.qpn)));
}

/// A receive of an SRQ that a dropped message took stays with the QP, and is flushed with it.
#[test]
fn a_taken_receive_is_flushed_with_its_qp() {
    let mut world = losing(&[1]);
    let srq = world.nics[1].create_srq(&SrqInit { max_wr: 8, max_sge: 2, limit: 0 }).expect("an SRQ");
    let [a, b] = connect_with(&mut world, [&wish(), &Wish { srq: Some(srq), ..wish() }]);
    b.recv(&mut world, 5, 0, 4_096);
    b.recv(&mut world, 6, 0, 4_096);
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    world.settle();
    assert_eq!(b.poll(&mut world), []);
    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("Err");
    assert_eq!(ends(&b, &mut world), [(5, Status::WrFlushErr, WcOpcode::Recv)]);
}

#[test]
fn a_fault_of_a_send_stops_the_send_queue_alone() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    for id in 50..53 {
        a.recv(&mut world, id, 0, 4_096);
        b.recv(&mut world, id, 0, 4_096);
    }
    // The second half of the message lies in memory that is gone when it is to be sent.
    let gone = [a.sge(0, 1_024), Sge { addr: 0, len: 2_000, lkey: Lkey(0) }];
    a.send(&mut world, 1, SendOp::SendImm(1), 0, 8);
    let wr = |wr_id, sges| SendWr {
        wr_id,
        op: SendOp::Send,
        payload: Payload::Sges(sges),
        flags: SendFlags::SIGNALED,
        dest: None,
    };
    world.nics[0].post_send(a.qpn, &[wr(2, &gone)]).expect("posted");
    a.send(&mut world, 3, SendOp::Send, 0, 8);
    world.settle();
    let send = |id, status| (id, status, WcOpcode::Send);
    assert_eq!(ends(&a, &mut world), [send(1, OK), send(2, Status::LocProtErr), send(3, Status::WrFlushErr)]);
    assert_eq!(a.state(&world), QpState::Sqe);
    a.send(&mut world, 4, SendOp::Send, 0, 8);
    b.send(&mut world, 5, SendOp::Send, 0, 8);
    world.settle();
    assert_eq!(ends(&a, &mut world), [send(4, Status::WrFlushErr), (50, OK, WcOpcode::Recv)], "it still receives");
    let before = world.nics[0].query_qp(a.qpn).expect("there").sq_psn;
    assert_eq!(before, Psn::new(0xff_fff2), "two packets have left, and their PSNs with them");
    world.nics[0].modify_qp(a.qpn, &QpModify::Rts(rts(&wish()))).expect("SQE to RTS");
    a.send(&mut world, 6, SendOp::SendImm(6), 0, 8);
    world.settle();
    assert_eq!(world.nics[0].query_qp(a.qpn).expect("there").sq_psn, before.plus(1));
    let got = b.poll(&mut world);
    assert_eq!(
        got.iter().filter(|c| c.opcode == WcOpcode::Recv).map(|c| c.imm).collect::<Vec<_>>(),
        [Some(1), Some(6)]
    );
}

#[test]
fn a_fault_of_a_receive_ends_the_qp() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    let bad = [Sge { addr: 0, len: 100, lkey: Lkey(0) }];
    world.nics[1].post_recv(b.qpn, &[RecvWr { wr_id: 1, sges: &bad }]).expect("posted");
    b.recv(&mut world, 2, 0, 100);
    a.send(&mut world, 1, SendOp::Send, 0, 8);
    world.settle();
    let flushed = [(1, Status::LocProtErr, WcOpcode::Recv), (2, Status::WrFlushErr, WcOpcode::Recv)];
    assert_eq!(ends(&b, &mut world), flushed);
    assert_eq!(b.state(&world), QpState::Err);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::QpFatal(b.qpn)));
}

#[test]
fn draining_finishes_the_message_that_was_begun() {
    let mut world = World::new(Setup { max_gso_segments: 1, ..Setup::default() });
    let [a, b] = connected(&mut world);
    b.recv(&mut world, 1, 0, 4_096);
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    a.send(&mut world, 2, SendOp::Send, 0, 3_000);
    let mut buf = Vec::new();
    world.nics[0].poll_transmit(world.now, &mut buf).expect("the first packet");
    world.inject(1, 0, buf.clone());
    world.nics[0].modify_qp(a.qpn, &QpModify::Sqd).expect("SQD");
    assert_eq!(world.nics[0].poll_event(), None, "a message is under way");
    world.settle();
    assert_eq!(world.nics[0].poll_event(), Some(AsyncEvent::SqDrained(a.qpn)));
    assert_eq!(ends(&a, &mut world), [(1, OK, WcOpcode::Send)]);
    assert_eq!(ends(&b, &mut world), [(1, OK, WcOpcode::Recv)]);
    b.recv(&mut world, 2, 0, 4_096);
    world.nics[0].modify_qp(a.qpn, &QpModify::Rts(rts(&wish()))).expect("RTS again");
    world.settle();
    assert_eq!(ends(&b, &mut world), [(2, OK, WcOpcode::Recv)]);
}

#[test]
fn services_do_not_mix() {
    let mut world = calm();
    let [a, b] = connected(&mut world);
    let [c, d] = connect(&mut world);
    b.recv(&mut world, 1, 0, 64);
    d.recv(&mut world, 1, 0, 64);
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    for (opcode, dest_qpn) in
        [(Opcode::SendOnly, b.qpn), (Opcode::UnreliableSendOnly, d.qpn), (Opcode::Acknowledge, b.qpn)]
    {
        let psn = Psn::new(0xff_fff0);
        let (solicited, pad, version, pkey, ack_request) = (false, 0, 0, DEFAULT_PKEY, false);
        let bth = Bth { opcode: opcode.byte(), solicited, pad, version, pkey, dest_qpn, ack_request, psn };
        let mut bytes = Header::new(&bth).as_bytes().to_vec();
        bytes.extend([0; 8]);
        bytes.extend(route.icrc(&bytes, 0));
        world.inject(1, 0, bytes);
    }
    world.settle();
    assert_eq!(world.nics[1].counters_detail().drop_wrong_service, 3);
    a.send(&mut world, 2, SendOp::Send, 0, 8);
    c.send(&mut world, 2, SendOp::Send, 0, 8);
    world.settle();
    assert_eq!((b.poll(&mut world).len(), d.poll(&mut world).len()), (1, 1));
}

#[test]
fn it_stays_on_its_wire_and_says_what_it_is() {
    let mut world = calm();
    let a = make_end(&mut world, 0, &wish());
    assert_eq!(world.nics[0].query_qp(a.qpn).expect("there").qp_type, QpType::Uc);
    let lent = world.nics[0].lend_qp(a.qpn).map(|_| ());
    assert_eq!(lent, Err(VerbsError::NotOnWire { wire: Wire::Iwarp, qp_type: QpType::Uc }));
}

#[test]
fn endpoints_connect_it_and_only_with_its_own_kind() {
    let mut world = calm();
    let attr = OfferAttr {
        access: Access::all(),
        mtu_max: PathMtu::Mtu1024,
        entropy: 5,
        wire: WirePolicy::Auto,
        peer: None,
        encrypt: verbs::Encrypt::Off,
        local: None,
    };
    let accept = AcceptAttr { peer: Capabilities::ROCE, timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 12 };
    let make = |world: &mut World, side: usize, qp_type| {
        let end = make_end(world, side, &Wish { qp_type, ..Wish::default() });
        let nic = &mut world.nics[side];
        nic.modify_qp(end.qpn, &QpModify::Reset).expect("Reset");
        let offer = nic.offer(end.qpn, &attr).expect("an endpoint");
        (end, offer)
    };
    let (a, from_a) = make(&mut world, 0, QpType::Uc);
    let (b, from_b) = make(&mut world, 1, QpType::Uc);
    let (_, reliable) = make(&mut world, 1, QpType::Rc);
    let refused = world.nics[0].accept(a.qpn, &from_a, &reliable, &accept);
    assert_eq!(refused.map(|_| ()), Err(VerbsError::ForeignEndpoint { found: 1, expected: 4 }));
    world.nics[0].accept(a.qpn, &from_a, &from_b, &accept).expect("connected");
    world.nics[1].accept(b.qpn, &from_b, &from_a, &accept).expect("connected");
    b.recv(&mut world, 1, 0, 4_096);
    a.send(&mut world, 1, SendOp::Send, 0, 3_000);
    world.settle();
    assert_eq!(ends(&b, &mut world), [(1, OK, WcOpcode::Recv)]);
}

/// Loss, reordering, duplication and damage: what arrives is whole, and only what was sent.
#[test]
fn no_message_arrives_with_a_hole() {
    const LENGTHS: [u32; 5] = [0, 8, 256, 700, 2_900];
    let (mut sent_in_all, mut arrived_in_all) = (0, 0);
    for seed in 0..60 {
        let conditions = LinkConditions { loss: 30, duplicate: 60, reorder: 60, damage: 10 };
        let setup = Setup {
            seed,
            conditions,
            mtu: PathMtu::Mtu256,
            max_gso_segments: 1 + seed as usize % 9,
            ..Setup::default()
        };
        let mut world = World::new(setup);
        let [a, b] = connected(&mut world);
        let count = 120_u64;
        let mut arrived = BTreeSet::new();
        for id in 0..16 {
            b.recv(&mut world, id, id * 4_096, 4_096);
        }
        for number in 0..count {
            let (len, at) = (LENGTHS[number as usize % LENGTHS.len()], number % 16 * 4_096);
            a.fill(at, len as usize, number);
            let imm = number as u32;
            let is_write = number % 3 == 0;
            let to = b.remote(65_536 + number * 4_096);
            let op = if is_write { SendOp::WriteImm(to, imm) } else { SendOp::SendImm(imm) };
            a.send(&mut world, number, op, at, len);
            if number % 4 == 3 {
                world.settle();
                assert_eq!(a.poll(&mut world).iter().filter(|c| c.status == OK).count(), 4);
                for c in b.poll(&mut world) {
                    let number = u64::from(c.imm.expect("each has one"));
                    let len = LENGTHS[number as usize % LENGTHS.len()];
                    assert_eq!((c.status, c.byte_len), (OK, len), "seed {seed}: {c:?}");
                    let is_write = c.opcode == WcOpcode::RecvWriteImm;
                    assert_eq!(is_write, number.is_multiple_of(3));
                    let at = if is_write { 65_536 + number * 4_096 } else { c.wr_id % 16 * 4_096 };
                    assert!(b.read(at, len as usize) == pattern(len as usize, number), "seed {seed}: {c:?} has a hole");
                    arrived.insert(number);
                    b.recv(&mut world, c.wr_id, c.wr_id % 16 * 4_096, 4_096);
                }
            }
        }
        let c = world.nics[1].counters_detail();
        assert!(c.messages_abandoned > 0 && c.drop_rest_of_message > 0, "seed {seed}: the conditions did nothing");
        assert_eq!((c.tx_packets, b.state(&world)), (0, QpState::Rts));
        sent_in_all += count;
        arrived_in_all += arrived.len() as u64;
    }
    let share = arrived_in_all * 100 / sent_in_all;
    assert!((40..95).contains(&share), "{share}% of the messages arrived");
}
