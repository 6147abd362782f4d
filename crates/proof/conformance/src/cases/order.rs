//! Order of execution, of data and of completions on one QP (IBTA 9.5, 10.8.3.3).

use verbs::{Payload, SendFlags, SendOp, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, pattern};

cases!("order":
    sends_in_order, write_before_send, write_imm_and_send_interleaved, read_after_write, completions_in_post_order,
    unsignalled_gives_none, sig_all_gives_all, unsignalled_slots_come_back, fence_after_read,
);

fn sends_in_order(rig: &mut dyn Rig) -> Outcome {
    const N: u64 = 40;
    let mut p = Pair::connect(rig, Options::default())?;
    for i in 0..N {
        p.recv(Side::B, i, &[p.sge(Side::B, i * 4_096, 4_096)])?;
    }
    for i in 0..N {
        let len = 1 + (i as usize * 97) % 3_000;
        p.fill(Side::A, i * 4_096, &pattern(i, len));
        let sge = [p.sge(Side::A, i * 4_096, len)];
        p.post_flags(Side::A, i, SendOp::SendImm(i as u32), Payload::Sges(&sge), SendFlags::empty())?;
    }
    for i in 0..N {
        let c = p.ok(Side::B, i, WcOpcode::Recv)?;
        ensure!(c.imm == Some(i as u32), "message {i} has immediate {:?}", c.imm);
        let len = 1 + (i as usize * 97) % 3_000;
        ensure!(p.bytes(Side::B, i * 4_096, len) == pattern(i, len), "message {i} differs");
    }
    Ok(())
}

fn write_before_send(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for round in 0..8 {
        let data = pattern(round, 60_000);
        p.fill(Side::A, 0, &data);
        p.recv(Side::B, round, &[p.sge(Side::B, 500_000, 16)])?;
        let op = SendOp::Write(p.remote(Side::A, 0));
        let sge = [p.sge(Side::A, 0, 60_000)];
        p.post_flags(Side::A, 1, op, Payload::Sges(&sge), SendFlags::empty())?;
        p.post(Side::A, 2, SendOp::Send, Payload::Inline(&[1, 2, 3]))?;
        p.ok(Side::B, round, WcOpcode::Recv)?;
        ensure!(p.bytes(Side::B, 0, 60_000) == data, "the WRITE before the SEND is not there");
        p.ok(Side::A, 2, WcOpcode::Send)?;
    }
    Ok(())
}

fn write_imm_and_send_interleaved(rig: &mut dyn Rig) -> Outcome {
    const N: u64 = 20;
    let mut p = Pair::connect(rig, Options::default())?;
    for i in 0..N {
        p.recv(Side::B, i, &[p.sge(Side::B, 500_000 + i * 64, 64)])?;
    }
    for i in 0..N {
        let flags = SendFlags::empty();
        if i % 2 == 0 {
            let op = SendOp::WriteImm(p.remote(Side::A, i * 100), i as u32);
            p.post_flags(Side::A, i, op, Payload::Inline(&[i as u8; 20]), flags)?;
        } else {
            p.post_flags(Side::A, i, SendOp::SendImm(i as u32), Payload::Inline(&[i as u8; 30]), flags)?;
        }
    }
    for i in 0..N {
        let opcode = if i % 2 == 0 { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
        let c = p.ok(Side::B, i, opcode)?;
        ensure!(c.imm == Some(i as u32), "arrival {i} has immediate {:?}", c.imm);
    }
    Ok(())
}

fn read_after_write(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(3, 20_000);
    p.fill(Side::A, 0, &data);
    let (write, read) = (SendOp::Write(p.remote(Side::A, 64)), SendOp::Read(p.remote(Side::A, 64)));
    p.post(Side::A, 1, write, Payload::Sges(&[p.sge(Side::A, 0, 20_000)]))?;
    p.post(Side::A, 2, read, Payload::Sges(&[p.sge(Side::A, 100_000, 20_000)]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    p.ok(Side::A, 2, WcOpcode::Read)?;
    ensure!(p.bytes(Side::A, 100_000, 20_000) == data, "the READ does not see the WRITE before it");
    Ok(())
}

fn completions_in_post_order(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for i in 0..30u64 {
        let op = match i % 3 {
            0 => SendOp::Write(p.remote(Side::A, 0)),
            1 => SendOp::Read(p.remote(Side::A, 0)),
            _ => SendOp::Write(p.remote(Side::A, 9_000)),
        };
        let sge = [p.sge(Side::A, 100_000, if i % 2 == 0 { 5_000 } else { 8 })];
        p.post(Side::A, i, op, Payload::Sges(&sge))?;
    }
    for (i, c) in p.wait(Side::A, 30)?.iter().enumerate() {
        ensure!(c.wr_id == i as u64, "completion {i} is of request {}", c.wr_id);
    }
    Ok(())
}

fn unsignalled_gives_none(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for id in 1..4 {
        let op = SendOp::Write(p.remote(Side::A, 0));
        p.post_flags(Side::A, id, op, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 4, op, Payload::Inline(&[1; 8]))?;
    p.ok(Side::A, 4, WcOpcode::Write)?;
    p.quiet(Side::A)
}

fn sig_all_gives_all(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { sig_all: true, ..Options::default() })?;
    for id in 0..5 {
        let op = SendOp::Write(p.remote(Side::A, 0));
        p.post_flags(Side::A, id, op, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    for id in 0..5 {
        p.ok(Side::A, id, WcOpcode::Write)?;
    }
    Ok(())
}

/// A signalled completion gives the slots of the unsignalled requests before it back.
fn unsignalled_slots_come_back(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { depth: 16, ..Options::default() })?;
    for round in 0..50u64 {
        for i in 0..8 {
            let flags = if i == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let op = SendOp::Write(p.remote(Side::A, 0));
            p.post_flags(Side::A, round * 8 + i, op, Payload::Inline(&[1; 8]), flags)?;
        }
        p.ok(Side::A, round * 8 + 7, WcOpcode::Write)?;
    }
    Ok(())
}

/// A fenced SEND sees the result of the READ before it (IBTA 10.8.3.3).
fn fence_after_read(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(30, 30_000);
    p.fill(Side::B, 0, &data);
    p.recv(Side::B, 9, &[p.sge(Side::B, 500_000, 30_000)])?;
    let op = SendOp::Read(p.remote(Side::A, 0));
    p.post_flags(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 30_000)]), SendFlags::empty())?;
    let fenced = SendFlags::FENCE | SendFlags::SIGNALED;
    p.post_flags(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 30_000)]), fenced)?;
    p.ok(Side::B, 9, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 500_000, 30_000) == data, "the fenced SEND left before the READ was done");
    Ok(())
}
