//! Accesses to shared mappings that the system cannot serve: SIGBUS, survived.
//!
//! Owns the process's SIGBUS handler, which only [`survive_faults`] installs: a daemon's, never a library user's. A memfd that
//! cannot shrink raises SIGBUS all the same where its pages were given back (a tenant punched a hole) and the system has none
//! left that it may promise (`vm.overcommit_memory=2`). The handler puts a private page under the access and marks the mapping
//! ([`Region::has_faulted`](crate::Region::has_faulted)); whoever looks after the tenant ends its session. It must never
//! swallow a fault of any other address: that is a fault of this program, and ends it as before.
//!
//! The handler is async-signal-safe: it reads atomics, makes raw system calls, allocates nothing and takes no lock.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use crate::segment::overcommit_is_strict;

/// Shared mappings that can be looked after; a process may have about as many in all (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 1 << 16;
/// Pages of one reserve.
const RESERVE_PAGES: usize = 512;
/// Reserves: together 8 MiB, more than a round of a daemon's engine touches of a tenant that it then detaches.
const RESERVES: usize = 4;

/// A mapping that is looked after.
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    has_faulted: AtomicBool,
}

/// Pages that the system has promised already, for when it promises no more.
struct Reserve {
    base: AtomicUsize,
    /// Of these, so many are taken; beyond [`RESERVE_PAGES`]: all.
    taken: AtomicUsize,
}

static ENTRIES: [Entry; MAPPINGS_MAX] =
    [const { Entry { start: AtomicUsize::new(0), len: AtomicUsize::new(0), has_faulted: AtomicBool::new(false) } };
        MAPPINGS_MAX];
static RESERVED: [Reserve; RESERVES] =
    [const { Reserve { base: AtomicUsize::new(0), taken: AtomicUsize::new(RESERVE_PAGES) } }; RESERVES];
/// Entries below this were ever used. 0: nothing is installed.
static USED: AtomicUsize = AtomicUsize::new(0);
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Entries that are free again.
static FREE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A place in the table of mappings; given back on drop, before the mapping goes.
#[derive(Debug)]
pub(crate) struct Watched(u32);

impl Watched {
    /// `None`: nobody installed the handler. An error: the table is full.
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> io::Result<Option<Self>> {
        if !IS_INSTALLED.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let used = USED.load(Ordering::Relaxed);
        let at = match free.pop() {
            Some(at) => at as usize,
            None if used < MAPPINGS_MAX => used,
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    format!("{MAPPINGS_MAX} shared mappings are in use"),
                ));
            }
        };
        let entry = &ENTRIES[at];
        entry.has_faulted.store(false, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.start.store(start.as_ptr().addr(), Ordering::Release);
        USED.store(used.max(at + 1), Ordering::Release);
        Ok(Some(Self(at as u32)))
    }

    pub(crate) fn has_faulted(&self) -> bool {
        ENTRIES[self.0 as usize].has_faulted.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        ENTRIES[self.0 as usize].start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Makes this process survive accesses to its [`Segment`](crate::Segment)s that the system cannot serve, from those that it maps
/// after this call. For a daemon, at its start: the handler is the whole process's. Calling it again changes nothing.
///
/// Where the system overcommits strictly it also takes 8 MiB for the pages that it will need.
pub fn survive_faults() -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if IS_INSTALLED.load(Ordering::Acquire) {
        return Ok(());
    }
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::Release);
    refill()?;
    // SAFETY: a sigaction of zeroes is a valid one: no flags, empty mask, SIG_DFL.
    let (mut new, mut old) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed::<libc::sigaction>()) };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    new.sa_sigaction = handler as libc::sighandler_t;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to a sigaction of this frame; the handler has the signature that SA_SIGINFO asks for.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut old) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Before the handler can run.
    let _ = BEFORE.set(old);
    // SAFETY: as above.
    if unsafe { libc::sigaction(libc::SIGBUS, &new, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    IS_INSTALLED.store(true, Ordering::Release);
    Ok(())
}

/// Accesses that were survived since the start. Where it has grown, somebody's memory [has
/// faulted](crate::Region::has_faulted).
pub fn survived_faults() -> u64 {
    FAULTS.load(Ordering::Acquire)
}

/// Takes pages for those that the handler used up, as far as the system gives them: call it after faults.
pub fn refill() -> io::Result<()> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !overcommit_is_strict() {
        return Ok(());
    }
    let page = PAGE_BYTES.load(Ordering::Acquire);
    for reserve in &RESERVED {
        if reserve.taken.load(Ordering::Acquire) < RESERVE_PAGES {
            continue;
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses, so it replaces no other. It is never unmapped: page
        // by page it moves to where it is needed.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), RESERVE_PAGES * page, prot, flags) }?;
        reserve.base.store(base.addr(), Ordering::Release);
        reserve.taken.store(0, Ordering::Release);
    }
    Ok(())
}

/// The entry of an address.
fn entry_at(addr: usize) -> Option<&'static Entry> {
    let used = USED.load(Ordering::Acquire).min(MAPPINGS_MAX);
    ENTRIES[..used].iter().find(|entry| {
        let start = entry.start.load(Ordering::Acquire);
        let len = entry.len.load(Ordering::Relaxed);
        // Once more: another mapping may have taken the place between the two.
        start != 0 && addr.wrapping_sub(start) < len && entry.start.load(Ordering::Acquire) == start
    })
}

