//! The engine's part of lane connections: moves bytes from one slot's transmit ring to the other's receive ring.
//!
//! Owns the engine's half of the slots. Bytes of a transmit ring are free when the peer's application has consumed
//! them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use control::{ChunkKind, Connection, Path, Reason, Reply};
use shm::{Region, SlotWords, app_flag, engine_flag, slot_state};

use super::{App, HERE, THERE, add_chunk};

struct End {
    app: u64,
    slot: u32,
    words: SlotWords,
    tx: Region,
    rx: Region,
    ring_bytes: u64,
    /// Bytes taken from the transmit ring.
    sent: u64,
    /// Bytes put into the receive ring.
    arrived: u64,
    dirty: bool,
    /// The application's flags as last served: what it raises later is for the next round.
    flags: u32,
    fin_sent: bool,
    stop_sent: bool,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Lanes {
    connections: BTreeMap<u64, [End; 2]>,
}

impl Lanes {
    pub(crate) fn connect(
        &mut self,
        apps: &mut BTreeMap<u64, App>,
        id: u64,
        (client, request): (u64, u64),
        (server, to): (u64, SocketAddr),
        (client_ring, server_ring): (u32, u32),
    ) {
        let from: SocketAddr = format!("{HERE}:50000").parse().unwrap();
        // As if the server's host were the other one: it sees the client come from there.
        let (mut near, near_path) = open(apps.get_mut(&client).unwrap(), client, client_ring);
        let (mut far, far_path) = open(apps.get_mut(&server).unwrap(), server, server_ring);
        near.dirty = true;
        far.dirty = true;
        let local = SocketAddr::new(HERE.parse().unwrap(), to.port());
        let peer = SocketAddr::new(THERE.parse().unwrap(), 50000);
        let incoming = Connection { id, local, peer, path: far_path, ticket: Vec::new() };
        let connected = Connection { id, local: from, peer: to, path: near_path, ticket: Vec::new() };
        apps[&server].say(&Reply::Incoming { port: to.port(), connection: incoming }, &[]);
        apps[&client].say(&Reply::Connected { request, result: Ok(connected) }, &[]);
        self.connections.insert(id, [near, far]);
    }

    pub(crate) fn mark(&mut self, app: u64, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        for end in self.connections.values_mut().flatten() {
            end.dirty |= end.app == app && slots.contains(&end.slot);
        }
    }

    pub(crate) fn pump(&mut self, apps: &mut BTreeMap<u64, App>) {
        self.connections.retain(|_, [a, b]| {
            if a.dirty || b.dirty {
                if a.dirty {
                    a.serve(b, apps);
                }
                if b.dirty {
                    b.serve(a, apps);
                }
                a.finish(apps);
                b.finish(apps);
            }
            !(a.closed && b.closed)
        });
    }

    pub(crate) fn reset_all(&self, apps: &BTreeMap<u64, App>, reason: Reason) {
        for end in self.connections.values().flatten() {
            end.reset(apps, reason);
        }
    }

    pub(crate) fn app_gone(&mut self, apps: &mut BTreeMap<u64, App>, app: u64) {
        for [a, b] in self.connections.values_mut() {
            // What it closed in order is still delivered: the rings outlive it, as with the real daemon.
            if [&*a, &*b].iter().any(|end| end.app == app && end.is_closed_in_order()) {
                (a.dirty, b.dirty) = (true, true);
                continue;
            }
            for (gone, left) in [(0, 1), (1, 0)] {
                let ends = [&*a, &*b];
                if ends[gone].app == app && !ends[gone].closed {
                    ends[left].reset(apps, Reason::PeerAppDied);
                }
            }
            for end in [a, b] {
                end.closed |= end.app == app;
            }
        }
    }
}

fn open(app: &mut App, id: u64, ring_bytes: u32) -> (End, Path) {
    let slot = app.slots.iter().position(|(_, used)| !used).expect("the tests use fewer slots");
    let slot = u32::try_from(slot).unwrap();
    let (generation, used) = &mut app.slots[slot as usize];
    *generation += 1;
    *used = true;
    let generation = *generation;
    // Two rings a chunk, ours the second: so that offsets matter.
    let bytes = 2 * u64::from(ring_bytes);
    let (tx_chunk, tx) = add_chunk(app, ChunkKind::Tx, bytes);
    let (rx_chunk, rx) = add_chunk(app, ChunkKind::Rx, bytes);
    let words = app.memory.slot(slot);
    words.tx_head.store(0, Ordering::Relaxed);
    words.rx_tail.store(0, Ordering::Relaxed);
    words.engine_flags.store(0, Ordering::Relaxed);
    words.reason.store(0, Ordering::Relaxed);
    words.generation.store(generation, Ordering::Relaxed);
    words.state.store(slot_state::ESTABLISHED, Ordering::Release);
    let offset = u64::from(ring_bytes);
    let (tx_offset, rx_offset, grown_bytes) = (offset, offset, ring_bytes);
    let path = Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, grown_bytes };
    let ring_bytes = offset;
    let end = End {
        app: id,
        slot,
        words,
        tx,
        rx,
        ring_bytes,
        sent: 0,
        arrived: 0,
        dirty: false,
        flags: 0,
        fin_sent: false,
        stop_sent: false,
        closed: false,
    };
    (end, path)
}

