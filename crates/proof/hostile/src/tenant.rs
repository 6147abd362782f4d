//! The hostile tenant: all its misdeeds, in an order that a seed decides, each for a while.
//!
//! Owns what keeps a daemon busy rather than what ends a session (that is `breach`). It must never stop because the
//! daemon threw it out: it comes back under the same name.

mod datagrams;
mod loose;
mod operations;
mod regions;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use control::{Cursor, InspectQuery, Request, encode, send_frame, send_message};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rustix::net::SendFlags;

use crate::breach::{self, Target};
use crate::raw::{RawApp, RawConnection, RawError, dial, hello};
use crate::words::{self, Step, attach_patiently};

/// Time for one misdeed before the next.
const TURN: Duration = Duration::from_millis(100);
/// So many misdeeds further on the next round of a siege begins: a slow machine has time for few
/// in one. It has no divisor in common with their number, so the rounds begin at different ones.
const BEGINS_APART: usize = 4;
/// The longest one that a misdeed gets which had no time in its turns.
const TURN_MAX: Duration = Duration::from_secs(10);
/// Connections that the hoarder opens at most; the daemon stops it earlier.
const HOARD_MAX: usize = 100_000;

/// Where it lives, and which daemons and applications it attacks.
#[derive(Debug, Clone)]
pub struct Neighbourhood {
    /// Control socket of the daemon that is attacked.
    pub socket: PathBuf,
    /// Control socket of a daemon of another host, where a second half of the tenant listens.
    pub far_socket: PathBuf,
    /// Polite listener at the other host.
    pub far: std::net::SocketAddr,
    /// Polite listener at this host.
    pub near: std::net::SocketAddr,
}

/// The tenant.
#[derive(Debug)]
pub struct Tenant {
    rng: SmallRng,
    home: Neighbourhood,
    until: Instant,
    /// What it does in its first turns.
    order: Vec<Misdeed>,
    done: BTreeMap<&'static str, u64>,
}

