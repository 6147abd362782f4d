//! Calls that install signal handlers.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, sigaction as Action};

use crate::handlers::{COUNT, set, set_simple};

/// `siginterrupt` said so of each.
static INTERRUPTS: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
/// What `sigset` has instead of a handler: the signal is blocked.
const SIG_HOLD: usize = 2;

fn interrupts(signal: c_int) -> Option<&'static AtomicBool> {
    INTERRUPTS.get(usize::try_from(signal).ok()?)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { set(signal, new, old) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { set(signal, new, old) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn signal(signal: c_int, handler: usize) -> usize {
    let ends = interrupts(signal).is_some_and(|ends| ends.load(Ordering::Relaxed));
    set_simple(signal, handler, if ends { 0 } else { SA_RESTART }, true)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn bsd_signal(number: c_int, handler: usize) -> usize {
    signal(number, handler)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn ssignal(number: c_int, handler: usize) -> usize {
    signal(number, handler)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    set_simple(signal, handler, SA_RESETHAND | SA_NODEFER, false)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
    sysv_signal(signal, handler)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn siginterrupt(signal: c_int, ends: c_int) -> c_int {
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: the action lives through the calls; the first fills it.
    unsafe {
        if set(signal, null(), action.as_mut_ptr()) != 0 {
            return -1;
        }
        let action = action.assume_init_mut();
        action.sa_flags = if ends != 0 { action.sa_flags & !SA_RESTART } else { action.sa_flags | SA_RESTART };
        if let Some(known) = interrupts(signal) {
            known.store(ends != 0, Ordering::Relaxed);
        }
        set(signal, action, null_mut())
    }
}

/// As the C library's: the signal is blocked, or it is not and has this handler.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn sigset(signal: c_int, handler: usize) -> usize {
    let (mut one, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    let mut action = MaybeUninit::<Action>::zeroed();
    // SAFETY: there is room for the sets, which the calls fill, and for the action.
    unsafe {
        libc::sigemptyset(one.as_mut_ptr());
        if libc::sigaddset(one.as_mut_ptr(), signal) != 0 {
            return libc::SIG_ERR;
        }
        let was = match handler {
            SIG_HOLD if set(signal, null(), action.as_mut_ptr()) != 0 => return libc::SIG_ERR,
            SIG_HOLD => action.assume_init().sa_sigaction,
            handler => set_simple(signal, handler, 0, false),
        };
        if was == libc::SIG_ERR {
            return was;
        }
        let how = if handler == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        libc::sigprocmask(how, one.as_ptr(), before.as_mut_ptr());
        if libc::sigismember(before.as_ptr(), signal) == 1 { SIG_HOLD } else { was }
    }
}
