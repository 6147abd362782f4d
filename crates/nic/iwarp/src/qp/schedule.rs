//! What leaves next: requests of this end, answers to the peer's, and the frames of which they are made.
//!
//! Messages take turns, and none is interleaved with another, because receivers need not take that (RFC 5041 section
//! 5.2 orders segments of a stream, and siw places by it).

use rnic::{Device, wants_data};
use verbs::{RemoteAddr, SendFlags, SendOp, Status};

use super::events::Ending;
use super::frames::{Body, LocalFault, Plan, Sent};
use super::responses::{Response, source};
use super::state::State;
use super::{Failing, Qp};
use crate::ddp::{Header, Tagged, Untagged};
use crate::limits::SEGMENT_PAYLOAD_MAX;
use crate::rdmap::{
    AtomicCode, AtomicRequest, Immediate, ImmediateOf, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND,
    ReadRequest,
};
use crate::terminate::{Cause, Terminate};
use crate::transfer::Gather;

/// How far the work request is that is being turned into frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Cursor {
    /// Nothing of it is in frames.
    #[default]
    Start,
    /// Its payload is, up to that byte.
    Payload(u32),
    /// All but the Immediate Data behind it.
    Immediate,
}

/// Payload bytes of the segment at an offset of a message: equal pieces, so that none is a tiny rest.
fn segment_bytes(len: u32, offset: u32) -> u32 {
    let pieces = len.div_ceil(SEGMENT_PAYLOAD_MAX).max(1);
    let piece = len.div_ceil(pieces).next_multiple_of(4).min(SEGMENT_PAYLOAD_MAX);
    piece.min(len - offset)
}

impl Qp {
    /// Says what is to be written now, from the first byte that was not reported by [`Self::sent`]. `out` is filled
    /// anew. Nothing: there is nothing to send.
    pub fn poll_transmit(&mut self, dev: &mut Device, out: &mut Gather) {
        // A fault ends the stream, after which all that is left can be offered: so the second round has none.
        for _ in 0..2 {
            match self.fill(dev, out) {
                Ok(()) => break,
                Err(fault) => self.on_local_fault(fault, dev),
            }
        }
        self.close_if_done(dev);
    }

    fn fill(&mut self, dev: &mut Device, out: &mut Gather) -> Result<(), LocalFault> {
        out.clear();
        if !self.is_connected {
            return Ok(());
        }
        let mut index = 0;
        while out.has_room() {
            if index == self.frames.len() && !(self.frames.has_room() && self.build_next(dev)?) {
                break;
            }
            self.frames.offer(index, &self.sends, dev.mrs.of(self.attr.init.pd), out)?;
            index += 1;
        }
        Ok(())
    }

    /// TCP took so many of the bytes that [`Self::poll_transmit`] named.
    pub fn sent(&mut self, dev: &mut Device, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (sends, counters) = (&mut self.sends, &mut self.counters);
        let confirms = self.attr.confirms;
        self.frames.sent(bytes, |sent| {
            let Sent::Frame { ends } = sent else { return };
            counters.tcp_frames_sent += 1;
            if let Some(wqe) = ends.and_then(|number| sends.get_mut(number)) {
                wqe.is_done = !confirms;
            }
        });
        self.complete_done(dev);
        self.close_if_done(dev);
    }

    fn on_local_fault(&mut self, fault: LocalFault, dev: &mut Device) {
        let cause = match fault.request {
            Some((number, status)) => {
                self.failing = Some(Failing { number, status, is_executed_before: false });
                Cause::RdmapLocal
            }
            // Memory that the peer reads is gone: its key names nothing any more.
            None => Cause::RdmapInvalidStag,
        };
        self.end(Ending::Local, Some(Terminate::new(cause, None)), Status::WrFlushErr, dev);
    }

    /// Builds the next frame; false if there is none.
    fn build_next(&mut self, dev: &Device) -> Result<bool, LocalFault> {
        if !self.state.sends() || !self.may_send {
            return Ok(false);
        }
        if self.responses.is_under_way() {
            return self.build_response(dev);
        }
        if self.cursor != Cursor::Start {
            return self.build_request(dev);
        }
        if self.confirmation.is_due() {
            return self.build_confirmation(dev);
        }
        self.is_response_next = !self.is_response_next;
        if self.is_response_next && self.build_response(dev)? {
            return Ok(true);
        }
        Ok(self.build_request(dev)? || self.build_response(dev)?)
    }

    fn push(&mut self, plan: &Plan<'_>, dev: &Device) -> Result<bool, LocalFault> {
        self.frames.push(plan, &self.sends, dev.mrs.of(self.attr.init.pd))?;
        Ok(true)
    }

