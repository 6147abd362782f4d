//! Unreliable datagrams: what lands where, and what completions say (IBTA 9.8.3, 11.4.1, annex A17.4.5).

use verbs::{Payload, QpType, SendFlags, SendOp, UdDest, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, pattern};

cases!("ud", unreliable:
    lands_behind_40_bytes, header_names_both_ports, source_qp, immediate, empty, padding, longest, both_ways,
    gather, scatter_header_apart, exactly_fitting_receive, inline, unsignalled, all_signalled, completions_in_order,
    many_senders_to_one, one_sender_to_many, to_itself, shared_receive_queue, many_handles,
);

/// Sends bytes from A's memory to B, waits for both completions, and checks length and data.
fn carry(p: &mut Pair<'_>, id: u64, len: usize) -> Outcome {
    let data = pattern(id, len);
    p.fill(Side::A, 0, &data);
    p.recv_message(Side::B, id, 65_536, len)?;
    let sges = [p.sge(Side::A, 0, len)];
    p.post(Side::A, id, SendOp::Send, Payload::Sges(if len == 0 { &[] } else { &sges }))?;
    let c = p.ok(Side::B, id, WcOpcode::Recv)?;
    ensure!(c.byte_len as usize == 40 + len, "{} bytes received, not 40 + {len}", c.byte_len);
    ensure!(p.message(Side::B, 65_536, len) == data, "data of {len} bytes differ");
    p.ok(Side::A, id, WcOpcode::Send)?;
    Ok(())
}

fn lands_behind_40_bytes(rig: &mut dyn Rig) -> Outcome {
    carry(&mut Pair::datagrams(rig)?, 1, 200)
}

/// Annex A17.4.5: over IPv4 the header is the last 20 of the 40 bytes.
fn header_names_both_ports(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    carry(&mut p, 1, 100)?;
    let (from, to) = (p.device(Side::A).device().gid.ip(), p.device(Side::B).device().gid.ip());
    let Some(header) = p.header(Side::B, 65_536) else {
        return Err(crate::Failure(format!("no IP header in {:02x?}", p.bytes(Side::B, 65_536, 40))));
    };
    ensure!((header.source, header.destination) == (from, to), "{header:?}, sent from {from} to {to}");
    // UDP header, BTH, DETH, payload and ICRC.
    ensure!(header.payload_len == 8 + 12 + 8 + 100 + 4, "{header:?} for 100 bytes");
    Ok(())
}

fn source_qp(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[1; 8]))?;
    let c = p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(c.src_qpn == Some(p.end(Side::A).qpn), "source QP {:?}, not {}", c.src_qpn, p.end(Side::A).qpn);
    ensure!(c.qpn == p.end(Side::B).qpn && c.imm.is_none(), "{c:?}");
    Ok(())
}

fn immediate(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    for (id, imm) in [(1, 0x0102_0304), (2, 0), (3, u32::MAX)] {
        p.recv_message(Side::B, id, 0, 64)?;
        p.post(Side::A, id, SendOp::SendImm(imm), Payload::Inline(&[7; 12]))?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.imm == Some(imm) && c.byte_len == 52, "{c:?}, immediate {imm:#x}");
        ensure!(p.message(Side::B, 0, 12) == [7; 12], "data differ");
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

fn empty(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    carry(&mut p, 1, 0)
}

fn padding(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    for len in 1..=5 {
        carry(&mut p, len as u64, len)?;
    }
    Ok(())
}

fn longest(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let mtu = p.device(Side::A).device().mtu.min(p.device(Side::B).device().mtu).bytes();
    carry(&mut p, 1, mtu - 1)?;
    carry(&mut p, 2, mtu)
}

fn both_ways(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    for (from, id) in [(Side::A, 1), (Side::B, 2)] {
        p.recv_message(from.other(), id, 0, 64)?;
        p.post(from, id, SendOp::Send, Payload::Inline(&[id as u8; 8]))?;
        p.ok(from.other(), id, WcOpcode::Recv)?;
        p.ok(from, id, WcOpcode::Send)?;
        ensure!(p.message(from.other(), 0, 8) == [id as u8; 8], "data differ");
    }
    Ok(())
}

fn gather(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let data = pattern(3, 300);
    for (at, piece) in [(0, 0..7), (1_000, 7..8), (2_000, 8..300)] {
        p.fill(Side::A, at, &data[piece]);
    }
    let sges = [p.sge(Side::A, 0, 7), p.sge(Side::A, 1_000, 1), p.sge(Side::A, 2_000, 292)];
    p.recv_message(Side::B, 1, 0, 300)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&sges))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.message(Side::B, 0, 300) == data, "data differ");
    Ok(())
}

fn scatter_header_apart(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let data = pattern(4, 64);
    p.fill(Side::A, 0, &data);
    let sges = [p.sge(Side::B, 9_000, 40), p.sge(Side::B, 0, 10), p.sge(Side::B, 4_096, 100)];
    p.recv(Side::B, 1, &sges)?;
    let source = [p.sge(Side::A, 0, 64)];
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&source))?;
    let c = p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(c.byte_len == 104, "{} bytes", c.byte_len);
    ensure!(p.bytes(Side::B, 0, 10) == data[..10] && p.bytes(Side::B, 4_096, 54) == data[10..], "data differ");
    ensure!(p.header(Side::B, 9_000).is_some(), "no header in the first entry");
    Ok(())
}

