//! One end of a connection, whichever path it takes: its state, what the other side learns of it, how it ends.
//!
//! Owns the bits of this side's state, and which words say how a direction ended. It must check whether the other side
//! lives before it reads the words that show an end: what was stored before a death can be seen after it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};

use control::{PathKind, Reason};
use shm::{PeerFault, app_flag};

use crate::asked::Asked;
use crate::direct::{Direct, DirectPlace};
use crate::lane::LaneEnd;
use crate::pair::PairEnd;
use crate::{Daemon, End, Forked, Life, Side};

/// Data is copied in pieces of this share of the ring.
const PIECE_SHARE: u64 = 8;

/// The peer broke the rules of the rings: a bit of the state beside those of [`Side`].
const FAULTY: u32 = 4;
/// The end was given back.
const CLOSED: u32 = 8;

/// The path of a connection.
#[derive(Debug)]
pub(crate) enum Carrier {
    Lane(LaneEnd),
    Pair(PairEnd),
}

/// Where news of a connection comes from: a caller that drains a doorbell or a pair's socket gets such numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A slot of the session.
    Slot(u32),
    /// A slot of a pair.
    PairSlot {
        /// The pair.
        pair: u64,
        /// The slot.
        slot: u32,
    },
}

/// Number and addresses of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Sizes of the rings of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingSizes {
    /// Bytes of the receive ring before it grows.
    pub(crate) rx: u64,
    pub(crate) tx: u64,
}

/// One end of a connection, without its rings. Any number of threads may use it. Dropping it closes, by a reset unless
/// the connection was closed before ([`Connection::close`](crate::Connection::close)).
#[derive(Debug)]
pub struct Endpoint {
    carrier: Carrier,
    /// Of a lane: where its own TCP connection is put.
    direct: Option<Arc<DirectPlace>>,
    /// Of the pair, or of the session.
    life: Arc<Life>,
    daemon: Arc<Daemon>,
    name: Name,
    /// Longest copy between two messages to the other side.
    pub(crate) piece_bytes: usize,
    tx_bytes: usize,
    /// This side wrote since [`Endpoint::take_answered`].
    answered: AtomicBool,
    /// What the next write answers: a value of [`Asked`].
    asked: AtomicU8,
    /// Directions that this side shut, as bits of [`Side`], [`FAULTY`] and [`CLOSED`].
    state: AtomicU32,
}

impl Endpoint {
    pub(crate) fn new(daemon: Arc<Daemon>, name: Name, carrier: Carrier, rings: RingSizes) -> Self {
        let life = match &carrier {
            Carrier::Lane(_) => Arc::clone(daemon.life()),
            Carrier::Pair(end) => Arc::clone(end.socket().life()),
        };
        let direct = matches!(carrier, Carrier::Lane(_)).then(|| DirectPlace::new(name.id));
        Self {
            carrier,
            direct,
            life,
            daemon,
            name,
            piece_bytes: usize::try_from(rings.rx / PIECE_SHARE).unwrap_or(usize::MAX).max(1),
            tx_bytes: usize::try_from(rings.tx).unwrap_or(usize::MAX),
            answered: AtomicBool::new(false),
            asked: AtomicU8::new(Asked::No as u8),
            state: AtomicU32::new(0),
        }
    }

    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Refuses a forked child.
    pub fn check_fork(&self) -> Result<(), Forked> {
        self.life.check_fork()
    }

    // ---- what it is

    /// Number on this host, as in `raas ss`.
    pub fn id(&self) -> u64 {
        self.name.id
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        self.name.local
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.name.peer
    }

    /// How the bytes travel.
    pub fn path(&self) -> PathKind {
        match self.carrier {
            Carrier::Lane(_) if self.direct().is_some_and(|direct| direct.is_used()) => PathKind::TcpDirect,
            Carrier::Lane(_) => PathKind::Lane,
            Carrier::Pair(_) => PathKind::Shm,
        }
    }

    /// The stream's own TCP connection, if there is one.
    #[inline]
    pub(crate) fn direct(&self) -> Option<&Arc<Direct>> {
        self.direct.as_ref()?.get()
    }

    /// Where the daemon's message about such a connection puts it. None on one host.
    pub fn direct_place(&self) -> Option<&Arc<DirectPlace>> {
        self.direct.as_ref()
    }

    /// Bytes of this side that went by that connection, in all.
    pub(crate) fn count_direct(&self, side: Side, bytes: u64) {
        if let Carrier::Lane(end) = &self.carrier {
            end.count_direct(side, bytes);
        }
    }

    /// Whether they pass the daemon.
    #[inline]
    pub fn is_lane(&self) -> bool {
        matches!(self.carrier, Carrier::Lane(_))
    }

