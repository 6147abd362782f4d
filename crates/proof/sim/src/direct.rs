//! The TCP connections of streams of bulk (docs/inside/kernel-tcp.md), from application to application.
//!
//! Owns what was sent, what of it has arrived, and how a connection ends. It must never decide when something arrives:
//! that is the world's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::Reason;
use raas_core::{DirectBroken, DirectSocket, Side};

use crate::check::AppUid;
use crate::content::mix;

/// Bytes that one direction holds.
const ROOM_BYTES: usize = 128 << 10;

/// A connection and one of its ends; end 0 is that of the host that made the offer.
pub(crate) type DirectEnd = (u64, usize);

/// Whose an end is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndOwner {
    pub(crate) host: usize,
    pub(crate) uid: AppUid,
    pub(crate) slot: u32,
}

/// What travels to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// So many bytes, the next of its direction.
    Bytes(usize),
    /// Nothing more comes.
    End,
    /// The other side's kernel does not know the connection any more.
    Reset,
    /// The other side has taken bytes.
    Room,
}

/// What one end sent.
#[derive(Debug, Default)]
struct Way {
    /// Not taken yet; the first of them have arrived.
    bytes: VecDeque<u8>,
    arrived: usize,
    /// Those that are under way, or have arrived.
    sent_off: usize,
    /// Lengths of those that are under way, in the order in which they arrive.
    parts: VecDeque<usize>,
    is_ended: bool,
    end_sent_off: bool,
    end_arrived: bool,
    /// Its sender found no room.
    was_full: bool,
}

#[derive(Debug)]
struct Pipe {
    hosts: [usize; 2],
    owners: [Option<EndOwner>; 2],
    ways: [Way; 2],
    /// Ends whose descriptor is closed.
    is_closed: [bool; 2],
    broken: [Option<Reason>; 2],
    /// What an end is to hear beside bytes.
    to_tell: [Vec<Carried>; 2],
    cut_max: usize,
    chance: u64,
}

impl Pipe {
    /// A length up to `most`, mostly a short one.
    fn cut(&mut self, most: usize) -> usize {
        let most = most.min(self.cut_max);
        if most == 0 {
            return 0;
        }
        self.chance = mix(self.chance);
        1 + (self.chance % most as u64) as usize
    }

    /// Something came to an end that is closed: its kernel resets.
    fn refuse(&mut self, end: usize) {
        self.to_tell[1 - end].push(Carried::Reset);
    }

    /// What was not there yet never comes.
    fn lose(&mut self, end: usize) {
        let way = &mut self.ways[1 - end];
        // Parts arrive in any order here; of an end behind bytes that are lost nobody hears.
        way.end_arrived &= way.arrived == way.bytes.len();
        way.bytes.truncate(way.arrived);
        way.sent_off = way.arrived;
        way.parts.clear();
    }

    fn close(&mut self, end: usize) {
        self.is_closed[end] = true;
        self.ways[end].is_ended = true;
        // As a kernel does that has bytes nobody read.
        if self.ways[1 - end].arrived > 0 {
            self.refuse(end);
        }
    }
}

