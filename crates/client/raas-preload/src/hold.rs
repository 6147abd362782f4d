//! When the program's signal handlers may run: never while their thread is in the library's work. So a handler finds no
//! lock held and nothing half done, and may leave by `siglongjmp`.
//!
//! A signal that comes too early is blocked in its thread and queued there again, as it was. It is unblocked where the
//! call has let go of everything, and the kernel delivers it with all that belongs to it.
//!
//! Owns the thread's count of holders. A thread must never sleep while one of its signals waits: see [`sleep_mask`].

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{siginfo_t, sigset_t};

use crate::errno;

/// As the kernel has it inside: the call is to begin anew, once the handlers have run, unless one of them says no.
pub(crate) const RESTART: c_int = 512;

/// The program has had a handler that the library calls.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// From now on threads sleep so that handlers which wait wake them.
pub(crate) fn note_handlers() {
    ARE_THERE.store(true, Ordering::Relaxed);
}

/// What this file knows of a thread.
struct Thread {
    holders: Cell<u32>,
    /// Signals that wait, a bit for each.
    waiting: Cell<u64>,
    /// Those of them that the program had blocked: a mask of its `ppoll` let them through.
    blocked: Cell<u64>,
    ran: Cell<Ran>,
    call: Cell<Call>,
}

thread_local! {
    // Without a destructor and without memory of the heap, so that any moment of a thread's life may ask.
    static THREAD: Thread = const {
        Thread {
            holders: Cell::new(0),
            waiting: Cell::new(0),
            blocked: Cell::new(0),
            ran: Cell::new(Ran { all: 0, ending: 0 }),
            call: Cell::new(Call::NONE),
        }
    };
}

/// Handlers that ran in this thread so far, and how many of them want calls to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ran {
    all: u32,
    pub(crate) ending: u32,
}

fn of_thread<T>(work: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(work)
}

fn bit(signal: c_int) -> u64 {
    1 << ((signal - 1) & 63)
}

fn members(set: u64) -> sigset_t {
    let mut made = MaybeUninit::uninit();
    // SAFETY: there is room for a set, which the first call fills.
    unsafe {
        libc::sigemptyset(made.as_mut_ptr());
        (1..=64).filter(|signal| set & bit(*signal) != 0).for_each(|signal| {
            libc::sigaddset(made.as_mut_ptr(), signal);
        });
        made.assume_init()
    }
}

/// Handlers wait until this is dropped, and run then.
#[derive(Debug)]
pub(crate) struct Hold(());

/// Begins a call of the library's.
pub(crate) fn hold() -> Hold {
    of_thread(|thread| {
        let holders = thread.holders.get();
        if holders == 0 && thread.call.get().release.is_some() {
            clear_what_was_left();
        }
        thread.holders.set(holders + 1);
    });
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        let is_last = of_thread(|thread| {
            thread.holders.set(thread.holders.get() - 1);
            thread.holders.get() == 0 && thread.waiting.get() != 0
        });
        if is_last {
            let_run();
        }
    }
}

/// Whether a handler would find the library at work.
pub(crate) fn is_held() -> bool {
    of_thread(|thread| thread.holders.get() > 0)
}

/// Whether a signal waits for the call to end.
pub(crate) fn has_waiting() -> bool {
    of_thread(|thread| thread.waiting.get() != 0)
}

/// Delivers what waits. A handler may not return.
#[cold]
fn let_run() {
    let code = errno::get();
    let blocked = of_thread(|thread| thread.blocked.get());
    let ready = members(of_thread(|thread| thread.waiting.replace(0)));
    // SAFETY: the sets live through the calls.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const ready, null_mut());
        // Those that did not come after all.
        if of_thread(|thread| thread.blocked.replace(0)) != 0 {
            let again = members(blocked);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const again, null_mut());
        }
    }
    errno::set(code);
}

/// Lets handlers that wait run now, in the middle of a call.
pub(crate) fn let_run_within() {
    if has_waiting() {
        let _within = Within::new();
        let_run();
    }
}

/// No holder until this is dropped.
struct Within(u32);

impl Within {
    fn new() -> Self {
        Self(of_thread(|thread| thread.holders.replace(0)))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        of_thread(|thread| thread.holders.set(self.0));
    }
}

/// The kernel's call of the program, in which handlers run at once. A signal that came before it is seen by its sleep.
pub(crate) fn in_kernel(call: Call, work: &mut dyn FnMut() -> isize) -> isize {
    /// Puts back what was there, also where the thread is cancelled.
    struct Before(Call);
    impl Drop for Before {
        fn drop(&mut self) {
            of_thread(|thread| thread.call.set(self.0));
        }
    }
    let _before = Before(of_thread(|thread| thread.call.replace(call)));
    let _within = Within::new();
    if has_waiting() {
        let_run();
    }
    work()
}

