//! Unreliable connections: SEND and WRITE arrive as they were sent, whole or not at all (IBTA 9.8.2).

use std::time::Duration;

use verbs::{Completion, PathMtu, Payload, SendFlags, SendOp, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Failure, Options, Outcome, Pair, Rig, Side, pattern};

cases!("uc", unreliable:
    send_of_one_byte, send_of_no_byte, send_of_one_path_mtu, send_of_one_byte_more, send_of_many_packets, unpadded_lengths,
    every_path_mtu, immediate, immediate_of_many_packets, gather, scatter, inline_is_copied_at_post, unaligned,
    exactly_fitting_receive, both_ways, write, write_of_many_packets, write_of_no_byte, write_with_immediate,
    write_with_immediate_of_many_packets, write_immediate_of_no_byte, bytes_of_a_write_are_there_with_the_send_behind,
    unsignalled, all_signalled, messages_in_order, shared_receive_queue, completes_without_a_peer, whole_sends_alone,
    an_immediate_means_all_bytes,
);

/// Sends `len` bytes from A to B, and checks both completions and the data.
fn carry(p: &mut Pair<'_>, id: u64, len: usize, imm: Option<u32>) -> Outcome {
    let data = pattern(id, len);
    p.fill(Side::A, 0, &data);
    p.recv(Side::B, id, &[p.sge(Side::B, 65_536, len.max(1))])?;
    let sges = [p.sge(Side::A, 0, len)];
    let payload = Payload::Sges(if len == 0 { &[] } else { &sges });
    p.post(Side::A, id + 100, imm.map_or(SendOp::Send, SendOp::SendImm), payload)?;
    let c = p.ok(Side::B, id, WcOpcode::Recv)?;
    ensure!(c.byte_len as usize == len && c.imm == imm, "{c:?} of {len} bytes with immediate {imm:x?}");
    ensure!(c.qpn == p.end(Side::B).qpn && c.src_qpn.is_none(), "{c:?}");
    ensure!(p.bytes(Side::B, 65_536, len) == data, "data of {len} bytes differ");
    p.ok(Side::A, id + 100, WcOpcode::Send)?;
    Ok(())
}

fn sent(rig: &mut dyn Rig, len: usize) -> Outcome {
    carry(&mut Pair::unreliable(rig)?, 1, len, None)
}

fn send_of_one_byte(rig: &mut dyn Rig) -> Outcome {
    sent(rig, 1)
}

fn send_of_no_byte(rig: &mut dyn Rig) -> Outcome {
    sent(rig, 0)
}

fn send_of_one_path_mtu(rig: &mut dyn Rig) -> Outcome {
    sent(rig, 1024)
}

fn send_of_one_byte_more(rig: &mut dyn Rig) -> Outcome {
    sent(rig, 1025)
}

/// The PSNs of A begin 16 before the end of their space.
fn send_of_many_packets(rig: &mut dyn Rig) -> Outcome {
    sent(rig, 20_003)
}

fn unpadded_lengths(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    for (id, len) in [2, 3, 4, 5, 1023, 1026, 2047].into_iter().enumerate() {
        carry(&mut p, id as u64, len, None).map_err(|f| Failure(format!("length {len}: {f}")))?;
    }
    Ok(())
}

fn every_path_mtu(rig: &mut dyn Rig) -> Outcome {
    for mtu in PathMtu::ALL {
        let mut p = Pair::connect(rig, Options { mtu, ..Options::unreliable() })?;
        carry(&mut p, 1, 3_001, None).map_err(|f| Failure(format!("{mtu:?}: {f}")))?;
    }
    Ok(())
}

fn immediate(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    carry(&mut p, 1, 64, Some(0x0102_0304))?;
    carry(&mut p, 2, 0, Some(0))?;
    carry(&mut p, 3, 64, None)
}

fn immediate_of_many_packets(rig: &mut dyn Rig) -> Outcome {
    carry(&mut Pair::unreliable(rig)?, 1, 5_000, Some(u32::MAX))
}

