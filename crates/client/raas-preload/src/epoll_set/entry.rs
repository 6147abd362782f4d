//! One descriptor of an epoll set: what the program asked for, and what it was told.
//!
//! Decides what is an edge. It must never report what the program did not ask for.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use libc::epoll_event;

use crate::connection::{Connection, Edges, Ready};
use crate::real::{self, PollBits};

/// Looks in which a connection was still, after which it is not hot any more.
const STILL_MAX: u32 = 64;
/// What the kernel does with an entry, beside the events.
const FLAGS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
/// Of which an entry of the library's keeps these: a one-shot event is over when the program was told of it.
const FLAGS_KEPT: u32 = (libc::EPOLLET | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
const READ_BITS: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
const WRITE_BITS: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
const IN_BITS: PollBits = libc::POLLIN | libc::POLLRDNORM;
const OUT_BITS: PollBits = libc::POLLOUT | libc::POLLWRNORM;
const END_BITS: PollBits = libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP;

/// What was last reported of an entry.
#[derive(Debug, Clone, Copy)]
struct Seen {
    edges: Edges,
    kernels: u32,
    bits: PollBits,
}

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) connection: Weak<Connection>,
    pub(super) events: u32,
    pub(super) data: u64,
    /// The events for which the kernel's set has an entry; none: nothing.
    pub(super) of_kernel: Option<u32>,
    pub(super) is_linked: bool,
    /// Not after a one-shot event.
    pub(super) is_armed: bool,
    pub(super) is_hot: bool,
    /// A change of the stream is told.
    pub(super) is_announced: bool,
    /// Of the stream, when a look last found nothing to report; nothing was asked or told since.
    pub(super) stamp: Option<u64>,
    /// Looks since there was something to report.
    pub(super) still: u32,
    /// Counts what makes void what a look found that had begun before.
    turn: u32,
    /// The kernel has something to say, as far as is known.
    kernel_says: bool,
    /// Times that the kernel said something.
    kernels: u32,
    seen: Option<Seen>,
}

impl Registered {
    pub(super) fn new(connection: &Arc<Connection>, asked: epoll_event) -> Self {
        Self {
            connection: Arc::downgrade(connection),
            events: asked.events,
            data: asked.u64,
            of_kernel: Some(asked.events),
            is_linked: false,
            is_armed: true,
            is_hot: false,
            is_announced: false,
            stamp: None,
            still: 0,
            turn: 0,
            kernel_says: false,
            kernels: 0,
            seen: None,
        }
    }

