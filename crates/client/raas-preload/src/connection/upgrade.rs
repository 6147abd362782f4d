//! From TCP to the stream: asking the daemon, getting the stream, saying and hearing `G` and `W`.
//!
//! Owns how far that is. It must never say `G` while a thread of this process is in a read that knows TCP alone, and
//! never say `W` while one is in a write. Whoever reads, writes or waits drives it; it never waits.

use std::ffi::c_int;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock, TryLockError};

use raas::meeting::{Found, Meeting, Rendezvous, TcpEnd};
use raas::{ConnectOptions, Connecting, PathKind, Reason, Stream};
use raas_core::switch::{Outcome, Switch, hello};

use super::guard::ends;
use super::{Connection, Role, lock};
use crate::desk::desk;
use crate::{owner, rings};

/// While a connection waits for its other end, each of so many calls looks whether it is there.
const LOOKS_AT_FIRST: u32 = 256;
/// Afterwards one of so many does: the other end has no RaaS, most likely.
const LOOKS_LATER: u32 = 64;

/// The buffers of the two ends of a TCP connection hold less: the kernel counts each by an `int`.
const BUFFERED_MAX: u64 = 2 << 31;

/// Told of each connection that has got its stream.
static ON_STREAM: OnceLock<fn(c_int)> = OnceLock::new();

/// How far it is.
#[derive(Debug, Default)]
pub(super) enum Upgrade {
    /// Nothing was read or written.
    #[default]
    New,
    /// The daemon looks for the other end.
    Meeting { meeting: Meeting, token: Option<u64> },
    /// The other end that connected will make the stream.
    Awaited { meeting: Meeting, token: u64 },
    /// This end that connected makes the stream.
    Connecting { meeting: Meeting, connecting: Connecting, token: u64 },
    /// The stream is there.
    Linked(Link),
    /// It stays on TCP. `raas ss` shows it while the meeting is there.
    Stays { row: Option<Meeting> },
}

/// What was said and heard on a stream.
#[derive(Debug)]
pub(super) struct Link {
    /// Has `raas ss` show the program's own addresses.
    _row: Meeting,
    /// To be said.
    unsaid: Vec<u8>,
    switch: Switch,
    /// Something may be said.
    has_begun: bool,
    /// The other end takes no words any more. How the stream ended is heard by reading.
    is_deaf: bool,
}

impl Upgrade {
    /// The program closes the connection: nobody waits any more.
    pub(super) fn forget(&mut self) {
        let token = match self {
            Self::Meeting { token: Some(token), .. } | Self::Awaited { token, .. } => Some(*token),
            _ => None,
        };
        *self = Self::Stays { row: None };
        if let Some(token) = token {
            desk().forget(token);
        }
    }
}

impl Connection {
    /// `told` is called for each connection that gets its stream, with its descriptor. To be called once.
    pub(crate) fn on_stream(told: fn(c_int)) {
        let _is_first = ON_STREAM.set(told);
    }

