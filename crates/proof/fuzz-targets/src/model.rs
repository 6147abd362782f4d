//! What a responder must do with the requests of its peer, in the words of the specification (RC: IBTA 9.7.4, 9.7.5,
//! 9.9.3; UC: 9.8.2.2) and with nothing shared with the NIC's own code.
//!
//! Owns memory, expected PSN and receives as they must be. It must never look at the NIC.

use std::collections::VecDeque;

/// Path MTU of the model and of the NIC beside it.
pub(crate) const MTU: usize = 256;
/// Bytes that the peer may read and write.
pub(crate) const GRANTED: usize = 4096;
/// Bytes of each posted receive.
pub(crate) const RECEIVE_BYTES: usize = 512;
/// PSNs are counted modulo this.
pub(crate) const PSN_MODULUS: u32 = 1 << 24;

/// A request as it stands in a packet. Of keys only matters whether they open the granted memory.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    Send { start: bool, end: bool, imm: Option<u32>, payload: Vec<u8> },
    Write { place: Option<Place>, end: bool, imm: Option<u32>, payload: Vec<u8> },
    Read(Place),
    Atomic { place: Place, compare: Option<u64>, operand: u64 },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) opens: bool,
}

/// What must come of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In order and right. With the bytes that a READ must answer.
    Executed(Option<Vec<u8>>),
    /// In order, but no receive is posted.
    NotReady,
    /// In order and wrong: the QP ends.
    Refused,
    /// Seen before: answered again, executed never.
    Duplicate,
    /// A packet before it is missing.
    Early,
    /// UC: it has no effect, and the message that it is of will not arrive.
    Dropped,
    /// The QP has ended.
    Ignored,
}

/// A receive that must have completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) wr_id: u64,
    pub(crate) bytes: u32,
    pub(crate) imm: Option<u32>,
    /// What lies in the receive, for a SEND.
    pub(crate) content: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Message {
    None,
    Send { wr_id: u64, content: Vec<u8> },
    Write { addr: u64, opens: bool, total: u32, left: u32 },
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) epsn: u32,
    pub(crate) memory: Vec<u8>,
    pub(crate) receives: VecDeque<u64>,
    pub(crate) received: VecDeque<Received>,
    pub(crate) ended: bool,
    pub(crate) is_unreliable: bool,
    message: Message,
}

impl Model {
    pub(crate) fn new(epsn: u32, memory: Vec<u8>, is_unreliable: bool) -> Self {
        let (receives, received) = (VecDeque::new(), VecDeque::new());
        Self { epsn, memory, receives, received, ended: false, is_unreliable, message: Message::None }
    }

    pub(crate) fn handle(&mut self, psn: u32, asked: &Asked) -> Outcome {
        if self.ended {
            return Outcome::Ignored;
        }
        if self.is_unreliable {
            return self.handle_unreliable(psn, asked);
        }
        let ahead = psn.wrapping_sub(self.epsn) % PSN_MODULUS;
        if ahead >= PSN_MODULUS / 2 {
            return Outcome::Duplicate;
        }
        if ahead > 0 {
            return Outcome::Early;
        }
        let (outcome, packets) = self.execute(asked);
        match outcome {
            Outcome::Executed(_) => self.epsn = (self.epsn + packets) % PSN_MODULUS,
            Outcome::Refused => self.ended = true,
            _ => {}
        }
        outcome
    }

    /// A first or only packet begins a message, whatever its PSN; another one must follow the packet before it. A message
    /// that is dropped gives the receive that it took to the next one.
    fn handle_unreliable(&mut self, psn: u32, asked: &Asked) -> Outcome {
        let starts = match asked {
            Asked::Send { start, .. } => *start,
            Asked::Write { place, .. } => place.is_some(),
            Asked::Read(_) | Asked::Atomic { .. } => unreachable!("the service has no such request"),
        };
        if starts {
            self.drop_message();
            self.epsn = psn;
        } else if matches!(self.message, Message::None) || psn != self.epsn {
            self.drop_message();
            return Outcome::Dropped;
        }
        match self.execute(asked).0 {
            Outcome::Executed(bytes) => {
                self.epsn = (self.epsn + 1) % PSN_MODULUS;
                Outcome::Executed(bytes)
            }
            _ => {
                self.drop_message();
                Outcome::Dropped
            }
        }
    }

    fn drop_message(&mut self) {
        if let Message::Send { wr_id, .. } = std::mem::replace(&mut self.message, Message::None) {
            self.receives.push_front(wr_id);
        }
    }