    pub(super) fn is_of(&self, connection: &Arc<Connection>) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(connection))
    }

    /// The program asks for something else, or once more.
    pub(super) fn change(&mut self, asked: epoll_event) {
        (self.events, self.data) = (asked.events, asked.u64);
        (self.is_armed, self.seen) = (true, None);
        self.begin_turn();
    }

    /// Whether it may still be linked.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.is_linked && self.connection.upgrade().is_some_and(|connection| !connection.is_the_kernels())
    }

    /// Whether its upgrade is under way: the session may have news for it.
    pub(super) fn is_under_way(&self) -> bool {
        !self.is_linked && self.connection.upgrade().is_some_and(|connection| connection.is_unsettled())
    }

    /// Whether the kernel has no part in it from the beginning, and nothing to judge in what is asked.
    pub(super) fn is_the_streams(&self, connection: &Connection) -> bool {
        let judged = (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
        connection.is_whole() && self.events & judged == 0 && self.kernels_part(connection).is_none()
    }

    /// The events that the kernel is to be asked for, for a linked connection.
    pub(super) fn kernels_part(&self, connection: &Connection) -> Option<u32> {
        let (reads, writes) = (connection.reads_kernel(), !connection.writes_stream());
        // Without any event the kernel still tells errors.
        let is_mute = !writes && connection.awaits_word();
        if !reads && !writes && !connection.is_end_seen() || !self.is_armed || is_mute {
            return None;
        }
        let mut left = self.events & !FLAGS;
        if connection.awaits_word() {
            left &= !READ_BITS;
        } else if !reads {
            // Where the stream has ended, TCP's end is the connection's.
            let end = if connection.is_end_seen() { libc::EPOLLRDHUP as u32 } else { 0 };
            left &= !READ_BITS | end;
        }
        if connection.hides_end() {
            left &= !(libc::EPOLLRDHUP as u32);
        }
        if !writes {
            left &= !WRITE_BITS;
        }
        Some(left | self.events & FLAGS_KEPT)
    }

    /// There may be something to report, or the program was told of it: what was announced and found before is void.
    pub(super) fn begin_turn(&mut self) {
        (self.is_announced, self.still, self.stamp) = (false, 0, None);
        self.turn = self.turn.wrapping_add(1);
    }

    /// The turn in which a look begins.
    pub(super) fn turn(&self) -> u32 {
        self.turn
    }

    /// A look that began in this turn has announced the connection.
    pub(super) fn note_announced(&mut self, turn: u32) {
        self.is_announced |= self.turn == turn;
    }

    /// A look that began in this turn found nothing to report, and the stream had this stamp before.
    pub(super) fn note_stamp(&mut self, turn: u32, stamp: Option<u64>) {
        self.stamp = stamp.filter(|_| self.turn == turn);
    }

    /// A look found nothing, which counts if it is one of a wait. One of many hot connections that are told of does not stay hot for long.
    pub(super) fn note_still(&mut self, counts: bool, is_crowded: bool) {
        self.still += u32::from(counts);
        self.is_hot &= !self.is_announced || self.still <= STILL_MAX && !is_crowded;
    }

    /// The kernel's set says something.
    pub(super) fn note_kernel(&mut self) {
        self.kernel_says = true;
        self.begin_turn();
        self.kernels = self.kernels.wrapping_add(1);
    }

    /// Adds what the kernel has to say now, so that an event has both parts.
    pub(super) fn add_kernels(&mut self, fd: c_int, connection: &Connection, ready: &mut Ready) {
        if self.of_kernel.is_none() || !(self.kernel_says || ready.now != 0) {
            return;
        }
        let mut one = libc::pollfd { fd, events: ready.of_kernel, revents: 0 };
        // SAFETY: the entry lives through the call.
        let found = unsafe { real::poll(&raw mut one, 1, 0) };
        self.kernel_says = found > 0;
        let told = connection.of_program(fd, ready.of_kernel, one.revents) & !libc::POLLNVAL;
        self.kernel_says &= told != 0;
        ready.now |= told;
    }

    /// Whether the program is to be told of this; it is then taken as told. `edges` were taken behind the look, and
    /// behind the announcement where there was one: only what comes after it is told by the stream.
    pub(super) fn reports(&mut self, ready: &Ready, edges: Edges) -> bool {
        let is_new = self.would_report(ready, edges);
        if is_new {
            self.seen = Some(Seen { edges, kernels: self.kernels, bits: ready.now });
        }
        is_new
    }

    /// As [`Self::reports`], and nothing is told.
    pub(super) fn would_report(&self, ready: &Ready, edges: Edges) -> bool {
        if ready.now == 0 || !self.is_armed {
            return false;
        }
        let Some(seen) = self.seen.filter(|_| is_edge(self.events)) else { return true };
        // What `edges` counts may have come behind the look. So it counts as told only if the event had the bit: the
        // program reads or writes after the event, and finds it.
        let rises = |bits: PollBits| ready.now & bits != 0 && seen.bits & bits == 0;
        let has_come = edges.come > seen.edges.come && ready.now & IN_BITS != 0;
        let has_room = edges.room != seen.edges.room && ready.now & OUT_BITS != 0;
        let has_ended = ready.now & !seen.bits & END_BITS != 0;
        has_come || has_room || has_ended || rises(IN_BITS) || rises(OUT_BITS) || self.kernels != seen.kernels
    }
}

