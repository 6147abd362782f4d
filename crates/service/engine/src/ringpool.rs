//! The rings of one application: places in chunks, by size class.
//!
//! Owns which ring is free. It must never give out a ring twice, and takes one back only from a connection that is
//! over. A class is a size, a power of two, or the one size of rings that grow; each chunk holds rings of one class and
//! direction. Chunks come from the daemon when they are asked for; what waits for them waits here, in order. A ring that
//! may grow counts with the bytes that it uses: the pages of the others do not exist.

mod brought;
mod retired;

use std::collections::{BTreeMap, VecDeque};

use control::{ChunkKind, Path};
use shm::RingMemory;
use verbs::{Lkey, Mr, MrId, Region, Rkey, Time};

use crate::frame::WireRing;
use crate::ids::{BindId, ConnectId, OpenId, QueueBindId};
use crate::limits::{CHUNK_BYTES_TARGET, CHUNK_RINGS_FIRST, CHUNKS_PER_APP_MAX, RING_BYTES_MIN, RING_CLASSES};
use crate::numbers::{count, few, index};
use crate::ring_size::RingSize;

pub(crate) use retired::{Retired, Slice};

/// Where a ring lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index in the pool.
    chunk: u32,
    /// The daemon's number of the chunk.
    pub(crate) chunk_number: u32,
    pub(crate) offset: u64,
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
}

impl Place {
    /// The ring as the peer gets it; it uses so much of it.
    pub(crate) fn wire_ring(&self, size: RingSize) -> WireRing {
        WireRing { size, rkey: self.rkey.0, addr: self.offset }
    }
}

/// A tx and an rx ring of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingPair {
    pub(crate) tx: Place,
    pub(crate) rx: Place,
}

impl RingPair {
    /// Whether one of them lies in this chunk, by the daemon's number.
    pub(crate) fn is_in(&self, chunk: u32) -> bool {
        self.tx.chunk_number == chunk || self.rx.chunk_number == chunk
    }

    /// What an application is told of the slot that has these rings, of which so much is used.
    pub(crate) fn path(&self, slot: u32, generation: u32, size: RingSize) -> Path {
        Path::Lane {
            slot,
            generation,
            tx_chunk: self.tx.chunk_number,
            tx_offset: self.tx.offset,
            rx_chunk: self.rx.chunk_number,
            rx_offset: self.rx.offset,
            ring_bytes: size.first,
            grown_bytes: size.grown,
        }
    }
}

/// Who waits for rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A connect of the application.
    Connect(ConnectId),
    /// A peer's open for one of its listeners.
    Open(OpenId),
    /// A bind of a datagram socket.
    Bind(BindId),
    /// An opening of an operation queue.
    Queue(QueueBindId),
}

#[derive(Debug)]
struct Chunk {
    number: u32,
    kind: ChunkKind,
    class: usize,
    size: RingSize,
    mr: Mr,
    /// By which peers may read it, once a connection in it chose that.
    lent: Option<Mr>,
    /// Bytes that count.
    counted: u64,
    used: u32,
    rings: Vec<RingUse>,
    /// Its rings are given to no further connection.
    is_closed: bool,
    /// The rings of it that are free stand in the list. Those of a chunk that an application brings along do so after
    /// its connections have taken theirs, so that none has to be looked for.
    is_listed: bool,
    /// Keeps the memory mapped.
    region: Region,
}

/// What a ring's pages depend on.
#[derive(Debug, Clone, Copy, Default)]
struct RingUse {
    is_taken: bool,
    /// It counts with all of its bytes.
    is_grown: bool,
    /// All of its bytes may have pages.
    was_grown: bool,
    freed_at: Time,
    /// [`RingPool::put_back`] reported it, and [`RingPool::look_at_free`] still watches it.
    is_watched: bool,
}

/// What is to be done about a ring that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeRing {
    /// Nothing: it is in use again, or gone.
    Used,
    /// It was in use meanwhile; free since then.
    Since(Time),
    /// Its pages may go.
    Rests { mr: MrId, bytes: u64 },
}

/// Rings that came back.
#[derive(Debug, Default)]
pub(crate) struct PutBack {
    /// Chunks that left the pool.
    pub(crate) retired: Vec<Retired>,
    /// Rings that have pages, in chunks that stay.
    pub(crate) used: Vec<Place>,
}

