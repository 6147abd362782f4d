//! A program that uses regions: an operation queue of a session, and what it knows of its operations.
//!
//! It must never look at anything but its own shared memory, and what its daemon tells it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use control::{Connection, Path};
use engine::AppId;
use histories::{Act, CallId, Histories};
use plane::ClientId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use shm::{
    AtomicOp, COMPLETION_BYTES, Class, CompletionRecord, Opcode, OperationStatus, RingMemory, RingReader, RingWriter,
    Session, Submission, submission_flag,
};
use verbs::Region;

/// Words of a region that programs use.
pub(crate) const WORDS: u64 = 4;

/// A region that it has open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    /// As the daemon calls the handle.
    pub(crate) open: u64,
    /// As the engine does.
    pub(crate) handle: u32,
    /// Which region it is, whatever epoch it is in.
    pub(crate) region: u64,
    pub(crate) epoch: u64,
}

/// Operations of one chain at most.
const CHAIN_MAX: u32 = 4;

/// An operation that was submitted and has not ended.
#[derive(Debug, Clone, Copy)]
struct Going {
    call: CallId,
    opcode: Opcode,
    /// The first of its chain.
    chain: u64,
    is_fenced: bool,
}

/// An operation that is about to be submitted.
#[derive(Debug, Clone, Copy)]
struct Wish {
    submission: Submission,
    act: Act,
    word: u64,
    value: u64,
}

#[derive(Debug)]
struct Queue {
    slot: u32,
    tx: RingWriter,
    rx: RingReader,
}

/// The program.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) client: ClientId,
    pub(crate) app: AppId,
    session: Session,
    pub(crate) chunks: BTreeMap<u32, Region>,
    queue: Option<Queue>,
    pub(crate) opened: Option<Opened>,
    /// The request for a region that was not answered.
    pub(crate) asked: Option<u64>,
    requests: u64,
    /// Handles that are of no use any more, and not given back yet.
    pub(crate) over: Vec<u64>,
    in_flight: BTreeMap<u64, Going>,
    /// The first operation of a chain that failed, by the first of the chain.
    broken: BTreeMap<u64, u64>,
    /// The last call of each word of the region that it has open.
    last: BTreeMap<(u64, u64), CallId>,
    next_tag: u64,
    pub(crate) done: u32,
    /// Looks in a row that found nothing new.
    pub(crate) idle_looks: u32,
}

impl User {
    pub(crate) fn new(client: ClientId, app: AppId, session: Session) -> Self {
        Self {
            client,
            app,
            session,
            chunks: BTreeMap::new(),
            queue: None,
            opened: None,
            asked: None,
            requests: 0,
            over: Vec::new(),
            in_flight: BTreeMap::new(),
            broken: BTreeMap::new(),
            last: BTreeMap::new(),
            next_tag: 0,
            done: 0,
            idle_looks: 0,
        }
    }

