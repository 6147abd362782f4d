//! The program's signal handlers: each is called by the library's own, which knows whether its thread is in the
//! library's work (`hold`), and which of them ran.
//!
//! Owns what the program asked for, which it is told when it asks.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{sigaction, siginfo_t};

use crate::hold::RESTART;
use crate::{errno, hold, owner, real};

/// Signals that there are.
pub(crate) const COUNT: usize = 65;

/// A handler of the program's.
#[derive(Debug)]
struct Handler {
    address: AtomicUsize,
    flags: AtomicI32,
}

static HANDLERS: [Handler; COUNT] =
    [const { Handler { address: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; COUNT];

thread_local! {
    /// A place in the stack of the innermost handler that runs; 0 for none.
    static RUNS: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is in a handler of the program's, which may have interrupted the C library: nothing may be done
/// then that takes its locks or its memory.
pub(crate) fn is_in_one() -> bool {
    let above = RUNS.with(Cell::get);
    above != 0 && !hold::was_left(above)
}

fn own() -> usize {
    let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
    handler as usize
}

fn of(signal: c_int) -> Option<&'static Handler> {
    HANDLERS.get(usize::try_from(signal).ok().filter(|signal| *signal > 0)?)
}

fn is_a_handler(address: usize) -> bool {
    address != libc::SIG_DFL && address != libc::SIG_IGN && address != libc::SIG_ERR
}

/// As `sigaction`.
///
/// # Safety
///
/// As `sigaction`: both pointers are null or point to actions.
pub(crate) unsafe fn set(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(known), new) = (of(signal), unsafe { new.as_ref() }.copied()) else {
        // SAFETY: as above.
        return unsafe { real::sigaction(signal, new, old) };
    };
    let before = (known.address.load(Ordering::Acquire), known.flags.load(Ordering::Acquire));
    // A child of `vfork` has handlers of its own, and this memory is its parent's.
    let takes = new.filter(|new| is_a_handler(new.sa_sigaction) && owner::is_owner());
    let kernels = takes.map(|new| {
        // First, so that a signal which comes now finds it.
        known.flags.store(new.sa_flags, Ordering::Release);
        known.address.store(new.sa_sigaction, Ordering::Release);
        hold::note_handlers();
        let mut kernels = new;
        kernels.sa_sigaction = own();
        kernels.sa_flags = (new.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
        kernels
    });
    let mut was = MaybeUninit::<sigaction>::zeroed();
    let given = kernels.as_ref().or(new.as_ref()).map_or(null(), |new| &raw const *new);
    // SAFETY: the actions live through the call.
    let result = unsafe { real::sigaction(signal, given, was.as_mut_ptr()) };
    if result != 0 {
        if takes.is_some() {
            known.address.store(before.0, Ordering::Release);
            known.flags.store(before.1, Ordering::Release);
        }
        return result;
    }
    if !old.is_null() {
        // SAFETY: the call succeeded, so it filled the action; zeros are one too.
        let mut was = unsafe { was.assume_init() };
        if was.sa_sigaction == own() {
            (was.sa_sigaction, was.sa_flags) = before;
        }
        // SAFETY: the caller's promise.
        unsafe { old.write(was) };
    }
    0
}

/// As `signal` with these flags: the handler before, or `SIG_ERR`. `masks`: its own signal is blocked meanwhile.
pub(crate) fn set_simple(signal: c_int, handler: usize, flags: c_int, masks: bool) -> usize {
    let (mut new, mut old) = (MaybeUninit::<sigaction>::zeroed(), MaybeUninit::<sigaction>::zeroed());
    // SAFETY: zeros are an action.
    let action = unsafe { new.assume_init_mut() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    if handler == libc::SIG_ERR || masks && of(signal).is_none() {
        errno::set(libc::EINVAL);
        return libc::SIG_ERR;
    }
    if masks {
        // SAFETY: the set is the action's.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
    }
    // SAFETY: both actions live through the call, which fills the second.
    unsafe {
        match set(signal, new.as_ptr(), old.as_mut_ptr()) {
            0 => old.assume_init().sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Whether a handler that the library did not see being installed wants calls to end. Which of those ran is not known, so
/// any counts.
pub(crate) fn may_unseen_end() -> bool {
    (1..COUNT as c_int).any(|signal| {
        let mut action = MaybeUninit::<sigaction>::uninit();
        // SAFETY: a null pointer asks for the handler without setting one; `action` has room for it.
        if unsafe { real::sigaction(signal, null(), action.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: the call above succeeded, so it filled `action`.
        let action = unsafe { action.assume_init() };
        is_a_handler(action.sa_sigaction) && action.sa_sigaction != own() && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// A call of the program that may sleep for a stream. If a signal ended that, it begins anew or fails with `EINTR`, as
/// the handlers want it that have run since.
pub(crate) fn restarting(mut call: impl FnMut() -> isize) -> isize {
    let code = errno::get();
    loop {
        let before = hold::ran();
        let held = hold::hold();
        let result = call();
        drop(held);
        // Within another call, that one begins anew.
        if result != -1 || errno::get() != RESTART || hold::is_held() {
            return result;
        }
        let now = hold::ran();
        let ends = now.ending != before.ending || now == before && may_unseen_end();
        if ends {
            return errno::fail(libc::EINTR);
        }
        errno::set(code);
    }
}

/// The kernel says so of what the thread itself does. It cannot wait.
fn is_fault(signal: c_int, info: *const siginfo_t) -> bool {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    // SAFETY: the kernel gave it.
    matches!(signal, SIGBUS | SIGFPE | SIGILL | SIGSEGV | SIGSYS | SIGTRAP) && unsafe { (*info).si_code } > 0
}

extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let code = errno::get();
    if hold::is_held() && !is_fault(signal, info) {
        // SAFETY: the kernel's arguments.
        let waits = unsafe { hold::wait_for_end(signal, info, context) };
        errno::set(code);
        if waits {
            return;
        }
    }
    let Some(known) = of(signal) else { return };
    let flags = known.flags.load(Ordering::Acquire);
    let address = known.address.load(Ordering::Acquire);
    if flags & libc::SA_RESETHAND != 0 {
        let none = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: zeros are the action of which the kernel decides.
        unsafe { real::sigaction(signal, none.as_ptr(), null_mut()) };
    }
    // SAFETY: the kernel's arguments.
    unsafe { hold::begin_handler(signal, flags & libc::SA_RESTART != 0, context) };
    errno::set(code);
    run(address, signal, info, context);
}

fn run(address: usize, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    /// Puts back what was there, also where the handler unwinds.
    struct Before(usize);
    impl Drop for Before {
        fn drop(&mut self) {
            RUNS.with(|runs| runs.set(self.0));
        }
    }
    let before = Before(RUNS.with(Cell::get));
    RUNS.with(|runs| runs.set(&raw const before as usize));
    // SAFETY: the program gave the address of a function that takes these, or the first of them.
    unsafe {
        let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(address);
        handler(signal, info, context);
    }
}
