//! A program that uses regions: an operation queue of a session for those of other hosts, the memory of those of its own
//! host, and what it knows of its operations.
//!
//! It must never look at anything but its own shared memory, and what its daemon tells it. Whether memory is still the
//! region's, and whether a region that is opened again is the one of before, the client core says.

mod local;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Connection, Path, RegionKey, RegionRefusal, Reply, Request};
use histories::{Act, CallId, Histories};
use plane::ClientId;
use raas_core::{RegionIdentity, RegionOver, RegionPlace, RegionTries};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use shm::{
    AtomicOp, COMPLETION_BYTES, CompletionRecord, Opcode, OperationStatus, RingMemory, RingReader, RingWriter, Session,
    Submission, app_flag, submission_flag,
};
use verbs::{Region, Time};

use crate::plan::LocalPlan;
use crate::regions::Shared;
use crate::writers::{Turn, Writers};
use local::{Local, Used};
use wish::{Wish, wish};

/// Words of a region that programs use.
pub(crate) const WORDS: u64 = 4;

/// By what it reaches a region.
#[derive(Debug)]
pub(crate) enum Reach {
    /// By the engine, which calls the handle so.
    There { handle: u32, epoch: u64 },
    /// It has the memory mapped.
    Here(RegionPlace),
}

/// How a region was opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) owner: usize,
    pub(crate) key: RegionKey,
    /// It has a lane of its own, and is not opened again.
    pub(crate) is_leased: bool,
    /// The lease by which it is opened, for reads alone and not again.
    pub(crate) lease: Option<u64>,
    /// The lender's daemon had ended the lease before it was asked for.
    pub(crate) is_shut: bool,
    /// Of a region with one writer: what it is taken over by; none: it is read.
    pub(crate) by: Taking,
}

/// What a handle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// All that the region allows.
    All,
    /// To read it.
    Reads,
    /// To be its one writer, by this term.
    Term(u64),
}

impl Origin {
    /// Whether it is opened again when its handle broke.
    fn is_again(&self) -> bool {
        !self.is_leased && self.lease.is_none() && !matches!(self.by, Taking::Term(_))
    }

    fn reads(&self) -> bool {
        self.lease.is_some() || self.by == Taking::Reads
    }
}

/// What owners have taken back, as they were told.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Revokes of a region for which its owner has moved it, by what the region is.
    pub(crate) revokes: BTreeMap<u64, u64>,
    /// By the lender's host.
    pub(crate) leases: BTreeSet<(usize, u64)>,
    pub(crate) writers: Writers,
}

/// A region that it has open.
#[derive(Debug)]
pub(crate) struct Opened {
    /// As the daemon calls the handle.
    pub(crate) open: u64,
    pub(crate) reach: Reach,
    pub(crate) origin: Origin,
    /// Which region it was when it was opened first.
    pub(crate) identity: RegionIdentity,
    /// An operation failed, and the daemon has not said why, since then.
    pub(crate) suspect: Option<Time>,
}

impl Opened {
    pub(crate) fn region(&self) -> u64 {
        self.identity.line.id
    }

    /// Which of the region's writers it is, if it is one.
    pub(crate) fn turn(&self) -> Option<Turn> {
        match (&self.reach, self.origin.by) {
            (Reach::There { epoch, .. }, Taking::Term(term)) => Some((*epoch, term)),
            _ => None,
        }
    }
}

/// A region that is to be opened again in the place of a handle that broke.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) origin: Origin,
    pub(crate) identity: RegionIdentity,
    tries: RegionTries,
    /// When it was refused first.
    first: Option<Time>,
    /// When it is tried next.
    pub(crate) next: Time,
}

impl Again {
    /// It was refused, and that may change: whether it is tried again.
    pub(crate) fn on_refused(&mut self, now: Time, why: &RegionRefusal) -> bool {
        let since = now.saturating_since(*self.first.get_or_insert(now));
        let pause = self.tries.pause(since, DAEMON_WAIT, *why == RegionRefusal::Busy);
        self.next = now + pause.unwrap_or_default();
        pause.is_some()
    }
}

