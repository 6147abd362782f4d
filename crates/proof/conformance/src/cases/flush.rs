//! The error state: everything outstanding is flushed, in order, and nothing more is executed (IBTA 10.3.1.6).

use verbs::{Payload, QpModify, QpState, SendFlags, SendOp, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side};

cases!("flush":
    sends_behind_a_failed_one, receives_of_an_own_queue, unsignalled_are_flushed_too, post_to_error_state, receive_to_error_state,
    reset_forgets, reset_and_connect_again, nothing_lands_after_error,
);

fn kill(p: &mut Pair<'_>, side: Side) -> Outcome {
    let qpn = p.end(side).qpn;
    p.device(side).modify_qp(qpn, &QpModify::Err)?;
    Ok(())
}

fn sends_behind_a_failed_one(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let bad = SendOp::Write(p.remote(Side::A, p.options.bytes));
    let good = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, bad, Payload::Inline(&[1; 8]))?;
    for id in 2..6 {
        p.post(Side::A, id, good, Payload::Inline(&[1; 8]))?;
    }
    p.status(Side::A, 1, Status::RemAccessErr)?;
    for id in 2..6 {
        p.status(Side::A, id, Status::WrFlushErr)?;
    }
    p.quiet(Side::A)
}

fn receives_of_an_own_queue(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for id in 0..4 {
        p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)])?;
    }
    kill(&mut p, Side::B)?;
    for id in 0..4 {
        p.status(Side::B, id, Status::WrFlushErr)?;
    }
    p.quiet(Side::B)
}

fn unsignalled_are_flushed_too(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for id in 0..3 {
        // Held back for ever by the missing receive.
        p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    kill(&mut p, Side::A)?;
    for id in 0..3 {
        p.status(Side::A, id, Status::WrFlushErr)?;
    }
    Ok(())
}

fn post_to_error_state(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    kill(&mut p, Side::A)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 7, op, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 7, Status::WrFlushErr)
}

fn receive_to_error_state(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    kill(&mut p, Side::B)?;
    p.recv(Side::B, 7, &[p.sge(Side::B, 0, 64)])?;
    p.status(Side::B, 7, Status::WrFlushErr)
}

fn reset_forgets(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::B, 2, SendOp::Send, Payload::Inline(&[1; 8]))?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Reset)?;
    ensure!(p.state(Side::B)? == QpState::Reset, "the QP is not in Reset");
    p.quiet(Side::B)
}

fn reset_and_connect_again(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for side in [Side::A, Side::B] {
        kill(&mut p, side)?;
        let qpn = p.end(side).qpn;
        p.device(side).modify_qp(qpn, &QpModify::Reset)?;
    }
    for side in [Side::A, Side::B] {
        p.to_rts(side)?;
    }
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[4; 8]))?;
    p.ok(Side::B, 5, WcOpcode::Recv)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    Ok(())
}

fn nothing_lands_after_error(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { timeout: 10, retry_cnt: 1, ..Options::default() })?;
    kill(&mut p, Side::B)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Inline(&[1; 8]))?;
    p.status(Side::A, 1, Status::RetryExcErr)?;
    ensure!(p.bytes(Side::B, 0, 8) == [0; 8], "a WRITE landed through a QP in error");
    Ok(())
}
