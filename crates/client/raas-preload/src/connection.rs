//! A TCP socket of the program: the kernel's connection, and the stream that replaces it when both ends have one.
//!
//! Owns which part is read and which is written, and the bytes counted on TCP. It must never take a byte of one part
//! before those that come before it in the other.
//!
//! Reading: `Kernel` (as without this library), then `Both` (after `G` was said: the other end may switch), then
//! `Stream`, then `Tail`: the stream has ended, and TCP's end is awaited, which comes when the last process that has the
//! other end closes it. Writing: `Kernel`, then `Stream`. Both may return to `Kernel`, for good (`back`).

mod back;
mod buffers;
mod ending;
mod guard;
mod keeping;
mod readiness;
mod reading;
mod sharing;
mod upgrade;
mod waiting;
mod writing;

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use raas::Stream;

use crate::polled::Payoff;
use crate::summary::Counted;
use crate::wish::Wish;
use crate::{hold, say};
use upgrade::Upgrade;

pub(crate) use back::PATIENCE;
pub(crate) use readiness::{How, Ready};
pub(crate) use sharing::Claim;
pub(crate) use waiting::{Waits, timespec};

/// An epoll set that a connection is in.
pub(crate) trait Watcher: Send + Sync {
    /// The connection with this descriptor has a stream, to which the other end may switch.
    fn note_linked(&self, fd: c_int);

    /// What its stream can do has changed. It is called by any thread, and must not use the stream.
    fn note_told(&self, fd: c_int);

    /// It is the kernel's again, for good.
    fn note_back(&self, fd: c_int);
}

/// The epoll sets that a connection is in, and its descriptors there.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<(Weak<dyn Watcher>, c_int)>>);

impl Watchers {
    fn all(&self) -> Vec<(Arc<dyn Watcher>, c_int)> {
        lock(&self.0).iter().filter_map(|(set, fd)| Some((set.upgrade()?, *fd))).collect()
    }

    fn tell(&self) {
        self.all().iter().for_each(|(set, fd)| set.note_told(*fd));
    }
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watchers").field(&lock(&self.0).len()).finish()
    }
}

/// What the stream has had for the program, for edges. Numbers only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Edges {
    /// Bytes that have come, and what else lets a read go on.
    pub(crate) come: u64,
    /// Times that there was room again.
    pub(crate) room: u32,
}

/// What the program has done with the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// Nothing yet.
    Fresh,
    /// It connected, or is connecting.
    Connected,
    /// It was accepted.
    Accepted,
    /// It listens, or others may use it too: it stays the kernel's.
    Kernel,
}

/// Where the next bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadPart {
    Kernel,
    Both,
    Stream,
    /// The stream has ended. TCP says whether that was the end, and nobody may have written to it.
    Tail,
    /// The stream is another process's: this one is its child.
    Lost,
}

/// Set when threads that are inside the kernel must be none, and no other enters.
const CLOSED: u32 = 1 << 31;

/// Threads that are inside a call of the kernel which may block.
#[derive(Debug, Default)]
struct Gate(AtomicU32);

