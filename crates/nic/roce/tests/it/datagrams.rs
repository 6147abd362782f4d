//! Datagram queue pairs: literal packets, what lands where, what is refused and what is dropped.

use std::time::Duration;

use crate::datagram::*;
use crate::pair::{LinkConditions, Setup, World, pattern};
use proptest::prelude::*;
use roce::wire::{Bth, DEFAULT_PKEY, Deth, Header, Opcode, PseudoHeader};
use verbs::*;

fn grh(ud: &Ud, addr: u64) -> Grh {
    let area = ud.read(addr, GRH_BYTES);
    Grh::parse(area.first_chunk().expect("40 bytes")).expect("a header")
}

#[test]
fn literal_bytes_on_the_wire() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    world.record = true;
    a.send(&mut world, 1, SendOp::Send, b"hello", &b);
    a.send(&mut world, 2, SendOp::SendImm(0x0102_0304), b"", &b);
    world.settle();
    let (to, from) = (b.qpn.0.to_be_bytes(), a.qpn.0.to_be_bytes());
    let mut plain = vec![0x64, 0x40 | 3 << 4, 0xff, 0xff, 0, to[1], to[2], to[3], 0, 0xff, 0xff, 0xfe];
    plain.extend([0x12, 0x34, 0x56, 0x78, 0, from[1], from[2], from[3]]);
    plain.extend(b"hello\0\0\0");
    let mut with_imm = vec![0x65, 0x40, 0xff, 0xff, 0, to[1], to[2], to[3], 0, 0xff, 0xff, 0xff];
    with_imm.extend([0x12, 0x34, 0x56, 0x78, 0, from[1], from[2], from[3], 1, 2, 3, 4]);
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    for (index, (seen, expected)) in world.seen.iter().zip([plain, with_imm]).enumerate() {
        let icrc = route.icrc(&expected, index as u16);
        assert_eq!(seen.bytes, [&expected[..], &icrc].concat());
    }
    assert_eq!(world.seen.len(), 2);
}

#[test]
fn data_header_and_completions() {
    for ipv6 in [false, true] {
        let mut world = World::new(Setup { ipv6, ..Setup::default() });
        let [a, b] = Ud::pair(&mut world);
        for (i, len) in [0usize, 1, 5, 1023, 1024].into_iter().enumerate() {
            let (id, data) = (i as u64, pattern(len, i as u64));
            b.recv(&mut world, id, 4096 * id, 2048);
            a.send(&mut world, id, if i == 2 { SendOp::SendImm(77) } else { SendOp::Send }, &data, &b);
            world.settle();
            let sent = a.poll(&mut world);
            assert_eq!(
                (sent.len(), sent[0].wr_id, sent[0].status, sent[0].opcode),
                (1, id, Status::Success, WcOpcode::Send)
            );
            let got = b.poll(&mut world);
            assert_eq!(
                (got.len(), got[0].wr_id, got[0].status, got[0].opcode),
                (1, id, Status::Success, WcOpcode::Recv)
            );
            assert_eq!((got[0].byte_len as usize, got[0].src_qpn), (40 + len, Some(a.qpn)));
            assert_eq!((got[0].qpn, got[0].imm), (b.qpn, (i == 2).then_some(77)));
            assert!(b.read(4096 * id + 40, len) == data, "{len} bytes");
            let header = grh(&b, 4096 * id);
            assert_eq!((header.source, header.destination), (world.addresses[0].ip(), world.addresses[1].ip()));
            let imm = if i == 2 { 4 } else { 0 };
            assert_eq!(usize::from(header.payload_len), 8 + 12 + 8 + imm + len.next_multiple_of(4) + 4);
        }
        assert_eq!(world.nics[1].counters_detail().served_datagram, 5);
        assert_eq!(world.nics[1].counters_detail().tx_packets, 0, "nothing answers a datagram");
    }
}

