//! Keys, bounds and access rights: a wrong one fails this request and QP alone, and touches nothing (IBTA 9.7.5.2.4,
//! 10.6).

use verbs::{Access, Lkey, Payload, QpState, RemoteAddr, Rkey, SendOp, Sge, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, all_access};

cases!("access":
    write_with_wrong_key, write_beyond_the_region, write_wraps_address, write_without_remote_write, write_qp_forbids,
    read_with_wrong_key, read_beyond_the_region, read_without_remote_read, read_qp_forbids, key_after_deregistration,
    send_with_wrong_lkey, send_beyond_the_region, receive_without_local_write, zero_length_checks_no_key,
    responder_goes_to_error, other_qp_goes_on,
);

fn denied(rig: &mut dyn Rig, options: Options, op: impl Fn(&Pair<'_>) -> SendOp) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    p.fill(Side::B, 0, &[0x5a; 4_096]);
    p.fill(Side::A, 0, &[0xa5; 4_096]);
    let op = op(&p);
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 64)]))?;
    p.status(Side::A, 1, Status::RemAccessErr)?;
    ensure!(p.bytes(Side::B, 0, 4_096) == [0x5a; 4_096], "the target was touched");
    ensure!(p.bytes(Side::A, 0, 64) == [0xa5; 64], "local memory was touched");
    p.reaches(Side::A, QpState::Err)
}

fn wrong_key(p: &Pair<'_>) -> RemoteAddr {
    let r = p.remote(Side::A, 0);
    RemoteAddr { rkey: Rkey(r.rkey.0 ^ 0x00a5_5a01), ..r }
}

fn write_with_wrong_key(rig: &mut dyn Rig) -> Outcome {
    denied(rig, Options::default(), |p| SendOp::Write(wrong_key(p)))
}

fn read_with_wrong_key(rig: &mut dyn Rig) -> Outcome {
    denied(rig, Options::default(), |p| SendOp::Read(wrong_key(p)))
}

fn write_beyond_the_region(rig: &mut dyn Rig) -> Outcome {
    denied(rig, Options::default(), |p| SendOp::Write(p.remote(Side::A, p.options.bytes - 63)))
}

fn write_wraps_address(rig: &mut dyn Rig) -> Outcome {
    denied(rig, Options::default(), |p| SendOp::Write(p.remote(Side::A, u64::MAX - 31)))
}

fn read_beyond_the_region(rig: &mut dyn Rig) -> Outcome {
    denied(rig, Options::default(), |p| SendOp::Read(p.remote(Side::A, p.options.bytes)))
}

fn write_without_remote_write(rig: &mut dyn Rig) -> Outcome {
    let mr_access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    denied(rig, Options { mr_access, ..Options::default() }, |p| SendOp::Write(p.remote(Side::A, 0)))
}

fn read_without_remote_read(rig: &mut dyn Rig) -> Outcome {
    let mr_access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    denied(rig, Options { mr_access, ..Options::default() }, |p| SendOp::Read(p.remote(Side::A, 0)))
}

/// IBTA 9.7.5.2.2: an operation that the QP does not allow is an invalid request.
fn qp_denied(rig: &mut dyn Rig, qp_access: Access, op: impl Fn(&Pair<'_>) -> SendOp) -> Outcome {
    let mut p = Pair::connect(rig, Options { qp_access, ..Options::default() })?;
    let op = op(&p);
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 64)]))?;
    let c = p.one(Side::A)?;
    let nak_lost = p.rig.lossy() && c.status == Status::RetryExcErr;
    let refused = nak_lost || matches!(c.status, Status::RemInvReqErr | Status::RemAccessErr);
    ensure!(refused, "an invalid request or access error expected, got {c:?}");
    Ok(())
}

fn write_qp_forbids(rig: &mut dyn Rig) -> Outcome {
    qp_denied(rig, all_access() - Access::REMOTE_WRITE, |p| SendOp::Write(p.remote(Side::A, 0)))
}

fn read_qp_forbids(rig: &mut dyn Rig) -> Outcome {
    qp_denied(rig, all_access() - Access::REMOTE_READ, |p| SendOp::Read(p.remote(Side::A, 0)))
}

fn key_after_deregistration(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Inline(&[9; 16]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    let mr = p.end(Side::B).mr.id;
    p.device(Side::B).dereg_mr(mr)?;
    p.fill(Side::B, 0, &[0; 16]);
    p.post(Side::A, 2, op, Payload::Inline(&[9; 16]))?;
    p.status(Side::A, 2, Status::RemAccessErr)?;
    ensure!(p.bytes(Side::B, 0, 16) == [0; 16], "deregistered memory was touched");
    Ok(())
}

fn local_error(rig: &mut dyn Rig, sge: impl Fn(&Pair<'_>) -> Sge) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 64)])?;
    let sge = [sge(&p)];
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&sge))?;
    p.status(Side::A, 1, Status::LocProtErr)?;
    p.reaches(Side::A, QpState::Err)?;
    p.quiet(Side::B)
}

fn send_with_wrong_lkey(rig: &mut dyn Rig) -> Outcome {
    local_error(rig, |p| {
        let sge = p.sge(Side::A, 0, 64);
        Sge { lkey: Lkey(sge.lkey.0 ^ 0x00a5_5a01), ..sge }
    })
}

fn send_beyond_the_region(rig: &mut dyn Rig) -> Outcome {
    local_error(rig, |p| p.sge(Side::A, p.options.bytes - 1, 64))
}

/// The responder's own receive is not writable: its request fails, and the requester gets a remote operational error.
fn receive_without_local_write(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { mr_access: Access::empty(), ..Options::default() })?;
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 32]))?;
    p.status(Side::A, 1, Status::RemOpErr)?;
    p.status(Side::B, 5, Status::LocProtErr)?;
    ensure!(p.bytes(Side::B, 0, 32) == [0; 32], "memory was touched");
    Ok(())
}

/// IBTA C9-88: the key of a zero-length WRITE is not checked.
fn zero_length_checks_no_key(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let op = SendOp::Write(wrong_key(&p));
    p.post(Side::A, 1, op, Payload::Sges(&[]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    Ok(())
}

fn responder_goes_to_error(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let op = SendOp::Write(wrong_key(&p));
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::A, 1, op, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RemAccessErr)?;
    p.reaches(Side::B, QpState::Err)?;
    p.status(Side::B, 5, Status::WrFlushErr)
}

fn other_qp_goes_on(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let (qa, _) = p.second_qps()?;
    let bad = SendOp::Write(wrong_key(&p));
    p.post(Side::A, 1, bad, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RemAccessErr)?;
    let good = SendOp::Write(p.remote(Side::A, 0));
    p.post_on(Side::A, qa, 2, good, Payload::Inline(&[7; 8]), verbs::SendFlags::SIGNALED)?;
    p.ok(Side::A, 2, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 0, 8) == [7; 8], "the other QP's WRITE is not there");
    Ok(())
}
