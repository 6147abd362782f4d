//! What a whole segment leads to: requests of the peer are executed, its answers and its Terminate are taken.

use rnic::{AtomicOp, Device, Domain, KeyFault};
use verbs::{Access, Rkey, Status};

use super::events::Ending;
use super::receive::{Fault, Segment};
use super::requests::Answered;
use super::responses::Response;
use super::{Failing, Qp};
use crate::rdmap::{AtomicCode, AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest};
use crate::terminate::{Cause, Terminate};

/// Masks with which FetchAdd adds 64 bits: a set bit is the last of a field, beyond which nothing is carried.
const ADD_WHOLE: [u64; 2] = [0, 1 << 63];

impl Qp {
    /// Takes a segment whose payload is in its place; `control` is the payload where it is RDMAP's own.
    pub(super) fn execute(&mut self, segment: &Segment, control: &[u8], dev: &mut Device) -> Result<(), Fault> {
        match segment.opcode {
            Opcode::Write => self.receiver.on_write(segment, dev),
            Opcode::ReadResponse => match self.requests.on_data(segment.payload, segment.header.is_last()) {
                Some(Answered::Request(number)) => self.finish(number, dev),
                Some(Answered::Before(number)) => self.on_confirmed(number, dev),
                None => {}
            },
            Opcode::Send | Opcode::SendSolicited | Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                self.receiver.on_send(segment, dev);
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                let immediate = Immediate::parse(whole(control)?);
                self.receiver.on_immediate(immediate, segment.opcode.is_solicited(), dev)?;
            }
            Opcode::ReadRequest => self.on_read_request(ReadRequest::parse(whole(control)?), dev)?,
            Opcode::AtomicRequest => self.on_atomic_request(&AtomicRequest::parse(whole(control)?), dev)?,
            Opcode::AtomicResponse => self.on_atomic_response(&AtomicResponse::parse(whole(control)?), dev)?,
            Opcode::Terminate => self.on_terminate(control, dev)?,
        }
        Ok(())
    }

    fn on_read_request(&mut self, request: ReadRequest, dev: &mut Device) -> Result<(), Cause> {
        // A READ of no bytes touches no memory, so neither its key nor the right is looked at: it may be the first message
        // of a peer that has no right to read (RFC 6581 section 5.1).
        if request.len > 0 {
            if !self.receiver.allows(Access::REMOTE_READ) {
                return Err(Cause::RdmapRights);
            }
            if request.len > self.receiver.max_msg_bytes() {
                return Err(Cause::RdmapBounds);
            }
            let key = Rkey(request.source_stag);
            check_remote(
                key,
                request.source_offset,
                request.len.into(),
                Access::REMOTE_READ,
                dev.mrs.of(self.attr.init.pd),
            )?;
        }
        self.receiver.count_request();
        self.responses.push(Response::Data { request, done: 0 });
        let is_confirmation = self.attr.confirms && request.len == 0;
        dev.counters.served_read += u64::from(!is_confirmation);
        Ok(())
    }

    fn on_atomic_request(&mut self, request: &AtomicRequest, dev: &mut Device) -> Result<(), Cause> {
        if !self.receiver.allows(Access::REMOTE_ATOMIC) {
            return Err(Cause::RdmapRights);
        }
        let op = match request.code {
            AtomicCode::FetchAdd if ADD_WHOLE.contains(&request.add_or_swap_mask) => {
                AtomicOp::FetchAdd { add: request.add_or_swap }
            }
            AtomicCode::CompareSwap if request.add_or_swap_mask == u64::MAX && request.compare_mask == u64::MAX => {
                AtomicOp::CompareSwap { compare: request.compare, swap: request.add_or_swap }
            }
            // Masked forms are not executed, and nothing is done by halves.
            AtomicCode::FetchAdd | AtomicCode::CompareSwap => return Err(Cause::RdmapOperation),
            AtomicCode::Reserved(_) => return Err(Cause::RdmapOpcode),
        };
        let key = Rkey(request.stag);
        check_remote(key, request.offset, 8, Access::REMOTE_ATOMIC, dev.mrs.of(self.attr.init.pd))?;
        if !request.offset.is_multiple_of(8) {
            return Err(Cause::RdmapOperation);
        }
        let original =
            dev.mrs.of(self.attr.init.pd).atomic_remote(key, request.offset, op).map_err(|_| Cause::RdmapOperation)?;
        self.receiver.count_request();
        self.responses.push(Response::Original(AtomicResponse { id: request.id, original }));
        dev.counters.served_atomic += 1;
        Ok(())
    }

    fn on_atomic_response(&mut self, response: &AtomicResponse, dev: &mut Device) -> Result<(), Cause> {
        let number = self.requests.take_original(response)?;
        self.receiver.count_atomic_response();
        let sges = self.sends.get(number).map_or(&[][..], |wqe| wqe.sges());
        if dev.mrs.of(self.attr.init.pd).scatter(sges, 0, &response.original.to_ne_bytes()).is_err() {
            self.failing = Some(Failing { number, status: Status::LocProtErr, is_executed_before: false });
            return Err(Cause::DdpLocal);
        }
        self.finish(number, dev);
        Ok(())
    }

    fn on_terminate(&mut self, control: &[u8], dev: &mut Device) -> Result<(), Cause> {
        let terminate = Terminate::parse(control).map_err(|_| Cause::RdmapStream)?;
        self.counters.tcp_terminates_received += 1;
        self.failing = self.blamed(&terminate).or_else(|| self.oldest(Status::RemOpErr));
        self.end(Ending::TerminatedByPeer(terminate), None, Status::WrFlushErr, dev);
        Ok(())
    }
}

/// The bytes of a control payload, whose length was judged.
fn whole<const N: usize>(control: &[u8]) -> Result<&[u8; N], Cause> {
    control.first_chunk().ok_or(Cause::RdmapStream)
}

/// Checks memory that a request of the peer names.
fn check_remote(key: Rkey, addr: u64, len: u64, need: Access, mrs: Domain<'_>) -> Result<(), Cause> {
    if addr.checked_add(len).is_none() {
        return Err(Cause::RdmapWrap);
    }
    mrs.check_remote(key, addr, len, need).map_err(|fault| match fault {
        KeyFault::Key => Cause::RdmapInvalidStag,
        KeyFault::Bounds => Cause::RdmapBounds,
        KeyFault::Rights => Cause::RdmapRights,
        KeyFault::Unmapped => Cause::RdmapInvalidStag,
    })
}
