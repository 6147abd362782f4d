//! An epoll set that has TCP sockets of the program.
//!
//! Owns what the program asked for, and what the kernel's set has of it. While a connection is the kernel's, so is its
//! entry, and it costs nothing here. A connection with a stream is *linked*: its events come from here alone. What the
//! kernel still has to say of it comes as an entry of the library's, which the program never sees.
//!
//! Linked connections that were used lately are *hot*: each wait looks at their rings, without a system call and without
//! a word to the other end. A thread that sleeps announces that for all of them, and those that stay still are hot no
//! more: they come back when they are told of. So a wait costs what the busy connections cost, however many there are.
//!
//! It must never lose an edge; one too many does no harm. While a thread sleeps, every linked connection is announced,
//! or in the hands of a thread that is awake.

mod by_fd;
mod entry;
mod looking;
mod sharing;
mod sleeping;

pub(crate) use sleeping::Asleep;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};
use raas::elsewhere::SLEEP_MAX;
use shm::ReadyFd;

use crate::connection::{Connection, Watcher, lock};
use crate::polled::Payoff;
use crate::spin::{self, Look};
use crate::{errno, owner, real};
use by_fd::ByFd;
use entry::Registered;
use looking::Looking;

/// Between looks at whether threads have left.
const PAUSE: Duration = Duration::from_millis(1);
/// Connections that are hot at a time, as far as they are not ready.
const HOT_MAX: usize = 256;
/// A wait that finds events of streams asks the kernel too if nobody did for so long: other descriptors are told as late
/// as that, beside streams that are always ready.
const UNASKED_NS: u64 = 50_000;
/// Connections whose upgrade is under way and that each wait looks at; where there are more, one of so many does.
const UNSETTLED_MAX: usize = 32;

/// The upper half of the data of the library's own entries. Pointers never begin so, and programs' numbers hardly.
const TAG: u64 = 0xa75d_52a5 << 32;
const TAG_MASK: u64 = 0xffff_ffff << 32;
/// The lower half: a descriptor, or one of these.
const TAG_BELL: u64 = TAG | 0xffff_ffff;
const TAG_SESSION: u64 = TAG | 1 << 31;

/// What the library has in the set.
#[derive(Debug, Default)]
struct State {
    registered: ByFd<Registered>,
    hot: Vec<c_int>,
    /// Connections of which it is not known whether they will be upgraded.
    unsettled: Vec<c_int>,
    /// Sets within this one, and the data of their entries.
    inner: BTreeMap<c_int, (Weak<EpollSet>, u64)>,
    /// The descriptors of sessions in the kernel's set, and whether they are watched there.
    sessions: sleeping::Sessions,
}

/// Events that were found, so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The kernel's are not among them.
    OfStreams(usize),
    OfKernel(usize),
}