    pub(crate) fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// The daemon opened the queue.
    pub(crate) fn on_queue(&mut self, connection: &Connection) -> Option<()> {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, .. } = connection.path
        else {
            return None;
        };
        let words = self.session.slot(slot);
        let ring = |chunk: u32, offset| {
            Some(RingMemory { region: self.chunks.get(&chunk)?.clone(), offset, bytes: ring_bytes.into() })
        };
        let (tx, rx) = (ring(tx_chunk, tx_offset)?, ring(rx_chunk, rx_offset)?);
        let rx = RingReader::new(rx, words.rx_tail.clone(), words.rx_head.clone(), 0).ok()?;
        let tx = RingWriter::new(tx, words.tx_tail.clone(), words.tx_head.clone(), 0).ok()?;
        words.app_generation.store(generation, Ordering::Release);
        self.queue = Some(Queue { slot, tx, rx });
        Some(())
    }

    pub(crate) fn has_queue(&self) -> bool {
        self.queue.is_some()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes completions: whether there were any. An error is what the engine did wrong.
    pub(crate) fn collect(&mut self, histories: &mut Histories) -> Result<bool, String> {
        let Some(queue) = &mut self.queue else { return Ok(false) };
        let mut any = false;
        while queue.rx.available().map_err(|e| e.to_string())? > 0 {
            any = true;
            let mut head = [0; COMPLETION_BYTES];
            queue.rx.peek_ahead(0, &mut head);
            let c = CompletionRecord::parse(&head).ok_or("bytes that are no completion")?;
            let mut bytes = [0; 8];
            queue.rx.peek_ahead(COMPLETION_BYTES as u64, &mut bytes[..(c.bytes as usize).min(8)]);
            queue.rx.consume(c.ring_bytes());
            let going = self.in_flight.remove(&c.tag).ok_or(format!("operation {} ended twice", c.tag))?;
            let Going { call, opcode, chain, is_fenced } = going;
            let failed = self.broken.get(&chain).copied().filter(|failed| *failed < c.tag);
            match (c.status, failed) {
                (OperationStatus::Ok, Some(failed)) if is_fenced => {
                    return Err(format!("operation {} was done behind {failed}, which failed", c.tag));
                }
                (OperationStatus::ChainBroken, None) => {
                    return Err(format!("operation {} was not done, and nothing before it in its chain failed", c.tag));
                }
                (OperationStatus::Ok | OperationStatus::ChainBroken, _) => {}
                _ => _ = self.broken.entry(chain).and_modify(|first| *first = c.tag.min(*first)).or_insert(c.tag),
            }
            match c.status {
                OperationStatus::Ok => {
                    let found = match opcode {
                        Opcode::Read => Some(u64::from_le_bytes(bytes)),
                        Opcode::Write => None,
                        _ => Some(c.value),
                    };
                    histories.on_ended(call, found);
                }
                OperationStatus::OutcomeUnknown => {}
                OperationStatus::ChainBroken => histories.on_refused(call),
                OperationStatus::PeerLost
                | OperationStatus::Revoked
                | OperationStatus::NoRegion
                | OperationStatus::Failed => {
                    self.over.extend(self.opened.take().map(|opened| opened.open));
                    histories.on_refused(call);
                }
                other => return Err(format!("operation {} ended with {other:?}", c.tag)),
            }
        }
        Ok(any)
    }

    /// Puts operations into the ring, alone or as chains. Whether the engine is to be told.
    pub(crate) fn submit(&mut self, depth: u32, count: u32, rng: &mut StdRng, histories: &mut Histories) -> bool {
        let mut any = false;
        while let Some(opened) = self.opened
            && self.queue.is_some()
            && self.in_flight.len() < depth as usize
            && self.done < count
        {
            let length = if rng.random_bool(0.3) { rng.random_range(2..=CHAIN_MAX) } else { 1 };
            // Of one word: a fence between two of its operations is seen there.
            let word = (length > 1 && rng.random_bool(0.7)).then(|| rng.random_range(0..WORDS));
            let wishes: Vec<Wish> = (1..=length).map(|n| self.wish(opened, word, n < length, rng)).collect();
            if !self.put(&wishes) {
                break;
            }
            let chain = self.next_tag + 1;
            for Wish { submission, act, word, .. } in wishes {
                self.next_tag += 1;
                let is_fenced = submission.flags & submission_flag::FENCE != 0;
                let before = self.last.get(&(opened.region, word)).copied().filter(|_| is_fenced);
                let call = histories.on_asked_after(opened.region, word, act, before);
                self.last.insert((opened.region, word), call);
                self.in_flight.insert(self.next_tag, Going { call, opcode: submission.opcode, chain, is_fenced });
            }
            self.done += length;
            any = true;
        }
        any
    }

    fn wish(&self, opened: Opened, word: Option<u64>, is_chained: bool, rng: &mut StdRng) -> Wish {
        let (word, value) = (word.unwrap_or_else(|| rng.random_range(0..WORDS)), rng.next_u64() >> 8);
        let (opcode, act) = match rng.random_range(0..6) {
            0 | 1 => (Opcode::Read, Act::Read),
            2 => (Opcode::Write, Act::Write(value)),
            3 => (Opcode::Swap, Act::Change(AtomicOp::Swap(value))),
            4 => (Opcode::CompareSwap, Act::Change(AtomicOp::CompareSwap { expected: 0, new: value })),
            _ => (Opcode::FetchAdd, Act::Change(AtomicOp::Add(1))),
        };
        let fence = if rng.random_bool(if is_chained { 0.5 } else { 0.2 }) { submission_flag::FENCE } else { 0 };
        let submission = Submission {
            tag: 0,
            opcode,
            flags: fence | if is_chained { submission_flag::CHAINED } else { 0 },
            class: Class::Visible,
            segments: 0,
            region: opened.handle,
            epoch: opened.epoch,
            offset: word * 8,
            bytes: 8,
            notify: 0,
            operand: if opcode == Opcode::FetchAdd { 1 } else { value },
            compare: 0,
        };
        Wish { submission, act, word, value }
    }

    /// Puts all of a chain into the ring in one step, or nothing.
    fn put(&mut self, wishes: &[Wish]) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        let bytes: u64 = wishes.iter().map(|wish| wish.submission.ring_bytes()).sum();
        if !queue.tx.free().is_ok_and(|free| free >= bytes) {
            return false;
        }
        let mut at = 0;
        for (tag, Wish { submission, value, .. }) in (self.next_tag + 1..).zip(wishes) {
            let s = Submission { tag, ..*submission };
            queue.tx.write_ahead(at, &s.to_bytes());
            queue.tx.write_ahead(at + 64, &value.to_le_bytes()[..s.inline_bytes() as usize]);
            at += s.ring_bytes();
        }
        queue.tx.commit(bytes)
    }

    pub(crate) fn ring(&self) {
        if let Some(queue) = &self.queue
            && let Some(place) = self.session.place_of(queue.slot)
        {
            place.ring();
        }
    }
}