    /// Something is about to be read or written: the first time, the other end is looked for.
    #[inline]
    pub(crate) fn touch(&self, fd: c_int) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.ask(fd);
        }
        self.pump(fd);
    }

    /// Looks for the other end for the first time. It makes no stream yet.
    #[cold]
    pub(super) fn ask(&self, fd: c_int) {
        // The handler of a fault, that came while this thread had locks of the library's.
        let is_nested = crate::inside::is_inside();
        let is_in_handler = crate::handlers::is_in_one();
        if is_in_handler && !self.has_heirs() && !self.has_wish() {
            // It makes threads, which takes locks of the C library's: the next call outside of a handler does.
            return;
        }
        let _inside = crate::inside::enter();
        let role = self.role();
        if is_nested || role == Role::Fresh || ends(fd).is_none() || self.is_used.swap(true, Ordering::AcqRel) {
            return;
        }
        self.inode.store(super::sharing::inode_of(fd).unwrap_or(0), Ordering::Relaxed);
        if self.stays_by(fd) {
            return;
        }
        let why_kept = || match () {
            () if rings::are_in_use() => Some(Reason::UnseenCalls),
            () if owner::is_sandbox_due() => Some(Reason::Sandbox),
            () if is_in_handler => Some(Reason::KernelOnly),
            () => None,
        };
        let why = why_kept();
        if why.is_some() || !self.claim() {
            // Calls that are not seen use it, or another process does, or may.
            return self.settle(why.unwrap_or(Reason::KernelOnly));
        }
        let mut upgrade = lock(&self.upgrade);
        let otherwise = if role == Role::Kernel { Reason::KernelOnly } else { Reason::DaemonLost };
        let (begun, stays) = begin(fd, role).unwrap_or((Upgrade::Stays { row: None }, Some(otherwise)));
        self.counted.set(PathKind::Tcp, stays.unwrap_or(Reason::NotMet));
        self.is_settled.store(stays.is_some(), Ordering::Relaxed);
        *upgrade = begun;
        drop(upgrade);
        // PAIRS WITH those in `rings::note_ring` and `sandbox::enter`, which another thread may have called meanwhile.
        if let Some(why) = why_kept()
            && self.stay()
        {
            self.counted.set(PathKind::Tcp, why);
        }
        self.stays_by(fd);
    }

    /// Stays the kernel's if that is still possible. False: it is too late.
    pub(crate) fn stay(&self) -> bool {
        let _inside = crate::inside::enter();
        let mut upgrade = lock(&self.upgrade);
        if self.is_switching() {
            return false;
        }
        self.leave_stream(&mut upgrade, self.why_kernels());
        true
    }

    /// No stream, or that one no more. The other end may have said `G`, and read both: TCP's end is the end of the bytes.
    fn leave_stream(&self, upgrade: &mut Upgrade, why: Reason) {
        upgrade.forget();
        if let Some(stream) = self.stream() {
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        self.settle(why);
    }

    /// It is the kernel's for good.
    pub(super) fn settle(&self, why: Reason) {
        self.counted.set(PathKind::Tcp, why);
        self.set_role(Role::Kernel);
        self.is_settled.store(true, Ordering::Release);
    }

    /// Stays the kernel's where this end has not switched, and the other end has ended its stream before it did: it
    /// never switches.
    pub(super) fn stay_with_other(&self) -> bool {
        let mut upgrade = lock(&self.upgrade);
        let is_possible = matches!(&*upgrade, Upgrade::Linked(link) if link.switch.outcome() == Outcome::Never);
        if is_possible {
            let _inside = crate::inside::enter();
            self.leave_stream(&mut upgrade, self.kept_by().unwrap_or(Reason::PeerKeepsTcp));
            self.readers.open();
        }
        is_possible
    }

    /// Does what can be done now.
    #[inline]
    pub(crate) fn pump(&self, fd: c_int) {
        if !self.is_settled.load(Ordering::Relaxed) && self.is_used.load(Ordering::Relaxed) {
            self.pump_slowly(fd);
        }
    }

    fn pump_slowly(&self, fd: c_int) {
        // As in `ask`: a connection that gets its stream has a thread made.
        if crate::handlers::is_in_one() {
            return;
        }
        let was_linked = self.stream().is_some();
        self.do_next_step(was_linked);
        if !was_linked && self.stream().is_some() {
            self.bound(fd);
            ON_STREAM.get().into_iter().for_each(|told| told(fd));
        }
    }

    /// As [`Self::pump`], by a thread of the library's, once there is a stream.
    pub(crate) fn drive(&self) {
        self.do_next_step(true);
    }

    fn do_next_step(&self, is_linked: bool) {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        if !is_linked && looks > LOOKS_AT_FIRST && !looks.is_multiple_of(LOOKS_LATER) {
            return;
        }
        if crate::inside::is_inside() {
            return;
        }
        let _inside = crate::inside::enter();
        let mut upgrade = match self.upgrade.try_lock() {
            Ok(upgrade) => upgrade,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it.
            Err(TryLockError::WouldBlock) => return,
        };
        let now = std::mem::replace(&mut *upgrade, Upgrade::Stays { row: None });
        *upgrade = self.next(now);
        match &mut *upgrade {
            Upgrade::Linked(link) => self.talk(link),
            Upgrade::Stays { .. } => self.is_settled.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    /// One step.
    fn next(&self, upgrade: Upgrade) -> Upgrade {
        match upgrade {
            Upgrade::Meeting { mut meeting, token } => {
                let found = meeting.try_finish();
                if meeting.may_be_clear() {
                    self.note_clear();
                }
                match (found, token) {
                    (Ok(None), _) => Upgrade::Meeting { meeting, token },
                    (Ok(Some(Found::Met(_))), Some(token)) => self.next(Upgrade::Awaited { meeting, token }),
                    (Ok(Some(Found::Met(place))), None) => {
                        let session = desk().session();
                        let started = session.and_then(|s| ConnectOptions::new().start(&s, place.at).ok());
                        match started {
                            Some(connecting) => Upgrade::Connecting { meeting, connecting, token: place.token },
                            None => Upgrade::Stays { row: Some(meeting) },
                        }
                    }
                    (found @ (Ok(Some(Found::Stays(_))) | Err(_)), token) => {
                        if let Ok(Some(Found::Stays(reason))) = &found {
                            self.counted.set(PathKind::Tcp, *reason);
                        }
                        let is_polled = matches!(found, Ok(Some(Found::Stays(Reason::PolledTcp))));
                        if let Some(token) = token {
                            desk().forget(token);
                        }
                        self.is_polled.store(is_polled, Ordering::Relaxed);
                        Upgrade::Stays { row: Some(meeting) }
                    }
                }
            }
            Upgrade::Awaited { meeting, token } => match desk().take(token) {
                Some(stream) => self.link(stream, (meeting, token), &[]),
                None => Upgrade::Awaited { meeting, token },
            },
            Upgrade::Connecting { meeting, mut connecting, token } => match connecting.try_finish() {
                Ok(Some(stream)) => {
                    desk().note_success();
                    self.link(stream, (meeting, token), &hello(token))
                }
                Ok(None) => Upgrade::Connecting { meeting, connecting, token },
                Err(error) => {
                    desk().note_failure(error.reason());
                    self.stay_because(meeting, error.reason().unwrap_or(Reason::Unspecified))
                }
            },
            other => other,
        }
    }

    /// A stream was refused: the person learns why.
    fn stay_because(&self, meeting: Meeting, reason: Reason) -> Upgrade {
        meeting.stays(reason);
        self.counted.set(PathKind::Tcp, reason);
        Upgrade::Stays { row: Some(meeting) }
    }

    /// The stream is there.
    fn link(&self, stream: Stream, (meeting, token): (Meeting, u64), words: &[u8]) -> Upgrade {
        meeting.show(&stream);
        self.token.store(token, Ordering::Release);
        let sets = Arc::clone(&self.sets);
        let is_usable = stream.set_nonblocking(true).and_then(|()| stream.on_change(move || sets.tell()));
        if is_usable.is_err() || self.is_write_shut.load(Ordering::Acquire) || self.stream.set(stream).is_err() {
            return Upgrade::Stays { row: None };
        }
        if let Some(stream) = self.stream() {
            self.counted.set(stream.path(), stream.reason());
        }
        // Who waits in these sets must learn of the stream before the other end may switch to it.
        self.sets.all().iter().for_each(|(set, fd)| set.note_linked(*fd));
        Upgrade::Linked(Link {
            _row: meeting,
            unsaid: words.to_vec(),
            switch: Switch::new(None),
            has_begun: false,
            is_deaf: false,
        })
    }

    /// Says and hears what is due.
    fn talk(&self, link: &mut Link) {
        let Some(stream) = self.stream() else { return };
        self.hear(link, stream);
        if self.is_going_back() || self.has_heard_ask() {
            return;
        }
        if link.switch.is_given_up() {
            // The other end stays on TCP, and nobody was told of the stream. What is there to be read of it is no news.
            self.is_settled.store(true, Ordering::Release);
            return;
        }
        // The other end says `G` when it has heard the first word, and waits for this one's from then on. A thread that
        // reads TCP, and knows of no stream, would not see it.
        if !link.has_begun {
            fence(Ordering::SeqCst);
            link.has_begun = self.readers.is_empty();
            if !link.has_begun {
                return;
            }
        }
        // The end that connected gets its stream before the other end has taken it, which may never happen: then TCP's
        // end is the end, so nobody may wait for a word on the stream.
        let is_taken = self.role() != Role::Connected || link.switch.is_granted();
        if !link.switch.has_granted() && is_taken && self.readers.close() {
            link.unsaid.extend(link.switch.grant());
            self.hear(link, stream);
        }
        // `G` comes first, and waits for a thread that reads TCP.
        let may_say = !link.is_deaf && !self.is_write_shut.load(Ordering::Acquire);
        if may_say && link.switch.may_leave() && self.writers.close() {
            link.unsaid.extend(link.switch.leave(self.tcp_out.load(Ordering::Acquire)));
            // Who found no room on TCP just now, and waits for what the kernel says of it, has the stream's.
            self.sets.tell();
        }
        say(link, stream);
        let is_over = link.switch.outcome() == Outcome::Both && link.unsaid.is_empty();
        if is_over && self.reads_stream.load(Ordering::Acquire) {
            self.is_settled.store(true, Ordering::Relaxed);
        }
    }

    /// Hears what the other end says before its bytes.
    fn hear(&self, link: &mut Link, stream: &Stream) {
        // What decides whether a read that comes to TCP's end, or to the last of its bytes, finds an end or something else.
        let answers = |link: &Link| (link.switch.wanted() > 0, self.reads_stream.load(Ordering::Acquire));
        let before = answers(link);
        self.hear_words(link, stream);
        if answers(link) != before {
            self.has_word.store(true, Ordering::Release);
            // The kernel may have shown TCP's end already, and a read found that the stream's word was missing. No
            // further edge of TCP comes.
            self.word_edges.fetch_add(1, Ordering::AcqRel);
            self.sets.tell();
        }
    }

    fn hear_words(&self, link: &mut Link, mut stream: &Stream) {
        let mut bytes = [0; 16];
        while link.switch.wanted() > 0 {
            match stream.read(&mut bytes[..link.switch.wanted()]) {
                Ok(0) => link.switch.on_end(),
                // What is wrong with them the switch knows.
                Ok(count) => drop(link.switch.take(&bytes[..count], self.written_max())),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => link.switch.on_broken(),
            }
        }
        if link.switch.reads_new(self.tcp_in.load(Ordering::Acquire)) {
            self.reads_stream.store(true, Ordering::Release);
        }
    }

    /// Bytes that the other end can have written to TCP: those that are read here, and those that the buffers of both
    /// kernels hold at most. None in the clear, where its own host lets it and this one does not.
    fn written_max(&self) -> u64 {
        if self.may_be_clear() { self.tcp_in.load(Ordering::Acquire).saturating_add(BUFFERED_MAX) } else { 0 }
    }

    /// The connection is refused: it has no row but this one, which says why.
    pub(super) fn tell_refused(&self) {
        self.counted.set(PathKind::Tcp, Reason::NotEncrypted);
        let mut upgrade = lock(&self.upgrade);
        let row = match std::mem::replace(&mut *upgrade, Upgrade::Stays { row: None }) {
            Upgrade::Meeting { meeting, .. }
            | Upgrade::Awaited { meeting, .. }
            | Upgrade::Connecting { meeting, .. } => Some(meeting),
            Upgrade::Stays { row } => row,
            linked @ (Upgrade::New | Upgrade::Linked(_)) => {
                *upgrade = linked;
                return;
            }
        };
        row.iter().for_each(|row| row.stays(Reason::NotEncrypted));
        *upgrade = Upgrade::Stays { row };
        self.is_settled.store(true, Ordering::Release);
    }

    /// Where TCP ends for the reader, and how the stream ended, as far as was heard. Looks now.
    pub(super) fn ask_link(&self) -> Option<Switch> {
        let _inside = crate::inside::enter();
        let mut upgrade = lock(&self.upgrade);
        match &mut *upgrade {
            Upgrade::Linked(link) => {
                self.talk(link);
                Some(link.switch)
            }
            _ => None,
        }
    }

    /// Whether a thread that waits for TCP's bytes must watch the stream too: `G` was not said. Its caller is counted
    /// among the readers of TCP.
    pub(super) fn must_watch_both(&self) -> bool {
        // PAIRS WITH the one in `talk`: the stream is seen here, or this reader there.
        fence(Ordering::SeqCst);
        self.stream().is_some() && !self.is_settled.load(Ordering::Acquire) && !crate::inside::is_inside()
    }

    /// What was to be said before the program's bytes is said. An error: the stream broke.
    pub(super) fn say_rest(&self) -> io::Result<()> {
        if let Upgrade::Linked(link) = &mut *lock(&self.upgrade)
            && let Some(stream) = self.stream()
        {
            say(link, stream);
            if !link.unsaid.is_empty() {
                return Err(if link.is_deaf { ErrorKind::BrokenPipe } else { ErrorKind::WouldBlock }.into());
            }
        }
        Ok(())
    }

    pub(super) fn hear_last_words(&self) {
        if let Upgrade::Linked(link) = &mut *lock(&self.upgrade)
            && let Some(stream) = self.stream()
        {
            self.hear(link, stream);
        }
    }
}

/// Says what is to be said, as far as there is room.
fn say(link: &mut Link, mut stream: &Stream) {
    while !link.unsaid.is_empty() && !link.is_deaf {
        match stream.write(&link.unsaid) {
            Ok(count) => drop(link.unsaid.drain(..count)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(_) => link.is_deaf = true,
        }
    }
}

/// Begins to look for the other end. With why it will stay on TCP, if that is known.
fn begin(fd: c_int, role: Role) -> Option<(Upgrade, Option<Reason>)> {
    let mut desk = desk();
    let session = match role {
        Role::Connected | Role::Accepted => desk.session()?,
        Role::Fresh | Role::Kernel => return None,
    };
    let rendezvous = match role {
        Role::Accepted => Some(desk.expect(&session)),
        _ => None,
    };
    let pause = desk.pause().filter(|_| role == Role::Connected);
    let (end, token, refused) = match rendezvous {
        _ if pause.is_some() => (TcpEnd::Stays(pause?), None, None),
        Some(Ok(at)) => (TcpEnd::Accepted(at), Some(at.token), None),
        // Nobody is heard there: the other end, and `raas ss`, learn that this one takes no stream.
        Some(Err(reason)) => (TcpEnd::Accepted(Rendezvous { port: 0, token: 0 }), None, Some(reason)),
        None => (TcpEnd::Connected, None, None),
    };
    // SAFETY: the program is in a call with this descriptor, so it is open until the call returns.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    match (Meeting::begin(&session, socket, end), refused) {
        (Ok(meeting), None) => Some((Upgrade::Meeting { meeting, token }, None)),
        (Ok(meeting), Some(reason)) => {
            meeting.stays(reason);
            Some((Upgrade::Stays { row: Some(meeting) }, Some(reason)))
        }
        (Err(_), _) => {
            token.into_iter().for_each(|token| desk.forget(token));
            None
        }
    }
}
