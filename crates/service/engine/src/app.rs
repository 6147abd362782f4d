//! One attached application: session, slots, rings.
//!
//! Owns which slots are in use and their generations. It must never reuse a slot before the connection in it is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use control::Reason;
use shm::{Doorbell, Session, SlotWords, Word32, slot_state};
use std::sync::atomic::Ordering;

use crate::connect::ConnectId;
use crate::datagram::SocketId;
use crate::event::Attach;
use crate::limits::SLOT_REUSE_DELAY;
use crate::ringpool::RingPool;
use crate::table::{INDEX_BITS, KEY_BITS, Key, REUSE_DELAY};
use crate::vqp::RouteId;

/// An attached application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(pub u32);

impl Key for AppId {
    const INDEX_BITS: u32 = INDEX_BITS;
    const KEY_BITS: u32 = KEY_BITS;
    const REUSE_DELAY: usize = REUSE_DELAY;

    fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
    fn bits(self) -> u32 {
        self.0
    }
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    route: Option<RouteId>,
    socket: Option<SocketId>,
}

/// An application and what it holds.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) name: String,
    session: Session,
    pub(crate) a2e: Doorbell,
    pub(crate) e2a: Doorbell,
    app_sleep: Word32,
    /// Slots that were ever used, by number.
    slots: Vec<Slot>,
    free_slots: VecDeque<u32>,
    pub(crate) pool: RingPool,
    /// Virtual QPs.
    pub(crate) connections: u32,
    /// Connects and parked opens that have no virtual QP yet.
    pub(crate) waiting: u32,
    pub(crate) connects: BTreeMap<u64, ConnectId>,
    pub(crate) listeners: BTreeSet<u16>,
    /// Datagram sockets.
    pub(crate) sockets: BTreeSet<SocketId>,
    /// Detached: only the memory is still here.
    pub(crate) leaving: bool,
    /// Its connections were all reset, for it left too long ago.
    pub(crate) is_overdue: bool,
    /// Its doorbell was rung in this round.
    pub(crate) is_touched: bool,
    /// Of connections that are over, and of others as far as they were counted.
    pub(crate) tx_bytes: u64,
    pub(crate) rx_bytes: u64,
}

impl App {
    pub(crate) fn new(attach: Attach, ring_memory_max: u64) -> Self {
        let Attach { pid, uid, name, session } = attach;
        Self {
            pid,
            uid,
            name,
            a2e: session.a2e(),
            e2a: session.e2a(),
            app_sleep: session.app_sleep(),
            session,
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            pool: RingPool::new(ring_memory_max),
            connections: 0,
            waiting: 0,
            connects: BTreeMap::new(),
            listeners: BTreeSet::new(),
            sockets: BTreeSet::new(),
            leaving: false,
            is_overdue: false,
            is_touched: false,
            tx_bytes: 0,
            rx_bytes: 0,
        }
    }

    /// Whether a slot is free.
    pub(crate) fn has_slot(&self) -> bool {
        !self.free_slots.is_empty() || (self.slots.len() as u64) < u64::from(self.session.slots())
    }

    /// Takes a slot for a connection: number, generation, words. Those freed longest ago come first.
    pub(crate) fn take_slot(&mut self, route: RouteId) -> Option<(u32, u32, Box<SlotWords>)> {
        self.take_slot_for(Some(route), None)
    }

    /// As [`App::take_slot`], for a datagram socket.
    pub(crate) fn take_socket_slot(&mut self, socket: SocketId) -> Option<(u32, u32, Box<SlotWords>)> {
        self.take_slot_for(None, Some(socket))
    }

    fn take_slot_for(
        &mut self,
        route: Option<RouteId>,
        socket: Option<SocketId>,
    ) -> Option<(u32, u32, Box<SlotWords>)> {
        let fresh = (self.slots.len() as u64) < u64::from(self.session.slots());
        let number = if fresh && self.free_slots.len() < SLOT_REUSE_DELAY {
            self.slots.push(Slot { generation: 1, route: None, socket: None });
            self.slots.len() as u32 - 1
        } else {
            self.free_slots.pop_front()?
        };
        let slot = self.slots.get_mut(number as usize)?;
        (slot.route, slot.socket) = (route, socket);
        Some((number, slot.generation, Box::new(self.session.slot(number))))
    }

    /// Gives a slot back: the generation moves on, so that the application's stale words count no more.
    pub(crate) fn put_back_slot(&mut self, number: u32, words: &SlotWords) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        (slot.route, slot.socket) = (None, None);
        slot.generation = if slot.generation == u32::MAX { 1 } else { slot.generation + 1 };
        words.generation.store(slot.generation, Ordering::Relaxed);
        words.state.store(slot_state::FREE, Ordering::Release);
        self.free_slots.push_back(number);
    }

    /// The connection in a slot.
    #[inline]
    pub(crate) fn route_at(&self, slot: u32) -> Option<RouteId> {
        self.slots.get(slot as usize)?.route
    }

    /// The datagram socket in a slot.
    pub(crate) fn socket_at(&self, slot: u32) -> Option<SocketId> {
        self.slots.get(slot as usize)?.socket
    }

    /// All connections.
    pub(crate) fn routes(&self) -> impl Iterator<Item = RouteId> {
        self.slots.iter().filter_map(|s| s.route)
    }

    /// Whether it sleeps and has to be woken. Clears the flag: one wake is enough until it goes to sleep again, and
    /// whoever is told here that it sleeps does wake it.
    pub(crate) fn must_wake(&self) -> bool {
        if !self.e2a.must_wake(&self.app_sleep) {
            return false;
        }
        self.app_sleep.swap(0, Ordering::AcqRel) != 0
    }

    /// Counts what its connections carried. A lane's reset takes back what was sent and did not arrive: sums wrap.
    pub(crate) fn count_bytes(&mut self, tx: u64, rx: u64) {
        self.tx_bytes = self.tx_bytes.wrapping_add(tx);
        self.rx_bytes = self.rx_bytes.wrapping_add(rx);
    }

    /// Whether its memory may be dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.leaving && self.connections == 0 && self.waiting == 0 && self.sockets.is_empty()
    }

    /// Why it is leaving, as its peers are told.
    pub(crate) fn reason_for_peers(reason: Reason) -> Reason {
        match reason {
            Reason::ShuttingDown => Reason::ShuttingDown,
            _ => Reason::PeerAppDied,
        }
    }
}

/// Writes the engine's half of a slot for a new connection or socket, and clears the application's.
///
/// The application's half is ignored until it stores the slot's generation in `app_generation`.
pub(crate) fn clear_slot(words: &SlotWords, generation: u32, epoch: u32, state: u32) {
    words.app_generation.store(0, Ordering::Relaxed);
    words.tx_tail.store(0, Ordering::Relaxed);
    words.rx_head.store(0, Ordering::Relaxed);
    words.app_flags.store(0, Ordering::Relaxed);
    words.app_wait.store(0, Ordering::Relaxed);
    words.peer_timeout_ms.store(0, Ordering::Relaxed);
    words.tx_head.store(0, Ordering::Relaxed);
    words.rx_tail.store(0, Ordering::Relaxed);
    words.engine_flags.store(0, Ordering::Relaxed);
    words.reason.store(0, Ordering::Relaxed);
    shm::reset_rest(words);
    words.epoch.store(epoch.into(), Ordering::Relaxed);
    words.generation.store(generation, Ordering::Relaxed);
    words.state.store(state, Ordering::Release);
}