    /// The process at the other end, if it is on this host.
    pub fn peer_pid(&self) -> Option<u32> {
        match &self.carrier {
            Carrier::Lane(_) => None,
            Carrier::Pair(end) => Some(end.socket().peer_pid()),
        }
    }

    /// Where its news come from.
    pub fn key(&self) -> Key {
        match &self.carrier {
            Carrier::Lane(end) => Key::Slot(end.slot()),
            Carrier::Pair(end) => Key::PairSlot { pair: end.socket().id(), slot: end.slot() },
        }
    }

    /// Bytes that the transmit ring holds when it is grown.
    #[inline]
    pub fn tx_bytes(&self) -> usize {
        self.tx_bytes
    }

    // ---- state

    /// Whether any of these bits of the state is set.
    #[inline]
    fn is(&self, bits: u32) -> bool {
        self.state.load(Ordering::Relaxed) & bits != 0
    }

    /// Whether this side shut reading.
    pub(crate) fn is_read_shut(&self) -> bool {
        self.is(Side::Read.bit())
    }

    /// Whether bytes may be taken before any end is looked at: nothing ended here, and the other side lives.
    #[inline]
    pub fn may_take(&self) -> bool {
        !self.is(Side::Read.bit() | FAULTY) && self.life.is_alive()
    }

    /// Whether bytes may be taken from the ring after `end` was seen.
    pub(crate) fn may_take_before(&self, end: Option<End>) -> bool {
        !self.is(Side::Read.bit() | FAULTY) && !matches!(end, Some(End::Forked(_)))
    }

    /// The end that this side made.
    #[cold]
    fn own_end(&self) -> End {
        if self.is(FAULTY) { End::Reset(Reason::AppFault) } else { End::Finished }
    }

    /// A number that is another one when the other side has changed anything of the connection, all but surely: a short
    /// way to find out that there is nothing new. It says nothing of what this side did. None: it must be looked at.
    #[inline]
    pub fn stamp(&self) -> Option<u64> {
        if !self.life.is_alive() {
            return None;
        }
        match &self.carrier {
            Carrier::Pair(end) => Some(end.stamp()),
            Carrier::Lane(end) => self.direct().is_none().then(|| end.stamp()),
        }
    }

    /// How reading ends, if it does once the ring is empty. Look at the ring afterwards.
    #[inline]
    pub fn read_end(&self) -> Option<End> {
        if self.is(Side::Read.bit() | FAULTY) {
            return Some(self.own_end());
        }
        // The other side's life first: its last words are seen after it.
        let life = self.life.end();
        if matches!(life, Some(End::Forked(_))) {
            return life;
        }
        match &self.carrier {
            Carrier::Pair(end) => end.read_end(life),
            Carrier::Lane(end) => {
                let end = end.read_end(life);
                // After the lane's word: a peer that had not been told that it may switch has not switched.
                match self.direct() {
                    Some(direct) => read_end_of_both(direct, end),
                    None => end,
                }
            }
        }
    }

    /// Whether the lane says that the peer writes no more.
    pub(crate) fn is_lane_finished(&self) -> bool {
        matches!(&self.carrier, Carrier::Lane(end) if end.read_end(None) == Some(End::Finished))
    }

    /// Why writing is over, if it is.
    #[inline]
    pub fn write_end(&self) -> Option<End> {
        if self.is(Side::Write.bit() | FAULTY) {
            return Some(self.own_end());
        }
        let life = self.life.end();
        if matches!(life, Some(End::Forked(_))) {
            return life;
        }
        match &self.carrier {
            Carrier::Pair(end) => end.write_end(life),
            Carrier::Lane(end) => end.write_end(life).or_else(|| {
                let direct = self.direct().filter(|direct| direct.is_committed())?;
                direct.broken().map(End::Reset)
            }),
        }
    }

    /// Why the connection is broken, if it is. A direction that ended in order stays so.
    pub fn failure(&self) -> Option<Reason> {
        let broken = |end: Option<End>| end.and_then(End::failure);
        broken(self.read_end()).or_else(|| broken(self.write_end()))
    }

    /// The other side's cursor is impossible: from now on nothing that it writes is believed.
    #[cold]
    pub(crate) fn on_fault(&self, _fault: PeerFault) -> End {
        self.on_spoiled()
    }

    /// The peer broke the rules of the stream.
    #[cold]
    pub(crate) fn on_spoiled(&self) -> End {
        self.state.fetch_or(FAULTY, Ordering::Relaxed);
        End::Reset(Reason::AppFault)
    }

    /// Silence of the peer's daemon, in milliseconds, after which the connection is given up; 0: as long as the daemons
    /// wait. Between processes of one host there is no daemon that could be silent, and it changes nothing.
    pub fn set_peer_timeout(&self, ms: u32) -> Result<(), Forked> {
        self.check_fork()?;
        if let Carrier::Lane(end) = &self.carrier {
            end.set_peer_timeout(ms);
            self.wake_engine(end, end.ring());
        }
        Ok(())
    }

