//! A lane: the one RC queue pair to a peer host, and what waits for it.
//!
//! Owns the lane's queues and numbers. It must never touch a connection: `pump` (sending), `engine::recv` (receiving)
//! and `engine::link` (making and losing lanes) do that.
//!
//! A lane that is reset loses its queue pair and all that waits for it, but not its connections: `engine::reset`
//! carries them over.
//!
//! Over 600 lines because the fields are private: each short method that reads or changes them stands beside them.

mod keys;
pub(crate) mod pump;
mod rest;
mod row;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use rand::RngExt;
use verbs::{Capabilities, Endpoint, Link, MrId, PathMtu, Provider, Qpn, Time, VerbsError};

use crate::choice::{Facts, Load};
use crate::credit::{CreditError, RecvCredits, SendCredits};
use crate::datagram::peer::DatagramPeer;
use crate::frame::Header;
use crate::ids::{AppId, ConnectId, Flow, QueueId, RouteId};
use crate::immediate::{UNIT_BYTES, UNITS_MAX};
use crate::lane_at::{LaneAt, LanePath};
use crate::limits::{
    CONVERSATION_CONNECTIONS, FEW_CONNECTIONS, FRAME_SLOTS, GONE_MAX, LANE_FRUITLESS_AFTER, LANE_RESET_WINDOW,
    LANE_RESETS_FRUITLESS_MAX, LANE_RESETS_MAX, LANE_SPENT_MAX, LANE_SUSPECT_WITHIN, LANE_WIDEN_FIRST, LANE_WIDEN_LAST,
    OPENS_PENDING_MAX,
};
use crate::members::Members;
use crate::operations::flight::Flight;
use crate::recvpool::FrameMemory;
use crate::redial::Redial;
use crate::resync::Resync;
use crate::sched::Drr;
use crate::sendq::{SendQueue, StrayCompletion};
use crate::stall::Stall;
use crate::tenants::{TenantPlace, Tenants};
use crate::unreliable::end::UnreliableEnd;
use crate::violation::Violation;

/// How far a lane is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneState {
    /// No queue pair.
    Down,
    /// Queue pair in Init: the peer knows it or will.
    Offered,
    /// Ready to send; whether the peer is ready is not known.
    Accepted,
    /// Connections use it.
    Up,
}

/// An answer that has no connection.
#[derive(Debug, Clone, Copy)]
struct Nak {
    route: u32,
    reason: u32,
}

/// This end of a new incarnation.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    pub(crate) incarnation: u32,
    pub(crate) qpn: Qpn,
    /// As the peer is told.
    pub(crate) endpoint: Endpoint,
    /// SRQ entries that the peer may use.
    pub(crate) credits: u32,
}

/// The other end of it, and what both have agreed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerEnd {
    pub(crate) incarnation: u32,
    pub(crate) link: Link,
    /// Entries of the peer's SRQ that this end may use.
    pub(crate) credits: u32,
    /// Longest frame that both take.
    pub(crate) frame_bytes_max: usize,
    /// Longest piece of ring data that both take.
    pub(crate) piece_bytes_max: u32,
    /// Longest piece of ring data that goes by SEND.
    pub(crate) send_bytes_max: u32,
    /// Long pieces leave as a WRITE and a WRITE with immediate (see `immediate`).
    pub(crate) splits_pieces: bool,
    /// Longest piece of an operation that both take.
    pub(crate) operation_bytes_max: u32,
    /// The peer's device may answer a WRITE before its processor sees the bytes.
    pub(crate) is_confirming: bool,
    /// What the peer's device can do.
    pub(crate) capabilities: Capabilities,
}

/// The lane to one peer.
#[derive(Debug)]
pub(crate) struct Lane {
    peer: IpAddr,
    /// Which of the lanes between the two hosts: the number of the engine at either end, or of a leased lane.
    number: u32,
    state: LaneState,
    /// The daemon was asked to dial.
    is_wanted: bool,
    /// Dials that failed, and when datagrams may have the host dialed again.
    redial: Redial,
    incarnation: u32,
    peer_incarnation: u32,
    qpn: Qpn,
    /// This end, as the peer was told.
    own: Option<Endpoint>,
    /// Between which addresses the queue pair is; none: the device's own and the peer's name.
    path: Option<LanePath>,
    peer_qpn: u32,
    peer_port: u16,
    /// What carries and protects the queue pair, and why, if it was connected.
    link: Option<Link>,
    mtu: PathMtu,
    /// Largest that is offered: less than the device's after the way got narrower.
    mtu_max: PathMtu,
    /// When that was lowered, and how long it holds.
    narrowed: Option<Time>,
    widen_after: Duration,
    /// What this incarnation's offer says.
    mtu_offered: PathMtu,
    /// Queue pairs in a row whose retries were spent, each soon after it came up.
    spent: u32,

