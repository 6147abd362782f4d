//! TCP between daemons, reduced to what control links need: connections of two ends, messages in order, and what a cut,
//! a dead process and a dead machine do to them.
//!
//! Owns which ends are open and what waits for a path. It must never look into a message, nor decide what is sent. The
//! frames of a link that is up are sealed by the daemons, as on a wire.

use std::collections::BTreeMap;

use control::PeerMessage;
use verbs::Time;

/// What travels.
#[derive(Debug, Clone)]
pub(crate) enum Segment {
    Syn,
    SynAck,
    /// Of a handshake.
    Message(PeerMessage),
    /// Of a link that is up; the code is for the trace.
    Sealed(Vec<u8>, u64),
    Fin,
    Rst,
}

impl Segment {
    /// For the trace.
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Syn => 1,
            Self::SynAck => 2,
            Self::Fin => 3,
            Self::Rst => 4,
            Self::Sealed(_, code) => *code,
            Self::Message(message) => match message {
                PeerMessage::Hello { .. } => 10,
                PeerMessage::Noise { .. } => 11,
                PeerMessage::LaneOffer(_) => 12,
                PeerMessage::LaneReady { .. } => 13,
                PeerMessage::LaneReset { resumes: false, .. } => 14,
                PeerMessage::LaneReset { resumes: true, .. } => 15,
                PeerMessage::Heartbeat => 16,
                PeerMessage::Bye { .. } => 17,
                PeerMessage::LaneRoutes(_) => 18,
                PeerMessage::LaneRoutesTaken { .. } => 19,
                PeerMessage::DirectOffer { .. } => 20,
                PeerMessage::DirectRefused { .. } => 21,
                PeerMessage::DirectHello { .. } => 22,
                PeerMessage::DirectProof { .. } => 23,
                PeerMessage::Region(_) => 24,
                PeerMessage::Meet(_) => 25,
            },
        }
    }
}

/// An end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    /// The connection's.
    path: usize,
    /// The life of the host whose daemon has it; none before it was accepted.
    pub(crate) life: Option<u32>,
    pub(crate) is_open: bool,
    /// Arrival of the last segment.
    pub(crate) last_at: Time,
    /// Segments to this end that wait for the path.
    held: Vec<Segment>,
}

/// All connections, by their number; end 0 dialed.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    connections: BTreeMap<u64, [End; 2]>,
    last_number: u64,
}

/// A connection and one of its ends.
pub(crate) type EndOf = (u64, usize);

impl Tcp {
    /// A connection of which only the dialing end exists.
    pub(crate) fn connect(&mut self, host: usize, life: u32, peer: usize, path: usize) -> u64 {
        let end = |host, life: Option<u32>| End {
            host,
            path,
            life,
            is_open: life.is_some(),
            last_at: Time::ZERO,
            held: Vec::new(),
        };
        self.last_number += 1;
        self.connections.insert(self.last_number, [end(host, Some(life)), end(peer, None)]);
        self.last_number
    }

    pub(crate) fn end(&mut self, (connection, side): EndOf) -> Option<&mut End> {
        self.connections.get_mut(&connection)?.get_mut(side)
    }

    /// Both hosts: that of the end, and the other.
    pub(crate) fn hosts(&self, (connection, side): EndOf) -> Option<(usize, usize)> {
        let ends = self.connections.get(&connection)?;
        Some((ends[side].host, ends[1 - side].host))
    }

    /// The path that a connection goes over.
    pub(crate) fn path(&self, connection: u64) -> usize {
        self.connections.get(&connection).map_or(0, |ends| ends[0].path)
    }

    /// A segment to this end waits for the path.
    pub(crate) fn hold(&mut self, to: EndOf, segment: Segment) {
        if let Some(end) = self.end(to) {
            end.held.push(segment);
        }
    }

    /// What waited for these paths between two hosts.
    pub(crate) fn release(&mut self, a: usize, b: usize, paths: &[usize]) -> Vec<(EndOf, Segment)> {
        let mut all = Vec::new();
        for (number, ends) in &mut self.connections {
            let hosts = [ends[0].host, ends[1].host];
            if (hosts == [a, b] || hosts == [b, a]) && paths.contains(&ends[0].path) {
                for (side, end) in ends.iter_mut().enumerate() {
                    all.extend(std::mem::take(&mut end.held).into_iter().map(|segment| ((*number, side), segment)));
                }
            }
        }
        all
    }

    /// Its daemon closed this end. A connection whose ends are both closed is forgotten.
    pub(crate) fn close(&mut self, (connection, side): EndOf) {
        let Some(ends) = self.connections.get_mut(&connection) else { return };
        ends[side].is_open = false;
        if !ends[1 - side].is_open && ends[1 - side].life.is_some() {
            self.connections.remove(&connection);
        }
    }

    /// A daemon died: its open ends, which are closed now.
    pub(crate) fn crash(&mut self, host: usize) -> Vec<EndOf> {
        let open = |(number, ends): (&u64, &[End; 2])| {
            (0..2).find(|side| ends[*side].host == host && ends[*side].is_open).map(|side| (*number, side))
        };
        let ends: Vec<EndOf> = self.connections.iter().filter_map(open).collect();
        for end in &ends {
            self.close(*end);
        }
        ends
    }
}
