//! Lengths that do not fit (IBTA 9.7.5.2.5, 11.6.2) and limits of posting.

use verbs::{Payload, QpState, SendOp, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side};

cases!("length":
    message_longer_than_receive, multi_packet_longer_than_receive, receive_of_exact_length, too_many_sges_refused,
    too_long_inline_refused, full_send_queue_refused, full_receive_queue_refused,
);

fn too_long(rig: &mut dyn Rig, len: usize, room: usize) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.fill(Side::B, 0, &[0x77; 16_384]);
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, room)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, len)]))?;
    p.status(Side::A, 1, Status::RemInvReqErr)?;
    p.status(Side::B, 5, Status::LocLenErr)?;
    ensure!(p.bytes(Side::B, room as u64, 64) == [0x77; 64], "bytes behind the receive were touched");
    p.reaches(Side::B, QpState::Err)
}

fn message_longer_than_receive(rig: &mut dyn Rig) -> Outcome {
    too_long(rig, 65, 64)
}

fn multi_packet_longer_than_receive(rig: &mut dyn Rig) -> Outcome {
    too_long(rig, 5_000, 4_999)
}

fn receive_of_exact_length(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 5_000)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 5_000)]))?;
    p.ok(Side::B, 5, WcOpcode::Recv)?;
    Ok(())
}

fn too_many_sges_refused(rig: &mut dyn Rig) -> Outcome {
    let max = rig.device(Side::A).device().max_sge as usize;
    let mut p = Pair::connect(rig, Options::default())?;
    let sges = vec![p.sge(Side::A, 0, 1); max + 1];
    let refused = p.post(Side::A, 1, SendOp::Send, Payload::Sges(&sges)).is_err();
    ensure!(refused, "{} scatter/gather entries were accepted, {max} are allowed", max + 1);
    p.quiet(Side::A)
}

fn too_long_inline_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    ensure!(p.post(Side::A, 1, op, Payload::Inline(&[0; 8_192])).is_err(), "8192 inline bytes were accepted");
    p.quiet(Side::A)
}

/// Posts far beyond the depth: some are refused, and exactly the accepted ones complete.
fn full_send_queue_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { depth: 8, rnr_retry: 7, ..Options::default() })?;
    let mut accepted = 0;
    // Without a receive at the peer none of these can complete, so the queue must fill up.
    for id in 0..5_000 {
        if p.post(Side::A, id, SendOp::Send, Payload::Inline(&[0; 8])).is_err() {
            break;
        }
        accepted += 1;
    }
    ensure!((8..5_000).contains(&accepted), "{accepted} were accepted by a queue of 8");
    for id in 0..accepted {
        p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)])?;
        p.ok(Side::B, id, WcOpcode::Recv)?;
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

fn full_receive_queue_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { depth: 8, ..Options::default() })?;
    let mut accepted = 0;
    for id in 0..5_000 {
        if p.recv(Side::B, id, &[p.sge(Side::B, 0, 64)]).is_err() {
            break;
        }
        accepted += 1;
    }
    ensure!((8..5_000).contains(&accepted), "{accepted} were accepted by a queue of 8");
    Ok(())
}
