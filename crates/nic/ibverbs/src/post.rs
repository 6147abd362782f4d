//! The calls that programs make most: posting work requests, and taking completions.

use std::ffi::{c_int, c_uint};

use rdmacore::abi;
use rdmacore::abi::send_flag;
use verbs::{
    Completion, Lkey, Payload, PostError, Provider, Qkey, Qpn, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendWr,
    Sge, Status, UdDest, VerbsError, WcOpcode,
};

use crate::errors::{FORKED, number};
use crate::process::Held;
use crate::process::objects::{Ah, Context, Cq, Qp, Srq};

/// Entries of a list that the device takes at most; a longer one is refused by the queue.
const SGE_MAX: usize = 32;
/// `IBV_WC_GRH`.
const WC_GRH: c_uint = 1;

/// The entries of a list; none if it is longer than any queue takes.
///
/// # Safety
///
/// `list` has `count` entries.
unsafe fn entries(list: *const abi::ibv_sge, count: c_int, room: &mut [Sge; SGE_MAX]) -> Option<&[Sge]> {
    let count = usize::try_from(count).ok()?;
    let room = room.get_mut(..count)?;
    for (index, entry) in room.iter_mut().enumerate() {
        // SAFETY: as the caller says.
        let sge = unsafe { &*list.add(index) };
        *entry = Sge { addr: sge.addr, len: sge.length, lkey: Lkey(sge.lkey) };
    }
    Some(room)
}

/// The operation of a work request.
///
/// # Safety
///
/// `wr` is a work request of the program.
unsafe fn operation(wr: &abi::ibv_send_wr) -> Option<SendOp> {
    // SAFETY: the parts of the union are plain numbers, and the program has set the one of its operation.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let place = RemoteAddr { addr: rdma.remote_addr, rkey: Rkey(rdma.rkey) };
    let word = RemoteAddr { addr: atomic.remote_addr, rkey: Rkey(atomic.rkey) };
    let imm = u32::from_be(wr.imm_data);
    Some(match wr.opcode {
        0 => SendOp::Write(place),
        1 => SendOp::WriteImm(place, imm),
        2 => SendOp::Send,
        3 => SendOp::SendImm(imm),
        4 => SendOp::Read(place),
        5 => SendOp::CmpSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap },
        6 => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        _ => return None,
    })
}

fn flags(of: c_uint) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, of & send_flag::SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, of & send_flag::SOLICITED != 0);
    flags.set(SendFlags::FENCE, of & send_flag::FENCE != 0);
    flags
}

/// Copies the bytes of an inline send, which the program may change as soon as the call returns.
///
/// # Safety
///
/// The entries are memory of the program.
unsafe fn inline(entries: &[Sge], limit: u32) -> Result<Vec<u8>, VerbsError> {
    let total: u64 = entries.iter().map(|entry| u64::from(entry.len)).sum();
    if total > u64::from(limit) {
        return Err(VerbsError::OutOfRange { what: "inline bytes of a send", value: total, min: 0, max: limit.into() });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(total).unwrap_or(0));
    for entry in entries.iter().filter(|entry| entry.len > 0) {
        let at = usize::try_from(entry.addr).unwrap_or(0);
        // SAFETY: as the caller says.
        let piece = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), entry.len as usize) };
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// Posts one send.
///
/// # Safety
///
/// `wr` is a work request of the program.
unsafe fn send(qp: &Qp, wr: &abi::ibv_send_wr, held: &mut Held) -> Result<(), VerbsError> {
    let too_many = VerbsError::OutOfRange {
        what: "entries of a send",
        value: wr.num_sge.unsigned_abs().into(),
        min: 0,
        max: SGE_MAX as u64,
    };
    let mut room = [Sge { addr: 0, len: 0, lkey: Lkey(0) }; SGE_MAX];
    // SAFETY: as the caller says.
    let (list, op) = unsafe { (entries(wr.sg_list, wr.num_sge, &mut room).ok_or(too_many)?, operation(wr)) };
    let op = op.ok_or(VerbsError::NoSuch("operation on this device"))?;
    let copied;
    let payload = if wr.send_flags & send_flag::INLINE != 0 {
        // SAFETY: as the caller says.
        copied = unsafe { inline(list, qp.cap.max_inline_data) }?;
        Payload::Inline(&copied)
    } else {
        Payload::Sges(list)
    };
    let mut dest = None;
    if qp.qp_type == abi::IBV_QPT_UD {
        // SAFETY: the part of the union of datagrams; the program names an address handle that is there.
        let (to, ah) = unsafe { (wr.wr.ud, wr.wr.ud.ah.cast::<Ah>().as_ref()) };
        let ah = ah.ok_or(VerbsError::NoSuch("address handle"))?;
        if ah.pd != qp.pd() {
            return Err(VerbsError::NoSuch("address handle in the domain of the queue pair"));
        }
        // A key with its highest bit set stands for the QP's own (IBTA 10.2.5).
        let qkey = if to.remote_qkey >> 31 == 0 { to.remote_qkey } else { crate::events::lock(&qp.attr).qkey };
        dest = Some(UdDest { ah: ah.id, qpn: Qpn(to.remote_qpn & 0xff_ffff), qkey: Qkey(qkey) });
    }
    let wr = SendWr { wr_id: wr.wr_id, op, payload, flags: flags(wr.send_flags), dest };
    held.nic.post_send(qp.qpn, &[wr]).map_err(|PostError { cause, .. }| cause)
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut abi::ibv_qp,
    wr: *mut abi::ibv_send_wr,
    bad: *mut *mut abi::ibv_send_wr,
) -> c_int {
    // SAFETY: a QP that is there, and its open context.
    let (qp, context) = unsafe { (&*qp.cast::<Qp>(), Context::of((*qp).context)) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    let mut next = wr;
    // SAFETY: a list of work requests of the program, which ends with null.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(error) = unsafe { send(qp, wr, &mut held) } {
            // SAFETY: room for a pointer.
            unsafe { bad.write(next) };
            return number(&error);
        }
        next = wr.next;
    }
    0
}

