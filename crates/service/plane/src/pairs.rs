//! Same-host connections: which two processes share memory, which slot is whose.
//!
//! A pair is two ends, each with its own number, so that a process may be paired with itself. Both processes make a
//! segment when asked; each gets the other's; then the daemon hands out slots and is not needed any more until both
//! sides have closed. This file owns that state and no socket: it takes requests in and gives [`PairAction`]s out. It
//! must never forward a descriptor that was not checked, and never give a slot out again before both sides have given
//! it back.

mod ending;
mod not_taken;
mod rows;
mod segment;
mod shares;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::{Connection, Path, Reason, Reply};
use verbs::Time;

pub(crate) use self::not_taken::SegmentLost;
use self::segment::{Half, Segment};
use self::shares::{ONE_PAIR, ONE_SEGMENT, Shares};
use crate::{ClientId, Party};

/// Connections in one segment.
pub const PAIR_SLOTS: u32 = 64;
/// Connects that may wait for the segments of one pair.
const PENDING_MAX: usize = 4096;
/// The two ends of a connection have two numbers on this host: the listening end has the engine's, the connecting end
/// this much more. The engine counts from 1 and does not get here.
pub const CONNECTING_END: u64 = 1 << 40;
/// First and number of the ports that connecting ends show as their own. Nothing is bound to them.
const EPHEMERAL: (u64, u64) = (32_768, 28_232);

/// What the daemon does for a pair.
#[derive(Debug)]
pub(crate) enum PairAction<F> {
    /// A message to a process, with its descriptors.
    Send { client: ClientId, reply: Reply, fds: Vec<F> },
    /// A connection is there. The process that listens has its message before the other one is told, so that no death of
    /// the daemon leaves a writer to somebody who does not know of it.
    Started { to: ClientId, incoming: Reply, from: ClientId, connected: Reply },
    /// A connection did not come to be: its place in the listener's backlog is free again.
    Return { client: ClientId, port: u16, connection: u64 },
}

/// A connect of one process to a listener of another (or of itself).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalConnect {
    /// The side that connects.
    pub from: Party,
    /// Who listens.
    pub to: Party,
    /// By which the connecting process knows its connect.
    pub request: u64,
    /// The listener's port.
    pub port: u16,
    /// Bytes of each ring.
    pub ring_bytes: u32,
    /// The listening end's number, below [`CONNECTING_END`].
    pub connection: u64,
}

/// Bounds.
#[derive(Debug, Clone, Copy)]
pub struct PairLimits {
    /// Of the host.
    pub pairs_max: usize,
    /// Of one user, whose process connected first.
    pub pairs_per_user_max: usize,
    /// Of all pairs. The daemon maps both halves of each.
    pub segments_max: usize,
    /// Those that were made for connects of one user.
    pub segments_per_user_max: usize,
    /// Of one pair.
    pub segments_per_pair_max: usize,
    /// The daemon's own user: like root, it has no bounded share.
    pub owner_uid: u32,
    /// Time for a process to make its segment.
    pub answer: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PairKey(u64);

#[derive(Debug)]
struct Pair<F> {
    /// Of the process that connected first, and of the other. Of a process with itself: end 0 connects.
    ends: [End; 2],
    segments: Vec<Segment<F>>,
    pending: VecDeque<Pending>,
    /// The listening ends' numbers.
    connections: BTreeSet<u64>,
}

#[derive(Debug)]
struct End {
    client: ClientId,
    pid: u32,
    uid: u32,
    id: u64,
}

#[derive(Debug)]
struct Pending {
    connect: LocalConnect,
    side: usize,
    deadline: Time,
}

/// A connection, found by the listening end's number.
#[derive(Debug)]
struct Use {
    pair: PairKey,
    segment: usize,
    slot: u32,
    /// Which end of the pair connected.
    side: usize,
    port: u16,
    accepted: bool,
    /// By side of the pair.
    closed: [bool; 2],
}

/// All pairs of the host. `F`: a descriptor, which is forwarded and never looked at.
#[derive(Debug)]
pub struct Pairs<F> {
    limits: PairLimits,
    host: IpAddr,
    pairs: BTreeMap<PairKey, Pair<F>>,
    by_clients: BTreeMap<(ClientId, ClientId), PairKey>,
    of_client: BTreeMap<ClientId, BTreeSet<PairKey>>,
    ends: BTreeMap<u64, (PairKey, usize)>,
    uses: BTreeMap<u64, Use>,
    /// Bytes that clients have sent and received by connections that are over.
    carried: BTreeMap<ClientId, (u64, u64)>,
    /// Ends of connections that are not closed.
    open_ends: BTreeMap<ClientId, u32>,
    shares: Shares,
    /// Pairs with connects that wait.
    waiting: BTreeSet<PairKey>,
    next_key: u64,
    next_end: u64,
    actions: VecDeque<PairAction<F>>,
}

impl<F> Pairs<F> {
    /// `host` is the address that connections show.
    pub(crate) fn new(limits: PairLimits, host: IpAddr) -> Self {
        Self {
            limits,
            host,
            pairs: BTreeMap::new(),
            by_clients: BTreeMap::new(),
            of_client: BTreeMap::new(),
            ends: BTreeMap::new(),
            uses: BTreeMap::new(),
            carried: BTreeMap::new(),
            open_ends: BTreeMap::new(),
            shares: Shares::new(limits),
            waiting: BTreeSet::new(),
            next_key: 1,
            next_end: 1,
            actions: VecDeque::new(),
        }
    }

