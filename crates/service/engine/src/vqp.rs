//! A virtual queue pair: one end of a connection on a lane.
//!
//! Owns the connection's cursors, all absolute 64-bit offsets, and says what may be sent and reported. It must never
//! take a value of the application's or the peer's that it did not check against its own.
//!
//! The rings are mirrored: byte `o` of a direction lies at `o % ring_bytes` of the sender's tx ring and of the
//! receiver's rx ring. A tx ring keeps its bytes until the peer's application consumed them, so bytes that fit the tx
//! ring have room in the peer's, and a lane that is reset can send again from any offset that the peer names.
//!
//! Over 600 lines because the fields are private: each short method that reads or changes them stands beside them.

pub(crate) mod away;
pub(crate) mod bulk;
mod close;
mod growth;
pub(crate) mod messages;
pub(crate) mod rendezvous;
mod rest;
mod resume;
pub(crate) mod row;
pub(crate) mod table;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Connection, Kind, Reason};
use shm::{PeerFault, SlotWords, Span, app_flag, check_cursor, engine_flag, slot_is_awaited, slot_state};
use verbs::{Placed, RemoteAddr, Rkey, Sge, Time};

use crate::event::Event;
use crate::frame::{FrameWriter, Open, StreamRecord, WireRing, check_ring, check_route};
use crate::ids::{AppId, ConnectId, LaneId, RouteId, SlotAt};
use crate::numbers::few;
use crate::rests::RestTurn;
use crate::ring_size::RingSize;
use crate::ringpool::RingPair;
use crate::slot::TakenSlot;
use crate::slot::clear_slot;
use crate::stages::Whose;
use crate::violation::Violation;

use away::{Away, Part};
use bulk::Bulk;
use close::Close;
use growth::Growth;
use messages::Messages;
use rendezvous::{Lending, Pull};

/// How far the set-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Open is, or will be, on its way. Without a connect nobody waits for the answer.
    Opening(Option<ConnectId>),
    /// Accepted here; OpenAck goes before any data.
    Accepting,
    /// Both ends know each other.
    Open,
    /// Both knew each other, until the link between their daemons, or a daemon, was lost.
    Away(Away),
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

/// A lane's lists in which a connection may stand, each at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Of those with records to send.
    Control,
    /// Of those whose consumed bytes may wait.
    LazyHead,
    /// Of those with data to send.
    Ready,
}

/// In which of its lane's lists a connection stands, and what is left of its turn.
#[derive(Debug, Default)]
struct Listed {
    control: bool,
    lazy_head: bool,
    ready: bool,
    deficit: u32,
}

/// What a new virtual QP is made of.
pub(crate) struct NewVqp {
    /// Its number on this host.
    pub(crate) id: u64,
    pub(crate) app: AppId,
    pub(crate) lane: LaneId,
    pub(crate) phase: Phase,
    pub(crate) rings: RingPair,
    /// As they are used, and as they were allocated.
    pub(crate) size: RingSize,
    pub(crate) allocated: RingSize,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) kind: Kind,
}

/// Where and as what it stands in the engine.
pub(crate) struct Names {
    /// Its route id, by which the peer names it.
    pub(crate) own_route: u32,
    pub(crate) slot: TakenSlot,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Vqp {
    id: u64,
    /// The number is another attempt's.
    has_lost_number: bool,
    /// Its route id, by which the peer names it.
    own_route: u32,
    local: SocketAddr,
    peer: SocketAddr,
    kind: Kind,
    phase: Phase,
    /// The peer knows, or will know, of the attempt.
    is_open_sent: bool,
    /// The listener at which it waits for `accept`.
    backlog_port: Option<u16>,

    at: SlotAt,
    /// Its application connected; else it accepted.
    is_outgoing: bool,
    generation: u32,
    words: Box<SlotWords>,

    /// `None` once the lane is lost; a lane that is only reset keeps its connections.
    lane: Option<LaneId>,
    /// Neighbours in the lane's list of connections.
    previous: Option<RouteId>,
    next: Option<RouteId>,
    peer_route: u32,
    peer_ring: RemoteAddr,

    rings: RingPair,
    /// Used of either ring; what was allocated may be larger.
    size: RingSize,
    allocated: RingSize,
    tx_span: Span,
    rx_span: Span,
    growth: Growth,
    lending: Lending,
    pull: Option<Pull>,
    /// Of a connection of messages on UC; then the cursors below stay 0.
    messages: Option<Box<Messages>>,

    /// Written by the application.
    tx_tail: u64,
    /// Posted to the lane.
    tx_sent: u64,
    /// Consumed by the peer's application.
    tx_head: u64,
    /// Arrived.
    rx_tail: u64,
    /// Consumed by the application.
    rx_head: u64,
    /// Told to the peer: it may send up to `rx_reported + ring_bytes`.
    rx_reported: u64,

    /// Bytes sent that the application's row has counted already.
    tx_counted: u64,
    rx_counted: u64,
    bulk: Bulk,

    close: Close,
    head_report: HeadReport,
    listed: Listed,
    /// Last work request that reads the tx ring, or the frame with Fin or Reset.
    last_wr: u64,
    rest: RestTurn,
    part: Part,
}

/// A contiguous piece of a ring that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Offset in either ring.
    pub(crate) at: u64,
    pub(crate) bytes: u32,
}