impl Gate {
    /// Enters; none: it is closed. A thread that is cancelled in the kernel leaves too.
    fn enter(&self) -> Option<Entered<'_>> {
        let next = |now: u32| (now & CLOSED == 0).then_some(now + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok().then(|| Entered(self))
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes it if nobody is inside.
    fn close(&self) -> bool {
        self.0.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED == 0
    }

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Opens it again. Nobody is inside.
    fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

/// A thread is inside until this is dropped.
#[derive(Debug)]
struct Entered<'a>(&'a Gate);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Which gate a thread has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Read,
    Write,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    role: AtomicU8,
    is_nonblocking: AtomicBool,
    /// Something was read or written.
    is_used: AtomicBool,
    /// Nothing about the upgrade will change any more.
    is_settled: AtomicBool,
    guard: guard::Guard,
    counted: Counted,
    /// A stream of the parent's process.
    is_lost: AtomicBool,
    /// The stream was read to its end.
    is_tail: AtomicBool,
    /// Neither end reads or writes, until TCP has the connection again.
    is_going_back: AtomicBool,
    /// TCP goes on where the other end's stream ends.
    has_heard_ask: AtomicBool,
    /// Held by the thread that wants it on TCP, and by the one that answers the other end's wish for the program.
    bringing: Mutex<()>,
    /// Held while it is decided where the reader goes on behind the stream.
    back: Mutex<()>,
    /// The code of the reason that keeps it on TCP; 0: none does.
    kept_by: AtomicU32,
    /// As [`crate::owner::shares`] when it was made: unchanged where no other process can have it.
    shares: u64,
    /// The number of the kernel's socket.
    inode: AtomicU64,
    /// What only the two libraries know, once there is a stream.
    token: AtomicU64,
    is_end_seen: AtomicBool,
    /// A call failed because the stream was reset.
    is_reset_told: AtomicBool,
    /// The program ended its writing.
    is_write_shut: AtomicBool,
    /// The other end was told so by a word. TCP's end is still to be sent.
    owes_end: AtomicBool,
    /// The other end's program writes no more: the end of its stream is that of its bytes.
    has_heard_end: AtomicBool,
    is_read_shut: AtomicBool,
    tcp_in: AtomicU64,
    tcp_out: AtomicU64,
    /// Closed: `G` was said.
    readers: Gate,
    /// Closed: `W` was said.
    writers: Gate,
    /// Closed: the bytes of the stream are taken for no program, and go back.
    takers: Gate,
    /// The bytes of TCP are read.
    reads_stream: AtomicBool,
    /// Bytes of the stream that the program has taken.
    stream_in: AtomicU64,
    /// A call was given less room than it asked for, and there was none since.
    is_full: AtomicBool,
    /// Times that there was room again.
    room_edges: AtomicU32,
    /// Words of the other end, ends, and ways back, by which a read that found nothing finds something.
    word_edges: AtomicU64,
    /// The other end has said on the stream whether it switches, or the stream is over.
    has_word: AtomicBool,
    /// TCP's end is next there. Without the word above it is not known to be the end of the bytes.
    is_tcp_over: AtomicBool,
    /// Microseconds; 0 for none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
    /// Bytes that a reader wants at least (`SO_RCVLOWAT`).
    low_water: AtomicU32,
    /// `TCP_INQ`: each `recvmsg` tells what is left to be read.
    tells_left: AtomicBool,
    /// Bytes that the peer may leave unread in the stream; `u64::MAX`: what it holds.
    unread_max: AtomicU64,
    looks: AtomicU32,
    upgrade: Mutex<Upgrade>,
    /// It stays on TCP, and the other end's threads look before they sleep as this one's do.
    is_polled: AtomicBool,
    payoff: Payoff,
    stream: OnceLock<Stream>,
    /// Negative: not asked for yet.
    ready_fd: AtomicI32,
    /// Threads that wait for it, or are about to, in calls other than those of epoll.
    readers_waiting: AtomicU32,
    writers_waiting: AtomicU32,
    /// The epoll sets that it is in.
    sets: Arc<Watchers>,
    /// How the parent is asked to bring it back.
    wish: Option<Wish>,
    /// Children's children may have it too.
    has_forked: AtomicBool,
    /// Children that may want it, by forks.
    heirs: AtomicU32,
    /// Where it is said whose it is, as long as nobody has used it.
    claims: Mutex<Vec<Box<dyn Claim>>>,
    /// Another descriptor, once the program has closed its own and a child may want it.
    kept: Mutex<Option<Arc<OwnedFd>>>,
}

/// Takes a lock that a thread may have left when it panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether these buffers have no room at all.
pub(crate) fn is_empty(parts: &[libc::iovec]) -> bool {
    parts.iter().all(|part| part.iov_len == 0)
}

