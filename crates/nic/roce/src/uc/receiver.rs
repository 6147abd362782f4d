//! The receiving half of an unreliable connection: a message arrives whole, or not at all (IBTA 9.8.2.2).
//!
//! The packets of a message follow each other without a gap in their PSNs. One that does not ends the message under way,
//! and the rest of it is dropped; the next first packet begins a new message, whatever its PSN. Nothing is answered:
//! what cannot be executed is dropped and counted. A receive that a message took before it was dropped serves the next
//! one. Bytes of a WRITE are placed as they arrive, so a dropped one may have left some.
//!
//! State never depends on how much strangers or the peer send: one message, one receive, one PSN.

use verbs::{Psn, QpInit, Qpn, RtrAttr, Status};

use crate::counters::NicCounters;
use crate::device::Device;
use crate::incoming::{Fault, Incoming};
use crate::receives::Fatal;
use crate::wire::{Bth, Request};

#[derive(Debug)]
pub(super) struct Receiver {
    epsn: Psn,
    pub(super) incoming: Incoming,
}

impl Receiver {
    pub(super) fn new(qpn: Qpn, init: &QpInit, max_msg_bytes: u32) -> Self {
        Self { epsn: Psn::new(0), incoming: Incoming::new(qpn, init, max_msg_bytes) }
    }

    /// Init to ready-to-receive.
    pub(super) const fn start(&mut self, attr: &RtrAttr) {
        self.epsn = attr.rq_psn;
        self.incoming.start(attr);
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// Takes one request packet.
    pub(super) fn handle_request(&mut self, bth: &Bth, request: &Request<'_>, dev: &mut Device) -> Result<(), Fatal> {
        if starts_message(request) {
            // Whatever was under way has lost its end. Messages between may be missing as a whole.
            self.abandon_message(dev);
            self.epsn = bth.psn;
        } else if !self.incoming.is_within_message() {
            dev.counters.drop_rest_of_message += 1;
            return Ok(());
        } else if bth.psn != self.epsn {
            self.abandon_message(dev);
            dev.counters.drop_out_of_order += 1;
            return Ok(());
        }
        match self.incoming.execute(request, bth.solicited, dev) {
            Ok(()) => {
                self.epsn = self.epsn.plus(1);
                Ok(())
            }
            Err(fault) => self.refuse(fault, dev),
        }
    }

    /// Drops the message. Only a fault of the owner's own receive ends more than that.
    fn refuse(&mut self, fault: Fault, dev: &mut Device) -> Result<(), Fatal> {
        self.abandon_message(dev);
        *counter_of(fault, &mut dev.counters) += 1;
        if fault != Fault::BadReceive {
            return Ok(());
        }
        self.incoming.fail_message(Status::LocProtErr, dev);
        Err(Fatal)
    }

    /// The message under way will not be finished. Its receive serves the next one.
    fn abandon_message(&mut self, dev: &mut Device) {
        dev.counters.messages_abandoned += u64::from(self.incoming.drop_message());
    }

    /// Into error: the receive that was taken and all posted ones complete as flushed. Receives of an SRQ stay there.
    pub(super) fn flush(&mut self, dev: &mut Device) {
        self.abandon_message(dev);
        self.incoming.flush(dev);
    }
}

const fn starts_message(request: &Request<'_>) -> bool {
    match request {
        Request::Send { start, .. } => *start,
        Request::Write { reth, .. } => reth.is_some(),
        _ => true,
    }
}

const fn counter_of(fault: Fault, counters: &mut NicCounters) -> &mut u64 {
    match fault {
        Fault::Invalid | Fault::Key => &mut counters.drop_invalid_request,
        Fault::NoReceive => &mut counters.drop_no_receive,
        Fault::TooLong => &mut counters.drop_receive_too_short,
        Fault::BadReceive => &mut counters.drop_bad_receive,
    }
}