    /// What [`Endpoint::set_peer_timeout`] set; 0 for none.
    pub fn peer_timeout(&self) -> u32 {
        match &self.carrier {
            Carrier::Lane(end) => end.peer_timeout(),
            Carrier::Pair(_) => 0,
        }
    }

    /// What bytes that the engine has not taken yet, and later ones, are to travel by: a value of [`shm::slot_verb`].
    /// The engine sees it with the next doorbell. Between processes of one host no verb carries bytes, and it changes
    /// nothing.
    pub fn set_verb(&self, verb: u32) -> Result<(), Forked> {
        self.check_fork()?;
        if let Carrier::Lane(end) = &self.carrier {
            end.set_verb(verb);
        }
        Ok(())
    }

    /// Whether a verb is named for what is written.
    pub(crate) fn names_verb(&self) -> bool {
        matches!(&self.carrier, Carrier::Lane(end) if end.names_verb())
    }

    /// Of a datagram socket: how many datagrams the engine dropped because they did not fit their path. When it
    /// changes, the caller must ask again how long datagrams may be.
    pub fn paths_changed(&self) -> u64 {
        match &self.carrier {
            Carrier::Lane(end) => end.paths_changed(),
            Carrier::Pair(_) => 0,
        }
    }

    /// Whether this side wrote since the last call: its reader is in a conversation.
    pub fn take_answered(&self) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        if answered {
            self.answered.store(false, Ordering::Relaxed);
        }
        answered
    }

    /// Something was read by `way`; `is_all`: nothing more is there.
    pub(crate) fn note_asked(&self, way: Asked, is_all: bool) {
        self.asked.store(if is_all { way } else { Asked::No } as u8, Ordering::Relaxed);
    }

    /// Whether a write is the answer to all that came: something was read since the last one, and nothing is left.
    pub(crate) fn take_asked(&self) -> Asked {
        Asked::from_code(self.asked.swap(Asked::No as u8, Ordering::Relaxed))
    }

    /// This side writes.
    #[inline]
    pub(crate) fn note_answer(&self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    // ---- telling the other side

    #[inline]
    fn wake_engine(&self, end: &LaneEnd, is_asleep: bool) {
        if is_asleep {
            self.daemon.wake(end.engine());
        }
    }

    /// `count` bytes before `tail` were written: the other side's reader is to look.
    #[inline]
    pub(crate) fn tell_written(&self, count: u64, tail: u64) {
        match &self.carrier {
            Carrier::Pair(end) => end.wake(Side::Read.bit()),
            Carrier::Lane(end) => {
                end.note_written(tail.wrapping_sub(count), tail);
                self.wake_engine(end, end.ring());
            }
        }
    }

    /// Room was made: the other side's writer is to look.
    pub(crate) fn tell_room(&self) {
        match &self.carrier {
            Carrier::Pair(end) => end.wake(Side::Write.bit()),
            Carrier::Lane(end) if end.is_datagram() => {}
            Carrier::Lane(end) => self.wake_engine(end, end.ring()),
        }
    }

    /// The end was read: the engine may finish the connection. A peer process needs no such word.
    pub(crate) fn tell_end(&self) {
        if let Carrier::Lane(end) = &self.carrier {
            self.wake_engine(end, end.ring());
        }
    }

    /// Bytes that the daemon has not taken out of the transmit ring yet, of `written` in all. Between processes only
    /// the reader takes them.
    pub(crate) fn untaken(&self, written: u64) -> u64 {
        match &self.carrier {
            Carrier::Pair(_) => 0,
            Carrier::Lane(end) => end.untaken(written),
        }
    }

    /// Bytes that may be written behind `written`, if the engine holds the writer back: over a long path, until the
    /// stream's own TCP connection is there.
    pub(crate) fn held_room(&self, written: u64) -> Option<u64> {
        match &self.carrier {
            Carrier::Lane(end) if self.direct().is_none_or(|direct| !direct.is_settled()) => end.held_room(written),
            _ => None,
        }
    }

    /// Which loans the process at the other end gave back: bit n has turned round once for each time that it gave loan n
    /// back. None between hosts.
    #[inline]
    pub fn loans_back(&self) -> Option<u64> {
        match &self.carrier {
            Carrier::Pair(end) => Some(end.given_back()),
            Carrier::Lane(_) => None,
        }
    }

    /// Gives a loan (below [`crate::LOANS_MAX`]) back to the process at the other end. False: it is on another host, or
    /// this end was given back before.
    pub fn give_loan_back(&self, loan: u32) -> bool {
        match &self.carrier {
            Carrier::Pair(end) if !self.is(CLOSED) && loan < crate::LOANS_MAX && self.check_fork().is_ok() => {
                end.give_back(loan);
                true
            }
            _ => false,
        }
    }

    fn raise(&self, flags: u32) {
        match &self.carrier {
            Carrier::Pair(end) => end.raise(flags),
            Carrier::Lane(end) => {
                end.raise(flags);
                self.wake_engine(end, end.ring());
            }
        }
    }

    // ---- waiting

    /// Announces that somebody is going to wait for `side`. Look once more afterwards, then wait.
    pub fn arm(&self, side: Side) {
        match &self.carrier {
            Carrier::Lane(end) => end.arm(side),
            Carrier::Pair(end) => end.arm(side),
        }
        // PAIRS WITH the fence in PairEnd::wake: announced, then looked; the peer stores, then looks for announcements.
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement: no thread waits for `side` any more.
    pub fn disarm(&self, side: Side) {
        match &self.carrier {
            Carrier::Lane(end) => end.disarm(side),
            Carrier::Pair(end) => end.disarm(side),
        }
    }

    /// The next change of the stream's own TCP connection for `side` is to be told, if there is one. To be said after
    /// earlier notices were forgotten, and before the last look.
    pub fn arm_direct(&self, side: Side) {
        if let Some(direct) = self.direct_that_tells(side) {
            direct.socket.arm(side);
        }
    }

    /// What a thread may sleep on that waits for the stream's own TCP connection: a reader for bytes, a writer for room.
    pub fn direct_descriptor(&self, side: Side) -> Option<BorrowedFd<'_>> {
        self.direct_that_tells(side)?.socket.descriptor()
    }

    /// Who waits for the lane must not hear of TCP, which would have something to say without a pause: behind its end that
    /// it can be read, and to a writer of the ring that it has room.
    fn direct_that_tells(&self, side: Side) -> Option<&Arc<Direct>> {
        self.direct().filter(|direct| match side {
            Side::Read => !direct.is_over(),
            Side::Write => direct.waits_for_room(),
        })
    }

    // ---- ending

    /// Notes that this side ended a direction; [`Endpoint::say_shut`] notifies the other side. False: it had ended
    /// before. A call that is under way in that direction sees it at its next look.
    pub fn mark_shut(&self, side: Side) -> Result<bool, Forked> {
        self.check_fork()?;
        Ok(self.state.fetch_or(side.bit(), Ordering::AcqRel) & side.bit() == 0)
    }

    /// Tells the other side that a direction ended. For [`Side::Write`] nobody writes meanwhile: what was written lies
    /// before the end.
    pub fn say_shut(&self, side: Side) {
        if side == Side::Write {
            self.end_direct();
        }
        self.raise(match side {
            Side::Read => app_flag::STOP,
            Side::Write => app_flag::FIN,
        });
    }

    /// Nothing more is sent by TCP.
    fn end_direct(&self) {
        if let Some(place) = &self.direct {
            place.end_sending();
        }
    }

    /// Gives the connection back in order. It resets instead if bytes that arrived were not read, if the peer broke the
    /// rules, or if the application never had it (`is_owned` is false). What was written is still delivered unless it
    /// is a reset. In a forked child it does nothing: slot and rings are the parent's.
    pub(crate) fn close_with(&self, has_unread: impl FnOnce() -> bool, is_owned: bool) {
        if self.check_fork().is_err() {
            return;
        }
        let (was_shut, is_faulty) = (self.is_read_shut(), self.is(FAULTY));
        let is_broken = matches!(self.read_end(), Some(End::Reset(_)));
        if self.state.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            return;
        }
        // As in TCP, a side that closes without having read what arrived resets. If it shut down reading, the peer
        // knows already.
        let has_unread = has_unread() && !was_shut && !is_broken;
        let abort = if is_faulty {
            Some(Reason::AppFault)
        } else if has_unread || !is_owned {
            Some(Reason::ResetByPeer)
        } else {
            None
        };
        self.end_direct();
        if let (None, Some(direct)) = (abort, self.direct()) {
            direct.drain();
        }
        match &self.carrier {
            Carrier::Lane(end) => {
                self.daemon.free_slot(end.slot());
                self.wake_engine(end, end.close(abort.is_some()));
            }
            Carrier::Pair(end) => end.close(abort),
        }
    }
}

/// How reading ends where a part of the stream may come by TCP: `end` is the lane's word.
#[cold]
fn read_end_of_both(direct: &Direct, end: Option<End>) -> Option<End> {
    if !direct.is_committed() || direct.is_over() {
        return end;
    }
    match (end, direct.broken()) {
        // TCP has more, or its end.
        (Some(End::Finished), None) => None,
        (Some(End::Finished) | None, Some(reason)) => Some(End::Reset(reason)),
        (end, _) => end,
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.is(CLOSED) {
            self.close_with(|| false, false);
        }
    }
}
