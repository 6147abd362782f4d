//! The QP state machine (IBTA 10.3.1, tables 91 and 92).

use verbs::{Payload, QpModify, QpState, Qpn, SendOp, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, Step};

cases!("state":
    walk_to_rts, rts_from_reset_refused, rtr_from_reset_refused, send_before_rts_refused, receive_in_init_is_kept,
    responder_works_in_rtr, unknown_qp_refused, destroyed_qp_is_gone, numbers_are_not_reused_at_once,
);

fn walk_to_rts(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    let qpn = p.end(Side::A).qpn;
    let steps = [(Step::Init, QpState::Init), (Step::Rtr, QpState::Rtr), (Step::Rts, QpState::Rts)];
    for (step, want) in steps {
        if step == Step::Rtr && p.needs_rtr().is_err() {
            continue;
        }
        p.step(Side::A, step)?;
        let now = p.state(Side::A)?;
        ensure!(now == want, "{want:?} expected after the transition, the QP is in {now:?}");
    }
    for (to, want) in [(QpModify::Err, QpState::Err), (QpModify::Reset, QpState::Reset)] {
        p.device(Side::A).modify_qp(qpn, &to)?;
        let now = p.state(Side::A)?;
        ensure!(now == want, "{want:?} expected after the transition, the QP is in {now:?}");
    }
    Ok(())
}

fn refused(p: &mut Pair<'_>, to: &QpModify) -> Outcome {
    let qpn = p.end(Side::A).qpn;
    ensure!(p.device(Side::A).modify_qp(qpn, to).is_err(), "a transition was accepted that the state does not allow");
    let now = p.state(Side::A)?;
    ensure!(now == QpState::Reset, "the refused transition moved the QP to {now:?}");
    Ok(())
}

fn rts_from_reset_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    let to = p.rts(Side::A);
    refused(&mut p, &to)
}

fn rtr_from_reset_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    let to = p.rtr(Side::A);
    refused(&mut p, &to)
}

/// IBTA 10.8.3.2: posting to the send queue in Reset, Init or RTR is an immediate error.
fn send_before_rts_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    for step in [None, Some(Step::Init), Some(Step::Rtr)] {
        if let Some(step) = step {
            p.step(Side::A, step)?;
        }
        let refused = p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 8])).is_err();
        let state = p.state(Side::A)?;
        ensure!(refused, "a send was accepted in {state:?}");
    }
    Ok(())
}

fn receive_in_init_is_kept(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    p.step(Side::B, Step::Init)?;
    p.recv(Side::B, 9, &[p.sge(Side::B, 0, 64)])?;
    for step in [Step::Rtr, Step::Rts] {
        p.step(Side::B, step)?;
    }
    p.to_rts(Side::A)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 8]))?;
    p.ok(Side::B, 9, WcOpcode::Recv)?;
    Ok(())
}

fn responder_works_in_rtr(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::default())?;
    p.needs_rtr()?;
    for step in [Step::Init, Step::Rtr] {
        p.step(Side::B, step)?;
    }
    p.to_rts(Side::A)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Inline(&[5; 8]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 0, 8) == [5; 8], "data differ");
    Ok(())
}

fn unknown_qp_refused(rig: &mut dyn Rig) -> Outcome {
    let device = rig.device(Side::A);
    let nobody = Qpn(0xff_fffe);
    ensure!(device.query_qp(nobody).is_err(), "an unknown QP was queried");
    ensure!(device.modify_qp(nobody, &QpModify::Err).is_err(), "an unknown QP was modified");
    ensure!(device.destroy_qp(nobody).is_err(), "an unknown QP was destroyed");
    ensure!(device.post_send(nobody, &[]).is_err(), "an unknown QP was posted to");
    Ok(())
}

fn destroyed_qp_is_gone(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let qpn = p.end(Side::A).qpn;
    p.device(Side::A).destroy_qp(qpn)?;
    ensure!(p.device(Side::A).query_qp(qpn).is_err(), "a destroyed QP was queried");
    let cq = p.end(Side::A).cq;
    p.device(Side::A).destroy_cq(cq)?;
    Ok(())
}

fn numbers_are_not_reused_at_once(rig: &mut dyn Rig) -> Outcome {
    let mut last = None;
    for _ in 0..4 {
        let mut p = Pair::create(rig, Options::default())?;
        let qpn = p.end(Side::A).qpn;
        ensure!(last != Some(qpn), "{qpn} was given again right after it was destroyed");
        p.device(Side::A).destroy_qp(qpn)?;
        last = Some(qpn);
    }
    Ok(())
}