    tx: SendCredits,
    rx: RecvCredits,
    /// The grant's size is looked at when a period ends.
    has_credit_timer: bool,
    /// Out of credits since the last frame that brought some.
    is_stalled: bool,
    sendq: SendQueue,
    frames: Option<FrameMemory>,
    frame_bytes_max: usize,
    piece_bytes_max: u32,
    send_bytes_max: u32,
    splits_pieces: bool,
    /// READs of peers' rings that are posted: work request, connection, bytes.
    pulls: VecDeque<(u64, RouteId, u32)>,
    /// Connections that wait until a READ may be posted.
    pulls_waiting: Vec<RouteId>,
    /// How busy the peer's host is, and what it was told of this one.
    load: Load,
    load_told: Load,
    /// Number of the last frame sent, and received. They go on over the lane's incarnations.
    frame_sent: u64,
    frame_received: u64,

    /// Connections with data to send, and operation queues.
    drr: Drr<Flow>,
    /// What of operations is on it.
    flight: Flight,
    /// Connections with records to send.
    control: VecDeque<RouteId>,
    /// Connections whose Open is to be sent.
    opens: VecDeque<RouteId>,
    /// Opens sent and not answered.
    opens_sent: u32,
    /// Opens received and not answered.
    opens_received: u32,
    naks: VecDeque<Nak>,
    /// Connections of the peer, by its route ids, that came back and of which there is nothing here.
    gone: VecDeque<u32>,
    /// The timer that looks at connections without their other ends is running.
    has_away_timer: bool,
    /// Connections whose consumed bytes may wait.
    lazy_heads: VecDeque<RouteId>,
    has_head_timer: bool,
    /// The timer fired: lazy heads are due.
    heads_due: bool,
    /// Connections whose last record is work request `.0`.
    closing: VecDeque<(u64, RouteId)>,
    /// Connects that wait for the lane.
    parked: VecDeque<ConnectId>,

    /// Its connections.
    members: Members,
    /// In the list of lanes with work.
    is_queued: bool,
    tx_bytes: u64,
    rx_bytes: u64,

    /// The peer's UD queue pair, as long as there is a link to it.
    datagram: Option<DatagramPeer>,
    /// The UC queue pair beside it.
    unreliable: UnreliableEnd,
    /// What the peer's device can do.
    peer_capabilities: Capabilities,
    /// Connections wait for the next incarnation.
    resync: Option<Resync>,
    /// No queue pair, because nothing used it; connections keep everything.
    is_resting: bool,
    /// When something last went over it that was more than credits.
    used_at: Time,
    /// The timer of rests is running.
    has_rest_timer: bool,
    /// The last work request that was more than credits.
    last_use: u64,
    /// A completion is wanted for it.
    is_flush_due: bool,
    /// The work request that was sent for that.
    flush: u64,
    /// The queue pair failed: it is taken down at the end of the round, for this reason.
    failing: Option<String>,
    /// The peer's daemon says nothing.
    stall: Option<Stall>,
    keys: keys::KeysUse,
    /// Resets since the daemon knows the peer.
    resets: u64,
    reset_times: VecDeque<Time>,
    /// When this incarnation came up.
    up_since: Time,
    /// Resets of incarnations that had time and carried nothing, since one did.
    fruitless: u32,
}

impl Lane {
    pub(crate) fn new((peer, number): (IpAddr, u32), quantum_bytes: u32, sendq: SendQueue) -> Self {
        Self {
            peer,
            number,
            state: LaneState::Down,
            is_wanted: false,
            redial: Redial::default(),
            incarnation: 0,
            peer_incarnation: 0,
            qpn: Qpn(0),
            own: None,
            path: None,
            peer_qpn: 0,
            link: None,
            peer_port: 0,
            mtu: PathMtu::Mtu256,
            mtu_max: PathMtu::Mtu4096,
            narrowed: None,
            widen_after: LANE_WIDEN_FIRST,
            mtu_offered: PathMtu::Mtu256,
            spent: 0,
            tx: SendCredits::default(),
            rx: RecvCredits::default(),
            has_credit_timer: false,
            is_stalled: false,
            sendq,
            frames: None,
            frame_bytes_max: 0,
            piece_bytes_max: 0,
            send_bytes_max: 0,
            splits_pieces: false,
            pulls: VecDeque::new(),
            pulls_waiting: Vec::new(),
            load: Load::default(),
            load_told: Load::default(),
            frame_sent: 0,
            frame_received: 0,
            drr: Drr::new(quantum_bytes),
            flight: Flight::default(),
            control: VecDeque::new(),
            opens: VecDeque::new(),
            opens_sent: 0,
            opens_received: 0,
            naks: VecDeque::new(),
            gone: VecDeque::new(),
            has_away_timer: false,
            lazy_heads: VecDeque::new(),
            has_head_timer: false,
            heads_due: false,
            closing: VecDeque::new(),
            parked: VecDeque::new(),
            members: Members::new(Time::ZERO),
            is_queued: false,
            tx_bytes: 0,
            rx_bytes: 0,
            datagram: None,
            unreliable: UnreliableEnd::default(),
            peer_capabilities: Capabilities::empty(),
            resync: None,
            is_resting: false,
            used_at: Time::ZERO,
            has_rest_timer: false,
            is_flush_due: false,
            last_use: 0,
            flush: 0,
            failing: None,
            stall: None,
            keys: keys::KeysUse::default(),
            resets: 0,
            reset_times: VecDeque::new(),
            up_since: Time::ZERO,
            fruitless: 0,
        }
    }

