//! Answers to the other end while the program makes no call: the other end of a connection wants it on TCP again, or
//! waits for a word of the switch (docs/use/run.md).
//!
//! Owns one thread of the process, which sleeps until a connection that was upgraded has something on TCP, and looks now
//! and then at those whose upgrade is under way. It must never keep a connection, and never take a byte of the program's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::epoll_event;
use shm::ReadyFd;

use crate::connection::{Connection, PATIENCE, lock};
use crate::desk::SignalsBlocked;
use crate::kernel_tcp::has_bytes_or_end;
use crate::{errno, heirs, hold, inside, owner, real, table, threads};

/// The stack of the thread.
const STACK: usize = 128 << 10;
/// The first look at a connection that has got its stream; each further one comes after twice the time.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Between looks at whether the thread has come to an end with a connection.
const PAUSE: Duration = Duration::from_millis(1);
/// Connections that are known before those that are gone are looked for.
const KNOWN_MIN: usize = 64;
const EVENTS_MAX: usize = 64;
/// The number of the thread's own bell among those of connections.
const BELL: u64 = 0;

/// A connection whose upgrade is under way.
#[derive(Debug)]
struct Young {
    number: u64,
    next: Instant,
    pause: Duration,
}

#[derive(Debug)]
struct Known {
    connections: BTreeMap<u64, Weak<Connection>>,
    young: Vec<Young>,
    /// Those of which each arrival is told, because TCP shows an end.
    edges: BTreeSet<u64>,
    last: u64,
    /// So many are known when the next look for those that are gone is due.
    crowd: usize,
}

#[derive(Debug)]
struct Answers {
    epoll: OwnedFd,
    bell: ReadyFd,
    known: Mutex<Known>,
    /// Held while the thread has a connection.
    work: Mutex<()>,
    is_ending: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

static ANSWERS: raas::PerProcess<OnceLock<Option<Arc<Answers>>>> = raas::PerProcess::new();

/// This connection has its stream. From now on the other end is answered.
pub(crate) fn attend(fd: c_int) {
    if !owner::is_owner() {
        return;
    }
    let _inside = inside::enter();
    let Some(connection) = table::socket(fd) else { return };
    // Without the thread the program's own calls answer.
    if let Some(answers) = ANSWERS.get().get_or_init(Answers::start) {
        answers.attend(&connection);
    }
}

/// The process ends: from now on the thread has no connection, so that each ends where the table drops it. What the
/// thread has in hand takes no longer than it waits for the other end; a signal handler that ends the program may have
/// interrupted what it waits for.
fn stop() {
    let Some(Some(answers)) = ANSWERS.get().get() else { return };
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match answers.work.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            // For good.
            Ok(held) => return std::mem::forget(held),
            Err(TryLockError::Poisoned(held)) => return std::mem::forget(held),
        }
    }
}

/// Ends the thread, which has nothing to do any more.
pub(crate) fn end() {
    let Some(Some(answers)) = ANSWERS.get().get() else { return };
    answers.is_ending.store(true, Ordering::Release);
    answers.bell.signal();
    threads::await_end(lock(&answers.thread).take());
}

/// The program ends: what children may want goes back to TCP, and upgraded connections close in order.
pub(crate) fn end_in_order() {
    if owner::is_in_sandbox() {
        return;
    }
    // For good: what a handler of this thread would write from now on came behind the end.
    std::mem::forget(hold::hold());
    heirs::leave_to_children();
    stop();
    table::close_all();
}

