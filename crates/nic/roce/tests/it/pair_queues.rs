//! Queues and states: fence, drain, signalling, notification, inline, scatter lists, CQ overflow, transitions, objects.

use std::time::Duration;

use crate::pair::*;
use verbs::*;

fn pair() -> (World, End, End) {
    let mut world = World::new(Setup::default());
    world.record = true;
    let [a, b] = connect(&mut world);
    (world, a, b)
}

#[test]
fn a_fence_waits_for_answers() {
    let (mut world, a, b) = pair();
    a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 10_000);
    a.try_send(&mut world, 2, SendOp::Write(b.remote(0)), 0, 10, SendFlags::SIGNALED | SendFlags::FENCE)
        .expect("posted");
    a.wait(&mut world, 2);
    let at = |f: &dyn Fn(&Seen) -> bool| world.seen.iter().position(f).expect("seen");
    let last_answer = at(&|s| s.opcode() == 0x0f);
    let write = at(&|s| s.opcode() == 0x0a);
    assert!(write > last_answer);
}

#[test]
fn drained_queues_begin_nothing() {
    let (mut world, a, b) = pair();
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 1_000_000);
    world.step();
    world.nics[0].modify_qp(a.qpn, &QpModify::Sqd).expect("drained");
    a.send(&mut world, 2, SendOp::Write(b.remote(0)), 0, 10);
    world.settle();
    assert_eq!(a.poll(&mut world).iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1]);
    world.nics[0].modify_qp(a.qpn, &QpModify::Rts(rts(&Wish::default()))).expect("again");
    assert_eq!(a.wait_ok(&mut world).wr_id, 2);
}

#[test]
fn unsignalled_successes_are_silent() {
    let (mut world, a, b) = pair();
    for i in 0..10 {
        let flags = if i == 9 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.try_send(&mut world, i, SendOp::Write(b.remote(0)), 0, 10, flags).expect("posted");
    }
    assert_eq!(a.wait_ok(&mut world).wr_id, 9);
    assert_eq!(world.nics[0].query_qp(a.qpn).expect("there").sq_outstanding, 0);
}

#[test]
fn notification_and_solicited_events() {
    let (mut world, a, b) = pair();
    for i in 0..6 {
        b.recv(&mut world, i, 0, 100);
    }
    assert_eq!(world.nics[1].poll_event(), None);
    let send = |world: &mut World, flags, op| {
        a.try_send(world, 1, op, 0, 10, SendFlags::SIGNALED | flags).expect("posted");
        a.wait_ok(world);
        world.nics[1].take_notify()
    };
    world.nics[1].req_notify_cq(b.cq, true).expect("armed");
    assert!(!send(&mut world, SendFlags::empty(), SendOp::Send));
    assert!(send(&mut world, SendFlags::SOLICITED, SendOp::SendImm(1)));
    assert!(!send(&mut world, SendFlags::SOLICITED, SendOp::Send), "one for each arming");
    world.nics[1].req_notify_cq(b.cq, true).expect("armed");
    let write = SendOp::WriteImm(b.remote(0), 3);
    assert!(send(&mut world, SendFlags::SOLICITED, write));
    world.nics[1].req_notify_cq(b.cq, false).expect("armed");
    assert!(send(&mut world, SendFlags::empty(), SendOp::Send));
    world.nics[1].req_notify_cq(b.cq, true).expect("armed");
    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("to error");
    assert!(world.nics[1].take_notify(), "errors are always an event");
}

fn list_write<'a>(to: &End, payload: Payload<'a>) -> SendWr<'a> {
    SendWr { wr_id: 1, op: SendOp::Write(to.remote(3)), payload, flags: SendFlags::SIGNALED, dest: None }
}

#[test]
fn inline_bytes_are_taken_at_once_and_lists_are_gathered() {
    let (mut world, a, b) = pair();
    let mut bytes = b"inline payload".to_vec();
    world.nics[0].post_send(a.qpn, &[list_write(&b, Payload::Inline(&bytes))]).expect("posted");
    bytes.fill(0);
    a.wait_ok(&mut world);
    assert_eq!(b.read(3, 14), b"inline payload");

    let data = a.fill(0, 10_000, 4);
    let sges = [a.sge(0, 1), a.sge(5000, 3000), a.sge(100, 0), a.sge(9, 1025)];
    world.nics[0].post_send(a.qpn, &[list_write(&b, Payload::Sges(&sges))]).expect("posted");
    a.wait_ok(&mut world);
    let expected = [&data[..1], &data[5000..8000], &data[9..1034]].concat();
    assert_eq!(b.read(3, expected.len()), expected);

    let scatter = [b.sge(50_000, 1500), b.sge(60_000, 3000)];
    world.nics[1].post_recv(b.qpn, &[RecvWr { wr_id: 1, sges: &scatter }]).expect("posted");
    a.send(&mut world, 1, SendOp::Send, 0, 4000);
    b.wait_ok(&mut world);
    assert_eq!([b.read(50_000, 1500), b.read(60_000, 2500)].concat(), data[..4000]);
}

