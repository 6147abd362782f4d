//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Mutex;

use rdmacore::abi;
use verbs::{Provider, SrqInit};

use crate::errors::{FORKED, null, number};
use crate::events::{Acked, lock};
use crate::process::objects::{Context, Pd, Srq};

/// `enum ibv_srq_attr_mask`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 1 << 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut abi::ibv_srq_init_attr) -> *mut abi::ibv_srq {
    // SAFETY: a PD that is there, its open context, and the attributes.
    let (context, wanted) = unsafe { ((*pd).public.context, &mut *init) };
    // SAFETY: as above.
    let process = unsafe { Context::of(context) }.process;
    let Some(mut held) = process.nic() else { return null(FORKED) };
    // The man page has no use for a limit here; drivers of the kernel arm it.
    let abi::ibv_srq_attr { max_wr, max_sge, srq_limit } = wanted.attr;
    let attr = SrqInit { max_wr, max_sge, limit: srq_limit };
    let id = match held.nic.create_srq(&attr) {
        Ok(id) => id,
        Err(error) => return null(number(&error)),
    };
    drop(held);
    let srq = Box::into_raw(Box::new(Srq {
        context,
        srq_context: wanted.srq_context,
        pd,
        handle: id.0,
        mutex_and_cond: [0; 11],
        events_completed: 0,
        id,
        attr: Mutex::new(wanted.attr),
        asynchronous: Acked::default(),
    }));
    // SAFETY: as above.
    *lock(unsafe { &(*pd).users }) += 1;
    lock(&process.objects.srqs).insert(id, srq as usize);
    srq.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    // SAFETY: an SRQ that is there, and its open context.
    let (context, id) = unsafe { (Context::of((*srq).context), (*srq).id) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    if let Err(error) = held.nic.destroy_srq(id) {
        return number(&error);
    }
    drop(held);
    lock(&context.process.objects.srqs).remove(&id);
    context.events.purge(|item| item.element == srq as usize);
    // SAFETY: as above; the program does not use it any more once what it took is acknowledged.
    unsafe {
        (*srq).asynchronous.wait();
        *lock(&(*(*srq).pd).users) -= 1;
        drop(Box::from_raw(srq));
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut abi::ibv_srq_attr, mask: c_int) -> c_int {
    if mask & MAX_WR != 0 {
        return libc::EOPNOTSUPP;
    }
    if mask & LIMIT == 0 {
        return if mask == 0 { 0 } else { libc::EINVAL };
    }
    // SAFETY: an SRQ that is there, its open context, and the attributes.
    let (context, limit) = unsafe { (Context::of((*srq).context), (*attr).srq_limit) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    // SAFETY: as above.
    let (id, known) = unsafe { ((*srq).id, &(*srq).attr) };
    match held.nic.arm_srq(id, limit) {
        Ok(()) => {
            lock(known).srq_limit = limit;
            0
        }
        Err(error) => number(&error),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut abi::ibv_srq_attr) -> c_int {
    // SAFETY: an SRQ that is there, and room for its attributes.
    unsafe { attr.write(*lock(&(*srq).attr)) };
    0
}