    fn build_response(&mut self, dev: &Device) -> Result<bool, LocalFault> {
        match self.responses.front() {
            None => Ok(false),
            Some(Response::Original(response)) => {
                let header = Untagged {
                    is_last: true,
                    ulp: Opcode::AtomicResponse.control(),
                    ulp_word: 0,
                    queue: QUEUE_ATOMIC_RESPONSE,
                    msn: next_msn(&mut self.next_msn.atomic_response),
                    offset: 0,
                };
                self.responses.advance(0, true);
                let control = response.to_bytes();
                let header = Header::Untagged(header);
                self.push(&Plan { header, control: &control, body: Body::None, ends: None }, dev)
            }
            Some(Response::Data { request, done }) => {
                let bytes = segment_bytes(request.len, done);
                let is_last = done + bytes == request.len;
                let (rkey, addr) = source(&request);
                let header = Header::Tagged(Tagged {
                    is_last,
                    ulp: Opcode::ReadResponse.control(),
                    stag: request.sink_stag,
                    offset: request.sink_offset.wrapping_add(done.into()),
                });
                let body = match bytes {
                    0 => Body::None,
                    len => Body::Remote { rkey, addr: addr + u64::from(done), len },
                };
                self.responses.advance(bytes, is_last);
                self.push(&Plan { header, control: &[], body, ends: None }, dev)
            }
        }
    }

    fn build_request(&mut self, dev: &Device) -> Result<bool, LocalFault> {
        let number = self.next;
        let Some(wqe) = self.sends.get(number) else { return Ok(false) };
        let (op, len) = (wqe.op, wqe.len);
        let is_solicited = wqe.flags.contains(SendFlags::SOLICITED);
        match (op, self.cursor) {
            (_, Cursor::Start) if wqe.flags.contains(SendFlags::FENCE) && !self.requests.lets_fence_pass() => Ok(false),
            (_, Cursor::Start) if wants_data(&op) => {
                let failed = |status| LocalFault { request: Some((number, status)) };
                if self.requests.limit() == 0 {
                    // It would wait for ever: the peer executes none.
                    return Err(failed(Status::LocQpOpErr));
                }
                if !self.requests.has_room() {
                    return Ok(false);
                }
                wqe.check_writable(dev.mrs.of(self.attr.init.pd)).map_err(|_| failed(Status::LocProtErr))?;
                let sink = wqe.sges().first().map_or((0, 0), |sge| (sge.lkey.0, sge.addr));
                self.build_data_request(number, &op, len, sink, dev)
            }
            (SendOp::SendImm(value), Cursor::Start) => {
                self.cursor = Cursor::Payload(0);
                self.build_immediate(Immediate::new(value, ImmediateOf::Send), false, None, dev)
            }
            (SendOp::WriteImm(_, value), Cursor::Immediate) => {
                self.on_whole(number);
                self.cursor = Cursor::Start;
                self.build_immediate(Immediate::new(value, ImmediateOf::Write), is_solicited, Some(number), dev)
            }
            (_, Cursor::Payload(offset)) => self.build_payload(number, &op, len, offset, is_solicited, dev),
            (_, _) => self.build_payload(number, &op, len, 0, is_solicited, dev),
        }
    }

