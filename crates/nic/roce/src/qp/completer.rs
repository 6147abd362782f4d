//! The completer: what responses do to the requester (IBTA 9.7.5, 9.9.2).
//!
//! Responses are the peer's word: each is checked against what is outstanding before it moves anything.

use verbs::{Completion, Placed, Psn, SendFlags, SendOp, Status, Time, WcOpcode};

use super::requester::{DataRequest, Requester};
use super::retry::Due;
use super::send_queue::SendWqe;
use crate::device::Device;
use crate::wire::{Aeth, NakCode, Response, Syndrome, rnr_delay};

/// The oldest request failed with this status, and with it the QP.
pub(crate) type Failed = Status;

/// One packet of the answer to a READ or atomic.
struct Answer<'a> {
    /// First or only.
    start: bool,
    /// Last or only.
    end: bool,
    aeth: Option<Aeth>,
    data: &'a [u8],
    is_atomic: bool,
}

impl Answer<'_> {
    const fn is_to(&self, op: &SendOp) -> bool {
        match op {
            SendOp::Read(_) => !self.is_atomic,
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => self.is_atomic,
            _ => false,
        }
    }

    /// Whether its opcode is one that this packet of the answer may have (IBTA 9.7.5.2.7). An answer begins with First
    /// or Only and ends with Last or Only. One that was asked for again from its middle on begins there with either
    /// First or Middle: responders differ.
    const fn is_in_place(&self, packet: u64, request: DataRequest) -> bool {
        self.end == (packet + 1 == request.end) && (self.start || packet != request.first)
    }

    /// Negative answers are packets of their own (IBTA 9.7.5.1.2).
    fn is_positive(&self) -> bool {
        self.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack(_)))
    }
}

impl Requester {
    /// Takes one response packet.
    pub(crate) fn handle_response(
        &mut self,
        psn: Psn,
        response: &Response<'_>,
        dev: &mut Device,
        now: Time,
    ) -> Result<(), Failed> {
        let ahead = psn.since(self.psn_of(self.una));
        let packet = self.una + u64::from(ahead);
        if packet >= self.sent {
            // Behind `una`, or never sent.
            let stale = ahead >= Psn::MODULUS / 2;
            if stale && let Response::Acknowledge(aeth) = response {
                self.credits.on_acknowledge(*aeth);
            }
            *(if stale { &mut dev.counters.stale_responses } else { &mut dev.counters.drop_unexpected_response }) += 1;
            return Ok(());
        }
        let una_before = self.una;
        let outcome = self.dispatch(packet, response, dev, now);
        if self.una > una_before {
            self.judge_probe(now);
            if let Some(rtt) = self.flow.measure(self.una, now) {
                self.retry.learn(rtt);
            }
        }
        outcome
    }

    fn dispatch(&mut self, packet: u64, response: &Response<'_>, dev: &mut Device, now: Time) -> Result<(), Failed> {
        if let Response::Acknowledge(aeth) | Response::Atomic(aeth, _) | Response::Read { aeth: Some(aeth), .. } =
            response
        {
            self.credits.on_acknowledge(*aeth);
        }
        match response {
            Response::Acknowledge(aeth) => self.on_acknowledge(packet, *aeth, dev, now),
            Response::Read { start, end, aeth, payload } => {
                let answer = Answer { start: *start, end: *end, aeth: *aeth, data: payload, is_atomic: false };
                self.on_data(packet, &answer, dev, now)
            }
            Response::Atomic(aeth, original) => {
                let data = &original.to_ne_bytes();
                let answer = Answer { start: true, end: true, aeth: Some(*aeth), data, is_atomic: true };
                self.on_data(packet, &answer, dev, now)
            }
        }
    }

