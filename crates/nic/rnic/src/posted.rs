//! Sends as they are posted, whatever the wire: what a queue may hold, and the payload as the queue owns it.
//!
//! Owns the check of a posted send. It must never keep a payload that is longer than the queue's limits.

use verbs::{Payload, PdId, QpInit, SendFlags, SendOp, SendWr, Sge, VerbsError, WcOpcode};

use crate::memory::{Domain, KeyFault};

/// What the sends of a QP may be.
#[derive(Debug, Clone, Copy)]
pub struct SendLimits {
    /// Whose memory they are made of.
    pub pd: PdId,
    /// Work requests in the queue.
    pub max_wr: u32,
    /// Gather entries of each.
    pub max_sge: u32,
    /// Inline bytes of each.
    pub max_inline_bytes: u32,
    /// Bytes of a message.
    pub max_msg_bytes: u32,
    /// Every work request is signalled.
    pub sig_all: bool,
}

impl SendLimits {
    /// Of a QP that is made like this, whose transport carries messages of so many bytes.
    pub fn new(init: &QpInit, max_msg_bytes: u32) -> Self {
        Self {
            pd: init.pd,
            max_wr: init.max_send_wr,
            max_sge: init.max_send_sge,
            max_inline_bytes: init.max_inline_bytes,
            max_msg_bytes,
            sig_all: init.sq_sig_all,
        }
    }

    /// Checks a work request for a queue that holds `queued`, and gives its length.
    pub fn check(&self, wr: &SendWr<'_>, queued: usize) -> Result<u32, VerbsError> {
        let too_many = |what, value: usize, max: u32| VerbsError::OutOfRange {
            what,
            value: value as u64,
            min: 0,
            max: max.into(),
        };
        if queued >= self.max_wr as usize {
            return Err(VerbsError::Full { what: "the send queue", limit: self.max_wr.into() });
        }
        let len: u64 = match wr.payload {
            Payload::Sges(sges) if sges.len() > self.max_sge as usize => {
                return Err(too_many("gather entries of a send", sges.len(), self.max_sge));
            }
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) if wants_data(&wr.op) => {
                return Err(too_many("inline bytes of a request for data", bytes.len(), 0));
            }
            Payload::Inline(bytes) if bytes.len() > self.max_inline_bytes as usize => {
                return Err(too_many("inline bytes of a send", bytes.len(), self.max_inline_bytes));
            }
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let (min, max) = match wr.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } => (8, 8),
            _ => (0, u64::from(self.max_msg_bytes)),
        };
        let allowed = u32::try_from(len).ok().filter(|_| (min..=max).contains(&len));
        allowed.ok_or(VerbsError::OutOfRange { what: "bytes of a message", value: len, min, max })
    }

    /// The flags of a work request in this queue.
    pub fn flags(&self, wr: &SendWr<'_>) -> SendFlags {
        let mut flags = wr.flags;
        flags.set(SendFlags::SIGNALED, self.sig_all || flags.contains(SendFlags::SIGNALED));
        flags
    }
}

/// Whether the peer answers an operation with data, and not by an acknowledgement alone.
pub const fn wants_data(op: &SendOp) -> bool {
    matches!(op, SendOp::Read(_) | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. })
}

/// What the completion of an operation says it was.
pub const fn send_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
        SendOp::Read(_) => WcOpcode::Read,
        SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        _ => WcOpcode::Send,
    }
}

/// The payload of a posted send: the places of its bytes, or the place of its answer's; or the bytes themselves.
#[derive(Debug)]
pub enum PostedData {
    /// In registered memory.
    Sges(Vec<Sge>),
    /// Copied when it was posted.
    Inline(Vec<u8>),
}

impl PostedData {
    /// The places in registered memory.
    pub fn sges(&self) -> &[Sge] {
        match self {
            Self::Sges(sges) => sges,
            Self::Inline(_) => &[],
        }
    }