#[test]
fn refused_when_posted() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    let long = [a.sge(0, 1000), a.sge(2000, 25)];
    let to = Some(a.dest(&b));
    let refused = a.try_send(&mut world, 1, SendOp::Send, Payload::Sges(&long), to).expect_err("too long");
    assert!(matches!(refused.cause, VerbsError::OutOfRange { value: 1025, max: 1024, .. }), "{refused}");
    assert!(refused.to_string().contains("path MTU"), "{refused}");
    let write = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) });
    let refused = a.try_send(&mut world, 1, write, Payload::Inline(b"x"), to).expect_err("not for datagrams");
    assert_eq!(refused.cause, VerbsError::NotOnTransport { qp_type: QpType::Ud, verb: Verb::Write });
    assert!(a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), None).is_err(), "to nowhere");
    let nobody = UdDest { ah: AhId(77), ..a.dest(&b) };
    let refused = a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), Some(nobody)).expect_err("no handle");
    assert_eq!(refused.cause, VerbsError::NoSuch("address handle"));
    let beyond = UdDest { qpn: Qpn(1 << 24), ..a.dest(&b) };
    assert!(a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), Some(beyond)).is_err());
    assert!(!world.nics[0].has_transmit());
}

#[test]
fn drops_are_counted_and_leave_the_receive() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    let drops = |world: &World| {
        let c = world.nics[1].counters_detail();
        [c.drop_no_receive, c.drop_receive_too_short, c.drop_wrong_qkey]
    };
    a.send(&mut world, 1, SendOp::Send, b"early", &b);
    world.settle();
    assert_eq!(drops(&world), [1, 0, 0]);
    b.recv(&mut world, 9, 0, 43);
    a.send(&mut world, 2, SendOp::Send, b"four", &b);
    world.settle();
    assert_eq!(drops(&world), [1, 1, 0]);
    let wrong = UdDest { qkey: Qkey(1), ..a.dest(&b) };
    a.try_send(&mut world, 3, SendOp::Send, Payload::Inline(b"ok"), Some(wrong)).expect("posted");
    world.settle();
    assert_eq!(drops(&world), [1, 1, 1]);
    a.send(&mut world, 4, SendOp::Send, b"fit", &b);
    world.settle();
    let got = b.poll(&mut world);
    assert_eq!((got.len(), got[0].wr_id, got[0].byte_len), (1, 9, 43));
    assert_eq!(b.read(40, 3), b"fit");
    assert_eq!(a.poll(&mut world).len(), 4, "the sender does not hear of drops");
}

/// IBTA 10.2.5: the highest bit of a work request's key asks for the QP's own.
#[test]
fn controlled_queue_key() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    b.recv(&mut world, 1, 0, 100);
    let own = UdDest { qkey: Qkey(0x8000_0000), ..a.dest(&b) };
    a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), Some(own)).expect("posted");
    world.settle();
    assert_eq!(b.poll(&mut world).len(), 1);
}

#[test]
fn runs_share_sends_and_keep_their_order() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    for id in 0..100 {
        b.recv(&mut world, id, id * 256, 200);
        a.try_send(&mut world, id, SendOp::Send, Payload::Inline(&[id as u8; 16]), Some(a.dest(&b))).expect("posted");
    }
    world.settle();
    assert_eq!(world.sends, [64, 36], "one destination, equal lengths");
    let got = b.poll(&mut world);
    assert!(
        got.iter().enumerate().all(|(i, c)| c.wr_id == i as u64 && b.read(c.wr_id * 256 + 40, 16) == [i as u8; 16])
    );
    assert_eq!(got.len(), 100);
    assert_eq!(a.status(&world).sq_psn, Psn::new(98));
}

/// The handle may go as soon as the work request is posted.
#[test]
fn address_handles_may_go_early() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    b.recv(&mut world, 1, 0, 100);
    a.send(&mut world, 1, SendOp::Send, b"x", &b);
    world.nics[0].destroy_ah(a.ah).expect("it is there");
    world.settle();
    assert_eq!(b.poll(&mut world).len(), 1);
}

