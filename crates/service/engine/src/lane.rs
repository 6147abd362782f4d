//! A lane: the one RC queue pair to a peer host, and what waits for it.
//!
//! A lane is made of parts, each with its own state behind its own verbs; here is what concerns several of them. It must
//! never touch a connection: `engine::pump` (sending), `engine::recv` (receiving) and `engine::link` (making and losing lanes)
//! do that.
//!
//! A lane that is reset loses its queue pair and all that waits for it, but not its connections: `engine::reset`
//! carries them over.

mod credits;
mod dialing;
mod frames;
mod keys;
mod load;
mod path_mtu;
mod queue_pair;
mod resets;
mod rest;
mod row;

use std::net::IpAddr;

use rand::RngExt;
use verbs::{MrId, PostError, Provider, Time};

use crate::choice::{Facts, Load};
use crate::credit::CreditError;
use crate::frame::Header;
use crate::ids::{ConnectId, Flow, RouteId};
use crate::lane_at::LaneAt;
use crate::limits::{CONVERSATION_CONNECTIONS, FEW_CONNECTIONS, FRAME_SLOTS, LANE_FRUITLESS_AFTER};
use crate::mechanisms::OnLane;
use crate::members::Members;
use crate::one_sided::OneSided;
use crate::recvpool::FrameMemory;
use crate::resync::Resync;
use crate::sched::Drr;
use crate::sendq::{SendQueue, StrayCompletion};
use crate::stall::Stall;
use crate::violation::Violation;

use credits::LaneCredits;
use dialing::Dialing;
use frames::Frames;
use keys::KeysUse;
use load::Loads;
use path_mtu::LaneMtu;
use queue_pair::QueuePair;
pub(crate) use queue_pair::{LaneState, OwnEnd, PeerEnd};
use resets::{Cause, Resets};
use rest::Rest;

/// The lane to one peer.
#[derive(Debug)]
pub(crate) struct Lane {
    peer: IpAddr,
    /// Which of the lanes between the two hosts: the number of the engine at either end, or of a leased lane.
    number: u32,
    /// In the list of lanes with work.
    is_queued: bool,
    pub(crate) dialing: Dialing,
    pub(crate) qp: QueuePair,
    pub(crate) mtu: LaneMtu,
    keys: KeysUse,
    resets: Resets,
    pub(crate) rest: Rest,

    pub(crate) credits: LaneCredits,
    pub(crate) sendq: SendQueue,
    pub(crate) one_sided: OneSided,
    pub(crate) frames: Frames,
    /// Connections with data to send, and operation queues.
    pub(crate) drr: Drr<Flow>,
    pub(crate) loads: Loads,
    /// Bytes of rings and of operations that were sent; bytes of rings that arrived.
    pub(crate) tx_bytes: u64,
    rx_bytes: u64,

    /// Its connections.
    pub(crate) members: Members,
    /// Connections wait for the next incarnation.
    resync: Option<Resync>,
    /// The peer's daemon says nothing: its connections with a time limit for that.
    pub(crate) stall: Option<Stall>,

    /// What mechanisms keep on it.
    pub(crate) on: OnLane,
}