/// As the library's default of `daemon_wait`.
const DAEMON_WAIT: Duration = Duration::from_secs(5);
/// How long the daemon may take to say why its engine does not know a handle any more, as in the library.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// Operations of one chain at most.
const CHAIN_MAX: u32 = 4;

/// An operation that was submitted and has not ended.
#[derive(Debug, Clone)]
struct Going {
    call: CallId,
    opcode: Opcode,
    /// Its handle, as the daemon calls it.
    open: u64,
    /// Revokes of the region that were done when it was asked for, behind those that its handle knows of.
    is_late: bool,
    /// The first of its chain.
    chain: u64,
    is_fenced: bool,
    local: Option<Used>,
}

/// An access to memory of this host, before the look at the stamp behind it.
#[derive(Debug, Clone, Copy)]
struct Access {
    call: CallId,
    found: Option<u64>,
    changes: bool,
    is_late: bool,
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
    session: Session,
    pub(crate) chunks: BTreeMap<u32, Region>,
    queue: Option<Queue>,
    /// Which life of its host's daemon it is attached in.
    pub(crate) life: u32,
    /// When it finds the next daemon.
    pub(crate) return_at: Time,
    /// It is on its way to a daemon.
    pub(crate) is_entering: bool,
    pub(crate) opened: Option<Opened>,
    pub(crate) again: Option<Again>,
    accesses: Vec<Access>,
    local: Local,
    /// Slots of queues of daemons before this one, which were not given back.
    old_slots: BTreeSet<u32>,
    /// The request for a region that was not answered.
    pub(crate) asked: Option<(u64, Origin)>,
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
    /// Operations that were done with local memory, by a lease, and on memory that is mapped by a lease.
    pub(crate) counted: [u64; 3],
    /// Looks in a row that found nothing new.
    pub(crate) idle_looks: u32,
}

