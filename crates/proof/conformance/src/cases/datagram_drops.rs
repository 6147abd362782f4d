//! Datagrams that are refused when posted, and those that vanish without a word (IBTA 9.8.3, 10.2.5).

use verbs::{Payload, PostError, Qkey, QpModify, Qpn, SendFlags, SendOp, SendWr, UdDest, VerbsError, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side};

cases!("ud_drop", unreliable:
    longer_than_the_path_mtu_is_refused, write_is_refused, no_destination_is_refused, wrong_queue_key, high_bit_takes_own_key,
    no_receive, no_shared_receive, longer_than_receive, receive_shorter_than_header, unknown_qp, qp_in_init,
    shared_receive_too_short,
);

/// The next datagram arrives in receive `id` at 0: nothing that was dropped took it.
fn next_arrives(p: &mut Pair<'_>, id: u64) -> Outcome {
    p.post_flags(Side::A, 99, SendOp::Send, Payload::Inline(b"next"), SendFlags::empty())?;
    p.ok(Side::B, id, WcOpcode::Recv)?;
    ensure!(p.message(Side::B, 0, 4) == b"next", "another datagram took the receive");
    Ok(())
}

fn longer_than_the_path_mtu_is_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let mtu = p.device(Side::A).device().mtu.bytes();
    let (qpn, dest) = (p.end(Side::A).qpn, p.dest(Side::A));
    let sges = [p.sge(Side::A, 0, mtu), p.sge(Side::A, 0, 1)];
    let wr = |wr_id, sges| SendWr {
        wr_id,
        op: SendOp::Send,
        payload: Payload::Sges(sges),
        flags: SendFlags::SIGNALED,
        dest,
    };
    let refused = p.device(Side::A).post_send(qpn, &[wr(1, &sges[1..]), wr(2, &sges), wr(3, &sges[1..])]);
    let limit = mtu as u64;
    match refused {
        Err(PostError { index: 1, cause: VerbsError::OutOfRange { value, max, .. } }) => {
            ensure!((value, max) == (limit + 1, limit), "{value} bytes refused with limit {max}, not {limit}");
        }
        other => return Err(crate::Failure(format!("{} bytes over a path MTU of {mtu}: {other:?}", mtu + 1))),
    }
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::A)
}

fn write_is_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    ensure!(p.post(Side::A, 1, op, Payload::Inline(&[1; 8])).is_err(), "a WRITE was posted to a datagram QP");
    Ok(())
}

fn no_destination_is_refused(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let qpn = p.end(Side::A).qpn;
    ensure!(p.send_to(Side::A, qpn, 1, &[1; 8], None).is_err(), "a datagram without destination was posted");
    Ok(())
}

fn wrong_queue_key(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    let (qpn, dest) = (p.end(Side::A).qpn, p.dest(Side::A));
    let wrong = dest.map(|dest| UdDest { qkey: Qkey(dest.qkey.0 ^ 1), ..dest });
    p.send_to(Side::A, qpn, 1, b"lost", wrong)?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    next_arrives(&mut p, 1)
}

/// IBTA 10.2.5: a key with the highest bit set stands for the sending QP's own.
fn high_bit_takes_own_key(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    let (qpn, dest) = (p.end(Side::A).qpn, p.dest(Side::A));
    p.send_to(Side::A, qpn, 1, b"mine", dest.map(|dest| UdDest { qkey: Qkey(1 << 31), ..dest }))?;
    let c = p.ok(Side::A, 1, WcOpcode::Send)?;
    ensure!(c.qpn == qpn, "{c:?}");
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    Ok(())
}

fn dropped_without_receive(p: &mut Pair<'_>) -> Outcome {
    for id in 0..3 {
        p.post(Side::A, id, SendOp::Send, Payload::Inline(b"lost"))?;
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    p.quiet(Side::B)?;
    p.recv_message(Side::B, 9, 0, 64)?;
    p.quiet(Side::B)?;
    next_arrives(p, 9)
}

fn no_receive(rig: &mut dyn Rig) -> Outcome {
    dropped_without_receive(&mut Pair::datagrams(rig)?)
}

fn no_shared_receive(rig: &mut dyn Rig) -> Outcome {
    dropped_without_receive(&mut Pair::connect(rig, Options { srq: true, ..Options::datagrams() })?)
}

fn longer_than_receive(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 7)?;
    p.post_flags(Side::A, 1, SendOp::Send, Payload::Inline(&[6; 8]), SendFlags::empty())?;
    p.quiet(Side::B)?;
    next_arrives(&mut p, 1)
}

fn receive_shorter_than_header(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 39)])?;
    p.post_flags(Side::A, 1, SendOp::Send, Payload::Inline(&[]), SendFlags::empty())?;
    p.quiet(Side::B)
}

fn shared_receive_too_short(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { srq: true, ..Options::datagrams() })?;
    p.recv_message(Side::B, 1, 0, 7)?;
    p.post_flags(Side::A, 1, SendOp::Send, Payload::Inline(&[6; 8]), SendFlags::empty())?;
    p.quiet(Side::B)?;
    next_arrives(&mut p, 1)
}

fn unknown_qp(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    let (qpn, dest) = (p.end(Side::A).qpn, p.dest(Side::A));
    p.send_to(Side::A, qpn, 1, b"lost", dest.map(|dest| UdDest { qpn: Qpn(0xff_fffe), ..dest }))?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    next_arrives(&mut p, 1)
}

/// Receives may be posted in Init, and nothing arrives before RTR.
fn qp_in_init(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::datagrams())?;
    p.to_rts(Side::A)?;
    let (qpn, init, rtr) = (p.end(Side::B).qpn, p.init(), p.rtr(Side::B));
    p.device(Side::B).modify_qp(qpn, &init)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(b"lost"))?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    p.quiet(Side::B)?;
    ensure!(matches!(rtr, QpModify::Rtr(_)), "attributes of RTR expected");
    p.device(Side::B).modify_qp(qpn, &rtr)?;
    next_arrives(&mut p, 1)
}