type Misdeed = (&'static str, fn(&mut Tenant) -> Result<u64, RawError>);

const MISDEEDS: &[Misdeed] = &[
    ("flips_words", Tenant::flip_words),
    ("scribbles_while_sending", Tenant::scribble),
    ("floods_doorbells", Tenant::flood_doorbells),
    ("floods_the_wake_socket", Tenant::flood_wakes),
    ("opens_to_the_limits", Tenant::hoard),
    ("never_reads", Tenant::never_read),
    ("sends_malformed_messages", Tenant::send_malformed),
    ("breaks_every_rule", Tenant::breach_all),
    ("storms_the_door", Tenant::storm),
    ("scribbles_over_datagrams", Tenant::scribble_over_datagrams),
    ("floods_datagrams", Tenant::flood_datagrams),
    ("hoards_ports_and_paths", Tenant::hoard_ports),
    ("abuses_regions", Tenant::abuse_regions),
    ("scribbles_over_operations", Tenant::scribble_over_operations),
    ("never_takes_completions", Tenant::never_take_completions),
];

/// The rounds of a siege have one order between them and each begins further on, so none is left out by chance.
fn first_order(seed: u64, round: usize) -> Vec<Misdeed> {
    let mut order = MISDEEDS.to_vec();
    order.shuffle(&mut SmallRng::seed_from_u64(seed));
    order.rotate_left(round * BEGINS_APART % MISDEEDS.len());
    order
}

impl Tenant {
    /// A tenant whose choices follow from the seed of its siege and the number of its round.
    pub fn new(seed: u64, round: usize, home: Neighbourhood) -> Self {
        let rng = SmallRng::seed_from_u64(seed.wrapping_add(round as u64));
        Self { rng, home, until: Instant::now(), order: first_order(seed, round), done: BTreeMap::new() }
    }

    /// Misbehaves for a time; returns how often it did each misdeed.
    pub fn misbehave(&mut self, time: Duration) -> Result<BTreeMap<&'static str, u64>, (&'static str, RawError)> {
        let end = Instant::now() + time;
        let mut order = std::mem::take(&mut self.order);
        while Instant::now() < end {
            for misdeed in &order {
                self.until = (Instant::now() + TURN).min(end);
                if !self.has_time() {
                    break;
                }
                self.commit(misdeed)?;
            }
            order.shuffle(&mut self.rng);
        }
        self.catch_up()?;
        Ok(std::mem::take(&mut self.done))
    }

    /// On a busy machine a turn may be over before its misdeed was prepared: those get longer ones, after the time.
    fn catch_up(&mut self) -> Result<(), (&'static str, RawError)> {
        let mut turn = TURN;
        while turn < TURN_MAX {
            turn *= 2;
            for misdeed in MISDEEDS {
                if self.done.get(misdeed.0) == Some(&0) {
                    self.until = Instant::now() + turn;
                    self.commit(misdeed)?;
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, (name, misdeed): &Misdeed) -> Result<(), (&'static str, RawError)> {
        let times = match misdeed(self) {
            Ok(times) => times,
            // Detached, refused, at a limit, or the buffer full: these are normal for this tenant.
            Err(e) if e.is_end() => 1,
            Err(RawError::No(_) | RawError::Channel(control::ChannelError::WouldBlock)) => 1,
            Err(e) => return Err((name, e)),
        };
        *self.done.entry(name).or_default() += times;
        Ok(())
    }

    /// The names of what it does.
    pub fn misdeeds() -> impl Iterator<Item = &'static str> {
        MISDEEDS.iter().map(|(name, _)| *name)
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    fn target(home: &Neighbourhood) -> Target<'_> {
        Target { socket: &home.socket, far: home.far, near: home.near }
    }

    fn attach(&self, name: &str) -> Result<RawApp, RawError> {
        attach_patiently(&self.home.socket, name)
    }

    fn flip_words(&mut self) -> Result<u64, RawError> {
        let mut flips = 0;
        let home = self.home.clone();
        while self.has_time() {
            let step = Step::ALL[self.rng.random_range(0..Step::ALL.len())];
            let which = self.rng.random_range(0..80);
            if words::flip(Self::target(&home), step, which, &mut self.rng)?.is_some() {
                flips += 1;
            }
        }
        Ok(flips)
    }

    /// A tail that is always right over bytes that are never still.
    fn scribble(&mut self) -> Result<u64, RawError> {
        let mut app = self.attach("scribbles")?;
        let connection = app.connect(self.home.far, 65_536)?;
        let mut noise = [0; 4096];
        let mut writes = 0;
        while self.has_time() {
            self.rng.fill_bytes(&mut noise);
            for ring in [&connection.tx, &connection.rx] {
                let at = ring.1 + self.rng.random_range(0..=connection.ring_bytes - noise.len() as u64);
                ring.0.write(at, &noise).map_err(|e| RawError::Unexpected(e.to_string()))?;
                writes += 1;
            }
            let head = connection.words.tx_head.load(Ordering::Acquire);
            connection.words.tx_tail.store(head.wrapping_add(connection.ring_bytes), Ordering::Release);
            app.ring(connection.slot);
        }
        app.drain()?;
        Ok(writes)
    }

    /// Every bit of the doorbell, those of slots that do not exist included, as fast as they are cleared.
    fn flood_doorbells(&mut self) -> Result<u64, RawError> {
        let mut app = self.attach("rings-and-rings")?;
        let connections: Vec<RawConnection> =
            (0..8).map(|_| app.connect(self.home.far, 4096)).collect::<Result<_, _>>()?;
        let row: Vec<_> = words::of(&app, 0).into_iter().filter(|(name, _)| name.starts_with("a2e")).collect();
        let mut rings = 0;
        while self.has_time() {
            for _ in 0..64 {
                row.iter().for_each(|(_, word)| word.store(u64::MAX));
                for slot in 0..app.session.slots() {
                    if let Some(place) = app.session.place_of(slot) {
                        place.ring();
                        rings += 1;
                    }
                }
            }
            app.ring(connections[0].slot);
        }
        app.drain()?;
        Ok(rings)
    }

    /// Datagrams of all lengths on the wake sockets.
    fn flood_wakes(&mut self) -> Result<u64, RawError> {
        let app = self.attach("wakes-and-wakes")?;
        let mut noise = vec![0; 32_768];
        let mut wakes = 0;
        for wake in app.wakes.iter().cycle() {
            if !self.has_time() {
                break;
            }
            let length = if self.rng.random_bool(0.9) {
                self.rng.random_range(1..8)
            } else {
                self.rng.random_range(1..noise.len())
            };
            self.rng.fill_bytes(&mut noise[..8]);
            match rustix::net::send(wake.fd(), &noise[..length], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => wakes += 1,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => std::thread::yield_now(),
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(RawError::Closed),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(wakes)
    }

    /// Listeners, applications and connections until each is refused; all are held until the turn is over.
    fn hoard(&mut self) -> Result<u64, RawError> {
        let mut app = self.attach("hoards")?;
        let mut held = 0;
        while self.has_time() && app.listen(u32::MAX).is_ok() {
            held += 1;
        }
        let mut sizes = [8 << 20, 65_536, 4096].into_iter().cycle();
        for _ in 0..HOARD_MAX {
            if !self.has_time() {
                break;
            }
            match app.connect(self.home.far, sizes.next().unwrap_or(4096)) {
                Ok(_) => held += 1,
                Err(RawError::No(_)) if self.rng.random_bool(0.5) => break,
                Err(RawError::No(_)) => {}
                Err(e) => return Err(e),
            }
        }
        let mut others = Vec::new();
        while self.has_time() {
            match RawApp::attach(&self.home.socket, "hoards-more") {
                Ok(other) => others.push(other),
                Err(e) if e.is_end() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(held + others.len() as u64)
    }

    /// Both ends are its own, and neither reads: the rings fill, the frames of the control socket too.
    fn never_read(&mut self) -> Result<u64, RawError> {
        let mut far = attach_patiently(&self.home.far_socket, "never-reads-there")?;
        let mut app = self.attach("never-reads")?;
        let to = far.listen(4096)?;
        let mut filled = 0;
        while self.has_time() && filled < 32 {
            let request = app.ask(to, 65_536)?;
            let connection = match app.connected(request) {
                Ok(connection) => connection,
                Err(RawError::No(_)) => break,
                Err(e) => return Err(e),
            };
            connection.words.tx_tail.store(connection.ring_bytes, Ordering::Release);
            app.ring(connection.slot);
            filled += 1;
        }
        let mut request = 1 << 40;
        while self.has_time() {
            request += 1;
            app.send(&Request::Inspect { request, query: InspectQuery::Connections, from: Cursor::default() }, &[])?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(filled)
    }

    /// Requests with a few bytes wrong, cut, or longer.
    fn send_malformed(&mut self) -> Result<u64, RawError> {
        let mut sent = 0;
        while self.has_time() {
            let mut app = self.attach("malforms")?;
            for _ in 0..64 {
                let mut frame = encode(&self.any_request()).unwrap_or_default();
                for _ in 0..self.rng.random_range(0..3) {
                    let at = self.rng.random_range(0..frame.len().max(1));
                    match self.rng.random_range(0..3) {
                        0 => frame.truncate(at.max(1)),
                        1 => frame.push(self.rng.random()),
                        _ => frame.iter_mut().skip(at).take(1).for_each(|b| *b = self.rng.random()),
                    }
                }
                sent += 1;
                if let Err(e) = send_frame(app.socket(), &frame, &[]).map_err(RawError::from).and_then(|()| app.drain())
                {
                    match e {
                        RawError::Channel(control::ChannelError::WouldBlock) => {}
                        e if e.is_end() => break,
                        e => return Err(e),
                    }
                }
            }
        }
        Ok(sent)
    }

    fn any_request(&mut self) -> Request {
        let (request, port) = (self.rng.random(), self.rng.random());
        let ring_bytes = if self.rng.random() { 0 } else { self.rng.random() };
        let to =
            std::net::SocketAddr::new(if self.rng.random() { self.home.far.ip() } else { self.home.near.ip() }, port);
        match self.rng.random_range(0..10) {
            0 => Request::Listen { request, port, backlog: self.rng.random(), ring_bytes, kind: control::Kind::Stream },
            1 => Request::Unlisten { port },
            2 => Request::Accepted { port, connection: self.rng.random_range(0..1000) },
            3 => Request::Connect { request, to, ring_bytes, kind: control::Kind::Stream },
            4 => Request::CancelConnect { request },
            5 => Request::PairSegment { pair: self.rng.random_range(0..4), index: 0, slots: 64, ring_bytes },
            7 => Request::BindDatagram { request, port, ring_bytes },
            8 => Request::DatagramPath { request, to: to.ip() },
            6 => Request::PairClosed { connection: self.rng.random_range(0..1000) },
            _ => Request::Inspect { request, query: InspectQuery::Stat, from: Cursor::default() },
        }
    }

    fn breach_all(&mut self) -> Result<u64, RawError> {
        let home = self.home.clone();
        let mut breaches = 0;
        while self.has_time() {
            let breach = &breach::ALL[self.rng.random_range(0..breach::ALL.len())];
            match (breach.commit)("breaches", Self::target(&home)) {
                Ok(_) => breaches += 1,
                Err(e) if e.is_end() || matches!(e, RawError::No(_)) => breaches += 1,
                Err(e) => return Err(RawError::Unexpected(format!("after {}: {e}", breach.name))),
            }
        }
        Ok(breaches)
    }

    /// Comes and goes at every point of the way in, with connects in between that nobody waits for.
    fn storm(&mut self) -> Result<u64, RawError> {
        let mut times = 0;
        let mut silent = Vec::new();
        while self.has_time() {
            times += 1;
            let socket = match dial(&self.home.socket) {
                Ok(socket) => socket,
                Err(e) if e.is_end() => continue,
                Err(e) => return Err(e),
            };
            match self.rng.random_range(0..4) {
                0 => {}
                1 if silent.len() < 200 => silent.push(socket),
                2 => {
                    let _ = send_message(socket.as_fd(), &hello("storms"), &[]);
                }
                _ => {
                    let _ = send_message(socket.as_fd(), &hello("storms"), &[]);
                    let Ok(mut app) = RawApp::welcomed(socket) else { continue };
                    let request = app.ask(self.home.far, 4096)?;
                    if self.rng.random() {
                        app.send(&Request::CancelConnect { request }, &[])?;
                    }
                }
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_rounds_do_every_misdeed_even_where_each_has_time_for_three() {
        for seed in 0..100 {
            let mut done: Vec<_> =
                (0..9).flat_map(|round| first_order(seed, round).into_iter().take(3)).map(|(name, _)| name).collect();
            done.sort_unstable();
            done.dedup();
            assert_eq!(done.len(), MISDEEDS.len(), "seed {seed}: {done:?}");
        }
    }
}
