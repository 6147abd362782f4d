//! A virtual queue pair: one end of a connection on a lane.
//!
//! Owns the connection's cursors, all absolute 64-bit offsets, and says what may be sent and reported. It must never take a
//! value of the application's or the peer's that it did not check against its own.
//!
//! The rings are mirrored: byte `o` of a direction lies at `o % ring_bytes` of the sender's tx ring and of the receiver's
//! rx ring. A tx ring keeps its bytes until the peer's application consumed them, so whatever fits the tx ring
//! has room in the peer's, and a lane that is made anew can send again from any offset that the peer names.

mod close;
mod resume;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::{Connection, ConnectionState, Kind, Path, Reason};
use shm::{PeerFault, SlotWords, app_flag, check_cursor, engine_flag, slot_is_awaited, slot_state};
use verbs::{Placed, RemoteAddr, Time};

use crate::AppId;
use crate::app::clear_slot;
use crate::connect::ConnectId;
use crate::frame::{FrameWriter, Record};
use crate::lane::LaneId;
use crate::ringpool::Place;
use crate::table::key;
use crate::violation::Violation;

pub(crate) use close::Close;

key!(
    /// Names a virtual QP in this engine; peers know it by [`Vqp::own_route`].
    RouteId
);

/// How far the set-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Open is, or will be, on its way. Without a connect nobody waits for the answer any more.
    Opening(Option<ConnectId>),
    /// Accepted here; OpenAck goes before any data.
    Accepting,
    /// Both ends know each other.
    Open,
}

/// Whether consumed bytes are going to be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadReport {
    None,
    /// With the next frame that has room, or when the lane's timer fires.
    Lazy,
    /// As soon as possible.
    Due,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Vqp {
    pub(crate) id: u64,
    /// Its route id, by which the peer names it.
    pub(crate) own_route: u32,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
    /// The peer knows, or will know, of the attempt.
    pub(crate) is_open_sent: bool,
    /// The listener at which it waits for `accept`.
    pub(crate) backlog_port: Option<u16>,

    pub(crate) app: AppId,
    /// Its application connected; else it accepted.
    pub(crate) is_outgoing: bool,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) words: Box<SlotWords>,

    /// `None` once the lane is lost; a lane that is only reset keeps its connections.
    pub(crate) lane: Option<LaneId>,
    /// Neighbours in the lane's list of connections.
    pub(crate) previous: Option<RouteId>,
    pub(crate) next: Option<RouteId>,
    pub(crate) peer_route: u32,
    pub(crate) peer_ring: RemoteAddr,

    pub(crate) tx_place: Place,
    pub(crate) rx_place: Place,
    /// Used of either ring; what was allocated may be larger.
    pub(crate) ring_bytes: u32,
    pub(crate) allocated_bytes: u32,

    /// Written by the application.
    pub(crate) tx_tail: u64,
    /// Posted to the lane.
    pub(crate) tx_sent: u64,
    /// Consumed by the peer's application.
    pub(crate) tx_head: u64,
    /// Arrived.
    pub(crate) rx_tail: u64,
    /// Consumed by the application.
    pub(crate) rx_head: u64,
    /// Told to the peer: it may send up to `rx_reported + ring_bytes`.
    pub(crate) rx_reported: u64,

    /// Sent and received as far as its application's row has it.
    pub(crate) tx_counted: u64,
    pub(crate) rx_counted: u64,

    pub(crate) close: Close,
    pub(crate) head_report: HeadReport,
    /// In the lane's list of connections with records to send.
    pub(crate) in_control: bool,
    /// In the lane's list of connections whose consumed bytes may wait.
    pub(crate) in_lazy: bool,
    /// In the lane's list of connections with data to send.
    pub(crate) in_ready: bool,
    pub(crate) deficit: u32,
    /// Last work request that reads the tx ring, or the frame with Fin or Reset.
    pub(crate) last_wr: u64,
    /// When it carried something last, or its application rang.
    pub(crate) used_at: Time,
    /// Among those that are looked at for whether they rest.
    pub(crate) in_rests: bool,
    /// Bytes of either ring that are done with, of a rest that takes several turns.
    pub(crate) rest_at: u64,
    /// Ticks for which its rest was put off.
    pub(crate) rest_tries: u8,
}

