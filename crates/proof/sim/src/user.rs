//! A program that uses regions: an operation queue of a session, and what it knows of its operations.
//!
//! It must never look at anything but its own shared memory, and what its daemon tells it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use control::{Connection, Path};
use engine::AppId;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use shm::{
    AtomicOp, COMPLETION_BYTES, Class, CompletionRecord, Opcode, OperationStatus, RingMemory, RingReader, RingWriter,
    Session, Submission,
};
use verbs::Region;

use crate::check::{Act, CallId, Histories};

/// Words of a region that programs use.
pub(crate) const WORDS: u64 = 4;

/// A region that it has open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) handle: u32,
    pub(crate) region: u64,
    pub(crate) epoch: u64,
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
    pub(crate) app: AppId,
    session: Session,
    pub(crate) chunks: BTreeMap<u32, Region>,
    queue: Option<Queue>,
    pub(crate) opened: Option<Opened>,
    in_flight: BTreeMap<u64, (CallId, Opcode)>,
    next_tag: u64,
    pub(crate) done: u32,
    /// Looks in a row that found nothing new.
    pub(crate) idle_looks: u32,
}

impl User {
    pub(crate) fn new(app: AppId, session: Session) -> Self {
        Self {
            app,
            session,
            chunks: BTreeMap::new(),
            queue: None,
            opened: None,
            in_flight: BTreeMap::new(),
            next_tag: 0,
            done: 0,
            idle_looks: 0,
        }
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
            let (call, opcode) = self.in_flight.remove(&c.tag).ok_or(format!("operation {} ended twice", c.tag))?;
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
                OperationStatus::PeerLost
                | OperationStatus::Revoked
                | OperationStatus::NoRegion
                | OperationStatus::Failed => {
                    self.opened = None;
                    histories.on_refused(call);
                }
                other => return Err(format!("operation {} ended with {other:?}", c.tag)),
            }
        }
        Ok(any)
    }

    /// Puts operations into the ring. Whether the engine is to be told.
    pub(crate) fn submit(&mut self, depth: u32, count: u32, rng: &mut StdRng, histories: &mut Histories) -> bool {
        let mut any = false;
        while let (Some(opened), Some(queue)) = (self.opened, &mut self.queue)
            && self.in_flight.len() < depth as usize
            && self.done < count
        {
            let (word, value) = (rng.random_range(0..WORDS), rng.next_u64() >> 8);
            let (opcode, act) = match rng.random_range(0..6) {
                0 | 1 => (Opcode::Read, Act::Read),
                2 => (Opcode::Write, Act::Write(value)),
                3 => (Opcode::Swap, Act::Change(AtomicOp::Swap(value))),
                4 => (Opcode::CompareSwap, Act::Change(AtomicOp::CompareSwap { expected: 0, new: value })),
                _ => (Opcode::FetchAdd, Act::Change(AtomicOp::Add(1))),
            };
            self.next_tag += 1;
            let s = Submission {
                tag: self.next_tag,
                opcode,
                flags: u8::from(rng.random_bool(0.1)),
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
            let fits = queue.tx.free().is_ok_and(|free| free >= s.ring_bytes());
            if !fits
                || !queue.tx.write_ahead(0, &s.to_bytes())
                || !queue.tx.write_ahead(64, &value.to_le_bytes()[..s.inline_bytes() as usize])
            {
                break;
            }
            let call = histories.on_asked(opened.region, word, act);
            self.in_flight.insert(s.tag, (call, opcode));
            queue.tx.commit(s.ring_bytes());
            self.done += 1;
            any = true;
        }
        any
    }

    pub(crate) fn ring(&self) {
        if let Some(queue) = &self.queue
            && let Some(place) = self.session.place_of(queue.slot)
        {
            place.ring();
        }
    }
}