    /// The first end gets the number behind this: those of a daemon before this one have lower ones.
    pub(crate) fn begin_after(&mut self, number: u64) {
        self.next_end = self.next_end.max(number.saturating_add(1));
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<PairAction<F>> {
        self.actions.pop_front()
    }

    // ---- connecting

    /// A connect; the place in the backlog is taken. `wake` makes the two ends of a wake socket, if it can.
    pub(crate) fn handle_connect(&mut self, now: Time, connect: LocalConnect, wake: impl FnOnce() -> Option<(F, F)>) {
        let (from, to) = (connect.from.client, connect.to.client);
        let key = match self.by_clients.get(&(from.min(to), from.max(to))) {
            Some(&key) => key,
            None => match self.open_pair(&connect, wake) {
                Ok(key) => key,
                Err(reason) => return self.fail(&connect, reason),
            },
        };
        let Some(pair) = self.pairs.get_mut(&key) else { return self.fail(&connect, Reason::Unspecified) };
        if pair.pending.len() >= PENDING_MAX {
            return self.fail(&connect, Reason::LocalLimit);
        }
        let side = usize::from(pair.ends[0].client != from);
        pair.pending.push_back(Pending { connect, side, deadline: now + self.limits.answer });
        self.waiting.insert(key);
        self.place(key);
    }

    fn open_pair(&mut self, connect: &LocalConnect, wake: impl FnOnce() -> Option<(F, F)>) -> Result<PairKey, Reason> {
        self.shares.check(connect.from.uid, ONE_PAIR)?;
        let (a, b) = wake().ok_or(Reason::LocalLimit)?;
        let key = PairKey(self.next_key);
        self.next_key += 1;
        let parties = [connect.from, connect.to];
        let ends = parties.map(|party| {
            let id = self.next_end;
            self.next_end += 1;
            End { client: party.client, pid: party.pid, uid: party.uid, id }
        });
        for (side, fd) in [a, b].into_iter().enumerate() {
            let reply = Reply::PairOpened { pair: ends[side].id, peer_pid: ends[1 - side].pid };
            self.actions.push_back(PairAction::Send { client: ends[side].client, reply, fds: vec![fd] });
            self.ends.insert(ends[side].id, (key, side));
            self.of_client.entry(ends[side].client).or_default().insert(key);
        }
        let (from, to) = (connect.from.client, connect.to.client);
        self.by_clients.insert((from.min(to), from.max(to)), key);
        self.shares.take(connect.from.uid, ONE_PAIR);
        let connections = BTreeSet::new();
        self.pairs.insert(key, Pair { ends, segments: Vec::new(), pending: VecDeque::new(), connections });
        Ok(key)
    }

    /// Gives slots to the connects that wait, as far as there are any, and asks for segments for the others.
    fn place(&mut self, key: PairKey) {
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let waiting = std::mem::take(&mut pair.pending);
        for pending in waiting {
            let Some(pair) = self.pairs.get_mut(&key) else { return };
            let ring_bytes = pending.connect.ring_bytes;
            let mut of_size = pair.segments.iter_mut().enumerate().filter(|(_, s)| s.ring_bytes == ring_bytes);
            if let Some((index, slot)) = of_size.find_map(|(i, s)| Some((i, s.take()?))) {
                self.start(key, &pending, index, slot);
            } else if pair.segments.iter().any(|s| s.ring_bytes == ring_bytes && s.is_coming()) {
                pair.pending.push_back(pending);
            } else {
                match self.segment_place(key, pending.connect.from.uid) {
                    Ok(place) => self.want_segment(key, place, ring_bytes, pending),
                    Err(reason) => self.fail(&pending.connect, reason),
                }
            }
        }
        if self.pairs.get(&key).is_none_or(|pair| pair.pending.is_empty()) {
            self.waiting.remove(&key);
        }
    }

    /// Where a segment of this user's share can be put: in the place of one that is of no use to anybody, else behind
    /// the others.
    fn segment_place(&self, key: PairKey, uid: u32) -> Result<usize, Reason> {
        let pair = self.pairs.get(&key).ok_or(Reason::Unspecified)?;
        let used: BTreeSet<usize> =
            pair.connections.iter().filter_map(|connection| Some(self.uses.get(connection)?.segment)).collect();
        let lost = pair.segments.iter().enumerate().find(|(i, s)| s.can_be_replaced() && !used.contains(i));
        if let Some((place, _)) = lost.filter(|(_, lost)| lost.uid == uid) {
            return Ok(place);
        }
        self.shares.check(uid, ONE_SEGMENT)?;
        match lost {
            Some((place, _)) => Ok(place),
            None if pair.segments.len() < self.limits.segments_per_pair_max => Ok(pair.segments.len()),
            None => Err(Reason::LocalLimit),
        }
    }

    fn want_segment(&mut self, key: PairKey, place: usize, ring_bytes: u32, pending: Pending) {
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let uid = pending.connect.from.uid;
        pair.pending.push_back(pending);
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        match pair.segments.get_mut(place) {
            Some(lost) => {
                self.shares.give_back(lost.uid, ONE_SEGMENT);
                *lost = Segment::new(ring_bytes, uid);
            }
            None => pair.segments.push(Segment::new(ring_bytes, uid)),
        }
        for end in &pair.ends {
            let reply = Reply::PairSegmentWanted { pair: end.id, index, slots: PAIR_SLOTS, ring_bytes };
            self.actions.push_back(PairAction::Send { client: end.client, reply, fds: Vec::new() });
        }
        self.shares.take(uid, ONE_SEGMENT);
    }

    /// The connection is there. The listening side gets it first.
    fn start(&mut self, key: PairKey, pending: &Pending, segment: usize, slot: u32) {
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let LocalConnect { request, port, connection, .. } = pending.connect;
        pair.connections.insert(connection);
        for end in &pair.ends {
            *self.open_ends.entry(end.client).or_default() += 1;
        }
        let Some(pair) = self.pairs.get(&key) else { return };
        let generation = pair.segments[segment].generations[slot as usize];
        let number = u32::try_from(segment).unwrap_or(u32::MAX).saturating_mul(PAIR_SLOTS) + slot;
        let [listening, connecting] = self.addresses(connection, port);
        let describe = |id, local, peer, end: &End| Connection {
            id,
            local,
            peer,
            path: Path::Shm { pair: end.id, slot: number, generation },
            ticket: Vec::new(),
        };
        let (from, to) = (&pair.ends[pending.side], &pair.ends[1 - pending.side]);
        let incoming = describe(connection, listening, connecting, to);
        let connected = describe(connection + CONNECTING_END, connecting, listening, from);
        self.actions.push_back(PairAction::Started {
            to: to.client,
            incoming: Reply::Incoming { port, connection: incoming },
            from: from.client,
            connected: Reply::Connected { request, result: Ok(connected) },
        });
        let side = pending.side;
        self.uses.insert(connection, Use { pair: key, segment, slot, side, port, accepted: false, closed: [false; 2] });
    }

    /// The addresses of the listening and the connecting end.
    fn addresses(&self, connection: u64, port: u16) -> [SocketAddr; 2] {
        let ephemeral = u16::try_from(EPHEMERAL.0 + connection % EPHEMERAL.1).unwrap_or(u16::MAX);
        [SocketAddr::new(self.host, port), SocketAddr::new(self.host, ephemeral)]
    }

    fn fail(&mut self, connect: &LocalConnect, reason: Reason) {
        let reply = Reply::Connected { request: connect.request, result: Err(reason) };
        self.actions.push_back(PairAction::Send { client: connect.from.client, reply, fds: Vec::new() });
        self.give_back(connect);
    }

    fn give_back(&mut self, connect: &LocalConnect) {
        let LocalConnect { to, port, connection, .. } = *connect;
        self.actions.push_back(PairAction::Return { client: to.client, port, connection });
    }

    // ---- segments

    /// Whether this segment of this client was asked for; its shape is then `PAIR_SLOTS` and `ring_bytes`. False: the
    /// pair is gone meanwhile. An error: the client broke the rules.
    pub(crate) fn expects(&self, client: ClientId, end: u64, index: u32, shape: (u32, u32)) -> Result<bool, String> {
        let Some((key, side)) = self.end_of(client, end)? else { return Ok(false) };
        let Some(pair) = self.pairs.get(&key) else { return Ok(false) };
        let segment = pair.segments.get(index as usize).filter(|s| !s.answered[side]);
        let segment = segment.ok_or_else(|| format!("segment {index} of pair {end} was not asked for"))?;
        if shape != (PAIR_SLOTS, segment.ring_bytes) {
            return Err(format!("segment {index} of pair {end} has the shape {shape:?}, not the one asked for"));
        }
        Ok(true)
    }

    /// A segment that [`Self::expects`] allowed, checked and mapped read-only.
    pub(crate) fn handle_segment(&mut self, end: u64, index: u32, fd: F, view: shm::Pair) {
        let Some(&(key, side)) = self.ends.get(&end) else { return };
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let Some(segment) = pair.segments.get_mut(index as usize) else { return };
        segment.answered[side] = true;
        if segment.is_lost {
            return;
        }
        segment.halves[side] = Some(Half { fd: Some(fd), view });
        if !segment.is_ready() {
            return;
        }
        let ring_bytes = segment.ring_bytes;
        for side in 0..2 {
            let Some(fd) = segment.halves[1 - side].as_mut().and_then(|half| half.fd.take()) else { continue };
            let end = &pair.ends[side];
            let reply = Reply::PairSegment { pair: end.id, index, slots: PAIR_SLOTS, ring_bytes };
            self.actions.push_back(PairAction::Send { client: end.client, reply, fds: vec![fd] });
        }
        self.place(key);
    }

    /// The pair behind a number of this client's. None: it is gone meanwhile.
    fn end_of(&self, client: ClientId, end: u64) -> Result<Option<(PairKey, usize)>, String> {
        let Some(&(key, side)) = self.ends.get(&end) else {
            return if (1..self.next_end).contains(&end) { Ok(None) } else { Err(format!("there is no pair {end}")) };
        };
        let own = self.pairs.get(&key).is_some_and(|p| p.ends[side].client == client);
        if own { Ok(Some((key, side))) } else { Err(format!("pair {end} is another process's")) }
    }

    // ---- time

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let of = |key| Some(self.pairs.get(key)?.pending.front()?.deadline);
        self.waiting.iter().filter_map(of).min()
    }

    /// Fails the connects for which a process did not make its segment in time. The segment may still come.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        let mut late = Vec::new();
        for key in &self.waiting {
            let Some(pair) = self.pairs.get_mut(key) else { continue };
            while pair.pending.front().is_some_and(|p| p.deadline <= now) {
                late.extend(pair.pending.pop_front().map(|p| p.connect));
            }
        }
        for connect in late {
            self.fail(&connect, Reason::TimedOut);
        }
        let pairs = &self.pairs;
        self.waiting.retain(|key| pairs.get(key).is_some_and(|p| !p.pending.is_empty()));
    }
}

#[cfg(test)]
mod tests;
