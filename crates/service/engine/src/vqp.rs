//! A virtual queue pair: one end of a connection on a lane.
//!
//! It is made of parts, each with its own state behind its own verbs; here is what concerns several of them: set-up, the
//! doorbell, what may leave next, and when nothing can touch the connection's memory any more.

mod app_slot;
mod arrival;
pub(crate) mod away;
pub(crate) mod bulk;
mod close;
mod cursors;
mod growth;
mod identity;
pub(crate) mod messages;
pub(crate) mod on_lane;
mod place;
mod records;
pub(crate) mod rendezvous;
mod rest;
mod rest_turn;
mod resume;
pub(crate) mod row;
pub(crate) mod table;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use control::{Connection, Kind, Reason};
use shm::{PeerFault, app_flag};
use verbs::{RemoteAddr, Sge, Time};

use crate::event::Event;
use crate::frame::{Open, StreamRecord, WireRing, check_ring, check_route};
use crate::ids::{AppId, ConnectId, LaneId, RouteId, SlotAt};
use crate::ring_size::RingSize;
use crate::ringpool::RingPair;
use crate::slot::TakenSlot;
use crate::stages::Whose;
use crate::violation::Violation;

use app_slot::AppSlot;
use away::{Away, Part};
use bulk::Bulk;
use close::Close;
use cursors::{RxCursors, TxCursors};
use growth::Growth;
use identity::{Identity, Routes};
use messages::Messages;
use place::LanePlace;
pub(crate) use place::List;
use rendezvous::{Lending, Pull};
pub(crate) use rest_turn::RestTurn;

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
    identity: Identity,
    routes: Routes,
    phase: Phase,
    /// The peer knows, or will know, of the attempt.
    is_open_sent: bool,
    /// The listener at which it waits for `accept`.
    backlog_port: Option<u16>,
    pub(crate) slot: AppSlot,
    pub(crate) place: LanePlace,

    rings: RingPair,
    /// Used of either ring; what was allocated may be larger.
    size: RingSize,
    allocated: RingSize,
    tx: TxCursors,
    rx: RxCursors,
    growth: Growth,
    lending: Lending,
    pull: Option<Pull>,
    /// Of a connection of messages on UC; then the stream has no bytes.
    messages: Option<Box<Messages>>,
    /// What shows whether it is bulk.
    pub(crate) bulk: Bulk,

    close: Close,
    head_report: HeadReport,
    /// Last work request that reads the tx ring, or the frame with Fin or Reset.
    last_wr: u64,
    /// Its place among those that are looked at for whether they rest.
    pub(crate) rest: RestTurn,
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
        let is_outgoing = phase != Phase::Accepting;
        Self {
            identity: Identity { id, local, peer, kind, is_outgoing, has_lost_number: false },
            routes: Routes::new(names.own_route),
            phase,
            is_open_sent: false,
            backlog_port: None,
            slot: AppSlot::new(app, names.slot),
            place: LanePlace::on(lane),
            rings,
            size,
            allocated,
            tx: TxCursors::new(size),
            rx: RxCursors::new(size),
            growth: Growth::default(),
            lending: Lending::default(),
            pull: None,
            messages: Messages::for_kind(kind),
            bulk: Bulk::default(),
            close: Close::default(),
            head_report: HeadReport::None,
            last_wr: 0,
            rest: RestTurn::new(now),
            part: Part::default(),
        }
    }

    // ---- what it is

    /// Its number on this host.
    pub(crate) fn id(&self) -> u64 {
        self.identity.id
    }

    /// Its application's slot.
    #[inline]
    pub(crate) fn at(&self) -> SlotAt {
        self.slot.at()
    }

    #[inline]
    pub(crate) fn app(&self) -> AppId {
        self.slot.at().app
    }

    pub(crate) fn kind(&self) -> Kind {
        self.identity.kind
    }

    /// The other host.
    pub(crate) fn peer_ip(&self) -> IpAddr {
        self.identity.peer.ip()
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The number goes on with another attempt of the same connect.
    pub(crate) fn give_up_number(&mut self) {
        self.identity.has_lost_number = true;
    }

    /// What the daemon learns when nothing of it is in use, unless its number goes on.
    pub(crate) fn over(&self) -> Option<Event> {
        self.identity.over(self.app())
    }

    pub(crate) fn rings(&self) -> RingPair {
        self.rings
    }

    /// The size by which its rings were allocated.
    pub(crate) fn allocated(&self) -> RingSize {
        self.allocated
    }

    /// The peer's route id.
    pub(crate) fn peer_route(&self) -> u32 {
        self.routes.peer
    }

    /// The last work request that reads its memory, or names it to the peer.
    pub(crate) fn last_wr(&self) -> u64 {
        self.last_wr
    }

    // ---- set-up

    /// The record that asks the peer for the connection.
    pub(crate) fn open_record(&self) -> StreamRecord {
        let Identity { local, peer, kind, .. } = self.identity;
        StreamRecord::Open(Open {
            route: self.routes.own,
            ring: self.rings.rx.wire_ring(self.size),
            to_port: peer.port(),
            from_port: local.port(),
            kind: kind.code(),
            to_address: peer.ip(),
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
        self.routes.learn(open.route, open.ring.remote());
        self.is_open_sent = true;
        self.backlog_port = Some(open.to_port);
    }

    /// The peer accepted. The caller knows that it is being opened.
    pub(crate) fn on_open_ack(&mut self, peer_route: u32, ring: &WireRing) -> Result<(), Violation> {
        check_ring(ring, self.size)?;
        check_route(peer_route)?;
        self.routes.learn(peer_route, ring.remote());
        // Both directions have the acceptor's size; a larger ring made here is used in its first part.
        self.size = ring.size;
        self.tx.set_size(self.size);
        self.rx.set_size(self.size);
        self.phase = Phase::Open;
        Ok(())
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
        self.place.leave_lane();
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

    /// The connection, as the application gets it.
    pub(crate) fn connection(&self) -> Connection {
        let Identity { id, local, peer, .. } = self.identity;
        let path = self.rings.path(self.at().slot, self.slot.generation(), self.size);
        Connection { id, local, peer, path, ticket: self.ticket() }
    }

    // ---- from the application

    /// Takes the application's cursors and flags. Whether a cursor moved; an error means that it broke the rules.
    pub(crate) fn on_doorbell(&mut self) -> Result<bool, PeerFault> {
        if !self.slot.is_taken() {
            return Ok(false);
        }
        let before = self.app_cursors();
        // Flags first: FIN is stored after the final tail, so the tail read below is final if FIN is seen.
        let flags = self.slot.words().app_flags.load(Ordering::Acquire);
        let moved = self.look_at_messages()?;
        if !self.has_messages() && !self.close.is_stop_asked() && !self.close.is_reset() {
            self.rx.take_head(self.slot.words().rx_head.load(Ordering::Acquire))?;
        }
        if !self.has_messages() && self.close.app_may_write() {
            self.tx.take_tail(self.slot.words().tx_tail.load(Ordering::Acquire))?;
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
        Ok(moved || self.app_cursors() != before)
    }

    // ---- to the peer: data

    /// Whether there is data that may leave, now that both ends know each other.
    #[inline]
    pub(crate) fn is_sendable(&self) -> bool {
        self.phase == Phase::Open && self.tx.sent() != self.sendable_end() && self.close.may_send_data()
    }

    /// The next contiguous piece of at most `max` bytes.
    #[inline]
    pub(crate) fn next_piece(&self, max: u32) -> Option<Piece> {
        if !self.is_sendable() {
            return None;
        }
        Some(self.tx.next_piece(self.sendable_end(), max))
    }

    /// The place in the peer's ring of what is at `at` of either.
    #[inline]
    pub(crate) fn remote(&self, at: u64) -> RemoteAddr {
        self.routes.remote(at)
    }

    /// `len` bytes of the tx ring.
    #[inline]
    pub(crate) fn tx_sge(&self, at: u64, len: u32) -> Sge {
        Sge { addr: self.rings.tx.offset + at, len, lkey: self.rings.tx.lkey }
    }

    /// The bytes of the stream that the next piece has.
    #[inline]
    pub(crate) fn staging(&self, piece: Piece) -> (u64, u64) {
        (self.tx.sent(), self.tx.sent().wrapping_add(piece.bytes.into()))
    }

    /// What its application has written and read, as far as the engine looked.
    #[inline]
    pub(crate) fn app_cursors(&self) -> (u64, u64) {
        (self.tx.tail(), self.rx.head())
    }

    /// The bytes of the stream that arrive next, if they are so many.
    #[inline]
    pub(crate) fn arriving(&self, bytes: u32) -> (u64, u64) {
        (self.rx.tail(), self.rx.tail().wrapping_add(bytes.into()))
    }

    /// As what its messages are looked at.
    pub(crate) fn whose(&self, route: RouteId) -> Whose {
        self.identity.whose(route, self.app())
    }

    /// A piece is staged, by this work request at last.
    #[inline]
    pub(crate) fn on_staged(&mut self, piece: Piece, wr: u64) {
        self.last_wr = wr;
        self.tx.on_sent(piece.bytes.into());
    }

    /// The frame of this work request has the last record that the peer must get.
    pub(crate) fn on_end_staged(&mut self, wr: u64) {
        self.last_wr = wr;
    }

    /// Whether consumed bytes are reported to the peer, if there is room.
    pub(crate) fn has_lazy_head(&self) -> bool {
        self.head_report == HeadReport::Lazy
    }

    /// Whether half of the tx ring is free: then a writer that waits for room is called. Earlier it would wake for each
    /// piece, and the processor that it shares with others would go to and fro between them.
    pub(crate) fn has_half_room(&self) -> bool {
        self.tx.has_half_room()
    }

    /// The peer consumed bytes. True: the application has news.
    pub(crate) fn on_head(&mut self, consumed: u64) -> Result<bool, Violation> {
        let is_news = self.tx.on_head(consumed)?;
        if is_news {
            self.slot.publish_tx_head(self.tx.head());
            self.on_room();
        }
        Ok(is_news)
    }

    // ---- over

    /// Whether slot and rings cannot be touched any more, once `last_wr` is completed.
    pub(crate) fn is_over(&self) -> bool {
        self.close.is_over(self.tx.is_consumed(), self.rx.is_all_reported()) && self.is_rendezvous_over()
    }

    /// Whether a loss of the lane changes nothing for the application.
    pub(crate) fn is_complete(&self) -> bool {
        let consumed = self.tx.is_consumed();
        self.close.is_complete(consumed) || (self.part.is_unknown() && self.close.is_complete_but_for_fin(consumed))
    }
}