#[test]
fn a_fault_of_a_send_stops_the_send_queue_alone() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    a.recv(&mut world, 50, 0, 100);
    let bad = [Sge { addr: 0, len: 4, lkey: Lkey(0) }];
    let dest = Some(a.dest(&b));
    a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), dest).expect("posted");
    a.try_send(&mut world, 2, SendOp::Send, Payload::Sges(&bad), dest).expect("posted");
    a.try_send(&mut world, 3, SendOp::Send, Payload::Inline(b"x"), dest).expect("posted");
    world.settle();
    let ends: Vec<_> = a.poll(&mut world).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::Success), (2, Status::LocProtErr), (3, Status::WrFlushErr)]);
    assert_eq!(a.status(&world).state, QpState::Sqe);
    a.try_send(&mut world, 4, SendOp::Send, Payload::Inline(b"x"), dest).expect("posted");
    b.send(&mut world, 5, SendOp::Send, b"in", &a);
    world.settle();
    let ends: Vec<_> = a.poll(&mut world).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(4, Status::WrFlushErr), (50, Status::Success)], "it still receives");
    world.nics[0].modify_qp(a.qpn, &rts(0)).expect("SQE to RTS");
    b.recv(&mut world, 6, 0, 100);
    a.send(&mut world, 6, SendOp::Send, b"again", &b);
    world.settle();
    let ends: Vec<_> = b.poll(&mut world).iter().map(|c| (c.wr_id, c.opcode)).collect();
    assert_eq!(ends, [(5, WcOpcode::Send), (6, WcOpcode::Recv)]);
}

#[test]
fn a_fault_of_a_receive_ends_the_qp() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    let bad = [Sge { addr: 0, len: 100, lkey: Lkey(0) }];
    world.nics[1].post_recv(b.qpn, &[RecvWr { wr_id: 1, sges: &bad }]).expect("posted");
    b.recv(&mut world, 2, 0, 100);
    a.send(&mut world, 1, SendOp::Send, b"x", &b);
    world.settle();
    let ends: Vec<_> = b.poll(&mut world).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::LocProtErr), (2, Status::WrFlushErr)]);
    assert_eq!(b.status(&world).state, QpState::Err);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::QpFatal(b.qpn)));
}

#[test]
fn states() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    b.recv(&mut world, 1, 0, 100);
    world.nics[0].modify_qp(a.qpn, &QpModify::Sqd).expect("SQD");
    a.send(&mut world, 1, SendOp::Send, b"x", &b);
    world.settle();
    assert_eq!((b.poll(&mut world).len(), a.status(&world).sq_outstanding), (0, 1), "nothing begins while draining");
    world.nics[0].modify_qp(a.qpn, &rts(0)).expect("RTS again");
    world.settle();
    assert_eq!((b.poll(&mut world).len(), a.poll(&mut world).len()), (1, 1));
    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("Err");
    a.send(&mut world, 2, SendOp::Send, b"x", &b);
    world.settle();
    assert_eq!(world.nics[1].counters_detail().drop_wrong_state, 1);
    b.recv(&mut world, 3, 0, 100);
    assert_eq!(b.poll(&mut world)[0].status, Status::WrFlushErr);
    world.nics[1].modify_qp(b.qpn, &QpModify::Reset).expect("Reset");
    let wr = [RecvWr { wr_id: 1, sges: &[] }];
    assert!(matches!(world.nics[1].post_recv(b.qpn, &wr), Err(PostError { cause: VerbsError::WrongState { .. }, .. })));
}

#[test]
fn a_shared_receive_queue_serves_both_services() {
    let mut world = World::new(Setup::default());
    let srq = world.nics[1].create_srq(&SrqInit { max_wr: 8, max_sge: 2, limit: 1 }).expect("an SRQ");
    let (a, b) = (Ud::new(&mut world, 0, None), Ud::new(&mut world, 1, Some(srq)));
    let wish = crate::pair::Wish { srq: Some(srq), ..Default::default() };
    let [c, d] = crate::pair::connect_with(&mut world, [&Default::default(), &wish]);
    b.recv(&mut world, 1, 0, 100);
    b.recv(&mut world, 2, 200, 100);
    a.send(&mut world, 1, SendOp::Send, b"datagram", &b);
    world.settle();
    assert_eq!(b.poll(&mut world)[0].wr_id, 1);
    c.send(&mut world, 1, SendOp::Send, 0, 50);
    world.settle();
    assert_eq!(d.poll(&mut world)[0].wr_id, 2);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::SrqLimit(srq)));
}

