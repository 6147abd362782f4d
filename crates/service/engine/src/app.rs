//! One attached application: session, slots, rings.
//!
//! Owns which slots are in use and their generations. It must never reuse a slot before the connection in it is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use control::{AppRow, Reason};
use ipnet::IpNet;
use shm::{Doorbell, Session, SlotWords, Word32, slot_state};
use std::sync::atomic::Ordering;

use crate::event::Attach;
use crate::ids::{ConnectId, QueueId, RouteId, SocketId};
use crate::limits::SLOT_REUSE_DELAY;
use crate::numbers::count;
use crate::operations::VerbCounts;
use crate::ring_size::RingSize;
use crate::ringpool::{RingPair, RingPool};
use crate::slot::TakenSlot;
use crate::slot_set::SlotSet;

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotUse {
    Connection(RouteId),
    Socket(SocketId),
    Queue(QueueId),
    /// Something that a daemon before this one had there, and that ended with it.
    Left,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    used_by: Option<SlotUse>,
}

/// Bytes that connections carried. Sums wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) tx: u64,
    pub(crate) rx: u64,
}

/// An application and what it holds.
#[derive(Debug)]
pub(crate) struct App {
    pid: u32,
    uid: u32,
    name: String,
    /// Networks to whose hosts it may send; none: to all that the configuration allows.
    connect_to: Option<Arc<[IpNet]>>,
    session: Session,
    /// The engine that this is in, and the first slot of its range.
    engine: u32,
    first_slot: u32,
    /// Slots of the range.
    slots_max: u32,
    a2e: Doorbell,
    e2a: Doorbell,
    app_sleep: Word32,
    /// Slots that were ever used, in the order of the range.
    slots: Vec<Slot>,
    free_slots: VecDeque<u32>,
    pub(crate) pool: RingPool,
    /// Rings of slots that a daemon before this one left: the application may still read what lies there.
    left_rings: BTreeMap<u32, RingPair>,
    /// Virtual QPs.
    connections: u32,
    /// Connects and parked opens that have no virtual QP yet.
    waiting: u32,
    connects: BTreeMap<u64, ConnectId>,
    /// Connections that wait for `accept`, by port and number.
    backlogs: BTreeMap<(u16, u64), RouteId>,
    /// Datagram sockets.
    sockets: BTreeSet<SocketId>,
    /// Operation queues.
    queues: u32,
    /// Detached: only the memory is still here.
    leaving: bool,
    /// All its connections were reset, because it left too long ago.
    is_overdue: bool,
    /// Its doorbell was rung in this round.
    is_touched: bool,
    /// Of connections that are over, and of others as far as they were counted.
    tx_bytes: u64,
    rx_bytes: u64,
}

impl App {
    pub(crate) fn new(attach: Attach, engine: u32, ring_memory_max: u64, growing: RingSize) -> Self {
        let Attach { pid, uid, name, session, connect_to, tenant: _ } = attach;
        let shape = session.shape();
        Self {
            engine,
            first_slot: shape.first_slot(engine),
            slots_max: shape.slots_per_engine(),
            pid,
            uid,
            name,
            connect_to,
            a2e: session.a2e(engine),
            e2a: session.e2a(),
            app_sleep: session.app_sleep(),
            session,
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            pool: RingPool::new(ring_memory_max, growing),
            left_rings: BTreeMap::new(),
            connections: 0,
            waiting: 0,
            connects: BTreeMap::new(),
            backlogs: BTreeMap::new(),
            sockets: BTreeSet::new(),
            queues: 0,
            leaving: false,
            is_overdue: false,
            is_touched: false,
            tx_bytes: 0,
            rx_bytes: 0,
        }
    }

    /// Whether a slot is free.
    pub(crate) fn has_slot(&self) -> bool {
        !self.free_slots.is_empty() || (self.slots.len() as u64) < u64::from(self.slots_max)
    }

    /// Takes a slot. Those freed longest ago come first.
    pub(crate) fn take_slot(&mut self, what: SlotUse) -> Option<TakenSlot> {
        let fresh = (self.slots.len() as u64) < u64::from(self.slots_max);
        let number = if fresh && self.free_slots.len() < SLOT_REUSE_DELAY {
            self.slots.push(Slot { generation: 1, used_by: None });
            self.first_slot + count(self.slots.len()) - 1
        } else {
            self.free_slots.pop_front()?
        };
        let engine = self.engine;
        let slot = self.slot_mut(number)?;
        slot.used_by = Some(what);
        let generation = slot.generation;
        self.count_use(what);
        let words = Box::new(self.session.slot(number));
        words.engine.store(engine, Ordering::Relaxed);
        Some(TakenSlot { number, generation, words })
    }

    fn count_use(&mut self, what: SlotUse) {
        match what {
            SlotUse::Connection(_) => self.connections += 1,
            SlotUse::Socket(socket) => _ = self.sockets.insert(socket),
            SlotUse::Queue(_) => self.queues += 1,
            SlotUse::Left => {}
        }
    }

