//! Connections to another process of this host: the pair's segments and wake socket, and one end of a connection.
//!
//! Owns this side's words in this side's segment, and what is needed to give a slot back when both sides have closed. It
//! must never trust a word of the peer beyond what the ring's cursor checks and this file's masks let through, and never
//! need the daemon once the pair stands.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use control::Reason;
use shm::{
    Pair, PairSleeper, PairWaiter, PairWords, RegionError, RingReader, RingWriter, WakeSocket, app_flag,
    pair_must_wake, waiting,
};

use crate::conn::{Conn, End, Side};
use crate::lane::failure;
use crate::park::lock;

/// How long a pair whose peer died is kept although nothing uses it: messages of the daemon about connections that the
/// peer made just before may still be on their way.
const DEAD_PAIR_KEPT: Duration = Duration::from_secs(5);
/// Wake messages drained at once from which on some may have been lost to a full socket: then everybody is woken.
pub(crate) const WAKES_SUSPICIOUS: usize = 16;
/// Segments of one side of a pair at most.
const SEGMENTS_MAX: usize = 256;

/// Another process of this host and what is shared with it.
#[derive(Debug)]
pub(crate) struct PairLink {
    pub(crate) id: u64,
    pub(crate) peer_pid: u32,
    pub(crate) socket: WakeSocket,
    dead: AtomicBool,
    slots: Mutex<PairSlots>,
}

#[derive(Debug, Default)]
struct PairSlots {
    own: Segments,
    peer: Segments,
    entries: BTreeMap<u32, Entry>,
    dead_since: Option<Instant>,
}

/// Segments of one side; slot numbers go on from one to the next.
#[derive(Debug, Default)]
struct Segments(Vec<Part>);

/// Slots of one segment.
#[derive(Debug)]
struct Part {
    first: u32,
    slots: u32,
    /// None: this process had no descriptor for it, or never heard of it.
    pair: Option<Pair>,
}

#[derive(Debug)]
enum Entry {
    Open(Weak<Conn>),
    /// Closed here, the peer still has to.
    Closing(Box<Closing>),
}

#[derive(Debug)]
struct Closing {
    connection: u64,
    generation: u32,
    own: PairWords,
    peer: PairWords,
}

/// Why a connection could not be opened on a pair.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error("slot {0} lies in no segment of pair {1}")]
    NoSlot(u32, u64),
    #[error("this process had no descriptor for the segment of slot {0} of pair {1}")]
    NotTaken(u32, u64),
    #[error("slot {0} of pair {1} is in use")]
    SlotInUse(u32, u64),
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl Segments {
    fn next_slot(&self) -> Option<u32> {
        self.0.last().map_or(Some(0), |part| part.first.checked_add(part.slots))
    }

    /// Puts segment `index` behind the others, after gaps for those that never came, or in the place of another of as
    /// many slots. False: it does not fit.
    fn put(&mut self, index: u32, slots: u32, pair: Option<Pair>) -> bool {
        let index = index as usize;
        if let Some(part) = self.0.get_mut(index) {
            let fits = part.slots == slots;
            if fits {
                part.pair = pair;
            }
            return fits;
        }
        while self.0.len() <= index && self.0.len() < SEGMENTS_MAX {
            let Some(first) = self.next_slot().filter(|first| first.checked_add(slots).is_some()) else { return false };
            self.0.push(Part { first, slots, pair: None });
        }
        let Some(part) = self.0.get_mut(index) else { return false };
        part.pair = pair;
        true
    }

    fn find(&self, slot: u32) -> Option<(Option<&Pair>, u32)> {
        self.0.iter().find_map(|part| {
            let i = slot.checked_sub(part.first)?;
            (i < part.slots).then_some((part.pair.as_ref(), i))
        })
    }

    /// The segment of a slot, and the slot's number in it.
    fn segment(&self, slot: u32, pair: u64) -> Result<(&Pair, u32), PairError> {
        match self.find(slot) {
            Some((Some(segment), i)) => Ok((segment, i)),
            Some((None, _)) => Err(PairError::NotTaken(slot, pair)),
            None => Err(PairError::NoSlot(slot, pair)),
        }
    }
}

impl PairLink {
    pub(crate) fn new(id: u64, peer_pid: u32, socket: WakeSocket) -> Self {
        Self { id, peer_pid, socket, dead: AtomicBool::new(false), slots: Mutex::default() }
    }

    /// Puts a segment of this side, the next one or one in whose place no connection is; None where it could not be
    /// made. False: it does not fit.
    pub(crate) fn put_own(&self, index: u32, slots: u32, pair: Option<Pair>) -> bool {
        let mut places = lock(&self.slots);
        let in_use = places.own.0.get(index as usize).is_some_and(|part| {
            let end = part.first.saturating_add(part.slots);
            places.entries.range(part.first..end).next().is_some()
        });
        index as usize <= places.own.0.len() && !in_use && places.own.put(index, slots, pair)
    }

