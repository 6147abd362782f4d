//! The end of what the program writes, while a connection is over a stream (docs/use/run.md).
//!
//! The other end may want to go back to TCP when its program has not read all. Then this end must send bytes again on
//! TCP, so it keeps TCP's direction open: it says by a word that the stream's end is the end of the bytes, and *owes*
//! TCP's own end. The other library has TCP show an end to its program once everything before it was read.
//!
//! Owns whether TCP's end is owed. It must never be owed by a connection that others than this library use.

use std::ffi::c_int;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::Instant;

use raas::Readiness;
use raas_core::way_back::{WORD_BYTES, Word};

use super::back::{PATIENCE, PAUSE, put, take};
use super::{Connection, ReadPart, lock};
use crate::kernel_tcp::{
    CLOSE, CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, end, has_peer_ended, has_tcp_ended, show_end,
    unread_of_tcp,
};
use crate::real::{self, PollBits};
use crate::{errno, inside, owner};

impl Connection {
    /// Ends a direction or both, as the kernel's `shutdown`.
    pub(crate) fn shutdown(&self, fd: c_int, how: c_int) -> isize {
        self.pump(fd);
        let (read, write) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
        if self.is_lost() {
            if self.regain() {
                return end(fd, how);
            }
            self.spoil(fd);
            return errno::fail(libc::ENOTCONN);
        }
        // A word in the middle of others would be taken for one of them.
        while self.is_going_back() && self.await_back(true).is_ok() {}
        if how == libc::SHUT_WR && (self.owes_end() || self.says_end(fd)) {
            self.tell_all();
            return 0;
        }
        self.pay_end(fd);
        let is_over = self.is_write_shut.load(Ordering::Acquire) && self.is_end_seen();
        let is_whole = self.writes_stream() && self.read_part() == ReadPart::Stream && !is_over;
        if write {
            self.is_write_shut.store(true, Ordering::Release);
        }
        if read {
            self.is_read_shut.store(true, Ordering::Release);
        }
        if let Some(stream) = self.stream() {
            if write {
                let _ = stream.shutdown(Shutdown::Write);
            }
            self.tell_all();
        }
        let result = end(fd, how);
        // The kernel's connection may be over already when the stream is not.
        if is_whole { 0 } else { result }
    }

