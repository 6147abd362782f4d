//! A word that says whether the process that made it lives.
//!
//! Owns the thread for which the kernel stores the end. The word must never say the end while code of that process can
//! still run that looks at it first, and must say it before anybody can find the process's sockets closed.
//!
//! **Who stores it.** The word is a futex on the *robust list* of a thread (set_robust_list(2)): when that thread ends,
//! however it ends, the kernel stores `FUTEX_OWNER_DIED` to the word. A process that is killed gives up its memory, and
//! the locks in it, thread by thread before its last thread gives up the descriptors. So who finds a socket of it hung
//! up, finds the word too.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::{Region, Word32};

/// `FUTEX_OWNER_DIED`: what the kernel sets.
const OVER: u32 = 0x4000_0000;
/// The thread only waits.
const STACK_BYTES: usize = 64 << 10;

/// An element of a robust list.
#[repr(C)]
struct Node {
    next: *const Node,
}

/// `struct robust_list_head` of linux/futex.h.
#[repr(C)]
struct Head {
    list: Node,
    /// From an element to its futex.
    futex_offset: libc::c_long,
    pending: *const Node,
}

/// Says in a word that this process lives, until it is dropped or the process ends. See the head of this file.
#[derive(Debug)]
pub struct Life {
    word: Word32,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Life {
    /// Begins to say it in the u32 at `offset` of a region, which must be writable. An error: it is said nowhere, and the
    /// word is 0, which is not [`Life::is_over`].
    pub fn begin(region: &Region, offset: u64) -> io::Result<Self> {
        let word = region.word32(offset).and_then(Word32::writable).map_err(io::Error::other)?;
        let (end, ended) = channel::<()>();
        let (told, begun) = channel();
        let held = word.clone();
        let run = move || {
            let result = hold(&held, || {
                let _ = told.send(Ok(()));
                // Until the sender is dropped.
                let _ = ended.recv();
            });
            // Nobody listens if it began.
            result.err().into_iter().for_each(|error| drop(told.send(Err(error))));
        };
        let thread = std::thread::Builder::new().name("raas-life".into()).stack_size(STACK_BYTES).spawn(run)?;
        begun.recv().map_err(io::Error::other)??;
        Ok(Self { word, end: Some(end), thread: Some(thread) })
    }

    /// Whether the process that stores to the word has ended, or dropped its [`Life`].
    #[inline]
    pub fn is_over(word: u32) -> bool {
        word & OVER != 0
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.word.store(OVER, Ordering::SeqCst);
        self.end = None;
        // It waits for nothing but the line above.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Calls `wait`; if this thread dies in it, the kernel stores the end to the word.
fn hold(word: &Word32, wait: impl FnOnce()) -> io::Result<()> {
    let mut node = Node { next: ptr::null() };
    let node = &raw mut node;
    let futex = word.atomic().as_ptr();
    let futex_offset = (futex.addr().cast_signed()).wrapping_sub(node.addr().cast_signed());
    let mut head = Head { list: Node { next: node }, futex_offset: futex_offset as libc::c_long, pending: ptr::null() };
    let head = &raw mut head;
    // SAFETY: `node` is this function's own, and nobody else has its address yet; the list is a ring that ends at its head.
    unsafe { (*node).next = &raw const (*head).list };
    let before = own_list()?;
    // The kernel stores only where it finds the number of the thread that dies.
    word.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::SeqCst);
    if let Err(error) = set_list(head) {
        word.store(0, Ordering::SeqCst);
        return Err(error);
    }
    wait();
    // The list is on this function's stack.
    set_list(before)
}

/// The robust list of this thread, which the C library made for its own locks.
fn own_list() -> io::Result<*mut Head> {
    let (mut head, mut bytes) = (ptr::null_mut::<Head>(), 0_usize);
    // SAFETY: both pointers are to variables of the kinds that the call writes; 0 is this thread.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) };
    if result == 0 { Ok(head) } else { Err(io::Error::last_os_error()) }
}

fn set_list(head: *mut Head) -> io::Result<()> {
    // SAFETY: the kernel reads the list when this thread ends, and then it is there: it is the C library's, or that of
    // `hold`, which takes it back before it returns. Its one futex is a word of a mapping that `hold` borrows. This thread
    // takes no robust lock of the C library meanwhile: it waits on a channel alone.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
