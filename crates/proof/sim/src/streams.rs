//! TCP connections of the data path as byte streams: what the kernels of both hosts hold of them. A stream cuts
//! anywhere, has little room, ends in order, and breaks.
//!
//! Owns bytes that were sent and not read, and which ends are open. The world decides when what departs arrives. It must
//! never look into a byte.

use std::collections::{BTreeMap, VecDeque};

/// An end of a stream: its number, and 0 for the end that dialed.
pub(crate) type EndId = (u64, usize);

/// What travels to an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Carried {
    Syn,
    SynAck,
    Data(Box<[u8]>),
    /// The other end has read: there is room again.
    Room,
    Fin,
    Rst,
}

/// What an end's process can see of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The SYN was not answered.
    Dialing,
    Open,
    /// The peer's last byte has been read.
    AtEnd,
    Broken,
}

#[derive(Debug)]
struct End {
    host: usize,
    /// The stream's.
    path: usize,
    /// The life of the host whose kernel has it; none before it was accepted.
    life: Option<u32>,
    is_open: bool,
    is_connected: bool,
    is_broken: bool,
    has_fin: bool,
    has_sent_fin: bool,
    /// Bytes that have arrived.
    arrived: VecDeque<u8>,
    /// Bytes on their way to it.
    flying: usize,
    /// The other end found no room.
    is_room_wanted: bool,
    /// What waits for the path to it.
    held: Vec<Carried>,
    /// Its kernel gave the stream up, because nothing came back.
    is_given_up: bool,
}

/// All streams.
#[derive(Debug)]
pub(crate) struct Streams {
    streams: BTreeMap<u64, [End; 2]>,
    last_number: u64,
    /// Bytes of a direction that are sent and not read.
    room_bytes: usize,
    departures: VecDeque<(EndId, Carried)>,
    /// What ever departed.
    pub(crate) departed: u64,
}

impl Streams {
    pub(crate) fn new(room_bytes: usize) -> Self {
        Self { streams: BTreeMap::new(), last_number: 0, room_bytes, departures: VecDeque::new(), departed: 0 }
    }

    /// What left since the last call, and the end that it goes to.
    pub(crate) fn next_departure(&mut self) -> Option<(EndId, Carried)> {
        self.departures.pop_front()
    }

    fn end(&self, (number, side): EndId) -> Option<&End> {
        self.streams.get(&number)?.get(side)
    }

    fn end_mut(&mut self, (number, side): EndId) -> Option<&mut End> {
        self.streams.get_mut(&number)?.get_mut(side)
    }

    fn depart(&mut self, (number, side): EndId, carried: Carried) {
        self.departed += 1;
        self.departures.push_back(((number, 1 - side), carried));
    }

    /// The hosts of an end and of the other one.
    pub(crate) fn hosts(&self, (number, side): EndId) -> Option<(usize, usize)> {
        let ends = self.streams.get(&number)?;
        Some((ends[side].host, ends[1 - side].host))
    }

    /// Whether the end is the process's that runs in this life of its host.
    pub(crate) fn life(&self, end: EndId) -> Option<u32> {
        self.end(end)?.life
    }

    /// The path between its hosts that it goes over.
    pub(crate) fn path(&self, end: EndId) -> usize {
        self.end(end).map_or(0, |end| end.path)
    }

    // ---- what processes do

    pub(crate) fn connect(&mut self, host: usize, life: u32, peer: usize, path: usize) -> EndId {
        let end = |host, life: Option<u32>| End {
            host,
            path,
            life,
            is_open: life.is_some(),
            is_connected: false,
            is_broken: false,
            has_fin: false,
            has_sent_fin: false,
            arrived: VecDeque::new(),
            flying: 0,
            is_room_wanted: false,
            held: Vec::new(),
            is_given_up: false,
        };
        self.last_number += 1;
        let id = (self.last_number, 0);
        self.streams.insert(self.last_number, [end(host, Some(life)), end(peer, None)]);
        self.depart(id, Carried::Syn);
        id
    }

    pub(crate) fn standing(&self, id: EndId) -> Standing {
        match self.end(id) {
            None => Standing::Broken,
            Some(end) if end.is_broken || !end.is_open => Standing::Broken,
            Some(end) if !end.is_connected => Standing::Dialing,
            Some(end) if end.has_fin && end.arrived.is_empty() => Standing::AtEnd,
            Some(_) => Standing::Open,
        }
    }

