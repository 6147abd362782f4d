//! An unreliable connected queue pair (IBTA 9.8.2): its state, and the sender and receiver behind it.
//!
//! It has one peer, and messages of any length go to it in packets of the path MTU. There is no answer, no retry and no
//! timer. A message of which a packet is missing never arrives. A fault of a send stops only the send queue (state
//! SQE); the owner goes on with a transition to RTS.

mod receiver;
mod sender;

use std::net::SocketAddr;

use verbs::{
    AsyncEvent, QpInit, QpModify, QpState, QpStatus, QpType, Qpn, RecvWr, Rkey, RtrAttr, SendWr, Status, VerbsError,
};

use crate::batch::{Batch, Finished};
use crate::device::Device;
use crate::limits::{ECN_BITS, NicLimits};
use crate::path::{Inbound, Source};
use crate::peer::{NotForUs, Peer};
use crate::qp::state;
use crate::receives::Fatal;
use crate::wire::{Body, Packet};
use receiver::Receiver;
use sender::Sender;

/// An unreliable connected queue pair.
#[derive(Debug)]
pub(crate) struct UcQp {
    qpn: Qpn,
    init: QpInit,
    state: QpState,
    peer: Option<Peer>,
    sender: Sender,
    receiver: Receiver,
}

impl UcQp {
    pub(crate) fn new(qpn: Qpn, init: &QpInit, limits: &NicLimits) -> Self {
        Self {
            qpn,
            init: init.clone(),
            state: QpState::Reset,
            peer: None,
            sender: Sender::new(qpn, init, limits.max_msg_bytes),
            receiver: Receiver::new(qpn, init, limits.max_msg_bytes),
        }
    }

    pub(crate) const fn init(&self) -> &QpInit {
        &self.init
    }

    pub(crate) fn status(&self) -> QpStatus {
        QpStatus {
            qp_type: QpType::Uc,
            state: self.state,
            sq_outstanding: self.sender.outstanding(),
            sq_psn: self.sender.next_psn(),
            rq_psn: self.receiver.expected_psn(),
            dest_qpn: self.peer.as_ref().map(|peer| peer.qpn),
        }
    }

    /// Whether the range may hold bytes of the peer that no completion has reported.
    pub(crate) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.receiver.incoming.has_unreported(rkey, addr, len)
    }

    /// Moves to another state. `source` is the address of the NIC that the QP's packets leave from.
    pub(crate) fn modify(&mut self, to: &QpModify, source: Source, dev: &mut Device) -> Result<(), VerbsError> {
        let next = state::transition(self.state, to)?;
        match to {
            QpModify::Init { access, .. } => self.receiver.incoming.allow(*access),
            QpModify::Rtr(attr) => {
                // What only reliable connections have is not looked at.
                let used = RtrAttr { max_dest_rd_atomic: 0, min_rnr_timer: 0, ..attr.clone() };
                state::check_rtr(&used, dev.attr.mtu.bytes(), 0)?;
                let mut peer = Peer::new(attr, source, &dev.attr)?;
                // Nothing slows the sender down, so its packets may not be marked instead of dropped.
                peer.traffic_class &= !ECN_BITS;
                self.sender.set_mtu(peer.mtu);
                self.receiver.start(attr);
                self.peer = Some(peer);
            }
            QpModify::Rts(attr) if self.state == QpState::Rtr => self.sender.start(attr.sq_psn),
            QpModify::Rts(_) => self.sender.resume(),
            QpModify::Sqd => {
                self.sender.drain();
                self.tell_drained(dev);
            }
            QpModify::Err if self.state != QpState::Err => self.fail(dev),
            QpModify::Reset => {
                self.sender.reset();
                self.receiver.incoming.reset(dev);
                self.peer = None;
            }
            _ => {}
        }
        self.state = next;
        Ok(())
    }

    /// Posts one send.
    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        let is_flushed = state::flushes_sends(self.state)?;
        self.sender.post(wr)?;
        if is_flushed {
            self.sender.flush(Status::WrFlushErr, dev);
        }
        dev.base.counters.on_posted(&wr.op);
        Ok(())
    }

    /// Posts one receive to the QP's own queue.
    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        self.receiver.incoming.post(wr, self.state, dev)
    }

    /// What is known of packets from `from` to `at`, if they may come from there and thither.
    pub(crate) fn inbound_from(&mut self, from: SocketAddr, at: Source) -> Result<&mut Inbound, NotForUs> {
        let takes_packets = state::takes_packets(self.state);
        self.peer.as_mut().ok_or(NotForUs::State)?.inbound_from(from, at, takes_packets)
    }

    /// Takes a packet that came from the peer with a right ICRC.
    pub(crate) fn handle_packet(&mut self, packet: &Packet<'_>, dev: &mut Device) {
        match &packet.body {
            Body::Request(request) => {
                if self.state == QpState::Rtr && self.receiver.incoming.note_first_packet() {
                    dev.raise(AsyncEvent::CommEstablished(self.qpn));
                }
                if let Err(Fatal) = self.receiver.handle_request(&packet.bth, request, dev) {
                    self.on_fatal(dev);
                }
            }
            // The packets of the QP do not say that they may be marked, and keep no rate that could be lowered.
            Body::Congestion => dev.counters.notifications_received += 1,
            Body::Response(_) | Body::Datagram(_) => dev.counters.drop_wrong_service += 1,
        }
    }

    const fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether [`Self::fill`] would send something.
    pub(crate) fn has_work(&self) -> bool {
        self.sends() && self.sender.has_work()
    }

    /// Fills a batch with packets of the oldest messages.
    pub(crate) fn fill(&mut self, mut batch: Batch<'_>, dev: &mut Device) -> Option<(Finished, &Peer)> {
        if !self.sends() {
            return None;
        }
        let sent = self.sender.fill(self.peer.as_ref()?, &mut batch, dev);
        let is_empty = batch.is_empty();
        let finished = batch.finish();
        match sent {
            Ok(()) => self.tell_drained(dev),
            Err(status) => {
                self.sender.flush(status, dev);
                self.state = QpState::Sqe;
            }
        }
        self.peer.as_ref().filter(|_| !is_empty).map(|peer| (finished, peer))
    }

    fn tell_drained(&mut self, dev: &mut Device) {
        if self.sender.take_drained() {
            dev.raise(AsyncEvent::SqDrained(self.qpn));
        }
    }

    /// Gives back what is taken from shared objects, before the QP is dropped.
    pub(crate) fn release(&mut self, dev: &mut Device) {
        self.receiver.incoming.reset(dev);
    }

    /// The QP cannot go on.
    pub(crate) fn on_fatal(&mut self, dev: &mut Device) {
        if self.state != QpState::Err {
            self.fail(dev);
            dev.raise(AsyncEvent::QpFatal(self.qpn));
        }
    }

    fn fail(&mut self, dev: &mut Device) {
        self.state = QpState::Err;
        self.sender.flush(Status::WrFlushErr, dev);
        self.receiver.flush(dev);
        if self.init.srq.is_some() {
            dev.raise(AsyncEvent::LastWqeReached(self.qpn));
        }
    }
}