fn gather(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let data = pattern(3, 4_000);
    for (at, piece) in [(0, 0..1_000), (10_001, 1_000..1_003), (20_000, 1_003..4_000)] {
        p.fill(Side::A, at, &data[piece]);
    }
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 4_000)])?;
    let sges = [p.sge(Side::A, 0, 1_000), p.sge(Side::A, 10_001, 3), p.sge(Side::A, 20_000, 2_997)];
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&sges))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 0, 4_000) == data, "gathered data differ");
    Ok(())
}

fn scatter(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let data = pattern(4, 4_000);
    p.fill(Side::A, 0, &data);
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 1), p.sge(Side::B, 5_000, 2_500), p.sge(Side::B, 30_000, 1_600)])?;
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 4_000)]))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    let got = [p.bytes(Side::B, 0, 1), p.bytes(Side::B, 5_000, 2_500), p.bytes(Side::B, 30_000, 1_499)].concat();
    ensure!(got == data, "scattered data differ");
    ensure!(p.bytes(Side::B, 31_499, 8) == [0; 8], "bytes behind the message were touched");
    Ok(())
}

fn inline_is_copied_at_post(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    let mut bytes = [9; 48];
    p.post(Side::A, 2, SendOp::Send, Payload::Inline(&bytes))?;
    bytes.fill(0);
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 0, 48) == [9; 48] && bytes == [0; 48], "inline data differ");
    Ok(())
}

fn unaligned(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let data = pattern(6, 3_333);
    p.fill(Side::A, 4_095, &data);
    p.recv(Side::B, 1, &[p.sge(Side::B, 8_191, 3_333)])?;
    p.post(Side::A, 2, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 4_095, 3_333)]))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 8_191, 3_333) == data, "data differ");
    Ok(())
}

fn exactly_fitting_receive(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    p.fill(Side::B, 65_536 + 33, &[0xee; 8]);
    carry(&mut p, 1, 33, None)?;
    ensure!(p.bytes(Side::B, 65_536 + 33, 8) == [0xee; 8], "padding was written behind the receive");
    Ok(())
}

fn both_ways(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    for (from, id) in [(Side::A, 1), (Side::B, 2)] {
        p.recv(from.other(), id, &[p.sge(from.other(), 0, 64)])?;
        p.post(from, id, SendOp::Send, Payload::Inline(&[id as u8; 8]))?;
        p.ok(from.other(), id, WcOpcode::Recv)?;
        p.ok(from, id, WcOpcode::Send)?;
        ensure!(p.bytes(from.other(), 0, 8) == [id as u8; 8], "data differ");
    }
    Ok(())
}

/// Writes `len` bytes to B's memory. A WRITE tells nobody that it arrived, so a SEND behind it does.
fn written(rig: &mut dyn Rig, len: usize) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let data = pattern(7, len);
    p.fill(Side::A, 0, &data);
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    let (op, sges) = (SendOp::Write(p.remote(Side::A, 70_001)), [p.sge(Side::A, 0, len)]);
    p.post(Side::A, 2, op, Payload::Sges(if len == 0 { &[] } else { &sges }))?;
    p.ok(Side::A, 2, WcOpcode::Write)?;
    p.post(Side::A, 3, SendOp::Send, Payload::Inline(b"written"))?;
    p.ok(Side::B, 1, WcOpcode::Recv)?;
    ensure!(p.bytes(Side::B, 70_001, len) == data, "data of {len} bytes differ");
    ensure!(p.bytes(Side::B, 70_001 + len as u64, 4) == [0; 4], "bytes behind the WRITE were touched");
    Ok(())
}

fn write(rig: &mut dyn Rig) -> Outcome {
    written(rig, 50)
}

fn write_of_many_packets(rig: &mut dyn Rig) -> Outcome {
    written(rig, 20_003)
}

fn write_of_no_byte(rig: &mut dyn Rig) -> Outcome {
    written(rig, 0)
}

