//! Queue pairs: made, looked at, destroyed. `modify` has their transitions.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use rdmacore::abi;
use verbs::{Provider, QpInit, QpState, QpType};

use crate::errors::{FORKED, null, number, say};
use crate::events::{Acked, lock};
use crate::process::objects::{Context, Cq, Pd, Qp, Srq};

/// Places of the pointers in the public head.
const CONTEXT_OF_PROGRAM: usize = 0;
const PD: usize = 1;
const SEND_CQ: usize = 2;
const RECV_CQ: usize = 3;
const SRQ: usize = 4;

impl Qp {
    pub(crate) fn pd(&self) -> *mut Pd {
        self.public.pointers[PD].cast()
    }
}

/// `enum ibv_qp_state`.
pub(crate) const fn state_number(state: QpState) -> u32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut abi::ibv_qp_init_attr) -> *mut abi::ibv_qp {
    // SAFETY: a PD that is there, its open context, and the attributes.
    let (context, domain, wanted) = unsafe { ((*pd).public.context, (*pd).id, &mut *init) };
    let qp_type = match wanted.qp_type {
        abi::IBV_QPT_RC => QpType::Rc,
        abi::IBV_QPT_UC => QpType::Uc,
        abi::IBV_QPT_UD => QpType::Ud,
        other => {
            say(&format!("queue pairs of type {other} are not there"));
            return null(libc::EOPNOTSUPP);
        }
    };
    if wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the context of a PD is open.
    let process = unsafe { Context::of(context) }.process;
    let cap = wanted.cap;
    let has_srq = !wanted.srq.is_null();
    // SAFETY: CQs and SRQ that are there.
    let (send_cq, recv_cq, srq) = unsafe {
        let of = |cq: *mut abi::ibv_cq| (*cq.cast::<Cq>()).id;
        (of(wanted.send_cq), of(wanted.recv_cq), has_srq.then(|| (*wanted.srq.cast::<Srq>()).id))
    };
    let attr = QpInit {
        qp_type,
        pd: domain,
        send_cq,
        recv_cq,
        srq,
        max_send_wr: cap.max_send_wr,
        max_recv_wr: if has_srq { 0 } else { cap.max_recv_wr },
        max_send_sge: cap.max_send_sge,
        max_recv_sge: if has_srq { 0 } else { cap.max_recv_sge },
        max_inline_bytes: cap.max_inline_data,
        sq_sig_all: wanted.sq_sig_all != 0,
    };
    let Some(mut held) = process.nic() else { return null(FORKED) };
    let qpn = match held.nic.create_qp(&attr) {
        Ok(qpn) => qpn,
        Err(error) => return null(number(&error)),
    };
    drop(held);
    if has_srq {
        (wanted.cap.max_recv_wr, wanted.cap.max_recv_sge) = (0, 0);
    }
    let pointers =
        [wanted.qp_context, pd.cast::<c_void>(), wanted.send_cq.cast(), wanted.recv_cq.cast(), wanted.srq.cast()];
    let qp = Box::into_raw(Box::new(Qp {
        public: abi::ibv_qp { context, pointers, handle: qpn.0, qp_num: qpn.0 },
        state: 0,
        qp_type: wanted.qp_type,
        mutex_and_cond: [0; 11],
        events_completed: 0,
        qpn,
        cap: wanted.cap,
        sq_sig_all: wanted.sq_sig_all,
        attr: Mutex::default(),
        asynchronous: Acked::default(),
    }));
    lock(&process.objects.qps).insert(qpn, qp as usize);
    crate::process::report::note(qpn.0, qp_type.name());
    qp.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: a QP that is there, and its open context.
    let (context, qpn) = unsafe { (Context::of((*qp).public.context), (*qp).qpn) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    if let Err(error) = held.nic.destroy_qp(qpn) {
        return number(&error);
    }
    drop(held);
    lock(&context.process.objects.qps).remove(&qpn);
    context.events.purge(|item| item.element == qp as usize);
    // SAFETY: as above; the program does not use it any more once what it took is acknowledged.
    unsafe {
        (*qp).asynchronous.wait();
        drop(Box::from_raw(qp));
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut abi::ibv_qp_attr,
    _mask: c_int,
    init: *mut abi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a QP that is there, and its open context.
    let (whole, context) = unsafe { (&mut *qp, Context::of((*qp).public.context)) };
    let Some(held) = context.process.nic() else { return FORKED };
    let status = match held.nic.query_qp(whole.qpn) {
        Ok(status) => status,
        Err(error) => return number(&error),
    };
    drop(held);
    let state = state_number(status.state);
    whole.state = state;
    let mut found = *lock(&whole.attr);
    (found.qp_state, found.cur_qp_state, found.cap) = (state, state, whole.cap);
    (found.sq_psn, found.rq_psn) = (status.sq_psn.get(), status.rq_psn.get());
    found.sq_draining = u8::from(status.state == QpState::Sqd && status.sq_outstanding > 0);
    let pointers = whole.public.pointers;
    // SAFETY: room for the attributes, and for those that the QP was made with.
    unsafe {
        attr.write(found);
        if !init.is_null() {
            init.write(abi::ibv_qp_init_attr {
                qp_context: pointers[CONTEXT_OF_PROGRAM],
                send_cq: pointers[SEND_CQ].cast(),
                recv_cq: pointers[RECV_CQ].cast(),
                srq: pointers[SRQ].cast(),
                cap: whole.cap,
                qp_type: whole.qp_type,
                sq_sig_all: whole.sq_sig_all,
            });
        }
    }
    0
}

/// The extended interface of a QP that was made without it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(_qp: *mut Qp) -> *mut c_void {
    null_mut()
}

/// Which orders the bytes of messages land in: the last ones last, and no more is promised.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut Qp, _opcode: c_int, _flags: u32) -> c_int {
    0
}
