//! Connections that each carry a few bytes all the time, and how long each of them stands still when a daemon dies.
//!
//! Owns both ends of all of them, in one thread: it writes to each and reads from each in turn, and never waits in one.

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use raas::{Listener, Session, Stream};

use super::PATIENCE;
use super::cluster::Cluster;

/// Connections.
const COUNT: usize = 1000;
/// Bytes of one write.
const PIECE: usize = 16;

/// One connection.
struct Link {
    near: Stream,
    far: Stream,
    written: u64,
    read: u64,
    /// What is written from here on was written after the daemon's death.
    mark: Option<u64>,
    /// When the first of that was read.
    went_on: Option<Instant>,
}

/// The byte at an offset of a stream.
fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

impl Link {
    /// Writes a piece if there is room.
    fn write(&mut self) -> Result<()> {
        let piece: [u8; PIECE] = std::array::from_fn(|i| byte_at(self.written + i as u64));
        match self.near.write(&piece) {
            Ok(n) => self.written += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e).context("writing"),
        }
        Ok(())
    }

    /// Reads what is there.
    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        let count = match self.far.read(into) {
            Ok(0) => bail!("the end after {} bytes", self.read),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e).context("reading"),
        };
        for &byte in &into[..count] {
            ensure!(byte == byte_at(self.read), "byte {} is wrong", self.read);
            self.read += 1;
        }
        if self.mark.is_some_and(|mark| self.read > mark) && self.went_on.is_none() {
            self.went_on = Some(Instant::now());
        }
        Ok(())
    }
}

/// The connections, and the sessions and listener that they are of.
struct Links {
    links: Vec<Link>,
    buffer: Vec<u8>,
    _listener: Listener,
    _sessions: [Session; 2],
}

impl Links {
    fn open(cluster: &Cluster) -> Result<Self> {
        // They come back to the next daemon also while the thread is in no call.
        let sessions = cluster.sessions_that_return()?;
        let (listener, to) = cluster.listener_of(&sessions[1])?;
        let mut links = Vec::with_capacity(COUNT);
        for _ in 0..COUNT {
            let near = Stream::connect_with(&sessions[0], to)?;
            let (far, _) = listener.accept_timeout(PATIENCE)?;
            near.set_nonblocking(true)?;
            far.set_nonblocking(true)?;
            links.push(Link { near, far, written: 0, read: 0, mark: None, went_on: None });
        }
        Ok(Self { links, buffer: vec![0; 64 << 10], _listener: listener, _sessions: sessions })
    }

    /// Writes and reads once on each.
    fn turn(&mut self) -> Result<()> {
        for (i, link) in self.links.iter_mut().enumerate() {
            link.write().and_then(|()| link.read(&mut self.buffer)).with_context(|| format!("connection {i}"))?;
        }
        Ok(())
    }

    fn turns(&mut self, during: Duration) -> Result<()> {
        let from = Instant::now();
        while from.elapsed() < during {
            self.turn()?;
        }
        Ok(())
    }
}

/// Kills the daemons of these hosts, starts the next ones, and says how long connections stood still: from the SIGKILL to
/// the first read of a byte that was written after it, in order of length. Nothing is lost or doubled.
pub(crate) fn pauses(cluster: &Cluster, hosts: &[usize]) -> Result<Vec<Duration>> {
    let mut links = Links::open(cluster)?;
    links.turns(super::AROUND)?;
    let (told, killed) = mpsc::channel();
    let killed = std::thread::scope(|scope| {
        let restart = scope.spawn(move || cluster.restart(hosts, &told));
        let mut death = None;
        let from = Instant::now();
        while death.is_none() || links.links.iter().any(|link| link.went_on.is_none()) {
            if let Ok(at) = killed.try_recv() {
                death = Some(at);
                links.links.iter_mut().for_each(|link| link.mark = Some(link.written));
            }
            links.turn()?;
            let waits = links.links.iter().filter(|link| link.went_on.is_none()).count();
            ensure!(from.elapsed() < PATIENCE, "{waits} connections did not go on in {PATIENCE:?}");
        }
        restart.join().map_err(|_| anyhow::anyhow!("the thread that restarts panicked"))??;
        death.context("no daemon was killed")
    })?;
    links.turns(super::AROUND)?;
    let mut pauses: Vec<_> = links.links.iter().filter_map(|link| Some(link.went_on? - killed)).collect();
    pauses.sort();
    Ok(pauses)
}
