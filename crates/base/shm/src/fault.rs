//! Accesses to shared mappings that the system cannot serve: SIGBUS, survived.
//!
//! Owns the process's SIGBUS handler, which only [`survive_faults`] installs: a daemon's, never a library user's. A
//! memfd that cannot shrink raises SIGBUS all the same where its pages were given back (a tenant punched a hole) and
//! the system has none left that it may promise (`vm.overcommit_memory=2`), or none of that size (huge pages). The
//! handler puts a page of its own under the access and marks the mapping
//! ([`Region::has_faulted`](crate::Region::has_faulted)); the engine then ends the tenant's session. It must never swallow a fault of any other address: that is a fault of this program, and ends it
//! as without the handler.
//!
//! The handler is async-signal-safe: it reads atomics, makes raw system calls, allocates nothing and takes no lock.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::DupFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::overcommit::overcommit_is_strict;

/// Shared mappings that can be looked after; a process may have about as many in all (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 1 << 16;
/// Pages of one reserve.
const RESERVE_PAGES: usize = 512;
/// Reserves: together 8 MiB with pages of 4 KiB, more than a round of a daemon's engine touches of a tenant that it
/// then detaches.
const RESERVES: usize = 4;

/// A mapping that is looked after.
struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of its pages: those of the system, or huge ones, of which no part can be replaced.
    page: AtomicUsize,
    has_faulted: AtomicBool,
}

/// Pages that the system has promised already, for when it promises no more: a memfd. Mapping pages of one that are
/// there needs no promise, where a private page does, as does moving one (`mremap`).
struct Reserve {
    /// -1: none yet.
    fd: AtomicI32,
    /// Of its pages, so many are taken.
    taken: AtomicUsize,
}

static ENTRIES: [Entry; MAPPINGS_MAX] = [const {
    let (start, len, page) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    Entry { start, len, page, has_faulted: AtomicBool::new(false) }
}; MAPPINGS_MAX];
static RESERVED: [Reserve; RESERVES] =
    [const { Reserve { fd: AtomicI32::new(-1), taken: AtomicUsize::new(RESERVE_PAGES) } }; RESERVES];
/// Entries below this were ever used. 0: nothing is installed.
static USED: AtomicUsize = AtomicUsize::new(0);
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Entries that are free again.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A place in the table of mappings; given back on drop, before the mapping goes.
#[derive(Debug)]
pub(crate) struct Watched(usize);

impl Watched {
    /// Of a mapping with pages of `page` bytes. `None`: nobody installed the handler. An error: the table is full.
    pub(crate) fn new(start: NonNull<u8>, len: usize, page: usize) -> io::Result<Option<Self>> {
        if !IS_INSTALLED.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let used = USED.load(Ordering::Relaxed);
        let at = match free.pop() {
            Some(at) => at,
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
        entry.page.store(page, Ordering::Relaxed);
        entry.start.store(start.as_ptr().addr(), Ordering::Release);
        USED.store(used.max(at + 1), Ordering::Release);
        Ok(Some(Self(at)))
    }

    pub(crate) fn has_faulted(&self) -> bool {
        ENTRIES[self.0].has_faulted.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        ENTRIES[self.0].start.store(0, Ordering::Release);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Makes this process survive accesses to its [`Segment`](crate::Segment)s that the system cannot serve, beginning with
/// those that it maps after this call. It is for a daemon, at its start, because the handler belongs to the whole
/// process. Calling it again changes nothing.
///
/// Where the system overcommits strictly it takes 8 MiB for the pages that it will need.
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
    let bytes = (RESERVE_PAGES * PAGE_BYTES.load(Ordering::Acquire)) as u64;
    for reserve in RESERVED.iter().filter(|reserve| reserve.taken.load(Ordering::Acquire) >= RESERVE_PAGES) {
        let new = rustix::fs::memfd_create("raas-reserve", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&new, bytes)?;
        // Elsewhere a page comes when it is touched.
        if overcommit_is_strict() {
            rustix::fs::fallocate(&new, FallocateFlags::empty(), 0, bytes)?;
        }
        let old = reserve.fd.load(Ordering::Acquire);
        if old < 0 {
            reserve.fd.store(new.into_raw_fd(), Ordering::Release);
        } else {
            // SAFETY: this descriptor is the reserve's own and never closed; it is not closed here either.
            let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old) });
            // The number stays, so that a handler that has just read it cannot map a stranger's file.
            rustix::io::dup3(&new, &mut old, DupFlags::CLOEXEC)?;
        }
        reserve.taken.store(0, Ordering::Release);
    }
    Ok(())
}

/// The entry of an address, and the bytes of its pages.
fn entry_at(addr: usize) -> Option<(&'static Entry, usize)> {
    let used = USED.load(Ordering::Acquire).min(MAPPINGS_MAX);
    ENTRIES[..used].iter().find_map(|entry| {
        let start = entry.start.load(Ordering::Acquire);
        let (len, page) = (entry.len.load(Ordering::Relaxed), entry.page.load(Ordering::Relaxed));
        // Once more: another mapping may have taken the place between the two.
        let is_it = start != 0 && addr.wrapping_sub(start) < len && entry.start.load(Ordering::Acquire) == start;
        is_it.then_some((entry, page))
    })
}

/// Puts zeroes of this process's own at `at`, a page of `bytes` bytes of a watched mapping. False: there are none.
fn patch(at: *mut c_void, bytes: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // Pages that were promised come first: a refused `mmap` of a private one leaves nothing at all there.
    let page = PAGE_BYTES.load(Ordering::Acquire);
    let pages = bytes / page.max(1);
    let promised = RESERVED.iter().any(|reserve| {
        let more = |taken: usize| taken.checked_add(pages).filter(|all| *all <= RESERVE_PAGES);
        let Ok(number) = reserve.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) else {
            return false;
        };
        let (fd, offset) = (reserve.fd.load(Ordering::Acquire), (number * page) as u64);
        // SAFETY: the descriptor of a reserve whose pages are not all taken is open, and never closed. `at` is a whole
        // page of a mapping of this crate (`entry_at`), which is not unmapped meanwhile: the code that makes the access
        // holds it. Its bytes are reached by copies and atomics alone, which do not care what is mapped there.
        unsafe {
            let fd = BorrowedFd::borrow_raw(fd);
            rustix::mm::mmap(at, bytes, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset).is_ok()
        }
    });
    // SAFETY: for `at` as above.
    promised || unsafe { rustix::mm::mmap_anonymous(at, bytes, prot, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}

/// Whether the access at `addr` was to a watched mapping and can be made again.
fn survive(addr: usize) -> bool {
    let Some((entry, page)) = entry_at(addr) else { return false };
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
    // SAFETY: the kernel hands a valid siginfo to a handler with SA_SIGINFO; `si_addr` is set where it raised SIGBUS
    // itself, as a positive code says.
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
