//! One datagram socket: a slot of its application's session, and two rings of records.
//!
//! Owns the engine's private cursors of both rings. It must never read a word of the application's twice for one
//! decision, and never take a record that it did not check.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::{Connection, DatagramRow, Path};
use shm::{
    DatagramRecord, PeerFault, RECORD_HEADER_BYTES, RingReader, RingWriter, SlotWords, app_flag, slot_is_awaited,
};

use super::drops::{DropReason, Drops};
use crate::ids::{AppId, SlotAt};
use crate::ringpool::RingPair;
use crate::slot::TakenSlot;

/// What an application did wrong with the rings of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocketFault {
    #[error(transparent)]
    Cursor(#[from] PeerFault),
    #[error("datagram socket at port {port}: {available} bytes in its ring do not begin with a whole record")]
    Record { port: u16, available: u64 },
}

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Number of it on this host, among those of connections.
    id: u64,
    at: SlotAt,
    generation: u32,
    words: Box<SlotWords>,
    local: SocketAddr,
    rings: RingPair,
    ring_bytes: u32,
    /// What the application sends.
    tx: RingReader,
    /// What it receives.
    rx: RingWriter,
    /// The application has taken the slot: its words count.
    is_open: bool,
    /// Nothing that the application writes after this offset is sent: it closed the socket, or left.
    end: Option<u64>,
    /// The record at the head, once its header was read.
    front: Option<DatagramRecord>,
    in_ready: bool,
    deficit: u32,
    tx_datagrams: u64,
    tx_bytes: u64,
    rx_datagrams: u64,
    rx_bytes: u64,
    drops: Drops,
    /// Datagrams that did not fit their path, as the application sees it.
    paths_changed: u64,
}

/// What a socket is made of.
pub(crate) struct NewSocket {
    pub(crate) id: u64,
    pub(crate) app: AppId,
    pub(crate) slot: TakenSlot,
    pub(crate) local: SocketAddr,
    pub(crate) rings: RingPair,
    pub(crate) ring_bytes: u32,
    pub(crate) tx: RingReader,
    pub(crate) rx: RingWriter,
}

impl Socket {
    pub(crate) fn new(new: NewSocket) -> Self {
        let NewSocket { id, app, slot, local, rings, ring_bytes, tx, rx } = new;
        Self {
            id,
            at: SlotAt { app, slot: slot.number },
            generation: slot.generation,
            words: slot.words,
            local,
            rings,
            ring_bytes,
            tx,
            rx,
            is_open: false,
            end: None,
            front: None,
            in_ready: false,
            deficit: 0,
            tx_datagrams: 0,
            tx_bytes: 0,
            rx_datagrams: 0,
            rx_bytes: 0,
            drops: Drops::default(),
            paths_changed: 0,
        }
    }

    /// Its application's slot.
    pub(crate) fn at(&self) -> SlotAt {
        self.at
    }

    pub(crate) fn words(&self) -> &SlotWords {
        &self.words
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Its number on this host.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn port(&self) -> u16 {
        self.local.port()
    }

    pub(crate) fn rings(&self) -> RingPair {
        self.rings
    }

    pub(crate) fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    // ---- its turn

    /// Enters the list of those that may have something to send. False: it is there already.
    pub(crate) fn enter_ready(&mut self) -> bool {
        let entered = !std::mem::replace(&mut self.in_ready, true);
        if entered {
            self.deficit = 0;
        }
        entered
    }

    /// It was taken out of that list.
    pub(crate) fn leave_ready(&mut self) {
        (self.in_ready, self.deficit) = (false, 0);
    }

    /// Bytes that are left of its turn.
    pub(crate) fn deficit(&self) -> u32 {
        self.deficit
    }

    pub(crate) fn deficit_mut(&mut self) -> &mut u32 {
        &mut self.deficit
    }

    /// Takes what a datagram costs from its turn. The last one of a turn may be longer than what was left of it.
    pub(crate) fn spend(&mut self, cost: u32) {
        self.deficit = self.deficit.saturating_sub(cost);
    }

    /// What the application gets. A socket has no peer.
    pub(crate) fn connection(&self) -> Connection {
        let path = Path::Lane {
            slot: self.at.slot,
            generation: self.generation,
            tx_chunk: self.rings.tx.chunk_number,
            tx_offset: self.rings.tx.offset,
            rx_chunk: self.rings.rx.chunk_number,
            rx_offset: self.rings.rx.offset,
            ring_bytes: self.ring_bytes,
            grown_bytes: self.ring_bytes,
        };
        Connection { id: self.id, local: self.local, peer: SocketAddr::from(([0, 0, 0, 0], 0)), path }
    }

    pub(crate) fn row(&self, app_pid: u32) -> DatagramRow {
        DatagramRow {
            id: self.id,
            local: self.local,
            tx_datagrams: self.tx_datagrams,
            rx_datagrams: self.rx_datagrams,
            tx_bytes: self.tx_bytes,
            rx_bytes: self.rx_bytes,
            drops: self.drops.rows(),
            app_pid,
        }
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason, 1);
        if reason == DropReason::TooLong {
            // What the application knows of the path is out of date: it asks again before it sends more.
            self.paths_changed += 1;
            self.words.epoch.store(self.paths_changed, Ordering::Release);
        }
    }