    // ---- what it is

    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Its number in messages between daemons.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Its name among the lanes of this engine.
    pub(crate) fn at(&self) -> LaneAt {
        LaneAt::new(self.peer, self.number)
    }

    /// Whether it carries the operations of one handle alone.
    pub(crate) fn is_leased(&self) -> bool {
        self.at().leased.is_some()
    }

    pub(crate) fn state(&self) -> LaneState {
        self.state
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == LaneState::Up
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    pub(crate) fn peer_incarnation(&self) -> u32 {
        self.peer_incarnation
    }

    /// The peer's UDP port.
    pub(crate) fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// The queue pair, if it has one.
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        self.has_qp().then_some(self.qpn)
    }

    /// Whether it has a queue pair.
    pub(crate) fn has_qp(&self) -> bool {
        self.state != LaneState::Down
    }

    /// Whether frames of the peer are understood.
    pub(crate) fn can_receive(&self) -> bool {
        matches!(self.state, LaneState::Accepted | LaneState::Up)
    }

    /// Whether answers to the peer's opens can be sent, now or after a reset.
    pub(crate) fn can_answer(&self) -> bool {
        self.has_qp() || self.resync.is_some()
    }

    /// Whether nothing depends on the entry: it may make room for another peer.
    pub(crate) fn is_idle(&self) -> bool {
        let is_needed = self.members.count() > 0 || !self.flight.is_unused();
        self.state == LaneState::Down && !self.is_wanted && self.parked.is_empty() && !is_needed && !self.is_leased()
    }

    /// Whether it is up, carries no connection, and is not about to carry one.
    pub(crate) fn is_unused(&self) -> bool {
        let opening = !self.opens.is_empty() || self.opens_sent > 0 || self.opens_received > 0;
        let is_needed = self.members.count() > 0 || !self.flight.is_unused();
        self.state == LaneState::Up && !is_needed && self.parked.is_empty() && !opening && !self.is_leased()
    }

    /// When its last connection left, or it came up without one.
    pub(crate) fn unused_since(&self) -> Time {
        self.members.unused_since()
    }

    // ---- dials

    /// Whether the daemon was asked to dial, or to replace the queue pair.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Somebody wants the lane. True: the daemon must dial.
    pub(crate) fn want(&mut self) -> bool {
        self.is_resting = false;
        self.state == LaneState::Down && !std::mem::replace(&mut self.is_wanted, true)
    }

    /// A connect waits for the lane.
    pub(crate) fn park(&mut self, connect: ConnectId) {
        self.parked.push_back(connect);
    }

    /// Nothing wants the lane any more. Returns the connects that waited for it.
    pub(crate) fn give_up_parked(&mut self) -> VecDeque<ConnectId> {
        self.is_wanted = false;
        std::mem::take(&mut self.parked)
    }

    /// Whether a datagram may have the host dialed now.
    pub(crate) fn may_redial(&self, now: Time) -> bool {
        self.redial.is_due(now)
    }

    /// Whether datagrams wait before they have the host dialed again.
    pub(crate) fn holds_dials_back(&self, now: Time) -> bool {
        self.state == LaneState::Down && !self.redial.is_due(now)
    }

    /// What the end of the lane, or of the wish for it, means for the next dial. To be called before anything of the
    /// lane is forgotten.
    pub(crate) fn note_loss(&mut self, now: Time, rng: &mut impl RngExt) {
        if self.can_answer() && (self.is_up() || self.resync.is_some()) {
            self.redial.on_lost(now, now.saturating_since(self.up_since), rng);
        } else if self.is_wanted {
            self.redial.on_failed(now, rng);
        }
    }