/// Chunks that were asked for and have not come.
#[derive(Debug, Clone, Copy)]
struct Asked {
    tx: bool,
    rx: bool,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Class {
    free: [Vec<Place>; 2],
    in_use: u32,
    waiting: VecDeque<Waiter>,
    asked: Option<Asked>,
}

/// The chunk cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkError {
    RingBytes,
    Length,
    Duplicate,
    Full,
}

/// The rings of one application.
#[derive(Debug)]
pub(crate) struct RingPool {
    chunks: Vec<Option<Chunk>>,
    /// Their indices by the daemon's numbers.
    by_number: BTreeMap<u32, u32>,
    /// By the power of two, and at last the rings that grow.
    classes: [Class; RING_CLASSES + 1],
    growing: RingSize,
    bytes: u64,
    bytes_max: u64,
}

const fn direction(kind: ChunkKind) -> usize {
    match kind {
        ChunkKind::Tx => 0,
        ChunkKind::Rx => 1,
    }
}

impl Asked {
    /// Bytes of those that have not come.
    const fn missing_bytes(&self) -> u64 {
        self.bytes / 2 * (!self.tx as u64 + !self.rx as u64)
    }
}

impl Chunk {
    /// Bytes of a free ring that may have pages.
    fn paged_bytes(&mut self, place: &Place) -> u64 {
        let RingSize { first, grown } = self.size;
        let was_grown = self.ring_at(place).is_some_and(|ring| ring.was_grown);
        if was_grown { grown.into() } else { first.into() }
    }
}

impl RingPool {
    /// Of at most `bytes_max` bytes; rings that grow are all of the size `growing`.
    pub(crate) fn new(bytes_max: u64, growing: RingSize) -> Self {
        Self {
            chunks: Vec::new(),
            by_number: BTreeMap::new(),
            classes: Default::default(),
            growing,
            bytes: 0,
            bytes_max,
        }
    }

    /// The class of rings of this size.
    fn class_of(&self, size: RingSize) -> Option<usize> {
        if size.grows() {
            return (size == self.growing).then_some(RING_CLASSES);
        }
        let class = (size.first.checked_ilog2()?).checked_sub(RING_BYTES_MIN.ilog2())? as usize;
        (size.first.is_power_of_two() && class < RING_CLASSES).then_some(class)
    }

    /// Bytes of all chunks that count.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same, and those that were asked for and have not come.
    pub(crate) fn bytes_with_asked(&self) -> u64 {
        let asked: u64 = self.classes.iter().filter_map(|c| c.asked).map(|asked| asked.missing_bytes()).sum();
        self.bytes + asked
    }

