//! How a thread sleeps for a set: what it announces, what of the kernel's set is its own, what the kernel said.
//!
//! Owns the library's entries in the kernel's set. It must never show them to the program.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{epoll_event, sigset_t};
use shm::ReadyFd;

use super::looking::{Hot, Looked, Looking};
use super::{EpollSet, Found, State, TAG, TAG_BELL, TAG_MASK, TAG_SESSION};
use crate::connection::lock;
use crate::sleep::Sleep;
use crate::{desk, hold, real};

/// Looks at a set of which something is told again and again, as while a connection leaves TCP.
const TOLD_AGAIN_MAX: u32 = 8;

/// What the kernel said.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Events of the program.
    pub(super) found: usize,
    /// Descriptors of sessions that are readable.
    sessions: Vec<RawFd>,
    is_told: bool,
}

impl Asked {
    pub(super) fn found(&self) -> Found {
        if self.found == 0 { Found::Nothing } else { Found::OfKernel(self.found) }
    }
}

/// Threads sleep for a set, and for those within it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Asleep(Vec<Arc<EpollSet>>);

impl Asleep {
    pub(crate) fn new(set: &Arc<EpollSet>) -> Self {
        let mut all = set.inner();
        all.push(Arc::clone(set));
        for one in &all {
            one.make_bell();
            one.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        Self(all)
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        for one in &self.0 {
            one.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A thread sleeps for this set alone until this is dropped.
struct Counted<'a>(&'a EpollSet, Vec<Arc<EpollSet>>);

impl<'a> Counted<'a> {
    fn new(set: &'a EpollSet) -> Self {
        let inner = set.inner();
        set.make_bell();
        // PAIRS WITH the look at the count in `note_told`.
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        set.own_sleepers.fetch_add(1, Ordering::SeqCst);
        for one in &inner {
            one.make_bell();
            one.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        Self(set, inner)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.0.own_sleepers.fetch_sub(1, Ordering::SeqCst);
        for one in &self.1 {
            one.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl EpollSet {
    fn inner(&self) -> Vec<Arc<Self>> {
        if !self.has_inner.load(Ordering::Acquire) {
            return Vec::new();
        }
        lock(&self.state).inner.values().filter_map(|(inner, _)| inner.upgrade()).collect()
    }

    /// Whether an event is that of a set within this one, which was told something that the program does not want.
    fn is_for_nothing(&self, data: u64) -> bool {
        if !self.has_inner.load(Ordering::Acquire) {
            return false;
        }
        let all: Vec<_> = {
            let state = lock(&self.state);
            state.inner.values().filter(|(_, of)| *of == data).filter_map(|(inner, _)| inner.upgrade()).collect()
        };
        !all.is_empty() && all.iter().all(|inner| inner.is_still())
    }

    /// Whether the set's descriptor is readable for what was told of streams alone, and they have nothing to report. It
    /// is unreadable then.
    pub(crate) fn is_still(&self) -> bool {
        for _ in 0..TOLD_AGAIN_MAX {
            if self.prepare_outside() {
                return false;
            }
            let bell = self.bell.get().map_or(-1, |bell| bell.as_fd().as_raw_fd());
            let mut both = [self.fd(), bell].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: the entries live through the call.
            let found = unsafe { real::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, 0) };
            let [of_set, of_bell] = both.map(|one| one.revents != 0);
            if found <= 0 || !of_set {
                return true;
            }
            if !of_bell {
                return false;
            }
        }
        false
    }

    /// A descriptor in the kernel's set that is readable when something was told.
    fn make_bell(&self) {
        if self.bell.get().is_some() {
            return;
        }
        let Ok(made) = ReadyFd::new() else { return };
        let bell = self.bell.get_or_init(|| made);
        // By another thread too: the second time it is there already.
        self.control_kernel(libc::EPOLL_CTL_ADD, bell.as_fd().as_raw_fd(), libc::EPOLLIN as u32, TAG_BELL);
    }

    /// Takes the bell and the descriptors of sessions out of the kernel's set.
    pub(super) fn leave_descriptors_of_library(&self) {
        if let Some(bell) = self.bell.get() {
            self.control_kernel(libc::EPOLL_CTL_DEL, bell.as_fd().as_raw_fd(), 0, 0);
        }
        for (fd, _) in std::mem::take(&mut lock(&self.state).sessions) {
            self.control_kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    pub(super) fn control_kernel(&self, what: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: the event lives through the call.
        unsafe { real::epoll_ctl(self.fd(), what, fd, &raw mut event) == 0 }
    }

    /// Has the kernel's set watch these descriptors of sessions, and no others.
    fn watch_sessions(&self, followed: &[RawFd]) {
        let mut state = lock(&self.state);
        let State { sessions, .. } = &mut *state;
        for (fd, is_watched) in sessions.iter_mut().filter(|(fd, is)| **is && !followed.contains(fd)) {
            *is_watched = false;
            self.control_kernel(libc::EPOLL_CTL_MOD, *fd, 0, TAG_SESSION | u64::from(fd.unsigned_abs()));
        }
        for fd in followed {
            if sessions.get(fd) != Some(&true) {
                let data = TAG_SESSION | u64::from(fd.unsigned_abs());
                let _is_watched = self.control_kernel(libc::EPOLL_CTL_ADD, *fd, libc::EPOLLIN as u32, data)
                    || self.control_kernel(libc::EPOLL_CTL_MOD, *fd, libc::EPOLLIN as u32, data);
                sessions.insert(*fd, true);
            }
        }
    }

    /// Nothing here is told by sessions: news for others would wake the caller again and again. A thread that sleeps for
    /// the set itself may follow them, beside `own` of the caller's.
    fn unwatch_sessions(&self, own: usize) {
        let mut state = lock(&self.state);
        // PAIRS WITH `Counted::new`: who comes later watches them again.
        if self.own_sleepers.load(Ordering::SeqCst) > own {
            return;
        }
        for (fd, is_watched) in state.sessions.iter_mut().filter(|(_, is)| **is) {
            *is_watched = false;
            self.control_kernel(libc::EPOLL_CTL_MOD, *fd, 0, TAG_SESSION | u64::from(fd.unsigned_abs()));
        }
    }

    /// Whether streams have, or may soon have, something to say here.
    fn is_interested(&self) -> bool {
        if self.linked.load(Ordering::Acquire) > 0 || self.has_inner.load(Ordering::Acquire) {
            return true;
        }
        let state = lock(&self.state);
        let State { registered, unsettled, .. } = &*state;
        unsettled.iter().any(|fd| registered.get(fd).is_some_and(super::Registered::is_under_way))
    }

    /// Sleeps until something may have happened: events of the program that were found.
    pub(super) fn sleep(
        &self,
        room: &mut [epoll_event],
        left: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<Found, ()> {
        let counted = Counted::new(self);
        if !self.is_interested() {
            if self.has_told.load(Ordering::SeqCst) {
                return Ok(Found::Nothing);
            }
            self.unwatch_sessions(1);
            return self.ask_kernel(room, left, mask).map(|asked| asked.found());
        }
        let sessions = desk::sessions();
        let mut sleep = Sleep::new(&sessions);
        self.watch_sessions(&sleep.fds().collect::<Vec<_>>());
        sleep.announce();
        self.prepare_inner();
        let count = self.look(room, Looking::BeforeSleep);
        if count > 0 || self.has_told.load(Ordering::SeqCst) {
            return Ok(Found::streams(count));
        }
        let bound = sleep.bound(left);
        let asked = self.ask_kernel_within(room, Some(bound), mask);
        drop(counted);
        if let Ok(asked) = &asked {
            sleep.hear(|fd| asked.sessions.contains(&fd));
            if asked.found == 0 && asked.sessions.is_empty() && !asked.is_told {
                // A descriptor that was closed and made anew is not in the kernel's set any more.
                lock(&self.state).sessions.clear();
            }
        } else {
            sleep.hear(|_| false);
        }
        asked.map(|asked| asked.found())
    }

    /// The kernel's events; no timeout waits as long as it takes. What it says of sessions is heard.
    pub(super) fn ask_kernel(
        &self,
        room: &mut [epoll_event],
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<Asked, ()> {
        let asked = self.ask_kernel_within(room, timeout, mask)?;
        if !asked.sessions.is_empty() {
            let sessions = desk::sessions();
            Sleep::new(&sessions).hear(|fd| asked.sessions.contains(&fd));
        }
        Ok(asked)
    }

    /// As `epoll_pwait`, where the library is out of the way.
    pub(super) fn wait_in_kernel(
        &self,
        room: &mut [epoll_event],
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> c_int {
        let max = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        let millis = in_millis(timeout);
        // SAFETY: `room` has room for `max` events; the mask is the program's own, or none.
        unsafe {
            match mask.is_null() {
                // In this order: a filter may know the one and not the other.
                true => real::epoll_wait(self.fd(), room.as_mut_ptr(), max, millis),
                false => real::epoll_pwait(self.fd(), room.as_mut_ptr(), max, millis, mask),
            }
        }
    }

    /// An error is in `errno`.
    fn ask_kernel_within(
        &self,
        room: &mut [epoll_event],
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<Asked, ()> {
        let max = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        let millis = in_millis(timeout);
        let own = if millis == 0 { None } else { hold::sleep_mask(mask) };
        let mask = hold::or_programs(own.as_ref(), mask);
        // SAFETY: `room` has room for `max` events; the mask is the program's own, or none.
        let found = unsafe { real::epoll_pwait(self.fd(), room.as_mut_ptr(), max, millis, mask) };
        let found = usize::try_from(found).map_err(drop)?;
        self.asked_at.store(self.now(), Ordering::Relaxed);
        let mut asked = Asked::default();
        for n in 0..found {
            let event = room[n];
            if event.u64 & TAG_MASK == TAG {
                self.note_own(event.u64, &mut asked);
                continue;
            }
            if self.is_for_nothing(event.u64) {
                continue;
            }
            if let Some(fd) = self.linked_meanwhile(event) {
                self.note_linked(fd, &mut asked);
                continue;
            }
            self.note_one_shot(event.u64);
            room[asked.found] = event;
            asked.found += 1;
        }
        Ok(asked)
    }

    /// The kernel's set said something of an entry of the library's.
    fn note_own(&self, data: u64, asked: &mut Asked) {
        asked.is_told = true;
        let fd = c_int::try_from(data & !TAG_MASK & !(1 << 31)).unwrap_or(-1);
        if data == TAG_BELL {
            if let Some(bell) = self.bell.get() {
                bell.clear();
            }
        } else if data & TAG_SESSION == TAG_SESSION {
            if lock(&self.state).sessions.contains_key(&fd) {
                asked.sessions.push(fd);
            } else {
                // It is the parent's.
                self.control_kernel(libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
        } else {
            self.note_linked(fd, asked);
        }
    }

    /// The kernel said something of a linked connection: the next look asks what is the program's.
    fn note_linked(&self, fd: c_int, asked: &mut Asked) {
        asked.is_told = true;
        if let Some(entry) = lock(&self.state).registered.get_mut(&fd) {
            entry.note_kernel();
        }
        lock(&self.told).insert(fd);
        self.has_told.store(true, Ordering::SeqCst);
    }

    /// The descriptor of a connection that is linked now, and was not when the kernel had this event for the program:
    /// what came may be the first word of the other end's library, and a read would find nothing.
    fn linked_meanwhile(&self, event: epoll_event) -> Option<c_int> {
        if event.events & libc::EPOLLIN as u32 == 0 {
            return None;
        }
        let (fd, connection) = {
            let state = lock(&self.state);
            let found = |fd: &c_int| Some((*fd, state.registered.get(fd).filter(|one| one.data == event.u64)?));
            let (fd, entry) = state.unsettled.iter().find_map(found)?;
            (fd, entry.connection.upgrade()?)
        };
        // Without the lock: it is linked in this very set.
        connection.pump(fd);
        lock(&self.state).registered.get(&fd).is_some_and(|entry| entry.is_linked).then_some(fd)
    }

    /// The kernel has reported a one-shot entry of the program's: it is over for the stream too.
    fn note_one_shot(&self, data: u64) {
        if !self.has_one_shot.load(Ordering::Relaxed) {
            return;
        }
        for entry in lock(&self.state).registered.values_mut() {
            if entry.data == data && entry.events & libc::EPOLLONESHOT as u32 != 0 {
                entry.is_armed = false;
            }
        }
    }

    // ---- for those who sleep elsewhere

    /// The caller leaves with events. Others that sleep for this set rely on it no more.
    pub(super) fn leave_to_others(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 && self.announce_all() {
            self.ring();
        }
    }

    /// Somebody is about to sleep on the set's descriptor: it is readable if streams have something to report, and will
    /// be when they have. Whether they have.
    pub(crate) fn prepare_outside(&self) -> bool {
        self.prepare_inner();
        self.unwatch_sessions(0);
        let has_events = self.announce_all();
        if has_events {
            self.ring();
        } else if let Some(bell) = self.bell.get() {
            bell.clear();
            // What was told meanwhile.
            if self.has_told.load(Ordering::SeqCst) {
                bell.signal();
            }
        }
        has_events
    }

    /// The same for sets within this one.
    pub(super) fn prepare_inner(&self) {
        for inner in self.inner() {
            inner.make_bell();
            inner.prepare_outside();
        }
    }

    /// Has all hot connections announce changes. Whether one has something to report.
    fn announce_all(&self) -> bool {
        self.take_told();
        self.pump_unsettled();
        let mut has_events = false;
        for one in self.hot(Looking::BeforeSleep) {
            let Looked { hot: Hot { fd, connection, turn, .. }, mut ready, edges, .. } = one.look(true);
            let mut state = lock(&self.state);
            let Some(entry) = state.registered.get_mut(&fd).filter(|entry| entry.is_of(&connection)) else { continue };
            entry.note_announced(turn);
            entry.add_kernels(fd, &connection, &mut ready);
            has_events |= entry.would_report(&ready, edges);
        }
        has_events
    }
}

/// Rounded up, as a wait must not end before its time.
fn in_millis(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |t| c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// Descriptors of sessions in the kernel's set.
pub(super) type Sessions = BTreeMap<c_int, bool>;