/// A contiguous piece of a ring that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in either ring.
    pub(crate) at: u64,
    pub(crate) bytes: u32,
}

impl Vqp {
    /// Bytes sent and received that its application's row does not have yet.
    pub(crate) fn uncounted(&self) -> (u64, u64) {
        (self.tx_sent.wrapping_sub(self.tx_counted), self.rx_tail.wrapping_sub(self.rx_counted))
    }

    /// The same; they count as told.
    pub(crate) fn take_uncounted(&mut self) -> (u64, u64) {
        let bytes = self.uncounted();
        (self.tx_counted, self.rx_counted) = (self.tx_sent, self.rx_tail);
        bytes
    }

    /// Writes the slot for a new connection.
    pub(crate) fn publish_new(&self, epoch: u32, state: u32) {
        clear_slot(&self.words, self.generation, epoch, state);
    }

    /// What the application is told.
    pub(crate) fn connection(&self) -> Connection {
        let path = Path::Lane {
            slot: self.slot,
            generation: self.generation,
            tx_chunk: self.tx_place.chunk_number,
            tx_offset: self.tx_place.offset,
            rx_chunk: self.rx_place.chunk_number,
            rx_offset: self.rx_place.offset,
            ring_bytes: self.ring_bytes,
        };
        Connection { id: self.id, local: self.local, peer: self.peer, path }
    }

    // ---- from the application

    /// Takes the application's cursors and flags. An error means that it broke the rules.
    pub(crate) fn on_doorbell(&mut self) -> Result<(), PeerFault> {
        if self.words.app_generation.load(Ordering::Acquire) != self.generation {
            return Ok(());
        }
        // Flags first: FIN is stored after the final tail, so the tail read below is final if FIN is seen.
        let flags = self.words.app_flags.load(Ordering::Acquire);
        if !self.close.is_stop_asked() && !self.close.is_reset() {
            let head = self.words.rx_head.load(Ordering::Acquire);
            self.rx_head = check_cursor("rx_head", self.rx_head, head, self.rx_tail, self.ring_bytes.into())?;
        }
        if self.close.app_may_write() {
            let tail = self.words.tx_tail.load(Ordering::Acquire);
            let limit = self.tx_head.wrapping_add(self.ring_bytes.into());
            self.tx_tail = check_cursor("tx_tail", self.tx_tail, tail, limit, self.ring_bytes.into())?;
        }
        if flags & app_flag::ABORT != 0 {
            self.close.on_abort(Reason::ResetByPeer);
        }
        if flags & (app_flag::FIN | app_flag::CLOSED) != 0 {
            self.close.on_app_fin();
        }
        if flags & (app_flag::STOP | app_flag::CLOSED) != 0 {
            self.close.on_app_stop();
        }
        if flags & app_flag::CLOSED != 0 {
            self.close.on_app_released();
        }
        Ok(())
    }

    // ---- to the peer: data

    /// Whether there is data that may leave, now that both ends know each other.
    #[inline]
    pub(crate) fn is_sendable(&self) -> bool {
        self.phase == Phase::Open && self.tx_sent != self.tx_tail && self.close.may_send_data()
    }

    /// The next contiguous piece of at most `max` bytes.
    #[inline]
    pub(crate) fn next_piece(&self, max: u32) -> Option<Piece> {
        if !self.is_sendable() {
            return None;
        }
        let ring = u64::from(self.ring_bytes);
        let at = self.tx_sent % ring;
        let bytes = self.tx_tail.wrapping_sub(self.tx_sent).min(ring - at).min(max.into());
        Some(Piece { at, bytes: bytes as u32 })
    }

    /// Whether a thread of the application waits for this [`shm::waiting`] event, which was just published.
    #[inline]
    pub(crate) fn is_awaited(&self, event: u32) -> bool {
        slot_is_awaited(&self.words.app_wait, event)
    }

    /// Whether half of the tx ring is free: then a writer that waits for room is called. Earlier it would wake for each piece,
    /// and the processor that it shares with others would go to and fro between them.
    pub(crate) fn has_half_room(&self) -> bool {
        self.tx_tail.wrapping_sub(self.tx_head) <= u64::from(self.ring_bytes / 2)
    }

