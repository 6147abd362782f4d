//! QPs of unreliable connections in other states than RTS, and faults of their owner (IBTA 10.3.1, 9.9.2, 9.9.3). Most
//! bodies serve datagram QPs as well.

use verbs::{Access, Lkey, Payload, QpModify, QpState, SendFlags, SendOp, Sge, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, Step};

cases!("uc_state" of Options::unreliable, unreliable:
    no_send_before_rts, receives_in_init_are_kept, receives_in_rtr, error_flushes_receives, error_flushes_new_sends,
    error_takes_nothing, shared_receives_outlive_a_qp, reset_forgets, reset_and_again, drained_sends_nothing,
    send_with_wrong_lkey, receive_without_local_write,
);

fn kill(p: &mut Pair<'_>, side: Side) -> Outcome {
    let qpn = p.end(side).qpn;
    p.device(side).modify_qp(qpn, &QpModify::Err)?;
    Ok(())
}

fn receive(p: &mut Pair<'_>, side: Side, id: u64) -> Outcome {
    p.recv_message(side, id, 0, 64)
}

fn greet(p: &mut Pair<'_>, id: u64) -> Outcome {
    p.post(Side::A, id, SendOp::Send, Payload::Inline(b"hello"))
}

pub(super) fn no_send_before_rts(rig: &mut dyn Rig, options: Options) -> Outcome {
    let qp_type = options.qp_type;
    let mut p = Pair::create(rig, options)?;
    let qpn = p.end(Side::A).qpn;
    let status = p.device(Side::A).query_qp(qpn)?;
    ensure!(status.qp_type == qp_type, "the QP says that it is of service {}", status.qp_type);
    for step in [None, Some(Step::Init), Some(Step::Rtr)] {
        if let Some(step) = step {
            p.step(Side::A, step)?;
        }
        ensure!(greet(&mut p, 1).is_err(), "a send was posted in {:?}", p.state(Side::A)?);
    }
    Ok(())
}

fn receives_in_init_are_kept(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::create(rig, options)?;
    p.step(Side::B, Step::Init)?;
    receive(&mut p, Side::B, 1)?;
    for step in [Step::Rtr, Step::Rts] {
        p.step(Side::B, step)?;
    }
    p.to_rts(Side::A)?;
    greet(&mut p, 1)?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    Ok(())
}

pub(super) fn receives_in_rtr(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::create(rig, options)?;
    p.to_rts(Side::A)?;
    for step in [Step::Init, Step::Rtr] {
        p.step(Side::B, step)?;
    }
    receive(&mut p, Side::B, 1)?;
    greet(&mut p, 1)?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    Ok(())
}

pub(super) fn error_flushes_receives(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    for id in 0..4 {
        receive(&mut p, Side::B, id)?;
    }
    kill(&mut p, Side::B)?;
    for id in 0..4 {
        p.status(Side::B, id, Status::WrFlushErr)?;
    }
    p.quiet(Side::B)
}

pub(super) fn error_flushes_new_sends(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    kill(&mut p, Side::A)?;
    p.post_flags(Side::A, 7, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    p.status(Side::A, 7, Status::WrFlushErr)
}

pub(super) fn error_takes_nothing(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    receive(&mut p, Side::B, 1)?;
    kill(&mut p, Side::B)?;
    p.status(Side::B, 1, Status::WrFlushErr)?;
    greet(&mut p, 1)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    ensure!(p.bytes(Side::B, 0, 64) == [0; 64], "a message landed through a QP in error");
    Ok(())
}

fn shared_receives_outlive_a_qp(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, Options { srq: true, ..options })?;
    let (qa, _) = p.second_qps()?;
    receive(&mut p, Side::B, 1)?;
    kill(&mut p, Side::B)?;
    p.quiet(Side::B)?;
    p.post_on(Side::A, qa, 2, SendOp::Send, Payload::Inline(&[6; 8]), SendFlags::SIGNALED)?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    Ok(())
}

pub(super) fn reset_forgets(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    receive(&mut p, Side::B, 1)?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Reset)?;
    ensure!(p.state(Side::B)? == QpState::Reset, "the QP is not in Reset");
    p.quiet(Side::B)
}

pub(super) fn reset_and_again(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    receive(&mut p, Side::B, 1)?;
    for side in [Side::A, Side::B] {
        let qpn = p.end(side).qpn;
        p.device(side).modify_qp(qpn, &QpModify::Reset)?;
        p.to_rts(side)?;
    }
    receive(&mut p, Side::B, 2)?;
    greet(&mut p, 1)?;
    p.ok(Side::B, 2, WcOpcode::Recv)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    Ok(())
}

pub(super) fn drained_sends_nothing(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    receive(&mut p, Side::B, 1)?;
    let qpn = p.end(Side::A).qpn;
    p.device(Side::A).modify_qp(qpn, &QpModify::Sqd)?;
    greet(&mut p, 1)?;
    p.quiet(Side::B)?;
    let rts = p.rts(Side::A);
    p.device(Side::A).modify_qp(qpn, &rts)?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    Ok(())
}

/// IBTA 10.3.1: a fault of a send stops the send queue alone. The QP goes on receiving, and sends again after RTS.
pub(super) fn send_with_wrong_lkey(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    receive(&mut p, Side::A, 9)?;
    receive(&mut p, Side::B, 8)?;
    let bad = [Sge { addr: 0, len: 8, lkey: Lkey(p.end(Side::A).mr.lkey.0 ^ 0xff) }];
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&bad))?;
    p.status(Side::A, 1, Status::LocProtErr)?;
    p.reaches(Side::A, QpState::Sqe)?;
    p.post(Side::B, 2, SendOp::Send, Payload::Inline(b"hello"))?;
    p.ok(Side::B, 2, WcOpcode::Send)?;
    p.ok(Side::A, 9, WcOpcode::Recv)?;
    let (qpn, rts) = (p.end(Side::A).qpn, p.rts(Side::A));
    p.device(Side::A).modify_qp(qpn, &rts)?;
    greet(&mut p, 3)?;
    p.ok(Side::B, 8, WcOpcode::Recv)?;
    Ok(())
}

pub(super) fn receive_without_local_write(rig: &mut dyn Rig, options: Options) -> Outcome {
    let mut p = Pair::connect(rig, Options { mr_access: Access::empty(), ..options })?;
    receive(&mut p, Side::B, 1)?;
    greet(&mut p, 1)?;
    p.status(Side::B, 1, Status::LocProtErr)?;
    p.reaches(Side::B, QpState::Err)
}
