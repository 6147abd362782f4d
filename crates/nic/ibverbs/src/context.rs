//! Opening and closing a device, and the functions that programs find in a context.

use std::ffi::c_int;
use std::mem::offset_of;

use rdmacore::abi;

use crate::errors::{null, say};
use crate::events::{Queue, lock};
use crate::process::Process;
use crate::process::objects::{
    Context, Cq, Device, EXTENDED, PLACEHOLDERS, PRIVATE, QUERY_DEVICE_EX, QUERY_PORT, Qp, Srq,
};
use crate::{completion, device, post};

/// What a place of the extended interface answers that has no function: NULL or a number, and EOPNOTSUPP.
extern "C" fn refuse_extended() -> usize {
    crate::errors::set(libc::EOPNOTSUPP);
    0
}

/// The same of functions whose answer is errno.
extern "C" fn refuse_with_code() -> c_int {
    libc::EOPNOTSUPP
}

/// Places of the extended interface that answer with a pointer; those beside them answer with errno.
const MAKE_OBJECTS: [usize; 14] = [2, 5, 7, 8, 12, 14, 16, 20, 23, 25, 30, 32, 33, 35];
const OPEN_DOMAIN: usize = 36;

fn extended() -> [usize; EXTENDED] {
    let mut places = [refuse_with_code as *const () as usize; EXTENDED];
    for place in MAKE_OBJECTS.into_iter().chain([OPEN_DOMAIN]) {
        places[place] = refuse_extended as *const () as usize;
    }
    for place in PLACEHOLDERS.into_iter().chain([PRIVATE]) {
        places[place] = 0;
    }
    places[QUERY_PORT] = device::query_port as *const () as usize;
    places[QUERY_DEVICE_EX] = device::query_device_ex as *const () as usize;
    places
}

fn ops() -> abi::ibv_context_ops {
    // Memory windows, and what releases before the extended interface called here.
    let refuse = refuse_with_code as *mut std::ffi::c_void;
    let mut before_poll_cq = [refuse; 11];
    // `alloc_mw` answers with a pointer.
    before_poll_cq[7] = refuse_extended as *mut std::ffi::c_void;
    abi::ibv_context_ops {
        before_poll_cq,
        poll_cq: Some(post::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        before_post_srq_recv: [refuse; 7],
        post_srq_recv: Some(post::post_srq_recv),
        before_post_send: [refuse; 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        after: [refuse; 5],
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut abi::ibv_context {
    let process = match Process::open() {
        Ok(process) => process,
        Err(error) => {
            // A program says no more than that it could not open the device.
            eprintln!("raas verbs: soft0 cannot be opened: {error}");
            return null(libc::ENODEV);
        }
    };
    let Ok(events) = Queue::new() else { return null(libc::EMFILE) };
    // No command is ever written to it; programs look at it as at a descriptor that is there.
    // SAFETY: opens a file.
    let cmd_fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let context = Box::new(Context {
        extended: extended(),
        sz: offset_of!(Context, process),
        public: abi::ibv_context { device: device.cast(), ops: ops(), cmd_fd, async_fd: events.number() },
        num_comp_vectors: 1,
        mutex: [0; 5],
        abi_compat: usize::MAX,
        process,
        events,
    });
    let context = Box::into_raw(context);
    lock(&process.objects.contexts).push(context as usize);
    // SAFETY: it was just made.
    unsafe { &raw mut (*context).public }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut abi::ibv_context) -> c_int {
    // SAFETY: an open context.
    let whole = std::ptr::from_ref(unsafe { Context::of(context) }).cast_mut();
    // SAFETY: as above.
    let (process, cmd_fd) = unsafe { ((*whole).process, (*context).cmd_fd) };
    if process.has_objects_of(context) {
        // The man page has the program destroy them first. Events go through the context, so it stays.
        say(&"a context is closed that has queue pairs, completion queues or shared receive queues: it stays");
        return 0;
    }
    lock(&process.objects.contexts).retain(|open| *open != whole as usize);
    // SAFETY: the descriptor is the context's own; no object refers to the context, and the program does not use it any
    // more.
    unsafe {
        libc::close(cmd_fd);
        drop(Box::from_raw(whole));
    }
    0
}

impl Process {
    /// Whether an object of the context is left.
    fn has_objects_of(&self, context: *mut abi::ibv_context) -> bool {
        // SAFETY: objects are taken out of the maps before they go, under the lock that is held here.
        let of_qp = |qp: &usize| unsafe { (*(*qp as *const Qp)).public.context } == context;
        // SAFETY: see above.
        let of_cq = |cq: &usize| unsafe { (*(*cq as *const Cq)).public.context } == context;
        // SAFETY: see above.
        let of_srq = |srq: &usize| unsafe { (*(*srq as *const Srq)).context } == context;
        lock(&self.objects.qps).values().any(of_qp)
            || lock(&self.objects.cqs).values().any(of_cq)
            || lock(&self.objects.srqs).values().any(of_srq)
    }
}
