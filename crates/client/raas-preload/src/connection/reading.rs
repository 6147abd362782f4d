//! Reading from a connection, whichever part has the next bytes.
//!
//! Decides when TCP's part is over. It must never return the stream's bytes while TCP has some.

use std::ffi::c_int;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{iovec, msghdr};
use raas::Readiness;
use raas_core::switch::{AtEnd, Switch};

use super::guard::Moves;
use super::waiting::{Awaited, Until};
use super::{Connection, ReadPart, Side, Waits, are_valid, is_empty};
use crate::errno::{self, fail};
use crate::kernel_tcp::unread_of_tcp;
use crate::{inside, polled, real, say, spin};

/// Bytes that one call looks at without taking them, where it has several buffers.
const PEEK_MAX: usize = 1 << 20;
static FOREIGN: say::Once = say::Once::new();

/// Between looks for bytes behind those that are there.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes that are thrown away at once for `MSG_TRUNC`.
const DISCARD: usize = 16 << 10;

impl Connection {
    /// Reads into `parts`. `original` is the program's call, for the time in which the kernel alone has the bytes.
    pub(crate) fn receive(
        &self,
        fd: c_int,
        parts: &[iovec],
        flags: c_int,
        original: &mut dyn FnMut() -> isize,
    ) -> isize {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.in_kernel(None, original);
        }
        if inside::is_inside() && self.is_switching() {
            // The handler of a fault, in the middle of this thread's work with streams.
            return fail(libc::EINTR);
        }
        self.touch(fd);
        let may_wait = !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        if let Err(code) = self.pass_guard(fd, Moves::In { may_wait }) {
            return fail(code);
        }
        if !are_valid(parts) {
            // The kernel says what is wrong with them, and takes nothing.
            return self.in_kernel(None, original);
        }
        let is_peek = flags & libc::MSG_PEEK != 0;
        loop {
            if self.is_going_back() {
                match self.await_back(may_wait) {
                    Ok(()) => continue,
                    Err(code) => return fail(code),
                }
            }
            match self.read_part() {
                ReadPart::Kernel => {
                    let Some(entered) = self.readers.enter() else { continue };
                    if may_wait && self.must_watch_both() {
                        drop(entered);
                        match self.receive_before_switch(fd, parts, flags) {
                            Some(result) => return result,
                            None => continue,
                        }
                    }
                    if may_wait && let Some(payoff) = self.polled() {
                        polled::until_readable(payoff, fd);
                    }
                    let result = self.in_kernel(Some(Side::Read), original);
                    self.count_in(result, is_peek);
                    return result;
                }
                ReadPart::Both => match self.receive_of_both(fd, parts, flags) {
                    Some(first @ 1..) if flags & (libc::MSG_PEEK | libc::MSG_OOB) == 0 => {
                        return self.receive_behind(fd, parts, first.unsigned_abs(), flags);
                    }
                    Some(first @ 1..) if flags & libc::MSG_PEEK != 0 => {
                        return first + self.peek_behind(parts, first.unsigned_abs());
                    }
                    Some(result) => return result,
                    None => continue,
                },
                ReadPart::Stream => match self.receive_of_stream(fd, parts, flags) {
                    Some(result) => return result,
                    None => continue,
                },
                ReadPart::Tail => match self.receive_of_tail(fd, flags) {
                    Some(result) => return result,
                    None => continue,
                },
                ReadPart::Lost if self.regain() => {}
                ReadPart::Lost => {
                    say::LOST.say("a connection that the parent process had upgraded was used after fork");
                    self.spoil(fd);
                    return fail(libc::ECONNRESET);
                }
            }
        }
    }

    /// With a stream whose other end has not said `G`: it may do so at any time, and then it waits for this one's.
    fn receive_before_switch(&self, fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
        let until = self.until(true);
        loop {
            self.ask_link();
            {
                let _entered = self.readers.enter()?;
                if !self.must_watch_both() {
                    return None;
                }
                let result = self.receive_now(fd, parts, flags);
                if result >= 0 || errno::get() != libc::EAGAIN {
                    return Some(result);
                }
            }
            if let Err(code) = self.wait(Awaited { is_read: true, stream: true, fd }, until) {
                return Some(fail(code));
            }
        }
    }

    fn count_in(&self, result: isize, is_peek: bool) {
        if let Ok(count) = u64::try_from(result)
            && !is_peek
        {
            self.tcp_in.fetch_add(count, Ordering::AcqRel);
        }
    }

    /// After `G`: TCP has the next bytes until the other end has switched and they are all read. None: they are.
    fn receive_of_both(&self, fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
        let until = self.until(true);
        let waits = Waits::new(self, true, false);
        loop {
            // Afterwards a change signals the descriptor.
            let _ = self.ask_stream(Some(&waits), false);
            let Some(switch) = self.ask_link() else { return Some(fail(libc::ECONNRESET)) };
            // The other end has switched, or another thread has had the connection go back since.
            if self.is_going_back() || self.read_part() != ReadPart::Both {
                return None;
            }
            // What takes no bytes takes no word.
            let takes_none = is_empty(parts) || flags & libc::MSG_OOB != 0;
            let most = if takes_none { None } else { self.bytes_of_tcp(fd, &switch, parts) };
            let result = match most {
                Some(0) => fail(libc::EAGAIN),
                Some(most) => self.receive_now(fd, &first_of(parts, most), flags),
                None => self.receive_now(fd, parts, flags),
            };
            // Nothing is what was asked for, and tells no end.
            if result > 0 || result == 0 && is_empty(parts) {
                return Some(result);
            }
            if result < 0 && errno::get() != libc::EAGAIN {
                return Some(result);
            }
            if result == 0 {
                // TCP's end is the end of the bytes only if the other end never switched: its program may have closed
                // without a word on the stream.
                let at_end = self.ask_link().map(|switch| switch.at_end_of_old(self.was_reset_by_program()));
                match at_end {
                    _ if self.read_part() == ReadPart::Stream => return None,
                    _ if self.is_read_shut.load(Ordering::Acquire) => return Some(0),
                    Some(AtEnd::End) => return Some(0),
                    Some(AtEnd::Lost) | None => return Some(fail(libc::ECONNRESET)),
                    Some(AtEnd::NotKnown) => {}
                }
            } else if switch.is_broken() && !self.was_reset_by_program() {
                // The other end may have switched, and its bytes are lost. Or it lied.
                self.spoil(fd);
                return Some(fail(libc::ECONNRESET));
            }
            if self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0 {
                return Some(fail(libc::EAGAIN));
            }
            // At TCP's end the descriptor stays readable; what is waited for is the stream's word. When that was said,
            // it is TCP's bytes.
            let stream = switch.wanted() > 0;
            let awaited = Awaited { is_read: true, stream, fd: if result == 0 { -1 } else { fd } };
            if let Err(code) = self.wait(awaited, until) {
                return Some(fail(code));
            }
        }
    }

    /// `done` bytes of TCP are there, which may be fewer than there are. Event loops take a short read for the last one
    /// and wait for an edge, so it is short only if nothing is left, or the program wants all.
    fn receive_behind(&self, fd: c_int, parts: &[iovec], mut done: usize, flags: c_int) -> isize {
        let total = parts.iter().map(|part| part.iov_len).sum();
        let may_wait = !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let takes_all = may_wait && flags & libc::MSG_WAITALL != 0;
        loop {
            done = self.add_at_hand(fd, parts, done, flags);
            if !takes_all || done >= total {
                return done as isize;
            }
            match self.receive_rest(fd, parts, done, flags & !libc::MSG_WAITALL) {
                more @ 1.. => done += more.unsigned_abs(),
                _ => return done as isize,
            }
        }
    }

    /// Reads what is there behind `done` bytes. How many there are then. An end or an error is left to the next call.
    fn add_at_hand(&self, fd: c_int, parts: &[iovec], mut done: usize, flags: c_int) -> usize {
        loop {
            let rest = rest_of(parts, done);
            let switch = self.ask_link();
            match (self.read_part(), switch) {
                _ if is_empty(&rest) || self.is_going_back() => return done,
                (ReadPart::Both, Some(switch)) if unread_of_tcp(fd) > 0 => {
                    let most = self.bytes_of_tcp(fd, &switch, &rest).unwrap_or(0);
                    match if most > 0 { self.receive_now(fd, &first_of(&rest, most), flags) } else { 0 } {
                        more @ 1.. => done += more.unsigned_abs(),
                        _ => return done,
                    }
                }
                (ReadPart::Stream, _) if self.has_unread() => return done + self.fill(parts, done, flags).unwrap_or(0),
                _ => return done,
            }
        }
    }

    /// Looks at what the stream has behind `done` bytes, if those are TCP's last: a program may look again until it sees
    /// enough, and take nothing before.
    fn peek_behind(&self, parts: &[iovec], done: usize) -> isize {
        let tcp_in = self.tcp_in.load(Ordering::Acquire) + done as u64;
        if self.ask_link().is_some_and(|switch| switch.left(tcp_in) == Some(0)) && self.has_unread() {
            return self.fill(&rest_of(parts, done), 0, libc::MSG_PEEK).unwrap_or(0) as isize;
        }
        0
    }

    /// How many of the next bytes on TCP may be the program's. None: all that there are.
    pub(super) fn bytes_of_tcp(&self, fd: c_int, switch: &Switch, parts: &[iovec]) -> Option<usize> {
        match switch.left(self.tcp_in.load(Ordering::Acquire)) {
            Some(left) => usize::try_from(left).ok(),
            // The other end may have switched, and said more on TCP, before its word on the stream is here.
            None => self.bytes_before_word(fd, parts.iter().map(|part| part.iov_len).sum()),
        }
    }

    fn was_reset_by_program(&self) -> bool {
        self.stream().and_then(raas::Stream::failure) == Some(raas::Reason::ResetByPeer)
    }

    fn receive_now(&self, fd: c_int, parts: &[iovec], flags: c_int) -> isize {
        let mut message = message_of(parts);
        let flags = (flags & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
        // SAFETY: the program vouches for its buffers, and the message lives through the call.
        let result = unsafe { real::recvmsg(fd, &raw mut message, flags) };
        self.count_in(result, flags & libc::MSG_PEEK != 0);
        result
    }

    /// None: the stream has ended, or goes back to TCP.
    fn receive_of_stream(&self, fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
        if flags & libc::MSG_OOB != 0 {
            return Some(fail(libc::EINVAL));
        }
        let may_wait = !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let takes_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        let (until, mut done) = (self.until(true), 0usize);
        if is_empty(parts) {
            return Some(self.receive_nothing(may_wait, until));
        }
        if may_wait && flags & libc::MSG_PEEK != 0 && flags & libc::MSG_WAITALL != 0 {
            self.await_all(parts.iter().map(|part| part.iov_len).sum(), until);
        }
        loop {
            if may_wait && !self.is_read_shut.load(Ordering::Acquire) {
                spin::until(&mut |_| self.has_unread());
            }
            match self.fill(parts, done, flags) {
                Ok(0) if done > 0 || self.is_read_shut.load(Ordering::Acquire) => return Some(done as isize),
                Ok(0) => {
                    self.note_stream_end(fd);
                    return None;
                }
                Ok(count) => done += count,
                Err(libc::EAGAIN) if self.is_read_shut.load(Ordering::Acquire) => return Some(done as isize),
                Err(libc::EAGAIN) if self.takers.is_closed() => {
                    let more = if done > 0 && takes_all { self.receive_rest(fd, parts, done, flags) } else { 0 };
                    return (done > 0).then(|| done as isize + more.max(0));
                }
                Err(libc::EAGAIN) if done > 0 && !takes_all => return Some(done as isize),
                Err(libc::EAGAIN) if may_wait => {
                    if let Err(code) = self.wait(Awaited { is_read: true, stream: true, fd: -1 }, until) {
                        return Some(if done > 0 { done as isize } else { fail(code) });
                    }
                    continue;
                }
                Err(_) if done > 0 => return Some(done as isize),
                // A reset is told once, and is the end afterwards.
                Err(libc::ECONNRESET) if self.is_reset_told.swap(true, Ordering::AcqRel) => return Some(0),
                Err(code) => return Some(fail(code)),
            }
            if !takes_all || done >= parts.iter().map(|part| part.iov_len).sum() {
                return Some(done as isize);
            }
        }
    }

    /// As the program's call, behind the first `done` bytes.
    fn receive_rest(&self, fd: c_int, parts: &[iovec], done: usize, flags: c_int) -> isize {
        let rest = rest_of(parts, done);
        let mut message = message_of(&rest);
        // SAFETY: the program vouches for its buffers, and the message lives through the call.
        self.receive(fd, &rest, flags, &mut || unsafe { real::recvmsg(fd, &raw mut message, flags) })
    }

    /// For no bytes: 0 once there is something, or the end.
    fn receive_nothing(&self, may_wait: bool, until: Until) -> isize {
        loop {
            if self.is_read_shut.load(Ordering::Acquire) || self.has_unread() || self.takers.is_closed() {
                return 0;
            }
            let waited = match may_wait {
                true => self.wait(Awaited { is_read: true, stream: true, fd: -1 }, until),
                false => Err(libc::EAGAIN),
            };
            if let Err(code) = waited {
                return fail(code);
            }
        }
    }

    /// Waits until so many bytes are there, or no more come: for a look at all of them.
    fn await_all(&self, total: usize, until: Until) {
        let is_open = || {
            let is_over = |found: Readiness| found.contains(Readiness::HUP) || found.contains(Readiness::ERR);
            !self.is_read_shut.load(Ordering::Acquire) && !self.glance_at_stream().is_none_or(is_over)
        };
        while self.unread().is_some_and(|unread| unread < total as u64) && is_open() && !until.is_over() {
            std::thread::sleep(PAUSE);
        }
    }

    /// After the stream's end. Another process may have the connection: the end is TCP's. Or the other end goes back to
    /// TCP, and so does this one (None). Other bytes there were written past the stream, and nobody knows where they
    /// belong.
    fn receive_of_tail(&self, fd: c_int, flags: c_int) -> Option<isize> {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | flags & (libc::MSG_DONTWAIT | libc::MSG_OOB);
        // SAFETY: there is room for one byte.
        let result = self.in_kernel(None, &mut || unsafe { real::recv(fd, (&raw mut byte).cast(), 1, flags) });
        if result <= 0 {
            return Some(result);
        }
        let knew_end = self.has_heard_end();
        self.hear_ask(fd);
        if self.is_going_back() || self.read_part() != ReadPart::Tail || self.has_heard_end() != knew_end {
            return None;
        }
        if unread_of_tcp(fd) == 0 {
            // Another thread has taken the word.
            return None;
        }
        FOREIGN.say("bytes came past an upgraded connection, from calls that `raas run` does not see: it is reset");
        Some(fail(libc::ECONNRESET))
    }

    /// Bytes that can be read without waiting, for `FIONREAD`: before and behind the switch. None: the kernel knows.
    pub(crate) fn unread_of_both(&self, fd: c_int) -> Option<u64> {
        if self.read_part() == ReadPart::Both
            && let Some(switch) = self.ask_link()
            && let Some(left) = switch.left(self.tcp_in.load(Ordering::Acquire))
            && self.read_part() == ReadPart::Both
        {
            let come = left.min(unread_of_tcp(fd) as u64);
            let behind = if come == left { self.stream()?.unread_bytes().ok()? } else { 0 };
            return Some(come + behind);
        }
        self.unread()
    }

    /// Whether a read of the stream would find something or its end, without announcing that anybody waits.
    pub(crate) fn has_unread(&self) -> bool {
        self.glance_at_stream().is_none_or(|found| found.contains(Readiness::READ))
    }

    /// Fills the parts from byte `skip` on with what is there.
    fn fill(&self, parts: &[iovec], mut skip: usize, flags: c_int) -> Result<usize, c_int> {
        let _inside = inside::enter();
        let _takes = self.takers.enter().ok_or(libc::EAGAIN)?;
        let mut stream = self.stream().ok_or(libc::ECONNRESET)?;
        if flags & libc::MSG_PEEK != 0 && parts.len() > 1 {
            return peek_into(stream, parts);
        }
        let mut done = 0;
        let takes = flags & libc::MSG_PEEK == 0;
        for part in parts {
            // Event loops take a short read for the last one and wait for an edge: it is short only if nothing is left.
            while skip < part.iov_len {
                let len = part.iov_len - skip;
                let result = if takes && flags & libc::MSG_TRUNC != 0 {
                    let mut waste = vec![0; len.min(DISCARD)];
                    stream.read(&mut waste)
                } else {
                    // SAFETY: the program vouches for its buffers, and nobody else writes them during its call.
                    let buffer = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>().add(skip), len) };
                    if takes { stream.read(buffer) } else { stream.peek(buffer) }
                };
                let count = match result {
                    Ok(count) => count,
                    Err(_) if done > 0 => return Ok(done),
                    Err(error) => return Err(errno::of(&error)),
                };
                done += count;
                skip += count;
                if !takes {
                    return Ok(done);
                }
                self.stream_in.fetch_add(count as u64, Ordering::AcqRel);
                // Behind the count: what comes after this look is an edge to every thread.
                if count == 0 || skip < part.iov_len && !self.has_unread() {
                    return Ok(done);
                }
            }
            skip -= part.iov_len;
        }
        Ok(done)
    }
}