impl Lane {
    pub(crate) fn new((peer, number): (IpAddr, u32), quantum_bytes: u32, sendq: SendQueue) -> Self {
        Self {
            peer,
            number,
            is_queued: false,
            dialing: Dialing::default(),
            qp: QueuePair::none(),
            mtu: LaneMtu::new(),
            keys: KeysUse::default(),
            resets: Resets::default(),
            rest: Rest::new(),
            credits: LaneCredits::default(),
            sendq,
            one_sided: OneSided::default(),
            frames: Frames::default(),
            drr: Drr::new(quantum_bytes),
            loads: Loads::default(),
            tx_bytes: 0,
            rx_bytes: 0,
            members: Members::new(Time::ZERO),
            resync: None,
            stall: None,
            on: OnLane::default(),
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

    /// Where the peer is reached.
    pub(crate) fn peer_address(&self) -> IpAddr {
        self.qp.peer_address().unwrap_or(self.peer)
    }

    /// Whether answers to the peer's opens can be sent, now or after a reset.
    pub(crate) fn can_answer(&self) -> bool {
        self.qp.exists() || self.holds_connections()
    }

    /// Whether nothing depends on the entry: it may make room for another peer.
    pub(crate) fn is_idle(&self) -> bool {
        let is_wished_for = self.dialing.is_wanted() || self.dialing.has_parked();
        !self.qp.exists() && !is_wished_for && !self.is_needed()
    }

    /// Whether it is up, carries no connection, and is not about to carry one.
    pub(crate) fn is_unused(&self) -> bool {
        self.qp.is_up() && !self.dialing.has_parked() && !self.on.connections.opening.has_opens() && !self.is_needed()
    }

    fn is_needed(&self) -> bool {
        self.members.count() > 0 || self.on.is_needed() || self.is_leased()
    }

    // ---- dials

    /// Somebody wants the lane. True: the daemon must dial.
    pub(crate) fn want(&mut self) -> bool {
        self.rest.set_resting(false);
        !self.qp.exists() && self.dialing.want()
    }

    /// Whether datagrams wait before they have the host dialed again.
    pub(crate) fn holds_dials_back(&self, now: Time) -> bool {
        !self.qp.exists() && !self.dialing.may_redial(now)
    }

    /// What the end of the lane, or of the wish for it, means for the next dial. To be called before anything of the
    /// lane is forgotten.
    pub(crate) fn note_loss(&mut self, now: Time, rng: &mut impl RngExt) {
        if self.qp.is_up() || self.holds_connections() {
            self.dialing.on_lost(now, now.saturating_since(self.qp.up_since()), rng);
        } else {
            self.dialing.on_not_made(now, rng);
        }
    }

    // ---- set-up

    /// The queue pair was made, and the peer gets its offer.
    pub(crate) fn on_offered(&mut self, own: OwnEnd) {
        self.rest.set_resting(false);
        self.credits.on_offered(&own);
        self.qp.on_offered(own);
    }

    /// The peer's offer was taken.
    pub(crate) fn on_accepted(&mut self, peer: &PeerEnd) {
        self.qp.on_accepted(peer);
        self.mtu.on_accepted(peer.link.mtu);
        self.credits.on_accepted(peer);
        self.one_sided.on_accepted(peer.link.reads_max, peer.operation_bytes_max);
        self.loads = Loads::default();
    }

    /// Connections may use it. The connects that waited for it.
    pub(crate) fn on_ready(&mut self, now: Time) -> impl Iterator<Item = ConnectId> + use<> {
        self.qp.on_ready(now);
        self.rest.touch(now);
        self.members.on_up(now);
        self.dialing.give_up().into_iter()
    }

    /// The memory of control frames, of a lane without a queue pair.
    pub(crate) fn take_frames(&mut self) -> Option<FrameMemory> {
        if self.qp.exists() { None } else { self.frames.take_memory() }
    }

    /// The region and bytes of its frames, once each time that nothing of them is on its way any more.
    pub(crate) fn take_idle_frames(&mut self) -> Option<(MrId, u64)> {
        if self.sendq.has_outstanding() { None } else { self.frames.take_touched() }
    }

    // ---- work

    /// Enters the list of lanes with work. False: it is there already.
    pub(crate) fn enter_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    pub(crate) fn leave_queue(&mut self) {
        self.is_queued = false;
    }

    /// Whether a frame should leave, if it may.
    pub(crate) fn wants_frame(&self) -> bool {
        self.on.wants_frame() || self.credits.wants_frame() || self.rest.is_flush_due() || self.rest.has_to_ask()
    }

    /// Whether a frame may leave.
    pub(crate) fn allows_frame(&self) -> bool {
        self.credits.allow_frame() && self.sendq.has_frame_room()
    }

    /// Whether a frame could leave at once.
    pub(crate) fn has_frame_to_send(&self) -> bool {
        self.qp.is_up() && self.wants_frame() && self.allows_frame()
    }

    /// An Open of the peer arrived: it waits for an answer.
    pub(crate) fn on_open_received(&mut self) -> Result<(), Violation> {
        if self.is_leased() { Err(Violation::LeasedOpen) } else { self.on.connections.opening.on_received() }
    }

    /// An Open of the peer is refused. False: the lane is gone, and with it the peer's interest in an answer.
    pub(crate) fn refuse_open(&mut self, route: u32, reason: u32) -> bool {
        let can_answer = self.can_answer();
        if can_answer {
            self.on.connections.opening.refuse(route, reason);
        }
        can_answer
    }

    // ---- completions and arrivals

    /// Posts what is staged.
    pub(crate) fn flush<P: Provider>(&mut self, nic: &mut P, now: Time) -> Result<(), PostError> {
        let Some(qpn) = self.qp.qpn() else { return Ok(()) };
        self.sendq.flush(nic, qpn, now)
    }

    /// A send, and all before it, is done.
    pub(crate) fn on_sent(&mut self, seq: u64, now: Time) -> Result<(), StrayCompletion> {
        self.sendq.on_completion(seq, now)?;
        self.one_sided.on_done(seq);
        self.resets.on_carried();
        Ok(())
    }

    /// The next connection whose last record is done.
    pub(crate) fn take_closed(&mut self) -> Option<RouteId> {
        let sendq = &self.sendq;
        self.on.connections.lists.take_closed(|wr| sendq.is_completed(wr))
    }

    /// Whether connections whose last work request is `wr` must stay, since the device or the peer may still name them.
    pub(crate) fn may_name(&self, wr: u64) -> bool {
        self.holds_connections() || !self.sendq.is_completed(wr)
    }

    /// A message arrived: this incarnation is of use.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Time) -> Result<(), CreditError> {
        self.credits.grant_mut().on_arrival(now)?;
        self.resets.on_carried();
        Ok(())
    }

    /// Ring data arrived.
    #[inline]
    pub(crate) fn on_received(&mut self, bytes: u32, now: Time) {
        self.rx_bytes += u64::from(bytes);
        self.rest.touch(now);
    }

    /// A frame arrived. False: it was handled on an earlier incarnation.
    pub(crate) fn on_frame(&mut self, header: &Header) -> Result<bool, Violation> {
        let expected = self.qp.peer_incarnation();
        if header.incarnation != expected {
            return Err(Violation::Incarnation { found: header.incarnation, expected });
        }
        if !self.frames.on_arrived(header)? {
            return Ok(false);
        }
        self.credits.on_total(header.credits)?;
        Ok(true)
    }

    /// A receive of an incarnation was posted again. By how many entries the grant gets smaller.
    pub(crate) fn on_reposted(&mut self, incarnation: u32) -> u64 {
        let is_this = self.qp.exists() && self.qp.incarnation() == incarnation;
        if is_this { self.credits.grant_mut().on_reposted() } else { 0 }
    }

    // ---- choices

    /// What it knows that the choice of a verb depends on.
    #[inline]
    pub(crate) fn facts(&self, here: Load) -> Facts {
        Facts {
            asked: None,
            waiting: 0,
            here,
            there: self.loads.there(),
            is_full: self.sendq.is_nearly_full(),
            is_registered: false,
            can_read: !self.one_sided.takes_no_reads(),
        }
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

    /// Whether the path may be long, as far as is known.
    pub(crate) fn may_be_far(&self) -> bool {
        self.sendq.may_be_far()
    }

    // ---- rest

    /// Something was sent over it that was more than credits.
    pub(crate) fn on_used(&mut self, now: Time) {
        self.rest.on_sent(now, self.sendq.next().saturating_sub(1));
    }

    /// It is up. True: the timer that looks whether it is used must be started.
    pub(crate) fn watch_rest(&mut self) -> bool {
        self.qp.is_up() && self.rest.watch()
    }

    /// Whether there is nothing to send, nothing to answer, no connect under way, and its queue pair works.
    pub(crate) fn is_quiet(&self) -> bool {
        self.has_nothing_to_say() && !self.qp.is_failing()
    }

    /// The same, whatever becomes of its queue pair.
    pub(crate) fn has_nothing_to_say(&self) -> bool {
        self.on.is_quiet() && self.drr.is_empty() && !self.dialing.has_parked() && self.stall.is_none()
    }

    /// Whether it is known that everything that was sent arrived, except credits, which end with the queue pair.
    pub(crate) fn is_delivered(&self) -> bool {
        self.sendq.is_completed(self.rest.last_use())
    }

    // ---- losing the queue pair, and going on

    /// Counts a reset. False: there were too many, and the connections end.
    pub(crate) fn may_reset(&mut self, now: Time) -> bool {
        let had_time = now.saturating_since(self.qp.up_since()) >= LANE_FRUITLESS_AFTER;
        let was_used = self.qp.is_up() && self.sendq.has_outstanding();
        let cause = match (self.keys.is_used(), had_time && was_used) {
            (true, _) => Cause::Keys,
            (false, true) => Cause::HadTime,
            (false, false) => Cause::Fault,
        };
        self.resets.begin(now, cause)
    }

    /// The peer went to rest, which broke the queue pair here under what crossed it: the reset was no fault.
    pub(crate) fn forgive_reset(&mut self) {
        self.resets.forgive();
    }

    /// Forgets what belonged to the queue pair that is destroyed; connections and numbers of frames stay.
    pub(crate) fn forget_queue_pair(&mut self) {
        self.qp.forget();
        self.keys = KeysUse::default();
        self.rest.forget();
        self.credits.forget();
        self.sendq.reset(FRAME_SLOTS);
        self.drr.clear();
        self.one_sided.forget();
        self.on.forget_queue_pair();
    }

    /// The link to the peer's daemon is lost, and connections stay: everything else is as if the lane were new.
    pub(crate) fn part(&mut self) {
        self.forget_queue_pair();
        self.dialing.set_wanted(false);
        self.rest.set_resting(false);
        self.frames.forget_numbers();
        self.resets.forget();
        self.resync = None;
        self.stall = None;
    }

    /// Forgets everything except the connects that wait for a lane. Connections were taken out of the list before.
    pub(crate) fn clear(&mut self) {
        self.part();
        self.members.clear();
    }

    /// The connections wait for the next incarnation, which the daemons make by themselves, or for their next use, if the
    /// lane `rests`. `unsent`: those whose Open never left, the oldest last; `unanswered`: Opens of the peer that still
    /// wait for an answer.
    pub(crate) fn keep_connections(&mut self, resync: Resync, unsent: Vec<RouteId>, unanswered: u32, rests: bool) {
        self.dialing.set_wanted(!rests);
        self.rest.set_resting(rests);
        self.on.connections.opening.keep(unsent, unanswered);
        self.resync = Some(resync);
    }

    /// Whether connections wait for the next incarnation, so that none may be freed.
    #[inline]
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

    /// The peer says how many frames it has handled: the next is the one after.
    pub(crate) fn on_frames_arrived(&mut self, arrived: u64) -> Result<(), Violation> {
        let knows_sent = !self.resync.as_ref().is_some_and(Resync::is_fresh);
        self.frames.on_arrived_there(arrived, knows_sent)
    }
}
