//! An unreliable datagram queue pair (IBTA 9.8.3): its state, and the sender and receiver behind it.
//!
//! It has no peer: each send names its destination, and a receive takes a datagram of anyone who knows the queue key.
//! There is no answer, no retry and no timer, so nothing that strangers send makes state grow. A fault of a send stops
//! only the send queue (state SQE); the owner goes on with a transition to RTS.

mod receiver;
mod sender;

use std::net::SocketAddr;

use verbs::{AsyncEvent, Psn, QpInit, QpModify, QpState, QpStatus, QpType, Qpn, RecvWr, SendWr, Status, VerbsError};

use crate::batch::{Batch, Finished};
use crate::device::Device;
use crate::path::{Inbound, Path, Source};
use crate::peer::NotForUs;
use crate::qp::state;
use crate::receives::Fatal;
use crate::wire::{Bth, Datagram};
use receiver::Receiver;
use sender::Sender;

/// What came with a datagram in addition to its own headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Bytes of the UDP payload.
    pub(crate) udp_payload_bytes: usize,
}

/// A datagram queue pair.
#[derive(Debug)]
pub(crate) struct UdQp {
    qpn: Qpn,
    init: QpInit,
    state: QpState,
    sender: Sender,
    receiver: Receiver,
    /// Whence the last packet came.
    inbound: Option<Inbound>,
}

impl UdQp {
    /// `mtu_bytes`: the port's path MTU, the longest datagram.
    pub(crate) fn new(qpn: Qpn, init: &QpInit, mtu_bytes: usize) -> Self {
        Self {
            qpn,
            init: init.clone(),
            state: QpState::Reset,
            sender: Sender::new(qpn, init, mtu_bytes),
            receiver: Receiver::new(qpn, init, mtu_bytes),
            inbound: None,
        }
    }

    pub(crate) const fn init(&self) -> &QpInit {
        &self.init
    }

    pub(crate) fn status(&self) -> QpStatus {
        QpStatus {
            qp_type: QpType::Ud,
            state: self.state,
            sq_outstanding: self.sender.outstanding(),
            sq_psn: self.sender.next_psn(),
            rq_psn: Psn::new(0),
            dest_qpn: None,
        }
    }

    /// Moves to another state.
    pub(crate) fn modify(&mut self, to: &QpModify, dev: &mut Device) -> Result<(), VerbsError> {
        let next = state::transition(self.state, to)?;
        match to {
            QpModify::Init { qkey, .. } => {
                self.sender.set_qkey(*qkey);
                self.receiver.set_qkey(*qkey);
            }
            QpModify::Rts(attr) if self.state == QpState::Rtr => self.sender.start(attr.sq_psn),
            // Each datagram is done when it was sent.
            QpModify::Sqd => dev.raise(AsyncEvent::SqDrained(self.qpn)),
            QpModify::Err if self.state != QpState::Err => self.fail(dev),
            QpModify::Reset => {
                self.sender.reset();
                self.receiver.reset();
            }
            _ => {}
        }
        self.state = next;
        Ok(())
    }

    /// Posts one datagram.
    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        let is_flushed = state::flushes_sends(self.state)?;
        self.sender.post(wr, dev)?;
        if is_flushed {
            self.sender.flush(Status::WrFlushErr, dev);
        }
        dev.base.counters.verbs_datagram += 1;
        Ok(())
    }

    /// Posts one receive to the QP's own queue.
    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        self.receiver.post(wr, self.state, dev)
    }

    /// What is known of packets from `from` to any address of the NIC, if datagrams are taken now.
    pub(crate) fn inbound_from(&mut self, from: SocketAddr, at: Source) -> Result<&mut Inbound, NotForUs> {
        if !state::takes_packets(self.state) {
            return Err(NotForUs::State);
        }
        if self.inbound.is_none_or(|inbound| inbound.source != from || inbound.at.index != at.index) {
            self.inbound = Inbound::new(from, at);
        }
        self.inbound.as_mut().ok_or(NotForUs::Source)
    }

    /// Takes a datagram with a right ICRC.
    pub(crate) fn handle_datagram(&mut self, bth: &Bth, datagram: &Datagram<'_>, arrival: Arrival, dev: &mut Device) {
        if let Err(Fatal) = self.receiver.handle_datagram(bth, datagram, arrival, dev) {
            self.on_fatal(dev);
        }
    }

    /// Whether [`Self::fill`] would send something. A message is one packet, so that draining sends nothing more.
    pub(crate) fn has_work(&self) -> bool {
        self.state == QpState::Rts && self.sender.outstanding() > 0
    }

    /// Fills a batch with datagrams that go the same way; says which.
    pub(crate) fn fill(&mut self, mut batch: Batch<'_>, dev: &mut Device) -> Option<(Finished, Path)> {
        if self.state != QpState::Rts {
            return None;
        }
        let (path, sent) = self.sender.fill(&mut batch, dev);
        let is_empty = batch.is_empty();
        let finished = batch.finish();
        if let Err(status) = sent {
            self.sender.flush(status, dev);
            self.state = QpState::Sqe;
        }
        path.filter(|_| !is_empty).map(|path| (finished, path))
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