    fn uncount_use(&mut self, what: SlotUse) {
        match what {
            SlotUse::Connection(_) => self.connections -= 1,
            SlotUse::Socket(socket) => _ = self.sockets.remove(&socket),
            SlotUse::Queue(_) => self.queues -= 1,
            SlotUse::Left => {}
        }
    }

    /// What was taken over is none after all; its slot is as it was.
    pub(crate) fn leave_slot(&mut self, number: u32) {
        if let Some(slot) = self.slot_mut(number)
            && let Some(what) = slot.used_by.replace(SlotUse::Left)
        {
            self.uncount_use(what);
        }
    }

    /// Gives a slot back: the generation moves on, so that stale words of the application are ignored.
    pub(crate) fn put_back_slot(&mut self, number: u32, words: &SlotWords) {
        let Some(slot) = self.slot_mut(number) else { return };
        let Some(what) = slot.used_by.take() else { return };
        slot.generation = if slot.generation == u32::MAX { 1 } else { slot.generation + 1 };
        words.generation.store(slot.generation, Ordering::Relaxed);
        words.state.store(slot_state::FREE, Ordering::Release);
        self.free_slots.push_back(number);
        self.uncount_use(what);
    }

    /// The slots of this engine's range that a set names, up to the last one.
    pub(crate) fn slots_up_to_last(&self, used: &SlotSet) -> Range<u32> {
        let end = used.last_below(self.first_slot + self.slots_max).map_or(0, |last| last + 1);
        self.first_slot..end.max(self.first_slot)
    }

    /// The session was another daemon's: this is its next slot, in order. One that the application uses is given out
    /// when it has given it back.
    pub(crate) fn leave_next_slot(&mut self, number: u32, is_used: bool) {
        // The application's word: the next generation of the slot only has to differ from it.
        let generation = self.session.slot(number).generation.load(Ordering::Relaxed).max(1);
        self.slots.push(Slot { generation, used_by: is_used.then_some(SlotUse::Left) });
        if !is_used {
            self.free_slots.push_back(number);
        }
    }

    /// Takes over a slot that a daemon before this one had given to a connection or socket, with this generation.
    pub(crate) fn adopt_slot(&mut self, (number, generation): (u32, u32), what: SlotUse) -> Option<TakenSlot> {
        let engine = self.engine;
        let slot = self.slot_mut(number)?;
        if slot.used_by != Some(SlotUse::Left) || slot.generation != generation {
            return None;
        }
        slot.used_by = Some(what);
        self.count_use(what);
        let words = Box::new(self.session.slot(number));
        words.engine.store(engine, Ordering::Relaxed);
        Some(TakenSlot { number, generation, words })
    }

    /// The application still has the rings of a slot that is as a daemon before this one left it.
    pub(crate) fn keep_left_rings(&mut self, slot: u32, rings: RingPair) {
        self.left_rings.insert(slot, rings);
    }

    /// It has given the slot back.
    pub(crate) fn take_left_rings(&mut self, slot: u32) -> Option<RingPair> {
        self.left_rings.remove(&slot)
    }

    /// Whether a slot is as a daemon before this one left it.
    pub(crate) fn is_left(&self, slot: u32) -> bool {
        self.use_of(slot) == Some(SlotUse::Left)
    }

    /// The words of some slot.
    pub(crate) fn any_words(&self) -> SlotWords {
        self.session.slot(0)
    }

    /// The words of a slot.
    pub(crate) fn words(&self, slot: u32) -> Option<SlotWords> {
        (slot < self.session.slots()).then(|| self.session.slot(slot))
    }

    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot> {
        self.slots.get_mut(number.wrapping_sub(self.first_slot) as usize)
    }

    /// What is in a slot.
    #[inline]
    pub(crate) fn use_of(&self, slot: u32) -> Option<SlotUse> {
        self.slots.get(slot.wrapping_sub(self.first_slot) as usize)?.used_by
    }

    /// All connections.
    pub(crate) fn routes(&self) -> Vec<RouteId> {
        let route = |s: &Slot| match s.used_by {
            Some(SlotUse::Connection(route)) => Some(route),
            _ => None,
        };
        self.slots.iter().filter_map(route).collect()
    }

    /// Whether it sleeps and has to be woken. Clears the flag: one wake is enough until it goes to sleep again. A
    /// caller that gets true must wake it.
    fn must_wake(&self) -> bool {
        shm::claim_wake(&self.app_sleep)
    }