    /// The peer consumed bytes. True: the application has news.
    pub(crate) fn on_head(&mut self, consumed: u64) -> Result<bool, Violation> {
        let head = check_cursor("Head", self.tx_head, consumed, self.tx_sent, self.ring_bytes.into())?;
        if head == self.tx_head {
            return Ok(false);
        }
        self.tx_head = head;
        self.words.tx_head.store(head, Ordering::Release);
        Ok(true)
    }

    // ---- from the peer: data and ends

    /// Whether `bytes` were placed at the tail of the rx ring, as the device tells it. A device that does not tell is believed
    /// for the length of the WRITE with immediate, which it counted, and for nothing that the peer says was before.
    #[inline]
    fn is_placed(&self, bytes: u32, before: u32, placed: Placed) -> bool {
        let tail = self.rx_place.offset + self.rx_tail % u64::from(self.ring_bytes);
        match placed {
            Placed::Piece { rkey, addr, len } => (rkey, addr, len) == (self.rx_place.rkey, tail, bytes.into()),
            Placed::Nothing => bytes == 0,
            Placed::Untold => before == 0,
            Placed::Scattered => false,
        }
    }

    /// `bytes` landed in the rx ring; of `before` of them only the peer says so.
    #[inline]
    pub(crate) fn on_arrival(&mut self, bytes: u32, before: u32, placed: Placed) -> Result<(), Violation> {
        if self.phase != Phase::Open || !self.close.may_receive() {
            return Err(Violation::DataAfterEnd { id: self.id });
        }
        let granted = self.rx_reported.wrapping_add(self.ring_bytes.into()).wrapping_sub(self.rx_tail);
        if u64::from(bytes) > granted {
            return Err(Violation::DataBeyondGrant { id: self.id, bytes, granted });
        }
        if !self.is_placed(bytes, before, placed) {
            return Err(Violation::NotPlaced { id: self.id, bytes, at: self.rx_tail, placed });
        }
        self.rx_tail = self.rx_tail.wrapping_add(bytes.into());
        self.words.rx_tail.store(self.rx_tail, Ordering::Release);
        Ok(())
    }

    pub(crate) fn on_fin(&mut self, final_tail: u64) -> Result<(), Violation> {
        if final_tail != self.rx_tail || !self.close.on_fin() {
            return Err(Violation::Fin { id: self.id, final_tail, arrived: self.rx_tail });
        }
        // Beside a reset FIN would say that it came before.
        if !self.close.is_reset() {
            self.raise(engine_flag::FIN);
        }
        Ok(())
    }

    pub(crate) fn on_stop(&mut self) {
        self.close.on_stop();
        self.raise(engine_flag::STOP);
    }

    pub(crate) fn on_reset(&mut self, reason: Reason) -> Result<(), Violation> {
        if !self.close.on_reset() {
            return Err(Violation::SecondReset { id: self.id });
        }
        self.publish_reset(reason);
        Ok(())
    }

    /// Tells the application that the connection is over.
    pub(crate) fn publish_reset(&self, reason: Reason) {
        self.words.reason.store(reason.code(), Ordering::Relaxed);
        self.words.state.store(slot_state::CLOSED, Ordering::Relaxed);
        self.raise(engine_flag::RESET);
    }

    fn raise(&self, flag: u32) {
        self.words.engine_flags.fetch_or(flag, Ordering::Release);
    }

    // ---- to the peer: records

    /// Whether the application consumed everything and the peer will send no more.
    pub(crate) fn is_all_read(&self) -> bool {
        self.close.is_fin_received() && self.rx_head == self.rx_tail
    }

    fn is_consumed(&self) -> bool {
        self.tx_head == self.tx_sent
    }

    /// Decides whether the bytes consumed and not reported are worth a record now, later, or not at all.
    ///
    /// A quarter of the ring is: the peer's application cannot stay blocked while it is missing, since it is blocked only
    /// by a full ring, which the application here drains or already holds back itself. After Fin the peer waits for the
    /// last byte to be consumed. Anything else may wait a little.
    pub(crate) fn update_head_report(&mut self) -> HeadReport {
        let unreported = self.rx_head.wrapping_sub(self.rx_reported);
        self.head_report = if unreported == 0 || !self.close.reports_heads() {
            HeadReport::None
        } else if unreported >= u64::from(self.ring_bytes / 4) || self.is_all_read() {
            HeadReport::Due
        } else {
            HeadReport::Lazy
        };
        self.head_report
    }

