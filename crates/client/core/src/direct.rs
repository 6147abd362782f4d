//! A stream's own TCP connection (docs/inside/kernel-tcp.md): what the two ends say on it before the stream's bytes.
//!
//! Owns the order `Q`, `G`, `W`, and what follows from it: whether this side may switch, where the peer switched, and
//! whether more can come. It must never read a byte of the stream as one of these, and never let a connection that broke
//! look like one that ended.
//!
//! Both sides say `Q` at once and answer the peer's by `G`. A side may switch when it has said `G` and has the peer's.
//! So a side that has not said `G` knows that its peer has not switched.
#![expect(
    clippy::disallowed_types,
    reason = "reader, writer and whoever hears the daemon share it; what is done under the lock never waits, and a place \
              is set without making anything"
)]

use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use control::Reason;

use crate::Side;
use crate::switch::{NotOurs, SWITCH_BYTES, Switch};

/// "I have the connection."
const HELLO: u8 = b'Q';
/// The same of a connection of messages. They have no `W`: headers among them say where the way changes
/// (`direct_messages`). Who does not know these takes no part.
const HELLO_MESSAGES: u8 = b'P';

/// This side said `G`: from now on the peer may switch.
const COMMITTED: u32 = 1;
/// The peer said `G`.
const GRANTED: u32 = 2;
/// Nothing more comes by TCP.
const OVER: u32 = 4;
/// The peer switched.
const SWITCHED: u32 = 8;
/// This side switched.
const LEFT_RING: u32 = 16;

/// The connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectBroken(pub Reason);

/// A connected TCP socket, or what stands for it. No call but [`DirectSocket::wait_room`] waits.
pub trait DirectSocket: fmt::Debug + Send + Sync {
    /// Takes bytes that came: how many, 0 at the end, `None` if there are none yet.
    fn recv(&self, buf: &mut [u8]) -> Result<Option<usize>, DirectBroken>;

    /// Sends bytes: how many were taken, 0 if there is no room.
    fn send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, DirectBroken>;

    /// Nothing more is sent; what was taken still arrives.
    fn end_sending(&self);

    /// Whether a call for this side would do something: bytes, room, the end, an error.
    fn is_ready(&self, side: Side) -> bool;

    /// Whether the peer's end has come, perhaps behind bytes.
    fn has_end(&self) -> bool;

    /// Somebody is going to wait for this side: the next change of it is to be told, once.
    fn arm(&self, side: Side);

    /// A change was told, and with it all that was armed.
    fn disarm(&self);

    /// What a thread may sleep on that waits for one side alone, if there is something.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits for room, at most some time.
    fn wait_room(&self);
}

/// See the head of this file. Both directions share it.
#[derive(Debug)]
pub struct Direct {
    pub(crate) socket: Box<dyn DirectSocket>,
    carries_messages: bool,
    /// What was said; the rest is what others know of it without a lock.
    words: Mutex<Switch>,
    state: AtomicU32,
    /// Why it broke: a reason's number and 1.
    broken: AtomicU32,
}

impl Direct {
    /// Says that this side has the connection; `carries_messages`: as [`DirectPlace::carries_messages`] says.
    pub fn new(socket: Box<dyn DirectSocket>, carries_messages: bool) -> Arc<Self> {
        let hello = if carries_messages { HELLO_MESSAGES } else { HELLO };
        let direct = Self {
            socket,
            carries_messages,
            words: Mutex::new(Switch::new(Some(hello))),
            state: AtomicU32::new(0),
            broken: AtomicU32::new(0),
        };
        direct.say(hello);
        Arc::new(direct)
    }

    /// Whether what it carries are messages.
    pub(crate) fn carries_messages(&self) -> bool {
        self.carries_messages
    }

    fn is(&self, bits: u32) -> bool {
        self.state.load(Ordering::Acquire) & bits == bits
    }

    fn set(&self, bits: u32) {
        self.state.fetch_or(bits, Ordering::AcqRel);
    }

    /// One of the first two bytes of this side: an empty socket has room for them. False: it was not said.
    fn say(&self, word: u8) -> bool {
        match self.socket.send(&[IoSlice::new(&[word])]) {
            Ok(1) => return true,
            Ok(_) => self.on_broken(DirectBroken(Reason::DirectLost)),
            Err(broken) => self.on_broken(broken),
        }
        false
    }

