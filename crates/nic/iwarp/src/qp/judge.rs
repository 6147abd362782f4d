//! What segments of a peer may do: the checks of DDP and RDMAP, in the order of the layers.
//!
//! Nothing is placed before all checks of its segment have passed.

use rnic::{Device, KeyFault};
use verbs::{Access, Rkey, Status};

use super::events::Extensions;
use super::receive::{Fault, Message, Receiver, Segment, Target};
use super::requests::Requests;
use super::responses::Responses;
use crate::ddp::{Control, DDP_VERSION, Header, Tagged, Untagged};
use crate::rdmap::{
    AtomicRequest, AtomicResponse, Immediate, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_TERMINATE, RDMAP_VERSION,
    ReadRequest, opcode_number, version_of,
};
use crate::terminate::{Cause, Terminate};

impl Receiver {
    /// Judges a segment by its header and the length of its payload.
    pub(super) fn judge(
        &mut self,
        control: Control,
        header: &Header,
        payload: u32,
        requests: &Requests,
        responses: &Responses,
        dev: &mut Device,
    ) -> Result<Segment, Fault> {
        let opcode = self.opcode(control, header)?;
        let place = match header {
            Header::Tagged(tagged) if opcode == Opcode::Write => self.judge_write(tagged, payload, dev)?,
            Header::Tagged(tagged) => {
                let (number, offset) = requests.judge_data(tagged, payload)?;
                Target::Answer { number, offset }
            }
            Header::Untagged(untagged) => {
                if untagged.msn != self.expected_msn(untagged.queue) {
                    return Err(Cause::UntaggedMsn.into());
                }
                match opcode {
                    Opcode::Send | Opcode::SendSolicited | Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                        self.judge_send(untagged, opcode, payload, dev)?
                    }
                    _ => self.judge_control(untagged, opcode, payload, requests, responses)?,
                }
            }
        };
        Ok(Segment { header: *header, opcode, place, payload })
    }

    /// The opcode, if versions, queue and opcode fit each other and the stream.
    fn opcode(&self, control: Control, header: &Header) -> Result<Opcode, Cause> {
        let (bad_version, queue) = match header {
            Header::Tagged(_) => (Cause::TaggedVersion, None),
            Header::Untagged(untagged) => (Cause::UntaggedVersion, Some(untagged.queue)),
        };
        if control.version != DDP_VERSION {
            return Err(bad_version);
        }
        let has_atomics = self.extensions.contains(Extensions::ATOMICS);
        let last_queue = if has_atomics { QUEUE_ATOMIC_RESPONSE } else { QUEUE_TERMINATE };
        if queue.is_some_and(|queue| queue > last_queue) {
            return Err(Cause::UntaggedQueue);
        }
        if version_of(header.ulp()) != RDMAP_VERSION {
            return Err(Cause::RdmapVersion);
        }
        let opcode = Opcode::from_number(opcode_number(header.ulp())).ok_or(Cause::RdmapOpcode)?;
        let needs = match opcode {
            Opcode::Immediate | Opcode::ImmediateSolicited => Extensions::IMMEDIATE,
            Opcode::AtomicRequest | Opcode::AtomicResponse => Extensions::ATOMICS,
            _ => Extensions::empty(),
        };
        if opcode.queue() != queue || !self.extensions.contains(needs) {
            return Err(Cause::RdmapOpcode);
        }
        Ok(opcode)
    }

    fn expected_msn(&self, queue: u32) -> u32 {
        usize::try_from(queue).ok().and_then(|queue| self.expected.get(queue)).copied().unwrap_or(0)
    }

    fn judge_write(&mut self, tagged: &Tagged, payload: u32, dev: &Device) -> Result<Target, Cause> {
        let (rkey, addr) = (Rkey(tagged.stag), tagged.offset);
        // The key of a Write without bytes is not looked at (RFC 5040 section 5.2.1).
        if payload > 0 {
            if !self.access.contains(Access::REMOTE_WRITE) {
                return Err(Cause::RdmapRights);
            }
            if addr.checked_add(payload.into()).is_none() {
                return Err(Cause::TaggedWrap);
            }
            dev.mrs.of(self.pd).check_remote(rkey, addr, payload.into(), Access::REMOTE_WRITE).map_err(|fault| {
                match fault {
                    KeyFault::Key | KeyFault::Unmapped => Cause::TaggedInvalidStag,
                    KeyFault::Bounds => Cause::TaggedBounds,
                    // DDP has no number for it, RDMAP has.
                    KeyFault::Rights => Cause::RdmapRights,
                }
            })?;
            // Before the first byte is placed: a range that is too large does no harm.
            self.unreported.add(rkey, addr, payload);
        }
        Ok(Target::Memory { rkey, addr })
    }

    fn judge_send(
        &mut self,
        untagged: &Untagged,
        opcode: Opcode,
        payload: u32,
        dev: &mut Device,
    ) -> Result<Target, Fault> {
        let received = match &self.message {
            Some(message) if message.opcode != opcode => return Err(Cause::RdmapOpcode.into()),
            Some(message) => message.received,
            None => 0,
        };
        if u64::from(untagged.offset) != received {
            return Err(Cause::UntaggedOffset.into());
        }
        // No key of this device may be invalidated by a peer: there are no memory windows and no fast registrations.
        if matches!(opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate) {
            return Err(Cause::RdmapNotInvalidatable.into());
        }
        if self.message.is_none() {
            let wqe = self.take_receive(dev).ok_or(Cause::UntaggedNoBuffer)?;
            self.message = Some(Message { wqe, received: 0, opcode });
        }
        let capacity = self.message.as_ref().map_or(0, |message| message.wqe.capacity_bytes);
        let end = received + u64::from(payload);
        if end > capacity || end > self.max_msg_bytes.into() {
            return Err(Fault { cause: Cause::UntaggedTooLong, receive: Status::LocLenErr });
        }
        Ok(Target::Receive { offset: received })
    }

    fn judge_control(
        &self,
        untagged: &Untagged,
        opcode: Opcode,
        payload: u32,
        requests: &Requests,
        responses: &Responses,
    ) -> Result<Target, Cause> {
        if untagged.offset != 0 {
            return Err(Cause::UntaggedOffset);
        }
        let payload = payload as usize;
        let (shortest, longest) = match opcode {
            Opcode::ReadRequest => (ReadRequest::BYTES, ReadRequest::BYTES),
            Opcode::AtomicRequest => (AtomicRequest::BYTES, AtomicRequest::BYTES),
            Opcode::AtomicResponse => (AtomicResponse::BYTES, AtomicResponse::BYTES),
            Opcode::Terminate => (4, Terminate::BYTES_MAX),
            _ => (Immediate::BYTES, Immediate::BYTES),
        };
        if payload > longest {
            return Err(Cause::UntaggedTooLong);
        }
        // RDMAP's own messages are one segment each.
        if payload < shortest || !untagged.is_last {
            return Err(Cause::RdmapStream);
        }
        match opcode {
            Opcode::Immediate | Opcode::ImmediateSolicited if self.message.is_some() || self.immediate.is_some() => {
                Err(Cause::RdmapOpcode)
            }
            Opcode::ReadRequest | Opcode::AtomicRequest if !responses.has_room() => Err(Cause::UntaggedNoBuffer),
            Opcode::AtomicResponse if !requests.awaits_original() => Err(Cause::RdmapOpcode),
            _ => Ok(Target::Control),
        }
    }
}
