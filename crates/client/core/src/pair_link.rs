//! Another process of this host and what is shared with it.
//!
//! Owns the pair's wake socket and what is needed to give a slot back when both sides have closed. It must never use a
//! slot for two connections at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::Reason;
use shm::{Pair, PairListener, PairTeller, PairWords, RingReader, RingWriter, WakeSocket, app_flag};

use crate::Life;
use crate::endpoint::Name;
use crate::pair::PairEnd;
use crate::pair_socket::PairSocket;
use crate::segments::{PairError, Segments};

/// Calls of [`PairLink::age`] for which a pair whose peer died is kept although nothing uses it: messages of the daemon
/// about connections that the peer made just before may still be on their way.
const AGE_KEPT: u32 = 5;
/// See the head of this file.
#[derive(Debug)]
pub(crate) struct PairLink {
    socket: Arc<PairSocket>,
    own: Segments,
    peer: Segments,
    /// What the peer notes for this side.
    listener: PairListener,
    entries: BTreeMap<u32, Entry>,
    age: u32,
}

/// A slot in use, until both sides have closed.
#[derive(Debug)]
struct Entry {
    name: Name,
    generation: u32,
    own: PairWords,
    peer: PairWords,
}

/// A slot that was taken, and its rings.
#[derive(Debug)]
pub(crate) struct OpenedPair {
    pub(crate) end: PairEnd,
    pub(crate) reader: RingReader,
    /// Bytes of the receive ring before it grows.
    pub(crate) rx_bytes: u64,
    pub(crate) writer: RingWriter,
}

/// Names a slot, one of its connections, and a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairSlot {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) name: Name,
    pub(crate) pid: u32,
}

impl PairLink {
    pub(crate) fn new(id: u64, peer_pid: u32, socket: WakeSocket, life: Life) -> Self {
        let socket = Arc::new(PairSocket::new(id, peer_pid, socket, Arc::new(life)));
        Self {
            socket,
            own: Segments::default(),
            peer: Segments::default(),
            listener: PairListener::default(),
            entries: BTreeMap::new(),
            age: 0,
        }
    }

    pub(crate) fn socket(&self) -> &Arc<PairSocket> {
        &self.socket
    }

    /// Puts a segment of this side, the next one or one in whose place no connection is; None where it could not be
    /// made. False: it does not fit.
    pub(crate) fn put_own(&mut self, index: u32, slots: u32, pair: Option<Pair>) -> bool {
        let in_use = self.entries.range(self.own.slots_of(index)).next().is_some();
        let fits = index as usize <= self.own.count() && !in_use && self.own.put(index, slots, pair);
        if fits {
            self.listener.put_own(index as usize, self.own.pair(index));
        }
        fits
    }

    /// Puts a segment of the peer, as [`PairLink::put_own`]; None where there was no descriptor for it.
    pub(crate) fn put_peer(&mut self, index: u32, slots: u32, pair: Option<Pair>) {
        // The daemon asks both sides; what does not fit is refused when a connection is to be in it.
        if self.peer.put(index, slots, pair) {
            let (first, pair) = (self.peer.slots_of(index).start, self.peer.pair(index).cloned());
            self.listener.put_peer(index as usize, first, pair);
        }
    }

    /// Takes the slots that the peer noted, after the socket was drained: what is noted from then on has a datagram of its
    /// own.
    pub(crate) fn take_told(&mut self, slots: &mut Vec<u32>) {
        self.listener.look(slots);
    }

