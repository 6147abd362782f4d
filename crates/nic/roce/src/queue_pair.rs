//! A queue pair of any transport service, with what the NIC keeps about it. Owns nothing of the services' behaviour.

use std::net::SocketAddr;

use verbs::{QpInit, QpModify, QpState, QpStatus, QpType, Qpn, RecvWr, Rkey, SendWr, Time, VerbsError, Wire};

use crate::batch::{Batch, Finished, Sealing, Transmit};
use crate::device::Device;
use crate::limits::NicLimits;
use crate::path::{Inbound, Source};
use crate::peer::NotForUs;
use crate::qp::{LentQp, Qp};
use crate::seals::QpSeal;
use crate::uc::UcQp;
use crate::ud::{Arrival, UdQp};
use crate::wire::{Body, Opcode, Packet};

#[derive(Debug)]
enum Service {
    Reliable(Box<Qp>),
    Unreliable(Box<UcQp>),
    Datagram(Box<UdQp>),
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    service: Service,
    /// The keys of a connected one whose packets are all sealed.
    seal: Option<Box<QpSeal>>,
    /// Whether the QP is in the NIC's list of those with something to send.
    pub(crate) scheduled: bool,
    /// Whether the QP is in the NIC's list of those that owe an acknowledgement.
    pub(crate) is_debtor: bool,
    /// When the QP's entry among the NIC's timers fires.
    pub(crate) timer_at: Option<Time>,
}

impl QueuePair {
    /// `init` names a service that is spoken.
    pub(crate) fn new(qpn: Qpn, init: &QpInit, limits: &NicLimits, mtu_bytes: usize) -> Self {
        let service = match init.qp_type {
            QpType::Ud => Service::Datagram(Box::new(UdQp::new(qpn, init, mtu_bytes))),
            QpType::Uc => Service::Unreliable(Box::new(UcQp::new(qpn, init, limits))),
            _ => Service::Reliable(Box::new(Qp::new(qpn, init, limits))),
        };
        Self { service, seal: None, scheduled: false, is_debtor: false, timer_at: None }
    }

    pub(crate) fn init(&self) -> &QpInit {
        match &self.service {
            Service::Reliable(qp) => qp.init(),
            Service::Unreliable(qp) => qp.init(),
            Service::Datagram(qp) => qp.init(),
        }
    }

    pub(crate) fn status(&self) -> QpStatus {
        match &self.service {
            Service::Reliable(qp) => qp.status(),
            Service::Unreliable(qp) => qp.status(),
            Service::Datagram(qp) => qp.status(),
        }
    }

