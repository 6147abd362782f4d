//! Posting: work requests of `verbs` become chains of C structures on reused memory, one call a chain.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs::{PathMtu, Payload, PostError, QpType, RecvWr, SendFlags, SendOp, SendWr, UdDest, VerbsError};

use crate::abi::*;

/// Work requests handed to the driver in one call.
const CHAIN_MAX: usize = 32;

/// Memory for chains, kept between calls.
#[derive(Default)]
pub(crate) struct Scratch {
    sends: Vec<ibv_send_wr>,
    recvs: Vec<ibv_recv_wr>,
    sges: Vec<ibv_sge>,
    /// Where the entries of each request begin in `sges`.
    starts: Vec<usize>,
}

impl Scratch {
    fn clear(&mut self) {
        self.sends.clear();
        self.recvs.clear();
        self.sges.clear();
        self.starts.clear();
    }
}

/// The number of `enum ibv_wr_opcode`, the immediate, and the remote part.
fn operation(op: SendOp, ah: Option<(*mut ibv_ah, UdDest)>) -> Option<(u32, u32, wr_union)> {
    let zero = wr_union { zero: [0; 4] };
    let rdma = |r: verbs::RemoteAddr| wr_union { rdma: wr_rdma { remote_addr: r.addr, rkey: r.rkey.0 } };
    let to =
        ah.map_or(zero, |(ah, dest)| wr_union { ud: wr_ud { ah, remote_qpn: dest.qpn.0, remote_qkey: dest.qkey.0 } });
    Some(match op {
        SendOp::Write(r) => (0, 0, rdma(r)),
        SendOp::WriteImm(r, imm) => (1, imm.to_be(), rdma(r)),
        SendOp::Send => (2, 0, to),
        SendOp::SendImm(imm) => (3, imm.to_be(), to),
        SendOp::Read(r) => (4, 0, rdma(r)),
        SendOp::CmpSwap { remote, compare, swap } => {
            let atomic = wr_atomic { remote_addr: remote.addr, compare_add: compare, swap, rkey: remote.rkey.0 };
            (5, 0, wr_union { atomic })
        }
        SendOp::FetchAdd { remote, add } => {
            let atomic = wr_atomic { remote_addr: remote.addr, compare_add: add, swap: 0, rkey: remote.rkey.0 };
            (6, 0, wr_union { atomic })
        }
        _ => return None,
    })
}

fn flags(f: SendFlags, payload: &Payload<'_>) -> u32 {
    let mut bits = 0;
    for (flag, bit) in [
        (SendFlags::FENCE, send_flag::FENCE),
        (SendFlags::SIGNALED, send_flag::SIGNALED),
        (SendFlags::SOLICITED, send_flag::SOLICITED),
    ] {
        if f.contains(flag) {
            bits |= bit;
        }
    }
    if matches!(payload, Payload::Inline(_)) { bits | send_flag::INLINE } else { bits }
}

