//! WRITE and READ: data placement without the peer's consumer (IBTA 9.4.3, 9.4.4).

use verbs::{Payload, SendFlags, SendOp, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, pattern};

cases!("memory":
    write_one_byte, write_many_packets, write_zero_length, write_gather, write_leaves_neighbours, write_inline,
    write_gives_no_receive, write_imm_small, write_imm_many_packets, write_imm_zero_length, write_imm_ignores_receive_buffer,
    read_one_byte, read_many_packets, read_zero_length, read_scatter, read_exactly_one_mtu, reads_beyond_the_depth,
    write_from_both_sides,
);

fn write(rig: &mut dyn Rig, len: usize, at: u64) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(9, len);
    p.fill(Side::A, 0, &data);
    let op = SendOp::Write(p.remote(Side::A, at));
    let sge = [p.sge(Side::A, 0, len)];
    p.post(Side::A, 1, op, Payload::Sges(if len == 0 { &[] } else { &sge }))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, at, len) == data, "data of {len} bytes at {at} differ");
    Ok(())
}

fn write_one_byte(rig: &mut dyn Rig) -> Outcome {
    write(rig, 1, 77)
}

fn write_many_packets(rig: &mut dyn Rig) -> Outcome {
    write(rig, 300_001, 12_345)
}

fn write_zero_length(rig: &mut dyn Rig) -> Outcome {
    write(rig, 0, 0)
}

fn write_gather(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(2, 2_500);
    p.fill(Side::A, 100, &data[..7]);
    p.fill(Side::A, 9_000, &data[7..2_000]);
    p.fill(Side::A, 70_000, &data[2_000..]);
    let sges = [p.sge(Side::A, 100, 7), p.sge(Side::A, 9_000, 1_993), p.sge(Side::A, 70_000, 500)];
    let op = SendOp::Write(p.remote(Side::A, 40_000));
    p.post(Side::A, 1, op, Payload::Sges(&sges))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 40_000, 2_500) == data, "gathered data differ");
    Ok(())
}

fn write_leaves_neighbours(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.fill(Side::B, 0, &[0x55; 8_192]);
    p.fill(Side::A, 0, &[0xaa; 3_001]);
    let op = SendOp::Write(p.remote(Side::A, 1_000));
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 3_001)]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 0, 1_000) == [0x55; 1_000], "bytes before the target were touched");
    ensure!(p.bytes(Side::B, 4_001, 4_191) == [0x55; 4_191], "bytes behind the target were touched");
    Ok(())
}

fn write_inline(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(8, 33);
    let op = SendOp::Write(p.remote(Side::A, 8));
    p.post(Side::A, 1, op, Payload::Inline(&data))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    ensure!(p.bytes(Side::B, 8, 33) == data, "data differ");
    Ok(())
}

fn write_gives_no_receive(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 64)])?;
    let op = SendOp::Write(p.remote(Side::A, 8_000));
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 100)]))?;
    p.ok(Side::A, 1, WcOpcode::Write)?;
    p.quiet(Side::B)
}

fn write_imm(rig: &mut dyn Rig, len: usize) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(1, len);
    p.fill(Side::A, 0, &data);
    p.recv(Side::B, 5, &[])?;
    let op = SendOp::WriteImm(p.remote(Side::A, 512), 0xcafe_0001);
    let sge = [p.sge(Side::A, 0, len)];
    p.post(Side::A, 1, op, Payload::Sges(if len == 0 { &[] } else { &sge }))?;
    let c = p.ok(Side::B, 5, WcOpcode::RecvWriteImm)?;
    ensure!(c.imm == Some(0xcafe_0001), "immediate differs: {:x?}", c.imm);
    ensure!(c.byte_len as usize == len, "byte_len {len} expected, got {}", c.byte_len);
    ensure!(p.bytes(Side::B, 512, len) == data, "data are not there at the completion");
    p.ok(Side::A, 1, WcOpcode::Write)?;
    Ok(())
}

fn write_imm_small(rig: &mut dyn Rig) -> Outcome {
    write_imm(rig, 8)
}

fn write_imm_many_packets(rig: &mut dyn Rig) -> Outcome {
    write_imm(rig, 65_537)
}