    /// The connection is of no use any more; the first reason stands.
    pub(crate) fn on_broken(&self, DirectBroken(reason): DirectBroken) {
        let _ = self.broken.compare_exchange(0, reason.code() + 1, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Why it broke, if it did.
    pub(crate) fn broken(&self) -> Option<Reason> {
        self.broken.load(Ordering::Acquire).checked_sub(1).map(Reason::from_code)
    }

    /// Whether the stream depends on it: this side told its peer that it may switch.
    pub(crate) fn is_committed(&self) -> bool {
        self.is(COMMITTED)
    }

    /// Whether this side may switch.
    pub(crate) fn may_switch(&self) -> bool {
        self.is(COMMITTED | GRANTED) && self.broken().is_none()
    }

    /// Whether both sides have said all that comes before a switch.
    pub fn is_settled(&self) -> bool {
        self.is(COMMITTED | GRANTED) || self.is(OVER) || self.broken().is_some()
    }

    /// Whether nothing more comes by it.
    pub(crate) fn is_over(&self) -> bool {
        self.is(OVER)
    }

    /// Whether the peer has said all that comes before what it sends.
    pub(crate) fn is_granted(&self) -> bool {
        self.is(GRANTED)
    }

    /// The peer's messages come by it.
    pub(crate) fn on_peer_switch(&self) {
        self.set(SWITCHED);
    }

    /// This side switches.
    pub(crate) fn on_switch(&self) {
        self.set(LEFT_RING);
    }

    /// Whether this side's writer waits for its room: a stream's that switched. A message goes by the ring then.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.is(LEFT_RING) && !self.carries_messages
    }

    /// Whether a direction goes by it.
    pub(crate) fn is_used(&self) -> bool {
        self.is(LEFT_RING) || self.is(SWITCHED)
    }

    /// TCP's end was read.
    pub(crate) fn on_over(&self) {
        self.set(OVER);
    }

    /// Something changed, as was to be told. Afterwards everybody who waits for the stream looks.
    pub fn handle_event(&self) {
        self.socket.disarm();
        self.advance();
        if !self.is_settled() {
            // Perhaps nobody waits for the stream.
            self.socket.arm(Side::Read);
        }
    }

    /// Reads what the peer said before the stream's bytes, as far as it came, and answers. Where the peer switched, if it
    /// did.
    pub fn advance(&self) -> Option<u64> {
        // Held for some calls that do not wait.
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        while self.broken().is_none() && !self.is_over() {
            let mut said = [0; SWITCH_BYTES];
            // Behind `G` come messages.
            let wanted = if self.carries_messages && words.is_granted() { 0 } else { words.wanted() };
            if wanted == 0 {
                break;
            }
            match self.socket.recv(&mut said[..wanted]) {
                Ok(None) => break,
                // A side that ends in the middle of a word is a side that died: the lane says how.
                Ok(Some(0)) => self.on_over(),
                Ok(Some(count)) => match words.take(&said[..count], u64::MAX) {
                    Ok(()) => self.on_words(&mut words),
                    Err(NotOurs) => self.on_broken(DirectBroken(Reason::AppFault)),
                },
                Err(broken) => self.on_broken(broken),
            }
        }
        words.at()
    }

    fn on_words(&self, words: &mut Switch) {
        if !words.has_granted() {
            // Before it is said: the peer may switch at once.
            self.set(COMMITTED);
            let [grant] = words.grant();
            if !self.say(grant) {
                // It was never said, as where this side writes no more: the peer stays on the ring.
                self.state.fetch_and(!COMMITTED, Ordering::AcqRel);
            }
        }
        if words.is_granted() {
            self.set(GRANTED);
        }
        if words.at().is_some() {
            self.set(SWITCHED);
        }
    }

    /// Takes and drops what came, so that closing does not reset what this side sent.
    pub(crate) fn drain(&self) {
        /// More than this a peer that goes on writing gets a reset for.
        const DRAIN_MAX: usize = 16 << 20;
        let _at_rest = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rest, mut drained) = ([0; 16 << 10], 0);
        while drained < DRAIN_MAX {
            match self.socket.recv(&mut rest) {
                Ok(Some(count @ 1..)) => drained += count,
                _ => return,
            }
        }
    }
}

/// Where the connection is put when the daemon has made it: shared by the connection and whoever hears the daemon.
#[derive(Debug)]
pub struct DirectPlace {
    /// The stream's number on this host.
    connection: u64,
    direct: OnceLock<Arc<Direct>>,
    carries_messages: AtomicBool,
    /// This side writes no more.
    is_ended: AtomicBool,
}

impl DirectPlace {
    pub(crate) fn new(connection: u64) -> Arc<Self> {
        let [carries_messages, is_ended] = [const { AtomicBool::new(false) }; 2];
        Arc::new(Self { connection, direct: OnceLock::new(), carries_messages, is_ended })
    }

    /// The stream's number on this host.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// What the connection carries are messages, all of which are written by [`Tx::put_message`](crate::Tx::put_message).
    /// To be said before the first.
    pub fn carry_messages(&self) {
        self.carries_messages.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn carries_messages(&self) -> bool {
        self.carries_messages.load(Ordering::Relaxed)
    }

    /// The connection, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&Arc<Direct>> {
        self.direct.get()
    }

    /// Puts it in. False: there is one already.
    pub fn put(&self, direct: Arc<Direct>) -> bool {
        if self.direct.set(direct).is_err() {
            return false;
        }
        // PAIRS WITH the fence in `end_sending`: put, then looked; the other side marks, then looks.
        fence(Ordering::SeqCst);
        if self.is_ended.load(Ordering::Relaxed)
            && let Some(direct) = self.get()
        {
            direct.socket.end_sending();
        }
        true
    }

    /// This side writes no more, now or by a connection that comes later. To be said before the lane's FIN.
    pub(crate) fn end_sending(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(direct) = self.get() {
            direct.socket.end_sending();
        }
    }
}
