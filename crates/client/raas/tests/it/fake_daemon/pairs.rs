//! The daemon's part of same-host connections: opens pairs, passes segments on, counts slots.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use control::{Connection, ConnectionRow, ConnectionState, Path, PathKind, Reason, Reply};
use shm::WakeSocket;

use super::{App, HERE};

/// A connect that waits for segments.
struct Waiting {
    connection: u64,
    request: u64,
    client: usize,
    to: SocketAddr,
}

struct PairState {
    /// The applications, and the number by which each knows the pair.
    ends: [(u64, u64); 2],
    slots_a_segment: u32,
    ring_bytes: u32,
    /// Segments that each end has sent.
    segments: [u32; 2],
    wanted: u32,
    /// Generation of each slot, and the connection on it with the ends that have yet to close.
    slots: Vec<(u32, Option<(u64, u32)>)>,
    waiting: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Pairs {
    pairs: Vec<PairState>,
    next_number: u64,
}

impl Pairs {
    pub(crate) fn slots_used(&self) -> usize {
        self.pairs.iter().map(|p| p.slots.iter().filter(|(_, used)| used.is_some()).count()).sum()
    }

    pub(crate) fn connect(
        &mut self,
        apps: &BTreeMap<u64, App>,
        connection: u64,
        (client, request): (u64, u64),
        (server, to): (u64, SocketAddr),
        (slots_a_segment, ring_bytes): (u32, u32),
    ) {
        let is = |p: &PairState| {
            let [(a, _), (b, _)] = p.ends;
            (a, b) == (client, server) || (b, a) == (client, server)
        };
        let index = self.pairs.iter().position(is).unwrap_or_else(|| {
            let (one, other) = WakeSocket::pair().unwrap();
            let numbers = (self.next_number, self.next_number + 1);
            self.next_number += 2;
            for (app, peer, number, socket) in [(client, server, numbers.0, one), (server, client, numbers.1, other)] {
                let opened = Reply::PairOpened { pair: number, peer_pid: apps[&peer].pid };
                apps[&app].say(&opened, &[&socket.into_fd()]);
            }
            self.pairs.push(PairState {
                ends: [(client, numbers.0), (server, numbers.1)],
                slots_a_segment,
                ring_bytes,
                segments: [0, 0],
                wanted: 0,
                slots: Vec::new(),
                waiting: Vec::new(),
            });
            self.pairs.len() - 1
        });
        let pair = &mut self.pairs[index];
        let client = usize::from(pair.ends[0].0 != client);
        pair.waiting.push(Waiting { connection, request, client, to });
        self.progress(apps);
    }

    /// Places what waits; asks for segments where there is no room.
    pub(crate) fn progress(&mut self, apps: &BTreeMap<u64, App>) {
        for pair in &mut self.pairs {
            while !pair.waiting.is_empty() {
                let Some(slot) = pair.slots.iter().position(|(_, used)| used.is_none()) else {
                    pair.want_segments(apps);
                    break;
                };
                let waiting = pair.waiting.remove(0);
                pair.place(apps, slot, &waiting);
            }
        }
    }

    pub(crate) fn on_segment(
        &mut self,
        apps: &BTreeMap<u64, App>,
        (number, index): (u64, u32),
        (slots, ring_bytes): (u32, u32),
        fd: &OwnedFd,
    ) {
        for pair in &mut self.pairs {
            for end in [0, 1] {
                if pair.ends[end].1 == number {
                    assert_eq!(index, pair.segments[end], "segments come in order");
                    pair.segments[end] += 1;
                    let (peer, peer_number) = pair.ends[1 - end];
                    let reply = Reply::PairSegment { pair: peer_number, index, slots, ring_bytes };
                    if let Some(app) = apps.get(&peer) {
                        let _ = control::send_message(app.control.as_fd(), &reply, &[fd.as_fd()]);
                    }
                }
            }
            let ready = pair.segments[0].min(pair.segments[1]) * pair.slots_a_segment;
            pair.slots.resize(ready as usize, (0, None));
        }
    }

    pub(crate) fn on_closed(&mut self, connection: u64) {
        for (_, used) in self.pairs.iter_mut().flat_map(|p| &mut p.slots) {
            if let Some((id, left)) = used
                && *id == connection
            {
                *left -= 1;
                if *left == 0 {
                    *used = None;
                }
                return;
            }
        }
    }

    pub(crate) fn app_gone(&mut self, apps: &BTreeMap<u64, App>, app: u64) {
        for pair in self.pairs.iter().filter(|p| p.ends.iter().any(|(end, _)| *end == app)) {
            for waiting in &pair.waiting {
                let reply = Reply::Connected { request: waiting.request, result: Err(Reason::PeerAppDied) };
                if let Some(client) = apps.get(&pair.ends[waiting.client].0) {
                    client.say(&reply, &[]);
                }
            }
        }
        self.pairs.retain(|p| p.ends.iter().all(|(end, _)| *end != app));
    }
}

impl PairState {
    fn want_segments(&mut self, apps: &BTreeMap<u64, App>) {
        if self.wanted > self.segments[0].min(self.segments[1]) {
            return;
        }
        for (app, number) in self.ends {
            let (slots, ring_bytes) = (self.slots_a_segment, self.ring_bytes);
            apps[&app].say(&Reply::PairSegmentWanted { pair: number, index: self.wanted, slots, ring_bytes }, &[]);
        }
        self.wanted += 1;
    }

    fn place(&mut self, apps: &BTreeMap<u64, App>, slot: usize, waiting: &Waiting) {
        let (generation, used) = &mut self.slots[slot];
        *generation += 1;
        *used = Some((waiting.connection, 2));
        let generation = *generation;
        let slot = u32::try_from(slot).unwrap();
        let from: SocketAddr = format!("{HERE}:50001").parse().unwrap();
        let (client, client_number) = self.ends[waiting.client];
        let (server, server_number) = self.ends[1 - waiting.client];
        let connection = |local, peer, pair| Connection {
            id: waiting.connection,
            local,
            peer,
            path: Path::Shm { pair, slot, generation },
            ticket: Vec::new(),
        };
        let incoming = connection(waiting.to, from, server_number);
        apps[&server].say(&Reply::Incoming { port: waiting.to.port(), connection: incoming }, &[]);
        let connected = connection(from, waiting.to, client_number);
        apps[&client].say(&Reply::Connected { request: waiting.request, result: Ok(connected) }, &[]);
    }
}

/// A row of `raas ss`.
pub(crate) fn row(id: u64) -> ConnectionRow {
    let addr: SocketAddr = format!("{HERE}:7000").parse().unwrap();
    ConnectionRow {
        id,
        local: addr,
        peer: addr,
        state: ConnectionState::Established,
        lane: None,
        route_id: None,
        path: PathKind::Shm,
        wire: None,
        encrypted: None,
        cipher: None,
        reason: Reason::SameHost,
        verb: None,
        verb_asked: None,
        verb_reason: None,
        tx_bytes: 0,
        rx_bytes: 0,
        direct_tx_bytes: 0,
        direct_rx_bytes: 0,
        tx_queued_bytes: 0,
        rx_queued_bytes: 0,
        app_pid: 1,
    }
}
