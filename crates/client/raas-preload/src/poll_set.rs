//! Waiting for several descriptors, some of which may be streams: under poll and select.
//!
//! It must never block in the kernel for a connection whose stream it does not watch.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{pollfd, sigset_t};

use crate::connection::{Connection, How, Waits, timespec};
use crate::epoll_set::{Asleep, EpollSet};
use crate::sleep::Sleep;
use crate::spin::{self, Look};
use crate::table::{self, Entry};
use crate::{desk, errno, hold, owner, real};

/// What is not the kernel's alone.
enum Ours {
    Socket(Arc<Connection>),
    Epoll(Arc<EpollSet>),
}

/// A set of descriptors that a thread waits for.
struct Wait<'a> {
    fds: &'a mut [pollfd],
    /// Those that are not the kernel's alone, by their places.
    ours: &'a [(usize, Ours)],
    /// What the kernel is to be asked, in the same places; behind them what the library asks it.
    asked: Vec<pollfd>,
    /// Some descriptor has a part of the kernel's.
    asks_kernel: bool,
    /// Some has a stream.
    has_streams: bool,
}

/// The descriptors of a set that are not the kernel's alone, by their places; and a connection of the kernel's for which
/// looking may be worth its time.
fn ours(fds: &[pollfd]) -> (Vec<(usize, Ours)>, Option<Arc<Connection>>) {
    let mut polled = None;
    let entries = fds.iter().enumerate().filter_map(|(n, fd)| Some((n, table::get(fd.fd)?)));
    let kept = entries.filter_map(|(n, entry)| match entry {
        Entry::Socket(connection) if connection.is_the_kernels() => {
            if polled.is_none() && connection.polled().is_some() {
                polled = Some(connection);
            }
            None
        }
        Entry::Socket(connection) => Some((n, Ours::Socket(connection))),
        Entry::Epoll(set) => Some((n, Ours::Epoll(set))),
    });
    (kept.collect(), polled)
}

/// As `ppoll`. None: all of it is the kernel's, which is to be asked.
pub(crate) fn wait(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    // Behind everything that the call has: its handlers run last.
    let _held = hold::hold();
    let (ours, polled) = ours(fds);
    if ours.is_empty() {
        let polled = polled.as_deref().and_then(Connection::polled);
        if let Some(payoff) = polled.filter(|_| timeout.is_none_or(|t| !t.is_zero())) {
            // SAFETY: the entries live through the call.
            let found = payoff.look(&mut || unsafe { real::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) } != 0);
            if !found && hold::has_waiting() {
                // A signal came while this looked: its handler ends the call, as it would end the kernel's.
                errno::set(libc::EINTR);
                return Some(-1);
            }
        }
        return None;
    }
    let deadline = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
    let mut left = timeout;
    let mut wait = Wait { fds, ours: &ours, asked: Vec::new(), asks_kernel: false, has_streams: false };
    let (mut has_spun, mut has_slept) = (false, false);
    loop {
        if owner::is_in_sandbox() {
            // All of it is the kernel's now. What has passed of the time is not counted.
            return None;
        }
        let is_ready = wait.look();
        let may_block = !is_ready && left.is_none_or(|l| !l.is_zero());
        if !may_block || std::mem::take(&mut has_slept) {
            let mask = if may_block { std::ptr::null() } else { mask };
            let result = if wait.asks_kernel { wait.ask_kernel(Duration::ZERO, mask) } else { 0 };
            if result < 0 && !is_ready {
                return Some(result);
            }
            let count = wait.gather();
            if count > 0 || !may_block {
                return Some(count);
            }
        }
        if wait.has_streams && !has_spun {
            has_spun = true;
            match wait.spin() {
                Some(result) => return Some(result),
                None => continue,
            }
        }
        if let Some(result) = wait.sleep(left, mask) {
            return Some(result);
        }
        has_slept = true;
        left = match deadline {
            Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            None => timeout,
        };
    }
}

