//! A queue pair over a TCP connection.
//!
//! Owns what happens to all parts of it together: work requests in, completions out, and how it ends. Bytes come and go
//! through [`Qp::want`], [`Qp::received`], [`Qp::poll_transmit`] and [`Qp::sent`].

mod events;
mod execute;
mod frames;
mod handshake;
mod input;
mod receive;
mod requests;
mod responses;
mod schedule;
mod send_queue;
mod state;

use std::collections::VecDeque;

use rnic::{Device, ReceiveQueue};
use verbs::{
    AsyncEvent, Completion, Placed, Psn, QpInit, QpState, QpStatus, RecvWr, Rkey, SendFlags, SendOp, SendWr, Status,
    Time, VerbsError, WcOpcode,
};

use crate::counters::WireCounters;
use crate::ddp::Header;
use crate::rdmap::{Opcode, QUEUE_REQUEST, QUEUE_SEND};
use crate::terminate::{Cause, Code, Terminate};
pub use events::{Ending, Extensions, QpAttr, QpEvent};
use frames::Frames;
use input::Input;
use receive::Receiver;
use requests::Requests;
use responses::Responses;
use schedule::Cursor;
use send_queue::{SendLimits, SendQueue, SendWqe, wants_data};
use state::{State, Wait};

/// Numbers of the next message of each queue that this end sends to.
#[derive(Debug)]
struct NextMsn {
    send: u32,
    request: u32,
    atomic_response: u32,
}

/// Whether this end of the TCP connection is to be shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shutdown {
    No,
    Due,
    Told,
}

/// A queue pair, and the stream that carries it.
///
/// Work requests may be posted as soon as it is made; they wait for the connection.
#[derive(Debug)]
pub struct Qp {
    attr: QpAttr,
    state: State,
    wait: Wait,
    is_connected: bool,
    /// A passive end sends nothing before it got a frame.
    may_send: bool,
    /// The peer will send no more.
    has_seen_end: bool,
    shutdown: Shutdown,
    sends: SendQueue,
    /// Work request that is being turned into frames, or is the next one.
    next: u64,
    cursor: Cursor,
    is_response_next: bool,
    next_msn: NextMsn,
    requests: Requests,
    responses: Responses,
    frames: Frames,
    receiver: Receiver,
    input: Input,
    /// The work request that a fault is about, and how it ends.
    failing: Option<(u64, Status)>,
    events: VecDeque<QpEvent>,
    counters: WireCounters,
}

impl Qp {
    /// A queue pair that may be posted to. `receives` are those that were posted to its own queue already.
    pub fn new(attr: QpAttr, receives: ReceiveQueue) -> Self {
        let limits = SendLimits {
            max_wr: attr.init.max_send_wr,
            max_sge: attr.init.max_send_sge,
            max_inline_bytes: attr.init.max_inline_bytes,
            max_msg_bytes: attr.max_msg_bytes,
            sig_all: attr.init.sq_sig_all,
        };
        Self {
            state: State::Idle,
            wait: Wait::None,
            is_connected: false,
            may_send: false,
            has_seen_end: false,
            shutdown: Shutdown::No,
            sends: SendQueue::new(limits),
            next: 0,
            cursor: Cursor::Start,
            is_response_next: false,
            next_msn: NextMsn { send: 1, request: 1, atomic_response: 1 },
            requests: Requests::new(attr.ord),
            responses: Responses::new(attr.ird),
            frames: Frames::default(),
            receiver: Receiver::new(&attr, receives),
            input: Input::new(),
            failing: None,
            events: VecDeque::new(),
            counters: WireCounters::default(),
            attr,
        }
    }

    /// How it was made.
    pub const fn init(&self) -> &QpInit {
        &self.attr.init
    }

    /// State in the terms of verbs. There are no packet sequence numbers.
    pub fn status(&self) -> QpStatus {
        let state = match self.state {
            State::Closing => QpState::Sqd,
            state if state.takes_work() => QpState::Rts,
            _ => QpState::Err,
        };
        QpStatus {
            state,
            sq_outstanding: self.sends.outstanding(),
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            dest_qpn: None,
        }
    }