    // ---- who it is

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether it may send to a host, as far as its own bounds say.
    pub(crate) fn may_reach(&self, host: IpAddr) -> bool {
        self.connect_to.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(&host)))
    }

    pub(crate) fn set_connect_to(&mut self, networks: Option<Arc<[IpNet]>>) {
        self.connect_to = networks;
    }

    /// Whether it has left, and only its memory is still here.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// It has left.
    pub(crate) fn on_left(&mut self) {
        self.leaving = true;
    }

    /// What lingered of it was given its time. Whether that was so before.
    pub(crate) fn on_overdue(&mut self) -> bool {
        std::mem::replace(&mut self.is_overdue, true)
    }

    // ---- what it holds

    pub(crate) fn add_waiting(&mut self) {
        self.waiting += 1;
    }

    pub(crate) fn drop_waiting(&mut self) {
        self.waiting -= 1;
    }

    /// A connect under a number of the application's. False: the number is in use.
    pub(crate) fn add_connect(&mut self, request: u64, id: ConnectId) -> bool {
        let free = !self.connects.contains_key(&request);
        if free {
            self.connects.insert(request, id);
        }
        free
    }

    pub(crate) fn connect_of(&self, request: u64) -> Option<ConnectId> {
        self.connects.get(&request).copied()
    }

    pub(crate) fn drop_connect(&mut self, request: u64) {
        self.connects.remove(&request);
    }

    pub(crate) fn connects(&self) -> Vec<ConnectId> {
        self.connects.values().copied().collect()
    }

    /// A connection waits for `accept` at a port.
    pub(crate) fn enter_backlog(&mut self, port: u16, connection: u64, route: RouteId) {
        self.backlogs.insert((port, connection), route);
    }

    /// A connection waits no more. `None`: it did not.
    pub(crate) fn leave_backlog(&mut self, port: u16, connection: u64) -> Option<RouteId> {
        self.backlogs.remove(&(port, connection))
    }

    /// Takes out what waits at a port.
    pub(crate) fn take_backlog(&mut self, port: u16) -> Vec<RouteId> {
        let waiting: Vec<_> = self.backlogs.range((port, 0)..=(port, u64::MAX)).map(|(key, _)| *key).collect();
        waiting.iter().filter_map(|key| self.backlogs.remove(key)).collect()
    }

    /// Takes out what waits anywhere.
    pub(crate) fn take_backlogs(&mut self) -> Vec<RouteId> {
        std::mem::take(&mut self.backlogs).into_values().collect()
    }

    pub(crate) fn sockets(&self) -> Vec<SocketId> {
        self.sockets.iter().copied().collect()
    }

    // ---- doorbells

    /// Takes slots that the application marked.
    pub(crate) fn take_doorbells(&mut self, out: &mut Vec<u32>, max: usize) {
        let before = out.len();
        self.a2e.take(out, max);
        if self.first_slot > 0 {
            out.iter_mut().skip(before).for_each(|slot| *slot += self.first_slot);
        }
    }

    /// Whether there are any.
    pub(crate) fn has_rung(&self) -> bool {
        self.a2e.is_dirty()
    }

    /// Marks a slot for the application. With `awaited` it has to be woken if it sleeps; true: that is new in this
    /// round.
    #[inline]
    pub(crate) fn ring(&mut self, slot: u32, awaited: bool) -> bool {
        self.e2a.ring(slot);
        awaited && !std::mem::replace(&mut self.is_touched, true)
    }

    /// The round is over: whether it has to be woken.
    pub(crate) fn end_round(&mut self) -> bool {
        self.is_touched = false;
        self.must_wake()
    }

    // ---- rows

    /// Its row, with what live connections carried and is not counted yet.
    pub(crate) fn row(&self, live: Carried, verbs: VerbCounts) -> AppRow {
        AppRow {
            pid: self.pid,
            uid: self.uid,
            name: self.name.clone(),
            connections: self.connections,
            tx_bytes: self.tx_bytes.wrapping_add(live.tx),
            rx_bytes: self.rx_bytes.wrapping_add(live.rx),
            pinned_bytes: self.pool.bytes(),
            reads: verbs.reads,
            writes: verbs.writes,
            atomics: verbs.atomics,
            kernels: verbs.kernels,
            // The control plane knows it.
            tenant: String::new(),
            session: 0,
        }
    }

    /// Counts what its connections carried. A lane's reset takes back what was sent and did not arrive: sums wrap.
    pub(crate) fn count_bytes(&mut self, carried: Carried) {
        self.tx_bytes = self.tx_bytes.wrapping_add(carried.tx);
        self.rx_bytes = self.rx_bytes.wrapping_add(carried.rx);
    }

    /// Whether an access to its memory could not be served.
    pub(crate) fn has_faulted(&self) -> bool {
        self.session.has_faulted() || self.pool.has_faulted()
    }

    /// Whether its memory may be dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.leaving && self.connections == 0 && self.waiting == 0 && self.sockets.is_empty() && self.queues == 0
    }

    /// Why it is leaving, as its peers get it.
    pub(crate) fn reason_for_peers(reason: Reason) -> Reason {
        match reason {
            Reason::ShuttingDown => Reason::ShuttingDown,
            _ => Reason::PeerAppDied,
        }
    }
}