#[test]
fn posts_are_judged_one_by_one() {
    let (mut world, a, b) = pair();
    let sge = [a.sge(0, 10)];
    let five = [a.sge(0, 1); 5];
    let wr = |op, payload| SendWr { wr_id: 1, op, payload, flags: SendFlags::empty(), dest: None };
    let nic = &mut world.nics[0];
    let good = wr(SendOp::Send, Payload::Sges(&sge));
    let read = SendOp::Read(b.remote(0));
    let add = SendOp::FetchAdd { remote: b.remote(0), add: 1 };
    for bad in [
        wr(SendOp::Send, Payload::Sges(&five)),
        wr(SendOp::Send, Payload::Inline(&[0; 257])),
        wr(read, Payload::Inline(&[0; 8])),
        wr(add, Payload::Sges(&sge)),
    ] {
        let error = nic.post_send(a.qpn, &[good, bad, good]).expect_err("refused");
        assert_eq!(error.index, 1);
        assert!(matches!(error.cause, VerbsError::OutOfRange { .. }), "{error}");
    }
    let mut posted = 4;
    while nic.post_send(a.qpn, &[good]).is_ok() {
        posted += 1;
    }
    assert_eq!(posted, 256);
    assert!(matches!(
        nic.post_send(a.qpn, &[good]),
        Err(PostError { index: 0, cause: VerbsError::Full { limit: 256, .. } })
    ));
    assert!(matches!(nic.post_send(Qpn(5), &[good]), Err(PostError { cause: VerbsError::NoSuch("QP"), .. })));
}

#[test]
fn an_overflowing_cq_takes_its_qps_down() {
    let mut world = World::new(Setup::default());
    let cq = world.nics[0].create_cq(4).expect("a CQ");
    let wish = Wish { cq: Some(cq), ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &Wish::default()]);
    let [other, _] = connect_with(&mut world, [&wish, &Wish::default()]);
    for i in 0..5 {
        a.send(&mut world, i, SendOp::Write(b.remote(0)), 0, 10);
    }
    world.settle();
    assert_eq!(a.poll(&mut world).len(), 4, "what fitted is there");
    let events: Vec<_> = std::iter::from_fn(|| world.nics[0].poll_event()).collect();
    assert!(events.contains(&AsyncEvent::CqError(cq)));
    for end in [&a, &other] {
        assert!(events.contains(&AsyncEvent::QpFatal(end.qpn)));
        assert_eq!(end.state(&world), QpState::Err);
    }
    assert_eq!(world.nics[0].counters_detail().cq_overflows, 1);
}

#[test]
fn states_gate_posting_and_packets() {
    let mut world = World::new(Setup::default());
    let wish = Wish::default();
    let ends = [make_end(&mut world, 0, &wish), make_end(&mut world, 1, &wish)];
    let [a, b] = &ends;
    let wrong = a.try_send(&mut world, 1, SendOp::Send, 0, 10, SendFlags::empty()).expect_err("not yet");
    assert!(matches!(wrong.cause, VerbsError::WrongState { state: QpState::Init, .. }));
    let error = world.nics[0].modify_qp(a.qpn, &QpModify::Rts(rts(&wish))).expect_err("not from Init");
    assert_eq!(error, VerbsError::WrongState { state: QpState::Init, what: "a transition to RTS" });
    for side in 0..2 {
        let to = rtr(&world, &ends[1 - side], &wish, &wish);
        world.nics[side].modify_qp(ends[side].qpn, &QpModify::Rtr(to)).expect("RTR");
    }
    world.nics[0].modify_qp(a.qpn, &QpModify::Rts(rts(&wish))).expect("RTS");
    // A QP in RTR executes requests, and reports the first one.
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 10);
    a.wait_ok(&mut world);
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::CommEstablished(b.qpn)));
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 10);
    a.wait_ok(&mut world);
    assert_eq!(world.nics[1].poll_event(), None);
    // Reset forgets, without completions.
    world.nics[0].modify_qp(a.qpn, &QpModify::Reset).expect("reset");
    world.nics[1].modify_qp(b.qpn, &QpModify::Reset).expect("reset");
    assert!(a.poll(&mut world).is_empty());
    let none = world.nics[0].post_recv(a.qpn, &[RecvWr { wr_id: 1, sges: &[] }]).expect_err("not in Reset");
    assert!(matches!(none.cause, VerbsError::WrongState { state: QpState::Reset, .. }));
    // And the same QP connects again.
    for (end, nic) in ends.iter().zip(&mut world.nics) {
        nic.modify_qp(end.qpn, &QpModify::Init { access: Access::all(), qkey: Qkey(0) }).expect("Init");
    }
    for side in 0..2 {
        let to = rtr(&world, &ends[1 - side], &wish, &wish);
        world.nics[side].modify_qp(ends[side].qpn, &QpModify::Rtr(to)).expect("RTR");
        world.nics[side].modify_qp(ends[side].qpn, &QpModify::Rts(rts(&wish))).expect("RTS");
    }
    a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 5000);
    a.wait_ok(&mut world);
}