    // ---- from the application

    /// The application rang. Says whether the socket has just been closed.
    pub(crate) fn on_doorbell(&mut self) -> Result<bool, SocketFault> {
        if !self.has_owner() || self.end.is_some() {
            return Ok(false);
        }
        // Flags first: CLOSED is stored after the final tail.
        let closed = self.words.app_flags.load(Ordering::Acquire) & app_flag::CLOSED != 0;
        if closed {
            self.close()?;
        }
        Ok(closed)
    }

    /// What is in the ring now is the last that is sent.
    pub(crate) fn close(&mut self) -> Result<(), SocketFault> {
        if self.end.is_none() {
            let available = if self.has_owner() { self.tx.available()? } else { 0 };
            self.end = Some(self.tx.head().wrapping_add(available));
        }
        Ok(())
    }

    /// Whether the application closed it or left: it ends when its last record is sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the application has taken the slot. Until then its words are those of a connection before.
    fn has_owner(&mut self) -> bool {
        self.is_open |= self.words.app_generation.load(Ordering::Acquire) == self.generation;
        self.is_open
    }

    /// The next record to send: its header was read once and checked; the whole of it is in the ring.
    pub(crate) fn front(&mut self) -> Result<Option<DatagramRecord>, SocketFault> {
        if self.front.is_some() {
            return Ok(self.front);
        }
        if !self.has_owner() || self.end == Some(self.tx.head()) {
            return Ok(None);
        }
        let mut available = self.tx.available()?;
        if let Some(end) = self.end {
            // A record across the end would let an application that has left send more.
            available = available.min(end.wrapping_sub(self.tx.head()));
        }
        if available == 0 {
            return Ok(None);
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        let read = self.tx.peek_ahead(0, &mut header) == header.len();
        let record = DatagramRecord::parse(&header).filter(|r| read && r.ring_bytes() <= available);
        self.front = Some(record.ok_or(SocketFault::Record { port: self.local.port(), available })?);
        Ok(self.front)
    }

    /// Copies the payload of the record in front. The application may rewrite it meanwhile; the copy is what counts.
    pub(crate) fn copy_payload(&self, record: &DatagramRecord, out: &mut Vec<u8>) {
        out.resize(record.bytes.into(), 0);
        let copied = self.tx.peek_ahead(RECORD_HEADER_BYTES as u64, out);
        debug_assert_eq!(copied, out.len(), "`front` saw that the whole record is there");
    }

    /// The record in front is done with: sent, or dropped for `dropped`.
    pub(crate) fn take_front(&mut self, dropped: Option<DropReason>) {
        let Some(record) = self.front.take() else { return };
        self.tx.consume_quietly(record.ring_bytes());
        match dropped {
            Some(reason) => self.count_drop(reason),
            None => {
                self.tx_datagrams += 1;
                self.tx_bytes += u64::from(record.bytes);
            }
        }
    }

    /// Tells the application of the room that was made. Whether a thread of it waits for that.
    pub(crate) fn publish_room(&mut self) -> bool {
        self.tx.publish();
        slot_is_awaited(&self.words.app_wait, shm::waiting::WRITABLE)
    }

    // ---- to the application

    /// Puts a datagram into the receive ring. False: it has no room. The application's cursor is checked; an error
    /// means that it broke the rules.
    pub(crate) fn deliver(&mut self, from: SocketAddr, payload: &[u8]) -> Result<bool, PeerFault> {
        let Ok(bytes) = u16::try_from(payload.len()) else { return Ok(false) };
        if !self.has_owner() || self.end.is_some() {
            return Ok(false);
        }
        let record = DatagramRecord { addr: from, bytes };
        let fits = self.rx.free()? >= record.ring_bytes()
            && self.rx.write_ahead(0, &record.to_bytes())
            && self.rx.write_ahead(RECORD_HEADER_BYTES as u64, payload)
            && self.rx.commit(record.ring_bytes());
        if fits {
            self.rx_datagrams += 1;
            self.rx_bytes += u64::from(bytes);
        }
        Ok(fits)
    }

    /// Whether a thread of the application waits for a datagram.
    pub(crate) fn is_awaited(&self) -> bool {
        slot_is_awaited(&self.words.app_wait, shm::waiting::READABLE)
    }
}