impl Found {
    fn streams(count: usize) -> Self {
        if count == 0 { Self::Nothing } else { Self::OfStreams(count) }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct EpollSet {
    /// One of the program's descriptors of it: another one when that is closed.
    fd: AtomicI32,
    state: Mutex<State>,
    /// Linked connections.
    linked: AtomicUsize,
    /// Connections of which something was told, by descriptor.
    told: Mutex<BTreeSet<c_int>>,
    has_told: AtomicBool,
    /// Readable when something was told while a thread slept; made when one first sleeps.
    bell: OnceLock<ReadyFd>,
    /// Threads that sleep for this set, or are about to.
    sleepers: AtomicUsize,
    /// Those of them that wait for this very set, and not for one that it is in.
    own_sleepers: AtomicUsize,
    /// When the kernel was asked, in nanoseconds since the set was made.
    asked_at: AtomicU64,
    made_at: Instant,
    /// Looks, of which some ask every hot connection.
    looks: AtomicU32,
    has_one_shot: AtomicBool,
    has_inner: AtomicBool,
    /// It has, or had, connections of the kernel's for which looking may be worth its time: whether it pays.
    has_polled: AtomicBool,
    payoff: Payoff,
    /// It may have connections of the parent's that are over RaaS there.
    has_lost: AtomicBool,
}

impl Watcher for EpollSet {
    fn note_linked(&self, fd: c_int) {
        {
            let mut state = lock(&self.state);
            if let Some(entry) = state.registered.get_mut(&fd) {
                self.link(fd, entry);
            }
        }
        self.note_told(fd);
    }

    fn note_told(&self, fd: c_int) {
        lock(&self.told).insert(fd);
        self.has_told.store(true, Ordering::SeqCst);
        // PAIRS WITH the count in `Asleep::new`: that thread sees what was told, or is seen here.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    fn note_back(&self, fd: c_int) {
        // Held, maybe by this thread: the next look sees it.
        let Ok(mut state) = self.state.try_lock() else { return };
        let State { registered, hot, .. } = &mut *state;
        let Some(entry) = registered.get_mut(&fd).filter(|entry| entry.is_linked) else { return };
        if entry.connection.upgrade().is_some_and(|connection| connection.is_the_kernels()) && self.unlink(fd, entry) {
            hot.retain(|hot| *hot != fd);
        }
    }
}

impl EpollSet {
    pub(crate) fn new(fd: c_int) -> Self {
        Self {
            fd: AtomicI32::new(fd),
            state: Mutex::default(),
            linked: AtomicUsize::new(0),
            told: Mutex::default(),
            has_told: AtomicBool::new(false),
            bell: OnceLock::new(),
            sleepers: AtomicUsize::new(0),
            own_sleepers: AtomicUsize::new(0),
            asked_at: AtomicU64::new(0),
            made_at: Instant::now(),
            looks: AtomicU32::new(0),
            has_one_shot: AtomicBool::new(false),
            has_inner: AtomicBool::new(false),
            has_polled: AtomicBool::new(false),
            payoff: Payoff::default(),
            has_lost: AtomicBool::new(false),
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Acquire)
    }

    /// The program closes `closing`: from now on the set is asked by `other`.
    pub(crate) fn use_other(&self, closing: c_int, other: c_int) {
        // Where it is asked by another one already nothing changes.
        let _before = self.fd.compare_exchange(closing, other, Ordering::AcqRel, Ordering::Acquire);
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.signal();
        }
    }

    // ---- what the program asks for

    /// As `epoll_ctl` with a TCP socket.
    pub(crate) fn control(
        self: &Arc<Self>,
        what: c_int,
        fd: c_int,
        connection: &Arc<Connection>,
        event: *mut epoll_event,
    ) -> c_int {
        match what {
            libc::EPOLL_CTL_DEL => return self.remove(fd, event),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if !event.is_null() => {}
            // SAFETY: the program's own arguments.
            _ => return unsafe { real::epoll_ctl(self.fd(), what, fd, event) },
        }
        // Who has it in a set waits for it, and others may wait in the same set: a parent and its children share it.
        connection.regain();
        // SAFETY: the program gave a pointer to its event.
        let asked = unsafe { event.read_unaligned() };
        let mut state = lock(&self.state);
        let known = state.registered.get_mut(&fd).filter(|entry| entry.is_of(connection) && entry.is_linked);
        if let Some(entry) = known {
            let was_exclusive = entry.events & libc::EPOLLEXCLUSIVE as u32 != 0;
            if what == libc::EPOLL_CTL_ADD {
                return errno::fail(libc::EEXIST) as c_int;
            }
            if was_exclusive || asked.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                return errno::fail(libc::EINVAL) as c_int;
            }
            entry.change(asked);
            self.note_kind(asked.events);
            self.update_kernel(fd, entry, connection, true);
        } else {
            let mut entry = Registered::new(connection, asked);
            let is_plain = what == libc::EPOLL_CTL_ADD && !state.registered.contains_key(&fd);
            if is_plain && entry.is_the_streams(connection) {
                // The kernel would forget it at once.
                entry.of_kernel = None;
            } else {
                // SAFETY: as above. The kernel decides what is wrong with it.
                let result = unsafe { real::epoll_ctl(self.fd(), what, fd, event) };
                if result < 0 {
                    return result;
                }
            }
            self.note_kind(asked.events);
            let set: Weak<Self> = Arc::downgrade(self);
            connection.add_set(set, fd);
            self.link(fd, &mut entry);
            if let Some(before) = state.registered.insert(fd, entry) {
                self.count_out(&before);
            }
            if !connection.is_the_kernels() && !state.unsettled.contains(&fd) {
                state.unsettled.push(fd);
            }
            self.note_if_polled(connection);
        }
        drop(state);
        if self.linked.load(Ordering::Acquire) > 0 {
            self.note_told(fd);
        }
        0
    }

    fn note_if_polled(&self, connection: &Connection) {
        if connection.polled().is_some() {
            self.has_polled.store(true, Ordering::Relaxed);
        }
    }

    fn note_kind(&self, events: u32) {
        if events & libc::EPOLLONESHOT as u32 != 0 {
            self.has_one_shot.store(true, Ordering::Relaxed);
        }
    }

