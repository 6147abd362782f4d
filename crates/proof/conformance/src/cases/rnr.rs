//! No receive, no peer: RNR NAK, retries, and their end (IBTA 9.7.5.1.1, 9.7.6).

use verbs::{Payload, QpState, SendOp, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, pattern};

cases!("retry":
    late_receive_succeeds, late_receive_for_write_imm, rnr_retry_zero_fails_at_once, rnr_retries_end,
    later_messages_wait_behind_rnr, peer_without_qp, peer_not_ready_then_ready, peer_in_error,
);

fn late_receive_succeeds(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { rnr_retry: 7, ..Options::default() })?;
    let data = pattern(1, 3_000);
    p.fill(Side::A, 0, &data);
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 3_000)]))?;
    p.quiet(Side::A)?;
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 3_000)])?;
    p.ok(Side::B, 5, WcOpcode::Recv)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    ensure!(p.bytes(Side::B, 0, 3_000) == data, "data differ after RNR");
    Ok(())
}

fn late_receive_for_write_imm(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { rnr_retry: 7, ..Options::default() })?;
    let data = pattern(2, 6_000);
    p.fill(Side::A, 0, &data);
    let op = SendOp::WriteImm(p.remote(Side::A, 100), 77);
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 6_000)]))?;
    p.quiet(Side::A)?;
    p.recv(Side::B, 5, &[])?;
    let c = p.ok(Side::B, 5, WcOpcode::RecvWriteImm)?;
    ensure!(c.byte_len == 6_000 && c.imm == Some(77), "wrong completion after RNR: {c:?}");
    ensure!(p.bytes(Side::B, 100, 6_000) == data, "data differ after RNR");
    p.ok(Side::A, 1, WcOpcode::Write)?;
    Ok(())
}

fn rnr_fails(rig: &mut dyn Rig, rnr_retry: u8) -> Outcome {
    let mut p = Pair::connect(rig, Options { rnr_retry, ..Options::default() })?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RnrRetryExcErr)?;
    p.reaches(Side::A, QpState::Err)
}

fn rnr_retry_zero_fails_at_once(rig: &mut dyn Rig) -> Outcome {
    rnr_fails(rig, 0)
}

fn rnr_retries_end(rig: &mut dyn Rig) -> Outcome {
    rnr_fails(rig, 3)
}

fn later_messages_wait_behind_rnr(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for i in 0..6 {
        p.post(Side::A, i, SendOp::SendImm(i as u32), Payload::Inline(&[i as u8; 8]))?;
    }
    p.quiet(Side::B)?;
    for i in 0..6 {
        p.recv(Side::B, i, &[p.sge(Side::B, i * 64, 64)])?;
        let c = p.ok(Side::B, i, WcOpcode::Recv)?;
        ensure!(c.imm == Some(i as u32), "message {:?} came as number {i}", c.imm);
    }
    for i in 0..6 {
        p.ok(Side::A, i, WcOpcode::Send)?;
    }
    Ok(())
}

fn dead(p: &mut Pair<'_>) -> Outcome {
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RetryExcErr)?;
    p.reaches(Side::A, QpState::Err)
}

fn impatient() -> Options {
    Options { timeout: 10, retry_cnt: 2, ..Options::default() }
}

fn peer_without_qp(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, impatient())?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).destroy_qp(qpn)?;
    dead(&mut p)
}

fn peer_in_error(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, impatient())?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &verbs::QpModify::Err)?;
    dead(&mut p)
}

/// The requester's retries bridge the time until the peer is in RTR.
fn peer_not_ready_then_ready(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options { timeout: 16, ..Options::default() })?;
    p.to_rts(Side::A)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Inline(&[3; 8]))?;
    p.quiet(Side::A)?;
    p.to_rts(Side::B)?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 0, 8) == [3; 8], "data differ");
    Ok(())
}
