//! A lane: the one RC queue pair to a peer host, and what waits for it.
//!
//! Owns the lane's queues and numbers. It must never touch a connection: those who move connections are `pump` (sending),
//! `recv` (receiving) and `link` (making and losing lanes).
//!
//! A lane that is reset loses its queue pair and all that waits for it, but not its connections: `resync` carries them over.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use verbs::{PathMtu, Psn, Qpn, Time};

use crate::connect::ConnectId;
use crate::credit::{RecvCredits, SendCredits};
use crate::datagram::DatagramPeer;
use crate::limits::{
    FRAME_SLOTS, LANE_FRUITLESS_AFTER, LANE_RESET_WINDOW, LANE_RESETS_FRUITLESS_MAX, LANE_RESETS_MAX, LANE_SPENT_MAX,
    LANE_SUSPECT_WITHIN, LANE_WIDEN_FIRST, LANE_WIDEN_LAST, OPENS_PENDING_MAX,
};
use crate::recvpool::FrameMemory;
use crate::redial::Redial;
use crate::resync::Resync;
use crate::sched::Drr;
use crate::sendq::SendQueue;
use crate::stall::Stall;
use crate::table::key;
use crate::vqp::RouteId;

key!(
    /// A peer host's lane.
    LaneId
);

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
pub(crate) struct Nak {
    pub(crate) route: u32,
    pub(crate) reason: u32,
}

/// The lane to one peer.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) peer: IpAddr,
    pub(crate) state: LaneState,
    /// The daemon was asked to dial.
    pub(crate) is_wanted: bool,
    /// Dials that failed, and when datagrams may have the host dialed again.
    pub(crate) redial: Redial,
    /// It was up and failed, and was not made again.
    pub(crate) has_failed: bool,
    pub(crate) incarnation: u32,
    pub(crate) peer_incarnation: u32,
    pub(crate) qpn: Qpn,
    pub(crate) peer_qpn: Qpn,
    pub(crate) peer_port: u16,
    /// First PSN sent.
    pub(crate) psn: Psn,
    pub(crate) mtu: PathMtu,
    /// Largest that is offered: less than the device's after the way got narrower.
    pub(crate) mtu_max: PathMtu,
    /// When that was lowered, and how long it holds.
    narrowed: Option<Time>,
    widen_after: Duration,
    /// What this incarnation's offer says.
    pub(crate) mtu_offered: PathMtu,
    /// Queue pairs in a row whose retries were spent, each soon after it came up.
    spent: u32,

    pub(crate) tx: SendCredits,
    pub(crate) rx: RecvCredits,
    /// Out of credits since the last frame that brought some.
    pub(crate) is_stalled: bool,
    pub(crate) sendq: SendQueue,
    pub(crate) frames: Option<FrameMemory>,
    pub(crate) frame_bytes_max: usize,
    pub(crate) piece_bytes_max: u32,
    /// Long pieces leave as a WRITE and a WRITE with immediate (see `immediate`).
    pub(crate) splits_pieces: bool,
    /// Number of the last frame sent, and received. They go on over the lane's incarnations.
    pub(crate) frame_sent: u64,
    pub(crate) frame_received: u64,

    /// Connections with data to send.
    pub(crate) drr: Drr,
    /// Connections with records to send.
    pub(crate) control: VecDeque<RouteId>,
    /// Connections whose Open is to be sent.
    pub(crate) opens: VecDeque<RouteId>,
    /// Opens sent and not answered.
    pub(crate) opens_sent: u32,
    /// Opens received and not answered.
    pub(crate) opens_received: u32,
    pub(crate) naks: VecDeque<Nak>,
    /// Connections whose consumed bytes may wait.
    pub(crate) lazy_heads: VecDeque<RouteId>,
    pub(crate) has_head_timer: bool,
    /// The timer fired: lazy heads are due.
    pub(crate) heads_due: bool,
    /// Connections whose last record is work request `.0`.
    pub(crate) closing: VecDeque<(u64, RouteId)>,
    /// Connects that wait for the lane.
    pub(crate) parked: VecDeque<ConnectId>,

    /// First of the list of connections.
    pub(crate) first: Option<RouteId>,
    pub(crate) connections: u32,
    /// In the engine's list of lanes with work.
    pub(crate) is_queued: bool,
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,

    /// The peer's UD queue pair, as long as there is a link to it.
    pub(crate) datagram: Option<DatagramPeer>,
    /// Connections wait for the next incarnation.
    pub(crate) resync: Option<Resync>,
    /// The queue pair failed: it is taken down at the end of the round, for this reason.
    pub(crate) failing: Option<String>,
    /// The peer's daemon says nothing.
    pub(crate) stall: Option<Stall>,
    /// Resets since the daemon knows the peer.
    pub(crate) resets: u64,
    reset_times: VecDeque<Time>,
    /// When this incarnation came up.
    pub(crate) up_since: Time,
    /// When its last connection left, or it came up without one.
    pub(crate) unused_since: Time,
    /// Resets of incarnations that had time and carried nothing, since one did.
    fruitless: u32,
}

