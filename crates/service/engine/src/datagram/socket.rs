//! One datagram socket: a slot of its application's session, with two rings of records.
//!
//! Owns where what the application sends ends. It must never read a word of the application's twice for one decision,
//! and never take a record that it did not check.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::DatagramRow;
use shm::{DatagramRecord, PeerFault, RECORD_HEADER_BYTES};

use super::drops::{DropReason, Drops};
use crate::ids::SlotAt;
use crate::ring_slot::RingSlot;

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
    slot: RingSlot,
    /// Nothing that the application writes after this offset is sent: it closed the socket, or left.
    end: Option<u64>,
    /// The record at the head, once its header was read.
    front: Option<DatagramRecord>,
    /// It is not in the ring any more: its payload was copied.
    is_front_out: bool,
    in_ready: bool,
    deficit: u32,
    tx_datagrams: u64,
    tx_bytes: u64,
    rx_datagrams: u64,
    rx_bytes: u64,
    drops: Drops,
}

impl Socket {
    pub(crate) fn new(slot: RingSlot) -> Self {
        Self {
            slot,
            end: None,
            front: None,
            is_front_out: false,
            in_ready: false,
            deficit: 0,
            tx_datagrams: 0,
            tx_bytes: 0,
            rx_datagrams: 0,
            rx_bytes: 0,
            drops: Drops::default(),
        }
    }

    /// Its slot, with its rings.
    pub(crate) fn slot(&self) -> &RingSlot {
        &self.slot
    }

    pub(crate) fn slot_mut(&mut self) -> &mut RingSlot {
        &mut self.slot
    }

    /// Its application's slot.
    pub(crate) fn at(&self) -> SlotAt {
        self.slot.at()
    }

    pub(crate) fn port(&self) -> u16 {
        self.slot.local().port()
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

    pub(crate) fn row(&self, app_pid: u32) -> DatagramRow {
        DatagramRow {
            id: self.slot.id(),
            local: self.slot.local(),
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
            self.on_paths_changed();
        }
    }

    /// What the application knows of paths is out of date: it asks again before it sends more.
    pub(crate) fn on_paths_changed(&mut self) {
        // The word goes on from what a daemon before this one counted.
        let word = &self.slot.words().epoch;
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    // ---- from the application

    /// The application rang. Says whether the socket has just been closed.
    pub(crate) fn on_doorbell(&mut self) -> Result<bool, SocketFault> {
        let closes = self.end.is_none() && self.slot.is_close_asked();
        if closes {
            self.close()?;
        }
        Ok(closes)
    }

    /// What is in the ring now is the last that is sent.
    pub(crate) fn close(&mut self) -> Result<(), SocketFault> {
        if self.end.is_none() {
            let available = self.slot.available()?;
            self.end = Some(self.slot.tx_head().wrapping_add(available));
        }
        Ok(())
    }

    /// Whether the application closed it or left: it ends when its last record is sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.end.is_some()
    }

    /// The next record to send: its header was read once and checked; the whole of it is in the ring.
    pub(crate) fn front(&mut self) -> Result<Option<DatagramRecord>, SocketFault> {
        if self.front.is_some() {
            return Ok(self.front);
        }
        if self.end == Some(self.slot.tx_head()) {
            return Ok(None);
        }
        let mut available = self.slot.available()?;
        if let Some(end) = self.end {
            // A record across the end would let an application that has left send more.
            available = available.min(end.wrapping_sub(self.slot.tx_head()));
        }
        if available == 0 {
            return Ok(None);
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        let read = self.slot.copy(0, &mut header);
        let record = DatagramRecord::parse(&header).filter(|r| read && r.ring_bytes() <= available);
        self.front = Some(record.ok_or(SocketFault::Record { port: self.port(), available })?);
        Ok(self.front)
    }

    /// Takes the payload of the record in front out of the ring. The application may rewrite it meanwhile; the copy is
    /// what counts. A daemon after this one does not find the record before it is sent: so it may be lost, but is not
    /// sent twice.
    pub(crate) fn take_payload(&mut self, record: &DatagramRecord, out: &mut Vec<u8>) {
        out.resize(record.bytes.into(), 0);
        let copied = self.slot.copy(RECORD_HEADER_BYTES, out);
        debug_assert!(copied, "`front` saw that the whole record is there");
        self.slot.consume(record.ring_bytes());
        self.slot.publish_room();
        self.is_front_out = true;
    }

    /// The record in front is done with: sent, or dropped for `dropped`.
    pub(crate) fn take_front(&mut self, dropped: Option<DropReason>) {
        let Some(record) = self.front.take() else { return };
        if !std::mem::take(&mut self.is_front_out) {
            self.slot.consume(record.ring_bytes());
        }
        match dropped {
            Some(reason) => self.count_drop(reason),
            None => {
                self.tx_datagrams += 1;
                self.tx_bytes += u64::from(record.bytes);
            }
        }
    }

    // ---- to the application

    /// Puts a datagram into the receive ring. False: it has no room. The application's cursor is checked; an error
    /// means that it broke the rules.
    pub(crate) fn deliver(&mut self, from: SocketAddr, payload: &[u8]) -> Result<bool, PeerFault> {
        let Ok(bytes) = u16::try_from(payload.len()) else { return Ok(false) };
        if !self.slot.has_owner() || self.end.is_some() {
            return Ok(false);
        }
        let record = DatagramRecord { addr: from, bytes };
        let fits = self.slot.put(&record.to_bytes(), payload, record.ring_bytes())?;
        if fits {
            self.rx_datagrams += 1;
            self.rx_bytes += u64::from(bytes);
        }
        Ok(fits)
    }
}
