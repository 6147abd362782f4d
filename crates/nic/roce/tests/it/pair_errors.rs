//! Errors: each NAK code on the wire and in the completion, local errors, retries exhausted, the order of flushing.

use std::time::Duration;

use crate::pair::*;
use verbs::*;

const NAK_SEQUENCE: u8 = 0x60;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;
const NAK_OPERATIONAL: u8 = 0x63;

/// The syndromes of the acknowledgements that side 1 sent.
fn syndromes(world: &World) -> Vec<u8> {
    world.seen.iter().filter(|s| s.from == 1 && s.opcode() == 0x11).map(|s| s.bytes[12]).collect()
}

fn events(world: &mut World, side: usize) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| world.nics[side].poll_event()).collect()
}

struct Case {
    world: World,
    a: End,
    b: End,
}

fn case(wish: &Wish) -> Case {
    let mut world = World::new(Setup::default());
    world.record = true;
    let [a, b] = connect_with(&mut world, [&Wish::default(), wish]);
    Case { world, a, b }
}

impl Case {
    /// Posts `op`, then two more sends; the first ends with `status`, the others are flushed, both QPs are in error,
    /// and the peer said `syndrome`.
    fn expect(mut self, op: SendOp, len: u32, status: Status, syndrome: u8) {
        self.a.send(&mut self.world, 1, op, 0, len);
        self.a.send(&mut self.world, 2, SendOp::Send, 0, 10);
        self.a.send(&mut self.world, 3, SendOp::Send, 0, 10);
        let done = self.a.wait(&mut self.world, 3);
        let got: Vec<_> = done.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(1, status), (2, Status::WrFlushErr), (3, Status::WrFlushErr)]);
        self.world.settle();
        assert_eq!(syndromes(&self.world).last(), Some(&syndrome));
        assert_eq!((self.a.state(&self.world), self.b.state(&self.world)), (QpState::Err, QpState::Err));
        let (a, b) = (self.a.qpn, self.b.qpn);
        assert_eq!(events(&mut self.world, 0), [AsyncEvent::QpFatal(a)]);
        let cause = match syndrome {
            NAK_ACCESS => AsyncEvent::QpAccessError(b),
            NAK_INVALID => AsyncEvent::QpRequestError(b),
            _ => AsyncEvent::QpFatal(b),
        };
        assert_eq!(events(&mut self.world, 1), [cause]);
    }
}

#[test]
fn bad_keys_bounds_and_rights() {
    let mb = 1u64 << 20;
    type Make = fn(RemoteAddr) -> (SendOp, u32);
    let write: Make = |r| (SendOp::Write(r), 3000);
    let read: Make = |r| (SendOp::Read(r), 3000);
    let atomic: Make = |remote| (SendOp::FetchAdd { remote, add: 1 }, 8);
    for make in [write, read, atomic] {
        let c = case(&Wish::default());
        let (op, len) = make(RemoteAddr { addr: 0, rkey: Rkey(c.b.mr.rkey.0 ^ 0x10000) });
        c.expect(op, len, Status::RemAccessErr, NAK_ACCESS);

        let c = case(&Wish::default());
        let (op, len) = make(RemoteAddr { addr: mb, rkey: c.b.mr.rkey });
        c.expect(op, len, Status::RemAccessErr, NAK_ACCESS);

        let c = case(&Wish::default());
        let (op, len) = make(RemoteAddr { addr: u64::MAX - 7, rkey: c.b.mr.rkey });
        c.expect(op, len, Status::RemAccessErr, NAK_ACCESS);

        let c = case(&Wish { mr_access: Access::LOCAL_WRITE, ..Wish::default() });
        let (op, len) = make(c.b.remote(0));
        c.expect(op, len, Status::RemAccessErr, NAK_ACCESS);

        let c = case(&Wish { qp_access: Access::LOCAL_WRITE, ..Wish::default() });
        let (op, len) = make(c.b.remote(0));
        c.expect(op, len, Status::RemInvReqErr, NAK_INVALID);
    }
}

#[test]
fn zero_lengths_need_no_key() {
    let Case { mut world, a, b } = case(&Wish::default());
    let nowhere = RemoteAddr { addr: u64::MAX, rkey: Rkey(12345) };
    a.send(&mut world, 1, SendOp::Write(nowhere), 0, 0);
    a.wait_ok(&mut world);
    a.send(&mut world, 2, SendOp::Read(nowhere), 0, 0);
    a.wait_ok(&mut world);
    b.recv(&mut world, 5, 0, 0);
    a.send(&mut world, 3, SendOp::WriteImm(nowhere, 77), 0, 0);
    a.wait_ok(&mut world);
    assert_eq!(b.wait_ok(&mut world).imm, Some(77));
}