impl Vqp {
    /// A connection in a slot that was just taken for it.
    pub(crate) fn new(new: NewVqp, names: Names, now: Time) -> Self {
        let NewVqp { id, app, lane, phase, rings, size, allocated, local, peer, kind } = new;
        let Names { own_route, slot } = names;
        Self {
            id,
            has_lost_number: false,
            own_route,
            local,
            peer,
            kind,
            phase,
            is_open_sent: false,
            backlog_port: None,
            at: SlotAt { app, slot: slot.number },
            is_outgoing: phase != Phase::Accepting,
            generation: slot.generation,
            words: slot.words,
            lane: Some(lane),
            previous: None,
            next: None,
            peer_route: 0,
            peer_ring: RemoteAddr { addr: 0, rkey: Rkey(0) },
            rings,
            size,
            allocated,
            tx_span: size.span(),
            rx_span: size.span(),
            growth: Growth::default(),
            lending: Lending::default(),
            pull: None,
            messages: Messages::for_kind(kind),
            tx_tail: 0,
            tx_sent: 0,
            tx_head: 0,
            rx_tail: 0,
            rx_head: 0,
            rx_reported: 0,
            tx_counted: 0,
            rx_counted: 0,
            bulk: Bulk::default(),
            close: Close::default(),
            head_report: HeadReport::None,
            listed: Listed::default(),
            last_wr: 0,
            rest: RestTurn::new(now),
            part: Part::default(),
        }
    }

    // ---- what it is

    /// Its number on this host.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its application's slot.
    #[inline]
    pub(crate) fn at(&self) -> SlotAt {
        self.at
    }

    #[inline]
    pub(crate) fn app(&self) -> AppId {
        self.at.app
    }

