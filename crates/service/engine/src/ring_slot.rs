//! A slot of an application's session without a peer: a ring of what the application sends, and one of what it
//! receives. Datagram sockets and operation queues each have one.
//!
//! Owns the engine's private cursors of both rings. It must never read a word of the application's before the
//! application has taken the slot: until then the words are those of a user before.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::{Connection, SocketTicket, Ticket, TicketRing};
use shm::{
    PeerFault, RingMemory, RingReader, RingWriter, SlotWords, app_flag, engine_flag, slot_is_awaited, slot_state,
    waiting,
};

use crate::ids::{AppId, SlotAt};
use crate::ring_size::RingSize;
use crate::ringpool::{Place, RingPair};
use crate::slot::{TakenSlot, clear_slot};

/// What an application asks for. It may wait for rings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotRequest {
    pub(crate) app: AppId,
    /// Number of the request, which the answer repeats.
    pub(crate) request: u64,
    /// Number on this host of what is opened, among those of connections.
    pub(crate) id: u64,
    /// 0: it has none.
    pub(crate) port: u16,
    /// The rings do not grow.
    pub(crate) size: RingSize,
}

/// What a slot is made of.
pub(crate) struct NewRingSlot {
    pub(crate) request: SlotRequest,
    pub(crate) local: SocketAddr,
    pub(crate) rings: RingPair,
    pub(crate) tx_memory: RingMemory,
    pub(crate) rx_memory: RingMemory,
}

/// An open slot.
#[derive(Debug)]
pub(crate) struct RingSlot {
    id: u64,
    at: SlotAt,
    generation: u32,
    words: Box<SlotWords>,
    local: SocketAddr,
    rings: RingPair,
    size: RingSize,
    /// What the application sends.
    tx: RingReader,
    /// What it receives.
    rx: RingWriter,
    /// The application has taken the slot: its words count.
    is_open: bool,
}

impl RingSlot {
    /// Opens a slot that was just taken.
    pub(crate) fn new(new: NewRingSlot, slot: TakenSlot) -> Self {
        let NewRingSlot { request, local, rings, tx_memory, rx_memory } = new;
        let SlotRequest { app, id, size, .. } = request;
        let TakenSlot { number, generation, words } = slot;
        clear_slot(&words, generation, 0, slot_state::ESTABLISHED);
        let cursors = "the pool's places lie in their chunks, and the daemon's own mapping is writable";
        let tx = RingReader::new(tx_memory, words.tx_tail.clone(), words.tx_head.clone(), 0).expect(cursors);
        let rx = RingWriter::new(rx_memory, words.rx_tail.clone(), words.rx_head.clone(), 0).expect(cursors);
        let at = SlotAt { app, slot: number };
        Self { id, at, generation, words, local, rings, size, tx, rx, is_open: false }
    }

    /// Takes over a slot of a daemon before this one, with the cursors that its words say. The program could have
    /// written those: `None` if they cannot be.
    pub(crate) fn resume(new: NewRingSlot, slot: TakenSlot) -> Option<Self> {
        let NewRingSlot { request, local, rings, tx_memory, rx_memory } = new;
        let SlotRequest { app, id, size, .. } = request;
        let TakenSlot { number, generation, words } = slot;
        // Until the application has taken the slot, its words are those of a user before.
        let is_open = words.app_generation.load(Ordering::Acquire) == generation;
        let (tx_head, rx_tail) = (words.tx_head.load(Ordering::Acquire), words.rx_tail.load(Ordering::Acquire));
        let (mut tx_tail, mut rx_head) = (tx_head, rx_tail);
        if is_open {
            (tx_tail, rx_head) = (words.tx_tail.load(Ordering::Acquire), words.rx_head.load(Ordering::Acquire));
        }
        let is_reset = words.engine_flags.load(Ordering::Acquire) & engine_flag::RESET != 0;
        if is_reset || tx_tail.wrapping_sub(tx_head) > tx_memory.bytes {
            return None;
        }
        let tx = RingReader::new(tx_memory, words.tx_tail.clone(), words.tx_head.clone(), tx_head).ok()?;
        let rx = RingWriter::resume(rx_memory, words.rx_tail.clone(), words.rx_head.clone(), rx_tail, rx_head).ok()?;
        let at = SlotAt { app, slot: number };
        Some(Self { id, at, generation, words, local, rings, size, tx, rx, is_open })
    }