    // ---- set-up

    /// Makes the memory of control frames, if there is none.
    pub(crate) fn make_frames<P: Provider>(&mut self, nic: &mut P, frame_bytes: u32) -> Result<(), VerbsError> {
        if self.frames.is_none() {
            self.frames = Some(FrameMemory::new(nic, FRAME_SLOTS, frame_bytes)?);
        }
        Ok(())
    }

    /// The memory of control frames, of a lane without a queue pair.
    pub(crate) fn take_frames(&mut self) -> Option<FrameMemory> {
        if self.has_qp() { None } else { self.frames.take() }
    }

    /// The region and bytes of its frames, once each time that nothing of them is on its way any more.
    pub(crate) fn take_idle_frames(&mut self) -> Option<(MrId, u64)> {
        let frames = self.frames.as_mut().filter(|_| !self.sendq.has_outstanding())?;
        frames.take_touched().then(|| (frames.mr, frames.bytes()))
    }

    pub(crate) fn frames(&self) -> Option<&FrameMemory> {
        self.frames.as_ref()
    }

    /// The path MTU of the offer that is made next.
    pub(crate) fn offer_mtu(&mut self, device: PathMtu) -> PathMtu {
        self.mtu_offered = device.min(self.mtu_max);
        self.mtu_offered
    }

    /// The queue pair was made, and the peer gets its offer.
    pub(crate) fn on_offered(&mut self, own: OwnEnd) {
        self.link = None;
        self.state = LaneState::Offered;
        self.is_resting = false;
        self.incarnation = own.incarnation;
        self.qpn = own.qpn;
        self.own = Some(own.endpoint);
        self.rx = RecvCredits::new(own.credits);
    }

    /// Between which addresses queue pairs are from now on; none: the device's own and the peer's name.
    pub(crate) fn set_path(&mut self, path: Option<LanePath>) {
        self.path = path;
    }

    /// The address of this host at which the queue pair is; none: the device's own.
    pub(crate) fn local(&self) -> Option<IpAddr> {
        self.path.map(|path| path.own)
    }

    /// Where the peer is reached.
    pub(crate) fn peer_address(&self) -> IpAddr {
        self.path.map_or(self.peer, |path| path.peer.to_canonical())
    }

    /// The queue pair, and this end as the peer got it, if the peer's end is still to come.
    pub(crate) fn offered(&self) -> Option<(Qpn, &Endpoint)> {
        self.own.as_ref().filter(|_| self.state == LaneState::Offered).map(|own| (self.qpn, own))
    }

    /// The peer's offer was taken.
    pub(crate) fn on_accepted(&mut self, peer: PeerEnd) {
        self.state = LaneState::Accepted;
        self.peer_incarnation = peer.incarnation;
        self.peer_qpn = peer.link.peer_qpn;
        self.link = Some(peer.link);
        self.peer_port = peer.link.peer.port();
        self.mtu = peer.link.mtu;
        self.peer_capabilities = peer.capabilities;
        self.tx = SendCredits::new(peer.credits);
        self.frame_bytes_max = peer.frame_bytes_max;
        self.splits_pieces = peer.splits_pieces;
        self.flight.set_frame_bytes(peer.frame_bytes_max);
        self.flight.on_accepted(peer.link.reads_max, peer.operation_bytes_max, peer.is_confirming);
        // The immediate says how much came before the last part of a piece.
        let max = if peer.splits_pieces { UNITS_MAX * UNIT_BYTES } else { u32::MAX };
        self.send_bytes_max = peer.send_bytes_max.min(peer.piece_bytes_max);
        (self.load, self.load_told) = (Load::default(), Load::default());
        self.piece_bytes_max = peer.piece_bytes_max.min(max);
    }

    /// Connections may use it. The connects that waited for it.
    pub(crate) fn on_ready(&mut self, now: Time) -> VecDeque<ConnectId> {
        self.state = LaneState::Up;
        (self.up_since, self.used_at) = (now, now);
        self.members.on_up(now);
        self.give_up_parked()
    }

    // ---- work

    /// Enters the list of lanes with work. False: it is there already.
    pub(crate) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    pub(crate) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// The path MTU that both ends take.
    pub(crate) fn mtu(&self) -> PathMtu {
        self.mtu
    }

    /// The UC queue pair beside it.
    #[inline]
    pub(crate) fn unreliable(&self) -> &UnreliableEnd {
        &self.unreliable
    }

    pub(crate) fn unreliable_mut(&mut self) -> &mut UnreliableEnd {
        &mut self.unreliable
    }

    /// What the peer's device can do.
    pub(crate) fn peer_capabilities(&self) -> Capabilities {
        self.peer_capabilities
    }