#[test]
fn too_long_for_the_receive() {
    let c = case(&Wish::default());
    let Case { mut world, a, b } = c;
    b.recv(&mut world, 40, 0, 2000);
    b.recv(&mut world, 41, 0, 2000);
    let c = Case { world, a, b };
    let (b, len) = (c.b.clone(), 2001);
    let mut c = c;
    c.a.send(&mut c.world, 1, SendOp::Send, 0, len);
    let done = c.a.wait(&mut c.world, 1);
    assert_eq!(done[0].status, Status::RemInvReqErr);
    let got: Vec<_> = b.poll(&mut c.world).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(40, Status::LocLenErr), (41, Status::WrFlushErr)]);
    assert_eq!(syndromes(&c.world).last(), Some(&NAK_INVALID));
}

#[test]
fn receive_with_a_bad_key() {
    let Case { mut world, a, b } = case(&Wish::default());
    let sges = [Sge { addr: 0, len: 100, lkey: Lkey(99) }];
    world.nics[1].post_recv(b.qpn, &[RecvWr { wr_id: 8, sges: &sges }]).expect("posted");
    a.send(&mut world, 1, SendOp::Send, 0, 50);
    assert_eq!(a.wait(&mut world, 1)[0].status, Status::RemOpErr);
    let got = b.poll(&mut world);
    assert_eq!((got.len(), got[0].wr_id, got[0].status), (1, 8, Status::LocProtErr));
    assert_eq!(syndromes(&world).last(), Some(&NAK_OPERATIONAL));
}

#[test]
fn unaligned_atomic_and_too_many_reads() {
    let c = case(&Wish::default());
    let op = SendOp::FetchAdd { remote: c.b.remote(4), add: 1 };
    c.expect(op, 8, Status::RemInvReqErr, NAK_INVALID);
    let c = case(&Wish { rd_atomic: 0, ..Wish::default() });
    let op = SendOp::Read(c.b.remote(0));
    c.expect(op, 8, Status::RemInvReqErr, NAK_INVALID);
}

#[test]
fn memory_that_goes_away_under_a_write() {
    let Case { mut world, a, b } = case(&Wish::default());
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 1_000_000);
    for _ in 0..3 {
        world.step();
    }
    world.nics[1].dereg_mr(b.mr.id).expect("registered");
    let before = b.read(0, 1 << 20);
    let done = a.wait(&mut world, 1);
    assert_eq!(done[0].status, Status::RemAccessErr);
    assert!(b.read(0, 1 << 20) == before, "nothing landed after the deregistration");
}

#[test]
fn memory_that_goes_away_under_a_read() {
    let Case { mut world, a, b } = case(&Wish::default());
    a.send(&mut world, 1, SendOp::Read(b.remote(0)), 0, 1_000_000);
    world.run_until("the first data", |w| w.nics[0].counters_detail().rx_packets > 3);
    world.nics[1].dereg_mr(b.mr.id).expect("registered");
    assert_eq!(a.wait(&mut world, 1)[0].status, Status::RemAccessErr);
    assert_eq!(b.state(&world), QpState::Err);
}

#[test]
fn local_key_errors_wait_for_their_turn() {
    let Case { mut world, a, b } = case(&Wish::default());
    let bad = [Sge { addr: 0, len: 8, lkey: Lkey(1) }];
    for (op, needs_data) in [(SendOp::Write(b.remote(0)), false), (SendOp::Read(b.remote(0)), true)] {
        let mut world = World::new(Setup::default());
        let [a, b2] = connect(&mut world);
        let remote = b2.remote(0);
        let op = if needs_data {
            SendOp::Read(remote)
        } else {
            let _ = op;
            SendOp::Write(remote)
        };
        a.send(&mut world, 1, SendOp::Write(remote), 0, 100_000);
        let wr = SendWr { wr_id: 2, op, payload: Payload::Sges(&bad), flags: SendFlags::empty(), dest: None };
        world.nics[0].post_send(a.qpn, &[wr]).expect("posted");
        a.send(&mut world, 3, SendOp::Write(remote), 0, 10);
        let got: Vec<_> = a.wait(&mut world, 3).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(1, Status::Success), (2, Status::LocProtErr), (3, Status::WrFlushErr)]);
    }
    // The landing place of a READ must be writable.
    let read_only = world.nics[0].reg_mr(&a.region, 0, 4096, Access::REMOTE_READ).expect("registered");
    let sges = [Sge { addr: 0, len: 8, lkey: read_only.lkey }];
    let op = SendOp::Read(b.remote(0));
    let wr = SendWr { wr_id: 4, op, payload: Payload::Sges(&sges), flags: SendFlags::empty(), dest: None };
    world.nics[0].post_send(a.qpn, &[wr]).expect("posted");
    assert_eq!(a.wait(&mut world, 1)[0].status, Status::LocProtErr);
}

