//! CMP_AND_SWAP and FETCH_AND_ADD of 8 aligned bytes (IBTA 9.4.5).

use verbs::{Access, Payload, SendOp, Status, WcOpcode};

use super::{cases, ensure};
use crate::{Options, Outcome, Pair, Rig, Side, all_access};

cases!("atomic":
    fetch_add, fetch_add_wraps, cmp_swap_equal, cmp_swap_different, many_in_order, beyond_the_depth, misaligned,
    without_access, mixed_with_reads_and_writes,
);

fn word(p: &Pair<'_>, side: Side, at: u64) -> u64 {
    let mut b = [0; 8];
    b.copy_from_slice(&p.bytes(side, at, 8));
    u64::from_ne_bytes(b)
}

fn set(p: &Pair<'_>, side: Side, at: u64, v: u64) {
    p.fill(side, at, &v.to_ne_bytes());
}

fn atomic(p: &mut Pair<'_>, op: SendOp, opcode: WcOpcode) -> Result<u64, crate::Failure> {
    set(p, Side::A, 0, 0xdead);
    p.post(Side::A, 1, op, Payload::Sges(&[p.sge(Side::A, 0, 8)]))?;
    let c = p.ok(Side::A, 1, opcode)?;
    ensure!(c.byte_len == 8, "byte_len 8 expected, got {}", c.byte_len);
    Ok(word(p, Side::A, 0))
}

fn fetch_add(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    set(&p, Side::B, 64, 1_000);
    let remote = p.remote(Side::A, 64);
    let old = atomic(&mut p, SendOp::FetchAdd { remote, add: 5 }, WcOpcode::FetchAdd)?;
    ensure!(old == 1_000, "old value 1000 expected, got {old}");
    let new = word(&p, Side::B, 64);
    ensure!(new == 1_005, "new value 1005 expected, got {new}");
    Ok(())
}

fn fetch_add_wraps(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    set(&p, Side::B, 8, u64::MAX);
    let remote = p.remote(Side::A, 8);
    atomic(&mut p, SendOp::FetchAdd { remote, add: 2 }, WcOpcode::FetchAdd)?;
    ensure!(word(&p, Side::B, 8) == 1, "the sum must wrap to 1");
    Ok(())
}

fn cmp_swap_equal(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    set(&p, Side::B, 0, 0x0123_4567_89ab_cdef);
    let op = SendOp::CmpSwap { remote: p.remote(Side::A, 0), compare: 0x0123_4567_89ab_cdef, swap: 42 };
    let old = atomic(&mut p, op, WcOpcode::CmpSwap)?;
    ensure!(old == 0x0123_4567_89ab_cdef, "old value differs: {old:#x}");
    ensure!(word(&p, Side::B, 0) == 42, "the word was not swapped");
    Ok(())
}

fn cmp_swap_different(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    set(&p, Side::B, 0, 7);
    let op = SendOp::CmpSwap { remote: p.remote(Side::A, 0), compare: 8, swap: 42 };
    let old = atomic(&mut p, op, WcOpcode::CmpSwap)?;
    ensure!(old == 7 && word(&p, Side::B, 0) == 7, "the word must stay 7, old value was {old}");
    Ok(())
}

fn adds(rig: &mut dyn Rig, n: u64, rd_atomic: u8) -> Outcome {
    let mut p = Pair::connect(rig, Options { rd_atomic, ..Options::default() })?;
    let remote = p.remote(Side::A, 128);
    for i in 0..n {
        p.post(Side::A, i, SendOp::FetchAdd { remote, add: 3 }, Payload::Sges(&[p.sge(Side::A, i * 8, 8)]))?;
    }
    for i in 0..n {
        p.ok(Side::A, i, WcOpcode::FetchAdd)?;
        let old = word(&p, Side::A, i * 8);
        ensure!(old == i * 3, "result {i}: {} expected, got {old}", i * 3);
    }
    ensure!(word(&p, Side::B, 128) == n * 3, "each must be executed exactly once");
    Ok(())
}

fn many_in_order(rig: &mut dyn Rig) -> Outcome {
    adds(rig, 50, 4)
}

fn beyond_the_depth(rig: &mut dyn Rig) -> Outcome {
    adds(rig, 50, 1)
}

/// IBTA C9-93: a misaligned address is an invalid request.
fn misaligned(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    let remote = p.remote(Side::A, 4);
    p.post(Side::A, 1, SendOp::FetchAdd { remote, add: 1 }, Payload::Sges(&[p.sge(Side::A, 0, 8)]))?;
    p.status(Side::A, 1, Status::RemInvReqErr)?;
    ensure!(p.bytes(Side::B, 0, 16) == [0; 16], "memory was touched");
    Ok(())
}

fn without_access(rig: &mut dyn Rig) -> Outcome {
    let mr_access = all_access() - Access::REMOTE_ATOMIC;
    let mut p = Pair::connect(rig, Options { mr_access, ..Options::default() })?;
    let remote = p.remote(Side::A, 0);
    p.post(Side::A, 1, SendOp::FetchAdd { remote, add: 1 }, Payload::Sges(&[p.sge(Side::A, 0, 8)]))?;
    p.status(Side::A, 1, Status::RemAccessErr)?;
    ensure!(word(&p, Side::B, 0) == 0, "memory was touched");
    Ok(())
}

fn mixed_with_reads_and_writes(rig: &mut dyn Rig) -> Outcome {
    let mut p = Pair::connect(rig, Options::default())?;
    set(&p, Side::A, 512, 100);
    let at = |p: &Pair<'_>| p.remote(Side::A, 256);
    let (write, read) = (SendOp::Write(at(&p)), SendOp::Read(at(&p)));
    let add = SendOp::FetchAdd { remote: at(&p), add: 1 };
    p.post(Side::A, 1, write, Payload::Sges(&[p.sge(Side::A, 512, 8)]))?;
    p.post(Side::A, 2, add, Payload::Sges(&[p.sge(Side::A, 0, 8)]))?;
    p.post(Side::A, 3, read, Payload::Sges(&[p.sge(Side::A, 8, 8)]))?;
    for (id, opcode) in [(1, WcOpcode::Write), (2, WcOpcode::FetchAdd), (3, WcOpcode::Read)] {
        p.ok(Side::A, id, opcode)?;
    }
    let (old, read) = (word(&p, Side::A, 0), word(&p, Side::A, 8));
    ensure!((old, read) == (100, 101), "old value 100 and then 101 expected, got {old} and {read}");
    Ok(())
}