    // ---- what it is

    /// Its number on this host.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The slot itself.
    #[inline]
    pub(crate) fn at(&self) -> SlotAt {
        self.at
    }

    #[inline]
    pub(crate) fn words(&self) -> &SlotWords {
        &self.words
    }

    #[inline]
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn rings(&self) -> RingPair {
        self.rings
    }

    /// Of its rings.
    pub(crate) fn size(&self) -> RingSize {
        self.size
    }

    /// What the application gets. There is no peer.
    pub(crate) fn connection(&self) -> Connection {
        let path = self.rings.path(self.at.slot, self.generation, self.size);
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        Connection { id: self.id, local: self.local, peer: nobody, path, ticket: self.ticket() }
    }

    /// What the application brings to the next daemon. Empty for what has no port, which ends with its daemon.
    fn ticket(&self) -> Vec<u8> {
        if self.local.port() == 0 {
            return Vec::new();
        }
        let ring = |place: Place| TicketRing { chunk: place.chunk_number, offset: place.offset };
        let ticket = Ticket::Socket(SocketTicket {
            id: self.id,
            local: self.local,
            slot: self.at.slot,
            generation: self.generation,
            tx: ring(self.rings.tx),
            rx: ring(self.rings.rx),
            ring_bytes: self.size.first,
        });
        control::encode(&ticket).unwrap_or_default()
    }

    // ---- from the application

    /// Whether the application has taken the slot.
    #[inline]
    pub(crate) fn has_owner(&mut self) -> bool {
        self.is_open |= self.words.app_generation.load(Ordering::Acquire) == self.generation;
        self.is_open
    }

    /// Whether the application has closed it. CLOSED is stored after the final tail, so what [`Self::available`] says
    /// afterwards is all.
    #[inline]
    pub(crate) fn is_close_asked(&mut self) -> bool {
        self.has_owner() && self.words.app_flags.load(Ordering::Acquire) & app_flag::CLOSED != 0
    }

    /// Bytes in the transmit ring. The application's cursor is checked; an error means that it broke the rules.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<u64, PeerFault> {
        if self.has_owner() { self.tx.available() } else { Ok(0) }
    }

    /// Offset of the first of these.
    #[inline]
    pub(crate) fn tx_head(&self) -> u64 {
        self.tx.head()
    }

    /// Copies bytes that begin `ahead` bytes after the first. The application may rewrite them meanwhile; the copy is
    /// what counts. False: [`Self::available`] did not say that there are so many.
    #[inline]
    pub(crate) fn copy(&self, ahead: usize, out: &mut [u8]) -> bool {
        self.tx.peek_ahead(ahead as u64, out) == out.len()
    }

    /// The first bytes are done with. [`Self::show_room`] tells the application.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: u64) {
        self.tx.consume_quietly(bytes);
    }

    /// Shows the application the room in its transmit ring, and a daemon after this one what is done with.
    #[inline]
    pub(crate) fn publish_room(&mut self) {
        self.tx.publish();
    }

    /// As [`Self::publish_room`]. Whether a thread of it waits for that.
    #[inline]
    pub(crate) fn show_room(&mut self) -> bool {
        self.publish_room();
        slot_is_awaited(&self.words.app_wait, waiting::WRITABLE)
    }

    // ---- to the application

    /// Room in the receive ring. The application's cursor is checked; an error means that it broke the rules.
    #[inline]
    pub(crate) fn room(&mut self) -> Result<u64, PeerFault> {
        self.rx.free()
    }

    /// Puts a record of `bytes` bytes, with its padding, into the receive ring. False: it has no room. An error means
    /// that the application broke the rules.
    #[inline]
    pub(crate) fn put(&mut self, header: &[u8], payload: &[u8], bytes: u64) -> Result<bool, PeerFault> {
        Ok(self.rx.free()? >= bytes
            && self.rx.write_ahead(0, header)
            && self.rx.write_ahead(header.len() as u64, payload)
            && self.rx.commit(bytes))
    }

    /// Whether a thread of the application waits for something to receive.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        slot_is_awaited(&self.words.app_wait, waiting::READABLE)
    }
}