/// To be received into these parts, which outlive it.
fn message_of(parts: &[iovec]) -> msghdr {
    // SAFETY: all of `msghdr` may be zero.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
    message
}

/// The parts as far as they hold so many bytes.
fn first_of(parts: &[iovec], mut most: usize) -> Vec<iovec> {
    let part = |part: &iovec| {
        let len = part.iov_len.min(most);
        most -= len;
        iovec { iov_base: part.iov_base, iov_len: len }
    };
    parts.iter().map(part).collect()
}

/// The parts behind so many bytes.
pub(super) fn rest_of(parts: &[iovec], mut skip: usize) -> Vec<iovec> {
    let part = |part: &iovec| {
        let skipped = skip.min(part.iov_len);
        skip -= skipped;
        // SAFETY: within the part.
        let base = unsafe { part.iov_base.cast::<u8>().add(skipped) };
        iovec { iov_base: base.cast(), iov_len: part.iov_len - skipped }
    };
    parts.iter().map(part).filter(|part| part.iov_len > 0).collect()
}

/// Looks at what is there, and copies it into several parts.
fn peek_into(stream: &raas::Stream, parts: &[iovec]) -> Result<usize, c_int> {
    let mut bytes = vec![0; parts.iter().map(|part| part.iov_len).sum::<usize>().min(PEEK_MAX)];
    let count = stream.peek(&mut bytes).map_err(|e| errno::of(&e))?;
    let mut left = &bytes[..count];
    for part in parts {
        let (now, later) = left.split_at(left.len().min(part.iov_len));
        // SAFETY: the program vouches for its buffers; `now` is no longer than this one.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast::<u8>(), now.len()) };
        left = later;
    }
    Ok(count)
}
