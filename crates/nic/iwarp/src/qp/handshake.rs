//! The exchange before the first frame, from both ends (RFC 5044 section 7.1, RFC 6581).
//!
//! The active end always speaks revision 2 and asks for a peer-to-peer connection: it sends a Write without bytes as
//! soon as it has the reply, so that the passive end, which may not send before it got a frame, can.

use rnic::Device;
use verbs::{QpState, Status, VerbsError};

use super::Qp;
use super::events::{Ending, QpEvent};
use super::frames::{Body, Plan};
use super::state::{State, Wait};
use crate::ddp::{Header, Tagged};
use crate::mpa::{
    ENHANCED_BYTES, Enhanced, FrameKind, IRD_ORD_MAX, PRIVATE_DATA_MAX, Parsed, Revision, Startup, StartupFault,
};
use crate::rdmap::Opcode;
use crate::terminate::{Cause, Terminate};

/// Longest private data that [`Qp::connect`] and [`Qp::accept`] take.
const OWN_DATA_MAX: usize = PRIVATE_DATA_MAX - ENHANCED_BYTES;

fn check_private_data(bytes: &[u8]) -> Result<(), VerbsError> {
    if bytes.len() <= OWN_DATA_MAX {
        return Ok(());
    }
    let (value, max) = (bytes.len() as u64, OWN_DATA_MAX as u64);
    Err(VerbsError::OutOfRange { what: "bytes of private data", value, min: 0, max })
}

impl Qp {
    fn check_idle(&self) -> Result<(), VerbsError> {
        if self.state == State::Idle {
            return Ok(());
        }
        Err(VerbsError::WrongState { state: self.status().state, what: "connecting a second time" })
    }

    /// This end made the TCP connection: it sends the MPA request, and awaits the reply.
    pub fn connect(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.check_idle()?;
        check_private_data(private_data)?;
        let request = Startup {
            kind: FrameKind::Request,
            revision: Revision::Two,
            wants_markers: false,
            wants_crc: self.attr.wants_crc,
            is_rejected: false,
            enhanced: Some(Enhanced {
                ird: self.responses.limit(),
                ord: self.requests.limit(),
                peer_to_peer: true,
                rtr_send: false,
                rtr_write: true,
                rtr_read: false,
            }),
            private_data: private_data.to_vec(),
        };
        self.frames.push_startup(request.to_bytes());
        (self.state, self.wait, self.is_connected) = (State::Requesting, Wait::STARTUP, true);
        Ok(())
    }

    /// The peer made the TCP connection and sent that request, for this queue pair: the reply goes out.
    pub fn accept(&mut self, request: &Startup, private_data: &[u8]) -> Result<(), VerbsError> {
        self.check_idle()?;
        check_private_data(private_data)?;
        if request.kind != FrameKind::Request {
            let state = QpState::Init;
            return Err(VerbsError::WrongState { state, what: "a reply in place of an MPA request" });
        }
        let has_crc = self.attr.wants_crc || request.wants_crc;
        let enhanced = request.enhanced.map(|theirs| {
            if theirs.ird != IRD_ORD_MAX {
                self.requests.limit_to(theirs.ird);
            }
            // A Write is what every end can send; a peer that names no message gets to know that it will do.
            let rtr_read = theirs.peer_to_peer && theirs.rtr_read && !theirs.rtr_write;
            let rtr_write = theirs.peer_to_peer && !rtr_read && (theirs.rtr_write || !theirs.rtr_send);
            Enhanced {
                ird: self.responses.limit(),
                ord: self.requests.limit(),
                peer_to_peer: theirs.peer_to_peer,
                rtr_send: false,
                rtr_write,
                rtr_read,
            }
        });
        // A peer of revision 1 may take its time with its first frame.
        self.wait = if enhanced.is_some_and(|e| e.peer_to_peer) { Wait::STARTUP } else { Wait::None };
        let reply = Startup {
            kind: FrameKind::Reply,
            revision: request.revision,
            wants_markers: false,
            wants_crc: has_crc,
            is_rejected: false,
            enhanced,
            private_data: private_data.to_vec(),
        };
        self.frames.push_startup(reply.to_bytes());
        self.open(has_crc, request.wants_markers, Vec::new());
        self.is_connected = true;
        Ok(())
    }

    fn open(&mut self, has_crc: bool, has_markers: bool, private_data: Vec<u8>) {
        self.state = State::Open;
        self.frames.open(has_crc, has_markers);
        self.input.open(has_crc);
        self.events.push_back(QpEvent::Established { private_data, has_crc });
    }

    /// A frame of the peer came: it is there, and this end may send.
    pub(super) fn on_frame(&mut self) {
        if !self.may_send {
            (self.may_send, self.wait) = (true, Wait::None);
        }
    }

    /// Bytes of the reply came. When it is whole, it is judged.
    pub(super) fn on_reply(&mut self, bytes: &[u8], dev: &mut Device) {
        let reply = match Startup::parse(FrameKind::Reply, bytes) {
            Ok(Parsed::More(_)) => return,
            Ok(Parsed::Whole(reply, _)) => Ok(reply),
            Err(fault) => Err(fault),
        };
        match reply.map_err(Refusal::Fault).and_then(|reply| self.judge_reply(reply)) {
            Ok(()) => {}
            Err(Refusal::Rejected(private_data)) => self.end_startup(Ending::Rejected { private_data }, None, dev),
            Err(Refusal::Fault(fault)) => {
                let cause = match fault {
                    StartupFault::InsufficientIrd { .. } => Cause::InsufficientIrd,
                    StartupFault::NoMatchingRtr => Cause::NoMatchingRtr,
                    _ => Cause::Startup,
                };
                self.end_startup(Ending::Startup(fault), Some(Terminate::new(cause, None)), dev);
            }
        }
    }

    fn end_startup(&mut self, ending: Ending, terminate: Option<Terminate>, dev: &mut Device) {
        self.counters.tcp_startups_failed += 1;
        self.end(ending, terminate, Status::WrFlushErr, dev);
    }

    fn judge_reply(&mut self, reply: Startup) -> Result<(), Refusal> {
        if reply.is_rejected {
            return Err(Refusal::Rejected(reply.private_data));
        }
        // A reply of revision 1 to a request of revision 2 leaves open which end sends first (RFC 6581 section 5.1).
        let enhanced = reply.enhanced.ok_or(StartupFault::NotEnhanced)?;
        let allowed = self.responses.limit();
        if enhanced.ord != IRD_ORD_MAX && enhanced.ord > allowed {
            return Err(StartupFault::InsufficientIrd { wanted: enhanced.ord, allowed }.into());
        }
        if enhanced.peer_to_peer && !enhanced.rtr_write {
            return Err(StartupFault::NoMatchingRtr.into());
        }
        if enhanced.ird != IRD_ORD_MAX {
            self.requests.limit_to(enhanced.ird);
        }
        let has_crc = self.attr.wants_crc || reply.wants_crc;
        self.open(has_crc, reply.wants_markers, reply.private_data);
        (self.may_send, self.wait) = (true, Wait::None);
        if enhanced.peer_to_peer {
            let ulp = Opcode::Write.control();
            let header = Header::Tagged(Tagged { is_last: true, ulp, stag: 0, offset: 0 });
            let plan = Plan { header, control: &[], body: Body::None, ends: None };
            self.frames.push_own(&plan);
        }
        Ok(())
    }
}

/// Why there is no connection.
enum Refusal {
    Rejected(Vec<u8>),
    Fault(StartupFault),
}

impl From<StartupFault> for Refusal {
    fn from(fault: StartupFault) -> Self {
        Self::Fault(fault)
    }
}