impl End {
    /// The application opened the slot for this connection.
    fn is_open(&self) -> bool {
        self.words.app_generation.load(Ordering::Acquire) == self.words.generation.load(Ordering::Relaxed)
    }

    /// The application gave the slot back, and wants its last bytes delivered.
    fn is_closed_in_order(&self) -> bool {
        let flags = self.words.app_flags.load(Ordering::Acquire);
        self.is_open() && flags & (app_flag::CLOSED | app_flag::ABORT) == app_flag::CLOSED
    }

    /// Does what the application's words ask for.
    fn serve(&mut self, peer: &mut End, apps: &BTreeMap<u64, App>) {
        if !self.is_open() || self.closed {
            return;
        }
        self.dirty = false;
        let flags = self.words.app_flags.load(Ordering::Acquire);
        self.flags = flags;
        let head = self.words.rx_head.load(Ordering::Acquire);
        assert!(head <= self.arrived, "the library consumed {head} of {}", self.arrived);
        if peer.words.tx_head.load(Ordering::Relaxed) != head {
            peer.words.tx_head.store(head, Ordering::Release);
            peer.ring(apps);
            peer.dirty = true;
        }
        let tail = self.words.tx_tail.load(Ordering::Acquire);
        let freed = self.words.tx_head.load(Ordering::Relaxed);
        assert!(tail - freed <= self.ring_bytes, "the library wrote over bytes not consumed");
        if flags & app_flag::ABORT != 0 {
            return peer.reset(apps, Reason::ResetByPeer);
        }
        self.push(peer, tail, freed, apps);
        if flags & app_flag::FIN != 0 && self.sent == tail && !self.fin_sent {
            self.fin_sent = true;
            peer.raise(engine_flag::FIN, apps);
        }
        if flags & app_flag::STOP != 0 && !self.stop_sent {
            self.stop_sent = true;
            peer.raise(engine_flag::STOP, apps);
        }
    }

    fn push(&mut self, peer: &mut End, tail: u64, freed: u64, apps: &BTreeMap<u64, App>) {
        // The peer's ring may be smaller than ours.
        let end = tail.min(freed + peer.ring_bytes);
        if end <= self.sent {
            return;
        }
        while self.sent < end {
            let from = self.sent % self.ring_bytes;
            let to = self.sent % peer.ring_bytes;
            let run = (end - self.sent).min(self.ring_bytes - from).min(peer.ring_bytes - to);
            let mut bytes = vec![0; run as usize];
            self.tx.read(self.ring_bytes + from, &mut bytes).unwrap();
            peer.rx.write(peer.ring_bytes + to, &bytes).unwrap();
            self.sent += run;
        }
        peer.arrived = self.sent;
        peer.words.rx_tail.store(peer.arrived, Ordering::Release);
        peer.ring(apps);
    }

    /// Ends the connection here when the application gave the slot back and everything was sent.
    fn finish(&mut self, apps: &mut BTreeMap<u64, App>) {
        let flags = self.flags;
        if self.closed || flags & app_flag::CLOSED == 0 {
            return;
        }
        let broken = flags & app_flag::ABORT != 0
            || self.words.engine_flags.load(Ordering::Relaxed) & (engine_flag::RESET | engine_flag::STOP) != 0;
        if self.fin_sent || broken {
            self.closed = true;
            self.words.state.store(slot_state::CLOSED, Ordering::Release);
            if let Some(app) = apps.get_mut(&self.app) {
                app.slots[self.slot as usize].1 = false;
            }
        }
    }

    fn raise(&self, flags: u32, apps: &BTreeMap<u64, App>) {
        if !self.closed {
            self.words.engine_flags.fetch_or(flags, Ordering::Release);
            self.ring(apps);
        }
    }

    fn reset(&self, apps: &BTreeMap<u64, App>, reason: Reason) {
        if !self.closed && self.words.engine_flags.load(Ordering::Relaxed) & engine_flag::RESET == 0 {
            self.words.reason.store(reason.code(), Ordering::Relaxed);
            self.raise(engine_flag::RESET, apps);
        }
    }

    fn ring(&self, apps: &BTreeMap<u64, App>) {
        if let Some(app) = apps.get(&self.app) {
            app.ring(self.slot);
        }
    }
}
