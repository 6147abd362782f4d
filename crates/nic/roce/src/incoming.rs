//! The message that arrives at a connected QP: its progress packet by packet, where its bytes go, and the receive that
//! it takes.
//!
//! Owns the rules that the reliable and the unreliable connected service share (IBTA 9.7.4, 9.8.2.2): the place of a
//! packet in its message, lengths, the right and the key of a WRITE, the room of a receive. Nothing of a packet is
//! written before all checks of the packet have passed. Which packet is next, and what becomes of one that breaks a rule, is
//! decided by the service.

use rnic::{KeyFault, RecvWqe, Unreported};
use verbs::{Access, QpInit, QpState, Qpn, RecvWr, Rkey, RtrAttr, Status, VerbsError, WcOpcode};

use crate::device::Device;
use crate::receives::{Received, Receives};
use crate::wire::{Request, Reth, has_right_length, wire_len};

/// Why a packet is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It breaks a rule: its place in the message, its length, what the QP allows.
    Invalid,
    /// The key of a WRITE does not allow it.
    Key,
    /// No receive is posted.
    NoReceive,
    /// A SEND is longer than its receive.
    TooLong,
    /// The receive names memory that it may not fill.
    BadReceive,
}

/// A message of several packets in progress. A SEND's receive is [`Incoming::taken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    None,
    Send { received: u64 },
    Write { addr: u64, rkey: Rkey, total: u32, remaining: u32 },
}

/// Messages that arrive at one QP, one after the other.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) receives: Receives,
    /// What the peer may do.
    pub(crate) access: Access,
    /// Bytes of each packet of a message but the last.
    pub(crate) mtu: usize,
    pub(crate) max_msg_bytes: u32,
    message: Message,
    /// The receive of the message in progress, or of one that was dropped ([`Self::drop_message`]).
    taken: Option<RecvWqe>,
    unreported: Unreported,
    /// Whether a request came since the QP became ready to receive.
    established: bool,
}

impl Incoming {
    pub(crate) fn new(qpn: Qpn, init: &QpInit, max_msg_bytes: u32) -> Self {
        Self {
            receives: Receives::new(qpn, init),
            access: Access::empty(),
            mtu: 256,
            max_msg_bytes,
            message: Message::None,
            taken: None,
            unreported: Unreported::default(),
            established: false,
        }
    }

    /// Reset to Init.
    pub(crate) const fn allow(&mut self, access: Access) {
        self.access = access;
    }

    /// Init to ready-to-receive.
    pub(crate) const fn start(&mut self, attr: &RtrAttr) {
        self.mtu = attr.mtu.bytes();
    }

    /// Whether this is the first request since the QP became ready to receive.
    pub(crate) const fn note_first_packet(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Whether the range may hold bytes that were placed and that no completion has reported.
    pub(crate) fn has_unreported(&self, rkey: Rkey, addr: u64, len: u64) -> bool {
        self.unreported.touches(rkey, addr, len)
    }

    /// Posts one receive to the QP's own queue. In the error state it is flushed.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>, state: QpState, dev: &mut Device) -> Result<(), VerbsError> {
        self.receives.post(wr, state, dev)?;
        if state == QpState::Err {
            self.flush(dev);
        }
        Ok(())
    }

    /// Whether a message was begun and has not ended.
    #[inline]
    pub(crate) fn is_within_message(&self) -> bool {
        self.message != Message::None
    }

    /// Executes a packet of a SEND or a WRITE, the next one of its message. At a fault the message has not progressed, but
    /// it may have taken its receive.
    #[inline]
    pub(crate) fn execute(&mut self, request: &Request<'_>, solicited: bool, dev: &mut Device) -> Result<(), Fault> {
        match *request {
            Request::Send { start, end, imm, invalidate: None, payload } => {
                self.check_length(start, end, payload)?;
                self.receive(start, payload, dev)?;
                if end {
                    self.finish_send(imm, solicited, dev);
                }
                Ok(())
            }
            Request::Write { reth, end, imm, payload } => {
                self.check_length(reth.is_some(), end, payload)?;
                self.write(reth, end, imm, payload, solicited, dev)
            }
            // No key of this device may be invalidated by a peer: there are no memory windows and no fast
            // registrations.
            _ => Err(Fault::Invalid),
        }
    }

    #[inline]
    fn check_length(&self, start: bool, end: bool, payload: &[u8]) -> Result<(), Fault> {
        if has_right_length(start, end, payload.len(), self.mtu) { Ok(()) } else { Err(Fault::Invalid) }
    }

    #[inline]
    fn receive(&mut self, start: bool, payload: &[u8], dev: &mut Device) -> Result<(), Fault> {
        let received = match self.message {
            Message::None if start => 0,
            Message::Send { received } if !start => received,
            _ => return Err(Fault::Invalid),
        };
        if start {
            self.taken = Some(self.take_receive(dev)?);
        }
        let wqe = self.taken.as_ref().ok_or(Fault::NoReceive)?;
        let end = received + payload.len() as u64;
        if end > wqe.capacity_bytes || end > self.max_msg_bytes.into() {
            return Err(Fault::TooLong);
        }
        dev.mrs.of(self.receives.pd).scatter(&wqe.sges, received, payload).map_err(|_: KeyFault| Fault::BadReceive)?;
        self.message = Message::Send { received: end };
        Ok(())
    }

