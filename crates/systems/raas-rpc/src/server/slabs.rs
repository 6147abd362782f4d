//! The memory in which clients put requests: one region for each worker, cut into slabs.
//!
//! Owns which client has which slab. A slab is swept before it is granted and after its client has ended, and rests a
//! while in between, so that what the old client still had under way does not land among the new one's requests. If it
//! does, its token tells.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use raas::{DatagramSocket, MessageStream, Region, RegionAccess, RegionError, RegionKey, RegionOptions, Session};

use super::clients::KnownClient;
use super::{ServerBuilder, lock};
use crate::error::ServeError;
use crate::hello::{Grant, Refusal, RingName, Seating, Transport};
use crate::layout::{Layout, WORD_BYTES};

/// How long a slab rests before it is another client's.
const REST: Duration = Duration::from_secs(1);
/// How long a slot of the region stays in a worker's way; the region is made of whole pages.
const PAGE_BYTES: u64 = 4096;
/// How long a worker may wait for room for a datagram.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Seats beyond those of the widest group, for each client of one that has not grown: those of the group before, and of
/// late requests.
const SPARE_SEATS: u32 = 3;

/// A worker that has clients with turns is awake for so many times as long.
const AWAKE_OF_TURNS: u32 = 4;

/// The memory and the socket of a worker, made anew when the daemon was lost.
#[derive(Debug)]
pub(crate) struct WorkerMemory {
    pub(crate) region: Region,
    pub(crate) socket: DatagramSocket,
    name: String,
}

/// A client's slab.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) token: u64,
    pub(crate) record: Arc<KnownClient>,
    pub(crate) transport: Transport,
    /// Where its datagrams go, and how long they may be.
    pub(crate) datagrams: SocketAddr,
    pub(crate) datagram_max: usize,
    place: Arc<WorkerMemory>,
    is_over: AtomicBool,
    /// Of a client with turns, when it has told it.
    ring: OnceLock<ClientRing>,
}

/// A client's own memory, in which it lays requests down between its turns.
#[derive(Debug)]
pub(crate) struct ClientRing {
    pub(crate) region: Region,
    pub(crate) bytes: u64,
    control: MessageStream,
}

