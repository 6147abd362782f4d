//! Completion channels and completion queues.

use std::ffi::{c_int, c_uint, c_void};

use rdmacore::abi;
use verbs::Provider;

use crate::errors::{FORKED, code, null, number, set};
use crate::events::{Acked, Queue, lock};
use crate::process::objects::{Channel, Context, Cq};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut abi::ibv_context) -> *mut abi::ibv_comp_channel {
    match Queue::new() {
        Ok(events) => {
            let public = abi::ibv_comp_channel { context, fd: events.number(), refcnt: 0 };
            Box::into_raw(Box::new(Channel { public, events })).cast()
        }
        Err(error) => null(error.raw_os_error()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    // SAFETY: a channel that is there.
    if unsafe { (*channel).public.refcnt } > 0 {
        return libc::EBUSY;
    }
    // SAFETY: no CQ has it, and the program does not use it any more.
    drop(unsafe { Box::from_raw(channel) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut abi::ibv_comp_channel,
    vector: c_int,
) -> *mut abi::ibv_cq {
    // SAFETY: an open context.
    let process = unsafe { Context::of(context) }.process;
    let Some(entries) = u32::try_from(cqe).ok().filter(|n| *n > 0 && vector == 0) else { return null(libc::EINVAL) };
    let Some(mut held) = process.nic() else { return null(FORKED) };
    let id = match held.nic.create_cq(entries) {
        Ok(id) => id,
        Err(error) => return null(number(&error)),
    };
    drop(held);
    let cq = Box::into_raw(Box::new(Cq {
        public: abi::ibv_cq { context, channel, cq_context, handle: id.0, cqe },
        mutex_and_cond: [0; 11],
        events_completed: [0; 2],
        id,
        completions: Acked::default(),
        asynchronous: Acked::default(),
    }));
    lock(&process.objects.cqs).insert(id, cq as usize);
    if !channel.is_null() {
        // SAFETY: a channel that is there.
        unsafe { (*channel).refcnt += 1 };
    }
    cq.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: a CQ that is there, and its open context.
    let (public, id) = unsafe { (&(*cq).public, (*cq).id) };
    // SAFETY: as above.
    let context = unsafe { Context::of(public.context) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    if let Err(error) = held.nic.destroy_cq(id) {
        return number(&error);
    }
    drop(held);
    // From here on no event of it is queued, and then none waits.
    lock(&context.process.objects.cqs).remove(&id);
    context.events.purge(|item| item.element == cq as usize);
    let channel = public.channel.cast::<Channel>();
    if !channel.is_null() {
        // SAFETY: the channel of a CQ is there.
        unsafe {
            (*channel).events.purge(|waiting| *waiting == cq as usize);
            (*channel).public.refcnt -= 1;
        }
    }
    // SAFETY: as above; the program does not use it any more once what it took is acknowledged.
    unsafe {
        (*cq).completions.wait();
        (*cq).asynchronous.wait();
        drop(Box::from_raw(cq));
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(_cq: *mut Cq, _cqe: c_int) -> c_int {
    libc::EOPNOTSUPP
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut abi::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a CQ that is there, and its open context.
    let (context, id) = unsafe { (Context::of((*cq).context), (*cq.cast::<Cq>()).id) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    code(held.nic.req_notify_cq(id, solicited_only != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut Channel,
    cq: *mut *mut abi::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel that is there; a CQ whose event waits is there until its events were purged.
    let taken = unsafe { (*channel).events.take(|cq| (*(*cq as *const Cq)).completions.on_taken()) };
    match taken {
        Ok(address) => {
            let of = address as *mut abi::ibv_cq;
            // SAFETY: room for two pointers; the CQ stays until this event is acknowledged.
            unsafe {
                cq.write(of);
                cq_context.write((*of).cq_context);
            }
            0
        }
        Err(error) => {
            set(error.raw_os_error());
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    // SAFETY: a CQ of which as many events were taken.
    unsafe { (*cq).completions.acknowledge(count.into()) };
}