/// Bytes for which these buffers have room, as far as that is a number.
pub(crate) fn bytes_of(parts: &[libc::iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// Whether the kernel would take these buffers, as far as can be seen without looking into them.
fn are_valid(parts: &[libc::iovec]) -> bool {
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    parts.len() <= libc::UIO_MAXIOV as usize && total.is_some_and(|total| isize::try_from(total).is_ok())
}

impl Connection {
    /// A socket that was just made.
    pub(crate) fn new(role: Role, is_nonblocking: bool) -> Self {
        let mut new = Self::default();
        (new.role, new.is_nonblocking) = (AtomicU8::new(role as u8), AtomicBool::new(is_nonblocking));
        (new.shares, new.low_water) = (crate::owner::shares(), AtomicU32::new(1));
        (new.unread_max, new.ready_fd) = (AtomicU64::new(u64::MAX), AtomicI32::new(-1));
        new
    }

    pub(crate) fn role(&self) -> Role {
        match self.role.load(Ordering::Relaxed) {
            0 => Role::Fresh,
            1 => Role::Connected,
            2 => Role::Accepted,
            _ => Role::Kernel,
        }
    }

    pub(crate) fn set_role(&self, role: Role) {
        self.role.store(role as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.is_nonblocking.store(on, Ordering::Relaxed);
    }

    pub(crate) fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(time) = read {
            self.read_timeout.store(micros(time), Ordering::Relaxed);
        }
        if let Some(time) = write {
            self.write_timeout.store(micros(time), Ordering::Relaxed);
        }
    }

    /// `TCP_INQ`.
    pub(crate) fn set_tells_left(&self, tells: bool) {
        self.tells_left.store(tells, Ordering::Relaxed);
    }

    pub(crate) fn set_low_water(&self, bytes: c_int) {
        self.low_water.store(u32::try_from(bytes).unwrap_or(1).max(1), Ordering::Relaxed);
    }

    /// Whether the bytes in the stream are fewer than a reader wants.
    fn is_below_low_water(&self) -> bool {
        let wanted = self.low_water.load(Ordering::Relaxed);
        wanted > 1 && self.unread().is_some_and(|unread| unread < u64::from(wanted))
    }

    /// Whether TCP and the stream have the bytes together that a reader wants, of which the kernel counts its own alone.
    fn is_at_low_water(&self, fd: c_int) -> bool {
        let wanted = self.low_water.load(Ordering::Relaxed);
        wanted > 1 && self.unread_of_both(fd).is_some_and(|unread| unread >= u64::from(wanted))
    }

    /// Looking is worth its time before a thread sleeps for this connection, which is the kernel's: whether it pays.
    #[inline]
    pub(crate) fn polled(&self) -> Option<&Payoff> {
        self.is_polled.load(Ordering::Relaxed).then_some(&self.payoff)
    }

    /// The stream, from when it is there.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.stream.get()
    }

    /// The stream's descriptor that turns readable when something changed since the stream was last asked for its
    /// readiness: for a thread that does not follow the session itself. It is asked of the stream once: asking makes it
    /// readable, and a wait would end at once. It is to be asked for before the last look.
    pub(crate) fn ready_fd(&self) -> Option<RawFd> {
        let known = self.ready_fd.load(Ordering::Acquire);
        if known >= 0 {
            return Some(known);
        }
        let fd = self.stream()?.ready_fd().ok()?.as_raw_fd();
        self.ready_fd.store(fd, Ordering::Release);
        Some(fd)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn read_part(&self) -> ReadPart {
        if self.is_lost() {
            ReadPart::Lost
        } else if !self.readers.is_closed() {
            ReadPart::Kernel
        } else if self.is_tail.load(Ordering::Acquire) {
            ReadPart::Tail
        } else if self.reads_stream.load(Ordering::Acquire) {
            ReadPart::Stream
        } else {
            ReadPart::Both
        }
    }

    /// Whether what is written goes to the stream.
    #[inline]
    pub(crate) fn writes_stream(&self) -> bool {
        self.writers.is_closed()
    }

    /// The program waits for it in this epoll set, by this descriptor.
    pub(crate) fn add_set(&self, set: Weak<dyn Watcher>, fd: c_int) {
        self.look_early(fd);
        let mut sets = lock(&self.sets.0);
        sets.retain(|(known, of)| known.strong_count() > 0 && !(known.ptr_eq(&set) && *of == fd));
        sets.push((set, fd));
    }

    /// The program's call of the kernel, in which handlers run at once and may not return.
    fn in_kernel(&self, passed: Option<Side>, original: &mut dyn FnMut() -> isize) -> isize {
        /// # Safety
        ///
        /// The connection is one that a call had, and left without giving it back.
        unsafe fn give_back(connection: *const Connection, passed: Option<Side>) {
            // SAFETY: the caller's promise: a call counts its connection once.
            let connection = unsafe { Arc::from_raw(connection) };
            match passed {
                Some(Side::Read) => connection.readers.leave(),
                Some(Side::Write) => connection.writers.leave(),
                None => {}
            }
        }
        let release: unsafe fn(*const std::ffi::c_void) = match passed {
            // SAFETY: as `give_back`.
            Some(Side::Read) => |what| unsafe { give_back(what.cast(), Some(Side::Read)) },
            // SAFETY: as `give_back`.
            Some(Side::Write) => |what| unsafe { give_back(what.cast(), Some(Side::Write)) },
            // SAFETY: as `give_back`.
            None => |what| unsafe { give_back(what.cast(), None) },
        };
        if crate::inside::is_inside() {
            return original();
        }
        // SAFETY: the calls of the program have the connection from the table, which counts it for them.
        let call = unsafe { hold::Call::new(std::ptr::from_ref(self).cast(), release) };
        hold::in_kernel(call, original)
    }

    /// Makes every thread that waits for it look again.
    fn tell_all(&self) {
        let _inside = crate::inside::enter();
        self.sets.tell();
        if self.ready_fd.load(Ordering::Acquire) >= 0
            && let Some(stream) = self.stream()
        {
            let _ = stream.ready_fd();
        }
        crate::desk::sessions().iter().for_each(raas::elsewhere::kick);
    }

    /// Bytes are lost: the connection ends by a reset at the other end, whoever closes it last. A stream that ends is
    /// the end only where TCP ends in order too.
    pub(crate) fn spoil(&self, fd: c_int) {
        let code = crate::errno::get();
        self.owes_end.store(false, Ordering::Release);
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        let len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: the option is of this length and lives through the call.
        unsafe {
            crate::real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const at_once).cast(), len);
        }
        crate::errno::set(code);
    }

    /// The descriptor goes to another process or program. False: too late, its bytes there are lost.
    pub(crate) fn hand_over(&self, fd: c_int) -> bool {
        if !self.go_back(fd) {
            say::HANDED.say("a connection could not go back to kernel TCP, and was handed to another program");
            self.spoil(fd);
            return false;
        }
        true
    }

    /// Bytes that can be read without waiting, for `FIONREAD`. None: the kernel knows.
    pub(crate) fn unread(&self) -> Option<u64> {
        (self.read_part() == ReadPart::Stream).then(|| self.stream().and_then(|s| s.unread_bytes().ok()).unwrap_or(0))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _inside = crate::inside::enter();
        // A stream that is dropped with unread bytes is reset, and what the other end said before its bytes is none of
        // the program's.
        self.hear_last_words();
        lock(&self.upgrade).forget();
    }
}