#[test]
fn objects_in_use_stay_and_limits_hold() {
    let mut world = World::new(Setup::default());
    let limits = roce::NicLimits { max_qp: 2, max_cq: 2, max_srq: 1, max_ah: 1, ..Default::default() };
    world.nics[0] = World::new(Setup { limits, ..Setup::default() }).nics.into_iter().next().expect("two");
    let a = make_end(&mut world, 0, &Wish::default());
    let nic = &mut world.nics[0];
    assert!(matches!(nic.destroy_cq(a.cq), Err(VerbsError::Busy("the CQ"))));
    let init = QpInit {
        pd: verbs::PdId::default(),
        qp_type: QpType::Rc,
        send_cq: a.cq,
        recv_cq: a.cq,
        srq: None,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
        sq_sig_all: false,
    };
    nic.create_qp(&init).expect("the second");
    assert!(matches!(nic.create_qp(&init), Err(VerbsError::Full { limit: 2, .. })));
    assert!(matches!(nic.create_qp(&QpInit { send_cq: CqId(77), ..init.clone() }), Err(VerbsError::NoSuch("CQ"))));
    assert!(matches!(nic.create_qp(&QpInit { max_send_sge: 17, ..init }), Err(VerbsError::OutOfRange { .. })));
    let av = AddressVector::new(Gid::from(address(1, false).ip()));
    let ah = nic.create_ah(&av).expect("the first");
    assert!(matches!(nic.create_ah(&av), Err(VerbsError::Full { limit: 1, .. })));
    nic.destroy_ah(ah).expect("it is there");
    assert_eq!(nic.destroy_ah(ah), Err(VerbsError::NoSuch("address handle")));
    let other_version = AddressVector::new(Gid::from(address(1, true).ip()));
    assert!(matches!(nic.create_ah(&other_version), Err(VerbsError::Unsupported { .. })));
    nic.create_cq(1).expect("the second");
    assert!(matches!(nic.create_cq(1), Err(VerbsError::Full { limit: 2, .. })));
    assert!(nic.create_cq(0).is_err());
    let unwritable = world.nics[0].reg_mr(&a.region, 0, 8, Access::REMOTE_WRITE);
    assert!(matches!(unwritable, Err(VerbsError::Unsupported { .. })));
    world.nics[0].destroy_qp(a.qpn).expect("destroyed");
    assert!(matches!(world.nics[0].query_qp(a.qpn), Err(VerbsError::NoSuch("QP"))));
}

#[test]
fn peers_of_the_other_ip_version_are_refused() {
    let mut world = World::new(Setup::default());
    let a = make_end(&mut world, 0, &Wish::default());
    let mut to = rtr(&world, &a, &Wish::default(), &Wish::default());
    to.av.gid = Gid("fd00::2".parse().expect("an address"));
    assert!(matches!(world.nics[0].modify_qp(a.qpn, &QpModify::Rtr(to)), Err(VerbsError::Unsupported { .. })));
    assert_eq!(a.state(&world), QpState::Init);
}

#[test]
fn qp_numbers_are_random_and_not_used_again_soon() {
    let mut world = World::new(Setup::default());
    let a = make_end(&mut world, 0, &Wish::default());
    let mut seen = std::collections::BTreeSet::from([a.qpn]);
    for _ in 0..2000 {
        let end = make_end(&mut world, 0, &Wish { cq: Some(a.cq), memory_bytes: 4096, ..Wish::default() });
        assert!(end.qpn.0 > 1 && end.qpn.0 < 0xff_ffff);
        assert!(seen.insert(end.qpn), "again: {}", end.qpn);
        world.nics[0].destroy_qp(end.qpn).expect("destroyed");
        world.nics[0].dereg_mr(end.mr.id).expect("deregistered");
    }
    assert!(seen.last().expect("many").0 > 1 << 23, "spread over the number space");
}

#[test]
fn many_qps_share_the_line_fairly() {
    let rate = Some(1_000_000_000);
    let mut world = World::new(Setup { rate, ..Setup::default() });
    let pairs: Vec<[End; 2]> = (0..8).map(|_| connect(&mut world)).collect();
    for [a, b] in &pairs {
        for i in 0..50 {
            a.send(&mut world, i, SendOp::Write(b.remote(0)), 0, 100_000);
        }
    }
    world.run_for(Duration::from_millis(10));
    let done: Vec<usize> = pairs.iter().map(|[a, _]| a.poll(&mut world).len()).collect();
    let (min, max) = (done.iter().min().expect("some"), done.iter().max().expect("some"));
    assert!(*min >= 8 && max - min <= 3, "{done:?}");
}