/// A datagram to a connected QP and a connected QP's packet to a datagram QP do nothing.
#[test]
fn services_do_not_mix() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    let [c, d] = crate::pair::connect(&mut world);
    d.recv(&mut world, 1, 0, 100);
    let dest = UdDest { ah: a.ah, qpn: d.qpn, qkey: QKEY };
    a.try_send(&mut world, 1, SendOp::Send, Payload::Inline(b"x"), Some(dest)).expect("posted");
    world.settle();
    let route = PseudoHeader::new(world.addresses[0], world.addresses[1]).expect("one family");
    let (dest_qpn, psn) = (b.qpn, Psn::new(0));
    let opcode = Opcode::SendOnly.byte();
    let (solicited, pad, version, pkey, ack_request) = (false, 0, 0, DEFAULT_PKEY, true);
    let bth = Bth { opcode, solicited, pad, version, pkey, dest_qpn, ack_request, psn };
    let mut bytes = Header::new(&bth).as_bytes().to_vec();
    bytes.extend(route.icrc(&bytes, 0));
    world.inject(1, 0, bytes);
    world.settle();
    assert_eq!(world.nics[1].counters_detail().drop_wrong_service, 2);
    c.send(&mut world, 1, SendOp::Send, 0, 8);
    world.settle();
    assert_eq!(d.poll(&mut world).len(), 1);
}

#[test]
fn loss_is_silent_and_duplicates_arrive_twice() {
    let conditions = LinkConditions { loss: 200, duplicate: 200, reorder: 100, damage: 50 };
    let mut world = World::new(Setup { conditions, ..Setup::default() });
    let [a, b] = Ud::pair(&mut world);
    for id in 0..200 {
        b.recv(&mut world, id, id * 128, 128);
        a.try_send(&mut world, id, SendOp::SendImm(id as u32), Payload::Inline(&[id as u8; 8]), Some(a.dest(&b)))
            .expect("posted");
    }
    world.settle();
    assert_eq!(a.poll(&mut world).len(), 200);
    let got = b.poll(&mut world);
    assert!(got.len() > 100 && got.len() < 200, "{} of 200 arrived", got.len());
    for c in got {
        let imm = c.imm.expect("each has one");
        assert_eq!(b.read(c.wr_id * 128 + 40, 8), [imm as u8; 8]);
    }
    assert_eq!(world.nics[0].counters_detail().retransmits, 0);
}

#[test]
fn a_completion_queue_that_overflows_ends_the_qp() {
    let mut world = World::new(Setup::default());
    let [a, b] = Ud::pair(&mut world);
    let cq = world.nics[0].create_cq(1).expect("a CQ");
    let qpn = world.nics[0].create_qp(&init_of(cq, None)).expect("a QP");
    let small = Ud { qpn, cq, ..a };
    let to_rtr = rtr(&world);
    for to in [QpModify::Init { access: Access::empty(), qkey: QKEY }, to_rtr, rts(0)] {
        world.nics[0].modify_qp(qpn, &to).expect("a transition");
    }
    for id in 0..3 {
        small.try_send(&mut world, id, SendOp::Send, Payload::Inline(b"x"), Some(small.dest(&b))).expect("posted");
    }
    world.run_for(Duration::from_millis(1));
    assert_eq!(small.status(&world).state, QpState::Err);
    assert_eq!(small.poll(&mut world).len(), 1);
}