impl Lane {
    pub(crate) fn new(peer: IpAddr, quantum_bytes: u32, sendq: SendQueue) -> Self {
        Self {
            peer,
            state: LaneState::Down,
            is_wanted: false,
            redial: Redial::default(),
            has_failed: false,
            incarnation: 0,
            peer_incarnation: 0,
            qpn: Qpn(0),
            peer_qpn: Qpn(0),
            peer_port: 0,
            psn: Psn::new(0),
            mtu: PathMtu::Mtu256,
            mtu_max: PathMtu::Mtu4096,
            narrowed: None,
            widen_after: LANE_WIDEN_FIRST,
            mtu_offered: PathMtu::Mtu256,
            spent: 0,
            tx: SendCredits::default(),
            rx: RecvCredits::default(),
            is_stalled: false,
            sendq,
            frames: None,
            frame_bytes_max: 0,
            piece_bytes_max: 0,
            splits_pieces: false,
            frame_sent: 0,
            frame_received: 0,
            drr: Drr::new(quantum_bytes),
            control: VecDeque::new(),
            opens: VecDeque::new(),
            opens_sent: 0,
            opens_received: 0,
            naks: VecDeque::new(),
            lazy_heads: VecDeque::new(),
            has_head_timer: false,
            heads_due: false,
            closing: VecDeque::new(),
            parked: VecDeque::new(),
            first: None,
            connections: 0,
            is_queued: false,
            tx_bytes: 0,
            rx_bytes: 0,
            datagram: None,
            resync: None,
            failing: None,
            stall: None,
            resets: 0,
            reset_times: VecDeque::new(),
            up_since: Time::ZERO,
            unused_since: Time::ZERO,
            fruitless: 0,
        }
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
        self.state == LaneState::Down && !self.is_wanted && self.parked.is_empty() && self.connections == 0
    }

    /// Whether datagrams wait before they have the host dialed again.
    pub(crate) fn holds_dials_back(&self, now: Time) -> bool {
        self.state == LaneState::Down && !self.redial.is_due(now)
    }

    /// Whether it is up and carries no connection, nor is about to.
    pub(crate) fn is_unused(&self) -> bool {
        let opening = !self.opens.is_empty() || self.opens_sent > 0 || self.opens_received > 0;
        self.state == LaneState::Up && self.connections == 0 && self.parked.is_empty() && !opening
    }

    /// Whether a frame should leave, if it may.
    pub(crate) fn wants_frame(&self) -> bool {
        !self.control.is_empty()
            || !self.naks.is_empty()
            || (!self.opens.is_empty() && self.opens_sent < OPENS_PENDING_MAX)
            || (self.heads_due && !self.lazy_heads.is_empty())
            || self.rx.is_due()
    }

    /// Whether a frame may leave.
    pub(crate) fn allows_frame(&self) -> bool {
        self.tx.allow_frame(self.rx.owed()) && self.sendq.has_frame_room()
    }

    /// Something arrived, or arrived at the peer: this incarnation is of use.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.fruitless = 0;
    }

    /// The way to the peer takes this path MTU at most. True: the queue pair has a larger one, and must be made anew.
    pub(crate) fn narrow(&mut self, now: Time, mtu: PathMtu) -> bool {
        if mtu < self.mtu_max {
            (self.mtu_max, self.narrowed) = (mtu, Some(now));
        }
        let current = if self.can_receive() { self.mtu } else { self.mtu_offered };
        self.has_qp() && current > mtu
    }

    /// All retries of a send were spent. A way that swallows long packets without a word looks like that, again and again, while
    /// the control link goes on: the next incarnation tries shorter ones, each a step. An outage that is as long looks the same, so
    /// this does not hold for ever (`widen`). Says the path MTU if it is lowered now.
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

    /// Whether to try a path MTU of up to `device`'s again, since the way may be wide again, or never was narrow: a router's word may
    /// be anybody's, and an outage is taken for a narrow way. Each time the next one is further off, and the first failure ends it.
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

    /// The way to the peer may be another one: the device's path MTU is tried again.
    pub(crate) fn forget_path(&mut self) {
        (self.mtu_max, self.narrowed) = (PathMtu::Mtu4096, None);
        self.widen_after = LANE_WIDEN_FIRST;
        self.spent = 0;
    }

    /// Counts a reset. False: there were too many, and the connections end.
    pub(crate) fn may_reset(&mut self, now: Time) -> bool {
        while self.reset_times.front().is_some_and(|at| now.saturating_since(*at) >= LANE_RESET_WINDOW) {
            self.reset_times.pop_front();
        }
        if self.reset_times.len() >= LANE_RESETS_MAX || self.fruitless >= LANE_RESETS_FRUITLESS_MAX {
            return false;
        }
        self.reset_times.push_back(now);
        let had_time = now.saturating_since(self.up_since) >= LANE_FRUITLESS_AFTER;
        let was_used = self.state == LaneState::Up && self.sendq.has_outstanding();
        self.fruitless += u32::from(was_used && had_time);
        self.resets += 1;
        true
    }

    /// Forgets what belonged to the queue pair that is destroyed; connections and numbers of frames stay.
    pub(crate) fn forget_queue_pair(&mut self) {
        self.state = LaneState::Down;
        self.failing = None;
        self.tx = SendCredits::default();
        self.rx = RecvCredits::default();
        self.is_stalled = false;
        self.sendq.reset(FRAME_SLOTS);
        self.drr.clear();
        self.control.clear();
        self.opens.clear();
        self.opens_sent = 0;
        self.opens_received = 0;
        self.naks.clear();
        self.lazy_heads.clear();
        self.heads_due = false;
        self.closing.clear();
    }

    /// Forgets everything but who waits for a lane. Connections were taken out of the list before.
    pub(crate) fn clear(&mut self) {
        self.forget_queue_pair();
        self.is_wanted = false;
        self.frame_sent = 0;
        self.frame_received = 0;
        self.reset_times.clear();
        self.fruitless = 0;
        self.resync = None;
        self.stall = None;
        self.first = None;
        self.connections = 0;
    }
}