    /// Whether the range may hold bytes of the peer that no completion has reported.
    pub(crate) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        match &self.service {
            Service::Reliable(qp) => qp.has_unreported(rkey, addr, len),
            Service::Unreliable(qp) => qp.has_unreported(rkey, addr, len),
            // A datagram goes to a posted receive, and its completion comes at once.
            Service::Datagram(_) => false,
        }
    }

    /// Gives what it holds to the transport of another wire; only a reliable connected one in Init.
    pub(crate) fn lend(&mut self) -> Result<LentQp, VerbsError> {
        match &mut self.service {
            Service::Reliable(qp) => qp.lend(),
            Service::Unreliable(_) | Service::Datagram(_) => {
                Err(VerbsError::NotOnWire { wire: Wire::Iwarp, qp_type: self.init().qp_type })
            }
        }
    }

    /// Moves to another state. `source` is the address of the NIC that the QP's packets leave from.
    pub(crate) fn modify(
        &mut self,
        to: &QpModify,
        source: Source,
        limits: &NicLimits,
        dev: &mut Device,
    ) -> Result<(), VerbsError> {
        match &mut self.service {
            Service::Reliable(qp) => qp.modify(to, source, limits, dev),
            Service::Unreliable(qp) => qp.modify(to, source, dev),
            Service::Datagram(qp) => qp.modify(to, dev),
        }?;
        if let QpModify::Reset = to {
            self.seal = None;
        }
        Ok(())
    }

    /// From here on all its packets are sealed, both ways. Only before it is connected: keys are for one connection.
    pub(crate) fn seal(&mut self, seal: QpSeal) -> Result<(), VerbsError> {
        let QpStatus { qp_type, state, .. } = self.status();
        if !qp_type.is_connected() {
            return Err(VerbsError::NoSuch("connected QP"));
        }
        if state != QpState::Init || self.seal.is_some() {
            return Err(VerbsError::WrongState { state, what: "sealing its packets: offer it first" });
        }
        self.seal = Some(Box::new(seal));
        Ok(())
    }

    /// It was not connected, so the keys are not used.
    pub(crate) fn unseal(&mut self) {
        if self.status().state == QpState::Init {
            self.seal = None;
        }
    }

    pub(crate) fn seal_mut(&mut self) -> Option<&mut QpSeal> {
        self.seal.as_deref_mut()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Gives back what is taken from shared objects, before the QP is dropped.
    pub(crate) fn release(&mut self, dev: &mut Device) {
        match &mut self.service {
            Service::Reliable(qp) => qp.release(dev),
            Service::Unreliable(qp) => qp.release(dev),
            // A datagram is one packet, so that none is under way.
            Service::Datagram(_) => {}
        }
    }

    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        match &mut self.service {
            Service::Reliable(qp) => qp.post_send(wr, dev),
            Service::Unreliable(qp) => qp.post_send(wr, dev),
            Service::Datagram(qp) => qp.post_send(wr, dev),
        }
    }

    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        match &mut self.service {
            Service::Reliable(qp) => qp.post_recv(wr, dev),
            Service::Unreliable(qp) => qp.post_recv(wr, dev),
            Service::Datagram(qp) => qp.post_recv(wr, dev),
        }
    }

    /// Whether packets with that opcode are of its service. An unknown opcode is of the reliable service.
    pub(crate) fn takes(&self, opcode: Option<Opcode>) -> bool {
        let service = opcode.map_or(Some(QpType::Rc), Opcode::service);
        match (&self.service, service) {
            (Service::Reliable(_), Some(QpType::Rc) | None) | (Service::Unreliable(_), Some(QpType::Uc) | None) => true,
            (Service::Datagram(_), service) => service == Some(QpType::Ud),
            _ => false,
        }
    }

    /// What is known of packets from `from` to `at`, if they may come from there and thither.
    pub(crate) fn inbound_from(&mut self, from: SocketAddr, at: Source) -> Result<&mut Inbound, NotForUs> {
        match &mut self.service {
            Service::Reliable(qp) => qp.inbound_from(from, at),
            Service::Unreliable(qp) => qp.inbound_from(from, at),
            Service::Datagram(qp) => qp.inbound_from(from, at),
        }
    }

    /// Takes a packet for which [`Self::inbound_from`] gave the route of its ICRC.
    pub(crate) fn handle_packet(&mut self, packet: &Packet<'_>, arrival: Arrival, dev: &mut Device, now: Time) {
        match (&mut self.service, &packet.body) {
            (Service::Datagram(qp), Body::Datagram(datagram)) => {
                qp.handle_datagram(&packet.bth, datagram, arrival, dev);
            }
            (Service::Reliable(qp), Body::Request(_) | Body::Response(_) | Body::Congestion) => {
                qp.handle_packet(packet, dev, now)
            }
            (Service::Unreliable(qp), Body::Request(_) | Body::Congestion) => qp.handle_packet(packet, dev),
            _ => dev.counters.drop_wrong_service += 1,
        }
    }

    /// A packet of the peer was marked on the way. Who sends without reliability is not told: they keep no rate.
    pub(crate) fn on_mark(&mut self, now: Time) {
        if let Service::Reliable(qp) = &mut self.service {
            qp.on_mark(now);
        }
    }

    /// Fires what is due.
    pub(crate) fn handle_timeout(&mut self, dev: &mut Device, now: Time) {
        if let Service::Reliable(qp) = &mut self.service {
            qp.handle_timeout(dev, now);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.service {
            Service::Reliable(qp) => qp.deadline(),
            Service::Unreliable(_) | Service::Datagram(_) => None,
        }
    }

    /// Whether an acknowledgement is owed. Only reliable connections have them.
    pub(crate) fn owes(&self) -> bool {
        matches!(&self.service, Service::Reliable(qp) if qp.owes())
    }

    /// Acknowledges what is owed.
    pub(crate) fn pay(&mut self) {
        if let Service::Reliable(qp) = &mut self.service {
            qp.pay();
        }
    }

    /// The owner is about to sleep: acknowledges what is owed, but not after each batch.
    pub(crate) fn pay_before_sleep(&mut self, now: Time) {
        if let Service::Reliable(qp) = &mut self.service {
            qp.pay_before_sleep(now);
        }
    }

    /// Whether [`Self::fill`] would send something.
    pub(crate) fn has_work(&self) -> bool {
        match &self.service {
            Service::Reliable(qp) => qp.has_work(),
            Service::Unreliable(qp) => qp.has_work(),
            Service::Datagram(qp) => qp.has_work(),
        }
    }

    /// Fills a batch; says what it came to and where it goes.
    pub(crate) fn fill(&mut self, batch: Batch<'_>, dev: &mut Device, now: Time) -> Option<(Finished, Transmit)> {
        let Self { service, seal, .. } = self;
        let sealing = seal.as_deref_mut().map(|seal| Sealing { sealer: &mut seal.keys.sealer, to: seal.to });
        let is_sealed = sealing.is_some();
        let batch = batch.sealed_by(sealing);
        let (finished, source, destination, traffic_class, hop_limit) = match service {
            Service::Reliable(qp) => {
                let (finished, peer) = qp.fill(batch, dev, now)?;
                (finished, peer.source, peer.address, peer.traffic_class, peer.hop_limit)
            }
            Service::Unreliable(qp) => {
                let (finished, peer) = qp.fill(batch, dev)?;
                (finished, peer.source, peer.address, peer.traffic_class, peer.hop_limit)
            }
            Service::Datagram(qp) => {
                let (finished, path) = qp.fill(batch, dev)?;
                (finished, path.source, path.address, path.traffic_class, path.hop_limit)
            }
        };
        dev.counters.tx_sealed += if is_sealed { finished.packets as u64 } else { 0 };
        dev.counters.tx_unsealed += finished.unsealed;
        let (source, segment_bytes) = (source.address, finished.segment_bytes);
        Some((finished, Transmit { source, destination, segment_bytes, traffic_class, hop_limit }))
    }

    /// A CQ of the QP overflowed: it cannot go on.
    pub(crate) fn on_fatal(&mut self, dev: &mut Device) {
        match &mut self.service {
            Service::Reliable(qp) => qp.on_lost_completion(dev),
            Service::Unreliable(qp) => qp.on_fatal(dev),
            Service::Datagram(qp) => qp.on_fatal(dev),
        }
    }
}