    /// The outcome, and PSNs that the request takes.
    fn execute(&mut self, asked: &Asked) -> (Outcome, u32) {
        let outcome = match asked {
            Asked::Send { start, end, imm, payload } => self.send(*start, *end, *imm, payload),
            Asked::Write { place, end, imm, payload } => self.write(*place, *end, *imm, payload),
            Asked::Read(place) => return self.read(*place),
            Asked::Atomic { place, compare, operand } => self.atomic(*place, *compare, *operand),
        };
        (outcome, 1)
    }

    fn send(&mut self, start: bool, end: bool, imm: Option<u32>, payload: &[u8]) -> Outcome {
        if !has_right_length(start, end, payload.len()) {
            return Outcome::Refused;
        }
        match (&self.message, start) {
            (Message::None, true) => {
                let Some(wr_id) = self.receives.pop_front() else { return Outcome::NotReady };
                self.message = Message::Send { wr_id, content: Vec::new() };
            }
            (Message::Send { .. }, false) => {}
            _ => return Outcome::Refused,
        }
        let Message::Send { wr_id, content } = &mut self.message else { return Outcome::Refused };
        content.extend_from_slice(payload);
        if content.len() > RECEIVE_BYTES {
            return Outcome::Refused;
        }
        if end {
            let content = std::mem::take(content);
            let wr_id = *wr_id;
            self.received.push_back(Received { wr_id, bytes: content.len() as u32, imm, content: Some(content) });
            self.message = Message::None;
        }
        Outcome::Executed(None)
    }

    fn write(&mut self, place: Option<Place>, end: bool, imm: Option<u32>, payload: &[u8]) -> Outcome {
        let (addr, opens, total, left) = match (place, &self.message) {
            (Some(p), Message::None) if p.len <= 1 << 31 => (p.addr, p.opens, p.len, p.len),
            (None, Message::Write { addr, opens, total, left }) => (*addr, *opens, *total, *left),
            _ => return Outcome::Refused,
        };
        let len = payload.len() as u32;
        if !has_right_length(place.is_some(), end, payload.len()) || len > left || (end && len != left) {
            return Outcome::Refused;
        }
        if left > 0 && !is_granted(Place { addr, len: left, opens }) {
            return Outcome::Refused;
        }
        if let Some(imm) = imm {
            let Some(wr_id) = self.receives.pop_front() else { return Outcome::NotReady };
            self.received.push_back(Received { wr_id, bytes: total, imm: Some(imm), content: None });
        }
        if len > 0 {
            self.memory[addr as usize..][..payload.len()].copy_from_slice(payload);
        }
        let rest = Message::Write { addr: addr.wrapping_add(len.into()), opens, total, left: left - len };
        self.message = if end { Message::None } else { rest };
        Outcome::Executed(None)
    }

    fn read(&mut self, place: Place) -> (Outcome, u32) {
        let is_idle = matches!(self.message, Message::None);
        if !is_idle || place.len > 1 << 31 || (place.len > 0 && !is_granted(place)) {
            return (Outcome::Refused, 0);
        }
        let len = place.len as usize;
        let bytes = if len == 0 { Vec::new() } else { self.memory[place.addr as usize..][..len].to_vec() };
        (Outcome::Executed(Some(bytes)), place.len.div_ceil(MTU as u32).max(1))
    }

    fn atomic(&mut self, place: Place, compare: Option<u64>, operand: u64) -> Outcome {
        let is_idle = matches!(self.message, Message::None);
        if !is_idle || !place.addr.is_multiple_of(8) || !is_granted(Place { len: 8, ..place }) {
            return Outcome::Refused;
        }
        let word: &mut [u8] = &mut self.memory[place.addr as usize..][..8];
        let before = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        let after = match compare {
            Some(compare) if compare == before => operand,
            Some(_) => before,
            None => before.wrapping_add(operand),
        };
        word.copy_from_slice(&after.to_ne_bytes());
        Outcome::Executed(None)
    }
}

/// First and middle packets are full, a last one is not empty, an only one may be (IBTA 9.7.4.1.6).
fn has_right_length(start: bool, end: bool, len: usize) -> bool {
    if !end {
        len == MTU
    } else if start {
        len <= MTU
    } else {
        (1..=MTU).contains(&len)
    }
}

fn is_granted(place: Place) -> bool {
    let end = u128::from(place.addr) + u128::from(place.len);
    place.opens && end <= GRANTED as u128
}
