//! What can be done with a connection without waiting, for poll, select and epoll.
//!
//! It must announce that somebody waits before it says that there is nothing.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use raas::Readiness;

use super::{Connection, Edges, ReadPart, Role, Waits};
use crate::inside;
use crate::kernel_tcp::{has_tcp_ended, poll_now, unread_of_tcp};
use crate::real::PollBits;

/// How a stream is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How<'a> {
    /// Without a word to anybody.
    Glance,
    /// A change is told from then on. With what the caller waits for, if it waits for the stream's descriptor.
    Announce(Option<&'a Waits<'a>>),
    /// The same, and bytes behind those that are there are a change.
    AnnounceMore,
}

impl How<'_> {
    /// For an entry of an epoll set that is about to be slept for.
    pub(crate) fn announce(is_edge: bool) -> Self {
        if is_edge { Self::AnnounceMore } else { Self::Announce(None) }
    }
}

/// What the kernel is to be asked for a connection, and what the stream says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready {
    /// Bits of `poll` that hold now, of those that are the stream's.
    pub(crate) now: PollBits,
    /// Bits of `poll` that are the kernel's to say.
    pub(crate) of_kernel: PollBits,
}

const READ_BITS: PollBits = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP | libc::POLLPRI | libc::POLLRDBAND;
const END_OF_BOTH: PollBits = libc::POLLERR | libc::POLLHUP;
const WRITE_BITS: PollBits = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

impl Connection {
    /// What of `wanted` holds.
    pub(crate) fn ready(&self, fd: c_int, wanted: PollBits, how: How<'_>) -> Ready {
        self.look_early(fd);
        self.pump(fd);
        if self.is_lost() {
            self.regain();
        }
        if self.is_going_back() {
            // Who waits is told when that is over.
            return Ready { now: 0, of_kernel: 0 };
        }
        let Some((part, found)) = self.look_behind_words(fd, how) else {
            let now = if self.is_lost() { wanted & (READ_BITS | WRITE_BITS) | libc::POLLERR } else { 0 };
            return Ready { now, of_kernel: if self.is_lost() { 0 } else { wanted } };
        };
        if found.contains(Readiness::HUP) && !self.is_read_shut.load(Ordering::Acquire) {
            // How TCP ended counts too: by a reset, perhaps.
            self.is_end_seen.store(true, Ordering::Release);
            self.note_end(fd);
            // Or it goes back to TCP.
            self.hear_ask(fd);
        }
        if found.contains(Readiness::WRITE)
            && self.is_full.load(Ordering::Relaxed)
            && self.is_full.swap(false, Ordering::AcqRel)
        {
            self.room_edges.fetch_add(1, Ordering::Relaxed);
        }
        // Where the end was seen just now, TCP's is next. A switch that was seen since has not been looked behind.
        let reads = part == ReadPart::Stream && self.read_part() == part;
        let writes = self.writes_stream();
        let (mut now, mut of_kernel) = (0, 0);
        if reads {
            let is_over = found.contains(Readiness::HUP) || found.contains(Readiness::ERR);
            if is_over || found.contains(Readiness::READ) && !self.is_below_low_water() {
                now |= libc::POLLIN | libc::POLLRDNORM;
            }
            if found.contains(Readiness::HUP) {
                // Where TCP does not end, the stream's end is not the connection's.
                match self.has_heard_end() || has_tcp_ended(fd) {
                    true => now |= libc::POLLRDHUP,
                    false => of_kernel |= libc::POLLRDHUP,
                }
            }
            if self.is_read_shut.load(Ordering::Acquire) {
                now |= libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
            }
        } else {
            of_kernel |= match self.hides_end() {
                _ if self.awaits_word() => 0,
                true => READ_BITS & !libc::POLLRDHUP,
                false => READ_BITS,
            };
            if part == ReadPart::Both && self.is_at_low_water(fd) {
                now |= libc::POLLIN | libc::POLLRDNORM;
            }
        }
        if writes {
            if found.contains(Readiness::WRITE) || found.contains(Readiness::ERR) {
                now |= libc::POLLOUT | libc::POLLWRNORM;
            }
        } else {
            of_kernel |= WRITE_BITS;
        }
        if reads && writes {
            let is_shut = self.is_write_shut.load(Ordering::Acquire);
            if found.contains(Readiness::HUP) && is_shut && of_kernel & libc::POLLRDHUP == 0 {
                now |= libc::POLLHUP;
            }
            if found.contains(Readiness::ERR) {
                // As the kernel's: the error is there until a call has told it.
                now |= if self.is_reset_told.load(Ordering::Acquire) { libc::POLLHUP } else { END_OF_BOTH };
            }
        }
        now |= self.hang_up(fd);
        let always = libc::POLLHUP | libc::POLLERR;
        Ready { now: now & (wanted | always), of_kernel: of_kernel & wanted }
    }