fn told(rig: &mut dyn Rig, len: usize) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let data = pattern(8, len);
    p.fill(Side::A, 0, &data);
    p.fill(Side::B, 0, &[0xee; 64]);
    p.recv(Side::B, 1, &[p.sge(Side::B, 0, 64)])?;
    let (op, sges) = (SendOp::WriteImm(p.remote(Side::A, 70_000), 0x0a0b_0c0d), [p.sge(Side::A, 0, len)]);
    p.post(Side::A, 2, op, Payload::Sges(if len == 0 { &[] } else { &sges }))?;
    let c = p.ok(Side::B, 1, WcOpcode::RecvWriteImm)?;
    ensure!(c.imm == Some(0x0a0b_0c0d) && c.byte_len as usize == len, "{c:?} of {len} bytes");
    ensure!(p.bytes(Side::B, 70_000, len) == data, "data of {len} bytes differ");
    ensure!(p.bytes(Side::B, 0, 64) == [0xee; 64], "the receive itself was written");
    p.ok(Side::A, 2, WcOpcode::Write)?;
    Ok(())
}

fn write_with_immediate(rig: &mut dyn Rig) -> Outcome {
    told(rig, 50)
}

fn write_with_immediate_of_many_packets(rig: &mut dyn Rig) -> Outcome {
    told(rig, 9_001)
}

fn write_immediate_of_no_byte(rig: &mut dyn Rig) -> Outcome {
    told(rig, 0)
}

fn bytes_of_a_write_are_there_with_the_send_behind(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    for round in 0..8u64 {
        let data = pattern(round, 2_500);
        p.fill(Side::A, 0, &data);
        p.recv(Side::B, round, &[p.sge(Side::B, 0, 64)])?;
        let op = SendOp::Write(p.remote(Side::A, 65_536));
        p.post_flags(Side::A, 50, op, Payload::Sges(&[p.sge(Side::A, 0, 2_500)]), SendFlags::empty())?;
        p.post(Side::A, round, SendOp::Send, Payload::Inline(&[1; 8]))?;
        p.ok(Side::B, round, WcOpcode::Recv)?;
        ensure!(p.bytes(Side::B, 65_536, 2_500) == data, "the SEND overtook the WRITE before it");
        p.ok(Side::A, round, WcOpcode::Send)?;
    }
    Ok(())
}

fn unsignalled(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    for id in 0..3 {
        p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    p.post(Side::A, 3, SendOp::Send, Payload::Inline(&[1; 8]))?;
    p.ok(Side::A, 3, WcOpcode::Send)?;
    p.quiet(Side::A)
}

fn all_signalled(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { sig_all: true, ..Options::unreliable() })?;
    for id in 0..3 {
        p.post_flags(Side::A, id, SendOp::Send, Payload::Inline(&[1; 8]), SendFlags::empty())?;
    }
    for id in 0..3 {
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

fn messages_in_order(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::unreliable(rig)?;
    let count = 16;
    for id in 0..count {
        p.recv(Side::B, id, &[p.sge(Side::B, id * 256, 64)])?;
    }
    for id in 0..count {
        p.post(Side::A, id, SendOp::SendImm(id as u32), Payload::Inline(&[id as u8; 16]))?;
    }
    for id in 0..count {
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    for id in 0..count {
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.imm == Some(id as u32), "message {:?} in receive {id}", c.imm);
        ensure!(p.bytes(Side::B, id * 256, 16) == [id as u8; 16], "data of {id} differ");
    }
    Ok(())
}

fn shared_receive_queue(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options { srq: true, ..Options::unreliable() })?;
    let (qa, qb) = p.second_qps()?;
    let first = (p.end(Side::A).qpn, p.end(Side::B).qpn);
    for id in 0..4 {
        p.recv(Side::B, id, &[p.sge(Side::B, id * 4_096, 4_096)])?;
    }
    for id in 0..4u64 {
        let (from, to) = if id % 2 == 0 { first } else { (qa, qb) };
        p.fill(Side::A, 0, &pattern(id, 3_000));
        p.post_on(Side::A, from, id, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 3_000)]), SendFlags::SIGNALED)?;
        let c = p.ok(Side::B, id, WcOpcode::Recv)?;
        ensure!(c.qpn == to, "receive {id} names QP {}, it came through {to}", c.qpn);
        ensure!(p.bytes(Side::B, id * 4_096, 3_000) == pattern(id, 3_000), "receive {id} has other data");
        p.ok(Side::A, id, WcOpcode::Send)?;
    }
    Ok(())
}