impl Answers {
    fn start() -> Option<Arc<Self>> {
        // SAFETY: the call takes no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: the call made it, and nobody else has it.
        let epoll = (epoll >= 0).then(|| shm::raised(unsafe { OwnedFd::from_raw_fd(epoll) }))?;
        let known = Known {
            connections: BTreeMap::new(),
            young: Vec::new(),
            edges: BTreeSet::new(),
            last: BELL,
            crowd: KNOWN_MIN,
        };
        let answers = Arc::new(Self {
            epoll,
            bell: ReadyFd::new().ok()?,
            known: Mutex::new(known),
            work: Mutex::default(),
            is_ending: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        if !answers.control(libc::EPOLL_CTL_ADD, answers.bell.as_fd().as_raw_fd(), libc::EPOLLIN, BELL) {
            return None;
        }
        let _blocked = SignalsBlocked::new();
        let own = Arc::clone(&answers);
        let thread = std::thread::Builder::new().name("raas-run-answer".to_owned()).stack_size(STACK);
        *lock(&answers.thread) = Some(thread.spawn(move || own.run()).ok()?);
        Some(answers)
    }

    fn control(&self, what: c_int, fd: c_int, events: c_int, number: u64) -> bool {
        let mut event = epoll_event { events: events as u32, u64: number };
        // SAFETY: the event lives through the call.
        unsafe { real::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) == 0 }
    }

    fn attend(&self, connection: &Arc<Connection>) {
        let mut known = lock(&self.known);
        if known.connections.len() >= known.crowd {
            let Known { connections, edges, .. } = &mut *known;
            connections.retain(|_, one| one.strong_count() > 0);
            edges.retain(|number| connections.contains_key(number));
            known.crowd = KNOWN_MIN.max(known.connections.len() * 2);
        }
        known.last += 1;
        let number = known.last;
        known.connections.insert(number, Arc::downgrade(connection));
        let is_asleep = known.young.is_empty();
        known.young.push(Young { number, next: Instant::now() + LOOK, pause: LOOK });
        drop(known);
        if is_asleep {
            self.bell.signal();
        }
    }

    /// The thread. It ends when the program has closed its descriptors.
    fn run(&self) {
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        while !self.is_ending.load(Ordering::Acquire) {
            let next = lock(&self.known).young.iter().map(|young| young.next).min();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            let millis = left.map_or(-1, |left| c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(-1));
            // SAFETY: there is room for so many events.
            let found = unsafe {
                real::epoll_pwait(
                    self.epoll.as_raw_fd(),
                    events.as_mut_ptr(),
                    EVENTS_MAX as c_int,
                    millis,
                    std::ptr::null(),
                )
            };
            let Ok(found) = usize::try_from(found) else {
                if errno::get() == libc::EINTR {
                    continue;
                }
                return;
            };
            for event in &events[..found] {
                match event.u64 {
                    BELL => self.bell.clear(),
                    number => {
                        let _work = lock(&self.work);
                        self.answer(number);
                    }
                }
            }
            self.look_at_young();
        }
    }

    fn connection(&self, number: u64) -> Option<Arc<Connection>> {
        let found = lock(&self.known).connections.get(&number)?.upgrade();
        if found.is_none() {
            lock(&self.known).connections.remove(&number);
        }
        found
    }

    fn look_at_young(&self) {
        let now = Instant::now();
        let due: Vec<u64> = {
            let mut known = lock(&self.known);
            let is_due = |young: &&mut Young| young.next <= now;
            known
                .young
                .iter_mut()
                .filter(is_due)
                .map(|young| {
                    young.pause = LOOK_MAX.min(young.pause * 2);
                    young.next = now + young.pause;
                    young.number
                })
                .collect()
        };
        for number in due {
            let _work = lock(&self.work);
            let is_young = self.connection(number).is_some_and(|connection| {
                connection.drive();
                connection.is_unsettled()
            });
            if !is_young {
                lock(&self.known).young.retain(|young| young.number != number);
                self.answer(number);
            }
        }
    }

    /// Something may be on TCP.
    fn answer(&self, number: u64) {
        let Some(connection) = self.connection(number) else { return };
        let (mut goes_on, mut shows_end) = (false, false);
        if connection.can_hear_word()
            && let Some(fd) = heirs::descriptor(&connection)
        {
            connection.hear_ask_for_program(fd.as_raw_fd());
            shows_end = connection.shows_end(fd.as_raw_fd());
            goes_on = connection.can_hear_word() && (shows_end || !has_bytes_or_end(fd.as_raw_fd()));
        }
        let fd = table::descriptor_of(&connection);
        let is_watched = fd.is_some_and(|fd| goes_on && self.watch(fd, number, shows_end));
        if !is_watched {
            let mut known = lock(&self.known);
            known.connections.remove(&number);
            known.edges.remove(&number);
        }
    }

    /// Has the thread wake up when TCP has something. Where it shows an end already, that is no news: each arrival is.
    /// Words alone arrive there, so the program's bytes never wake the thread.
    fn watch(&self, fd: c_int, number: u64, shows_end: bool) -> bool {
        let events = if shows_end { libc::EPOLLIN | libc::EPOLLET } else { libc::EPOLLIN | libc::EPOLLONESHOT };
        if shows_end && !lock(&self.known).edges.insert(number) {
            return true;
        }
        self.control(libc::EPOLL_CTL_MOD, fd, events, number) || self.control(libc::EPOLL_CTL_ADD, fd, events, number)
    }
}
