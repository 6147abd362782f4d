//! The way back: a connection that was upgraded returns to kernel TCP, where anybody can have it (docs/use/run.md).
//!
//! Owns who may write meanwhile: nobody. It must never open TCP for the program before the other end's words are read.

use std::ffi::c_int;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use raas::Reason;
use raas_core::switch::{Outcome, Switch};
use raas_core::way_back::{Begin, Due, Failed, RETURNED_MAX, WORD_BYTES, WayBack, Word};

use super::waiting::{Awaited, Until};
use super::{Connection, ReadPart, lock};
use crate::kernel_tcp::{has_ended, has_hung_up, has_peer_ended, has_tcp_ended, peek, show_end, unread_of_tcp};
use crate::{errno, inside, real};

/// How long the program at the other end may make no call that sees the wish.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Between looks at what nobody tells.
pub(super) const PAUSE: Duration = Duration::from_millis(1);
/// How long the other end, which may switch, has before the bytes that it sent over TCP are taken for nobody. Its
/// library looks sooner, unless a thread of its program is in a write that blocks.
const SWITCH_MAX: Duration = Duration::from_millis(50);
/// So many fit into TCP's buffers while nobody reads: both ends may return bytes at once.
const UNREAD_MAX: u64 = 32 << 10;
/// Bytes that are taken at once.
const PIECE: usize = 64 << 10;

impl Connection {
    /// Goes back to TCP for good, so that others can have the descriptor. True: it is there. False: that was not
    /// possible; bytes are lost then, and the connection ends by a reset.
    pub(crate) fn go_back(&self, fd: c_int) -> bool {
        self.go_back_until(fd, Instant::now() + PATIENCE)
    }

    /// As [`Self::go_back`], with a limit of the caller's.
    pub(crate) fn go_back_until(&self, fd: c_int, until: Instant) -> bool {
        if self.is_lost() {
            return self.regain();
        }
        if !self.may_leave_clear(fd) {
            self.refuse(fd);
            self.spoil(fd);
            return false;
        }
        if self.is_the_kernels() || self.stay() {
            return true;
        }
        if inside::is_inside() {
            return false;
        }
        let code = errno::get();
        let _only = lock(&self.bringing);
        if self.is_the_kernels() {
            return true;
        }
        let is_back = match self.await_switch(fd, until) {
            Ok((Outcome::Both, early)) => self.return_to_tcp(fd, Begin::Ask, early, until).is_ok(),
            Ok((Outcome::HereAlone, _)) => self.return_to_tcp(fd, Begin::Leave, Vec::new(), until).is_ok(),
            Ok((Outcome::Never, _)) => true,
            Ok((Outcome::Lost | Outcome::Open, _)) | Err(Failed) => false,
        };
        if !is_back {
            self.spoil(fd);
        }
        errno::set(code);
        is_back
    }

    /// Whether the way back is under way: nobody reads or writes meanwhile.
    pub(crate) fn is_going_back(&self) -> bool {
        self.is_going_back.load(Ordering::Acquire)
    }