    #[inline]
    fn finish_send(&mut self, imm: Option<u32>, solicited: bool, dev: &mut Device) {
        let message = std::mem::replace(&mut self.message, Message::None);
        if let (Message::Send { received }, Some(wqe)) = (message, self.taken.take()) {
            dev.base.counters.served_send += 1;
            let byte_len = u32::try_from(received).unwrap_or(u32::MAX);
            self.complete(wqe, WcOpcode::Recv, byte_len, imm, solicited, dev);
        }
    }

    #[inline]
    fn write(
        &mut self,
        reth: Option<Reth>,
        end: bool,
        imm: Option<u32>,
        payload: &[u8],
        solicited: bool,
        dev: &mut Device,
    ) -> Result<(), Fault> {
        if !self.access.contains(Access::REMOTE_WRITE) {
            return Err(Fault::Invalid);
        }
        let (addr, rkey, total, remaining) = match (reth, self.message) {
            (Some(reth), Message::None) if reth.dma_len <= self.max_msg_bytes => {
                (reth.addr, reth.rkey, reth.dma_len, reth.dma_len)
            }
            (None, Message::Write { addr, rkey, total, remaining }) => (addr, rkey, total, remaining),
            _ => return Err(Fault::Invalid),
        };
        let len = wire_len(payload.len());
        if len > remaining || (end && len != remaining) {
            return Err(Fault::Invalid);
        }
        // A zero-length WRITE touches no memory, so its key is not checked (IBTA C9-88). The key is checked again with
        // each packet, for all bytes that are still to come.
        if remaining > 0 {
            let checked = dev.mrs.of(self.receives.pd).check_remote(rkey, addr, remaining.into(), Access::REMOTE_WRITE);
            checked.map_err(|_: KeyFault| Fault::Key)?;
        }
        let receive = match imm {
            Some(_) => Some(self.take_receive(dev)?),
            None => None,
        };
        if len > 0 && dev.mrs.of(self.receives.pd).write_remote(rkey, addr, payload).is_err() {
            self.taken = receive.or_else(|| self.taken.take());
            return Err(Fault::Key);
        }
        self.unreported.add(rkey, addr, len);
        self.message = if end {
            Message::None
        } else {
            Message::Write { addr: addr.wrapping_add(len.into()), rkey, total, remaining: remaining - len }
        };
        if let Some(wqe) = receive {
            dev.base.counters.served_write_imm += 1;
            self.complete(wqe, WcOpcode::RecvWriteImm, total, imm, solicited, dev);
        } else if end {
            dev.base.counters.served_write += 1;
        }
        Ok(())
    }

    /// A receive for the message: the one that a dropped message took, or else the oldest.
    #[inline]
    fn take_receive(&mut self, dev: &mut Device) -> Result<RecvWqe, Fault> {
        self.taken.take().or_else(|| self.receives.take(dev)).ok_or(Fault::NoReceive)
    }

    /// Reports a message that took the receive.
    #[inline]
    fn complete(
        &mut self,
        wqe: RecvWqe,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<u32>,
        solicited: bool,
        dev: &mut Device,
    ) {
        // All WRITEs before it were placed before it.
        let placed = self.unreported.take();
        let received = Received { opcode, byte_len, imm, src_qpn: None, placed, solicited };
        self.receives.complete(wqe, Status::Success, received, dev);
    }

    /// The message in progress will not be finished, and its receive serves the next one. Says whether there was one.
    pub(crate) fn drop_message(&mut self) -> bool {
        std::mem::replace(&mut self.message, Message::None) != Message::None
    }

    /// The message in progress will not be finished. A receive that was taken ends with that status.
    pub(crate) fn fail_message(&mut self, status: Status, dev: &mut Device) {
        self.message = Message::None;
        if let Some(wqe) = self.taken.take() {
            self.fail_receive(wqe, status, dev);
        }
    }

    fn fail_receive(&mut self, wqe: RecvWqe, status: Status, dev: &mut Device) {
        let received = Received::nothing(self.unreported.take());
        self.receives.complete(wqe, status, received, dev);
    }

    /// Into error: the receive that was taken and all posted ones complete as flushed. Receives of an SRQ stay there.
    pub(crate) fn flush(&mut self, dev: &mut Device) {
        self.fail_message(Status::WrFlushErr, dev);
        while let Some(wqe) = self.receives.take_own() {
            self.fail_receive(wqe, Status::WrFlushErr, dev);
        }
    }

    /// Forgets all work without completions.
    pub(crate) fn reset(&mut self, dev: &mut Device) {
        self.message = Message::None;
        if let Some(wqe) = self.taken.take() {
            self.receives.recycle(wqe, dev);
        }
        self.receives.clear();
        self.unreported.take();
        self.established = false;
    }
}
