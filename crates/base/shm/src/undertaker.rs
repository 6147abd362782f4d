//! Where a daemon takes strangers' memory down: in a thread of its own.
//!
//! Owns the order: no lock of the process's memory is held for longer than a piece takes. To unmap memory, and to close
//! the last descriptor of it, takes time for each of its pages, and how many there are is a program's choice: half a
//! second for some GiB, in which no thread that serves others may be. Only a process that asked for the thread has one.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Memory that is taken down where it is: it takes no longer than to tell the thread.
const SMALL_BYTES: usize = 256 << 10;
/// Bytes that are unmapped at a time.
const PIECE_BYTES: usize = 32 << 20;
/// How often a descriptor is looked at that others still have.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long the heap is left alone after a program has gone: others that go with it have gone by then.
const HEAP_AFTER: Duration = Duration::from_secs(1);

static UNDERTAKER: OnceLock<Sender<Remains>> = OnceLock::new();

/// What is to be taken down.
enum Remains {
    /// Pages at an address that nobody uses any more.
    Pages { start: usize, len: usize },
    /// A descriptor that may be the last one of its file, as soon as no one else has it.
    File(Arc<OwnedFd>),
    /// Pages of the heap that are free.
    Heap,
}

/// Has a thread of its own take down what memory this process drops from here on. It is for a daemon, before it takes
/// memory of others. Calling it again changes nothing.
pub fn take_down_elsewhere() -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if UNDERTAKER.get().is_some() {
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("raas-undertaker".into()).spawn(move || serve(&receiver))?;
    // Nobody else sets it: the lock is held.
    let _ = UNDERTAKER.set(sender);
    Ok(())
}

fn serve(remains: &Receiver<Remains>) {
    let mut held: Vec<Arc<OwnedFd>> = Vec::new();
    let mut heap_at: Option<Instant> = None;
    loop {
        let until_heap = heap_at.map(|at| at.saturating_duration_since(Instant::now()));
        let next = match until_heap.into_iter().chain((!held.is_empty()).then_some(LOOK_AGAIN)).min() {
            None => remains.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => remains.recv_timeout(wait),
        };
        if heap_at.is_some_and(|at| at <= Instant::now()) {
            heap_at = None;
            trim_heap();
        }
        match next {
            Ok(Remains::Pages { start, len }) => unmap(start, len),
            Ok(Remains::File(file)) => held.push(file),
            Ok(Remains::Heap) => _ = heap_at.get_or_insert_with(|| Instant::now() + HEAP_AFTER),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // One that still has it gives it back here too, or holds it for a message that is on its way.
        held.retain(|file| Arc::strong_count(file) > 1);
    }
}

/// A program has gone, with what was kept for it: soon the heap's free pages are given back to the system. The C library
/// keeps them otherwise, wherever something small lies above them.
pub fn give_heap_back_soon() {
    if let Some(thread) = UNDERTAKER.get() {
        // Without the thread they stay.
        let _ = thread.send(Remains::Heap);
    }
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: the call takes no pointer, and gives back pages that no allocation uses.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

/// Unmaps pages that the caller alone knows.
pub(crate) fn unmap_pages(start: usize, len: usize) {
    let elsewhere = UNDERTAKER.get().filter(|_| len > SMALL_BYTES);
    if elsewhere.is_none_or(|thread| thread.send(Remains::Pages { start, len }).is_err()) {
        unmap(start, len);
    }
}

/// A descriptor of memory whose size a stranger chose. The last one of a file takes its pages with it, so whoever drops
/// this one does not wait for that.
#[derive(Debug, Clone)]
pub struct ClosedElsewhere(Arc<OwnedFd>);

impl ClosedElsewhere {
    /// The descriptor, for those who drop theirs before this.
    pub fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }
}

impl From<OwnedFd> for ClosedElsewhere {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl AsFd for ClosedElsewhere {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ClosedElsewhere {
    fn drop(&mut self) {
        close(&self.0);
    }
}

/// Closes a descriptor when nobody else has it.
pub(crate) fn close(file: &Arc<OwnedFd>) {
    if let Some(thread) = UNDERTAKER.get() {
        // Without the thread the caller closes it.
        let _ = thread.send(Remains::File(Arc::clone(file)));
    }
}

fn unmap(start: usize, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = PIECE_BYTES.min(len - done);
        let at: *mut c_void = ptr::with_exposed_provenance_mut(start + done);
        // SAFETY: these are pages that mmap returned for a mapping of this crate, whose last handle is gone, in pieces
        // of whole (huge) pages: nobody reaches them any more, and none is unmapped twice.
        let unmapped = unsafe { rustix::mm::munmap(at, piece) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
        done += piece;
    }
}