impl User {
    pub(crate) fn new(client: ClientId, session: Session) -> Self {
        Self {
            client,
            session,
            chunks: BTreeMap::new(),
            queue: None,
            life: 0,
            return_at: Time::ZERO,
            is_entering: true,
            opened: None,
            again: None,
            accesses: Vec::new(),
            local: Local::of(client.0),
            old_slots: BTreeSet::new(),
            asked: None,
            requests: 0,
            over: Vec::new(),
            in_flight: BTreeMap::new(),
            broken: BTreeMap::new(),
            last: BTreeMap::new(),
            next_tag: 0,
            done: 0,
            counted: [0; 3],
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

    /// Nothing that it has begun is without its end.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.accesses.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes completions: whether there were any. An error is what the engine did wrong.
    pub(crate) fn collect(&mut self, now: Time, histories: &mut Histories) -> Result<bool, String> {
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
            let Going { call, opcode, open, is_late, chain, is_fenced, local } = going;
            let placed = match &local {
                Some(used) => self.local.judge(used, c.status).map_err(|why| format!("operation {}: {why}", c.tag))?,
                None => None,
            };
            let failed = self.broken.get(&chain).copied().filter(|failed| *failed < c.tag);
            match (c.status, failed) {
                (OperationStatus::Ok, Some(failed)) if is_fenced => {
                    return Err(format!("operation {} was done behind {failed}, which failed", c.tag));
                }
                (OperationStatus::Ok, _) if is_late => {
                    return Err(format!("operation {} was asked for after a revoke, and done", c.tag));
                }
                (OperationStatus::ChainBroken, None) => {
                    return Err(format!("operation {} was not done, and nothing before it in its chain failed", c.tag));
                }
                (OperationStatus::Ok | OperationStatus::ChainBroken, _) => {}
                _ => _ = self.broken.entry(chain).and_modify(|first| *first = c.tag.min(*first)).or_insert(c.tag),
            }
            match c.status {
                OperationStatus::Ok => {
                    self.counted[0] += u64::from(local.is_some());
                    let opened = self.opened.as_ref().filter(|opened| opened.open == open);
                    self.counted[1] += u64::from(opened.is_some_and(|opened| opened.origin.lease.is_some()));
                    let found = match opcode {
                        Opcode::Read => placed.or(Some(u64::from_le_bytes(bytes))),
                        Opcode::Write => None,
                        _ => Some(c.value),
                    };
                    histories.on_ended(call, found);
                }
                OperationStatus::OutcomeUnknown => {}
                OperationStatus::ChainBroken | OperationStatus::NoLocalRegion => histories.on_refused(call),
                OperationStatus::PeerLost
                | OperationStatus::Revoked
                | OperationStatus::NoRegion
                | OperationStatus::Failed => {
                    let failed = self.opened.as_mut().filter(|opened| opened.open == open);
                    failed.into_iter().for_each(|opened| _ = opened.suspect.get_or_insert(now));
                    histories.on_refused(call);
                }
                other => return Err(format!("operation {} ended with {other:?}", c.tag)),
            }
        }
        Ok(any)
    }

    /// Puts operations into the ring, alone or as chains. Whether the engine is to be told.
    pub(crate) fn submit(
        &mut self,
        (depth, count): (u32, u32),
        ended: &mut Ended,
        rng: &mut StdRng,
        histories: &mut Histories,
    ) -> bool {
        let mut any = false;
        while let Some(opened @ Opened { suspect: None, .. }) = &self.opened
            && let Reach::There { handle, epoch } = opened.reach
            && self.queue.is_some()
            && self.in_flight.len() < depth as usize
            && self.done < count
        {
            let length = if rng.random_bool(0.3) { rng.random_range(2..=CHAIN_MAX) } else { 1 };
            // Of one word: a fence between two of its operations is seen there.
            let word = (length > 1 && rng.random_bool(0.7)).then(|| rng.random_range(0..WORDS));
            let (open, region, reads) = (opened.open, opened.region(), opened.origin.reads());
            let turn = opened.turn();
            let is_late = is_late(opened, ended);
            let mut wishes: Vec<Wish> =
                (1..=length).map(|n| wish((handle, epoch), (word, reads), n < length, rng)).collect();
            self.take_local(&mut wishes, rng);
            if !self.put(&wishes) {
                break;
            }
            let chain = self.next_tag + 1;
            for Wish { submission, act, word, local, .. } in wishes {
                self.next_tag += 1;
                let is_fenced = submission.flags & submission_flag::FENCE != 0;
                let before = self.last.get(&(region, word)).copied().filter(|_| is_fenced);
                let call = histories.on_asked_after(region, word, act, before);
                turn.into_iter().for_each(|turn| ended.writers.on_asked(region, turn, call, histories));
                self.last.insert((region, word), call);
                let opcode = submission.opcode;
                let local = local.map(|(used, _)| used);
                self.in_flight.insert(self.next_tag, Going { call, opcode, open, is_late, chain, is_fenced, local });
            }
            self.done += length;
            any = true;
        }
        any
    }

    // ---- memory of this host

    /// Some of these operations use local memory, if there is any.
    fn take_local(&mut self, wishes: &mut [Wish], rng: &mut StdRng) {
        let mut in_use: Vec<u64> =
            self.in_flight.values().filter_map(|going| Some(going.local.as_ref()?.at())).collect();
        for wish in wishes.iter_mut().filter(|wish| matches!(wish.submission.opcode, Opcode::Read | Opcode::Write)) {
            let value = (wish.submission.opcode == Opcode::Write).then_some(wish.value);
            wish.local = self.local.take(value, in_use.iter().copied(), rng);
            if let Some((used, _)) = &wish.local {
                in_use.push(used.at());
                wish.submission.segments = 1;
            }
        }
    }

    /// What it asks its daemon for, for its local memory.
    pub(crate) fn ask_for_local(
        &mut self,
        plan: LocalPlan,
        user: usize,
        hosts: Option<(IpAddr, RegionKey)>,
        rng: &mut StdRng,
    ) -> Option<Request> {
        let requests = &mut self.requests;
        let next = || {
            *requests += 1;
            *requests
        };
        self.local.ask(plan, user, hosts, next, rng)
    }

    /// How much local memory the engine may have for it.
    pub(crate) fn local_memory_max(&self) -> u64 {
        self.local.most()
    }

    /// The daemon said something: whether it was about its local memory. An error is what it had no reason for.
    pub(crate) fn hear_of_local(&mut self, reply: &Reply, memory: Option<&Shared>) -> Result<bool, String> {
        self.local.hear(reply, memory)
    }

    /// One access to memory that it has mapped, between two looks at the stamp, of which the second comes later. The memory
    /// if it was changed.
    pub(crate) fn access(
        &mut self,
        count: u32,
        ended: &Ended,
        rng: &mut StdRng,
        histories: &mut Histories,
    ) -> Option<Region> {
        let opened = self.opened.as_ref().filter(|_| self.done < count)?;
        let Reach::Here(place) = &opened.reach else { return None };
        place.check(false).ok()?;
        let (word, value) = (rng.random_range(0..WORDS), rng.next_u64() >> 8);
        let act = match rng.random_range(0..5) * i32::from(!opened.origin.reads()) {
            0 => Act::Read,
            1 => Act::Write(value),
            2 => Act::Change(AtomicOp::CompareSwap { expected: 0, new: value }),
            _ => Act::Change(AtomicOp::Add(1)),
        };
        let call = histories.on_asked(opened.region(), word, act);
        let at = place.memory.word64(word * 8).ok()?;
        let (found, changes) = match act {
            Act::Read => (Some(at.load(Ordering::SeqCst)), false),
            Act::Write(value) => {
                at.store(value, Ordering::SeqCst);
                (None, true)
            }
            Act::Change(atomic) => (place.memory.atomic64(word * 8, atomic).ok(), true),
        };
        self.accesses.push(Access { call, found, changes, is_late: is_late(opened, ended) });
        self.done += 1;
        changes.then(|| place.memory.clone())
    }

    /// Looks at the stamp behind its accesses. `is_told`: the daemon has said that the handle is over. An error is what was
    /// done although a revoke had come.
    pub(crate) fn look_behind(&mut self, is_told: bool, histories: &mut Histories) -> Result<(), String> {
        let place = self.opened.as_ref().and_then(|opened| match &opened.reach {
            Reach::Here(place) => Some(place),
            Reach::There { .. } => None,
        });
        let is_live = !is_told && place.is_some_and(|place| place.check_behind_changes(false).is_ok());
        let is_lent = self.borrowed().is_some();
        for Access { call, found, changes, is_late } in std::mem::take(&mut self.accesses) {
            if is_live && is_late {
                return Err(format!("an access was begun after a revoke, and counts: {call:?}"));
            } else if is_live {
                self.counted[2] += u64::from(is_lent);
                histories.on_ended(call, found);
            } else if !changes {
                histories.on_refused(call);
            }
        }
        Ok(())
    }

    /// What it has open by a lease.
    pub(crate) fn borrowed(&self) -> Option<(u64, Origin)> {
        self.opened.as_ref().filter(|opened| opened.origin.lease.is_some()).map(|opened| (opened.open, opened.origin))
    }

    /// Whether the daemon that gave the handle's memory has ended, as its word says.
    pub(crate) fn is_parted(&self) -> bool {
        let reach = self.opened.as_ref().map(|opened| &opened.reach);
        matches!(reach, Some(Reach::Here(place)) if place.check(false) == Err(RegionOver::DaemonLost))
    }

    /// Whether the stamp says that it is over with the handle, for a reason that is an end.
    pub(crate) fn is_over(&self) -> bool {
        let reach = self.opened.as_ref().map(|opened| &opened.reach);
        let Some(Reach::Here(place)) = reach else { return false };
        matches!(place.check(false), Err(RegionOver::Revoked | RegionOver::OwnerGone))
    }

    // ---- the end of a handle, and of a daemon

    /// The handle is of no use any more. If it broke, the region is to be opened again, if that can be.
    pub(crate) fn end_handle(&mut self, now: Time, is_broken: bool, histories: &mut Histories) -> Result<(), String> {
        let looked = self.look_behind(true, histories);
        if let Some(Opened { origin, identity, .. }) = self.opened.take().filter(|o| is_broken && o.origin.is_again()) {
            self.again =
                Some(Again { origin, identity, tries: RegionTries::new(identity.bytes), first: None, next: now });
        }
        looked
    }

    /// The daemon has not said in time why an operation failed.
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        let suspect = self.opened.as_ref().and_then(|opened| opened.suspect);
        suspect.is_some_and(|since| now.saturating_since(since) > NEWS_WAIT)
    }