    /// A set within this one: what its streams have to say shows in its descriptor.
    pub(crate) fn add_inner(&self, fd: c_int, inner: &Arc<Self>, data: u64) {
        lock(&self.state).inner.insert(fd, (Arc::downgrade(inner), data));
        self.has_inner.store(true, Ordering::Release);
    }

    fn count_out(&self, entry: &Registered) {
        if entry.is_linked {
            self.linked.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn remove(&self, fd: c_int, event: *mut epoll_event) -> c_int {
        let before = {
            let mut state = lock(&self.state);
            state.hot.retain(|hot| *hot != fd);
            state.unsettled.retain(|one| *one != fd);
            state.registered.remove(&fd)
        };
        if let Some(before) = &before {
            self.count_out(before);
        }
        if before.is_some_and(|before| before.of_kernel.is_none()) {
            return 0;
        }
        // SAFETY: the program's own arguments.
        unsafe { real::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, event) }
    }

    /// From now on events of this connection come from here.
    fn link(&self, fd: c_int, entry: &mut Registered) {
        let Some(connection) = entry.connection.upgrade() else { return };
        if entry.is_linked || connection.stream().is_none() {
            return;
        }
        entry.is_linked = true;
        self.linked.fetch_add(1, Ordering::AcqRel);
        self.update_kernel(fd, entry, &connection, true);
    }

    /// Leaves to the kernel what the connection leaves to it, as an entry of the library's. `anew`: also if nothing
    /// changed, which arms it again.
    fn update_kernel(&self, fd: c_int, entry: &mut Registered, connection: &Connection, anew: bool) {
        let wanted = entry.kernels_part(connection);
        if wanted == entry.of_kernel && !anew {
            return;
        }
        let mut event = epoll_event { events: wanted.unwrap_or(0), u64: TAG | u64::from(fd.unsigned_abs()) };
        let is_exclusive = entry.of_kernel.is_some_and(|bits| bits & libc::EPOLLEXCLUSIVE as u32 != 0);
        let calls: &[c_int] = match (entry.of_kernel, wanted) {
            (None, None) => &[],
            (Some(_), None) => &[libc::EPOLL_CTL_DEL],
            (None, Some(_)) => &[libc::EPOLL_CTL_ADD],
            // The kernel changes no exclusive entry.
            (Some(_), Some(_)) if is_exclusive => &[libc::EPOLL_CTL_DEL, libc::EPOLL_CTL_ADD],
            (Some(_), Some(_)) => &[libc::EPOLL_CTL_MOD],
        };
        for what in calls {
            // SAFETY: the event lives through the call.
            unsafe { real::epoll_ctl(self.fd(), *what, fd, &raw mut event) };
        }
        entry.of_kernel = wanted;
    }

    /// All its connections are on TCP, and the library is to make no call any more: the kernel's set becomes what the
    /// program asked for.
    pub(crate) fn leave_to_kernel(&self) {
        let mut state = lock(&self.state);
        let State { registered, .. } = &mut *state;
        for (fd, entry) in registered.iter_mut().filter(|(_, entry)| entry.is_linked) {
            // A one-shot entry whose event was told waits for the program to arm it.
            let events = if entry.is_armed { entry.events } else { entry.events & libc::EPOLLONESHOT as u32 };
            if entry.of_kernel.is_some() {
                self.control_kernel(libc::EPOLL_CTL_DEL, *fd, 0, 0);
            }
            self.control_kernel(libc::EPOLL_CTL_ADD, *fd, events, entry.data);
            (entry.is_linked, entry.of_kernel) = (false, Some(events));
        }
        drop(state);
        // Who sleeps goes on in the kernel.
        let until = Instant::now() + SLEEP_MAX;
        while self.sleepers.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            self.ring();
            std::thread::sleep(PAUSE);
        }
        self.leave_descriptors_of_library();
    }

    // ---- waiting

    /// As `epoll_pwait`; no timeout waits as long as it takes. `room` is not empty.
    pub(crate) fn wait(&self, room: &mut [epoll_event], timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        let deadline = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
        let mut left = timeout;
        let mut has_spun = false;
        self.regain();
        loop {
            if owner::is_in_sandbox() {
                // The set is the kernel's alone. What has passed of the time is not counted.
                return self.wait_in_kernel(room, timeout, mask);
            }
            self.prepare_inner();
            let count = self.look(room, Looking::ForWait);
            let may_block = count == 0 && left.is_none_or(|left| !left.is_zero());
            if !may_block {
                return self.finish(room, count, mask);
            }
            let has_linked = self.linked.load(Ordering::Acquire) > 0;
            if (has_linked || self.has_polled.load(Ordering::Relaxed)) && !has_spun {
                has_spun = true;
                match if has_linked { self.spin(room) } else { self.spin_on_kernel(room) } {
                    Ok(Found::Nothing) => {}
                    Ok(Found::OfStreams(count)) => return self.finish(room, count, std::ptr::null()),
                    Ok(Found::OfKernel(count)) => return self.leave(count),
                    Err(()) => return -1,
                }
            }
            match self.sleep(room, left, mask) {
                Ok(Found::Nothing) => {}
                Ok(Found::OfStreams(count)) => return self.finish(room, count, std::ptr::null()),
                Ok(Found::OfKernel(count)) => return self.leave(count),
                Err(()) => return -1,
            }
            left = match deadline {
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => timeout,
            };
        }
    }

