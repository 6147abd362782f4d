//! How a queue pair's stream ends: in order, at once, by the peer, or by a fault.
//!
//! Owns the last frames, the flushing of all work, and the waits for the peer's last byte.

use rnic::{Device, wants_data};
use verbs::{AsyncEvent, SendOp, Status, Time};

use super::events::{Ending, QpEvent};
use super::state::{State, Wait};
use super::{Failing, Qp, Shutdown};
use crate::ddp::Header;
use crate::rdmap::{Opcode, QUEUE_REQUEST, QUEUE_SEND};
use crate::terminate::{Cause, Code, Terminate};

impl Qp {
    /// Closes the stream in order: what was posted is executed, then [`Self::is_shutdown_due`].
    pub fn close(&mut self, dev: &mut Device) {
        match self.state {
            State::Open => {
                self.state = State::Closing;
                self.confirmation.on_close();
            }
            State::Idle | State::Requesting => self.end(Ending::Aborted, None, Status::WrFlushErr, dev),
            State::Closing | State::Ending | State::Over => {}
        }
        self.close_if_done(dev);
    }

    /// Ends the stream at once: all work is flushed, and the peer is told by a Terminate message.
    pub fn abort(&mut self, dev: &mut Device) {
        let terminate = self.state.receives().then(|| Terminate::new(Cause::RdmapLocal, None));
        self.end(Ending::Aborted, terminate, Status::WrFlushErr, dev);
    }

    /// The queue pair cannot go on for a reason outside of its stream, such as a CQ that overflowed.
    pub fn fatal(&mut self, dev: &mut Device) {
        if self.state.takes_work() || self.state.receives() {
            self.abort(dev);
            dev.raise(AsyncEvent::QpFatal(self.attr.qpn));
        }
    }

    /// The peer closed its end of the TCP connection.
    pub fn on_eof(&mut self, dev: &mut Device) {
        self.has_seen_end = true;
        self.failing = self.failing.or_else(|| self.oldest(Status::RetryExcErr));
        match self.state {
            State::Open | State::Closing
                if self.input.is_between_frames()
                    && !self.receiver.is_amid_message()
                    && self.requests.is_empty()
                    && self.may_send =>
            {
                if self.state == State::Open {
                    self.end(Ending::ClosedByPeer, None, Status::WrFlushErr, dev);
                }
            }
            State::Idle | State::Over | State::Ending => {}
            State::Requesting | State::Open | State::Closing => {
                self.end(Ending::Broken, None, Status::WrFlushErr, dev);
            }
        }
        self.close_if_done(dev);
    }

    /// The TCP connection failed: nothing can be sent or received any more.
    pub fn broke(&mut self, dev: &mut Device) {
        self.failing = self.failing.or_else(|| self.oldest(Status::RetryExcErr));
        self.end(Ending::Broken, None, Status::WrFlushErr, dev);
        self.frames.clear();
        self.state = State::Over;
    }

    /// Ends the stream: flushes all work, and lets the Terminate message be the last frame.
    pub(super) fn end(&mut self, ending: Ending, terminate: Option<Terminate>, receive: Status, dev: &mut Device) {
        if !(self.state.takes_work() || self.state.receives()) {
            return;
        }
        let is_told = !self.is_quiet_end(&ending);
        let can_send = self.frames.abandon(&self.sends, dev.mrs.of(self.attr.init.pd));
        if let (Some(terminate), true) = (terminate, can_send) {
            self.counters.tcp_terminates_sent += 1;
            self.frames.push_terminate(&terminate);
        }
        self.state = if self.is_connected { State::Ending } else { State::Over };
        self.wait = Wait::LINGER;
        self.requests.clear();
        self.responses.clear();
        self.flush_sends(dev);
        self.receiver.flush(receive, dev);
        if is_told {
            dev.raise(AsyncEvent::QpFatal(self.attr.qpn));
        }
        if self.attr.init.srq.is_some() {
            dev.raise(AsyncEvent::LastWqeReached(self.attr.qpn));
        }
        self.events.push_back(QpEvent::Ended(ending));
        self.close_if_done(dev);
    }