/// What a call of the kernel's holds of the library, for the case that a handler leaves it by `siglongjmp`.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// The stack below is that of the call.
    above: usize,
    what: *const c_void,
    release: Option<unsafe fn(*const c_void)>,
}

impl Call {
    const NONE: Self = Self { above: 0, what: null(), release: None };

    /// `release` gives back what is behind `what`. It is called if the call is left without returning.
    ///
    /// # Safety
    ///
    /// `release` may be called once with `what`, as long as the call has not returned.
    pub(crate) unsafe fn new(what: *const c_void, release: unsafe fn(*const c_void)) -> Self {
        Self { above: here(), what, release: Some(release) }
    }
}

/// An address in the stack of the caller.
#[inline(never)]
fn here() -> usize {
    let place = 0u8;
    std::hint::black_box(&raw const place) as usize
}

/// A stack that has so much more room below is another one.
const STACK_MAX: usize = 1 << 30;

/// Whether the code that had this place in its stack was left.
pub(crate) fn was_left(above: usize) -> bool {
    let here = here();
    here > above || above - here > STACK_MAX
}

/// A call of the kernel's was left by `siglongjmp`.
fn clear_what_was_left() {
    let call = of_thread(|thread| thread.call.get());
    if let Some(release) = call.release
        && was_left(call.above)
    {
        of_thread(|thread| thread.call.set(Call::NONE));
        // SAFETY: the call did not return, and will not.
        unsafe { release(call.what) };
    }
}

// ---- for the handler

/// A signal came while the library is at work: it comes again when that is over. False: it cannot.
///
/// # Safety
///
/// The arguments are those of a signal handler that runs.
pub(crate) unsafe fn wait_for_end(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    let own = members(bit(signal));
    // SAFETY: the set lives through the call. The kernel has not blocked it where the handler may be interrupted by its own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const own, null_mut()) };
    // SAFETY: the calls take no pointers but the caller's.
    let is_queued = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info) == 0
            || libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) == 0
    };
    if !is_queued {
        return false;
    }
    let is_new = of_thread(|thread| thread.waiting.replace(thread.waiting.get() | bit(signal))) & bit(signal) == 0;
    // SAFETY: the caller's context, whose mask the thread goes on with.
    unsafe {
        if is_new && libc::sigismember(&raw const (*context).uc_sigmask, signal) == 1 {
            of_thread(|thread| thread.blocked.set(thread.blocked.get() | bit(signal)));
        }
        libc::sigaddset(&raw mut (*context).uc_sigmask, signal);
    }
    true
}

/// The handler runs now.
///
/// # Safety
///
/// As [`wait_for_end`].
pub(crate) unsafe fn begin_handler(signal: c_int, restarts: bool, context: *mut c_void) {
    if of_thread(|thread| thread.blocked.get()) & bit(signal) != 0 {
        of_thread(|thread| thread.blocked.set(thread.blocked.get() & !bit(signal)));
        // SAFETY: the caller's context, whose mask the thread goes on with.
        unsafe { libc::sigaddset(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, signal) };
    }
    of_thread(|thread| {
        let Ran { all, ending } = thread.ran.get();
        thread.ran.set(Ran { all: all.wrapping_add(1), ending: ending.wrapping_add(u32::from(!restarts)) });
    });
}

/// How many handlers ran in this thread so far.
pub(crate) fn ran() -> Ran {
    of_thread(|thread| thread.ran.get())
}

/// The mask with which a thread sleeps in the kernel: that of the program, so that a signal which waits ends the sleep
/// at once. None: nothing is known to come, or the program has given a mask.
pub(crate) fn sleep_mask(of_program: *const sigset_t) -> Option<sigset_t> {
    if !of_program.is_null() || !ARE_THERE.load(Ordering::Relaxed) {
        return None;
    }
    let mut mask = MaybeUninit::uninit();
    // SAFETY: there is room for the set, which the call fills.
    let mut mask = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, null(), mask.as_mut_ptr());
        mask.assume_init()
    };
    let waiting = of_thread(|thread| thread.waiting.get()) & !of_thread(|thread| thread.blocked.get());
    for signal in (1..=64).filter(|signal| waiting & bit(*signal) != 0) {
        // SAFETY: the set is this function's.
        unsafe { libc::sigdelset(&raw mut mask, signal) };
    }
    Some(mask)
}

/// The mask as the kernel's calls take it.
pub(crate) fn or_programs(own: Option<&sigset_t>, of_program: *const sigset_t) -> *const sigset_t {
    own.map_or(of_program, |own| own)
}