    /// The call ends with events of streams, and with the kernel's.
    fn finish(&self, room: &mut [epoll_event], mut count: usize, mask: *const sigset_t) -> c_int {
        let is_due = count == 0 || self.now().saturating_sub(self.asked_at.load(Ordering::Relaxed)) > UNASKED_NS;
        if is_due && count < room.len() {
            let mask = if count == 0 { mask } else { std::ptr::null() };
            match self.ask_kernel(&mut room[count..], Some(Duration::ZERO), mask) {
                Ok(asked) => count += asked.found,
                Err(()) if count == 0 => return -1,
                Err(()) => {}
            }
            if count == 0 {
                count = self.look(room, Looking::ForWait);
            }
        }
        self.leave(count)
    }

    fn leave(&self, count: usize) -> c_int {
        self.leave_to_others();
        c_int::try_from(count).unwrap_or(c_int::MAX)
    }

    /// Time since the set was made, in nanoseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.made_at.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Looks for a while.
    fn spin(&self, room: &mut [epoll_event]) -> Result<Found, ()> {
        // The sleep asks the kernel, and a core that is wanted is not for looking twice.
        if spin::is_crowded() {
            return Ok(Found::Nothing);
        }
        let mut result = Ok(Found::Nothing);
        spin::until(&mut |look| {
            if look == Look::All {
                result = self.ask_kernel(room, Some(Duration::ZERO), std::ptr::null()).map(|asked| asked.found());
            }
            if result == Ok(Found::Nothing) {
                result = Ok(Found::streams(self.look(room, Looking::InPassing)));
            }
            result != Ok(Found::Nothing)
        });
        result
    }

    /// The same where all connections are the kernel's.
    fn spin_on_kernel(&self, room: &mut [epoll_event]) -> Result<Found, ()> {
        let mut result = Ok(Found::Nothing);
        self.payoff.look(&mut || {
            result = self.ask_kernel(room, Some(Duration::ZERO), std::ptr::null()).map(|asked| asked.found());
            result != Ok(Found::Nothing)
        });
        result
    }

    /// Takes what was told: those connections are hot.
    fn take_told(&self) {
        if !self.has_told.swap(false, Ordering::SeqCst) {
            return;
        }
        let told = std::mem::take(&mut *lock(&self.told));
        let mut state = lock(&self.state);
        let State { registered, hot, .. } = &mut *state;
        for fd in told {
            let Some(entry) = registered.get_mut(&fd).filter(|entry| entry.is_linked) else { continue };
            entry.begin_turn();
            if !entry.is_hot {
                entry.is_hot = true;
                hot.push(fd);
            }
        }
    }

    /// Does what can be done for connections whose upgrade is under way.
    fn pump_unsettled(&self) -> bool {
        let all = {
            let mut state = lock(&self.state);
            if state.unsettled.is_empty() {
                return false;
            }
            let count = state.unsettled.len().min(UNSETTLED_MAX);
            state.unsettled.rotate_left(count - 1);
            let State { registered, unsettled, .. } = &*state;
            let of = |fd: &c_int| Some((*fd, registered.get(fd)?.connection.upgrade()?));
            unsettled.iter().take(count).filter_map(of).collect::<Vec<_>>()
        };
        // Without the lock: a connection that goes on here may be linked in this very set.
        all.iter().for_each(|(fd, connection)| connection.pump(*fd));
        let mut state = lock(&self.state);
        let State { registered, unsettled, .. } = &mut *state;
        unsettled.retain(|fd| {
            let Some(entry) = registered.get(fd) else { return false };
            let is_unsettled = entry.is_unsettled();
            if !is_unsettled && let Some(connection) = entry.connection.upgrade() {
                // Also one that its own reads have settled, and that this call did not look at.
                self.note_if_polled(&connection);
            }
            is_unsettled
        });
        all.iter().any(|(_, connection)| connection.is_unsettled())
    }
}
