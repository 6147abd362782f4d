//! The shared receive queue (IBTA 10.2.9).

use verbs::{AsyncEvent, Payload, QpModify, SendFlags, SendOp, SrqInit, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side};

cases!("srq":
    two_qps_share_in_order, write_imm_takes_one, empty_gives_rnr, survives_a_qp_in_error, full_is_refused, limit_event,
    in_use_is_not_destroyed, long_messages_from_two_qps,
);

fn shared() -> Options {
    Options { srq: true, ..Options::default() }
}

fn two_qps_share_in_order(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, shared())?;
    let (qa, qb) = p.second_qps()?;
    let first = (p.end(Side::A).qpn, p.end(Side::B).qpn);
    for id in 0..8 {
        p.recv(Side::B, id, &[p.sge(Side::B, id * 64, 64)])?;
    }
    for id in 0..8u64 {
        let (from, to) = if id % 2 == 0 { first } else { (qa, qb) };
        p.post_on(Side::A, from, id, SendOp::Send, Payload::Inline(&[id as u8; 16]), SendFlags::SIGNALED)?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.qpn == to, "receive {id} names QP {}, it came through {to}", c.qpn);
        ensure!(p.bytes(Side::B, id * 64, 16) == [id as u8; 16], "receive {id} has other data");
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

fn write_imm_takes_one(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, shared())?;
    for id in 0..2 {
        p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)])?;
    }
    for id in 0..2u64 {
        let op = SendOp::WriteImm(p.remote(Side::A, 4_096), id as u32);
        p.post_flags(Side::A, id, op, Payload::Inline(&[1; 8]), SendFlags::empty())?;
        p.ok(Side::B, id, WcOpcode::RecvWriteImm)?;
    }
    p.quiet(Side::B)
}

fn empty_gives_rnr(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { rnr_retry: 0, ..shared() })?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RnrRetryExcErr)
}

/// Receives of an SRQ are not flushed with one of its QPs: the other QP uses them.
fn survives_a_qp_in_error(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, shared())?;
    let (qa, _) = p.second_qps()?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Err)?;
    p.quiet(Side::B)?;
    p.post_on(Side::A, qa, 2, SendOp::Send, Payload::Inline(&[6; 8]), SendFlags::SIGNALED)?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    p.ok(Side::A, 2, WcOpcode::Send)?;
    Ok(())
}

fn full_is_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { depth: 8, ..shared() })?;
    let mut accepted = 0;
    for id in 0..5_000 {
        if p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)]).is_err() {
            break;
        }
        accepted += 1;
    }
    ensure!((8..5_000).contains(&accepted), "{accepted} were accepted by an SRQ of 8");
    Ok(())
}

fn limit_event(rig: &mut dyn Rig) -> Outcome {
    let srq = rig.device(Side::B).create_srq(&SrqInit { max_wr: 16, max_sge: 1, limit: 2 })?;
    let mut p = Pair::create(rig, shared())?;
    // The pair's own SRQ is replaced by one with a limit.
    p.replace_srq(Side::B, srq)?;
    for side in [Side::A, Side::B] {
        p.to_rts(side)?;
    }
    for id in 0..4 {
        p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)])?;
    }
    for id in 0..3 {
        p.post(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]))?;
        p.ok(Side::B, id, WcOpcode::Recv)?;
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    for _ in 0..1_000 {
        match p.device(Side::B).poll_event() {
            Some(AsyncEvent::SrqLimit(s)) if s == srq => return Ok(()),
            Some(_) => {}
            None => p.rig.step(),
        }
    }
    Err(crate::Failure("one receive is left and no SrqLimit event came for a limit of 2".into()))
}

fn in_use_is_not_destroyed(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, shared())?;
    let end = p.end(Side::B).clone();
    let refused = end.srq.is_some_and(|srq| p.device(Side::B).destroy_srq(srq).is_err());
    ensure!(refused, "an SRQ was destroyed that a QP uses");
    ensure!(p.device(Side::B).destroy_cq(end.cq).is_err(), "a CQ was destroyed that a QP uses");
    Ok(())
}

/// Messages of several packets from two QPs at once: each keeps the receive that its first packet took.
fn long_messages_from_two_qps(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, shared())?;
    let (qa, qb) = p.second_qps()?;
    p.fill(Side::A, 0, &[1; 60_000]);
    p.fill(Side::A, 100_000, &[2; 60_000]);
    for id in 0..2 {
        p.recv(Side::B, id, &[p.sge(Side::B, id * 100_000, 60_000)])?;
    }
    let first = p.end(Side::A).qpn;
    for (qpn, at) in [(first, 0), (qa, 100_000)] {
        let sge = [p.sge(Side::A, at, 60_000)];
        p.post_on(Side::A, qpn, at, SendOp::Send, Payload::Sges(&sge), SendFlags::SIGNALED)?;
    }
    for c in p.wait(Side::B, 2)? {
        ensure!(c.status == Status::Success && c.byte_len == 60_000, "wrong completion {c:?}");
        let want = if c.qpn == qb { 2 } else { 1 };
        let got = p.bytes(Side::B, c.wr_id * 100_000, 60_000);
        ensure!(got.iter().all(|&b| b == want), "receive {} mixes two messages", c.wr_id);
    }
    Ok(())
}
