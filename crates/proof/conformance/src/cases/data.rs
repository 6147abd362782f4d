//! SEND: bytes arrive as they were sent, with the right length, immediate and request (IBTA 9.4.1, 9.7.5).

use verbs::{Payload, SendFlags, SendOp, WcOpcode};

use super::{cases, ensure};
use crate::{Failure, Options, Outcome, Pair, Rig, Side, pattern};

cases!("send":
    one_byte, zero_length, exactly_one_mtu, one_byte_over_mtu, many_packets, one_mebibyte, with_immediate,
    immediate_on_last_packet_only, immediate_zero_length, gather, scatter, inline_is_copied_at_post, unaligned,
    both_directions_at_once, unpadded_lengths, receive_longer_than_message, every_path_mtu,
);

fn transfer(rig: &mut dyn Rig, options: Options, len: usize) -> Outcome {
    let mut p = Pair::connect(rig, options)?;
    send_on(&mut p, len, 1, None)
}

/// Sends `len` bytes from A's offset 0 to B's offset 0 and checks both completions and the data.
fn send_on(p: &mut Pair<'_>, len: usize, id: u64, imm: Option<u32>) -> Outcome {
    let data = pattern(id, len);
    p.fill(Side::A, 0, &data);
    p.recv(Side::B, id, &[p.sge(Side::B, 0, len.max(1))])?;
    let sges = [p.sge(Side::A, 0, len)];
    let sges = if len == 0 { &sges[..0] } else { &sges[..] };
    p.post(Side::A, id + 100, imm.map_or(SendOp::Send, SendOp::SendImm), Payload::Sges(sges))?;
    let got = p.ok(Side::B, id, WcOpcode::Recv)?;
    p.ok(Side::A, id + 100, WcOpcode::Send)?;
    ensure!(got.byte_len as usize == len, "byte_len {} expected, got {}", len, got.byte_len);
    ensure!(got.imm == imm, "immediate {imm:x?} expected, got {:x?}", got.imm);
    ensure!(p.bytes(Side::B, 0, len) == data, "data of {len} bytes differ");
    Ok(())
}

fn one_byte(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 1)
}

fn zero_length(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 0)
}

fn exactly_one_mtu(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 1024)
}

fn one_byte_over_mtu(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 1025)
}

fn many_packets(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 100_003)
}

fn one_mebibyte(rig: &mut dyn Rig) -> Outcome {
    transfer(rig, Options::default(), 1 << 20)
}

fn with_immediate(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    send_on(&mut p, 64, 1, Some(0x0102_0304))?;
    send_on(&mut p, 64, 2, Some(0))?;
    send_on(&mut p, 64, 3, None)
}

fn immediate_on_last_packet_only(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    send_on(&mut p, 5_000, 1, Some(0xffff_ffff))
}

fn immediate_zero_length(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    send_on(&mut p, 0, 1, Some(7))
}

fn gather(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(3, 4_000);
    p.fill(Side::A, 0, &data[..1_000]);
    p.fill(Side::A, 10_001, &data[1_000..1_003]);
    p.fill(Side::A, 20_000, &data[1_003..]);
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 4_000)])?;
    let sges = [p.sge(Side::A, 0, 1_000), p.sge(Side::A, 10_001, 3), p.sge(Side::A, 20_000, 2_997)];
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&sges))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 0, 4_000) == data, "gathered data differ");
    Ok(())
}

fn scatter(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(4, 4_000);
    p.fill(Side::A, 0, &data);
    let sges = [p.sge(Side::B, 0, 1), p.sge(Side::B, 5_000, 2_500), p.sge(Side::B, 30_000, 1_600)];
    p.recv(Side::B, 1, &sges)?;
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 4_000)]))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    let mut got = p.bytes(Side::B, 0, 1);
    got.extend(p.bytes(Side::B, 5_000, 2_500));
    got.extend(p.bytes(Side::B, 30_000, 1_499));
    ensure!(got == data, "scattered data differ");
    ensure!(p.bytes(Side::B, 31_499, 8) == [0; 8], "bytes behind the message were touched");
    Ok(())
}

fn inline_is_copied_at_post(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    let mut bytes = pattern(5, 48);
    let sent = bytes.clone();
    p.post(Side::A, 2, SendOp::Send, Payload::Inline(&bytes))?;
    bytes.fill(0xee);
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 0, 48) == sent, "inline data differ");
    Ok(())
}

fn unaligned(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(6, 3_333);
    p.fill(Side::A, 4_095, &data);
    p.recv(Side::B, 1, &[p.sge(Side::B, 8_191, 3_333)])?;
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 4_095, 3_333)]))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 8_191, 3_333) == data, "data differ");
    Ok(())
}

fn both_directions_at_once(rig: &mut dyn Rig) -> Outcome {
    const N: u64 = 16;
    let mut p = Pair::connect(rig, Options::default())?;
    for side in [Side::A, Side::B] {
        for i in 0..N {
            p.fill(side, i * 4_096, &pattern(i + 50 * u64::from(side == Side::A), 3_000));
            p.recv(side, i, &[p.sge(side, 500_000 + i * 4_096, 3_000)])?;
        }
    }
    for i in 0..N {
        for side in [Side::A, Side::B] {
            let sge = [p.sge(side, i * 4_096, 3_000)];
            p.post_flags(side, 0, SendOp::Send, Payload::Sges(&sge), SendFlags::empty())?;
        }
    }
    for side in [Side::A, Side::B] {
        for i in 0..N {
            p.ok(side, i, WcOpcode::Recv)?;
            let got = p.bytes(side, 500_000 + i * 4_096, 3_000);
            ensure!(got == pattern(i + 50 * u64::from(side == Side::B), 3_000), "message {i} to {side:?} differs");
        }
    }
    Ok(())
}

fn unpadded_lengths(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for (id, len) in [1usize, 2, 3, 4, 5, 7, 1023, 1026, 2047, 2049, 3071].into_iter().enumerate() {
        send_on(&mut p, len, id as u64, None).map_err(|f| Failure(format!("length {len}: {f}")))?;
    }
    Ok(())
}

fn receive_longer_than_message(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.fill(Side::A, 0, &pattern(1, 10));
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 5_000)])?;
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 10)]))?;
    let c = p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(c.byte_len == 10, "byte_len 10 expected, got {}", c.byte_len);
    Ok(())
}

fn every_path_mtu(rig: &mut dyn Rig) -> Outcome {
    for mtu in verbs::PathMtu::ALL {
        transfer(rig, Options { mtu, ..Options::default() }, 9_001).map_err(|f| Failure(format!("{mtu:?}: {f}")))?;
    }
    Ok(())
}