    /// Whether a frame should leave, if it may.
    fn wants_frame(&self) -> bool {
        !self.control.is_empty()
            || !self.naks.is_empty()
            || !self.gone.is_empty()
            || (!self.opens.is_empty() && self.opens_sent < OPENS_PENDING_MAX)
            || (self.heads_due && !self.lazy_heads.is_empty())
            || self.rx.is_due()
            || self.tx.has_excess()
            || self.is_flush_due
            || self.unreliable.owes()
            || self.flight.wants_frame()
    }

    /// Whether a frame may leave.
    fn allows_frame(&self) -> bool {
        self.tx.allow_frame(self.rx.owed()) && self.sendq.has_frame_room()
    }

    /// Whether a frame could leave at once.
    pub(crate) fn has_frame_to_send(&self) -> bool {
        self.is_up() && self.wants_frame() && self.allows_frame()
    }

    /// A connection has records to send, and is not in that list yet.
    pub(crate) fn push_control(&mut self, route: RouteId) {
        self.control.push_back(route);
    }

    /// A connection has data to send, and is not in that list yet.
    pub(crate) fn push_ready(&mut self, app: AppId, route: RouteId, tenants: &Tenants) {
        self.drr.push(app, Flow::Connection(route), tenants);
    }

    /// An operation queue has something for the lane, and is not in that list yet.
    pub(crate) fn push_queue(&mut self, app: AppId, queue: QueueId, tenants: &Tenants) {
        self.drr.push(app, Flow::Operations(queue), tenants);
    }

    /// A tenant that was stopped by its rate may send again.
    pub(crate) fn bring_back(&mut self, tenant: TenantPlace) {
        self.drr.bring_back(tenant);
    }

    /// What of operations is on it.
    pub(crate) fn flight(&self) -> &Flight {
        &self.flight
    }

    pub(crate) fn flight_mut(&mut self) -> &mut Flight {
        &mut self.flight
    }