    /// See [`raas::Stream::stamp`]: of a connection of which the stream has all that comes.
    #[inline]
    pub(crate) fn stamp(&self) -> Option<u64> {
        let is_whole = self.is_settled.load(Ordering::Relaxed) && !self.is_going_back() && self.is_whole();
        self.stream().filter(|_| is_whole)?.stamp()
    }

    /// What the stream can do, and which part is read. While the other end may switch, what comes are its words and not
    /// the program's bytes; and a look that found them has announced nothing. None: there is no stream.
    fn look_behind_words(&self, fd: c_int, how: How<'_>) -> Option<(ReadPart, Readiness)> {
        loop {
            let part = self.read_part();
            let found = self.look(how)?;
            if part == ReadPart::Both && found.contains(Readiness::READ) && !inside::is_inside() {
                // Another thread may be hearing them: this waits for it.
                let is_heard = self.ask_link().is_none_or(|switch| switch.wanted() == 0);
                if is_heard && self.read_part() == part {
                    return Some((part, found));
                }
                continue;
            }
            self.pump(fd);
            if self.read_part() == part {
                return Some((part, found));
            }
        }
    }

    fn look(&self, how: How<'_>) -> Option<Readiness> {
        match how {
            How::Glance => self.glance_at_stream(),
            How::Announce(waits) => self.ask_stream(waits, self.low_water.load(Ordering::Relaxed) > 1),
            How::AnnounceMore => self.ask_stream(None, true),
        }
    }

    /// Whether an end of TCP is not the end of the bytes: the stream may have more. A program that is told of the end
    /// takes a short read for the last one.
    pub(crate) fn hides_end(&self) -> bool {
        match self.read_part() {
            ReadPart::Both => true,
            ReadPart::Stream => !self.is_end_seen(),
            _ => false,
        }
    }

    /// What the kernel said of what it was `asked`, without ends that are not those of the bytes, and without words of
    /// the other end's library. A reset ends both.
    pub(crate) fn of_program(&self, fd: c_int, asked: PollBits, told: PollBits) -> PollBits {
        if told & libc::POLLIN != 0 && self.read_part() == ReadPart::Tail {
            let knew_end = self.has_heard_end();
            self.hear_ask(fd);
            if self.is_going_back() {
                return 0;
            }
            if self.read_part() != ReadPart::Tail || self.has_heard_end() != knew_end {
                return poll_now(fd, asked) | self.hang_up(fd);
            }
        }
        let told = self.without_bare_end(fd, self.without_words(fd, asked, told));
        let told = if told == 0 { told } else { told | self.hang_up(fd) };
        let is_hidden = self.hides_end() && told & libc::POLLERR == 0;
        if is_hidden { told & !(libc::POLLRDHUP | libc::POLLHUP) } else { told }
    }

    /// The other end may have switched since the stream was looked at: then what came are its words, and a read of the
    /// program would find nothing.
    fn without_words(&self, fd: c_int, asked: PollBits, told: PollBits) -> PollBits {
        let part = self.read_part();
        if told & libc::POLLIN == 0 || part == ReadPart::Tail || self.stream().is_none() || !self.is_unsettled() {
            return told;
        }
        self.drive();
        match self.read_part() {
            now if now == part => told,
            ReadPart::Stream => told & !READ_BITS,
            _ => poll_now(fd, asked),
        }
    }

    /// TCP's end alone is not told while the stream may have bytes behind it: a read would find nothing, where programs
    /// know that a socket told of is one to read from.
    fn without_bare_end(&self, fd: c_int, told: PollBits) -> PollBits {
        let is_bare = told & libc::POLLIN != 0
            && told & libc::POLLERR == 0
            && self.read_part() == ReadPart::Both
            && !self.has_word.load(Ordering::Acquire)
            && unread_of_tcp(fd) == 0
            && has_tcp_ended(fd);
        if !is_bare {
            return told;
        }
        self.is_tcp_over.store(true, Ordering::Release);
        told & !READ_BITS
    }