    /// Whether the range may hold bytes of the peer that no completion has reported.
    pub fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.receiver.has_unreported(rkey, addr, len)
    }

    /// Posts one send.
    pub fn post_send(&mut self, wr: &SendWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        let needs = match wr.op {
            SendOp::SendImm(_) => {
                (Extensions::SEND_IMMEDIATE, "SEND with immediate toward this peer over TCP: use SEND")
            }
            SendOp::WriteImm(..) => {
                (Extensions::IMMEDIATE, "WRITE with immediate toward a peer without RFC 7306: use WRITE and SEND")
            }
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => {
                (Extensions::ATOMICS, "atomics toward a peer without RFC 7306")
            }
            _ => (Extensions::empty(), ""),
        };
        if !self.attr.extensions.contains(needs.0) {
            return Err(VerbsError::Unsupported { device: dev.attr.name.clone(), what: needs.1 });
        }
        if self.state == State::Closing {
            let what = "posting sends: the connection is being closed";
            return Err(VerbsError::WrongState { state: QpState::Sqd, what });
        }
        self.sends.post(wr)?;
        dev.counters.on_posted(&wr.op);
        if !self.state.takes_work() {
            self.flush_sends(dev);
        }
        Ok(())
    }

    /// Posts one receive to the own queue.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>, dev: &mut Device) -> Result<(), VerbsError> {
        self.receiver.post(wr)?;
        dev.counters.verbs_recv += 1;
        if !self.state.receives() && !self.state.takes_work() {
            self.receiver.flush(Status::WrFlushErr, dev);
        }
        Ok(())
    }

    fn finish(&mut self, number: u64, dev: &mut Device) {
        if let Some(wqe) = self.sends.get_mut(number) {
            wqe.is_done = true;
        }
        self.complete_done(dev);
    }

    fn complete_done(&mut self, dev: &mut Device) {
        while let Some(wqe) = self.sends.pop_done() {
            self.complete(wqe, Status::Success, dev);
        }
    }

    fn complete(&mut self, wqe: SendWqe, status: Status, dev: &mut Device) {
        if status != Status::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            let byte_len = match wqe.opcode() {
                WcOpcode::Send | WcOpcode::Write => 0,
                _ => wqe.len,
            };
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.opcode(),
                byte_len,
                qpn: self.attr.qpn,
                imm: None,
                src_qpn: None,
                placed: Placed::Untold,
            };
            dev.complete(self.attr.init.send_cq, completion, false);
        }
        self.sends.recycle(wqe);
    }

    fn flush_sends(&mut self, dev: &mut Device) {
        let failing = self.failing.take();
        loop {
            let number = self.sends.first();
            let Some(wqe) = self.sends.pop() else { break };
            let status = match failing {
                Some((failed, status)) if failed == number => status,
                _ => Status::WrFlushErr,
            };
            self.complete(wqe, status, dev);
        }
        (self.next, self.cursor) = (self.sends.first(), Cursor::Start);
    }

    /// Closes the stream in order: what was posted is executed, then [`Self::is_shutdown_due`].
    pub fn close(&mut self, dev: &mut Device) {
        match self.state {
            State::Open => self.state = State::Closing,
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
        self.end(Ending::Broken, None, Status::WrFlushErr, dev);
        self.frames.clear();
        self.state = State::Over;
    }

    /// Ends the stream: flushes all work, and lets the Terminate message be the last frame.
    fn end(&mut self, ending: Ending, terminate: Option<Terminate>, receive: Status, dev: &mut Device) {
        if !(self.state.takes_work() || self.state.receives()) {
            return;
        }
        let can_send = self.frames.abandon(&self.sends, &dev.mrs);
        if let (Some(terminate), true) = (terminate, can_send) {
            self.counters.tcp_terminates_sent += 1;
            self.frames.push_terminate(&terminate);
        }
        let is_abort = matches!(ending, Ending::Aborted | Ending::Closed);
        self.state = if self.is_connected { State::Ending } else { State::Over };
        self.wait = Wait::LINGER;
        self.requests.clear();
        self.responses.clear();
        self.flush_sends(dev);
        self.receiver.flush(receive, dev);
        if !is_abort {
            dev.raise(AsyncEvent::QpFatal(self.attr.qpn));
        }
        if self.attr.init.srq.is_some() {
            dev.raise(AsyncEvent::LastWqeReached(self.attr.qpn));
        }
        self.events.push_back(QpEvent::Ended(ending));
        self.close_if_done(dev);
    }

    /// Goes on with closing when nothing is left to be sent.
    fn close_if_done(&mut self, dev: &mut Device) {
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

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// Takes what was counted since the last call.
    pub fn take_counters(&mut self) -> WireCounters {
        std::mem::take(&mut self.counters)
    }

    /// Gives back what is taken from shared objects, before it is dropped. No completions come.
    pub fn release(&mut self, dev: &mut Device) {
        self.receiver.release(dev);
        self.frames.clear();
        self.state = State::Over;
    }

    /// The work request of which the peer's Terminate message complains, if it is still there, and how it ends.
    fn blamed(&self, terminate: &Terminate) -> Option<(u64, Status)> {
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
        found.map(|(number, _)| (number, status_of(terminate.code, &offender.header)))
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