    /// A connection consumed bytes that may be reported to the peer later, and is not in that list yet. True: the timer
    /// of such reports must be started.
    pub(crate) fn push_lazy_head(&mut self, route: RouteId) -> bool {
        self.lazy_heads.push_back(route);
        !std::mem::replace(&mut self.has_head_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_head_timer(&mut self) {
        self.has_head_timer = false;
        self.heads_due = !self.lazy_heads.is_empty();
    }

    /// A connection's Open is to be sent.
    pub(crate) fn push_open(&mut self, route: RouteId) {
        self.opens.push_back(route);
    }

    /// The peer answered an Open.
    pub(crate) fn on_open_answered(&mut self) {
        self.opens_sent = self.opens_sent.saturating_sub(1);
    }

    /// An Open of the peer arrived: it waits for an answer.
    pub(crate) fn on_open_received(&mut self) -> Result<(), Violation> {
        if self.is_leased() {
            return Err(Violation::LeasedOpen);
        }
        if self.opens_received >= OPENS_PENDING_MAX {
            return Err(Violation::TooManyOpens(OPENS_PENDING_MAX));
        }
        self.opens_received += 1;
        Ok(())
    }

    /// After a reset an Open of the peer waits for its answer once more.
    pub(crate) fn owe_answer_again(&mut self) {
        self.opens_received += 1;
    }

    /// An Open of the peer is refused. False: the lane is gone, and with it the peer's interest in an answer.
    pub(crate) fn refuse_open(&mut self, route: u32, reason: u32) -> bool {
        let can_answer = self.can_answer();
        if can_answer {
            self.naks.push_back(Nak { route, reason });
        }
        can_answer
    }

    // ---- connections without their other ends

    /// The peer is to be told that there is nothing of a connection. One that is not told gives it up by itself.
    pub(crate) fn tell_gone(&mut self, route: u32) {
        if self.gone.len() < GONE_MAX {
            self.gone.push_back(route);
        }
    }

    /// Some of its connections wait for their other ends. True: the timer that looks at them must be started.
    pub(crate) fn watch_away(&mut self) -> bool {
        !std::mem::replace(&mut self.has_away_timer, true)
    }

    /// That timer fired.
    pub(crate) fn on_away_timer(&mut self) {
        self.has_away_timer = false;
    }

    /// The link to the peer's daemon is lost, and connections stay: everything else is as if the lane were new.
    pub(crate) fn part(&mut self) {
        self.forget_queue_pair();
        self.is_wanted = false;
        self.is_resting = false;
        self.frame_sent = 0;
        self.frame_received = 0;
        self.reset_times.clear();
        self.fruitless = 0;
        self.resync = None;
        self.stall = None;
    }

    // ---- completions

    /// A send, and all before it, is done.
    pub(crate) fn on_sent(&mut self, seq: u64, now: Time) -> Result<(), StrayCompletion> {
        self.sendq.on_completion(seq, now)?;
        self.fruitless = 0;
        Ok(())
    }

    /// The next READ of a peer's ring that is done, of those up to this work request.
    pub(crate) fn take_pulled(&mut self, seq: u64) -> Option<(RouteId, u32)> {
        let &(wr, route, bytes) = self.pulls.front()?;
        if wr > seq {
            return None;
        }
        self.pulls.pop_front();
        Some((route, bytes))
    }

    /// READs up to this work request are done: connections that may post theirs.
    pub(crate) fn take_pulls_waiting(&mut self, seq: u64) -> Vec<RouteId> {
        self.flight.on_reads_done(seq);
        if self.pulls_waiting.is_empty() || !self.flight.may_read() {
            return Vec::new();
        }
        std::mem::take(&mut self.pulls_waiting)
    }

    /// What it knows that the choice of a verb depends on.
    #[inline]
    pub(crate) fn facts(&self, here: Load) -> Facts {
        Facts {
            asked: None,
            waiting: 0,
            here,
            there: self.load,
            is_full: self.sendq.is_nearly_full(),
            is_registered: false,
            can_read: !self.flight.takes_no_reads(),
        }
    }

    /// The peer says how busy its host is.
    pub(crate) fn on_load(&mut self, load: Load) {
        self.load = load;
    }

    /// The next connection whose last record is done.
    pub(crate) fn take_closed(&mut self) -> Option<RouteId> {
        let (end, route) = *self.closing.front()?;
        if !self.sendq.is_completed(end) {
            return None;
        }
        self.closing.pop_front();
        Some(route)
    }

    /// Whether connections whose last work request is `wr` must stay, since the device or the peer may still name them.
    pub(crate) fn may_name(&self, wr: u64) -> bool {
        self.holds_connections() || !self.sendq.is_completed(wr)
    }

    /// A message arrived: this incarnation is of use.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Time) -> Result<(), CreditError> {
        self.rx.on_arrival(now)?;
        self.fruitless = 0;
        Ok(())
    }

    /// Whether a stream is better off by itself from its first byte on: the path is long; or it is not near, and so few
    /// connections use the lane that they gain nothing from sharing it.
    #[inline]
    pub(crate) fn is_early_bulk(&self) -> bool {
        self.sendq.is_far() || self.sendq.is_distant() && self.members.count() <= FEW_CONNECTIONS
    }

    /// Whether so few connections use the lane that a conversation may leave it.
    pub(crate) fn has_few(&self) -> bool {
        self.members.count() <= CONVERSATION_CONNECTIONS
    }

    /// Whether it may be, as far as is known.
    pub(crate) fn may_be_far(&self) -> bool {
        self.sendq.may_be_far()
    }

    /// Ring data arrived.
    #[inline]
    pub(crate) fn count_received(&mut self, bytes: u32) {
        self.rx_bytes += u64::from(bytes);
    }

    /// A frame arrived. False: it was handled on an earlier incarnation.
    pub(crate) fn on_frame(&mut self, header: &Header) -> Result<bool, Violation> {
        if header.incarnation != self.peer_incarnation {
            return Err(Violation::Incarnation { found: header.incarnation, expected: self.peer_incarnation });
        }
        let expected = self.frame_received + 1;
        if header.sequence < expected {
            return Ok(false);
        }
        if header.sequence != expected {
            return Err(Violation::Sequence { found: header.sequence, expected });
        }
        self.frame_received = expected;
        self.tx.on_total(header.credits)?;
        self.is_stalled = false;
        Ok(true)
    }

    // ---- receive credits

    /// A receive of an incarnation was posted again. By how many entries the grant gets smaller.
    pub(crate) fn on_reposted(&mut self, incarnation: u32) -> u64 {
        if self.incarnation == incarnation && self.has_qp() { self.rx.on_reposted() } else { 0 }
    }

    /// Whether a frame is due for the credits' sake.
    pub(crate) fn has_credits_due(&self) -> bool {
        self.rx.is_due()
    }

    /// The entries that this lane's peer uses, or may use.
    pub(crate) fn receive_credits(&mut self) -> &mut RecvCredits {
        &mut self.rx
    }

    /// The same, to look at.
    pub(crate) fn granted(&self) -> u64 {
        self.rx.granted()
    }

    /// Whether the grant is larger than the fewest.
    pub(crate) fn has_raised_grant(&self) -> bool {
        self.rx.is_raised()
    }

    /// Since when the peer holds credits that it was asked to give up.
    pub(crate) fn reclaimed_at(&self) -> Option<Time> {
        self.rx.reclaimed_at()
    }

    /// The grant is larger than the fewest. True: the timer that looks at its size must be started.
    pub(crate) fn watch_credits(&mut self) -> bool {
        self.rx.is_raised() && !std::mem::replace(&mut self.has_credit_timer, true)
    }

    /// That timer fired. By how many entries the grant gets smaller at once.
    pub(crate) fn on_credit_period(&mut self, now: Time) -> u64 {
        self.has_credit_timer = false;
        self.rx.on_period(now)
    }

    /// The peer wants credits back.
    pub(crate) fn on_reclaim(&mut self, most: u32) -> Result<(), CreditError> {
        self.tx.on_reclaim(most)
    }

    // ---- the path MTU

    /// The way to the peer takes this path MTU at most. True: the queue pair has a larger one, and must be replaced.
    pub(crate) fn narrow(&mut self, now: Time, mtu: PathMtu) -> bool {
        if mtu < self.mtu_max {
            (self.mtu_max, self.narrowed) = (mtu, Some(now));
        }
        let current = if self.can_receive() { self.mtu } else { self.mtu_offered };
        self.has_qp() && current > mtu
    }

    /// All retries of a send were spent. A way that swallows long packets without a word looks like that, again and
    /// again, while the control link goes on: the next incarnation tries shorter ones, each a step. An outage that is
    /// as long looks the same, so this does not hold for ever (`widen`). Says the path MTU if it is lowered now.
    pub(crate) fn on_retries_spent(&mut self, now: Time) -> Option<PathMtu> {
        if self.state == LaneState::Up && now.saturating_since(self.up_since) >= LANE_SUSPECT_WITHIN {
            self.spent = 0;
        }
        self.spent += 1;
        let lower = if self.mtu > PathMtu::Mtu1024 { PathMtu::Mtu1024 } else { PathMtu::Mtu256 };
        if self.spent < LANE_SPENT_MAX || self.mtu <= lower {
            return None;
        }
        (self.mtu_max, self.narrowed) = (lower, Some(now));
        Some(lower)
    }

    /// Whether to try a path MTU of up to `device`'s again, since the way may be wide again, or never was narrow: a
    /// router's word may be anybody's, and an outage is taken for a narrow way. Each time the next one is further off,
    /// and the first failure ends it.
    pub(crate) fn widen(&mut self, now: Time, device: PathMtu) -> bool {
        let is_due = self.narrowed.is_some_and(|at| now.saturating_since(at) >= self.widen_after);
        if !is_due || self.state != LaneState::Up || self.mtu_offered >= device {
            return false;
        }
        (self.mtu_max, self.narrowed) = (PathMtu::Mtu4096, None);
        self.widen_after = (self.widen_after * 2).min(LANE_WIDEN_LAST);
        self.spent = LANE_SPENT_MAX - 1;
        true
    }

    /// Whether shorter packets are tried because of what was found on the way.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.narrowed.is_some()
    }