/// Puts a private page of zeroes at `at`, a page of a watched mapping. False: there is none.
fn patch(at: *mut c_void, page: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: `at` is a whole page of a mapping of this crate (`entry_at`), which is not unmapped meanwhile: whoever makes the
    // access holds it. Its bytes are reached by copies and atomics alone, which do not care what is mapped there.
    if unsafe { rustix::mm::mmap_anonymous(at, page, prot, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok() {
        return true;
    }
    RESERVED.iter().any(|reserve| {
        let one_more = |taken| (taken < RESERVE_PAGES).then_some(taken + 1);
        let Ok(number) = reserve.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) else {
            return false;
        };
        let from = ptr::with_exposed_provenance_mut::<c_void>(reserve.base.load(Ordering::Acquire) + number * page);
        // SAFETY: for `at` as above; `from` is a page of a reserve, which only this function takes. Should `refill` have put another
        // one there just now, two may ask for one page: the second finds it gone, which is an error and nothing worse.
        unsafe { rustix::mm::mremap_fixed(from, page, page, MremapFlags::MAYMOVE, at) }.is_ok()
    })
}

/// Whether the access at `addr` was to a watched mapping and can be made again.
fn survive(addr: usize) -> bool {
    let page = PAGE_BYTES.load(Ordering::Acquire);
    let Some(entry) = entry_at(addr) else { return false };
    if !patch(ptr::with_exposed_provenance_mut(addr & !(page - 1)), page) {
        return false;
    }
    entry.has_faulted.store(true, Ordering::Release);
    FAULTS.fetch_add(1, Ordering::AcqRel);
    true
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: errno of this thread, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel hands a valid siginfo to a handler with SA_SIGINFO; `si_addr` is set where it raised SIGBUS itself, as a
    // positive code says.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_access = code == libc::BUS_ADRERR;
    if !(is_access && survive(addr)) {
        give_up(signal, code);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// A SIGBUS that is none of this module's: it goes where it would have gone without it.
fn give_up(signal: c_int, code: c_int) {
    // SAFETY: a sigaction of zeroes is SIG_DFL; both calls are async-signal-safe.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        // The access is made again on return, and what was there before sees it.
        let before = if code > 0 { BEFORE.get().copied().unwrap_or(default) } else { default };
        libc::sigaction(signal, &before, ptr::null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}