    /// Whether a record other than a lazy head is to be sent.
    pub(crate) fn owes_records(&self) -> bool {
        match self.phase {
            Phase::Opening(_) => false,
            Phase::Accepting => true,
            Phase::Open => {
                self.head_report == HeadReport::Due
                    || self.close.owes_stop(self.is_all_read())
                    || self.close.owes_fin(self.tx_sent == self.tx_tail)
                    || self.close.owes_reset().is_some()
            }
        }
    }

    /// Writes the records that are owed. False: the frame is full, and some are left.
    pub(crate) fn write_records(&mut self, frame: &mut FrameWriter<'_>, wrote_end: &mut bool) -> bool {
        let route = self.peer_route;
        if self.phase == Phase::Accepting {
            let ring = self.rx_place.wire_ring(self.ring_bytes);
            if !frame.push(&Record::OpenAck { route, own_route: self.own_route, ring }) {
                return false;
            }
            self.phase = Phase::Open;
        }
        if self.phase != Phase::Open {
            return true;
        }
        if self.head_report != HeadReport::None && self.close.reports_heads() {
            if !frame.push(&Record::Head { route, consumed: self.rx_head }) {
                return false;
            }
            self.rx_reported = self.rx_head;
        }
        self.head_report = HeadReport::None;
        if self.close.owes_stop(self.is_all_read()) {
            if !frame.push(&Record::Stop { route }) {
                return false;
            }
            self.close.stop_was_sent();
        }
        if self.close.owes_fin(self.tx_sent == self.tx_tail) {
            if !frame.push(&Record::Fin { route, final_tail: self.tx_sent }) {
                return false;
            }
            self.close.fin_was_sent();
            *wrote_end = true;
        }
        if let Some(reason) = self.close.owes_reset() {
            if !frame.push(&Record::Reset { route, reason: reason.code() }) {
                return false;
            }
            self.close.reset_was_sent();
            *wrote_end = true;
        }
        true
    }

    /// Whether nobody can touch slot and rings any more, once `last_wr` is completed.
    pub(crate) fn is_over(&self) -> bool {
        self.close.is_over(self.is_consumed(), self.rx_reported == self.rx_tail)
    }

    /// Whether a loss of the lane changes nothing for the application.
    pub(crate) fn is_complete(&self) -> bool {
        self.close.is_complete(self.is_consumed())
    }

    // ---- for inspection

    pub(crate) fn state(&self) -> ConnectionState {
        if matches!(self.phase, Phase::Opening(_)) {
            ConnectionState::Connecting
        } else if self.close.is_app_released() || self.close.is_reset() {
            ConnectionState::Closing
        } else if self.backlog_port.is_some() {
            ConnectionState::Backlog
        } else {
            match (self.close.is_fin_asked(), self.close.is_fin_received()) {
                (false, false) => ConnectionState::Established,
                (true, false) => ConnectionState::FinSent,
                (false, true) => ConnectionState::FinReceived,
                (true, true) => ConnectionState::Closing,
            }
        }
    }

    /// Bytes written and not yet consumed by the peer, with what the application wrote since its last doorbell.
    pub(crate) fn tx_queued_bytes(&self) -> u64 {
        self.fresh(&self.words.tx_tail, self.tx_tail, self.tx_head)
    }

    /// Bytes arrived and not read, with what the application read since its last doorbell.
    pub(crate) fn rx_queued_bytes(&self) -> u64 {
        let unread = self.rx_tail.wrapping_sub(self.rx_head);
        unread.saturating_sub(self.fresh(&self.words.rx_head, self.rx_head, self.rx_head).min(unread))
    }

    /// How far the application's word is beyond `from`, or `known` if the word makes no sense.
    fn fresh(&self, word: &shm::Word64, known: u64, from: u64) -> u64 {
        let of = |value: u64| value.wrapping_sub(from);
        let current = self.words.app_generation.load(Ordering::Acquire) == self.generation;
        let seen = of(word.load(Ordering::Acquire));
        if current && seen >= of(known) && seen <= self.ring_bytes.into() { seen } else { of(known) }
    }
}