    /// The way to the peer may be another one: the device's path MTU is tried again.
    pub(crate) fn forget_path(&mut self) {
        (self.mtu_max, self.narrowed) = (PathMtu::Mtu4096, None);
        self.widen_after = LANE_WIDEN_FIRST;
        self.spent = 0;
    }

    // ---- failing and going on

    /// The queue pair failed. False: it is known already, or there is none.
    pub(crate) fn fail(&mut self, detail: String) -> bool {
        let first = self.has_qp() && self.failing.is_none();
        if first {
            self.failing = Some(detail);
        }
        first
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Why the queue pair is to be taken down.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failing.take()
    }

    /// Counts a reset. False: there were too many, and the connections end.
    pub(crate) fn may_reset(&mut self, now: Time) -> bool {
        while self.reset_times.front().is_some_and(|at| now.saturating_since(*at) >= LANE_RESET_WINDOW) {
            self.reset_times.pop_front();
        }
        if self.reset_times.len() >= LANE_RESETS_MAX || self.fruitless >= LANE_RESETS_FRUITLESS_MAX {
            return false;
        }
        self.resets += 1;
        if self.keys.is_used {
            // Not a fault: the bound is for these. The device has counted the records.
            return true;
        }
        self.reset_times.push_back(now);
        let had_time = now.saturating_since(self.up_since) >= LANE_FRUITLESS_AFTER;
        let was_used = self.state == LaneState::Up && self.sendq.has_outstanding();
        self.fruitless += u32::from(was_used && had_time);
        true
    }