/// Nothing is acknowledged: a send is done when it has left, whether or not anybody takes it.
fn completes_without_a_peer(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::create(rig, Options::unreliable())?;
    p.to_rts(Side::A)?;
    p.post(Side::A, 1, SendOp::Send, Payload::Sges(&[p.sge(Side::A, 0, 5_000)]))?;
    p.ok(Side::A, 1, WcOpcode::Send)?;
    let op = SendOp::Write(p.remote(Side::A, 0));
    p.post(Side::A, 2, op, Payload::Inline(&[1; 8]))?;
    p.ok(Side::A, 2, WcOpcode::Write)?;
    p.quiet(Side::B)
}

/// Messages of twelve packets each, so that a link that loses one packet of a hundred loses many of them.
const MESSAGE: usize = 3_001;
const ROUNDS: u64 = 24;
const IN_ROUND: u64 = 4;
/// Receives that wait on B, more than a round sends, because the link may repeat a message.
const RECEIVES: u64 = 16;
/// How long a round waits for messages that may be lost.
const ROUND_TIME: Duration = Duration::from_millis(20);
/// How long it waits for messages that are only late: a guest without a processor of its own is slow.
const LATE: Duration = Duration::from_secs(5);

fn slot(id: u64) -> u64 {
    id % RECEIVES * 4_096
}

/// Sends rounds of messages with the operation of `op` (number, slot of B's memory), and hands each completion of B to
/// `judge`. Over a link that loses nothing, all arrive.
fn rounds(
    rig: &mut dyn Rig,
    op: fn(&Pair<'_>, u64) -> SendOp,
    judge: fn(&Pair<'_>, &Completion) -> Outcome,
) -> Outcome {
    let mut p = Pair::connect(rig, Options { mtu: PathMtu::Mtu256, ..Options::unreliable() })?;
    let receive = |p: &mut Pair<'_>, id| p.recv(Side::B, id, &[p.sge(Side::B, slot(id), MESSAGE)]);
    for id in 0..RECEIVES {
        receive(&mut p, id)?;
    }
    let time = if p.rig.lossy() { ROUND_TIME } else { LATE };
    let mut arrived = 0;
    for round in 0..ROUNDS {
        for number in round * IN_ROUND..(round + 1) * IN_ROUND {
            let at = 131_072 + slot(number);
            p.fill(Side::A, at, &pattern(number, MESSAGE));
            let (op, sges) = (op(&p, number), [p.sge(Side::A, at, MESSAGE)]);
            p.post(Side::A, number, op, Payload::Sges(&sges))?;
        }
        for c in p.wait(Side::A, IN_ROUND as usize)? {
            ensure!(c.status == Status::Success, "a send without acknowledgement failed: {c:?}");
        }
        for c in p.collect(Side::B, IN_ROUND as usize, time)? {
            ensure!(c.status == Status::Success && c.byte_len as usize == MESSAGE, "{c:?}");
            judge(&p, &c)?;
            arrived += 1;
            receive(&mut p, c.wr_id)?;
        }
    }
    let all = ROUNDS * IN_ROUND;
    ensure!(arrived > 0 && (p.rig.lossy() || arrived == all), "{arrived} of {all} messages arrived");
    Ok(())
}

fn whole_sends_alone(rig: &mut dyn Rig) -> Outcome {
    rounds(
        rig,
        |_, number| SendOp::SendImm(number as u32),
        |p, c| {
            let number = u64::from(c.imm.unwrap_or(u32::MAX));
            let whole = p.bytes(Side::B, slot(c.wr_id), MESSAGE) == pattern(number, MESSAGE);
            ensure!(whole, "message {number} arrived with other bytes than were sent");
            Ok(())
        },
    )
}

/// A WRITE with immediate is told only if all of its bytes were placed.
fn an_immediate_means_all_bytes(rig: &mut dyn Rig) -> Outcome {
    rounds(
        rig,
        |p, number| SendOp::WriteImm(p.remote(Side::A, 262_144 + number * 4_096), number as u32),
        |p, c| {
            let number = u64::from(c.imm.unwrap_or(u32::MAX));
            let whole = p.bytes(Side::B, 262_144 + number * 4_096, MESSAGE) == pattern(number, MESSAGE);
            ensure!(whole, "WRITE {number} was told before all of its bytes were there");
            Ok(())
        },
    )
}