    /// Takes a slot: own words fresh, then the generation, which makes them count for the peer.
    pub(crate) fn open(&mut self, place: PairSlot) -> Result<OpenedPair, PairError> {
        let id = self.socket.id();
        let PairSlot { slot, generation, name, pid } = place;
        if self.entries.contains_key(&slot) {
            return Err(PairError::SlotInUse(slot, id));
        }
        let (own_segment, i) = self.own.segment(slot, id)?;
        let (peer_segment, j) = self.peer.segment(slot, id)?;
        let (own, peer) = (own_segment.slot(i), peer_segment.slot(j));
        let tx = (own.tail.clone(), peer.head.clone(), own.grown_at.clone());
        let writer = RingWriter::growing(own_segment.ring(i), own_segment.first_bytes(), tx, 0)?;
        let rx = (peer.tail.clone(), own.head.clone(), peer.grown_at.clone());
        let rx_bytes = peer_segment.first_bytes();
        let reader = RingReader::growing(peer_segment.ring(j), rx_bytes, rx, 0)?;
        own.flags.store(0, Ordering::Relaxed);
        own.given_back.store(0, Ordering::Relaxed);
        own.carried.store(0, Ordering::Relaxed);
        own.waiting.store(0, Ordering::Relaxed);
        own.reason.store(0, Ordering::Relaxed);
        own.owner_pid.store(pid, Ordering::Relaxed);
        own.generation.store(generation, Ordering::Release);
        let teller = PairTeller::new(own_segment, i, peer_segment);
        let end = PairEnd::new(Arc::clone(&self.socket), slot, generation, own.clone(), peer.clone(), teller)?;
        self.entries.insert(slot, Entry { name, generation, own, peer });
        Ok(OpenedPair { end, reader, rx_bytes, writer })
    }

    /// Reports to the peer that this side cannot open the slot, and why, as far as possible.
    pub(crate) fn refuse(&self, slot: u32, generation: u32, reason: Reason) {
        if let Ok((segment, i)) = self.own.segment(slot, self.socket.id())
            && !self.entries.contains_key(&slot)
        {
            let own = segment.slot(i);
            own.reason.store(reason.code(), Ordering::Relaxed);
            own.flags.store(app_flag::STOP | app_flag::CLOSED | app_flag::ABORT, Ordering::Relaxed);
            own.generation.store(generation, Ordering::Release);
            // The peer may sleep already; it also looks by itself once a second.
            self.socket.wake_slot(slot);
        }
    }

    /// Its connections, and this side's words of each.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Name, &PairWords)> {
        self.entries.values().map(|entry| (entry.name, &entry.own))
    }

    /// Finishes slots that both sides have closed. Returns their connections, for the daemon.
    pub(crate) fn reap(&mut self) -> Vec<u64> {
        let dead = !self.socket.life().is_alive();
        let mut over = Vec::new();
        self.entries.retain(|_, entry| {
            let is_over = entry.is_closed() && (dead || entry.peer_closed());
            if is_over {
                entry.put_back();
                over.push(entry.name.id);
            }
            !is_over
        });
        over
    }

    /// About once a second. Whether the pair can be dropped: the peer has ended, and no connection is left.
    pub(crate) fn age(&mut self) -> bool {
        if !self.socket.life().is_alive() {
            self.age = self.age.saturating_add(1);
        }
        self.entries.is_empty() && self.age > AGE_KEPT
    }
}

impl Entry {
    /// Closed here. The flags are this side's own, which the peer cannot write.
    fn is_closed(&self) -> bool {
        self.own.flags.load(Ordering::Acquire) & app_flag::CLOSED != 0
    }

    fn peer_closed(&self) -> bool {
        self.peer.generation.load(Ordering::Acquire) == self.generation
            && self.peer.flags.load(Ordering::Acquire) & app_flag::CLOSED != 0
    }

    /// The next user of the slot starts at 0, and must find the peer's cursors there. The flags stay: the peer may not
    /// have seen them yet; they stop to count when the generation changes. What was sent stays for the daemon to count.
    fn put_back(&self) {
        self.own.carried.store(self.own.tail.load(Ordering::Relaxed), Ordering::Release);
        // Whoever sees the cursor gone sees what it was.
        self.own.tail.store(0, Ordering::Release);
        self.own.head.store(0, Ordering::Relaxed);
        self.own.grown_at.store(0, Ordering::Relaxed);
        self.own.waiting.store(0, Ordering::Release);
    }
}

/// One end of a pair's connection, as its words say now.
pub(crate) fn end_of(name: Name, own: &shm::PairWords) -> control::ReturnedEnd {
    control::ReturnedEnd {
        connection: name.id,
        local: name.local,
        peer: name.peer,
        tx_bytes: own.tail.load(Ordering::Relaxed),
        rx_bytes: own.head.load(Ordering::Relaxed),
    }
}