    fn build_payload(
        &mut self,
        number: u64,
        op: &SendOp,
        len: u32,
        offset: u32,
        is_solicited: bool,
        dev: &Device,
    ) -> Result<bool, LocalFault> {
        let bytes = segment_bytes(len, offset);
        let is_last = offset + bytes == len;
        let header = match op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => Header::Tagged(Tagged {
                is_last,
                ulp: Opcode::Write.control(),
                stag: remote.rkey.0,
                offset: remote.addr.wrapping_add(offset.into()),
            }),
            _ => {
                let opcode = if is_solicited { Opcode::SendSolicited } else { Opcode::Send };
                let msn = self.next_msn.send;
                if is_last {
                    next_msn(&mut self.next_msn.send);
                    if let Some(wqe) = self.sends.get_mut(number) {
                        wqe.msn = msn;
                    }
                }
                let ulp = opcode.control();
                Header::Untagged(Untagged { is_last, ulp, ulp_word: 0, queue: QUEUE_SEND, msn, offset })
            }
        };
        let needs_immediate = matches!(op, SendOp::WriteImm(..));
        self.cursor = match (is_last, needs_immediate) {
            (false, _) => Cursor::Payload(offset + bytes),
            (true, true) => Cursor::Immediate,
            (true, false) => {
                self.on_whole(number);
                Cursor::Start
            }
        };
        let body = if bytes == 0 { Body::None } else { Body::Request { number, offset, len: bytes } };
        let ends = (is_last && !needs_immediate).then_some(number);
        self.push(&Plan { header, control: &[], body, ends }, dev)
    }

    fn build_immediate(
        &mut self,
        immediate: Immediate,
        is_solicited: bool,
        ends: Option<u64>,
        dev: &Device,
    ) -> Result<bool, LocalFault> {
        let opcode = if is_solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let msn = next_msn(&mut self.next_msn.send);
        let header = Untagged { is_last: true, ulp: opcode.control(), ulp_word: 0, queue: QUEUE_SEND, msn, offset: 0 };
        let header = Header::Untagged(header);
        self.push(&Plan { header, control: &immediate.to_bytes(), body: Body::None, ends }, dev)
    }

    /// All frames of a work request without an answer are built.
    fn on_whole(&mut self, number: u64) {
        self.next += 1;
        let is_signalled = self.sends.get(number).is_some_and(|wqe| wqe.flags.contains(SendFlags::SIGNALED));
        // The end in order waits for all of them.
        let is_awaited = is_signalled || self.state == State::Closing;
        if self.attr.confirms {
            self.confirmation.on_whole(is_awaited, self.attr.init.max_send_wr);
        }
    }

    /// A READ of no bytes: its answer says that the peer executed everything before it.
    fn build_confirmation(&mut self, dev: &Device) -> Result<bool, LocalFault> {
        self.confirmation.on_asked();
        self.requests.push_confirmation(self.next);
        let msn = next_msn(&mut self.next_msn.request);
        let ulp = Opcode::ReadRequest.control();
        let header = Untagged { is_last: true, ulp, ulp_word: 0, queue: QUEUE_REQUEST, msn, offset: 0 };
        let request = ReadRequest { sink_stag: 0, sink_offset: 0, len: 0, source_stag: 0, source_offset: 0 };
        let header = Header::Untagged(header);
        self.push(&Plan { header, control: &request.to_bytes(), body: Body::None, ends: None }, dev)
    }

    fn build_data_request(
        &mut self,
        number: u64,
        op: &SendOp,
        len: u32,
        (sink_stag, sink_offset): (u32, u64),
        dev: &Device,
    ) -> Result<bool, LocalFault> {
        let msn = next_msn(&mut self.next_msn.request);
        if let Some(wqe) = self.sends.get_mut(number) {
            wqe.msn = msn;
        }
        self.next += 1;
        let header = |opcode: Opcode| {
            let ulp = opcode.control();
            Header::Untagged(Untagged { is_last: true, ulp, ulp_word: 0, queue: QUEUE_REQUEST, msn, offset: 0 })
        };
        if let SendOp::Read(remote) = op {
            let (source_stag, source_offset) = (remote.rkey.0, remote.addr);
            let request = ReadRequest { sink_stag, sink_offset, len, source_stag, source_offset };
            self.requests.push_read(number, sink_stag, sink_offset, len);
            let header = header(Opcode::ReadRequest);
            return self.push(&Plan { header, control: &request.to_bytes(), body: Body::None, ends: None }, dev);
        }
        // The sequence number names the request as well as any other.
        self.requests.push_atomic(number, msn);
        let header = header(Opcode::AtomicRequest);
        let control = atomic_request(op, msn).to_bytes();
        self.push(&Plan { header, control: &control, body: Body::None, ends: None }, dev)
    }
}

fn atomic_request(op: &SendOp, id: u32) -> AtomicRequest {
    let nothing = RemoteAddr { addr: 0, rkey: verbs::Rkey(0) };
    let (code, remote, add_or_swap, add_or_swap_mask, compare, compare_mask) = match *op {
        SendOp::CmpSwap { remote, compare, swap } => {
            (AtomicCode::CompareSwap, remote, swap, u64::MAX, compare, u64::MAX)
        }
        SendOp::FetchAdd { remote, add } => (AtomicCode::FetchAdd, remote, add, 0, 0, 0),
        _ => (AtomicCode::FetchAdd, nothing, 0, 0, 0, 0),
    };
    let (stag, offset) = (remote.rkey.0, remote.addr);
    AtomicRequest { code, id, stag, offset, add_or_swap, add_or_swap_mask, compare, compare_mask }
}

/// Takes the number of a queue's next message.
fn next_msn(counter: &mut u32) -> u32 {
    let msn = *counter;
    *counter = counter.wrapping_add(1);
    msn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_equal_and_cover_the_message() {
        for len in [0, 1, 65_503, 65_504, 65_505, 65_536, 131_008, 131_009, 1 << 20, (1 << 31) - 1, 1 << 31] {
            let (mut offset, mut count) = (0, 0);
            loop {
                let bytes = segment_bytes(len, offset);
                assert!(bytes <= SEGMENT_PAYLOAD_MAX && (bytes > 0 || len == 0));
                offset += bytes;
                count += 1;
                if offset == len {
                    break;
                }
            }
            assert_eq!(count, len.div_ceil(SEGMENT_PAYLOAD_MAX).max(1), "{len}");
        }
        assert_eq!((segment_bytes(65_536, 0), segment_bytes(65_536, 32_768)), (32_768, 32_768));
    }
}
