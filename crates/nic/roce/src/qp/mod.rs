//! A reliable connected queue pair: its state, and the requester and responder behind it.
//!
//! Owns what happens to both halves together: transitions, errors, flushing, and the order in which they send.

mod completer;
mod credits;
mod flow;
mod notified;
mod requester;
mod responder;
mod responses;
mod retry;
mod round_trip;
mod send_queue;
pub(crate) mod state;
mod window;

use std::net::SocketAddr;

use rnic::{ReceiveQueue, SendLimits};
use verbs::{
    Access, AsyncEvent, Capabilities, QpInit, QpModify, QpState, QpStatus, QpType, Qpn, RecvWr, Rkey, SendWr, Status,
    Time, VerbsError,
};

use crate::batch::{Batch, Finished};
use crate::device::Device;
use crate::limits::{ECN_BITS, ECN_CAPABLE, NicLimits};
use crate::path::{Inbound, Source};
use crate::peer::{NotForUs, Peer};
use crate::wire::{Body, Packet};
use requester::Requester;
use responder::Responder;
pub(crate) use send_queue::{Cut, SendQueue, SendWqe};

/// What a connected QP in Init holds, for the transport of another wire ([`crate::Nic::lend_qp`]).
#[derive(Debug)]
pub struct LentQp {
    /// How it was made.
    pub init: QpInit,
    /// What peers may do through it.
    pub access: Access,
    /// Receives that were posted to it.
    pub receives: ReceiveQueue,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    qpn: Qpn,
    init: QpInit,
    state: QpState,
    peer: Option<Peer>,
    requester: Requester,
    responder: Responder,
    /// The batch before had no place for what the responder has to send: it goes first in the next.
    responder_first: bool,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: &QpInit, limits: &NicLimits) -> Self {
        let send_limits = SendLimits::new(init, limits.max_msg_bytes);
        Self {
            qpn,
            init: init.clone(),
            state: QpState::Reset,
            peer: None,
            requester: Requester::new(qpn, init.send_cq, send_limits),
            responder: Responder::new(qpn, init, limits.max_msg_bytes),
            responder_first: false,
        }
    }

    pub(crate) const fn init(&self) -> &QpInit {
        &self.init
    }

    pub(crate) fn status(&self) -> QpStatus {
        QpStatus {
            qp_type: QpType::Rc,
            state: self.state,
            sq_outstanding: self.requester.outstanding(),
            sq_psn: self.requester.next_psn(),
            rq_psn: self.responder.expected_psn(),
            dest_qpn: self.peer.as_ref().map(|p| p.qpn),
        }
    }

    /// Whether the range may hold bytes of the peer that no completion has reported.
    pub(crate) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.responder.incoming.has_unreported(rkey, addr, len)
    }

    /// Moves to another state. `source` is the address of the NIC that the QP's packets leave from.
    pub(crate) fn modify(
        &mut self,
        to: &QpModify,
        source: Source,
        limits: &NicLimits,
        dev: &mut Device,
    ) -> Result<(), VerbsError> {
        let next = state::transition(self.state, to)?;
        match to {
            QpModify::Init { access, .. } => self.responder.incoming.allow(*access),
            QpModify::Rtr(attr) => {
                state::check_rtr(attr, dev.attr.mtu.bytes(), limits.max_rd_atomic)?;
                let mut peer = Peer::new(attr, source, &dev.attr)?;
                if dev.attr.capabilities.contains(Capabilities::CONGESTION_CONTROL) {
                    peer.traffic_class = peer.traffic_class & !ECN_BITS | ECN_CAPABLE;
                }
                self.peer = Some(peer);
                self.responder.start(attr);
            }
            QpModify::Rts(attr) => {
                state::check_rts(attr, limits.max_rd_atomic)?;
                match &self.peer {
                    Some(peer) if self.state == QpState::Rtr => self.requester.start(attr, peer.mtu, limits),
                    _ => self.requester.apply(attr, limits),
                }
            }
            QpModify::Sqd => {
                self.requester.drain();
                if self.requester.take_drained() {
                    dev.raise(AsyncEvent::SqDrained(self.qpn));
                }
            }
            QpModify::Err if self.state != QpState::Err => self.fail(None, dev),
            QpModify::Reset => {
                self.requester.reset();
                self.responder.reset(dev);
                self.peer = None;
            }
            _ => {}
        }
        self.state = next;
        Ok(())
    }

    /// What is known of packets from `from` to `at`, if they may come from there and thither.
    pub(crate) fn inbound_from(&mut self, from: SocketAddr, at: Source) -> Result<&mut Inbound, NotForUs> {
        let is_connected = self.is_connected();
        self.peer.as_mut().ok_or(NotForUs::State)?.inbound_from(from, at, is_connected)
    }

    /// Gives what a QP in Init holds to the transport of another wire.
    pub(crate) fn lend(&mut self) -> Result<LentQp, VerbsError> {
        if self.state != QpState::Init {
            return Err(VerbsError::WrongState {
                state: self.state,
                what: "taking it to another wire: offer it first",
            });
        }
        let (access, receives) = self.responder.lend(&self.init);
        Ok(LentQp { init: self.init.clone(), access, receives })
    }

    /// Gives back what is taken from shared objects, before the QP is dropped.
    pub(crate) fn release(&mut self, dev: &mut Device) {
        self.responder.reset(dev);
    }

    /// Posts one send.
    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        let is_flushed = state::flushes_sends(self.state)?;
        self.requester.post(wr)?;
        if is_flushed {
            self.requester.fail(None, dev);
        }
        dev.base.counters.on_posted(&wr.op);
        Ok(())
    }

    /// Posts one receive to the QP's own queue.
    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        self.responder.incoming.post(wr, self.state, dev)
    }

    /// Whether packets of a peer have a meaning now.
    const fn is_connected(&self) -> bool {
        state::takes_packets(self.state)
    }

    /// Takes a packet that came from the peer with a right ICRC.
    pub(crate) fn handle_packet(&mut self, packet: &Packet<'_>, dev: &mut Device, now: Time) {
        match &packet.body {
            Body::Request(request) => {
                if self.state == QpState::Rtr && self.responder.incoming.note_first_packet() {
                    dev.raise(AsyncEvent::CommEstablished(self.qpn));
                }
                if let Err(fatal) = self.responder.handle_request(&packet.bth, request, dev, now) {
                    self.on_fatal(None, fatal.event(self.qpn), dev);
                }
            }
            Body::Response(_) if self.state == QpState::Rtr => dev.counters.drop_wrong_state += 1,
            Body::Response(response) => {
                let outcome = self.requester.handle_response(packet.bth.psn, response, dev, now);
                self.settle(outcome, dev);
            }
            Body::Congestion => {
                dev.counters.notifications_received += 1;
                self.requester.flow.on_notification(now);
            }
            Body::Datagram(_) => dev.counters.drop_wrong_service += 1,
        }
    }

    /// A packet of the peer was marked on the way: the peer is notified.
    pub(crate) fn on_mark(&mut self, now: Time) {
        self.responder.responses.notify(now);
    }

    /// Fires what is due.
    pub(crate) fn handle_timeout(&mut self, dev: &mut Device, now: Time) {
        if self.is_connected() {
            self.responder.responses.pay(now);
            let outcome = self.requester.handle_timeout(dev, now);
            self.settle(outcome, dev);
        }
    }

    fn settle(&mut self, outcome: Result<(), Status>, dev: &mut Device) {
        if let Some(status) = outcome.err().or_else(|| self.requester.due_fault()) {
            self.on_fatal(Some(status), AsyncEvent::QpFatal(self.qpn), dev);
        } else if self.state == QpState::Sqd && self.requester.take_drained() {
            dev.raise(AsyncEvent::SqDrained(self.qpn));
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.is_connected() {
            return None;
        }
        match (self.requester.deadline(), self.responder.responses.owed_at()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether an acknowledgement is owed.
    pub(crate) fn owes(&self) -> bool {
        self.is_connected() && self.responder.responses.owed_at().is_some()
    }

    /// Acknowledges what is owed, due or not.
    pub(crate) fn pay(&mut self) {
        if self.is_connected() {
            self.responder.responses.pay(Time(u64::MAX));
        }
    }

    /// The owner is about to sleep.
    pub(crate) fn pay_before_sleep(&mut self, now: Time) {
        if self.is_connected() {
            self.responder.responses.pay_before_sleep(now);
        }
    }

    /// Whether [`Self::fill`] would send something.
    pub(crate) fn has_work(&self) -> bool {
        (matches!(self.state, QpState::Rts | QpState::Sqd) && self.requester.has_work())
            || (self.peer.is_some() && self.responder.responses.has_work())
    }

    /// Fills a batch: requests, then answers, then the acknowledgement, which rides along as the shorter last segment.
    pub(crate) fn fill(&mut self, mut batch: Batch<'_>, dev: &mut Device, now: Time) -> Option<(Finished, &Peer)> {
        let peer = self.peer.as_ref()?;
        let sends = matches!(self.state, QpState::Rts | QpState::Sqd);
        let mut answered = Ok(());
        if self.responder_first {
            answered = self.responder.fill(peer, &mut batch, dev);
        }
        if sends {
            self.requester.fill(peer, &mut batch, dev, now);
        }
        if !self.responder_first {
            answered = self.responder.fill(peer, &mut batch, dev);
        }
        self.responder_first = self.responder.responses.has_work();
        let is_empty = batch.is_empty();
        let finished = batch.finish();
        if let Err(fatal) = answered {
            self.on_fatal(None, fatal.event(self.qpn), dev);
        } else if sends {
            self.settle(Ok(()), dev);
        }
        if is_empty { None } else { self.peer.as_ref().map(|peer| (finished, peer)) }
    }

    /// A CQ of the QP overflowed: it cannot go on.
    pub(crate) fn on_lost_completion(&mut self, dev: &mut Device) {
        self.on_fatal(None, AsyncEvent::QpFatal(self.qpn), dev);
    }

    /// The QP cannot go on: `status` is the oldest send's, if the requester is at fault. `event` tells the consumer.
    fn on_fatal(&mut self, status: Option<Status>, event: AsyncEvent, dev: &mut Device) {
        if self.state != QpState::Err {
            self.fail(status, dev);
            dev.raise(event);
        }
    }

    fn fail(&mut self, status: Option<Status>, dev: &mut Device) {
        self.state = QpState::Err;
        self.requester.fail(status, dev);
        self.responder.flush(dev);
        self.responder.responses.abort();
        if self.init.srq.is_some() {
            dev.raise(AsyncEvent::LastWqeReached(self.qpn));
        }
    }
}
