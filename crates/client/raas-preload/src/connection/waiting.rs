//! Waiting for one connection in a call that blocks.
//!
//! Decides what is watched. It must hold no lock while it waits, and must end when the program's signal handlers are to
//! interrupt calls.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raas::Readiness;
use raas::elsewhere::SLEEP_MAX;

use super::{Connection, ReadPart};
use crate::sleep::Sleep;
use crate::{desk, errno, hold, inside, real};

/// Between looks at threads that leave.
const PAUSE: Duration = Duration::from_millis(1);

/// When a blocking call gives up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until(Option<Instant>);

impl Until {
    pub(super) fn at(time: Instant) -> Self {
        Self(Some(time))
    }

    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}

/// What a call that blocks waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    pub(super) is_read: bool,
    /// Whether the stream can say something; one that has ended would say so again and again.
    pub(super) stream: bool,
    /// The kernel's socket, if it is watched too; else negative.
    pub(super) fd: c_int,
}

impl Connection {
    /// The end of a read or write that begins now (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    pub(super) fn until(&self, is_read: bool) -> Until {
        let micros = if is_read { &self.read_timeout } else { &self.write_timeout }.load(Ordering::Relaxed);
        Until((micros > 0).then(|| Instant::now() + Duration::from_micros(micros)))
    }

    /// Waits until something may have changed. An error is the code that the call fails with.
    pub(super) fn wait(&self, awaited: Awaited, until: Until) -> Result<(), c_int> {
        let waits = Waits::new(self, awaited.is_read, !awaited.is_read);
        let part = self.read_part();
        let sessions = if awaited.stream { desk::sessions() } else { Vec::new() };
        let mut sleep = Sleep::new(&sessions);
        let follows_all = sleep.follows_all();
        let told_by =
            if awaited.stream && !follows_all { Some(self.ready_fd().ok_or(libc::ECONNRESET)?) } else { None };
        sleep.announce();
        if awaited.stream {
            // Afterwards a change is told.
            let found = self.ask_stream(Some(&waits), false).unwrap_or(Readiness::ERR);
            let wanted = if awaited.is_read { Readiness::READ } else { Readiness::WRITE };
            if found.contains(wanted) || found.contains(Readiness::ERR) {
                return Ok(());
            }
        }
        if self.has_news(awaited.is_read, part) {
            return Ok(());
        }
        let left = match until.0 {
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(libc::EAGAIN);
                }
                Some(left)
            }
            None => None,
        };
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![entry(awaited.fd)];
        if awaited.stream {
            fds.extend(sleep.fds().chain(told_by).map(entry));
        }
        let left = timespec(sleep.bound(left));
        let own = hold::sleep_mask(null());
        let mask = hold::or_programs(own.as_ref(), null());
        // SAFETY: the entries of `fds`, `left` and the mask live through the call.
        let result = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const left, mask) };
        sleep.hear(|fd| result > 0 && fds.iter().any(|entry| entry.fd == fd && entry.revents != 0));
        if result >= 0 {
            return Ok(());
        }
        match errno::get() {
            // As the kernel: a call that has a time limit is not begun again.
            libc::EINTR if until.0.is_none() => Err(hold::RESTART),
            code => Err(code),
        }
    }
}

impl Connection {
    /// Waits until the stream may have room, or something else ends the wait.
    pub(crate) fn wait_for_room(&self) {
        if self.wait(Awaited { is_read: false, stream: true, fd: -1 }, Until(None)).is_err() {
            hold::let_run_within();
        }
    }

    /// It is on TCP, and the library is to make no call any more: threads that wait for it and its stream are woken, and
    /// go on in the kernel. Returns when they do, or after a while.
    pub(crate) fn have_waits_end(&self) {
        let waits = || self.readers_waiting.load(Ordering::SeqCst) + self.writers_waiting.load(Ordering::SeqCst);
        let until = Instant::now() + SLEEP_MAX;
        while waits() > 0 && Instant::now() < until {
            self.tell_all();
            std::thread::sleep(PAUSE);
        }
    }

    /// What the stream can do, and afterwards a change is told. The question makes its descriptor unreadable: others
    /// that wait there for what was found are told again. `more`: bytes behind those that are there are a change too.
    pub(super) fn ask_stream(&self, own: Option<&Waits<'_>>, more: bool) -> Option<Readiness> {
        let _inside = inside::enter();
        let stream = self.stream()?;
        let found = if more { stream.readiness_and_more() } else { stream.readiness() }.unwrap_or(Readiness::ERR);
        let own = own.map_or((0, 0), |waits| (u32::from(waits.reads), u32::from(waits.writes)));
        let others_read = self.readers_waiting.load(Ordering::SeqCst) > own.0;
        let others_write = self.writers_waiting.load(Ordering::SeqCst) > own.1;
        let is_over = found.contains(Readiness::ERR);
        if others_read && (is_over || found.contains(Readiness::READ))
            || others_write && (is_over || found.contains(Readiness::WRITE))
        {
            let _ = stream.ready_fd();
        }
        Some(found)
    }

    /// What the stream can do, without a word to anybody.
    pub(super) fn glance_at_stream(&self) -> Option<Readiness> {
        let _inside = inside::enter();
        Some(self.stream()?.glance().unwrap_or(Readiness::ERR))
    }

    /// Whether the other end or another thread has changed what a reader waits for since it looked.
    fn has_news(&self, is_read: bool, part: ReadPart) -> bool {
        is_read && (self.is_read_shut.load(Ordering::Acquire) || self.read_part() != part)
    }
}

/// A thread waits for a connection until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits<'a> {
    connection: &'a Connection,
    reads: bool,
    writes: bool,
}

impl<'a> Waits<'a> {
    /// To be made before the thread looks for the last time.
    pub(crate) fn new(connection: &'a Connection, reads: bool, writes: bool) -> Self {
        connection.readers_waiting.fetch_add(u32::from(reads), Ordering::SeqCst);
        connection.writers_waiting.fetch_add(u32::from(writes), Ordering::SeqCst);
        Self { connection, reads, writes }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.connection.readers_waiting.fetch_sub(u32::from(self.reads), Ordering::SeqCst);
        self.connection.writers_waiting.fetch_sub(u32::from(self.writes), Ordering::SeqCst);
    }
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