fn write_imm_zero_length(rig: &mut dyn Rig) -> Outcome {
    write_imm(rig, 0)
}

fn write_imm_ignores_receive_buffer(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    p.fill(Side::B, 0, &[0x11; 256]);
    p.fill(Side::A, 0, &[0x22; 128]);
    p.recv(Side::B, 5, &[p.sge(Side::B, 0, 256)])?;
    let op = SendOp::WriteImm(p.remote(Side::A, 4_096), 1);
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 128)]))?;
    p.ok(Side::B, 5, WcOpcode::RecvWriteImm)?;
    ensure!(p.bytes(Side::B, 0, 256) == [0x11; 256], "the receive's buffer was touched");
    ensure!(p.bytes(Side::B, 4_096, 128) == [0x22; 128], "the target was not written");
    Ok(())
}

fn read(rig: &mut dyn Rig, len: usize) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(21, len);
    p.fill(Side::B, 333, &data);
    let op = SendOp::Read(p.remote(Side::A, 333));
    let sge = [p.sge(Side::A, 64, len)];
    p.post(Side::A, 1, op, Payload::Sges(if len == 0 { &[] } else { &sge }))?;
    let c = p.ok(Side::A, 1, WcOpcode::Read)?;
    ensure!(c.byte_len as usize == len, "byte_len {len} expected, got {}", c.byte_len);
    ensure!(p.bytes(Side::A, 64, len) == data, "data of {len} bytes differ");
    Ok(())
}

fn read_one_byte(rig: &mut dyn Rig) -> Outcome {
    read(rig, 1)
}

fn read_many_packets(rig: &mut dyn Rig) -> Outcome {
    read(rig, 200_003)
}

fn read_zero_length(rig: &mut dyn Rig) -> Outcome {
    read(rig, 0)
}

fn read_exactly_one_mtu(rig: &mut dyn Rig) -> Outcome {
    read(rig, 1_024)
}

fn read_scatter(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let data = pattern(22, 3_000);
    p.fill(Side::B, 0, &data);
    let sges = [p.sge(Side::A, 0, 10), p.sge(Side::A, 9_000, 2_000), p.sge(Side::A, 50_000, 990)];
    let op = SendOp::Read(p.remote(Side::A, 0));
    p.post(Side::A, 1, op, Payload::Sges(&sges))?;
    p.ok(Side::A, 1, WcOpcode::Read)?;
    let mut got = p.bytes(Side::A, 0, 10);
    got.extend(p.bytes(Side::A, 9_000, 2_000));
    got.extend(p.bytes(Side::A, 50_000, 990));
    ensure!(got == data, "scattered data differ");
    Ok(())
}

/// More READs are posted than may be outstanding: the requester holds the rest back (IBTA 9.7.3.1).
fn reads_beyond_the_depth(rig: &mut dyn Rig) -> Outcome {
    const N: u64 = 20;
    let mut p = Pair::connect(rig, Options { rd_atomic: 2, ..Options::default() })?;
    for i in 0..N {
        p.fill(Side::B, i * 8_192, &pattern(i, 5_000));
        let op = SendOp::Read(p.remote(Side::A, i * 8_192));
        let sge = [p.sge(Side::A, i * 8_192, 5_000)];
        p.post(Side::A, i, op, Payload::Sges(&sge))?;
    }
    for i in 0..N {
        p.ok(Side::A, i, WcOpcode::Read)?;
        ensure!(p.bytes(Side::A, i * 8_192, 5_000) == pattern(i, 5_000), "READ {i} differs");
    }
    Ok(())
}

fn write_from_both_sides(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    for side in [Side::A, Side::B] {
        p.fill(side, 0, &pattern(u64::from(side == Side::A), 50_000));
        let op = SendOp::Write(p.remote(side, 200_000));
        let sge = [p.sge(side, 0, 50_000)];
        p.post_flags(side, 1, op, Payload::Sges(&sge), SendFlags::SIGNALED)?;
    }
    for side in [Side::A, Side::B] {
        p.ok(side, 1, WcOpcode::Write)?;
        let got = p.bytes(side.other(), 200_000, 50_000);
        ensure!(got == pattern(u64::from(side == Side::A), 50_000), "WRITE from {side:?} differs");
    }
    Ok(())
}