    /// A call came while the connection goes back. It waits for a while; an error is the code with which it fails.
    pub(super) fn await_back(&self, may_wait: bool) -> Result<(), c_int> {
        if !may_wait || inside::is_inside() {
            return Err(libc::EAGAIN);
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// The other end may have asked on TCP, where nothing else can be before the stream's end was read. It is answered.
    pub(crate) fn hear_ask(&self, fd: c_int) {
        self.hear_ask_as(fd, Begin::Answer);
    }

    /// The same while the program makes no call. What it has not read goes back too, if that is little: the program may
    /// hand the connection on, and the other end cannot be asked a second time.
    pub(crate) fn hear_ask_for_program(&self, fd: c_int) {
        let Ok(_only) = self.bringing.try_lock() else { return };
        let is_little = self.unread().is_none_or(|unread| unread <= UNREAD_MAX);
        let asks = is_little && self.can_say();
        self.hear_ask_as(fd, if asks { Begin::Ask } else { Begin::Answer });
    }

    fn hear_ask_as(&self, fd: c_int, begin: Begin) {
        if !self.can_hear_word() || inside::is_inside() || self.is_going_back() {
            return;
        }
        let code = errno::get();
        let mut word = self.peeked(fd);
        if word == Some(Word::End) {
            self.hear_end(fd);
            word = self.peeked(fd);
        }
        if word == Some(Word::Ask) && self.can_hear_ask() && !self.is_going_back() {
            let until = Instant::now() + PATIENCE;
            match self.return_to_tcp(fd, begin, Vec::new(), until) {
                Ok(()) => self.show_why(fd, self.kept_by().unwrap_or(Reason::PeerKeepsTcp)),
                Err(Failed) => self.spoil(fd),
            }
        }
        errno::set(code);
    }

    /// Whether this end writes nothing to TCP that the other one, which asks, could take for an answer.
    fn can_hear_ask(&self) -> bool {
        self.can_hear_word() && (self.writes_stream() || self.has_ended_writing())
    }

    /// A look at TCP of a writer: who only writes would not see that the other end has asked.
    pub(super) fn hear_ask_at_times(&self, fd: c_int) {
        const EACH: u32 = 16;
        if self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(EACH)
            && self.glance_at_stream().is_some_and(|found| found.contains(raas::Readiness::HUP))
        {
            self.hear_ask(fd);
        }
    }

    /// Whether TCP goes on where the stream that is read ends.
    pub(super) fn has_heard_ask(&self) -> bool {
        self.has_heard_ask.load(Ordering::Acquire)
    }

    /// The stream was read to its end.
    pub(super) fn note_stream_end(&self, fd: c_int) {
        let _inside = inside::enter();
        let _order = lock(&self.back);
        self.is_tail.store(true, Ordering::Release);
        if self.has_heard_ask() {
            self.read_tcp_again();
        } else if self.has_heard_end() {
            show_end(fd);
        }
    }

    fn read_tcp_again(&self) {
        self.reads_stream.store(false, Ordering::Release);
        self.readers.open();
    }

    /// Waits until both ends have switched, as they are about to, or it is known that the other one never will. The
    /// other end may be in a write that blocks until TCP's bytes are taken. With those that were taken.
    fn await_switch(&self, fd: c_int, until: Instant) -> Result<(Outcome, Vec<u8>), Failed> {
        let mut early = Vec::new();
        let patient_until = Instant::now() + SWITCH_MAX;
        loop {
            self.pump(fd);
            let switch = self.ask_link();
            if early.is_empty() && self.stay_with_other() {
                return Ok((Outcome::Never, early));
            }
            match switch.as_ref().map_or(Outcome::Lost, Switch::outcome) {
                Outcome::Open => {}
                Outcome::Both if self.writes_stream() => return Ok((Outcome::Both, early)),
                Outcome::HereAlone if self.writes_stream() && early.is_empty() => {
                    return Ok((Outcome::HereAlone, early));
                }
                _ => return Err(Failed),
            }
            if let Some(switch) = &switch
                && self.read_part() == ReadPart::Both
                && Instant::now() >= patient_until
                && !has_peer_ended(fd)
            {
                self.take_of_tcp(fd, switch, &mut early);
            }
            if self.has_heard_ask() || self.is_write_shut.load(Ordering::Acquire) || Instant::now() > until {
                return Err(Failed);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes what TCP has, up to where the stream goes on.
    fn take_of_tcp(&self, fd: c_int, switch: &Switch, early: &mut Vec<u8>) {
        let mut piece = vec![0; PIECE];
        let part = [libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: PIECE }];
        let most = self.bytes_of_tcp(fd, switch, &part).map_or(PIECE, |most| most.min(PIECE));
        if most == 0 || early.len() as u64 > RETURNED_MAX {
            return;
        }
        // SAFETY: there is room for so many bytes.
        let found = unsafe { real::recv(fd, piece.as_mut_ptr().cast(), most, libc::MSG_DONTWAIT) };
        if let Ok(found) = usize::try_from(found) {
            self.tcp_in.fetch_add(found as u64, Ordering::AcqRel);
            early.extend_from_slice(&piece[..found]);
        }
    }

    fn return_to_tcp(&self, fd: c_int, begin: Begin, early: Vec<u8>, until: Instant) -> Result<(), Failed> {
        // Another thread's way back is this one's too.
        if self.is_going_back.swap(true, Ordering::AcqRel) {
            while self.is_going_back() {
                std::thread::sleep(PAUSE);
            }
            return if self.is_the_kernels() { Ok(()) } else { Err(Failed) };
        }
        // Who hears a word of the other end meanwhile, or says that the program ends its writing, comes to his end first.
        drop(lock(&self.back));
        let is_asking = begin != Begin::Answer;
        // Another thread may have answered since the word was seen: TCP's next bytes are the program's then.
        let is_answered = !is_asking && self.has_heard_ask();
        let is_back = is_answered || self.is_the_kernels();
        let done = if is_back { Ok(()) } else { self.exchange(fd, begin, early, until) };
        if done.is_ok() && !is_answered {
            self.writers.open();
            let _order = lock(&self.back);
            self.has_heard_ask.store(true, Ordering::Release);
            if is_asking || self.is_tail.load(Ordering::Acquire) {
                self.read_tcp_again();
            }
            let by_other = if is_asking { Reason::KernelOnly } else { Reason::PeerKeepsTcp };
            self.settle(self.kept_by().unwrap_or(by_other));
            self.pay_end(fd);
        } else {
            // The program's calls tell what became of it.
            self.takers.open();
        }
        // Calls of the program that came meanwhile found no bytes, although some are there, and no room.
        self.word_edges.fetch_add(1, Ordering::AcqRel);
        self.is_full.store(true, Ordering::Release);
        self.is_going_back.store(false, Ordering::Release);
        if done.is_ok() {
            self.sets.all().iter().for_each(|(set, fd)| set.note_back(*fd));
        }
        self.tell_all();
        done
    }

    /// Says and hears the words. `early`: bytes that were taken from TCP for no program.
    fn exchange(&self, fd: c_int, begin: Begin, mut early: Vec<u8>, until: Instant) -> Result<(), Failed> {
        let mut back = WayBack::new(begin, self.token.load(Ordering::Acquire), self.can_say());
        {
            let _inside = inside::enter();
            self.say_rest().and_then(|()| self.stream().map_or(Ok(()), |s| s.shutdown(Shutdown::Write))).ok();
        }
        let back = back.as_mut().map_err(|_| Failed)?;
        loop {
            match back.due() {
                Due::Say(bytes) => {
                    let is_said = put(fd, bytes, until).is_ok();
                    back.on_said(is_said)?;
                }
                Due::TakeUnread => back.on_unread(self.take_unread(fd, std::mem::take(&mut early), until)?)?,
                Due::Take(count) => {
                    let taken = match take(fd, count, until) {
                        Err(Failed) if has_ended(fd) => None,
                        taken => Some(taken?),
                    };
                    back.on_taken(taken)?;
                    if back.has_heard_end() {
                        self.note_end_of_bytes();
                    }
                }
                Due::LookForEnd => return if has_hung_up(fd) { Ok(()) } else { Err(Failed) },
                Due::Nothing => return Ok(()),
            }
        }
    }

    /// The bytes that came before the end of the stream and that the program has not read.
    fn take_unread(&self, fd: c_int, mut unread: Vec<u8>, until: Instant) -> Result<Vec<u8>, Failed> {
        // Those that the other end wrote to TCP before it switched come first.
        while self.read_part() == ReadPart::Both {
            let left =
                self.ask_link().and_then(|switch| switch.left(self.tcp_in.load(Ordering::Acquire))).ok_or(Failed)?;
            unread.extend(take(fd, usize::try_from(left).map_err(|_| Failed)?, until)?);
            self.tcp_in.fetch_add(left, Ordering::AcqRel);
        }
        let mut piece = vec![0; PIECE];
        let mut stream = self.stream().ok_or(Failed)?;
        // A thread of the program is at it for a moment only, unless this is a handler that interrupted it there.
        while !self.takers.is_closed() && !self.takers.close() {
            if Instant::now() >= until {
                return Err(Failed);
            }
            std::thread::sleep(PAUSE);
        }
        loop {
            if self.read_part() != ReadPart::Stream {
                return Ok(unread);
            }
            let found = {
                let _inside = inside::enter();
                stream.read(&mut piece)
            };
            match found {
                Ok(0) => return Ok(unread),
                Ok(count) => unread.extend_from_slice(&piece[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let awaited = Awaited { is_read: true, stream: true, fd: -1 };
                    match self.wait(awaited, Until::at(until)) {
                        Err(libc::EAGAIN) => return Err(Failed),
                        // A signal does not end this, and its handler waits.
                        Err(libc::EINTR) => std::thread::sleep(PAUSE),
                        _ => {}
                    }
                }
                // It was reset before it carried bytes, or after: TCP tells.
                Err(_) if has_hung_up(fd) && unread.is_empty() => return Ok(unread),
                Err(_) => return Err(Failed),
            }
        }
    }

    /// The word that is next on TCP, if one is; it stays there.
    pub(super) fn peeked(&self, fd: c_int) -> Option<Word> {
        let mut bytes = [0; WORD_BYTES];
        let is_there = unread_of_tcp(fd) >= WORD_BYTES && peek(fd, &mut bytes) == WORD_BYTES as isize;
        if is_there { Word::of(self.token.load(Ordering::Acquire), &bytes) } else { None }
    }

    /// How many of the next `most` bytes on TCP may be read: those that are there, and are before a word. What comes
    /// behind this look may be one. None: no more bytes come, and a read tells why.
    pub(super) fn bytes_before_word(&self, fd: c_int, most: usize) -> Option<usize> {
        if unread_of_tcp(fd) == 0 && (!has_tcp_ended(fd) || unread_of_tcp(fd) == 0) {
            return if has_tcp_ended(fd) { None } else { Some(0) };
        }
        let mut bytes = vec![0; most.min(PIECE) + WORD_BYTES];
        let found = peek(fd, &mut bytes);
        let found = bytes.get(..usize::try_from(found).ok()?)?;
        Some(Word::bytes_before(self.token.load(Ordering::Acquire), found))
    }
}

/// Waits for an event of a descriptor.
fn wait_for(fd: c_int, events: i16, until: Instant) -> Result<(), Failed> {
    let left = until.saturating_duration_since(Instant::now());
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let millis = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the entry lives through the call.
    let result = unsafe { real::poll(&raw mut one, 1, millis) };
    if result == 0 || result < 0 && errno::get() != libc::EINTR { Err(Failed) } else { Ok(()) }
}

/// Writes bytes to TCP, all of them.
pub(super) fn put(fd: c_int, mut bytes: &[u8], until: Instant) -> Result<(), Failed> {
    while !bytes.is_empty() {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and the length are those of `bytes`.
        let sent = unsafe { real::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) if errno::get() == libc::EAGAIN => wait_for(fd, libc::POLLOUT, until)?,
            Err(_) if errno::get() == libc::EINTR => {}
            Err(_) => return Err(Failed),
        }
    }
    Ok(())
}

/// Reads so many bytes of TCP.
pub(super) fn take(fd: c_int, count: usize, until: Instant) -> Result<Vec<u8>, Failed> {
    // The other end names the count, so room is made for what comes.
    let (mut bytes, mut done) = (Vec::new(), 0);
    while done < count {
        bytes.resize(count.min(done + PIECE), 0);
        let rest = &mut bytes[done..];
        // SAFETY: there is room for the rest.
        let found = unsafe { real::recv(fd, rest.as_mut_ptr().cast(), rest.len(), libc::MSG_DONTWAIT) };
        match usize::try_from(found) {
            Ok(0) if has_peer_ended(fd) || Instant::now() >= until => return Err(Failed),
            // The end is this process's own doing, and bytes may come: the kernel does not wait for them.
            Ok(0) => std::thread::sleep(PAUSE),
            Ok(found) => done += found,
            Err(_) if errno::get() == libc::EAGAIN => wait_for(fd, libc::POLLIN, until)?,
            Err(_) if errno::get() == libc::EINTR => {}
            Err(_) => return Err(Failed),
        }
    }
    Ok(bytes)
}
