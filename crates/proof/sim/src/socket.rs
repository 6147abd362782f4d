//! A datagram socket in a simulated application: a script over two rings of records.
//!
//! Slot and rings are those of the client core. It must never look at its rings without a reason, so that a lost
//! doorbell shows.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use raas_core::{Connection, End as Ended, Endpoint, Reserved, Rx, Tx};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::DatagramRecord;
use verbs::Time;

use crate::address::address;
use crate::address::host_of;
use crate::check::{Checks, End, SocketAt};
use crate::conn::{Died, Fuse, Progress, arm, earlier};
use crate::plan::SocketPlan;

/// A datagram that waits for its turn.
#[derive(Debug, Clone, Copy)]
struct Letter {
    to: End,
    bytes: u16,
}

/// One socket.
#[derive(Debug)]
pub(crate) struct Socket {
    own: End,
    /// Its number on its host.
    id: u64,
    plan: SocketPlan,
    rng: StdRng,
    endpoint: Endpoint,
    rx: Rx,
    tx: Tx,
    /// Hosts whose path was told.
    paths: BTreeSet<usize>,
    /// What goes before all else.
    letters: VecDeque<Letter>,
    /// Drawn, and without room in the ring so far.
    next: Option<Letter>,
    sent: u32,
    next_send: Time,
    next_read: Time,
    pub(crate) closed: bool,
}

impl Socket {
    /// Plays a script over a socket that the client core took into use; says its slot too.
    pub(crate) fn new(connection: Connection, plan: &SocketPlan, rng: &mut StdRng) -> (u32, Self) {
        let Connection { endpoint, rx, tx } = connection;
        let slot = arm(&endpoint);
        let socket = Self {
            own: (host_of(endpoint.local().ip()), endpoint.local().port()),
            id: endpoint.id(),
            plan: plan.clone(),
            rng: StdRng::seed_from_u64(rng.random()),
            endpoint,
            rx,
            tx,
            paths: BTreeSet::new(),
            letters: VecDeque::new(),
            next: None,
            sent: 0,
            next_send: Time::ZERO,
            next_read: Time::ZERO,
            closed: false,
        };
        (slot, socket)
    }

    /// Where it is bound.
    pub(crate) fn own(&self) -> End {
        self.own
    }

    /// Its number on its host.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its daemon has died: what was told of paths is out of date.
    pub(crate) fn forget_paths(&mut self) {
        self.paths.clear();
    }

    /// Other hosts whose paths it wants to know.
    pub(crate) fn questions(&self) -> BTreeSet<usize> {
        let hosts = self.plan.to.iter().map(|(host, _)| *host).filter(|host| *host != self.own.0);
        if self.plan.asks { hosts.collect() } else { BTreeSet::new() }
    }

    /// The longest datagram to a host was told.
    pub(crate) fn on_path(&mut self, now: Time, host: usize, payload_max: u32) {
        self.paths.insert(host);
        let bytes = u16::try_from(payload_max).unwrap_or(u16::MAX);
        let to: Vec<End> = self.plan.to.iter().copied().filter(|to| to.0 == host).collect();
        for to in to {
            self.letters.extend((0..self.plan.told).map(|_| Letter { to, bytes }));
        }
        self.next_send = self.next_send.max(now + self.plan.told_after);
    }

    /// Whether the daemon has taken all that was put in, and nothing more comes.
    pub(crate) fn is_idle(&self) -> bool {
        let is_empty = self.tx.untaken(&self.endpoint) == 0;
        self.closed || (is_empty && self.next.is_none() && self.letters.is_empty() && self.sent >= self.plan.count)
    }

    /// The world comes to rest: nothing more is sent, all that lies there is taken.
    pub(crate) fn end(&mut self) {
        self.plan.count = self.sent;
        self.plan.close_at = None;
        self.plan.read_gap_max = Duration::ZERO;
        self.next_read = Time::ZERO;
        self.letters.clear();
        self.next = None;
    }

    /// When it closes by itself.
    pub(crate) fn close_at(&self) -> Option<Time> {
        self.plan.close_at.filter(|_| !self.closed)
    }

