//! The end of a process. The library's threads hold none, and every end that the program may choose is seen.
//!
//! Owns the list of the library's own threads, and one that looks for the end of the others once the first has ended.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use crate::desk::SignalsBlocked;
use crate::{answers, inside, owner};

/// Threads of the library, by number; 0 for none.
static OWN: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];
/// The thread that `main` ran in has ended, or that which forked.
static HAS_FIRST_ENDED: AtomicBool = AtomicBool::new(false);
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// Has its destructor run when the first thread ends and others go on.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// Between looks at the threads of the process.
const PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn __cxa_atexit(end: extern "C" fn(*mut c_void), argument: *mut c_void, library: *mut c_void) -> c_int;
    fn __cxa_at_quick_exit(end: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

extern "C" fn end(_: *mut c_void) {
    if owner::is_owner() {
        answers::end_in_order();
    }
}

extern "C" fn first_ends(_: *mut c_void) {
    if owner::is_owner() {
        HAS_FIRST_ENDED.store(true, Ordering::SeqCst);
        watch();
    }
}

/// To be called once, when the library is loaded: before anything else asks to be called at the end, so that it is called
/// last. Destructors of other libraries may still write.
pub(crate) fn watch_end() {
    // SAFETY: the functions are of this library, which is never unloaded. They belong to no library, so that the unloading
    // of none calls them.
    unsafe {
        __cxa_atexit(end, null_mut(), null_mut());
        __cxa_at_quick_exit(end, null_mut());
    }
    let mut key = 0;
    // SAFETY: there is room for the key.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(first_ends_of_key)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
        note_first();
    }
}

unsafe extern "C" fn first_ends_of_key(value: *mut c_void) {
    first_ends(value);
}

/// This thread is the one that the C library calls the main one. Said when the library is loaded, and in a forked child.
pub(crate) fn note_first() {
    HAS_FIRST_ENDED.store(false, Ordering::Relaxed);
    HAS_THREADS.store(false, Ordering::Relaxed);
    IS_WATCHED.store(false, Ordering::Relaxed);
    OWN.iter().for_each(|own| own.store(0, Ordering::Relaxed));
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: the key was made, and the value is not null.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

/// Whether a thread that is made now is the library's.
pub(crate) fn makes_own() -> bool {
    inside::is_inside() || IS_OWN.with(Cell::get)
}

/// This thread is the library's until this is dropped.
pub(crate) struct OwnThread(Option<&'static AtomicI32>);

impl OwnThread {
    pub(crate) fn begin() -> Self {
        IS_OWN.with(|is| is.set(true));
        // SAFETY: the call takes no pointers.
        let number = unsafe { libc::gettid() };
        let takes = |own: &&AtomicI32| own.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let place = OWN.iter().find(takes);
        HAS_THREADS.store(true, Ordering::SeqCst);
        watch();
        Self(place)
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::SeqCst);
        }
    }
}

/// From now on the process ends with the last thread of the program's.
fn watch() {
    let is_due = HAS_FIRST_ENDED.load(Ordering::SeqCst) && HAS_THREADS.load(Ordering::SeqCst);
    if !is_due || IS_WATCHED.swap(true, Ordering::SeqCst) {
        return;
    }
    let _inside = inside::enter();
    let _blocked = SignalsBlocked::new();
    let work = || {
        while !are_all_own() {
            std::thread::sleep(PAUSE);
        }
        // As the C library does in the last thread.
        // SAFETY: nothing of the program runs any more.
        unsafe { libc::exit(0) }
    };
    let _is_watched = std::thread::Builder::new().name("raas-run-last".to_owned()).spawn(work);
}

/// Whether no thread of the program's is left. Without /proc that is not known.
fn are_all_own() -> bool {
    let Ok(all) = std::fs::read_dir("/proc/self/task") else { return false };
    all.flatten().all(|thread| {
        let name = thread.file_name();
        let number = name.to_str().and_then(|name| name.parse::<i32>().ok());
        let is_own = number.is_some_and(|number| OWN.iter().any(|own| own.load(Ordering::SeqCst) == number));
        is_own || has_ended(&thread.path())
    })
}

/// Whether a thread is what is left of the first one, or gone.
fn has_ended(thread: &std::path::Path) -> bool {
    let Ok(about) = std::fs::read_to_string(thread.join("stat")) else { return true };
    about.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X']))
}

/// The smallest stack that holds what the library does in its callers, beside what the program needs itself.
const ROOM: usize = 256 << 10;

/// The attributes with which a thread is made that has little room: so much more. None: as the program wants it.
///
/// # Safety
///
/// `given` is null or points to attributes.
pub(crate) unsafe fn with_room(given: *const libc::pthread_attr_t) -> Option<libc::pthread_attr_t> {
    if given.is_null() {
        return None;
    }
    let (mut at, mut size) = (null::<c_void>().cast_mut(), 0);
    // SAFETY: the caller's promise; there is room for the answers.
    if unsafe { libc::pthread_attr_getstack(given, &raw mut at, &raw mut size) } != 0 {
        return None;
    }
    let is_programs = (at as usize).wrapping_add(size) != 0;
    if is_programs || size >= 4 * ROOM {
        return None;
    }
    // SAFETY: the copy is used for one call, during which the original keeps what both point to.
    let mut more = unsafe { given.read() };
    // SAFETY: as above.
    (unsafe { libc::pthread_attr_setstacksize(&raw mut more, size + ROOM) } == 0).then_some(more)
}