/// All that the processes' ends and the world share.
#[derive(Debug, Default)]
struct Shared {
    pipes: BTreeMap<u64, Pipe>,
    /// Those of which something is to be sent off.
    touched: BTreeSet<u64>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's end. Dropping it closes the descriptor, as the kernel does when the process dies.
#[derive(Debug)]
pub(crate) struct SimSocket {
    shared: Arc<Mutex<Shared>>,
    at: DirectEnd,
}

impl SimSocket {
    /// What a call on an open end does; it is touched afterwards.
    fn with<T>(&self, what: impl FnOnce(&mut Pipe, usize) -> T) -> Option<T> {
        let mut shared = lock(&self.shared);
        let (number, end) = self.at;
        let result = shared.pipes.get_mut(&number).map(|pipe| what(pipe, end));
        shared.touched.insert(number);
        result
    }
}

impl SimSocket {
    /// Sends all of some bytes, which arrive together. False: there is no room.
    pub(crate) fn send_word(&self, word: &[u8]) -> Result<bool, DirectBroken> {
        self.with(|pipe, end| {
            let way = &mut pipe.ways[end];
            if let Some(reason) = pipe.broken[end] {
                return Err(DirectBroken(reason));
            }
            let fits = way.bytes.len() + word.len() <= ROOM_BYTES;
            way.was_full |= !fits;
            way.bytes.extend(word.iter().filter(|_| fits));
            Ok(fits)
        })
        .unwrap_or(Err(DirectBroken(Reason::DirectLost)))
    }
}

impl DirectSocket for SimSocket {
    fn recv(&self, buf: &mut [u8]) -> Result<Option<usize>, DirectBroken> {
        let gone = Err(DirectBroken(Reason::DirectLost));
        self.with(|pipe, end| {
            let most = pipe.ways[1 - end].arrived.min(buf.len());
            let count = pipe.cut(most);
            let way = &mut pipe.ways[1 - end];
            if count > 0 {
                for (to, byte) in buf.iter_mut().zip(way.bytes.drain(..count)) {
                    *to = byte;
                }
                (way.arrived, way.sent_off) = (way.arrived - count, way.sent_off - count);
                if std::mem::take(&mut way.was_full) {
                    pipe.to_tell[1 - end].push(Carried::Room);
                }
                return Ok(Some(count));
            }
            match pipe.broken[end] {
                _ if way.end_arrived && way.bytes.is_empty() => Ok(Some(0)),
                Some(reason) => Err(DirectBroken(reason)),
                None => Ok(None),
            }
        })
        .unwrap_or(gone)
    }

    fn send(&self, bufs: &[IoSlice<'_>]) -> Result<usize, DirectBroken> {
        let gone = Err(DirectBroken(Reason::DirectLost));
        self.with(|pipe, end| {
            if let Some(reason) = pipe.broken[end] {
                return Err(DirectBroken(reason));
            }
            if pipe.ways[end].is_ended {
                return Err(DirectBroken(Reason::ResetByPeer));
            }
            let offered: usize = bufs.iter().map(|buf| buf.len()).sum();
            let room = ROOM_BYTES.saturating_sub(pipe.ways[end].bytes.len()).min(offered);
            // An empty socket takes a word whole.
            let count = if offered == 1 { room } else { pipe.cut(room) };
            let way = &mut pipe.ways[end];
            way.was_full |= count < offered;
            way.bytes.extend(bufs.iter().flat_map(|buf| buf.iter().copied()).take(count));
            Ok(count)
        })
        .unwrap_or(gone)
    }

    fn end_sending(&self) {
        self.with(|pipe, end| pipe.ways[end].is_ended = true);
    }

    fn is_ready(&self, side: Side) -> bool {
        self.with(|pipe, end| {
            let (to, from) = (&pipe.ways[end], &pipe.ways[1 - end]);
            pipe.broken[end].is_some()
                || match side {
                    Side::Read => from.arrived > 0 || (from.end_arrived && from.bytes.is_empty()),
                    Side::Write => to.bytes.len() < ROOM_BYTES,
                }
        })
        .unwrap_or(true)
    }

    fn has_end(&self) -> bool {
        self.with(|pipe, end| pipe.ways[1 - end].end_arrived).unwrap_or(true)
    }

    /// The world tells of everything.
    fn arm(&self, _side: Side) {}

    fn disarm(&self) {}

    fn wait_room(&self) {
        unreachable!(
            "of messages TCP never holds more than fits, lent room keeps a direction on the ring, and no call here waits"
        )
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        self.with(Pipe::close);
    }
}

/// All such connections.
#[derive(Debug, Default)]
pub(crate) struct DirectPipes {
    shared: Arc<Mutex<Shared>>,
    last: u64,
    /// Connections that daemons made.
    pub(crate) made: u64,
}

/// What an end is to hear, from which host and on which.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentOff {
    pub(crate) to: DirectEnd,
    pub(crate) hosts: (usize, usize),
    pub(crate) carried: Carried,
}

impl DirectPipes {
    /// A connection between two hosts, and its ends.
    pub(crate) fn make(&mut self, hosts: [usize; 2], cut_max: usize, chance: u64) -> [SimSocket; 2] {
        self.last += 1;
        let (number, shared) = (self.last, Arc::clone(&self.shared));
        let pipe = Pipe {
            hosts,
            owners: [None; 2],
            ways: Default::default(),
            is_closed: [false; 2],
            broken: [None; 2],
            to_tell: Default::default(),
            cut_max: cut_max.max(1),
            chance,
        };
        lock(&self.shared).pipes.insert(number, pipe);
        [0, 1].map(|end| SimSocket { shared: Arc::clone(&shared), at: (number, end) })
    }

