//! Calls that wait for several descriptors.

use std::ffi::{c_int, c_ulong};
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::table;
use crate::{errno, hold, poll_set, real};

fn of_millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// None: as long as it takes. An error: no time.
///
/// # Safety
///
/// `time` is null or points to a time.
unsafe fn of_timespec(time: *const timespec) -> Result<Option<Duration>, ()> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| ())?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|n| *n < 1_000_000_000).ok_or(())?;
    Ok(Some(Duration::new(seconds, nanos)))
}

// ---- poll

/// The descriptors, if they can be looked at.
///
/// # Safety
///
/// `fds` points to `count` entries, as the caller promised the C library.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0 && *count <= 1 << 20)?;
    // SAFETY: the caller's promise.
    (!fds.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(fds, count) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program promised so many entries.
    if let Some(set) = unsafe { entries(fds, count) }
        && let Some(result) = poll_set::wait(set, of_millis(timeout), std::ptr::null())
    {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::poll(fds, count, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promised so many entries, and its time.
    if let (Some(set), Ok(time)) = unsafe { (entries(fds, count), of_timespec(timeout)) }
        && let Some(result) = poll_set::wait(set, time, mask)
    {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, _room: size_t) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

// ---- select

/// The three sets of a `select`.
#[derive(Clone, Copy)]
struct Sets {
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
}

const WORD_BITS: usize = c_ulong::BITS as usize;

/// # Safety
///
/// `set` is null or has a bit for `fd`. Programs make sets that are longer than `fd_set`.
unsafe fn has(set: *mut fd_set, fd: usize) -> bool {
    // SAFETY: the caller's promise.
    !set.is_null() && unsafe { *set.cast::<c_ulong>().add(fd / WORD_BITS) } >> (fd % WORD_BITS) & 1 == 1
}

/// # Safety
///
/// As [`has`].
unsafe fn put(set: *mut fd_set, fd: usize, on: bool) -> c_int {
    if set.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let word = unsafe { &mut *set.cast::<c_ulong>().add(fd / WORD_BITS) };
    let bit = 1 << (fd % WORD_BITS);
    *word = if on { *word | bit } else { *word & !bit };
    c_int::from(on)
}

impl Sets {
    /// The descriptors as `poll` takes them. None: none is a TCP socket of the program's.
    ///
    /// # Safety
    ///
    /// The sets have `count` bits.
    unsafe fn entries(self, count: c_int) -> Option<Vec<pollfd>> {
        let mut all = Vec::new();
        let mut has_ours = false;
        for fd in 0..usize::try_from(count).ok()? {
            // SAFETY: the caller's promise.
            let (read, write, except) = unsafe { (has(self.read, fd), has(self.write, fd), has(self.except, fd)) };
            let bits = [(read, libc::POLLIN), (write, libc::POLLOUT), (except, libc::POLLPRI)];
            let events = bits.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
            if events != 0 {
                let fd = c_int::try_from(fd).ok()?;
                has_ours |= table::get(fd).is_some();
                all.push(pollfd { fd, events, revents: 0 });
            }
        }
        has_ours.then_some(all)
    }

    /// As `pselect`. None: the kernel is to be asked.
    ///
    /// # Safety
    ///
    /// The sets have `count` bits.
    unsafe fn wait(self, count: c_int, timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
        // SAFETY: the caller's promise.
        let mut all = unsafe { self.entries(count) }?;
        let result = poll_set::wait(&mut all, timeout, mask)?;
        if result < 0 {
            return Some(result);
        }
        if all.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            errno::set(libc::EBADF);
            return Some(-1);
        }
        let mut bits = 0;
        for entry in &all {
            let fd = usize::try_from(entry.fd).ok()?;
            let says = |asked, told| entry.events & asked != 0 && entry.revents & told != 0;
            let read = says(libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR);
            let write = says(libc::POLLOUT, libc::POLLOUT | libc::POLLERR);
            // SAFETY: the caller's promise.
            unsafe {
                bits += put(self.read, fd, read) + put(self.write, fd, write);
                bits += put(self.except, fd, says(libc::POLLPRI, libc::POLLPRI));
            }
        }
        Some(bits)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's own time, or none.
    let time = unsafe { timeout.as_ref() }.map(|time| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds.saturating_add(Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
    });
    let begun = std::time::Instant::now();
    // SAFETY: the program promised so many bits.
    if let Some(result) = unsafe { Sets { read, write, except }.wait(count, time, std::ptr::null()) } {
        // As Linux does: what is left of the time.
        if let Some(time) = time {
            let left = time.saturating_sub(begun.elapsed());
            let (seconds, micros) = (left.as_secs(), left.subsec_micros());
            // SAFETY: the program's own time.
            unsafe {
                (*timeout).tv_sec = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
                (*timeout).tv_usec = micros.into();
            }
        }
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::select(count, read, write, except, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promised so many bits, and its time.
    if let Ok(time) = unsafe { of_timespec(timeout) }
        // SAFETY: as above.
        && let Some(result) = unsafe { Sets { read, write, except }.wait(count, time, mask) }
    {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::pselect(count, read, write, except, timeout, mask) }
}

// ---- epoll

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let _held = hold::hold();
    if let Some(connection) = table::socket(fd)
        && let Some(known) = table::epoll_or_make(set)
    {
        return known.control(what, fd, &connection, event);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set, what, fd, event) };
    if result == 0
        && matches!(what, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD)
        && let Some(inner) = table::epoll(fd)
        && let Some(known) = table::epoll_or_make(set)
    {
        // SAFETY: the kernel has just read the event.
        known.add_inner(fd, &inner, unsafe { event.read_unaligned() }.u64);
    }
    result
}

/// # Safety
///
/// `events` has room for `max`, as the caller promised the C library.
unsafe fn wait_for(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    table::is_known(set).then_some(())?;
    // Behind everything that the call has: its handlers run last.
    let _held = hold::hold();
    let known = table::epoll(set)?;
    let room = usize::try_from(max).ok().filter(|max| *max > 0 && !events.is_null())?;
    // SAFETY: the caller's promise. An event is numbers, which any bytes are.
    let room = unsafe { std::slice::from_raw_parts_mut(events, room) };
    Some(known.wait(room, timeout, mask))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the program promised so much room.
    if let Some(result) = unsafe { wait_for(set, events, max, of_millis(timeout), std::ptr::null()) } {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_wait(set, events, max, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promised so much room.
    if let Some(result) = unsafe { wait_for(set, events, max, of_millis(timeout), mask) } {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_pwait(set, events, max, timeout, mask) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program promised so much room, and its time.
    if let Ok(time) = unsafe { of_timespec(timeout) }
        // SAFETY: as above.
        && let Some(result) = unsafe { wait_for(set, events, max, time, mask) }
    {
        return result;
    }
    // SAFETY: the program's own arguments.
    unsafe { real::epoll_pwait2(set, events, max, timeout, mask) }
}
