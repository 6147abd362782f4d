//! Well-behaved applications on both hosts: streams whose every byte is checked, and sinks for any program that
//! connects.
//!
//! Owns what arrives and whether it is right. It must never take a byte for granted.

pub mod datagrams;
pub mod regions;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use raas::{Listener, Session, Stream};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::host::{Host, WATCHDOG};

/// Bytes of a block: its number, its checksum, content.
const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 12;
/// Content that blocks are cut from.
const BASE_BYTES: usize = 1 << 20;
/// Stride between the content of one block and the next: odd, so that no two blocks of a run are equal.
const STRIDE: usize = 7919;

/// Streams from one host to the other, until they are stopped.
#[derive(Debug)]
pub struct Transfer {
    verified: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Result<u64>>>,
    readers: Vec<JoinHandle<Result<u64>>>,
}

impl Transfer {
    /// Begins `streams` streams.
    pub fn start(from: &Host, to: &Host, streams: u64) -> Result<Self> {
        let (client, server) = (session(from, "polite-sender")?, session(to, "polite-receiver")?);
        let listener = Listener::bind_with(&server, (to.ip, 0))?;
        let (verified, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        for number in 0..streams {
            let stream = Stream::connect_with(&client, listener.local_addr()?)?;
            let (accepted, _) = listener.accept_timeout(WATCHDOG)?;
            let base = Arc::new(content(number));
            let (told, counted, of_reader) = (Arc::clone(&stop), Arc::clone(&verified), Arc::clone(&base));
            writers.push(std::thread::spawn(move || send(stream, &base, &told)));
            readers.push(std::thread::spawn(move || check(accepted, &of_reader, &counted)));
        }
        Ok(Self { verified, stop, writers, readers })
    }

    /// Bytes that arrived and were right.
    pub fn verified(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }

    /// Whether every stream still runs.
    pub fn is_whole(&self) -> bool {
        !self.writers.iter().chain(&self.readers).any(JoinHandle::is_finished)
    }

    /// Ends the streams in order; says how many bytes arrived, all of them right and none missing.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let join = |t: JoinHandle<Result<u64>>| t.join().map_err(|_| anyhow::anyhow!("a polite thread panicked"))?;
        let mut total = 0;
        for (writer, reader) in self.writers.into_iter().zip(self.readers) {
            let (sent, received) = (join(writer)?, join(reader)?);
            ensure!(sent == received, "{sent} bytes were sent and {received} arrived");
            total += received;
        }
        Ok(total)
    }
}

/// A program's session with a host's daemon.
pub(crate) fn session(host: &Host, name: &str) -> Result<Session> {
    Session::builder().socket(&host.socket).name(name).connect().with_context(|| format!("no session for {name}"))
}

fn content(stream: u64) -> Vec<u8> {
    let mut base = vec![0; BASE_BYTES];
    SmallRng::seed_from_u64(stream).fill_bytes(&mut base);
    base
}

fn block(base: &[u8], number: u64, out: &mut [u8]) {
    let body = out.len() - HEADER_BYTES;
    let at = (number as usize).wrapping_mul(STRIDE) % (base.len() - body);
    out[HEADER_BYTES..].copy_from_slice(&base[at..at + body]);
    out[..8].copy_from_slice(&number.to_le_bytes());
    let sum = crc32fast::hash(&out[HEADER_BYTES..]);
    out[8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn send(mut stream: Stream, base: &[u8], stop: &AtomicBool) -> Result<u64> {
    stream.set_write_timeout(Some(WATCHDOG))?;
    let mut out = vec![0; BLOCK_BYTES];
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        block(base, number, &mut out);
        stream.write_all(&out).with_context(|| format!("sending block {number}"))?;
        number += 1;
    }
    stream.shutdown(Shutdown::Write)?;
    // The other side ends when it has everything.
    stream.set_read_timeout(Some(WATCHDOG))?;
    ensure!(stream.read(&mut [0; 1])? == 0, "the receiver has nothing to say");
    Ok(number * BLOCK_BYTES as u64)
}

fn check(mut stream: Stream, base: &[u8], verified: &AtomicU64) -> Result<u64> {
    stream.set_read_timeout(Some(WATCHDOG))?;
    let (mut expected, mut found) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut number = 0;
    loop {
        let first = stream.read(&mut found).with_context(|| format!("receiving block {number}"))?;
        if first == 0 {
            return Ok(number * BLOCK_BYTES as u64);
        }
        stream.read_exact(&mut found[first..]).with_context(|| format!("receiving block {number}"))?;
        block(base, number, &mut expected);
        ensure!(found == expected, "block {number} is wrong");
        number += 1;
        verified.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
    }
}

/// A listener that takes every connection and reads whatever comes, until dropped.
#[derive(Debug)]
pub struct Sink {
    /// Where it listens.
    pub at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Longest sleep before a sink looks whether it was stopped.
const SINK_LOOK: Duration = Duration::from_millis(50);
/// Enough for a buffer and the library.
const SINK_STACK_BYTES: usize = 256 << 10;

impl Sink {
    /// On a host.
    pub fn start(host: &Host) -> Result<Self> {
        let session = session(host, "polite-sink")?;
        let ip: IpAddr = host.ip;
        let listener = Listener::bind_with(&session, (ip, 0))?;
        let at = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || swallow(&listener, &told));
        Ok(Self { at, stop, thread: Some(thread) })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn swallow(listener: &Listener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept_timeout(SINK_LOOK) {
            // A thread for each: the daemon's limits bound their number, and the end of the other side ends them.
            let _ = std::thread::Builder::new().stack_size(SINK_STACK_BYTES).spawn(move || read_all(stream));
        }
    }
}

fn read_all(mut stream: Stream) {
    let mut buffer = [0; 16 << 10];
    while matches!(stream.read(&mut buffer), Ok(n) if n > 0) {}
}

/// A new pair of applications that transfers something and ends in order.
pub fn fresh(hosts: &[Host; 2]) -> Result<String> {
    let transfer = Transfer::start(&hosts[0], &hosts[1], 1)?;
    let start = std::time::Instant::now();
    while transfer.verified() < 1 << 20 {
        ensure!(start.elapsed() < WATCHDOG, "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(format!("{} bytes", transfer.finish()?))
}
