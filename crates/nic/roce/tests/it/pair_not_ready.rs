//! Receiver not ready: RNR NAK, wait, retry; shared receive queues.

use std::time::Duration;

use crate::pair::*;
use verbs::*;

fn world() -> World {
    let mut world = World::new(Setup::default());
    world.record = true;
    world
}

#[test]
fn a_send_waits_for_a_receive() {
    let mut world = world();
    let [a, b] = connect(&mut world);
    let data = a.fill(0, 5000, 1);
    a.send(&mut world, 1, SendOp::Send, 0, 5000);
    a.send(&mut world, 2, SendOp::Send, 0, 100);
    world.run_for(Duration::from_millis(3));
    assert!(a.poll(&mut world).is_empty());
    let counters = world.nics[1].counters_detail();
    assert!((2..=6).contains(&counters.rnr_naks_sent), "every 640 us: {counters:?}");
    assert_eq!(counters.naks_sent, 0, "what follows the refused packet is no gap");
    let nak = world.seen.iter().find(|s| s.from == 1).expect("a packet");
    assert_eq!((nak.opcode(), nak.bytes[12], nak.psn()), (0x11, 0x20 | 12, 0xff_fff0));
    b.recv(&mut world, 1, 0, 8192);
    b.recv(&mut world, 2, 8192, 8192);
    a.wait(&mut world, 2);
    assert_eq!(b.wait(&mut world, 2).iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(b.read(0, 5000), data);
    assert_eq!(world.nics[0].counters_detail().timeouts, 0);
}

#[test]
fn a_write_with_immediate_waits_at_its_last_packet() {
    let mut world = world();
    let [a, b] = connect(&mut world);
    let data = a.fill(0, 3000, 1);
    a.send(&mut world, 1, SendOp::WriteImm(b.remote(0), 9), 0, 3000);
    world.run_for(Duration::from_micros(300));
    assert_eq!(b.read(0, 2048), data[..2048], "what precedes the last packet is placed");
    assert_ne!(b.read(2048, 952), data[2048..], "the last is not");
    let nak = world.seen.iter().find(|s| s.from == 1).expect("a packet");
    assert_eq!((nak.bytes[12], nak.psn()), (0x20 | 12, 0xff_fff2));
    b.recv(&mut world, 5, 0, 0);
    a.wait_ok(&mut world);
    let got = b.wait_ok(&mut world);
    assert_eq!((got.wr_id, got.byte_len, got.imm), (5, 3000, Some(9)));
    assert_eq!(b.read(0, 3000), data);
}

#[test]
fn rnr_retries_run_out() {
    let mut world = world();
    let wish = Wish { rnr_retry: 3, rnr_timer: 14, ..Wish::default() };
    let [a, _b] = connect_with(&mut world, [&wish, &wish]);
    let start = world.now;
    a.send(&mut world, 1, SendOp::Send, 0, 10);
    assert_eq!(a.wait(&mut world, 1)[0].status, Status::RnrRetryExcErr);
    assert_eq!(world.nics[1].counters_detail().rnr_naks_sent, 4);
    assert!(world.now - start >= Duration::from_micros(3 * 1280));
}

#[test]
fn a_shared_queue_serves_many_and_says_when_it_runs_low() {
    let mut world = world();
    let init = SrqInit { max_wr: 64, max_sge: 2, limit: 3 };
    let srq = world.nics[1].create_srq(&init).expect("an SRQ");
    let wish = Wish { srq: Some(srq), ..Wish::default() };
    let pairs: Vec<[End; 2]> = (0..8).map(|_| connect_with(&mut world, [&Wish::default(), &wish])).collect();
    for i in 0..10 {
        pairs[0][1].recv(&mut world, i, i * 1000, 1000);
    }
    let refused = world.nics[1].post_recv(pairs[0][1].qpn, &[RecvWr { wr_id: 0, sges: &[] }]);
    assert!(refused.is_err(), "a QP with an SRQ has no queue of its own");
    for (i, [a, b]) in pairs.iter().enumerate() {
        a.fill(0, 500, i as u64);
        let op = if i % 2 == 0 { SendOp::Send } else { SendOp::WriteImm(b.remote(5000), i as u32) };
        a.send(&mut world, i as u64, op, 0, 500);
    }
    world.settle();
    // The receives lie in the first end's memory; each SEND landed in the one that its completion names.
    let mut used = Vec::new();
    for (i, [a, b]) in pairs.iter().enumerate() {
        assert_eq!(a.poll(&mut world)[0].status, Status::Success);
        let got = b.poll(&mut world);
        assert_eq!((got.len(), got[0].status, got[0].qpn), (1, Status::Success, b.qpn));
        let data = if i % 2 == 0 { pairs[0][1].read(got[0].wr_id * 1000, 500) } else { b.read(5000, 500) };
        assert_eq!(data, pattern(500, i as u64));
        used.push(got[0].wr_id);
    }
    used.sort_unstable();
    assert_eq!(used, (0..8).collect::<Vec<_>>());
    let events: Vec<_> = std::iter::from_fn(|| world.nics[1].poll_event()).collect();
    assert_eq!(events, [AsyncEvent::SrqLimit(srq)], "once");
    assert!(matches!(world.nics[1].destroy_srq(srq), Err(VerbsError::Busy(_))));
    // Two receives are left and stay when a QP dies; its end says so.
    let qpn = pairs[0][1].qpn;
    world.nics[1].modify_qp(qpn, &QpModify::Err).expect("to error");
    assert_eq!(world.nics[1].poll_event(), Some(AsyncEvent::LastWqeReached(qpn)));
    assert!(pairs[0][1].poll(&mut world).is_empty());
    for i in [1, 2] {
        pairs[i][0].send(&mut world, 50, SendOp::Send, 0, 10);
        pairs[i][1].wait_ok(&mut world);
    }
    for [_, b] in &pairs {
        world.nics[1].destroy_qp(b.qpn).expect("destroyed");
    }
    world.nics[1].destroy_srq(srq).expect("free");
}

#[test]
fn an_interrupted_message_gives_its_shared_receive_back_as_flushed() {
    let mut world = world();
    let srq = world.nics[1].create_srq(&SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).expect("an SRQ");
    let wish = Wish { srq: Some(srq), ..Wish::default() };
    let [a, b] = connect_with(&mut world, [&Wish::default(), &wish]);
    b.recv(&mut world, 33, 0, 1 << 20);
    world.filter = Some(Box::new(|seen| seen.opcode() != 2));
    a.send(&mut world, 1, SendOp::Send, 0, 10_000);
    world.run_for(Duration::from_millis(1));
    world.nics[1].modify_qp(b.qpn, &QpModify::Err).expect("to error");
    let got = b.poll(&mut world);
    assert_eq!((got.len(), got[0].wr_id, got[0].status), (1, 33, Status::WrFlushErr));
}
