//! What unreliable connections refuse when it is posted, and what vanishes without a word (IBTA 9.8.2.2, 10.8.3).

use verbs::{
    Access, Payload, PostError, QpModify, QpState, QpType, RemoteAddr, Rkey, SendFlags, SendOp, VerbsError, WcOpcode,
};

use super::{cases, ensure};
use crate::{Failure, Options, Outcome, Pair, Rig, Side};

cases!("uc_drop", unreliable:
    read_is_refused, atomics_are_refused, no_receive, no_receive_for_write_imm, no_shared_receive, longer_than_receive,
    longer_by_a_packet, unknown_key, write_beyond_the_region, write_to_read_only_memory, writes_not_allowed, qp_in_init,
    qp_in_error, destroyed_qp,
);

/// The next message arrives in receive `id` at 0: nothing that was dropped took it.
fn next_arrives(p: &mut Pair<'_>, id: u64) -> Outcome {
    p.post_flags(Side::A, 99, SendOp::Send, Payload::Inline(b"next"), SendFlags::empty())?;
    p.ok(Side::B, id, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 0, 4) == b"next", "another message took the receive");
    Ok(())
}

fn refused(rig: &mut dyn Rig, op: fn(RemoteAddr) -> SendOp) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let (qpn, op, sges) = (p.end(Side::A).qpn, op(p.remote(Side::A, 0)), [p.sge(Side::A, 0, 8)]);
    let flags = SendFlags::SIGNALED;
    let wr = verbs::SendWr { wr_id: 1, op, payload: Payload::Sges(&sges), flags, dest: None };
    let send = verbs::SendWr { wr_id: 2, op: SendOp::Send, ..wr };
    match p.device(Side::A).post_send(qpn, &[send, wr]) {
        Err(PostError { index: 1, cause: VerbsError::NotOnTransport { qp_type: QpType::Uc, verb } }) => {
            ensure!(verb == op.verb(), "{verb} was refused, {} was asked for", op.verb());
        }
        other => return Err(Failure(format!("{} on an unreliable connection: {other:?}", op.verb()))),
    }
    p.ok(Side::A, 2, WcOpcode::Send)?;
    p.quiet(Side::A)
}

fn read_is_refused(rig: &mut dyn Rig) -> Outcome {
    refused(rig, SendOp::Read)
}

fn atomics_are_refused(rig: &mut dyn Rig) -> Outcome {
    refused(rig, |remote| SendOp::FetchAdd { remote, add: 1 })?;
    refused(rig, |remote| SendOp::CmpSwap { remote, compare: 0, swap: 1 })
}

fn dropped_without_receive(p: &mut Pair<'_>) -> Outcome {
    for (id, len) in [(0, 4), (1, 3_000), (2, 4)] {
        p.post(Side::A, id, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, len)]))?;
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    p.quiet(Side::B)?;
    p.recv(Side::B, 9, &[p.sge(Side::B, 0, 64)])?;
    p.quiet(Side::B)?;
    next_arrives(p, 9)
}

/// There is no RNR NAK: the message is lost.
fn no_receive(rig: &mut dyn Rig) -> Outcome {
    dropped_without_receive(&mut Pair::unreliable(rig)?)
}

fn no_shared_receive(rig: &mut dyn Rig) -> Outcome {
    dropped_without_receive(&mut Pair::connect(rig, Options { srq: true, ..Options::unreliable() })?)
}

fn no_receive_for_write_imm(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let op = SendOp::WriteImm(p.remote(Side::A, 4_096), 5);
    p.post(Side::A, 1, op, Payload::Inline(&[1; 8]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    p.quiet(Side::B)?;
    p.recv(Side::B, 9, &[p.sge(Side::B, 0, 64)])?;
    next_arrives(&mut p, 9)
}

fn too_long(rig: &mut dyn Rig, receive: usize, message: usize) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    p.fill(Side::B, receive as u64, &[0xee; 64]);
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, receive)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, message)]))?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    ensure!(p.bytes(Side::B, receive as u64, 64) == [0xee; 64], "bytes behind the receive were written");
    next_arrives(&mut p, 1)
}