#[derive(Debug, Default)]
struct Table {
    active: BTreeMap<u32, Arc<Slab>>,
    resting: VecDeque<(Instant, u32)>,
    /// Slabs from here on were never granted.
    fresh: u32,
    free: Vec<u32>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Slabs {
    pub(crate) layout: Layout,
    slots: u16,
    max: u32,
    seats: u32,
    awake: Duration,
    host: IpAddr,
    session: Mutex<Session>,
    place: Mutex<Arc<WorkerMemory>>,
    table: Mutex<Table>,
    /// Raised with each change of the table, so that the worker looks.
    changes: AtomicU64,
}

fn random() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Slabs {
    pub(crate) fn make(
        session: &Session,
        host: IpAddr,
        layout: Layout,
        settings: &ServerBuilder,
    ) -> Result<Self, ServeError> {
        let seats = u32::from(settings.group_max()) + SPARE_SEATS * u32::from(settings.group);
        let place = Self::make_place(session, host, layout.bytes(settings.clients_max, seats))?;
        Ok(Self {
            layout,
            slots: settings.window,
            max: settings.clients_max,
            seats,
            awake: settings.awake,
            host,
            session: Mutex::new(session.clone()),
            place: Mutex::new(Arc::new(place)),
            table: Mutex::default(),
            changes: AtomicU64::new(1),
        })
    }

    fn make_place(session: &Session, host: IpAddr, bytes: u64) -> Result<WorkerMemory, ServeError> {
        let name = format!("rpc-{:016x}", random()?);
        let region = RegionOptions::new().create(session, &name, bytes.next_multiple_of(PAGE_BYTES))?;
        let socket = DatagramSocket::bind_with(session, SocketAddr::new(host, 0))?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(WorkerMemory { region, socket, name })
    }

    /// The daemon was lost, and with it the memory: all slabs are over, and there is another place.
    pub(crate) fn renew(&self) -> Result<(), ServeError> {
        let session = lock(&self.session).reattach().map_err(RegionError::from)?;
        let place = Self::make_place(&session, self.host, self.layout.bytes(self.max, self.seats))?;
        *lock(&self.session) = session;
        let mut table = lock(&self.table);
        for slab in table.active.values() {
            slab.is_over.store(true, Ordering::Release);
        }
        *table = Table::default();
        *lock(&self.place) = Arc::new(place);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn place(&self) -> Arc<WorkerMemory> {
        Arc::clone(&lock(&self.place))
    }

    /// How long a worker looks after the last request. Longer for clients with turns, which wait for each other.
    pub(crate) fn awake_for(&self, has_turns: bool) -> Duration {
        self.awake * if has_turns { AWAKE_OF_TURNS } else { 1 }
    }

    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    pub(crate) fn seats(&self) -> u32 {
        self.seats
    }

    /// Where the clients' words begin.
    pub(crate) fn words_at(&self) -> u64 {
        self.layout.words_at(self.max)
    }

    fn word_at(&self, number: u32) -> u64 {
        self.words_at() + u64::from(number) * WORD_BYTES
    }

    /// Nothing of another client is left in a seat; returns where it begins.
    pub(crate) fn clear_seat(&self, place: &WorkerMemory, seat: u32) -> Result<u64, RegionError> {
        let at = self.layout.seats_at(self.max) + u64::from(seat) * self.layout.seat_bytes();
        for slot in 0..u64::from(self.slots) {
            place.region.store(at + self.layout.request_at(slot), 0)?;
        }
        Ok(at)
    }

    pub(crate) fn granted(&self) -> u64 {
        lock(&self.table).active.len() as u64
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn active(&self) -> Vec<Arc<Slab>> {
        lock(&self.table).active.values().map(Arc::clone).collect()
    }

    /// A slab that nobody has.
    fn take_number(&self) -> Option<u32> {
        let mut table = lock(&self.table);
        while table.resting.front().is_some_and(|(since, _)| since.elapsed() > REST) {
            let (_, number) = table.resting.pop_front()?;
            table.free.push(number);
        }
        if let Some(number) = table.free.pop() {
            return Some(number);
        }
        if table.fresh < self.max {
            table.fresh += 1;
            return Some(table.fresh - 1);
        }
        // Better one that has not rested for long than none.
        table.resting.pop_front().map(|(_, number)| number)
    }

    /// Nothing of a client is left in a slab's slots.
    fn sweep(&self, place: &WorkerMemory, number: u32, has_turns: bool) -> Result<(), RegionError> {
        if has_turns {
            // Its slots stay untouched, but for responses that are too long for a datagram, which have its token.
            return place.region.store(self.word_at(number), 0);
        }
        let offset = u64::from(number) * self.layout.slab_bytes();
        for slot in 0..u64::from(self.slots) {
            place.region.store(offset + self.layout.request_at(slot), 0)?;
            place.region.store(offset + self.layout.response_at(slot), 0)?;
        }
        Ok(())
    }
}

impl Slab {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn has_turns(&self) -> bool {
        self.transport == Transport::Scale
    }

    /// Where its client lays requests down.
    pub(crate) fn ring(&self) -> Option<&ClientRing> {
        self.ring.get()
    }

    /// Ends the connection of a client with turns.
    pub(crate) fn hang_up(&self) {
        if let Some(ring) = self.ring.get() {
            // It fails if the connection has ended.
            let _ = ring.control.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A client's right to its slab; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SlabLease {
    slabs: Arc<Slabs>,
    slab: Arc<Slab>,
}

impl SlabLease {
    pub(crate) fn grant(
        slabs: &Arc<Slabs>,
        record: &Arc<KnownClient>,
        transport: Transport,
        datagrams: SocketAddr,
    ) -> Result<Self, Refusal> {
        let place = slabs.place();
        // Asked here, so that no worker waits for a way to this host later.
        let datagram_max = place.socket.max_payload(datagrams).map_err(|_| Refusal::Datagrams(datagrams))?;
        let number = slabs.take_number().ok_or(Refusal::TooManyClients { max: slabs.max })?;
        let offset = u64::from(number) * slabs.layout.slab_bytes();
        let token = random();
        let (Ok(token), Ok(())) = (token, slabs.sweep(&place, number, transport == Transport::Scale)) else {
            lock(&slabs.table).free.push(number);
            return Err(Refusal::NotOffered(transport));
        };
        let is_over = AtomicBool::new(false);
        let record = Arc::clone(record);
        let ring = OnceLock::new();
        let slab = Slab { number, offset, token, record, transport, datagrams, datagram_max, place, is_over, ring };
        let slab = Arc::new(slab);
        lock(&slabs.table).active.insert(number, Arc::clone(&slab));
        slabs.changes.fetch_add(1, Ordering::Release);
        Ok(Self { slabs: Arc::clone(slabs), slab })
    }

    /// The client has told where it lays requests down: from here on they are looked for.
    pub(crate) fn open_ring(&self, host: IpAddr, name: &RingName, control: &MessageStream) -> Result<(), Refusal> {
        let session = lock(&self.slabs.session).clone();
        let refusal = |e: &dyn std::fmt::Display| Refusal::Ring(e.to_string());
        let key = RegionKey::new(name.key);
        let region =
            Region::open_for(&session, host, &name.region, key, RegionAccess::READ).map_err(|e| refusal(&e))?;
        let bytes = region.bytes();
        if !bytes.is_power_of_two() {
            return Err(refusal(&format_args!("it has {bytes} bytes, which is no power of two")));
        }
        let control = control.try_clone().map_err(|e| refusal(&e))?;
        let _ = self.slab.ring.set(ClientRing { region, bytes, control });
        self.slabs.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// What the client must know.
    pub(crate) fn words(&self) -> Grant {
        let Slab { number, offset, token, place, .. } = &*self.slab;
        let from = place.socket.local_addr().map_or(self.slabs.host, |addr| addr.ip());
        let port = place.socket.local_addr().map_or(0, |addr| addr.port());
        Grant {
            region: place.name.clone(),
            key: *place.region.key().as_bytes(),
            offset: *offset,
            slots: self.slabs.slots,
            slab: *number,
            token: *token,
            datagrams: SocketAddr::new(from, port),
            seating: self.slab.has_turns().then(|| Seating {
                word: self.slabs.word_at(*number),
                seats: self.slabs.layout.seats_at(self.slabs.max),
                count: self.slabs.seats,
            }),
            awake_us: u32::try_from(self.slabs.awake_for(self.slab.has_turns()).as_micros()).unwrap_or(u32::MAX),
        }
    }
}

impl Drop for SlabLease {
    fn drop(&mut self) {
        // After a renewal the table is another one.
        if self.slab.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let _ = self.slabs.sweep(&self.slab.place, self.slab.number, self.slab.has_turns());
        let mut table = lock(&self.slabs.table);
        table.active.remove(&self.slab.number);
        table.resting.push_back((Instant::now(), self.slab.number));
        self.slabs.changes.fetch_add(1, Ordering::Release);
    }
}