    /// Puts a segment of the peer, as [`PairLink::put_own`]; None where there was no descriptor for it.
    pub(crate) fn put_peer(&self, index: u32, slots: u32, pair: Option<Pair>) {
        // The daemon asks both sides; what does not fit is refused when a connection is to be in it.
        let _fits = lock(&self.slots).peer.put(index, slots, pair);
    }

    /// Takes a slot: own words fresh, then the generation, which makes them count for the peer.
    pub(crate) fn open(
        self: &Arc<Self>,
        slot: u32,
        generation: u32,
        pid: u32,
    ) -> Result<(PairEnd, (RingReader, u64), RingWriter), PairError> {
        let slots = lock(&self.slots);
        if slots.entries.contains_key(&slot) {
            return Err(PairError::SlotInUse(slot, self.id));
        }
        let (own_segment, i) = slots.own.segment(slot, self.id)?;
        let (peer_segment, j) = slots.peer.segment(slot, self.id)?;
        let (own, peer) = (own_segment.slot(i), peer_segment.slot(j));
        let tx = (own.tail.clone(), peer.head.clone(), own.grown_at.clone());
        let writer = RingWriter::growing(own_segment.ring(i), own_segment.first_bytes(), tx, 0)?;
        let rx = (peer.tail.clone(), own.head.clone(), peer.grown_at.clone());
        let reader = RingReader::growing(peer_segment.ring(j), peer_segment.first_bytes(), rx, 0)?;
        own.flags.store(0, Ordering::Relaxed);
        own.waiting.store(0, Ordering::Relaxed);
        own.reason.store(0, Ordering::Relaxed);
        own.owner_pid.store(pid, Ordering::Relaxed);
        own.generation.store(generation, Ordering::Release);
        let end = PairEnd {
            link: Arc::clone(self),
            slot,
            generation,
            waiter: PairWaiter::new(own.waiting.clone())?,
            sleeper: PairSleeper::new(peer.waiting.clone()),
            own,
            peer,
            met: AtomicBool::new(false),
        };
        Ok((end, (reader, peer_segment.first_bytes()), writer))
    }

    /// Tells the peer that this side cannot open the slot, and why, as far as it can be told.
    pub(crate) fn refuse(&self, slot: u32, generation: u32, reason: Reason) {
        let slots = lock(&self.slots);
        if let Ok((segment, i)) = slots.own.segment(slot, self.id)
            && !slots.entries.contains_key(&slot)
        {
            let own = segment.slot(i);
            own.reason.store(reason.code(), Ordering::Relaxed);
            own.flags.store(app_flag::STOP | app_flag::CLOSED | app_flag::ABORT, Ordering::Relaxed);
            own.generation.store(generation, Ordering::Release);
            drop(slots);
            // The peer may sleep already; it also looks by itself once a second.
            let _ = self.socket.wake_slot(slot);
        }
    }

    /// Makes the connection findable by its slot.
    pub(crate) fn set(&self, slot: u32, conn: Weak<Conn>) {
        lock(&self.slots).entries.insert(slot, Entry::Open(conn));
    }

    /// The connections of these slots, or of all.
    pub(crate) fn conns(&self, only: Option<&[u32]>) -> Vec<Arc<Conn>> {
        let slots = lock(&self.slots);
        let of = |entry: &Entry| if let Entry::Open(conn) = entry { conn.upgrade() } else { None };
        match only {
            None => slots.entries.values().filter_map(of).collect(),
            Some(list) => list.iter().filter_map(|slot| slots.entries.get(slot).and_then(of)).collect(),
        }
    }

    /// The other process is gone.
    pub(crate) fn mark_dead(&self) {
        lock(&self.slots).dead_since.get_or_insert_with(Instant::now);
        self.dead.store(true, Ordering::Release);
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether the pair is of no more use: the peer is gone, and so are the connections.
    pub(crate) fn is_over(&self) -> bool {
        let slots = lock(&self.slots);
        slots.entries.is_empty() && slots.dead_since.is_some_and(|since| since.elapsed() > DEAD_PAIR_KEPT)
    }

    /// Finishes slots that both sides have closed. Says which connections they were, for the daemon.
    pub(crate) fn reap(&self) -> Vec<u64> {
        let dead = self.is_dead();
        let mut over = Vec::new();
        lock(&self.slots).entries.retain(|_, entry| match entry {
            Entry::Closing(closing) if dead || closing.peer_closed() => {
                closing.put_back();
                over.push(closing.connection);
                false
            }
            _ => true,
        });
        over
    }
}

impl Closing {
    fn peer_closed(&self) -> bool {
        self.peer.generation.load(Ordering::Acquire) == self.generation
            && self.peer.flags.load(Ordering::Acquire) & app_flag::CLOSED != 0
    }