fn longer_than_receive(rig: &mut dyn Rig) -> Outcome {
    too_long(rig, 7, 8)
}

fn longer_by_a_packet(rig: &mut dyn Rig) -> Outcome {
    too_long(rig, 2_048, 2_049)
}

/// A WRITE that the peer does not allow is dropped; both QPs live on.
fn write_dropped(p: &mut Pair<'_>, to: RemoteAddr) -> Outcome {
    p.recv(Side::B, 9, &[p.sge(Side::B, 0, 64)])?;
    for (id, len) in [(1, 8), (2, 3_000)] {
        p.fill(Side::A, 0, &[7; 3_000]);
        p.post(Side::A, id, SendOp::Write(to), Payload::Sges(&[p.sge(Side::A, 0, len)]))?;
        p.ok(Side::A, id, WcOpcode::Write)?;
    }
    p.post(Side::A, 3, SendOp::WriteImm(to, 1), Payload::Inline(&[7; 8]))?;
    p.ok(Side::A, 3, WcOpcode::Write)?;
    p.quiet(Side::B)?;
    ensure!(p.state(Side::B)? == QpState::Rts, "the peer's QP is in {:?}", p.state(Side::B)?);
    next_arrives(p, 9)?;
    let bytes = p.options.bytes - 8_192;
    ensure!(p.bytes(Side::B, bytes, 8_192).iter().all(|&b| b == 0), "a WRITE landed that is not allowed");
    Ok(())
}

fn unknown_key(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let to = p.remote(Side::A, p.options.bytes - 8_192);
    write_dropped(&mut p, RemoteAddr { rkey: Rkey(to.rkey.0 ^ 0x5500), ..to })
}

fn write_beyond_the_region(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let to = p.remote(Side::A, p.options.bytes - 4);
    write_dropped(&mut p, to)
}

fn write_to_read_only_memory(rig: &mut dyn Rig) -> Outcome {
    let options = Options { mr_access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..Options::unreliable() };
    let mut p = Pair::connect(rig, options)?;
    let to = p.remote(Side::A, p.options.bytes - 8_192);
    write_dropped(&mut p, to)
}

fn writes_not_allowed(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { qp_access: Access::REMOTE_READ, ..Options::unreliable() })?;
    let to = p.remote(Side::A, p.options.bytes - 8_192);
    write_dropped(&mut p, to)
}

/// Receives may be posted in Init, and nothing arrives before RTR.
fn qp_in_init(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::unreliable())?;
    p.to_rts(Side::A)?;
    let (qpn, init, rtr) = (p.end(Side::B).qpn, p.init(), p.rtr(Side::B));
    p.device(Side::B).modify_qp(qpn, &init)?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(b"lost"))?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    p.device(Side::B).modify_qp(qpn, &rtr)?;
    // The PSN of the lost message is missing, and does not matter.
    next_arrives(&mut p, 1)
}

/// The sender does not learn that its peer is gone.
fn silent(p: &mut Pair<'_>) -> Outcome {
    let op = SendOp::Write(p.remote(Side::A, 0));
    for id in 0..3 {
        p.post(Side::A, id, op, Payload::Inline(&[1; 8]))?;
        p.ok(Side::A, id, WcOpcode::Write)?;
    }
    p.quiet(Side::A)?;
    ensure!(p.bytes(Side::B, 0, 8) == [0; 8], "a WRITE landed through a QP that takes none");
    ensure!(p.state(Side::A)? == QpState::Rts, "the sender's QP is in {:?}", p.state(Side::A)?);
    Ok(())
}

fn qp_in_error(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).modify_qp(qpn, &QpModify::Err)?;
    silent(&mut p)
}

fn destroyed_qp(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let qpn = p.end(Side::B).qpn;
    p.device(Side::B).destroy_qp(qpn)?;
    silent(&mut p)
}