    /// Whether the kernel has nothing more to say to a reader, and the stream has.
    pub(crate) fn awaits_word(&self) -> bool {
        self.is_tcp_over.load(Ordering::Acquire)
            && !self.has_word.load(Ordering::Acquire)
            && self.read_part() == ReadPart::Both
    }

    /// The stream's end was seen. If there is nothing more to be read, TCP's end is next.
    fn note_end(&self, fd: c_int) {
        let Some(stream) = self.stream() else { return };
        let is_over = self.read_part() == ReadPart::Stream
            && !self.is_read_shut.load(Ordering::Acquire)
            && stream.failure().is_none()
            && matches!(stream.unread_bytes(), Ok(0));
        if is_over {
            self.note_stream_end(fd);
        }
    }

    /// Whether the kernel may say nothing about it.
    pub(crate) fn is_whole(&self) -> bool {
        self.writes_stream() && self.read_part() == ReadPart::Stream && !self.is_end_seen()
    }

    /// Whether the stream's end was seen, before which there may be unread bytes. From then on a reset of TCP is one of
    /// the connection.
    pub(crate) fn is_end_seen(&self) -> bool {
        self.is_end_seen.load(Ordering::Acquire)
    }

    /// Whether the kernel has the next bytes, as far as is known.
    pub(crate) fn reads_kernel(&self) -> bool {
        matches!(self.read_part(), ReadPart::Kernel | ReadPart::Both | ReadPart::Tail)
    }

    /// The thread is about to wait for these bits.
    pub(crate) fn waits(&self, wanted: PollBits) -> Waits<'_> {
        Waits::new(self, wanted & READ_BITS != 0, wanted & WRITE_BITS != 0)
    }

    /// Whether a wait for these bits has nothing to learn from the stream.
    pub(crate) fn is_read_out(&self, wanted: PollBits) -> bool {
        self.is_the_kernels() || self.read_part() == ReadPart::Tail && wanted & WRITE_BITS == 0
    }

    /// Whether the kernel has all bytes that come next.
    pub(crate) fn reads_kernel_alone(&self) -> bool {
        self.read_part() == ReadPart::Kernel
    }

    /// Of [`raas_run_path`](crate).
    pub(crate) fn path(&self) -> c_int {
        let is_on_stream = self.writes_stream() && matches!(self.read_part(), ReadPart::Stream | ReadPart::Tail);
        match (is_on_stream, self.polled()) {
            (true, _) => 2,
            (false, Some(_)) => 3,
            (false, None) => c_int::from(self.is_the_kernels()),
        }
    }

    /// Whether no stream will ever replace the kernel's connection.
    pub(crate) fn is_the_kernels(&self) -> bool {
        let is_settled = self.is_settled.load(Ordering::Relaxed) || self.role() == Role::Kernel;
        is_settled && !self.is_switching() && !self.is_lost()
    }

    /// Whether the other end may have switched, or this one has.
    pub(crate) fn is_switching(&self) -> bool {
        self.readers.is_closed() || self.writers.is_closed()
    }

    /// What has come so far. While another thread is in a read it may be less, and never more.
    pub(crate) fn edges(&self) -> Edges {
        let come = match self.read_part() {
            ReadPart::Stream => self.stream_in.load(Ordering::Acquire) + self.unread().unwrap_or(0),
            _ => self.stream_in.load(Ordering::Acquire),
        };
        let come = come + self.word_edges.load(Ordering::Acquire);
        Edges { come, room: self.room_edges.load(Ordering::Relaxed) }
    }

    /// A call was given less room than it asked for: the next room is an edge. Sets that had changes announced while there
    /// was room have asked nobody to tell of room; and a thread that looked for one before this was noted took room that
    /// it found for none that is new. They look again.
    pub(crate) fn note_full(&self) {
        self.is_full.store(true, Ordering::Release);
        if self.stream().is_some() {
            self.sets.tell();
        }
    }

    /// Whether the upgrade is under way: the session may have news for it.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_used.load(Ordering::Relaxed) && !self.is_settled.load(Ordering::Relaxed)
    }

    /// A thread is about to wait in the kernel for this descriptor and would not learn of the stream. False: the other
    /// end may have switched.
    pub(crate) fn enter_wait(&self) -> bool {
        self.readers.enter().map(std::mem::forget).is_some()
    }

    /// It has waited.
    pub(crate) fn leave_wait(&self) {
        self.readers.leave();
    }
}