    /// The next user of the slot starts at 0, and must find the peer's cursors there. The flags stay: the peer may not
    /// have seen them yet; they stop to count when the generation changes.
    fn put_back(&self) {
        self.own.tail.store(0, Ordering::Relaxed);
        self.own.head.store(0, Ordering::Relaxed);
        self.own.grown_at.store(0, Ordering::Relaxed);
        self.own.waiting.store(0, Ordering::Release);
    }
}

/// This side of one connection.
#[derive(Debug)]
pub(crate) struct PairEnd {
    pub(crate) link: Arc<PairLink>,
    slot: u32,
    generation: u32,
    own: PairWords,
    peer: PairWords,
    /// The peer opened its end: its flags are those of this connection.
    met: AtomicBool,
    waiter: PairWaiter,
    sleeper: PairSleeper,
}

impl PairEnd {
    #[inline]
    fn peer_flags(&self) -> u32 {
        if !self.met.load(Ordering::Relaxed) {
            if self.peer.generation.load(Ordering::Acquire) != self.generation {
                return 0;
            }
            self.met.store(true, Ordering::Relaxed);
        }
        self.peer.flags.load(Ordering::Acquire)
    }

    fn reason(&self) -> Reason {
        failure(self.peer.reason.load(Ordering::Acquire))
    }

    /// How reading ends, if it does once the ring is empty. The ring is looked at after this. FIN comes after the last
    /// byte, so an abort that follows it takes nothing from the reader.
    #[inline]
    pub(crate) fn read_end(&self) -> Option<End> {
        // Death first: what the peer stored before it died is seen after this.
        let dead = self.link.is_dead();
        let flags = self.peer_flags();
        if flags & app_flag::FIN != 0 {
            Some(End::Finished)
        } else if flags & app_flag::ABORT != 0 {
            Some(End::Reset(self.reason()))
        } else if flags & app_flag::CLOSED != 0 {
            Some(End::Finished)
        } else if dead {
            Some(End::Reset(Reason::PeerAppDied))
        } else {
            None
        }
    }

    /// Why writing is over, if it is.
    #[inline]
    pub(crate) fn write_end(&self) -> Option<End> {
        let dead = self.link.is_dead();
        let flags = self.peer_flags();
        if flags & app_flag::ABORT != 0 {
            Some(End::Reset(self.reason()))
        } else if flags & (app_flag::STOP | app_flag::CLOSED) != 0 {
            Some(End::Finished)
        } else if dead {
            Some(End::Reset(Reason::PeerAppDied))
        } else {
            None
        }
    }

    /// Wakes the peer if it sleeps until `side` of its end is ready. Cursors and flags were stored before.
    #[inline]
    pub(crate) fn wake(&self, sides: u32) {
        // PAIRS WITH the fence between arming and the last look in Inner::block: one of the two sees the other.
        if self.sleeper.must_wake(sides) {
            self.wake_now();
        }
    }

    #[cold]
    fn wake_now(&self) {
        // A full socket means that the peer has more wakes waiting than it can miss (see WAKES_SUSPICIOUS); an error
        // means that it is gone, which the hangup of the socket tells whoever waits.
        if self.link.socket.wake_slot(self.slot).is_err() {
            self.link.mark_dead();
        }
    }

    /// Announces a sleep, another one than all before. The caller fences and looks once more.
    pub(crate) fn arm(&self, side: Side) {
        self.waiter.arm(side.bit(), || false);
    }

    pub(crate) fn disarm(&self, side: Side) {
        self.waiter.disarm(side.bit());
    }

    /// Adds flags, after the final cursors, and wakes the peer.
    pub(crate) fn raise(&self, flags: u32) {
        self.own.flags.fetch_or(flags, Ordering::Release);
        self.wake(waiting::ANY);
    }

    /// Gives up the connection; its slot is finished by [`PairLink::reap`] once the peer has closed too.
    pub(crate) fn close(&self, connection: u64, abort: Option<Reason>) {
        if let Some(reason) = abort {
            self.own.reason.store(reason.code(), Ordering::Relaxed);
        }
        // Asks the peer to say when it closes.
        self.own.waiting.store(waiting::ANY, Ordering::Relaxed);
        // No FIN with an abort: one that was said before stands, and its reader keeps its end in order.
        let end = if abort.is_some() { app_flag::ABORT } else { app_flag::FIN };
        self.own.flags.fetch_or(end | app_flag::STOP | app_flag::CLOSED, Ordering::Release);
        // Not once for each sleep: a peer that closed before stays announced until it hears of this.
        if pair_must_wake(&self.peer.waiting, waiting::ANY) {
            self.wake_now();
        }
        let closing =
            Closing { connection, generation: self.generation, own: self.own.clone(), peer: self.peer.clone() };
        lock(&self.link.slots).entries.insert(self.slot, Entry::Closing(Box::new(closing)));
    }
}