    /// Runs as far as it can.
    pub(crate) fn run(
        &mut self,
        now: Time,
        checks: &mut Checks,
        fuse: &mut Fuse,
        buf: &mut [u8],
    ) -> Result<Progress, Died> {
        let mut progress = Progress::default();
        if self.closed {
            return Ok(progress);
        }
        let failure = self.endpoint.failure();
        let closes = failure.is_some() || self.plan.close_at.is_some_and(|at| at <= now);
        if closes {
            // What lies there is taken first, so that what was delivered can be counted.
            self.next_read = now;
            self.plan.read_gap_max = Duration::ZERO;
        }
        self.receive(now, checks, buf, &mut progress);
        self.rx.tell_room(&self.endpoint);
        fuse.point()?;
        if closes {
            self.closed = true;
            self.rx.close(&self.endpoint, true);
            if let Some(reason) = failure {
                checks.on_socket_ended(now, self.at(), self.own, reason);
            }
            checks.datagrams.on_closed(self.at());
            return Ok(progress);
        }
        self.send(now, checks, fuse, buf, &mut progress)?;
        if let Some(at) = self.plan.close_at {
            progress.again = earlier(progress.again, at);
        }
        Ok(progress)
    }

    fn at(&self) -> SocketAt {
        (self.own.0, self.id)
    }

    fn pause(&mut self, longest: Duration) -> Duration {
        let longest = longest.as_nanos() as u64;
        Duration::from_nanos(if longest == 0 { 0 } else { self.rng.random_range(0..=longest) })
    }

    fn receive(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8], progress: &mut Progress) {
        loop {
            let available = match self.rx.available(&self.endpoint) {
                Ok(0) => return,
                Ok(available) => available,
                Err(_) => {
                    return checks.fail(now, "datagrams", "the engine published an impossible cursor".into());
                }
            };
            if self.next_read > now {
                progress.again = earlier(progress.again, self.next_read);
                return;
            }
            let Ok(record) = self.rx.datagram(available) else {
                let own = self.own;
                return checks.fail(now, "datagrams", format!("{available} bytes at {own:?} are no whole record"));
            };
            let payload = &mut buf[..record.bytes.into()];
            self.rx.datagram_payload(payload);
            let from = (host_of(record.addr.ip()), record.addr.port());
            checks.on_datagram(now, self.at(), from, self.own, payload);
            self.rx.consume(&self.endpoint, record.ring_bytes());
            self.next_read = now + self.pause(self.plan.read_gap_max);
        }
    }

    fn send(
        &mut self,
        now: Time,
        checks: &mut Checks,
        fuse: &mut Fuse,
        buf: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Died> {
        while let Some(letter) = self.letter() {
            if self.next_send > now {
                progress.again = earlier(progress.again, self.next_send);
                return Ok(());
            }
            let addr = std::net::SocketAddr::new(address(letter.to.0), letter.to.1);
            let record = DatagramRecord { addr, bytes: letter.bytes };
            let room = match Reserved::try_new(&mut self.tx, &self.endpoint, record.ring_bytes() as usize) {
                Ok(Ok(room)) => room,
                // It gives the socket back when it runs next.
                Ok(Err(_)) | Err(Ended::Finished | Ended::Reset(_)) => return Ok(()),
                Err(end) => {
                    checks.fail(now, "datagrams", format!("the socket ended: {end:?}"));
                    return Ok(());
                }
            };
            let payload = &mut buf[..letter.bytes.into()];
            checks.datagrams.on_sent((self.own.0, self.id), self.own, letter.to, payload);
            room.put_datagram(&self.endpoint, &record, payload);
            self.next = None;
            self.next_send = now + self.pause(self.plan.gap_max);
            fuse.point()?;
        }
        Ok(())
    }

    /// The datagram whose turn it is.
    fn letter(&mut self) -> Option<Letter> {
        if self.next.is_none() {
            self.next = self.letters.pop_front().or_else(|| self.draw());
        }
        self.next
    }

    fn draw(&mut self) -> Option<Letter> {
        if self.sent >= self.plan.count || self.plan.to.is_empty() {
            return None;
        }
        let (own, asks) = (self.own.0, self.plan.asks);
        let mut open =
            self.plan.to.iter().copied().filter(|(host, _)| !asks || *host == own || self.paths.contains(host));
        let count = open.clone().count();
        let to = if count == 0 { None } else { open.nth(self.rng.random_range(0..count)) }?;
        self.sent += 1;
        // Half are short, and now and then one is longer than any path.
        let most = if self.rng.random_bool(0.5) { self.plan.len_max.min(40) } else { self.plan.len_max };
        Some(Letter { to, bytes: self.rng.random_range(0..=most) })
    }
}