    #[inline]
    pub(crate) fn lane(&self) -> Option<LaneId> {
        self.lane
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The other host.
    pub(crate) fn peer_ip(&self) -> IpAddr {
        self.peer.ip()
    }

    /// What shows whether it is bulk.
    #[inline]
    pub(crate) fn bulk_mut(&mut self) -> &mut Bulk {
        &mut self.bulk
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The number goes on with another attempt of the same connect.
    pub(crate) fn give_up_number(&mut self) {
        self.has_lost_number = true;
    }

    /// What the daemon learns when nothing of it is in use, unless its number goes on.
    pub(crate) fn over(&self) -> Option<Event> {
        let port = (!self.is_outgoing).then_some(self.local.port());
        let (app, connection, peer) = (self.at.app, self.id, self.peer.ip());
        (!self.has_lost_number).then_some(Event::ConnectionOver { app, connection, peer, port })
    }

    pub(crate) fn rings(&self) -> RingPair {
        self.rings
    }

    /// The size by which its rings were allocated.
    pub(crate) fn allocated(&self) -> RingSize {
        self.allocated
    }

    pub(crate) fn words(&self) -> &SlotWords {
        &self.words
    }

    /// The peer's route id.
    pub(crate) fn peer_route(&self) -> u32 {
        self.peer_route
    }

    /// The last work request that reads its memory, or names it to the peer.
    pub(crate) fn last_wr(&self) -> u64 {
        self.last_wr
    }

    // ---- set-up

    /// The record that asks the peer for the connection.
    pub(crate) fn open_record(&self) -> StreamRecord {
        StreamRecord::Open(Open {
            route: self.own_route,
            ring: self.rings.rx.wire_ring(self.size),
            to_port: self.peer.port(),
            from_port: self.local.port(),
            kind: self.kind.code(),
            to_address: self.peer.ip(),
        })
    }

    /// Whether the peer knows, or will know, of the attempt.
    pub(crate) fn is_open_sent(&self) -> bool {
        self.is_open_sent
    }

    /// The Open is in a frame.
    pub(crate) fn on_open_sent(&mut self) {
        self.is_open_sent = true;
    }

    /// The Open did not arrive: it is to be sent again.
    pub(crate) fn on_open_lost(&mut self) {
        self.is_open_sent = false;
    }

    /// It is the accepted end of the peer's Open, and waits at a listener.
    pub(crate) fn on_open(&mut self, open: &Open) {
        self.peer_ring = open.ring.remote();
        self.peer_route = open.route;
        self.is_open_sent = true;
        self.backlog_port = Some(open.to_port);
    }

    /// The peer accepted. The caller knows that it is being opened.
    pub(crate) fn on_open_ack(&mut self, peer_route: u32, ring: &WireRing) -> Result<(), Violation> {
        check_ring(ring, self.size)?;
        check_route(peer_route)?;
        self.peer_route = peer_route;
        self.peer_ring = ring.remote();
        // Both directions have the acceptor's size; a larger ring made here is used in its first part.
        self.size = ring.size;
        (self.tx_span, self.rx_span) = (self.size.span(), self.size.span());
        self.phase = Phase::Open;
        Ok(())
    }

    /// The application keeps at most so many bytes in its transmit ring for now.
    pub(crate) fn hold(&self, bytes: u32) {
        self.words.tx_hold.store(bytes, Ordering::Relaxed);
    }

    /// The application may use it.
    pub(crate) fn publish_established(&self) {
        self.words.state.store(slot_state::ESTABLISHED, Ordering::Release);
    }

    /// Which incarnation of the lane it is on, for the application to see.
    pub(crate) fn publish_epoch(&self, epoch: u32) {
        self.words.epoch.store(epoch.into(), Ordering::Relaxed);
    }

    /// Nobody waits for the answer any more; the application has given it back.
    pub(crate) fn abandon(&mut self) {
        if let Phase::Opening(_) = self.phase {
            self.phase = Phase::Opening(None);
        }
        self.close.on_app_released();
    }

    // ---- the listener at which it waits

    pub(crate) fn backlog_port(&self) -> Option<u16> {
        self.backlog_port
    }

    /// It waits for `accept` no more.
    pub(crate) fn leave_backlog(&mut self) {
        self.backlog_port = None;
    }

    // ---- the lane's lists

    /// Enters a list of its lane, at whose end the caller puts it. False: it is there already.
    pub(crate) fn enter(&mut self, list: List) -> bool {
        !std::mem::replace(self.place_in(list), true)
    }

    /// It was taken out of a list.
    pub(crate) fn leave(&mut self, list: List) {
        *self.place_in(list) = false;
    }

    /// Its lane forgot all lists.
    pub(crate) fn leave_lists(&mut self) {
        self.listed = Listed::default();
    }

    fn place_in(&mut self, list: List) -> &mut bool {
        match list {
            List::Control => &mut self.listed.control,
            List::LazyHead => &mut self.listed.lazy_head,
            List::Ready => &mut self.listed.ready,
        }
    }

    /// Bytes that are left of its turn.
    #[inline]
    pub(crate) fn deficit(&self) -> u32 {
        self.listed.deficit
    }

    #[inline]
    pub(crate) fn deficit_mut(&mut self) -> &mut u32 {
        &mut self.listed.deficit
    }

    // ---- ends

    /// The application, or the engine for it, aborts. The first reason stays.
    pub(crate) fn abort(&mut self, reason: Reason) {
        self.close.on_abort(reason);
    }

    /// The application does not use slot and rings any more.
    pub(crate) fn release(&mut self) {
        self.close.on_app_released();
    }

    /// The lane's queue pair is destroyed, and with it all that the lane knows of the connection.
    pub(crate) fn sever(&mut self) {
        self.close.on_severed();
        self.forget_rendezvous();
        (self.lane, self.previous, self.next) = (None, None, None);
        self.leave_lists();
    }

    /// The peer holds nothing of it, though its lane goes on.
    pub(crate) fn end_unlinked(&mut self) {
        self.close.on_severed();
        self.forget_rendezvous();
    }

    pub(crate) fn is_app_released(&self) -> bool {
        self.close.is_app_released()
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.close.is_reset()
    }

    /// For how long the application waits for a silent peer, if it said so.
    pub(crate) fn peer_timeout(&self) -> Option<Duration> {
        if self.words.app_generation.load(Ordering::Acquire) != self.generation {
            return None;
        }
        match self.words.peer_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }

    /// Writes the slot for a new connection.
    fn publish_new(&self, epoch: u32) {
        let state = if self.is_outgoing { slot_state::CONNECTING } else { slot_state::ESTABLISHED };
        clear_slot(&self.words, self.generation, epoch, state);
    }

    /// The connection, as the application gets it.
    pub(crate) fn connection(&self) -> Connection {
        let path = self.rings.path(self.at.slot, self.generation, self.size);
        Connection { id: self.id, local: self.local, peer: self.peer, path, ticket: self.ticket() }
    }

    // ---- from the application

    /// Takes the application's cursors and flags. Whether a cursor moved; an error means that it broke the rules.
    pub(crate) fn on_doorbell(&mut self) -> Result<bool, PeerFault> {
        if self.words.app_generation.load(Ordering::Acquire) != self.generation {
            return Ok(false);
        }
        let (head_before, tail_before) = (self.rx_head, self.tx_tail);
        // Flags first: FIN is stored after the final tail, so the tail read below is final if FIN is seen.
        let flags = self.words.app_flags.load(Ordering::Acquire);
        let moved = self.look_at_messages()?;
        if !self.has_messages() && !self.close.is_stop_asked() && !self.close.is_reset() {
            let head = self.words.rx_head.load(Ordering::Acquire);
            self.rx_head = check_cursor("rx_head", self.rx_head, head, self.rx_tail, self.rx_span.full())?;
        }
        if !self.has_messages() && self.close.app_may_write() {
            let tail = self.words.tx_tail.load(Ordering::Acquire);
            let limit = self.tx_tail.wrapping_add(self.tx_span.room(self.tx_tail, self.tx_head));
            self.tx_tail = check_cursor("tx_tail", self.tx_tail, tail, limit, self.tx_span.full())?;
        }
        if self.close.app_may_write() {
            // After the tail: the application names the verb first.
            self.look_at_verb();
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
        Ok(moved || (self.rx_head, self.tx_tail) != (head_before, tail_before))
    }

    // ---- to the peer: data

    /// Whether there is data that may leave, now that both ends know each other.
    #[inline]
    pub(crate) fn is_sendable(&self) -> bool {
        self.phase == Phase::Open && self.tx_sent != self.sendable_end() && self.close.may_send_data()
    }

    /// The next contiguous piece of at most `max` bytes.
    #[inline]
    pub(crate) fn next_piece(&self, max: u32) -> Option<Piece> {
        if !self.is_sendable() {
            return None;
        }
        let (at, together) = self.tx_span.place(self.tx_sent);
        let bytes = self.sendable_end().wrapping_sub(self.tx_sent).min(together).min(max.into());
        Some(Piece { at, bytes: few(bytes) })
    }

    /// The place in the peer's ring of what is at `at` of either.
    #[inline]
    pub(crate) fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.peer_ring.addr + at, rkey: self.peer_ring.rkey }
    }

    /// `len` bytes of the tx ring.
    #[inline]
    pub(crate) fn tx_sge(&self, at: u64, len: u32) -> Sge {
        Sge { addr: self.rings.tx.offset + at, len, lkey: self.rings.tx.lkey }
    }

    /// The bytes of the stream that the next piece has.
    #[inline]
    pub(crate) fn staging(&self, piece: Piece) -> (u64, u64) {
        (self.tx_sent, self.tx_sent.wrapping_add(piece.bytes.into()))
    }

    /// What its application has written and read, as far as the engine looked.
    #[inline]
    pub(crate) fn app_cursors(&self) -> (u64, u64) {
        (self.tx_tail, self.rx_head)
    }

    /// When its application wrote a byte, as it says: see [`shm::written_at`].
    pub(crate) fn written_word(&self) -> u64 {
        self.words.tx_written.load(Ordering::Relaxed)
    }

    /// The bytes of the stream that arrive next, if they are so many.
    #[inline]
    pub(crate) fn arriving(&self, bytes: u32) -> (u64, u64) {
        (self.rx_tail, self.rx_tail.wrapping_add(bytes.into()))
    }

    /// As what its messages are looked at.
    pub(crate) fn whose(&self, route: RouteId) -> Whose {
        Whose { route, app: self.at.app, connection: self.id, peer: self.peer }
    }

    /// A piece is staged, by this work request at last.
    #[inline]
    pub(crate) fn on_staged(&mut self, piece: Piece, wr: u64) {
        self.last_wr = wr;
        self.tx_sent = self.tx_sent.wrapping_add(piece.bytes.into());
    }

    /// The frame of this work request has the last record that the peer must get.
    pub(crate) fn on_end_staged(&mut self, wr: u64) {
        self.last_wr = wr;
    }

    /// Whether consumed bytes are reported to the peer, if there is room.
    pub(crate) fn has_lazy_head(&self) -> bool {
        self.head_report == HeadReport::Lazy
    }

    /// Whether a thread of the application waits for this [`shm::waiting`] event, which was just published.
    #[inline]
    pub(crate) fn is_awaited(&self, event: u32) -> bool {
        slot_is_awaited(&self.words.app_wait, event)
    }

    /// Whether half of the tx ring is free: then a writer that waits for room is called. Earlier it would wake for each
    /// piece, and the processor that it shares with others would go to and fro between them.
    pub(crate) fn has_half_room(&self) -> bool {
        self.tx_tail.wrapping_sub(self.tx_head) <= self.tx_span.fill_max() / 2
    }

    /// The peer consumed bytes. True: the application has news.
    pub(crate) fn on_head(&mut self, consumed: u64) -> Result<bool, Violation> {
        let head = check_cursor("Head", self.tx_head, consumed, self.tx_sent, self.tx_span.full())?;
        if head == self.tx_head {
            return Ok(false);
        }
        self.tx_head = head;
        self.words.tx_head.store(head, Ordering::Release);
        Ok(true)
    }

    // ---- from the peer: data and ends

    /// Whether `bytes` were placed at the tail of the rx ring, as the device reports it. If a device does not report
    /// places, the engine believes the length of the WRITE with immediate, which the device counted, and nothing that
    /// the peer claims was before.
    #[inline]
    fn is_placed(&self, bytes: u32, before: u32, placed: Placed) -> bool {
        let (place, together) = self.rx_span.place(self.rx_tail);
        let tail = self.rings.rx.offset + place;
        match placed {
            _ if u64::from(bytes) > together => false,
            Placed::Piece { rkey, addr, len } => (rkey, addr, len) == (self.rings.rx.rkey, tail, bytes.into()),
            Placed::Nothing => bytes == 0,
            Placed::Untold => before == 0,
            Placed::Scattered => false,
        }
    }

    /// `bytes` came by SEND: their place in the rx ring, to which they are to be copied. [`Self::on_copied`] is next.
    pub(crate) fn on_send(&self, bytes: u32) -> Result<u64, Violation> {
        self.check_arrival(bytes)?;
        let (place, together) = self.rx_span.place(self.rx_tail);
        if u64::from(bytes) > together {
            return Err(Violation::Wraps { id: self.id, bytes, together });
        }
        Ok(place)
    }

    /// They are there.
    pub(crate) fn on_copied(&mut self, bytes: u32) {
        self.rx_tail = self.rx_tail.wrapping_add(bytes.into());
        self.words.rx_tail.store(self.rx_tail, Ordering::Release);
    }

    /// Whether so many bytes may come now.
    #[inline]
    fn check_arrival(&self, bytes: u32) -> Result<(), Violation> {
        if self.phase != Phase::Open || !self.close.may_receive() {
            return Err(Violation::DataAfterEnd { id: self.id });
        }
        if self.has_messages() {
            return Err(Violation::NotAStream { id: self.id });
        }
        if self.pull.is_some() {
            return Err(Violation::DataWhileLent { id: self.id });
        }
        let granted = self.rx_span.room(self.rx_tail, self.rx_reported);
        if u64::from(bytes) > granted {
            return Err(Violation::DataBeyondGrant { id: self.id, bytes, granted });
        }
        Ok(())
    }

    /// `bytes` landed in the rx ring; of `before` of them only the peer says so.
    #[inline]
    pub(crate) fn on_arrival(&mut self, bytes: u32, before: u32, placed: Placed) -> Result<(), Violation> {
        match self.arrive(bytes, before, placed) {
            Err(_) if self.is_spoiled() => Ok(()),
            other => other,
        }
    }

    #[inline]
    fn arrive(&mut self, bytes: u32, before: u32, placed: Placed) -> Result<(), Violation> {
        self.check_arrival(bytes)?;
        if !self.is_placed(bytes, before, placed) {
            return Err(Violation::NotPlaced { id: self.id, bytes, at: self.rx_tail, placed });
        }
        self.rx_tail = self.rx_tail.wrapping_add(bytes.into());
        self.words.rx_tail.store(self.rx_tail, Ordering::Release);
        Ok(())
    }

    pub(crate) fn on_fin(&mut self, final_tail: u64) -> Result<(), Violation> {
        let is_early = final_tail != self.rx_tail || self.pull.is_some();
        if (is_early && !self.is_spoiled()) || !self.close.on_fin() {
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

    /// Fin says that nothing of the ring is read any more, neither by this end's device nor by the peer's.
    fn owes_fin(&self) -> bool {
        !self.is_lent() && self.close.owes_fin(self.tx_sent == self.tx_tail && self.is_messages_drained())
    }

    fn is_consumed(&self) -> bool {
        self.tx_head == self.tx_sent
    }

    /// Decides whether the bytes consumed and not reported are worth a record now, later, or not at all.
    ///
    /// A quarter of the ring is: the peer's application cannot stay blocked while it is missing, since it is blocked
    /// only by a full ring, which the application here drains or already holds back itself. After Fin the peer waits
    /// for the last byte to be consumed. Anything else may wait a little.
    pub(crate) fn update_head_report(&mut self) -> HeadReport {
        let unreported = self.rx_head.wrapping_sub(self.rx_reported);
        self.head_report = if unreported == 0 || !self.close.reports_heads() {
            HeadReport::None
        } else if unreported >= self.rx_span.fill_max() / 4 || self.is_all_read() {
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
            Phase::Away(away) => away != Away::Told,
            Phase::Open => {
                self.head_report == HeadReport::Due
                    || self.growth.owes()
                    || self.owes_rendezvous()
                    || self.close.owes_stop(self.is_all_read())
                    || self.owes_fin()
                    || self.close.owes_reset().is_some()
            }
        }
    }

    /// Writes the records that are owed. False: the frame is full, and some are left.
    pub(crate) fn write_records(&mut self, frame: &mut FrameWriter<'_>, wrote_end: &mut bool) -> bool {
        let route = self.peer_route;
        if self.phase == Phase::Accepting {
            let ring = self.rings.rx.wire_ring(self.size);
            if !frame.push(&StreamRecord::OpenAck { route, own_route: self.own_route, ring }) {
                return false;
            }
            self.phase = Phase::Open;
            // A message could overtake the answer: none leaves before that frame has arrived.
            *wrote_end = self.has_messages();
        }
        if !self.write_back(frame) {
            return false;
        }
        if self.phase != Phase::Open {
            return true;
        }
        if !self.write_growth(frame) || !self.write_rendezvous(frame) {
            return false;
        }
        if self.head_report != HeadReport::None && self.close.reports_heads() {
            if !frame.push(&StreamRecord::Head { route, consumed: self.rx_head }) {
                return false;
            }
            self.rx_reported = self.rx_head;
        }
        self.head_report = HeadReport::None;
        if self.close.owes_stop(self.is_all_read()) {
            if !frame.push(&StreamRecord::Stop { route }) {
                return false;
            }
            self.close.stop_was_sent();
        }
        if self.owes_fin() {
            if !frame.push(&StreamRecord::Fin { route, final_tail: self.tx_sent }) {
                return false;
            }
            self.close.fin_was_sent();
            *wrote_end = true;
        }
        if let Some(reason) = self.close.owes_reset() {
            if !frame.push(&StreamRecord::Reset { route, reason: reason.code() }) {
                return false;
            }
            self.close.reset_was_sent();
            *wrote_end = true;
        }
        true
    }

    /// Whether slot and rings cannot be touched any more, once `last_wr` is completed.
    pub(crate) fn is_over(&self) -> bool {
        self.close.is_over(self.is_consumed(), self.rx_reported == self.rx_tail) && self.is_rendezvous_over()
    }

    /// Whether a loss of the lane changes nothing for the application.
    pub(crate) fn is_complete(&self) -> bool {
        let consumed = self.is_consumed();
        self.close.is_complete(consumed) || (self.part.is_unknown() && self.close.is_complete_but_for_fin(consumed))
    }
}