impl Wait<'_> {
    /// Fills in what streams say, and what the kernel is to be asked. Whether a stream is ready.
    fn look(&mut self) -> bool {
        self.look_at(&[])
    }

    /// `waits`: the thread is about to sleep, and streams announce changes from now on.
    fn look_at(&mut self, waits: &[Option<Waits<'_>>]) -> bool {
        self.asked.clear();
        self.asked.extend_from_slice(self.fds);
        self.asked.iter_mut().chain(&mut *self.fds).for_each(|fd| fd.revents = 0);
        let (mut is_ready, mut whole) = (false, 0);
        self.has_streams = false;
        for (place, (n, one)) in self.ours.iter().enumerate() {
            let fd = &mut self.fds[*n];
            match one {
                Ours::Socket(connection) => {
                    let how = waits.get(place).map_or(How::Glance, |waits| How::Announce(waits.as_ref()));
                    let ready = connection.ready(fd.fd, fd.events, how);
                    fd.revents = ready.now;
                    is_ready |= ready.now != 0;
                    self.asked[*n].events = ready.of_kernel;
                    // Of a connection whose directions are both over the kernel speaks without being asked.
                    let is_mute = ready.of_kernel == 0 && connection.awaits_word();
                    if connection.is_whole() || connection.is_lost() || is_mute {
                        self.asked[*n].fd = -1;
                        whole += 1;
                    }
                    self.has_streams |= connection.stream().is_some();
                }
                Ours::Epoll(set) => {
                    set.prepare_outside();
                }
            }
        }
        self.asks_kernel = whole < self.fds.len();
        is_ready
    }

    /// Looks for a while. Some: how many descriptors have something. None: look again, or sleep.
    fn spin(&mut self) -> Option<c_int> {
        let mut result = None;
        spin::until(&mut |look| {
            if look == Look::All && self.asks_kernel {
                match self.ask_kernel(Duration::ZERO, std::ptr::null()) {
                    0 => {}
                    failed if failed < 0 => result = Some(failed),
                    // What it said may be the libraries' alone, which is no news to the program.
                    _ => result = Some(self.gather()).filter(|count| *count > 0),
                }
            }
            let has_unread = || {
                self.ours.iter().any(|(n, one)| match one {
                    Ours::Socket(c) => {
                        c.stream().is_some() && c.ready(self.fds[*n].fd, self.fds[*n].events, How::Glance).now != 0
                    }
                    Ours::Epoll(_) => false,
                })
            };
            result.is_some() || has_unread()
        });
        result
    }

    /// Sleeps until something may have happened. Some: the result of the call.
    fn sleep(&mut self, left: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
        let sessions = desk::sessions();
        let mut sleep = Sleep::new(&sessions);
        let ours = self.ours;
        // Who does not follow the sessions is told by a descriptor of each stream.
        let told_by: Vec<Option<RawFd>> = ours
            .iter()
            .map(|(_, one)| match one {
                Ours::Socket(connection) if !sleep.follows_all() => connection.ready_fd(),
                _ => None,
            })
            .collect();
        let waits: Vec<_> = ours
            .iter()
            .map(|(n, one)| match one {
                Ours::Socket(connection) => Some(connection.waits(self.fds[*n].events)),
                Ours::Epoll(_) => None,
            })
            .collect();
        let _asleep: Vec<_> = ours
            .iter()
            .filter_map(|(_, one)| match one {
                Ours::Epoll(set) => Some(Asleep::new(set)),
                Ours::Socket(_) => None,
            })
            .collect();
        sleep.announce();
        if self.look_at(&waits) {
            return None;
        }
        // Another thread may have upgraded one of them just now: that is seen by the next look.
        let inside = enter(ours)?;
        let entry = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
        for ((n, one), told_by) in ours.iter().zip(&told_by) {
            // A stream that has ended stays ready: TCP's end is what is awaited then.
            let is_read_out = matches!(one, Ours::Socket(c) if c.is_read_out(self.fds[*n].events));
            self.asked.extend(told_by.filter(|_| !is_read_out).map(entry));
        }
        self.asked.extend(sleep.fds().map(entry));
        let result = self.ask_kernel(sleep.bound(left), mask);
        drop(inside);
        let asked = &self.asked;
        sleep.hear(|fd| result > 0 && asked.iter().any(|entry| entry.fd == fd && entry.revents != 0));
        if result < 0 {
            return Some(result);
        }
        // What streams say is seen by the next look, together with this.
        None
    }

    fn ask_kernel(&mut self, timeout: Duration, mask: *const sigset_t) -> c_int {
        let time = timespec(timeout);
        let own = if timeout.is_zero() { None } else { hold::sleep_mask(mask) };
        let mask = hold::or_programs(own.as_ref(), mask);
        // SAFETY: the entries and the time live through the call; the mask is the program's own, or none.
        unsafe { real::ppoll(self.asked.as_mut_ptr(), self.asked.len() as libc::nfds_t, &raw const time, mask) }
    }

    /// Adds what the kernel said; how many descriptors have something.
    fn gather(&mut self) -> c_int {
        for (n, one) in self.ours {
            let asked = &mut self.asked[*n];
            match one {
                Ours::Socket(connection) => {
                    asked.revents = connection.of_program(asked.fd, asked.events, asked.revents);
                }
                Ours::Epoll(set) if asked.revents != 0 && set.is_still() => asked.revents = 0,
                Ours::Epoll(_) => {}
            }
        }
        for (fd, told) in self.fds.iter_mut().zip(&self.asked) {
            fd.revents |= told.revents;
        }
        c_int::try_from(self.fds.iter().filter(|fd| fd.revents != 0).count()).unwrap_or(c_int::MAX)
    }
}

/// The thread waits in the kernel for a connection until this is dropped, also if it is cancelled there.
struct Waiting<'a>(&'a Connection);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.leave_wait();
    }
}

/// Has no connection get a stream that this wait would not see. None: one has.
fn enter(ours: &[(usize, Ours)]) -> Option<Vec<Waiting<'_>>> {
    let mut inside = Vec::new();
    for (_, one) in ours {
        let Ours::Socket(connection) = one else { continue };
        // One that has its stream is watched.
        if connection.stream().is_some() || connection.is_lost() {
            continue;
        }
        if !connection.enter_wait() {
            return None;
        }
        inside.push(Waiting(connection));
    }
    Some(inside)
}