    /// Ends the stream and says to the other library that the program writes no more. False: TCP is to say so itself.
    fn says_end(&self, fd: c_int) -> bool {
        loop {
            if !self.may_owe_end(fd) {
                return false;
            }
            let _inside = inside::enter();
            // Who goes back comes here when he has begun: the end is owed before he looks, or not at all.
            let order = lock(&self.back);
            if !self.is_going_back() {
                return self.say_end(fd);
            }
            drop(order);
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether TCP's end may come later than the program's.
    fn may_owe_end(&self, fd: c_int) -> bool {
        self.writes_stream()
            && !self.has_ended_writing()
            && !inside::is_inside()
            && !self.glance_at_stream().is_none_or(|found| found.contains(Readiness::ERR))
            && !has_peer_ended(fd)
            && self.say_rest().is_ok()
    }

    /// Nobody goes back meanwhile.
    fn say_end(&self, fd: c_int) -> bool {
        let code = errno::get();
        let word = Word::End.bytes(self.token.load(Ordering::Acquire));
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and the length are those of `word`.
        let sent = unsafe { real::send(fd, word.as_ptr().cast(), word.len(), flags) };
        let is_said = match usize::try_from(sent) {
            Ok(sent @ 1..) => put(fd, &word[sent..], Instant::now() + PATIENCE).is_ok(),
            _ => false,
        };
        if is_said {
            self.owes_end.store(true, Ordering::Release);
            self.is_write_shut.store(true, Ordering::Release);
            if let Some(stream) = self.stream() {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        errno::set(code);
        is_said
    }

    /// Whether TCP's end is still to be sent.
    pub(super) fn owes_end(&self) -> bool {
        self.owes_end.load(Ordering::Acquire)
    }

    /// Sends TCP's end if it is owed: others will use the connection, or nobody.
    pub(super) fn pay_end(&self, fd: c_int) {
        if self.owes_end.swap(false, Ordering::AcqRel) {
            let code = errno::get();
            end(fd, libc::SHUT_WR);
            errno::set(code);
        }
    }

    /// Whether this end can still send words, and bytes again, on TCP.
    pub(super) fn can_say(&self) -> bool {
        !self.has_ended_writing() || self.owes_end()
    }

    pub(crate) fn has_ended_writing(&self) -> bool {
        self.is_write_shut.load(Ordering::Acquire)
    }

    /// The process closes its last descriptor. A word that nobody has read would have TCP end by a reset.
    pub(crate) fn close(&self, fd: c_int) {
        if !inside::is_inside() && self.can_hear_word() && self.peeked(fd) == Some(Word::End) {
            self.hear_end(fd);
        }
        self.pay_end(fd);
    }

    /// Whether the close of the last descriptor, which this process alone has, is a reset that is to be sent at once: the
    /// daemon may have a copy of the socket for a moment, and the kernel would wait for it. A thread that is inside a
    /// call of the kernel goes on there, as without this library.
    pub(crate) fn resets_at_close(&self, fd: c_int) -> bool {
        self.is_used()
            && !self.is_lost()
            && self.shares == owner::shares()
            && self.readers.is_empty()
            && self.writers.is_empty()
            && crate::kernel_tcp::resets_at_close(fd)
            // The descriptor may be another file's by now, where it was closed by calls that are not seen.
            && self.is_of_socket(fd)
    }

    // ---- of the other end

    /// Whether TCP's next bytes, if there are some, are words of the other end's library.
    pub(crate) fn can_hear_word(&self) -> bool {
        matches!(self.read_part(), ReadPart::Stream | ReadPart::Tail) && !self.has_heard_ask()
    }

    /// The word is next on TCP, unless another thread has just taken it.
    pub(super) fn hear_end(&self, fd: c_int) {
        {
            let _inside = inside::enter();
            // Who goes back takes it, and comes here before he takes words.
            let _order = lock(&self.back);
            if self.is_going_back()
                || self.peeked(fd) != Some(Word::End)
                || take(fd, WORD_BYTES, Instant::now()).is_err()
            {
                return;
            }
            self.note_end_of_bytes();
            if self.is_tail.load(Ordering::Acquire) {
                show_end(fd);
            }
        }
        self.tell_all();
    }

    /// The other end's program has ended its writing.
    pub(super) fn note_end_of_bytes(&self) {
        self.has_heard_end.store(true, Ordering::Release);
    }

    pub(super) fn has_heard_end(&self) -> bool {
        self.has_heard_end.load(Ordering::Acquire)
    }

    /// Whether TCP shows an end which the other end's kernel has not sent, so that words may still come.
    pub(crate) fn shows_end(&self, fd: c_int) -> bool {
        let is_shown = self.has_heard_end() && self.read_part() == ReadPart::Tail;
        is_shown && !has_peer_ended(fd) && unread_of_tcp(fd) == 0
    }

    /// The state of TCP (`tcp_info`) if no end were owed, given what the kernel says.
    pub(crate) fn state_of(&self, kernels: u8) -> u8 {
        match (kernels, self.owes_end(), self.has_heard_end()) {
            (ESTABLISHED, true, false) => FIN_WAIT2,
            (ESTABLISHED, false, true) => CLOSE_WAIT,
            (FIN_WAIT1 | FIN_WAIT2, _, true) => TIME_WAIT,
            (ESTABLISHED, true, true) | (CLOSE_WAIT, true, _) => CLOSE,
            _ => kernels,
        }
    }

    /// The error of the socket (`SO_ERROR`), which this call takes, given what the kernel says: a stream that was reset
    /// is a connection that was.
    pub(crate) fn take_error(&self, kernels: c_int) -> c_int {
        let is_whole = self.writes_stream() && self.read_part() == ReadPart::Stream;
        let failure = if is_whole { self.stream().and_then(raas::Stream::failure) } else { None };
        match failure {
            // One reset, also where TCP's own comes too.
            Some(_) if self.is_reset_told.swap(true, Ordering::AcqRel) => 0,
            Some(_) => libc::ECONNRESET,
            None => kernels,
        }
    }

    /// What the kernel would say if TCP's end were not owed: both directions are over.
    pub(super) fn hang_up(&self, fd: c_int) -> PollBits {
        let is_over = self.owes_end() && self.read_part() == ReadPart::Tail && has_tcp_ended(fd);
        if is_over { libc::POLLHUP } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Role;

    #[test]
    fn a_state_is_shown_as_if_no_end_were_owed() {
        let connection = Connection::new(Role::Accepted, false);
        assert_eq!([ESTABLISHED, CLOSE_WAIT].map(|kernels| connection.state_of(kernels)), [ESTABLISHED, CLOSE_WAIT]);
        connection.note_end_of_bytes();
        assert_eq!([ESTABLISHED, FIN_WAIT2].map(|kernels| connection.state_of(kernels)), [CLOSE_WAIT, TIME_WAIT]);
        connection.owes_end.store(true, Ordering::Release);
        assert_eq!([ESTABLISHED, CLOSE_WAIT, CLOSE].map(|kernels| connection.state_of(kernels)), [CLOSE; 3]);
        let other = Connection::new(Role::Connected, false);
        other.owes_end.store(true, Ordering::Release);
        assert_eq!(other.state_of(ESTABLISHED), FIN_WAIT2);
        assert!(!other.has_ended_writing() && other.can_say(), "it ends by the program's call alone");
    }
}