    /// How many bytes may be sent.
    pub(crate) fn room(&mut self, id: EndId) -> usize {
        let room_bytes = self.room_bytes;
        if self.standing(id) == Standing::Broken || self.end(id).is_some_and(|end| end.has_sent_fin) {
            return 0;
        }
        let Some(other) = self.end_mut((id.0, 1 - id.1)) else { return 0 };
        let room = room_bytes.saturating_sub(other.flying + other.arrived.len());
        other.is_room_wanted = room == 0;
        room
    }

    /// Sends bytes for which there is room, as pieces of these lengths.
    pub(crate) fn send(&mut self, id: EndId, mut bytes: &[u8], mut cut: impl FnMut() -> usize) {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(cut().clamp(1, bytes.len()));
            if let Some(other) = self.end_mut((id.0, 1 - id.1)) {
                other.flying += piece.len();
            }
            self.depart(id, Carried::Data(piece.into()));
            bytes = rest;
        }
    }

    /// Reads up to so many bytes.
    pub(crate) fn read(&mut self, id: EndId, most: usize) -> Vec<u8> {
        let Some(end) = self.end_mut(id).filter(|end| end.is_open && !end.is_broken) else { return Vec::new() };
        let count = most.min(end.arrived.len());
        let bytes: Vec<u8> = end.arrived.drain(..count).collect();
        if count > 0 && std::mem::take(&mut end.is_room_wanted) {
            self.depart(id, Carried::Room);
        }
        bytes
    }

    /// Says that no more bytes come.
    pub(crate) fn shut_down(&mut self, id: EndId) {
        if let Some(end) = self.end_mut(id)
            && end.is_open
            && !end.is_broken
            && !std::mem::replace(&mut end.has_sent_fin, true)
        {
            self.depart(id, Carried::Fin);
        }
    }

    /// Closes an end: what it did not read is told to the other one by a reset.
    pub(crate) fn close(&mut self, id: EndId) {
        let Some(end) = self.end_mut(id).filter(|end| end.is_open) else { return };
        end.is_open = false;
        let (is_broken, has_sent_fin) = (end.is_broken, end.has_sent_fin);
        let is_unread = !end.arrived.is_empty();
        if is_unread && !is_broken {
            self.depart(id, Carried::Rst);
        } else if !is_broken && !has_sent_fin {
            self.depart(id, Carried::Fin);
        }
        self.forget(id.0);
    }

    /// A stream of which no end is open any more is forgotten.
    fn forget(&mut self, number: u64) {
        if self.streams.get(&number).is_some_and(|ends| ends.iter().all(|end| !end.is_open && end.life.is_some())) {
            self.streams.remove(&number);
        }
    }

    // ---- what the world does

    /// Something arrives at an end. `life`: of the host, if it runs and listens.
    pub(crate) fn arrive(&mut self, id: EndId, carried: Carried, life: Option<u32>) {
        let Some(end) = self.end_mut(id) else { return };
        if carried == Carried::Syn {
            end.life = Some(life.unwrap_or(0));
            let is_taken = life.is_some();
            (end.is_open, end.is_connected) = (is_taken, is_taken);
            self.depart(id, if is_taken { Carried::SynAck } else { Carried::Rst });
            return;
        }
        if let Carried::Data(bytes) = &carried {
            end.flying = end.flying.saturating_sub(bytes.len());
        }
        if !end.is_open {
            if matches!(carried, Carried::Data(_) | Carried::SynAck) {
                self.depart(id, Carried::Rst);
            }
            return;
        }
        match carried {
            Carried::Syn | Carried::Room => {}
            Carried::SynAck => end.is_connected = true,
            Carried::Data(bytes) => end.arrived.extend(bytes),
            Carried::Fin => end.has_fin = true,
            Carried::Rst => end.is_broken = true,
        }
    }

    /// Somebody on the way resets the stream.
    pub(crate) fn break_end(&mut self, id: EndId) {
        if let Some(end) = self.end_mut(id) {
            end.is_broken = true;
        }
    }

    /// An end has heard nothing for too long: its kernel gives the stream up.
    pub(crate) fn give_up(&mut self, id: EndId) {
        if let Some(end) = self.end_mut(id) {
            (end.is_broken, end.is_given_up) = (true, true);
        }
    }

    pub(crate) fn was_given_up(&self, id: EndId) -> bool {
        self.end(id).is_some_and(|end| end.is_given_up)
    }

    /// What waits for the path between two ends.
    pub(crate) fn hold(&mut self, to: EndId, carried: Carried) {
        if let Some(end) = self.end_mut(to) {
            end.held.push(carried);
        }
    }

    pub(crate) fn is_held(&self, to: EndId) -> bool {
        self.end(to).is_some_and(|end| !end.held.is_empty())
    }

    /// What waited for the path from one host to another.
    pub(crate) fn release(&mut self, from: usize, to: usize, path: usize) -> Vec<(EndId, Carried)> {
        let mut all = Vec::new();
        for (number, ends) in &mut self.streams {
            for side in 0..2 {
                if ends[side].path == path && ends[side].host == to && ends[1 - side].host == from {
                    all.extend(std::mem::take(&mut ends[side].held).into_iter().map(|c| ((*number, side), c)));
                }
            }
        }
        all
    }

    /// Open ends of streams between two hosts.
    pub(crate) fn between(&self, a: usize, b: usize) -> Vec<EndId> {
        let is_of = |ends: &[End; 2]| [ends[0].host, ends[1].host] == [a, b] || [ends[0].host, ends[1].host] == [b, a];
        let ends = self.streams.iter().filter(|(_, ends)| is_of(ends));
        let open = ends.flat_map(|(number, ends)| (0..2).filter(|s| ends[*s].is_open).map(|side| (*number, side)));
        open.collect()
    }

    /// The process that has the host's ends dies. Its kernel tells the peers, if it lives (`told`).
    pub(crate) fn crash(&mut self, host: usize, told: bool) {
        let is_lost = |end: &End| end.host == host && end.is_open;
        let lost: Vec<EndId> = self
            .streams
            .iter()
            .flat_map(|(number, ends)| (0..2).filter(|s| is_lost(&ends[*s])).map(|side| (*number, side)))
            .collect();
        for id in lost {
            if told {
                self.close(id);
            } else if let Some(end) = self.end_mut(id) {
                end.is_open = false;
                self.forget(id.0);
            }
        }
    }

    /// Open ends of a host.
    pub(crate) fn open_at(&self, host: usize) -> usize {
        self.streams.values().flatten().filter(|end| end.host == host && end.is_open).count()
    }

    /// Ends whose peer's machine is off, or came back without the other end.
    pub(crate) fn orphans(&self, host: usize) -> Vec<EndId> {
        let orphan = |(number, ends): (&u64, &[End; 2])| {
            (0..2)
                .find(|s| ends[*s].is_open && ends[1 - *s].host == host && !ends[1 - *s].is_open)
                .map(|side| (*number, side))
        };
        self.streams.iter().filter_map(orphan).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that departs arrives.
    fn deliver(streams: &mut Streams) {
        while let Some((to, carried)) = streams.next_departure() {
            streams.arrive(to, carried, Some(1));
        }
    }

    #[test]
    fn bytes_come_in_order_and_no_more_than_there_is_room() {
        let mut streams = Streams::new(10);
        let a = streams.connect(0, 1, 1, 0);
        assert_eq!(streams.standing(a), Standing::Dialing);
        deliver(&mut streams);
        assert_eq!((streams.standing(a), streams.room(a)), (Standing::Open, 10));
        streams.send(a, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], || 3);
        assert_eq!(streams.room(a), 0);
        deliver(&mut streams);
        let b = (a.0, 1);
        assert_eq!(streams.read(b, 4), [1, 2, 3, 4]);
        assert_eq!(streams.next_departure(), Some((a, Carried::Room)));
        assert_eq!(streams.room(a), 4);
        streams.shut_down(a);
        deliver(&mut streams);
        assert_eq!(streams.standing(b), Standing::Open, "bytes are left");
        assert_eq!(streams.read(b, 100), [5, 6, 7, 8, 9, 10]);
        assert_eq!((streams.standing(b), streams.standing(a)), (Standing::AtEnd, Standing::Open));
        streams.close(a);
        streams.close(b);
        deliver(&mut streams);
        assert!(streams.streams.is_empty());
    }

    #[test]
    fn who_closes_with_bytes_unread_resets() {
        let mut streams = Streams::new(10);
        let a = streams.connect(0, 1, 1, 0);
        deliver(&mut streams);
        streams.send(a, &[1], || 1);
        deliver(&mut streams);
        streams.close((a.0, 1));
        deliver(&mut streams);
        assert_eq!(streams.standing(a), Standing::Broken);
        // Nobody listens.
        let refused = streams.connect(0, 1, 1, 0);
        while let Some((to, carried)) = streams.next_departure() {
            streams.arrive(to, carried, None);
        }
        assert_eq!(streams.standing(refused), Standing::Broken);
    }
}