    /// The daemon has ended, and the session goes on with the next one: nobody knows of what is under way. The slots that
    /// the next daemon is told are in use. `closes`: what the queue had is given back before that.
    pub(crate) fn part(&mut self, now: Time, closes: bool, histories: &mut Histories) -> Result<BTreeSet<u32>, String> {
        self.collect(now, histories)?;
        self.end_handle(now, true, histories)?;
        self.in_flight.clear();
        self.local.part();
        self.broken.clear();
        self.chunks.clear();
        self.over.clear();
        self.asked = None;
        self.again.iter_mut().for_each(|again| (again.first, again.next) = (None, now));
        let slots =
            self.queue.take().map(|queue| queue.slot).into_iter().chain(std::mem::take(&mut self.old_slots)).collect();
        self.old_slots = slots;
        let used = self.old_slots.clone();
        if closes {
            self.close_slots();
        }
        Ok(used)
    }

    /// Gives slots of queues of daemons before this one back: whether there were any.
    pub(crate) fn close_slots(&mut self) -> bool {
        for slot in &self.old_slots {
            self.session.slot(*slot).app_flags.fetch_or(app_flag::CLOSED, Ordering::Release);
            self.session.place_of(*slot).into_iter().for_each(|place| place.ring());
        }
        !std::mem::take(&mut self.old_slots).is_empty()
    }

