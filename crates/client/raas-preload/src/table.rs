//! What this library knows of each descriptor of the process.
//!
//! Owns the table, which only grows. A look at a descriptor that is not in it takes no lock and no memory. It must
//! never hold the lock of a place for longer than a copy of a pointer takes.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::connection::Connection;
use crate::epoll_set::EpollSet;

const CHUNK: usize = 1024;
/// Descriptors above this number are left to the kernel.
const CHUNKS: usize = 1024;

/// What a descriptor is.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// A TCP socket.
    Socket(Arc<Connection>),
    /// An epoll set that has a TCP socket, or had one.
    Epoll(Arc<EpollSet>),
}

/// The place of a descriptor.
struct Cell {
    is_used: AtomicBool,
    lock: AtomicBool,
    entry: UnsafeCell<Option<Entry>>,
}

// SAFETY: `entry` is touched by the holder of `lock` alone (`Cell::with`), and by the only thread of a forked child.
unsafe impl Sync for Cell {}

static TABLE: [AtomicPtr<[Cell; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

impl Cell {
    fn with<T>(&self, work: impl FnOnce(&mut Option<Entry>) -> T) -> T {
        let _held = crate::hold::hold();
        while self.lock.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is this thread's, so nobody else has a reference.
        let result = work(unsafe { &mut *self.entry.get() });
        self.lock.store(false, Ordering::Release);
        result
    }
}

fn place(fd: c_int) -> Option<&'static Cell> {
    let fd = usize::try_from(fd).ok()?;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: a chunk that is in the table was made by `place_or_make` and is never freed.
    let chunk = unsafe { chunk.as_ref() }?;
    chunk.get(fd % CHUNK)
}

fn place_or_make(fd: c_int) -> Option<&'static Cell> {
    let at = TABLE.get(usize::try_from(fd).ok()? / CHUNK)?;
    if at.load(Ordering::Acquire).is_null() {
        let empty =
            || Cell { is_used: AtomicBool::new(false), lock: AtomicBool::new(false), entry: UnsafeCell::new(None) };
        let made: Box<[Cell]> = (0..CHUNK).map(|_| empty()).collect();
        let made: Box<[Cell; CHUNK]> = made.try_into().ok()?;
        let made = Box::into_raw(made);
        if at.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread's chunk is in the table; this one came from `Box` and nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    place(fd)
}

/// Whether something is known of a descriptor.
#[inline]
pub(crate) fn is_known(fd: c_int) -> bool {
    place(fd).is_some_and(|place| place.is_used.load(Ordering::Acquire))
}

/// What is known of a descriptor.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Entry> {
    let place = place(fd)?;
    if !place.is_used.load(Ordering::Acquire) {
        return None;
    }
    place.with(|entry| entry.clone())
}

/// The TCP socket behind a descriptor.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<Arc<Connection>> {
    match get(fd)? {
        Entry::Socket(connection) => Some(connection),
        Entry::Epoll(_) => None,
    }
}

/// The epoll set behind a descriptor.
pub(crate) fn epoll(fd: c_int) -> Option<Arc<EpollSet>> {
    match get(fd)? {
        Entry::Epoll(set) => Some(set),
        Entry::Socket(_) => None,
    }
}

/// Notes what a descriptor is, in place of what was known before.
pub(crate) fn put(fd: c_int, entry: Entry) {
    if crate::owner::is_in_sandbox() {
        // Its end may be a call.
        return std::mem::forget(entry);
    }
    let Some(place) = place_or_make(fd) else { return };
    let before = place.with(|place| place.replace(entry));
    place.is_used.store(true, Ordering::Release);
    // Outside of the lock: a connection may close now.
    drop(before);
}

/// The epoll set behind a descriptor, which is made if there is none.
pub(crate) fn epoll_or_make(fd: c_int) -> Option<Arc<EpollSet>> {
    if crate::owner::is_in_sandbox() {
        return None;
    }
    let place = place_or_make(fd)?;
    let set = place.with(|entry| match entry {
        Some(Entry::Epoll(set)) => Arc::clone(set),
        other => {
            let set = Arc::new(EpollSet::new(fd));
            *other = Some(Entry::Epoll(Arc::clone(&set)));
            set
        }
    });
    place.is_used.store(true, Ordering::Release);
    Some(set)
}

/// Forgets a descriptor; what was known of it.
pub(crate) fn take(fd: c_int) -> Option<Entry> {
    let place = place(fd)?;
    if !place.is_used.swap(false, Ordering::AcqRel) {
        return None;
    }
    place.with(Option::take)
}

/// A descriptor that has this connection.
pub(crate) fn descriptor_of(connection: &Arc<Connection>) -> Option<c_int> {
    known(0, usize::MAX).into_iter().find(|fd| socket(*fd).is_some_and(|one| Arc::ptr_eq(&one, connection)))
}

/// A descriptor that has this epoll set.
pub(crate) fn descriptor_of_set(set: &Arc<EpollSet>) -> Option<c_int> {
    known(0, usize::MAX).into_iter().find(|fd| epoll(*fd).is_some_and(|one| Arc::ptr_eq(&one, set)))
}

/// Descriptors that are known, from `first` to `last`.
pub(crate) fn known(first: usize, last: usize) -> Vec<c_int> {
    let last = last.min(CHUNK * CHUNKS - 1);
    let mut known = Vec::new();
    for (number, chunk) in TABLE.iter().enumerate().take(last / CHUNK + 1).skip(first / CHUNK) {
        if chunk.load(Ordering::Acquire).is_null() {
            continue;
        }
        for fd in number * CHUNK..(number + 1) * CHUNK {
            let Ok(fd) = c_int::try_from(fd) else { continue };
            if (first..=last).contains(&(fd as usize)) && place(fd).is_some_and(|p| p.is_used.load(Ordering::Acquire)) {
                known.push(fd);
            }
        }
    }
    known
}

/// Gives each known descriptor of a forked child another entry. The parent's are left where they are: other threads of
/// the parent may have held their locks.
pub(crate) fn replace_all_in_child(mut replace: impl FnMut(&Entry) -> Option<Entry>) {
    for fd in known(0, usize::MAX) {
        let Some(place) = place(fd) else { continue };
        place.lock.store(false, Ordering::Relaxed);
        // SAFETY: a forked child has one thread. The parent's entry is forgotten, not dropped.
        let entry = unsafe { &mut *place.entry.get() };
        let next = entry.as_ref().and_then(&mut replace);
        place.is_used.store(next.is_some(), Ordering::Relaxed);
        std::mem::forget(std::mem::replace(entry, next));
    }
}

/// The program ends: upgraded connections close in order.
pub(crate) fn close_all() {
    let _inside = crate::inside::enter();
    for fd in known(0, usize::MAX) {
        if let Some(Entry::Socket(connection)) = take(fd) {
            connection.close(fd);
        }
    }
}