    /// Forgets what belonged to the queue pair that is destroyed; connections and numbers of frames stay.
    pub(crate) fn forget_queue_pair(&mut self) {
        self.state = LaneState::Down;
        self.failing = None;
        self.keys = keys::KeysUse::default();
        self.is_flush_due = false;
        self.tx = SendCredits::default();
        self.rx = RecvCredits::default();
        self.is_stalled = false;
        self.sendq.reset(FRAME_SLOTS);
        self.drr.clear();
        self.flight.forget_queue_pair();
        self.pulls.clear();
        self.pulls_waiting.clear();
        self.control.clear();
        self.opens.clear();
        self.opens_sent = 0;
        self.opens_received = 0;
        self.naks.clear();
        self.gone.clear();
        self.lazy_heads.clear();
        self.heads_due = false;
        self.closing.clear();
        self.unreliable = UnreliableEnd::default();
    }

    /// Forgets everything except the connects that wait for a lane. Connections were taken out of the list before.
    pub(crate) fn clear(&mut self) {
        self.part();
        self.members.clear();
    }

    /// The connections wait for the next incarnation, which the daemons make by themselves, or for their next use, if the
    /// lane `rests`. `unsent`: those whose Open
    /// never left, the oldest last; `unanswered`: Opens of the peer that still wait for an answer.
    pub(crate) fn keep_connections(&mut self, resync: Resync, unsent: Vec<RouteId>, unanswered: u32, rests: bool) {
        (self.is_wanted, self.is_resting) = (!rests, rests);
        self.opens_received = unanswered;
        self.opens.extend(unsent.into_iter().rev());
        self.resync = Some(resync);
    }

    /// Whether connections wait for the next incarnation, so that none may be freed.
    pub(crate) fn holds_connections(&self) -> bool {
        self.resync.is_some()
    }

    /// What both ends report before the connections go on; made if this end kept nothing while the peer did.
    pub(crate) fn resync_mut(&mut self) -> &mut Resync {
        self.resync.get_or_insert_with(Resync::nothing_kept)
    }

    /// The same, if there is any.
    pub(crate) fn resync_if_kept(&mut self) -> Option<&mut Resync> {
        self.resync.as_mut()
    }

    /// Both ends know what arrived at the other: connections go on.
    pub(crate) fn take_resync_if_done(&mut self) -> Option<Resync> {
        self.resync.take_if(|r| r.is_done())
    }

    /// Number of the last frame of the peer that was handled.
    pub(crate) fn frames_received(&self) -> u64 {
        self.frame_received
    }

    /// The peer says how many frames it has handled: the next is the one after.
    pub(crate) fn on_frames_arrived(&mut self, arrived: u64) -> Result<(), Violation> {
        if arrived > self.frame_sent && !self.resync.as_ref().is_some_and(Resync::is_fresh) {
            return Err(Violation::FramesArrived { found: arrived, sent: self.frame_sent });
        }
        self.frame_sent = arrived;
        Ok(())
    }

    /// Opens that the peer knows of still wait for its answer.
    pub(crate) fn on_gone_on(&mut self, opens_sent: u32) {
        self.opens_sent = opens_sent;
    }

    // ---- a silent peer

    /// The peer's daemon says nothing. The list of connections with a time limit for that; empty at first.
    pub(crate) fn begin_stall(&mut self) -> &mut Stall {
        self.stall.insert(Stall::default())
    }

    pub(crate) fn end_stall(&mut self) {
        self.stall = None;
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.stall.is_some()
    }

    /// Notes the time limit of a connection's application while the peer is silent.
    pub(crate) fn note_patience(&mut self, route: RouteId, patience: impl FnOnce() -> Option<Duration>) {
        if let Some(stall) = &mut self.stall {
            stall.note(route, patience());
        }
    }

    /// A connection that does not wait for as long as the peer is silent.
    pub(crate) fn take_impatient(&mut self, silent: Duration) -> Option<RouteId> {
        self.stall.as_mut()?.take_due(silent)
    }

    // ---- its connections

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    // ---- datagrams

    pub(crate) fn datagram(&self) -> Option<&DatagramPeer> {
        self.datagram.as_ref()
    }

    pub(crate) fn datagram_mut(&mut self) -> Option<&mut DatagramPeer> {
        self.datagram.as_mut()
    }

    pub(crate) fn set_datagram(&mut self, peer: DatagramPeer) {
        self.datagram = Some(peer);
    }

    pub(crate) fn take_datagram(&mut self) -> Option<DatagramPeer> {
        self.datagram.take()
    }

    /// The peer has taken this host's offer. The path MTU of datagrams to it, if it takes any.
    pub(crate) fn on_datagram_ready(&mut self) -> Option<PathMtu> {
        let peer = self.datagram.as_mut()?;
        peer.on_ready();
        Some(peer.mtu())
    }
}