fn exactly_fitting_receive(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.fill(Side::B, 40 + 33, &[0xee; 8]);
    p.recv_message(Side::B, 1, 0, 33)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&[5; 33]))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.message(Side::B, 0, 33) == [5; 33], "data differ");
    ensure!(p.message(Side::B, 33, 8) == [0xee; 8], "padding was written behind the receive");
    Ok(())
}

fn inline(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    p.recv_message(Side::B, 1, 0, 64)?;
    let mut bytes = [9; 64];
    p.post(Side::A, 1, SendOp::Send, Payload::Inline(&bytes))?;
    bytes.fill(0);
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.message(Side::B, 0, 64) == [9; 64] && bytes == [0; 64], "data differ");
    Ok(())
}

fn unsignalled(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    for id in 0..4 {
        p.recv_message(Side::B, id, 0, 64)?;
    }
    for id in 0..3 {
        p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    p.post(Side::A, 3, SendOp::Send, Payload::Inline(&[1; 8]))?;
    p.ok(Side::A, 3, WcOpcode::Send)?;
    p.quiet(Side::A)
}

fn all_signalled(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { sig_all: true, ..Options::datagrams() })?;
    for id in 0..3 {
        p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    for id in 0..3 {
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

fn completions_in_order(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let count = 24;
    for id in 0..count {
        p.recv_message(Side::B, id, id * 256, 64)?;
    }
    for id in 0..count {
        p.post(Side::A, id, SendOp::SendImm(id as u32), Payload::Inline(&[id as u8; 16]))?;
    }
    for id in 0..count {
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    for id in 0..count {
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.imm == Some(id as u32), "datagram {:?} in receive {id}", c.imm);
        ensure!(p.message(Side::B, id * 256, 16) == [id as u8; 16], "data of {id} differ");
    }
    Ok(())
}

fn many_senders_to_one(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let mut senders = vec![p.end(Side::A).qpn];
    for _ in 0..5 {
        senders.push(p.another_qp(Side::A)?);
    }
    for (i, &qpn) in senders.iter().enumerate() {
        let id = i as u64;
        p.recv_message(Side::B, id, id * 256, 64)?;
        let dest = p.dest(Side::A);
        p.send_to(Side::A, qpn, id, &[id as u8; 8], dest)?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.src_qpn == Some(qpn), "datagram of QP {qpn} says {:?}", c.src_qpn);
        ensure!(p.message(Side::B, id * 256, 8) == [id as u8; 8], "data of {id} differ");
    }
    let sent = p.wait(Side::A, senders.len())?;
    ensure!(sent.iter().all(|c| senders.contains(&c.qpn)), "completions of other QPs: {sent:?}");
    Ok(())
}

fn one_sender_to_many(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let qpn = p.end(Side::A).qpn;
    for id in 0..4 {
        let to = p.another_qp(Side::B)?;
        let sges = [p.sge(Side::B, id * 256, 104)];
        p.device(Side::B).post_recv(to, &[verbs::RecvWr { wr_id: id, sges: &sges }])?;
        let dest = p.dest(Side::A).map(|dest| UdDest { qpn: to, ..dest });
        p.send_to(Side::A, qpn, id, &[id as u8; 8], dest)?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.qpn == to, "the datagram to QP {to} came through {}", c.qpn);
    }
    Ok(())
}

fn to_itself(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    let ah = p.address_handle(Side::A, Side::A)?;
    let qpn = p.end(Side::A).qpn;
    p.recv_message(Side::A, 1, 0, 64)?;
    p.send_to(Side::A, qpn, 2, &[3; 8], Some(UdDest { ah, qpn, qkey: p.options.qkey }))?;
    let mut ids: Vec<u64> = p.wait(Side::A, 2)?.iter().map(|c| c.wr_id).collect();
    ids.sort_unstable();
    ensure!(ids == [1, 2] && p.message(Side::A, 0, 8) == [3; 8], "completions {ids:?}");
    Ok(())
}

fn shared_receive_queue(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { srq: true, ..Options::datagrams() })?;
    let second = p.another_qp(Side::B)?;
    let (from, first) = (p.end(Side::A).qpn, p.end(Side::B).qpn);
    for id in 0..4 {
        p.recv_message(Side::B, id, id * 256, 64)?;
    }
    for id in 0..4u64 {
        let to = if id % 2 == 0 { first } else { second };
        let dest = p.dest(Side::A).map(|dest| UdDest { qpn: to, ..dest });
        p.send_to(Side::A, from, id, &[id as u8; 8], dest)?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.qpn == to && c.src_qpn == Some(from), "{c:?}, sent to QP {to}");
        ensure!(p.message(Side::B, id * 256, 8) == [id as u8; 8], "data of {id} differ");
    }
    Ok(())
}

fn many_handles(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::datagrams(rig)?;
    ensure!(p.options.qp_type == QpType::Ud, "the pair is of another service");
    for id in 0..8 {
        let ah = p.address_handle(Side::A, Side::B)?;
        p.recv_message(Side::B, id, 0, 64)?;
        let (qpn, dest) = (p.end(Side::A).qpn, p.dest(Side::A).map(|dest| UdDest { ah, ..dest }));
        p.send_to(Side::A, qpn, id, &[1; 8], dest)?;
        p.ok(Side::B, id, WcOpcode::Recv)?;
        p.ok(Side::A, id, WcOpcode::Send)?;
        p.device(Side::A).destroy_ah(ah)?;
        ensure!(p.device(Side::A).destroy_ah(ah).is_err(), "an address handle was destroyed twice");
        ensure!(p.send_to(Side::A, qpn, id, &[1; 8], dest).is_err(), "a destroyed address handle was taken");
    }
    Ok(())
}
