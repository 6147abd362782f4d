//! A queue pair over a TCP connection.
//!
//! Owns what happens to all parts of it together: work requests in, completions out, and how it ends. Bytes come and go
//! through [`Qp::want`], [`Qp::received`], [`Qp::poll_transmit`] and [`Qp::sent`].

mod confirmation;
mod ending;
mod events;
mod execute;
mod frames;
mod handshake;
mod input;
mod judge;
mod receive;
mod requests;
mod responses;
mod schedule;
mod send_queue;
mod state;

use std::collections::VecDeque;

use rnic::{Device, ReceiveQueue, SendLimits, wants_data};
use verbs::{
    Completion, Placed, Psn, QpInit, QpState, QpStatus, RecvWr, Rkey, SendFlags, SendOp, SendWr, Status, VerbsError,
    WcOpcode,
};

use crate::counters::WireCounters;
use confirmation::Confirmation;
pub use events::{Ending, Extensions, QpAttr, QpEvent};
use frames::Frames;
use input::Input;
use receive::Receiver;
use requests::Requests;
use responses::Responses;
use schedule::Cursor;
use send_queue::{SendQueue, SendWqe};
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

/// The work request that a fault is about, and how it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failing {
    number: u64,
    status: Status,
    /// The peer has executed all before it.
    is_executed_before: bool,
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
    confirmation: Confirmation,
    failing: Option<Failing>,
    events: VecDeque<QpEvent>,
    counters: WireCounters,
}

impl Qp {
    /// A queue pair that may be posted to. `receives` are those that were posted to its own queue already.
    pub fn new(attr: QpAttr, receives: ReceiveQueue) -> Self {
        let limits = SendLimits::new(&attr.init, attr.max_msg_bytes);
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
            responses: Responses::new(attr.ird, attr.confirms),
            frames: Frames::default(),
            receiver: Receiver::new(&attr, receives),
            input: Input::new(),
            confirmation: Confirmation::default(),
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
            qp_type: self.attr.init.qp_type,
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

    /// The answer of a READ or an atomic is in its place.
    fn finish(&mut self, number: u64, dev: &mut Device) {
        if let Some(wqe) = self.sends.get_mut(number) {
            wqe.is_done = true;
        }
        if self.attr.confirms {
            // The peer executes in order.
            self.mark_executed(number);
        }
        self.complete_done(dev);
    }

    /// Sends before that work request are done: the peer executed them. READs and atomics among them wait for their own
    /// answers.
    fn mark_executed(&mut self, before: u64) {
        for number in self.sends.first()..before {
            if let Some(wqe) = self.sends.get_mut(number).filter(|wqe| !wants_data(&wqe.op)) {
                wqe.is_done = true;
            }
        }
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

    /// A READ of no bytes was answered: the peer executed all work requests before that one.
    fn on_confirmed(&mut self, before: u64, dev: &mut Device) {
        self.confirmation.on_answered();
        self.mark_executed(before);
        self.complete_done(dev);
    }

    /// The oldest work request as the one that a broken connection is about.
    fn oldest(&self, status: Status) -> Option<Failing> {
        let number = self.sends.first();
        let is_known = self.attr.confirms && !self.sends.is_empty();
        is_known.then_some(Failing { number, status, is_executed_before: false })
    }

    fn flush_sends(&mut self, dev: &mut Device) {
        let failing = self.failing.take();
        loop {
            let number = self.sends.first();
            let Some(wqe) = self.sends.pop() else { break };
            let status = match failing {
                Some(failed) if failed.number == number => failed.status,
                Some(failed) if number < failed.number && failed.is_executed_before => Status::Success,
                _ => Status::WrFlushErr,
            };
            self.complete(wqe, status, dev);
        }
        (self.next, self.cursor) = (self.sends.first(), Cursor::Start);
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// Takes what was counted since the last call.
    pub fn take_counters(&mut self) -> WireCounters {
        std::mem::take(&mut self.counters)
    }
}