    fn on_acknowledge(&mut self, packet: u64, aeth: Aeth, dev: &mut Device, now: Time) -> Result<(), Failed> {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                dev.counters.acks_received += 1;
                if !self.acknowledge(packet + 1, dev, now) {
                    self.on_answer_missing(dev, now);
                }
                Ok(())
            }
            Syndrome::Nak(code) => {
                dev.counters.naks_received += 1;
                if !self.acknowledge(packet, dev, now) {
                    self.on_answer_missing(dev, now);
                    return Ok(());
                }
                match code {
                    NakCode::SequenceError => self.on_sequence_error(now),
                    NakCode::InvalidRequest => Err(Status::RemInvReqErr),
                    NakCode::RemoteAccess => Err(Status::RemAccessErr),
                    NakCode::RemoteOperational => Err(Status::RemOpErr),
                }
            }
            Syndrome::RnrNak(code) => {
                dev.counters.rnr_naks_received += 1;
                if !self.acknowledge(packet, dev, now) {
                    self.on_answer_missing(dev, now);
                } else if !self.retry.is_waiting() {
                    if !self.retry.try_rnr_wait(rnr_delay(code), now) {
                        return Err(Status::RnrRetryExcErr);
                    }
                    self.go_back(now);
                }
                Ok(())
            }
            Syndrome::Reserved(_) => {
                dev.counters.drop_bad_syndrome += 1;
                Ok(())
            }
        }
    }

    /// Everything before packet `end` has arrived. False if the answer to a READ or atomic before it is missing; then
    /// only what precedes that is taken as done.
    fn acknowledge(&mut self, end: u64, dev: &mut Device, now: Time) -> bool {
        let mut una = self.una;
        let mut complete = true;
        while let Some(head) = self.queue.head() {
            if head.wants_data() {
                complete = end <= una;
                break;
            }
            if head.end() > end {
                una = una.max(end);
                break;
            }
            una = head.end();
            self.advance(una, dev, now);
        }
        self.advance(una, dev, now);
        complete
    }

    /// Data of the answer at `packet`, which must be the next one that the oldest READ or atomic waits for.
    fn on_data(&mut self, packet: u64, answer: &Answer<'_>, dev: &mut Device, now: Time) -> Result<(), Failed> {
        if !self.acknowledge(packet, dev, now) {
            self.on_answer_missing(dev, now);
            return Ok(());
        }
        let Some(head) = self.queue.head().filter(|h| answer.is_to(&h.op)) else {
            dev.counters.drop_unexpected_response += 1;
            return Ok(());
        };
        let (offset, len) = head.slice_of(packet);
        let is_in_place = self.data_requests.front().is_some_and(|request| answer.is_in_place(packet, *request));
        if answer.data.len() != len || !is_in_place || !answer.is_positive() {
            return Err(Status::BadRespErr);
        }
        head.write(dev.mrs.of(self.queue.pd()), offset, answer.data).map_err(|_| Status::LocProtErr)?;
        self.advance(packet + 1, dev, now);
        Ok(())
    }

    /// Moves `una` within or to the end of the oldest request, which completes there.
    fn advance(&mut self, una: u64, dev: &mut Device, now: Time) {
        let Some(head) = self.queue.head() else { return };
        if una <= self.una {
            return;
        }
        let bytes = head.charge_before(una) - head.charge_before(self.una);
        self.flow.on_delivered(bytes);
        let done = una == head.end();
        self.una = una;
        if done && let Some(wqe) = self.queue.pop() {
            self.cursor = self.cursor.saturating_sub(1);
            self.complete(wqe, Status::Success, dev);
        }
        if self.next <= una {
            (self.next, self.cursor) = (una, 0);
        }
        while self.data_requests.front().is_some_and(|request| request.end <= una) {
            self.data_requests.pop_front();
            self.data_requests_sent = self.data_requests_sent.saturating_sub(1);
        }
        self.retry.on_progress(una < self.sent, now);
    }

    /// A later answer shows that one of a READ or atomic was lost (IBTA 9.7.5.2.8, implied NAK).
    fn on_answer_missing(&mut self, dev: &mut Device, now: Time) {
        if self.next > self.una && self.retry.may_go_back(self.una, now) {
            dev.counters.implied_naks += 1;
            self.flow.on_loss();
            self.go_back(now);
        }
    }

    /// After a probe: if its packet alone was acknowledged, those behind it were lost; else the peer was only slow.
    fn judge_probe(&mut self, now: Time) {
        let Some(probed) = self.probed.take() else { return };
        if self.una == probed + 1 && self.next > self.una {
            self.flow.on_loss();
            self.flow.forget_measuring(self.una);
            self.go_back(now);
        }
    }

    fn on_sequence_error(&mut self, now: Time) -> Result<(), Failed> {
        if self.next > self.una && self.retry.may_go_back(self.una, now) {
            if !self.retry.try_retry() {
                return Err(Status::RetryExcErr);
            }
            self.flow.on_loss();
            self.flow.forget_measuring(self.una);
            self.go_back(now);
        }
        Ok(())
    }

    fn go_back(&mut self, now: Time) {
        (self.next, self.cursor, self.data_requests_sent) = (self.una, 0, 0);
        self.retry.on_went_back(self.una, now);
    }

    /// Fires what is due.
    pub(crate) fn handle_timeout(&mut self, dev: &mut Device, now: Time) -> Result<(), Failed> {
        self.flow.on_time(now);
        match self.retry.take_due(now) {
            Due::No | Due::RnrOver => {}
            Due::Probe => {
                dev.counters.probes += 1;
                self.probe();
            }
            Due::Timeout => {
                dev.counters.timeouts += 1;
                if !self.retry.try_retry() {
                    return Err(Status::RetryExcErr);
                }
                self.flow.on_timeout();
                self.go_back(now);
            }
        }
        Ok(())
    }

    /// Completes the oldest request with `status` and flushes the others.
    pub(crate) fn fail(&mut self, status: Option<Status>, dev: &mut Device) {
        let mut status = status.unwrap_or(Status::WrFlushErr);
        while let Some(wqe) = self.queue.pop() {
            self.complete(wqe, status, dev);
            status = Status::WrFlushErr;
        }
        self.reset();
    }

    fn complete(&mut self, wqe: SendWqe, status: Status, dev: &mut Device) {
        if status != Status::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.opcode(),
                byte_len: match wqe.opcode() {
                    WcOpcode::Send | WcOpcode::Write => 0,
                    _ => wqe.len,
                },
                qpn: self.qpn,
                imm: None,
                src_qpn: None,
                placed: Placed::Untold,
            };
            dev.complete(self.cq, completion, false);
        }
        self.queue.recycle(wqe);
    }
}