    /// Whether the consumer is not told of the end by `QpFatal`: it asked for it; or the stream was idle, and the peer
    /// gave its end up. Then it is as with RoCEv2, where such a peer shows itself at the next send, and
    /// `LastWqeReached` says that no more receives are taken.
    fn is_quiet_end(&self, ending: &Ending) -> bool {
        let by_peer = match ending {
            Ending::Aborted | Ending::Closed => return true,
            Ending::ClosedByPeer | Ending::Broken => true,
            Ending::TerminatedByPeer(terminate) => terminate.code == Cause::RdmapLocal.code(),
            _ => false,
        };
        let is_idle = self.sends.is_empty() && self.requests.is_empty() && self.responses.is_empty();
        let is_between = self.input.is_between_frames() && !self.receiver.is_amid_message();
        by_peer && self.attr.init.srq.is_some() && self.is_connected && self.may_send && is_idle && is_between
    }

    /// Goes on with closing when nothing is left to be sent.
    pub(super) fn close_if_done(&mut self, dev: &mut Device) {
        if !self.frames.is_empty() {
            return;
        }
        match self.state {
            State::Closing => {
                if self.shutdown == Shutdown::No && self.sends.is_empty() && self.responses.is_empty() {
                    (self.shutdown, self.wait) = (Shutdown::Due, Wait::LINGER);
                }
                if self.shutdown != Shutdown::No && self.has_seen_end {
                    self.end(Ending::Closed, None, Status::WrFlushErr, dev);
                    self.state = State::Over;
                }
            }
            State::Ending => {
                if self.shutdown == Shutdown::No {
                    self.shutdown = Shutdown::Due;
                }
                if self.has_seen_end {
                    self.state = State::Over;
                }
            }
            State::Idle | State::Requesting | State::Open | State::Over => {}
        }
    }

    /// Whether this end of the TCP connection is to be shut down for writing: all is sent. Said once.
    pub fn is_shutdown_due(&mut self) -> bool {
        let is_due = self.shutdown == Shutdown::Due;
        if is_due {
            self.shutdown = Shutdown::Told;
        }
        is_due
    }

    /// Whether the TCP connection is of no more use.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// When [`Self::handle_timeout`] wants to be called. A time that has passed means at once.
    pub const fn deadline(&self) -> Option<Time> {
        self.wait.deadline()
    }

    /// Looks at the clock.
    pub fn handle_timeout(&mut self, dev: &mut Device, now: Time) {
        if !self.wait.is_over(now) {
            return;
        }
        self.wait = Wait::None;
        match self.state {
            State::Requesting | State::Open => {
                self.counters.tcp_startups_failed += 1;
                self.end(Ending::StartupTimeout, None, Status::WrFlushErr, dev);
            }
            State::Closing => {
                self.end(Ending::Closed, None, Status::WrFlushErr, dev);
                self.state = State::Over;
            }
            State::Ending => {
                self.frames.clear();
                self.state = State::Over;
            }
            State::Idle | State::Over => {}
        }
    }

    /// Gives back what is taken from shared objects, before it is dropped. No completions come.
    pub fn release(&mut self, dev: &mut Device) {
        self.receiver.release(dev);
        self.frames.clear();
        self.state = State::Over;
    }

    /// The work request of which the peer's Terminate message complains, if it is still there, and how it ends.
    pub(super) fn blamed(&self, terminate: &Terminate) -> Option<Failing> {
        let offender = terminate.offender?;
        let found = self.sends.iter().find(|(_, wqe)| match offender.header {
            Header::Untagged(header) if header.queue == QUEUE_REQUEST => wants_data(&wqe.op) && wqe.msn == header.msn,
            Header::Untagged(header) => {
                let is_send = matches!(wqe.op, SendOp::Send | SendOp::SendImm(_));
                header.queue == QUEUE_SEND && is_send && wqe.msn == header.msn
            }
            Header::Tagged(header) => match wqe.op {
                SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
                    let inside = remote.addr..=remote.addr.saturating_add(wqe.len.into());
                    header.ulp == Opcode::Write.control()
                        && header.stag == remote.rkey.0
                        && inside.contains(&header.offset)
                }
                _ => false,
            },
        });
        let status = status_of(terminate.code, &offender.header);
        // Messages are executed in order, so those before it were.
        let is_executed_before = self.attr.confirms;
        found.map(|(number, _)| Failing { number, status, is_executed_before })
    }
}

/// How a work request ends of which the peer says that.
fn status_of(code: Code, header: &Header) -> Status {
    let is_send = matches!(header, Header::Untagged(header) if header.queue == QUEUE_SEND);
    match Cause::from_code(code) {
        Some(Cause::UntaggedNoBuffer) if is_send => Status::RnrRetryExcErr,
        _ => match (code.layer, code.etype) {
            (0 | 1, 1) => Status::RemAccessErr,
            (0 | 1, 2) => Status::RemInvReqErr,
            _ => Status::RemOpErr,
        },
    }
}