/// Whether only edges are wanted.
pub(super) fn is_edge(events: u32) -> bool {
    events & libc::EPOLLET as u32 != 0
}

/// The two have the same numbers for these bits.
pub(super) fn bits_of_poll(events: u32) -> PollBits {
    PollBits::try_from(events & 0x3fff).unwrap_or(0)
}

pub(super) fn bits_of_epoll(bits: PollBits) -> u32 {
    u32::from(bits.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Role;

    #[test]
    fn bits_are_the_same_in_poll_and_epoll() {
        let pairs = [
            (libc::POLLIN, libc::EPOLLIN),
            (libc::POLLOUT, libc::EPOLLOUT),
            (libc::POLLPRI, libc::EPOLLPRI),
            (libc::POLLERR, libc::EPOLLERR),
            (libc::POLLHUP, libc::EPOLLHUP),
            (libc::POLLRDHUP, libc::EPOLLRDHUP),
            (libc::POLLRDNORM, libc::EPOLLRDNORM),
            (libc::POLLWRNORM, libc::EPOLLWRNORM),
        ];
        for (poll, epoll) in pairs {
            assert_eq!((bits_of_poll(epoll as u32), bits_of_epoll(poll)), (poll, epoll as u32));
        }
    }

    #[test]
    fn an_edge_is_told_once_and_a_level_each_time() {
        let connection = Arc::new(Connection::new(Role::Accepted, true));
        let entry = |events: c_int| Registered::new(&connection, epoll_event { events: events as u32, u64: 7 });
        let ready = |now| Ready { now, of_kernel: 0 };
        let edges = |come, room| Edges { come, room };
        let mut edge = entry(libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
        let both = libc::POLLIN | libc::POLLOUT;
        assert!(edge.reports(&ready(both), edges(4, 0)));
        assert!(!edge.reports(&ready(both), edges(4, 0)), "nothing came");
        assert!(!edge.reports(&ready(libc::POLLOUT), edges(4, 0)), "the bytes were read");
        assert!(edge.reports(&ready(both), edges(5, 0)), "a byte came");
        assert!(edge.reports(&ready(libc::POLLOUT), edges(5, 1)), "there is room again");
        assert!(edge.reports(&ready(both | libc::POLLRDHUP), edges(5, 1)), "the end came");
        assert!(!edge.reports(&ready(both | libc::POLLRDHUP), edges(5, 1)));
        edge.change(epoll_event { events: edge.events, u64: 8 });
        assert!(edge.reports(&ready(both), edges(5, 1)), "it was asked for again");
        let mut level = entry(libc::EPOLLIN);
        assert!(level.reports(&ready(libc::POLLIN), edges(4, 0)) && level.reports(&ready(libc::POLLIN), edges(4, 0)));
        assert!(!level.reports(&ready(0), edges(4, 0)));
        level.is_armed = false;
        assert!(!level.reports(&ready(libc::POLLIN), edges(4, 0)), "it was told once");
    }

    #[test]
    fn what_was_counted_without_being_told_is_told_later() {
        let connection = Arc::new(Connection::new(Role::Accepted, true));
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
        let mut entry = Registered::new(&connection, epoll_event { events, u64: 7 });
        let ready = |now| Ready { now, of_kernel: 0 };
        let both = libc::POLLIN | libc::POLLOUT;
        // A byte comes between the look, which finds room alone, and the count.
        assert!(entry.reports(&ready(libc::POLLOUT), Edges { come: 1, room: 0 }));
        assert!(entry.reports(&ready(both), Edges { come: 1, room: 0 }), "the byte was not told");
        assert!(!entry.reports(&ready(both), Edges { come: 1, room: 0 }));
        // The same with room.
        assert!(entry.reports(&ready(libc::POLLIN), Edges { come: 2, room: 1 }));
        assert!(entry.reports(&ready(both), Edges { come: 2, room: 1 }), "the room was not told");
        assert!(!entry.reports(&ready(both), Edges { come: 2, room: 1 }));
    }
}