/// Posts a list of receives, one by one.
///
/// # Safety
///
/// A list of work requests of the program, which ends with null, and room for a pointer.
unsafe fn receive(
    wr: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), PostError>,
) -> c_int {
    let mut next = wr;
    // SAFETY: as the caller says.
    while let Some(wr) = unsafe { next.as_ref() } {
        let mut room = [Sge { addr: 0, len: 0, lkey: Lkey(0) }; SGE_MAX];
        // SAFETY: as the caller says.
        let list = unsafe { entries(wr.sg_list, wr.num_sge, &mut room) };
        let posted = list.map(|sges| post(&RecvWr { wr_id: wr.wr_id, sges }));
        let code = match posted {
            Some(Ok(())) => 0,
            Some(Err(error)) => number(&error.cause),
            None => libc::EINVAL,
        };
        if code != 0 {
            // SAFETY: as the caller says.
            unsafe { bad.write(next) };
            return code;
        }
        next = wr.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut abi::ibv_qp,
    wr: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
) -> c_int {
    // SAFETY: a QP that is there, and its open context.
    let (qpn, context) = unsafe { ((*qp.cast::<Qp>()).qpn, Context::of((*qp).context)) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    // SAFETY: as the man page asks.
    unsafe { receive(wr, bad, |wr| held.nic.post_recv(qpn, std::slice::from_ref(wr))) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::ibv_srq,
    wr: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
) -> c_int {
    // SAFETY: an SRQ that is there, and its open context.
    let (id, context) = unsafe { ((*srq.cast::<Srq>()).id, Context::of((*srq.cast::<Srq>()).context)) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    // SAFETY: as the man page asks.
    unsafe { receive(wr, bad, |wr| held.nic.post_srq_recv(id, std::slice::from_ref(wr))) }
}

/// `enum ibv_wc_status`.
const fn status_number(status: Status) -> c_uint {
    match status {
        Status::Success => 0,
        Status::LocLenErr => 1,
        Status::LocQpOpErr => 2,
        Status::LocProtErr => 4,
        Status::WrFlushErr => 5,
        Status::BadRespErr => 7,
        Status::RemInvReqErr => 9,
        Status::RemAccessErr => 10,
        Status::RemOpErr => 11,
        Status::RetryExcErr => 12,
        Status::RnrRetryExcErr => 13,
        _ => 21,
    }
}

/// `enum ibv_wc_opcode`.
const fn opcode_number(opcode: WcOpcode) -> c_uint {
    match opcode {
        WcOpcode::Write => 1,
        WcOpcode::Read => 2,
        WcOpcode::CmpSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::Recv => 128,
        WcOpcode::RecvWriteImm => 129,
        _ => 0,
    }
}

fn completion(of: &Completion) -> abi::ibv_wc {
    let mut wc = abi::ibv_wc {
        wr_id: of.wr_id,
        status: status_number(of.status),
        opcode: opcode_number(of.opcode),
        byte_len: of.byte_len,
        qp_num: of.qpn.0,
        ..abi::ibv_wc::default()
    };
    if let Some(imm) = of.imm {
        wc.imm_data = imm.to_be();
        wc.wc_flags |= abi::WC_WITH_IMM;
    }
    // Only datagrams say whence they are, and before each lies its header.
    if let Some(from) = of.src_qpn {
        wc.src_qp = from.0;
        wc.wc_flags |= WC_GRH;
    }
    wc
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut abi::ibv_cq, count: c_int, to: *mut abi::ibv_wc) -> c_int {
    // SAFETY: a CQ that is there, and its open context.
    let (id, context) = unsafe { ((*cq.cast::<Cq>()).id, Context::of((*cq).context)) };
    let Some(mut held) = context.process.nic() else { return -FORKED };
    let Held { nic, completions } = &mut *held;
    completions.clear();
    let max = usize::try_from(count).unwrap_or(0);
    if nic.poll_cq(id, completions, max).is_err() {
        return -libc::EINVAL;
    }
    for (index, of) in completions.iter().enumerate() {
        // SAFETY: room for `count`, of which the NIC gave no more.
        unsafe { to.add(index).write(completion(of)) };
    }
    c_int::try_from(completions.len()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Placed;

    #[test]
    fn completions_are_as_the_header_has_them() {
        let of = Completion {
            wr_id: 7,
            status: Status::RnrRetryExcErr,
            opcode: WcOpcode::RecvWriteImm,
            byte_len: 9,
            qpn: Qpn(0x1234),
            imm: Some(0x1122_3344),
            src_qpn: None,
            placed: Placed::Untold,
        };
        let wc = completion(&of);
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.qp_num), (7, 13, 129, 9, 0x1234));
        assert_eq!((wc.imm_data.to_ne_bytes(), wc.wc_flags), ([0x11, 0x22, 0x33, 0x44], 2));
        let datagram = completion(&Completion { imm: None, src_qpn: Some(Qpn(5)), ..of });
        assert_eq!((datagram.src_qp, datagram.wc_flags), (5, 1));
    }
}