    /// An end was passed to a process.
    pub(crate) fn own(&mut self, socket: &SimSocket, owner: EndOwner) {
        let (number, end) = socket.at;
        if let Some(pipe) = lock(&self.shared).pipes.get_mut(&number) {
            pipe.owners[end] = Some(owner);
        }
    }

    pub(crate) fn owner(&self, (number, end): DirectEnd) -> Option<EndOwner> {
        lock(&self.shared).pipes.get(&number)?.owners[end]
    }

    /// What is to travel now. A connection that both ends closed is forgotten.
    pub(crate) fn send_off(&mut self) -> Vec<SentOff> {
        let mut all = Vec::new();
        let mut shared = lock(&self.shared);
        for number in std::mem::take(&mut shared.touched) {
            let Some(pipe) = shared.pipes.get_mut(&number) else { continue };
            for end in 0..2 {
                let to = (number, 1 - end);
                let hosts = (pipe.hosts[end], pipe.hosts[1 - end]);
                let way = &mut pipe.ways[end];
                let count = way.bytes.len() - way.sent_off;
                if count > 0 {
                    way.sent_off += count;
                    way.parts.push_back(count);
                    all.push(SentOff { to, hosts, carried: Carried::Bytes(count) });
                }
                if way.is_ended && !std::mem::replace(&mut way.end_sent_off, way.is_ended) {
                    all.push(SentOff { to, hosts, carried: Carried::End });
                }
                let told = std::mem::take(&mut pipe.to_tell[1 - end]);
                all.extend(told.into_iter().map(|carried| SentOff { to, hosts, carried }));
            }
            if pipe.is_closed == [true; 2] {
                shared.pipes.remove(&number);
            }
        }
        all
    }

    /// Something arrives at an end. True: whoever has it looks.
    pub(crate) fn arrive(&mut self, (number, end): DirectEnd, carried: Carried) -> bool {
        let mut shared = lock(&self.shared);
        let Some(pipe) = shared.pipes.get_mut(&number) else { return false };
        match carried {
            Carried::Bytes(_) if pipe.is_closed[end] => {
                pipe.refuse(end);
                shared.touched.insert(number);
                return false;
            }
            // Some part arrives, and it is the next one.
            Carried::Bytes(_) => {
                let way = &mut pipe.ways[1 - end];
                way.arrived += way.parts.pop_front().unwrap_or(0);
            }
            // Behind bytes that were lost it never comes.
            Carried::End if pipe.broken[end].is_some() => {}
            Carried::End => pipe.ways[1 - end].end_arrived = true,
            Carried::Reset => {
                pipe.lose(end);
                pipe.broken[end].get_or_insert(Reason::ResetByPeer);
            }
            Carried::Room => {}
        }
        true
    }

    /// Something on the way breaks all connections between two hosts: the ends that are to look.
    pub(crate) fn break_between(&mut self, a: usize, b: usize) -> Vec<DirectEnd> {
        let mut ends = Vec::new();
        for (number, pipe) in &mut lock(&self.shared).pipes {
            if pipe.hosts == [a, b] || pipe.hosts == [b, a] {
                for end in 0..2 {
                    pipe.lose(end);
                    pipe.broken[end].get_or_insert(Reason::DirectLost);
                    ends.push((*number, end));
                }
            }
        }
        ends
    }

    /// A machine is back, and its kernel knows nothing of the connections that it had: their other ends hear so.
    pub(crate) fn reset_closed_of(&mut self, host: usize) {
        let mut shared = lock(&self.shared);
        let Shared { pipes, touched } = &mut *shared;
        for (number, pipe) in pipes {
            for end in 0..2 {
                if pipe.hosts[end] == host && pipe.is_closed[end] {
                    pipe.refuse(end);
                    touched.insert(*number);
                }
            }
        }
    }

    /// Connections of which an end is open.
    pub(crate) fn open(&self) -> usize {
        lock(&self.shared).pipes.len()
    }
}