    /// Copies payload bytes out.
    pub fn read(&self, mrs: Domain<'_>, offset: u32, dst: &mut [u8]) -> Result<(), KeyFault> {
        match self {
            Self::Sges(sges) => mrs.gather(sges, offset.into(), dst),
            Self::Inline(bytes) => {
                let source = bytes.get(offset as usize..).and_then(|b| b.get(..dst.len())).ok_or(KeyFault::Bounds)?;
                dst.copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Checks the places of an answer.
    pub fn check_writable(&self, mrs: Domain<'_>) -> Result<(), KeyFault> {
        match self {
            Self::Sges(sges) => mrs.check_scatter(sges),
            Self::Inline(_) => Err(KeyFault::Rights),
        }
    }

    /// Copies bytes of an answer in.
    pub fn write(&self, mrs: Domain<'_>, offset: u32, src: &[u8]) -> Result<(), KeyFault> {
        match self {
            Self::Sges(sges) => mrs.scatter(sges, offset.into(), src),
            Self::Inline(_) => Err(KeyFault::Rights),
        }
    }
}

/// Lists of completed sends, for later ones: posting allocates nothing once as many were posted as are outstanding.
#[derive(Debug, Default)]
pub struct SpareData {
    sges: Vec<Vec<Sge>>,
    inline: Vec<Vec<u8>>,
}

impl SpareData {
    /// A payload as a queue owns it.
    pub fn own(&mut self, payload: &Payload<'_>) -> PostedData {
        match payload {
            Payload::Sges(sges) => {
                let mut list = self.sges.pop().unwrap_or_default();
                list.extend_from_slice(sges);
                PostedData::Sges(list)
            }
            Payload::Inline(bytes) => {
                let mut copy = self.inline.pop().unwrap_or_default();
                copy.extend_from_slice(bytes);
                PostedData::Inline(copy)
            }
        }
    }

    /// Takes the list of a completed send back; a queue keeps at most as many as `limit`.
    pub fn put_back(&mut self, data: PostedData, limit: u32) {
        match data {
            PostedData::Sges(mut list) if self.sges.len() < limit as usize => {
                list.clear();
                self.sges.push(list);
            }
            PostedData::Inline(mut bytes) if self.inline.len() < limit as usize => {
                bytes.clear();
                self.inline.push(bytes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Lkey, RemoteAddr, Rkey};

    const LIMITS: SendLimits = SendLimits {
        pd: verbs::PdId(0),
        max_wr: 2,
        max_sge: 2,
        max_inline_bytes: 4,
        max_msg_bytes: 100,
        sig_all: false,
    };

    fn check(op: SendOp, payload: Payload<'_>, queued: usize) -> Result<u32, VerbsError> {
        LIMITS.check(&SendWr { wr_id: 1, op, payload, flags: SendFlags::empty(), dest: None }, queued)
    }

    #[test]
    fn each_limit_is_the_last_that_is_allowed() {
        let gather = |op, lens: &[u32]| {
            let sges: Vec<Sge> = lens.iter().map(|len| Sge { addr: 0, len: *len, lkey: Lkey(1) }).collect();
            check(op, Payload::Sges(&sges), 0)
        };
        let inline = |op, bytes: &[u8]| check(op, Payload::Inline(bytes), 0);
        let refused = |what, value, min, max| Err(VerbsError::OutOfRange { what, value, min, max });
        assert_eq!(gather(SendOp::Send, &[60, 40]), Ok(100));
        assert_eq!(gather(SendOp::Send, &[1; 3]), refused("gather entries of a send", 3, 0, 2));
        assert_eq!(gather(SendOp::Send, &[60, 41]), refused("bytes of a message", 101, 0, 100));
        assert_eq!(inline(SendOp::Send, &[1; 4]), Ok(4));
        assert_eq!(inline(SendOp::Send, &[1; 5]), refused("inline bytes of a send", 5, 0, 4));
        let remote = RemoteAddr { addr: 0, rkey: Rkey(0) };
        assert_eq!(inline(SendOp::Read(remote), &[1]), refused("inline bytes of a request for data", 1, 0, 0));
        let add = SendOp::FetchAdd { remote, add: 1 };
        assert_eq!(gather(add, &[8]), Ok(8));
        assert_eq!(gather(add, &[9]), refused("bytes of a message", 9, 8, 8));
        assert_eq!(check(SendOp::Send, Payload::Sges(&[]), 1), Ok(0));
        let full = VerbsError::Full { what: "the send queue", limit: 2 };
        assert_eq!(check(SendOp::Send, Payload::Sges(&[]), 2), Err(full));
    }

    #[test]
    fn lists_come_back_empty_and_no_more_than_a_queue_is_deep() {
        let mut spare = SpareData::default();
        let posted = [b"a", b"b", b"c"].map(|bytes| spare.own(&Payload::Inline(bytes)));
        posted.into_iter().for_each(|data| spare.put_back(data, 2));
        assert_eq!(spare.inline, [Vec::<u8>::new(), Vec::new()]);
        assert!(matches!(spare.own(&Payload::Inline(b"d")), PostedData::Inline(bytes) if bytes == b"d"));
    }
}