    /// The session, as the daemon gets it.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// It comes to the next daemon, which reads its session.
    pub(crate) fn on_returning(&mut self, client: ClientId, life: u32) -> Result<(), String> {
        let (region, shape) = (self.session.region().clone(), self.session.shape());
        self.session = Session::adopt(region, shape, life.into()).map_err(|e| e.to_string())?;
        (self.client, self.is_entering) = (client, true);
        Ok(())
    }

    /// Puts all of a chain into the ring in one step, or nothing.
    fn put(&mut self, wishes: &[Wish]) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        let bytes: u64 = wishes.iter().map(|wish| wish.submission.ring_bytes()).sum();
        if !queue.tx.free().is_ok_and(|free| free >= bytes) {
            return false;
        }
        let mut at = 0;
        for (tag, Wish { submission, value, local, .. }) in (self.next_tag + 1..).zip(wishes) {
            let s = Submission { tag, ..*submission };
            queue.tx.write_ahead(at, &s.to_bytes());
            queue.tx.write_ahead(at + 64, &value.to_le_bytes()[..s.inline_bytes() as usize]);
            local.iter().for_each(|(_, segment)| _ = queue.tx.write_ahead(at + 64, &segment.to_bytes()));
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

/// Whether the owner has taken the region from this handle already.
fn is_late(opened: &Opened, ended: &Ended) -> bool {
    if opened.turn().is_some_and(|turn| ended.writers.is_over(opened.region(), turn)) {
        return true;
    }
    let revoked = ended.revokes.get(&opened.region()).is_some_and(|done| *done > opened.identity.line.revokes);
    revoked || opened.origin.lease.is_some_and(|lease| ended.leases.contains(&(opened.origin.owner, lease)))
}