fn opcodes() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0x64u8), 3 => Just(0x65u8), 1 => any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Anyone may send anything with a right ICRC: it fills a posted receive within its bounds, or it is counted.
    #[test]
    fn any_packets(
        packets in proptest::collection::vec(
            (opcodes(), prop::bool::weighted(0.8), 0u8..4, 0usize..1400, any::<u16>(), any::<u32>()), 1..60,
        ),
        receives in proptest::collection::vec(0usize..1200, 0..40),
    ) {
        let mut world = World::new(Setup::default());
        let [_, b] = Ud::pair(&mut world);
        let fence = pattern(1 << 20, 7);
        b.region.write(0, &fence).expect("inside");
        for (i, len) in receives.iter().enumerate() {
            b.recv(&mut world, i as u64, i as u64 * 2048, *len);
        }
        let mut buf = Vec::new();
        for &(opcode, key_is_right, pad, len, port, other) in &packets {
            let source = std::net::SocketAddr::new([10, 0, (other >> 8) as u8, other as u8].into(), port);
            let route = PseudoHeader::new(source, world.addresses[1]).expect("one family");
            let (solicited, version, pkey, ack_request) = (other & 1 != 0, 0, DEFAULT_PKEY, other & 2 != 0);
            let bth = Bth { opcode, solicited, pad, version, pkey, dest_qpn: b.qpn, ack_request, psn: Psn::new(other) };
            let qkey = if key_is_right { QKEY } else { Qkey(other) };
            let header = Header::new(&bth).with_deth(Deth { qkey, src_qpn: Qpn(other) });
            let mut bytes = [header.as_bytes(), &pattern(len & !3, 3)].concat();
            bytes.extend(route.icrc(&bytes, 0));
            world.nics[1].handle_datagram(world.now, source, &bytes, 0);
            prop_assert!(world.nics[1].poll_transmit(world.now, &mut buf).is_none(), "nothing answers");
        }
        let got = b.poll(&mut world);
        let counters = world.nics[1].counters_detail();
        prop_assert_eq!(counters.served_datagram, got.len() as u64);
        prop_assert_eq!(counters.served_datagram + counters.drops(), packets.len() as u64);
        prop_assert_eq!(b.status(&world).state, QpState::Rts);
        let mut filled = vec![0; receives.len()];
        for (i, c) in got.iter().enumerate() {
            prop_assert_eq!((c.status, c.wr_id), (Status::Success, i as u64), "receives are used in order");
            prop_assert!(c.byte_len >= 40 && c.byte_len as usize <= receives[i]);
            filled[i] = c.byte_len as usize;
        }
        for (i, filled) in filled.iter().enumerate() {
            let (from, to) = (i * 2048 + filled, (i + 1) * 2048);
            prop_assert!(b.read(from as u64, to - from) == fence[from..to], "beyond what receive {i} says");
        }
    }

    /// What is sent arrives, in order, for any lengths, however they share sends.
    #[test]
    fn any_lengths(lens in proptest::collection::vec(0usize..=1024, 1..60), ipv6 in any::<bool>(), gso in 1usize..64) {
        let mut world = World::new(Setup { ipv6, max_gso_segments: gso, ..Setup::default() });
        let [a, b] = Ud::pair(&mut world);
        for (i, &len) in lens.iter().enumerate() {
            let (id, at) = (i as u64, (1 << 19) + i as u64 * 1024);
            b.recv(&mut world, id, id * 2048, 40 + len);
            a.region.write(at, &pattern(len, id)).expect("inside");
            let sges = [a.sge(at, len / 2), a.sge(at + len as u64 / 2, len - len / 2)];
            a.try_send(&mut world, id, SendOp::Send, Payload::Sges(&sges), Some(a.dest(&b))).expect("posted");
        }
        world.settle();
        let got = b.poll(&mut world);
        prop_assert_eq!(got.len(), lens.len());
        for (i, (c, &len)) in got.iter().zip(&lens).enumerate() {
            prop_assert_eq!((c.wr_id, c.byte_len as usize), (i as u64, 40 + len));
            prop_assert!(b.read(i as u64 * 2048 + 40, len) == pattern(len, i as u64));
        }
    }
}
