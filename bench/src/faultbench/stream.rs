//! A flow of bytes between the two hosts that never stops by itself, and when each piece of it was read.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use raas::Stream;

use super::PATIENCE;
use super::cluster::Cluster;

/// Bytes of one write.
const PIECE: usize = 4096;
/// Pause between two: the flow must show pauses, not fill the machine.
const BETWEEN: Duration = Duration::from_micros(200);

/// When something was read, in order.
#[derive(Debug, Default)]
pub(crate) struct Reads(Vec<Instant>);

impl Reads {
    /// The longest time between two reads, of those of which the second lies in `from..from + during`.
    pub(crate) fn longest_gap(&self, from: Instant, during: Duration) -> Duration {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let within = pairs.filter(|(_, second)| **second >= from && **second <= from + during);
        within.map(|(first, second)| *second - *first).max().unwrap_or(during)
    }
}

/// The flow.
#[derive(Debug)]
pub(crate) struct Flow {
    is_over: Arc<AtomicBool>,
    reads: Arc<Mutex<Reads>>,
    writer: JoinHandle<Result<u64>>,
    reader: JoinHandle<Result<u64>>,
}

impl Flow {
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        let (listener, to) = cluster.listener()?;
        let stream = Stream::connect_with(&cluster.sessions[0], to)?;
        let (accepted, _) = listener.accept_timeout(PATIENCE)?;
        Self::over(stream, accepted)
    }

    /// From one end of a connection to the other.
    pub(crate) fn over(mut stream: Stream, mut accepted: Stream) -> Result<Self> {
        accepted.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Reads::default())));
        let writer = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let mut written = 0;
                while !is_over.load(Ordering::Relaxed) {
                    stream.write_all(&[written as u8; PIECE])?;
                    written += 1;
                    std::thread::sleep(BETWEEN);
                }
                stream.shutdown(std::net::Shutdown::Write)?;
                Ok(written * PIECE as u64)
            }
        });
        let reader = std::thread::spawn({
            let reads = Arc::clone(&reads);
            move || {
                let (mut read, mut piece) = (0u64, vec![0; 64 << 10]);
                loop {
                    let n = accepted.read(&mut piece)?;
                    if n == 0 {
                        return Ok(read);
                    }
                    let now = Instant::now();
                    for byte in &piece[..n] {
                        ensure!(*byte == (read / PIECE as u64) as u8, "byte {read} is wrong");
                        read += 1;
                    }
                    reads.lock().map_err(|_| anyhow!("the other thread panicked"))?.0.push(now);
                }
            }
        });
        Ok(Self { is_over, reads, writer, reader })
    }

    /// How long after `at` the next piece was read.
    pub(crate) fn next_read_after(&self, at: Instant, patience: Duration) -> Option<Duration> {
        while at.elapsed() < patience {
            let last = self.reads.lock().ok()?.0.iter().rev().take_while(|r| **r > at).last().copied();
            if let Some(next) = last {
                return Some(next - at);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// As [`Reads::longest_gap`], while it goes on.
    pub(crate) fn longest_gap(&self, from: Instant, during: Duration) -> Result<Duration> {
        Ok(self.reads.lock().map_err(|_| anyhow!("the reader panicked"))?.longest_gap(from, during))
    }

    /// Ends it. All that was written was read, in order.
    pub(crate) fn finish(self) -> Result<Reads> {
        self.is_over.store(true, Ordering::Relaxed);
        let written = self.writer.join().map_err(|_| anyhow!("the writer panicked"))?.context("writing")?;
        let read = self.reader.join().map_err(|_| anyhow!("the reader panicked"))?.context("reading")?;
        ensure!(read == written, "{read} of {written} bytes arrived");
        let reads = std::mem::take(&mut *self.reads.lock().map_err(|_| anyhow!("a thread panicked"))?);
        Ok(reads)
    }
}