#[test]
fn retries_run_out() {
    let Case { mut world, a, b } = case(&Wish::default());
    world.filter = Some(Box::new(|seen| seen.from != 1));
    let start = world.now;
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 100);
    a.send(&mut world, 2, SendOp::Write(b.remote(0)), 0, 100);
    let done = a.wait(&mut world, 2);
    assert_eq!((done[0].status, done[1].status), (Status::RetryExcErr, Status::WrFlushErr));
    // Eight times 67.1 ms: the first and seven retries.
    let took = world.now - start;
    assert!((Duration::from_millis(536)..Duration::from_millis(540)).contains(&took), "{took:?}");
    let counters = world.nics[0].counters_detail();
    assert_eq!(counters.timeouts, 8);
    assert!(counters.probes <= 4, "{counters:?}");
    assert_eq!(b.state(&world), QpState::Rts);
    assert_eq!(b.read(0, 100), a.read(0, 100));
}

#[test]
fn no_retries_and_no_timeout() {
    let mut world = World::new(Setup::default());
    let wish = Wish { retry_cnt: 0, timeout: 10, ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    world.filter = Some(Box::new(|_| false));
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 100);
    assert_eq!(a.wait(&mut world, 1)[0].status, Status::RetryExcErr);
    assert_eq!(world.nics[0].counters_detail().timeouts, 1);

    let mut world = World::new(Setup::default());
    let wish = Wish { timeout: 0, ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&wish, &wish]);
    world.filter = Some(Box::new(|_| false));
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 100);
    world.settle();
    assert!(a.poll(&mut world).is_empty(), "without a timeout it waits for ever");
}

#[test]
fn flushing_keeps_the_order() {
    let Case { mut world, a, b } = case(&Wish::default());
    world.filter = Some(Box::new(|seen| seen.from != 0));
    for i in 0..20 {
        a.recv(&mut world, 100 + i, 0, 10);
        // Unsignalled ones are flushed with a completion, too.
        let flags = if i % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        a.try_send(&mut world, i, SendOp::Write(b.remote(0)), 0, 5000, flags).expect("posted");
    }
    world.step();
    world.nics[0].modify_qp(a.qpn, &QpModify::Err).expect("to error");
    let done = a.poll(&mut world);
    let expected: Vec<_> = (0..20).chain(100..120).map(|id| (id, Status::WrFlushErr)).collect();
    assert_eq!(done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), expected);
    assert!(events(&mut world, 0).is_empty(), "it was asked for");
    a.send(&mut world, 7, SendOp::Send, 0, 5);
    a.recv(&mut world, 8, 0, 5);
    let late: Vec<_> = a.poll(&mut world).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(late, [(7, Status::WrFlushErr), (8, Status::WrFlushErr)]);
    assert!(!world.nics[0].has_transmit());
}

#[test]
fn one_nak_for_a_gap() {
    let Case { mut world, a, b } = case(&Wish::default());
    let mut first = true;
    world.filter = Some(Box::new(move |seen| {
        let lost = seen.from == 0 && seen.psn() == 0xff_fff5 && first;
        first &= !lost;
        !lost
    }));
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 50_000);
    a.wait_ok(&mut world);
    let counters = world.nics[1].counters_detail();
    assert_eq!((counters.naks_sent, counters.duplicates), (1, 0));
    assert!(counters.drop_out_of_order > 10);
    let naks: Vec<_> = world.seen.iter().filter(|s| s.from == 1 && s.bytes[12] == NAK_SEQUENCE).collect();
    assert_eq!((naks.len(), naks[0].psn()), (1, 0xff_fff5));
    assert_eq!(world.nics[0].counters_detail().timeouts, 0);
}

#[test]
fn a_lost_nak_costs_milliseconds_not_a_timeout() {
    let Case { mut world, a, b } = case(&Wish::default());
    a.send(&mut world, 1, SendOp::Write(b.remote(0)), 0, 5_000);
    a.wait_ok(&mut world);
    let (mut lost_data, mut lost_nak) = (false, false);
    world.filter = Some(Box::new(move |seen| {
        if seen.from == 0 && !lost_data {
            lost_data = true;
            return false;
        }
        if seen.from == 1 && !lost_nak && seen.bytes[12] == NAK_SEQUENCE {
            lost_nak = true;
            return false;
        }
        true
    }));
    let start = world.now;
    a.send(&mut world, 2, SendOp::Write(b.remote(0)), 0, 5_000);
    a.wait_ok(&mut world);
    assert!(world.now - start < Duration::from_millis(10), "{:?}", world.now - start);
    let counters = world.nics[0].counters_detail();
    assert_eq!((counters.probes, counters.timeouts), (1, 0));
}