/// The first work request that a QP of this service, on a port with this path MTU, does not take, and why.
pub(crate) fn first_refused(wrs: &[SendWr<'_>], qp_type: QpType, mtu: PathMtu, device: &str) -> Option<PostError> {
    if qp_type == QpType::Rc {
        return None;
    }
    let unsupported = |what| Some(VerbsError::Unsupported { device: device.to_string(), what });
    let max = mtu.bytes() as u64;
    let why = |wr: &SendWr<'_>| {
        if let Err(missing) = qp_type.check(&wr.op) {
            return Some(missing);
        }
        if qp_type.is_connected() {
            return None;
        }
        if wr.dest.is_none() {
            return unsupported("a datagram to nowhere: set SendWr::dest");
        }
        let value = match wr.payload {
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let what = "length of a datagram, which the port's path MTU limits,";
        (value > max).then_some(VerbsError::OutOfRange { what, value, min: 0, max })
    };
    wrs.iter().enumerate().find_map(|(index, wr)| why(wr).map(|cause| PostError { index, cause }))
}

/// Posts to a send queue; `ah` finds the driver's address handle of a datagram's destination.
pub(crate) fn post_send(
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    wrs: &[SendWr<'_>],
    scratch: &mut Scratch,
    ah: impl Fn(UdDest) -> Option<*mut ibv_ah>,
) -> Result<(), PostError> {
    // SAFETY: the caller owns the open context; `ops` is plain data that the driver filled when it was opened.
    let post = unsafe { (*context).ops.post_send };
    let unsupported = |what| VerbsError::Unsupported { device: "rdma-core".into(), what };
    let post = post.ok_or_else(|| PostError { index: 0, cause: unsupported("post_send") })?;
    for (chunk, first) in wrs.chunks(CHAIN_MAX).zip((0..).step_by(CHAIN_MAX)) {
        scratch.clear();
        for (i, wr) in chunk.iter().enumerate() {
            let refuse = |cause| PostError { index: first + i, cause };
            let dest = match wr.dest {
                Some(d) => Some((ah(d).ok_or_else(|| refuse(VerbsError::NoSuch("address handle")))?, d)),
                None => None,
            };
            let (opcode, imm_data, remote) =
                operation(wr.op, dest).ok_or_else(|| refuse(unsupported("this operation")))?;
            scratch.starts.push(scratch.sges.len());
            push_payload(&mut scratch.sges, &wr.payload);
            let num_sge = scratch.sges.len() - scratch.starts[i];
            scratch.sends.push(ibv_send_wr {
                wr_id: wr.wr_id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: c_int::try_from(num_sge).unwrap_or(c_int::MAX),
                opcode,
                send_flags: flags(wr.flags, &wr.payload),
                imm_data,
                wr: remote,
                rest: [0; 7],
            });
        }
        let sges = scratch.sges.as_mut_ptr();
        let chain = scratch.sends.as_mut_ptr();
        for i in 0..chunk.len() {
            scratch.sends[i].sg_list = sges.wrapping_add(scratch.starts[i]);
            scratch.sends[i].next = if i + 1 < chunk.len() { chain.wrapping_add(i + 1) } else { null_mut() };
        }
        let mut bad = null_mut();
        // SAFETY: `qp` is alive (the provider's table holds it until destroy); the chain and its entries lie in
        // `scratch`, which outlives the call, and inline payloads in `wrs`; the driver copies all of it before it
        // returns.
        let errno = unsafe { post(qp, chain, &mut bad) };
        refused(errno, "ibv_post_send", first, bad as usize, chain as usize, size_of::<ibv_send_wr>(), chunk.len())?;
    }
    Ok(())
}

fn push_payload(sges: &mut Vec<ibv_sge>, payload: &Payload<'_>) {
    match payload {
        Payload::Sges(list) => {
            sges.extend(list.iter().map(|s| ibv_sge { addr: s.addr, length: s.len, lkey: s.lkey.0 }));
        }
        Payload::Inline([]) => {}
        Payload::Inline(bytes) => sges.push(ibv_sge {
            addr: bytes.as_ptr() as u64,
            length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            lkey: 0,
        }),
    }
}

/// Which queue receives are posted to.
pub(crate) enum RecvQueue {
    Qp(*mut ibv_qp),
    Srq(*mut ibv_srq),
}

/// Posts to a receive queue.
pub(crate) fn post_recv(
    context: *mut ibv_context,
    queue: RecvQueue,
    wrs: &[RecvWr<'_>],
    scratch: &mut Scratch,
) -> Result<(), PostError> {
    for (chunk, first) in wrs.chunks(CHAIN_MAX).zip((0..).step_by(CHAIN_MAX)) {
        scratch.clear();
        for wr in chunk {
            scratch.starts.push(scratch.sges.len());
            push_payload(&mut scratch.sges, &Payload::Sges(wr.sges));
            scratch.recvs.push(ibv_recv_wr {
                wr_id: wr.wr_id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: c_int::try_from(wr.sges.len()).unwrap_or(c_int::MAX),
            });
        }
        let sges = scratch.sges.as_mut_ptr();
        let chain = scratch.recvs.as_mut_ptr();
        for i in 0..chunk.len() {
            scratch.recvs[i].sg_list = sges.wrapping_add(scratch.starts[i]);
            scratch.recvs[i].next = if i + 1 < chunk.len() { chain.wrapping_add(i + 1) } else { null_mut() };
        }
        let mut bad = null_mut();
        // SAFETY: the context is open and the queue alive (the provider's tables hold both); the chain lies in
        // `scratch`, which outlives the call; the driver copies it before it returns.
        let errno = unsafe {
            match queue {
                RecvQueue::Qp(qp) => (*context).ops.post_recv.map_or(libc::ENOSYS, |f| f(qp, chain, &mut bad)),
                RecvQueue::Srq(srq) => (*context).ops.post_srq_recv.map_or(libc::ENOSYS, |f| f(srq, chain, &mut bad)),
            }
        };
        refused(errno, "ibv_post_recv", first, bad as usize, chain as usize, size_of::<ibv_recv_wr>(), chunk.len())?;
    }
    Ok(())
}

/// Turns the driver's errno and the address of the refused element into an error that names its index.
fn refused(
    errno: c_int,
    call: &'static str,
    first: usize,
    bad: usize,
    chain: usize,
    element: usize,
    len: usize,
) -> Result<(), PostError> {
    if errno == 0 {
        return Ok(());
    }
    let index = bad.checked_sub(chain).map_or(0, |d| d / element).min(len - 1);
    // Drivers return an errno, some of the old ones its negation.
    let cause = match errno.abs() {
        libc::ENOMEM => VerbsError::Full { what: "work queue", limit: 0 },
        errno => VerbsError::Os { call, errno },
    };
    Err(PostError { index: first + index, cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{AhId, Qkey, Qpn, RemoteAddr, Rkey, Sge};

    #[test]
    fn operations_of_other_services_are_refused_before_the_driver_sees_them() {
        let remote = RemoteAddr { addr: 0, rkey: Rkey(0) };
        let wr = |op| SendWr { wr_id: 1, op, payload: Payload::Sges(&[]), flags: SendFlags::empty(), dest: None };
        let judge = |op| first_refused(&[wr(SendOp::Send), wr(op)], QpType::Uc, PathMtu::Mtu1024, "rxe0");
        for op in [SendOp::SendImm(1), SendOp::Write(remote), SendOp::WriteImm(remote, 1)] {
            assert_eq!(judge(op), None);
        }
        for op in
            [SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }, SendOp::CmpSwap { remote, compare: 0, swap: 1 }]
        {
            let cause = VerbsError::NotOnTransport { qp_type: QpType::Uc, verb: op.verb() };
            assert_eq!(judge(op), Some(PostError { index: 1, cause }));
        }
    }

    #[test]
    fn datagrams_are_judged_before_the_driver_sees_them() {
        let dest = Some(UdDest { ah: AhId(1), qpn: Qpn(2), qkey: Qkey(3) });
        let sges = |len| [Sge { addr: 0, len, lkey: verbs::Lkey(1) }, Sge { addr: 0, len: 24, lkey: verbs::Lkey(1) }];
        let (fits, long) = (sges(1000), sges(1001));
        let wr = |payload| SendWr { wr_id: 1, op: SendOp::Send, payload, flags: SendFlags::empty(), dest };
        let (good, bad) = (wr(Payload::Sges(&fits)), wr(Payload::Sges(&long)));
        let judge = |wrs: &[SendWr<'_>]| first_refused(wrs, QpType::Ud, PathMtu::Mtu1024, "rxe0");
        assert_eq!(judge(&[good, good]), None);
        let refused = judge(&[good, bad]).expect("too long");
        assert!(refused.index == 1 && matches!(refused.cause, VerbsError::OutOfRange { value: 1025, max: 1024, .. }));
        assert!(judge(&[SendWr { dest: None, ..good }]).is_some());
        let write = SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) });
        assert!(judge(&[SendWr { op: write, ..good }]).is_some());
    }
}