    /// Bytes that the application may still have, beyond what counts and what was asked for.
    pub(crate) fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.bytes_with_asked())
    }

    /// Chunks.
    #[cfg(test)]
    pub(crate) fn chunks(&self) -> u32 {
        self.chunks.iter().flatten().count() as u32
    }

    /// Checks a chunk before it is registered; how many rings it has.
    pub(crate) fn check_chunk(&self, number: u32, size: RingSize, region: &Region) -> Result<u32, ChunkError> {
        self.class_of(size).ok_or(ChunkError::RingBytes)?;
        let rings = region.len() / u64::from(size.grown);
        if rings == 0 || rings > u64::from(u32::MAX) {
            return Err(ChunkError::Length);
        }
        if self.by_number.contains_key(&number) {
            return Err(ChunkError::Duplicate);
        }
        if self.by_number.len() >= CHUNKS_PER_APP_MAX {
            return Err(ChunkError::Full);
        }
        Ok(few(rings))
    }

    /// Adds a chunk that [`Self::check_chunk`] passed and the device registered.
    pub(crate) fn add_chunk(&mut self, number: u32, kind: ChunkKind, size: RingSize, region: Region, mr: Mr) {
        let Some(index) = self.add_unlisted(number, kind, size, region, mr) else { return };
        let Some(chunk) = self.chunks.get_mut(index as usize).and_then(Option::as_mut) else { return };
        chunk.is_listed = true;
        let c = &mut self.classes[chunk.class];
        // The lowest ring is taken first, so that a chunk that is hardly used stays in few pages.
        c.free[direction(kind)].extend((0..count(chunk.rings.len())).rev().map(|i| chunk.place(index, i)));
        if let Some(asked) = &mut c.asked {
            match kind {
                ChunkKind::Tx => asked.tx = true,
                ChunkKind::Rx => asked.rx = true,
            }
            if asked.tx && asked.rx {
                c.asked = None;
            }
        }
    }

    fn add_unlisted(&mut self, number: u32, kind: ChunkKind, size: RingSize, region: Region, mr: Mr) -> Option<u32> {
        let class = self.class_of(size)?;
        let rings = few(region.len() / u64::from(size.grown));
        let index = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        if index == self.chunks.len() {
            self.chunks.push(None);
        }
        let counted = u64::from(rings) * u64::from(size.first);
        self.bytes += counted;
        self.by_number.insert(number, count(index));
        let rings = vec![RingUse::default(); rings as usize];
        self.chunks[index] = Some(Chunk {
            number,
            kind,
            class,
            size,
            mr,
            lent: None,
            counted,
            used: 0,
            rings,
            is_closed: false,
            is_listed: false,
            region,
        });
        Some(count(index))
    }

    /// The memory region of a ring.
    pub(crate) fn mr_of(&self, place: &Place) -> Option<MrId> {
        Some(self.chunks.get(place.chunk as usize)?.as_ref()?.mr.id)
    }

    fn chunk_of(&self, place: &Place) -> Option<&Chunk> {
        self.chunks.get(place.chunk as usize)?.as_ref()
    }

    /// The key by which peers may read a ring's chunk.
    pub(crate) fn lend_key(&self, place: &Place) -> Option<Rkey> {
        Some(self.chunk_of(place)?.lent?.rkey)
    }

    /// The memory of a ring's chunk.
    pub(crate) fn region_of(&self, place: &Place) -> Option<Region> {
        Some(self.chunk_of(place)?.region.clone())
    }

    /// Peers may read a ring's chunk by this registration.
    pub(crate) fn set_lent(&mut self, place: &Place, mr: Mr) {
        if let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) {
            chunk.lent = Some(mr);
        }
    }

    /// Copies bytes into a ring that was taken. False: the memory is gone.
    pub(crate) fn write(&self, place: &Place, at: u64, bytes: &[u8]) -> bool {
        self.chunk_of(place).is_some_and(|chunk| chunk.region.write(place.offset + at, bytes).is_ok())
    }

    /// Copies bytes out of a ring that was taken. False: the memory is gone.
    pub(crate) fn read(&self, place: &Place, at: u64, out: &mut [u8]) -> bool {
        self.chunk_of(place).is_some_and(|chunk| chunk.region.read(place.offset + at, out).is_ok())
    }

    /// Takes a tx and an rx ring.
    pub(crate) fn take(&mut self, size: RingSize) -> Option<RingPair> {
        let class = self.class_of(size)?;
        let class = &mut self.classes[class];
        if class.free.iter().any(Vec::is_empty) {
            return None;
        }
        let pair = RingPair { tx: class.free[0].pop()?, rx: class.free[1].pop()? };
        class.in_use += 1;
        self.mark_taken(&pair);
        Some(pair)
    }

    fn mark_taken(&mut self, pair: &RingPair) {
        for place in [pair.tx, pair.rx] {
            if let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) {
                chunk.used += 1;
                if let Some(ring) = chunk.ring_at(&place) {
                    ring.is_taken = true;
                }
            }
        }
    }

    /// Lets a ring that was taken use all of its bytes. False: the application's memory does not allow it, or its tenant has
    /// fewer bytes `left`.
    pub(crate) fn grow(&mut self, place: &Place, left: u64) -> bool {
        let left = left.min(self.left());
        let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) else { return false };
        let more = chunk.size.more();
        let Some(ring) = chunk.ring_at(place).filter(|ring| more <= left || ring.is_grown) else { return false };
        if !std::mem::replace(&mut ring.is_grown, true) {
            ring.was_grown = true;
            chunk.counted += more;
            self.bytes += more;
        }
        true
    }

    /// A ring that was to grow does not use its further bytes after all.
    pub(crate) fn shrink(&mut self, place: &Place) {
        let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) else { return };
        let more = chunk.size.more();
        if chunk.ring_at(place).is_some_and(|ring| std::mem::take(&mut ring.is_grown)) {
            chunk.counted -= more;
            self.bytes -= more;
        }
    }

    /// See [`Region::has_faulted`].
    pub(crate) fn has_faulted(&self) -> bool {
        self.chunks.iter().flatten().any(|chunk| chunk.region.has_faulted())
    }

    /// The memory of a ring that was taken, of which `bytes` are used.
    pub(crate) fn memory(&self, place: Place, bytes: u32) -> Option<RingMemory> {
        let chunk = self.chunks.get(place.chunk as usize)?.as_ref()?;
        Some(RingMemory { region: chunk.region.clone(), offset: place.offset, bytes: bytes.into() })
    }

    /// Takes back the rings of a connection that is over. Chunks that become spare leave the pool.
    pub(crate) fn put_back(&mut self, now: Time, pair: RingPair) -> PutBack {
        let mut back = PutBack::default();
        for (kind, place) in [(ChunkKind::Tx, pair.tx), (ChunkKind::Rx, pair.rx)] {
            self.shrink(&place);
            let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) else { continue };
            chunk.used -= 1;
            let (class, is_closed) = (chunk.class, chunk.is_closed);
            let spare = chunk.used == 0 && (chunk.is_listed || is_closed);
            let is_listed = chunk.is_listed;
            if !is_closed && let Some(ring) = chunk.ring_at(&place) {
                (ring.is_taken, ring.freed_at) = (false, now);
                if !std::mem::replace(&mut ring.is_watched, true) {
                    back.used.push(place);
                }
            }
            if !is_closed && is_listed {
                self.classes[class].free[direction(kind)].push(place);
            }
            if kind == ChunkKind::Tx {
                self.classes[class].in_use -= 1;
            }
            match (spare, is_closed) {
                (true, true) => self.retire(place.chunk as usize, &mut back.retired),
                (true, false) => self.retire_spare(place.chunk as usize, &mut back.retired),
                (false, _) => {}
            }
        }
        back
    }

    /// A ring that was put back `since` then at least: whether its pages may go.
    pub(crate) fn look_at_free(&mut self, place: &Place, since: Time) -> FreeRing {
        let Some(chunk) = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut) else {
            return FreeRing::Used;
        };
        if chunk.number != place.chunk_number {
            return FreeRing::Used;
        }
        let (mr, bytes) = (chunk.mr.id, chunk.paged_bytes(place));
        let Some(ring) = chunk.ring_at(place) else { return FreeRing::Used };
        if !ring.is_taken && ring.freed_at > since {
            return FreeRing::Since(ring.freed_at);
        }
        if ring.is_taken {
            ring.is_watched = false;
            return FreeRing::Used;
        }
        FreeRing::Rests { mr, bytes }
    }

    /// Whether so many bytes are all of a ring.
    pub(crate) fn is_whole(&mut self, place: &Place, bytes: u64) -> bool {
        let chunk = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut);
        chunk.is_none_or(|chunk| bytes >= chunk.paged_bytes(place))
    }

    /// The pages of a free ring are gone.
    pub(crate) fn on_rested(&mut self, place: &Place) {
        let chunk = self.chunks.get_mut(place.chunk as usize).and_then(Option::as_mut);
        if let Some(ring) = chunk.and_then(|c| c.ring_at(place)) {
            (ring.is_watched, ring.was_grown) = (false, false);
        }
    }

    /// Gives no more rings of a chunk out; it leaves the pool when none of them is in use.
    pub(crate) fn close_chunk(&mut self, number: u32, retired: &mut Vec<Retired>) {
        let Some(index) = self.by_number.get(&number).map(|index| *index as usize) else { return };
        let Some(chunk) = self.chunks[index].as_mut() else { return };
        chunk.is_closed = true;
        let unused = chunk.used == 0;
        self.classes[chunk.class].free[direction(chunk.kind)].retain(|p| p.chunk as usize != index);
        if unused {
            self.retire(index, retired);
        }
    }

    fn retire(&mut self, index: usize, retired: &mut Vec<Retired>) {
        if let Some(chunk) = self.chunks[index].take() {
            self.by_number.remove(&chunk.number);
            self.bytes -= chunk.counted;
            retired.push(chunk.into());
        }
    }

    /// Lets an unused chunk go if as many rings as it has, and as many as are in use, are free elsewhere: an
    /// application that opens and closes around a chunk's edge must not register and deregister each time.
    fn retire_spare(&mut self, index: usize, retired: &mut Vec<Retired>) {
        let Some(chunk) = self.chunks.get(index).and_then(Option::as_ref) else { return };
        let class = &mut self.classes[chunk.class];
        let free = &mut class.free[direction(chunk.kind)];
        let elsewhere = free.len() - chunk.rings.len();
        if elsewhere < chunk.rings.len().max(class.in_use as usize) {
            return;
        }
        free.retain(|p| p.chunk as usize != index);
        self.retire(index, retired);
    }

    /// Everything leaves: the application is gone and no connection uses a ring.
    pub(crate) fn retire_all(&mut self) -> Vec<Retired> {
        self.classes = Default::default();
        self.by_number.clear();
        self.bytes = 0;
        self.chunks.drain(..).flatten().map(Retired::from).collect()
    }

    /// Puts somebody at the end of the queue for rings.
    pub(crate) fn wait(&mut self, size: RingSize, waiter: Waiter) {
        if let Some(class) = self.class_of(size) {
            self.classes[class].waiting.push_back(waiter);
        }
    }

    /// How many rings of each direction the daemon should make now, if somebody waits and nothing was asked. `Err`: the
    /// application's memory, or the bytes that its tenant has `left`, do not allow any.
    pub(crate) fn ask(&mut self, size: RingSize, left: u64) -> Result<Option<u32>, ()> {
        let left = left.min(self.left());
        let Some(index) = self.class_of(size) else { return Err(()) };
        let class = &mut self.classes[index];
        if class.waiting.is_empty() || class.asked.is_some() {
            return Ok(None);
        }
        let ring = u64::from(size.first);
        let target = (CHUNK_BYTES_TARGET / ring).max(1);
        let wanted = u64::from(class.in_use.max(CHUNK_RINGS_FIRST)).max(class.waiting.len() as u64);
        let rings = wanted.min(target).min(left / (2 * ring));
        if rings == 0 {
            return Err(());
        }
        class.asked = Some(Asked { tx: false, rx: false, bytes: 2 * ring * rings });
        Ok(Some(few(rings)))
    }

    /// The first in the queue, if there are rings for it.
    pub(crate) fn next_served(&mut self, size: RingSize) -> Option<Waiter> {
        let class = self.class_of(size)?;
        let class = &mut self.classes[class];
        if class.free.iter().any(Vec::is_empty) { None } else { class.waiting.pop_front() }
    }

    /// Everybody in the queue: there will be no rings.
    pub(crate) fn refuse(&mut self, size: RingSize) -> VecDeque<Waiter> {
        let Some(class) = self.class_of(size) else { return VecDeque::new() };
        self.classes[class].asked = None;
        std::mem::take(&mut self.classes[class].waiting)
    }

    /// Everything that waits for any size.
    pub(crate) fn refuse_all(&mut self) -> Vec<Waiter> {
        let sizes = (0..RING_CLASSES).map(|class| RingSize::fixed(RING_BYTES_MIN << class)).chain([self.growing]);
        sizes.flat_map(|size| self.refuse(size)).collect()
    }
}

impl From<Chunk> for Retired {
    fn from(chunk: Chunk) -> Self {
        Self {
            number: chunk.number,
            mr: chunk.mr.id,
            lent: chunk.lent.map(|mr| mr.id),
            bytes: chunk.region.len(),
            emptied: 0,
        }
    }
}

impl Chunk {
    fn place(&self, index: u32, ring: u32) -> Place {
        Place {
            chunk: index,
            chunk_number: self.number,
            offset: u64::from(ring) * u64::from(self.size.grown),
            lkey: self.mr.lkey,
            rkey: self.mr.rkey,
        }
    }

    fn ring_at(&mut self, place: &Place) -> Option<&mut RingUse> {
        self.rings.get_mut(index(place.offset / u64::from(self.size.grown)))
    }
}

#[cfg(test)]
mod tests;
