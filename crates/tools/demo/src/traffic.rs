//! Bytes on hundreds of connections of an application at once, with a few threads: a flow until the demo says stop, so
//! that something can be broken under it, and files.
//!
//! Work goes in *turns*: a frame of a flow, or a file. Threads that send and threads that receive each walk their
//! connections in the order (turn, connection), at both ends. That order is total, so threads never wait in a circle:
//! both threads of the first piece of work that is not done work on it. A connection that fails is kept with its error
//! and left out from then on; whether it was allowed to fail is for the parent process to say.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

use super::corpus::{SourceFile, hex};
use super::links::Links;
use super::protocol::{AppLink, Arrived, Flowed, Gap, Lost};
use transport::Duplex;
use transport::load::fill;

/// Threads that send, and threads that receive, in one application.
const POOL_THREADS_MAX: usize = 4;
/// Bytes of a file that are sent or received at once.
const PART_BYTES: usize = 256 << 10;
/// Bytes of payload in a frame. Small, so that a flow on a thousand connections fills no rings: their memory is not
/// what it is about.
const PAYLOAD_BYTES: usize = 1 << 10;
/// A thread sends on this part of its connections, then sleeps for [`PACE`], so that bytes are always under way.
const SLICES: usize = 8;
const PACE: Duration = Duration::from_millis(1);
/// Bytes before the payload: number of the connection, number of the frame, length of the payload (0: the last frame).
const HEADER_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"RFLW");
/// Shorter times without a byte are not reported, and so many of them at most.
const GAP_MIN_NS: u64 = 500_000;
const GAPS_MAX: usize = 1000;

/// The connections that a thread serves, in their order, each with what the thread knows of it.
type Pool<'a, S, T> = Vec<(Arc<S>, &'a AppLink, T)>;

/// What all threads of an application share while bytes move.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Senders of a flow end their streams.
    pub(super) stop: AtomicBool,
    pub(super) received_bytes: AtomicU64,
    /// When the last frame came to any thread.
    last_ns: AtomicU64,
    gaps: Mutex<Vec<Gap>>,
    lost: Mutex<Vec<Lost>>,
}

/// Nanoseconds of the kernel's monotonic clock, which all processes share.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Traffic {
    /// Sends and receives frames on all connections until [`Self::stop`] is set and the peers have stopped too.
    pub(super) fn flow<S: Duplex>(&self, open: &Links<S>, links: &[AppLink]) {
        self.last_ns.store(monotonic_ns(), Ordering::Relaxed);
        std::thread::scope(|scope| {
            for pool in pools(open, links) {
                let theirs = pool.clone();
                scope.spawn(move || self.send_frames(pool));
                scope.spawn(move || self.receive_frames(theirs));
            }
        });
    }

    /// Sends and receives all files; gives what came, of the connections that did not fail.
    pub(super) fn transfer<S: Duplex>(&self, open: &Links<S>, links: &[AppLink]) -> Vec<Arrived> {
        std::thread::scope(|scope| {
            let threads = pools(open, links).into_iter().map(|pool| {
                let theirs = pool.clone();
                scope.spawn(move || self.send_files(pool));
                scope.spawn(move || self.receive_files(theirs))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread that receives panics")).collect()
        })
    }

    /// Connections that failed, each once.
    pub(super) fn lost(&self) -> Vec<Lost> {
        let mut lost = std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        lost.sort_by_key(|lost| (lost.connection, lost.at_ns));
        // The sending and the receiving thread may both have met the end; the first one counts.
        lost.dedup_by_key(|lost| lost.connection);
        lost
    }

    /// What happened in a flow.
    pub(super) fn told(self) -> Flowed {
        let lost = self.lost();
        let gaps = self.gaps.into_inner().unwrap_or_else(PoisonError::into_inner);
        Flowed { received_bytes: self.received_bytes.into_inner(), gaps, lost }
    }

    fn lose(&self, connection: u32, e: &io::Error) {
        let is_unverified = e.kind() == io::ErrorKind::InvalidData;
        let lost = Lost { connection, at_ns: monotonic_ns(), error: e.to_string(), is_unverified };
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(lost);
    }

    /// Does each turn of all connections, until none goes on.
    fn walk<S, T>(
        &self,
        mut pool: Pool<'_, S, T>,
        mut step: impl FnMut(u32, &S, &AppLink, &mut T) -> io::Result<bool>,
    ) {
        let mut turn = 0;
        while !pool.is_empty() {
            pool.retain_mut(|(stream, link, state)| {
                let goes_on = step(turn, stream, link, state);
                goes_on.map_err(|e| self.lose(link.connection, &e)).unwrap_or(false)
            });
            turn += 1;
        }
    }

    fn send_frames<S: Duplex>(&self, pool: Pool<'_, S, ()>) {
        let mut frame = vec![0; HEADER_BYTES + PAYLOAD_BYTES];
        let slice = pool.len().div_ceil(SLICES);
        let mut sent = 0;
        self.walk(pool, |number, stream, link, ()| {
            let is_last = self.stop.load(Ordering::Relaxed);
            if !is_last && sent % slice == 0 {
                std::thread::sleep(PACE);
            }
            sent += 1;
            let bytes = if is_last { 0 } else { PAYLOAD_BYTES };
            let (header, payload) = frame.split_at_mut(HEADER_BYTES);
            header.copy_from_slice(&encode(link.connection, number, bytes));
            fill(payload, seed(link.connection, number, link.connects));
            stream.send_all(frame.get(..HEADER_BYTES + bytes).unwrap_or_default())?;
            Ok(!is_last)
        });
    }

    fn receive_frames<S: Duplex>(&self, pool: Pool<'_, S, ()>) {
        let (mut header, mut payload, mut expected) =
            ([0; HEADER_BYTES], vec![0; PAYLOAD_BYTES], vec![0; PAYLOAD_BYTES]);
        self.walk(pool, |number, stream, link, ()| {
            stream.recv_exact(&mut header)?;
            if header == encode(link.connection, number, 0) {
                return Ok(false);
            }
            if header != encode(link.connection, number, PAYLOAD_BYTES) {
                return Err(invalid(format!("what should be frame {number} is none")));
            }
            stream.recv_exact(&mut payload)?;
            self.arrived(PAYLOAD_BYTES);
            fill(&mut expected, seed(link.connection, number, !link.connects));
            if payload != expected {
                // The rest is received all the same, so that the sender does not wait for room.
                self.lose(link.connection, &invalid(format!("frame {number} came altered")));
            }
            Ok(true)
        });
    }

    fn arrived(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = monotonic_ns();
        let before = self.last_ns.fetch_max(now, Ordering::Relaxed);
        let length_ns = now.saturating_sub(before);
        if length_ns >= GAP_MIN_NS {
            let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
            if gaps.len() < GAPS_MAX {
                gaps.push(Gap { begin_ns: before, length_ns });
            }
        }
    }

    fn send_files<S: Duplex>(&self, pool: Pool<'_, S, ()>) {
        let mut buffer = vec![0; PART_BYTES];
        self.walk(pool, |turn, stream, link, ()| {
            let Some(file) = link.send.get(turn as usize) else { return Ok(false) };
            send_file(stream, file, &mut buffer).map(|()| true)
        });
    }

    fn receive_files<S: Duplex>(&self, pool: Pool<'_, S, ()>) -> Vec<Arrived> {
        let mut buffer = vec![0; PART_BYTES];
        let mut arrived = Vec::new();
        let pool = pool.into_iter().map(|(stream, link, ())| (stream, link, Vec::new()));
        self.walk(pool.collect(), |turn, stream, link, sha256| {
            let Some(bytes) = link.receive.get(turn as usize) else {
                arrived.push(Arrived { connection: link.connection, sha256: std::mem::take(sha256) });
                return Ok(false);
            };
            let mut hasher = Sha256::new();
            in_parts(*bytes, &mut buffer, |part| {
                stream.recv_exact(part)?;
                hasher.update(&*part);
                self.received_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                Ok(())
            })?;
            sha256.push(hex(&hasher.finalize()));
            Ok(true)
        });
        arrived
    }
}

/// Does something with so many bytes, as many at once as `buffer` holds.
fn in_parts(mut left: u64, buffer: &mut [u8], mut act: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        act(buffer.get_mut(..n).unwrap_or_default())?;
        left -= n as u64;
    }
    Ok(())
}

fn send_file(stream: &impl Duplex, file: &SourceFile, buffer: &mut [u8]) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e} (was it changed?)", file.path.display()));
    let mut source = File::open(&file.path).map_err(named)?;
    in_parts(file.bytes, buffer, |part| {
        source.read_exact(part).map_err(named)?;
        stream.send_all(part)
    })
}

/// The open ones of `links`, by thread.
fn pools<'a, S>(open: &Links<S>, links: &'a [AppLink]) -> Vec<Pool<'a, S, ()>> {
    let of_thread = |thread| {
        let mine = links.iter().filter(move |link| link.peer.app as usize % POOL_THREADS_MAX == thread);
        mine.filter_map(|link| Some((Arc::clone(open.get(&link.connection)?), link, ()))).collect::<Vec<_>>()
    };
    (0..POOL_THREADS_MAX).map(of_thread).filter(|pool| !pool.is_empty()).collect()
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn encode(connection: u32, number: u32, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let words = [MAGIC, connection, number, bytes as u32];
    for (place, word) in header.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// What makes the payload of a frame differ from that of every other frame.
fn seed(connection: u32, number: u32, by_connector: bool) -> u64 {
    (u64::from(connection) << 33) ^ (u64::from(number) << 1) ^ u64::from(by_connector)
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Seat;
    use super::*;
    use transport::{Accept, Tcp, Transport};

    type Ends = (Links<<Tcp as Transport>::Stream>, Links<<Tcp as Transport>::Stream>);

    fn pair(connections: u32) -> Ends {
        let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (mut ours, mut theirs) = (Links::new(), Links::new());
        for connection in 0..connections {
            let limit = Duration::from_secs(60);
            ours.insert(connection, Arc::new(Tcp.connect(listener.local_addr(), limit).unwrap()));
            theirs.insert(connection, Arc::new(listener.accept_timeout(limit).unwrap().unwrap()));
        }
        (ours, theirs)
    }

    fn links(connections: u32, connects: bool) -> Vec<AppLink> {
        let peer = Seat { host: 0, app: 0 };
        let link = |connection| AppLink { connection, peer, connects, send: Vec::new(), receive: Vec::new() };
        (0..connections).map(link).collect()
    }

    #[test]
    fn bytes_flow_until_told_to_stop_and_are_the_right_ones() {
        let (ours, theirs) = pair(3);
        let (a, b) = (Traffic::default(), Traffic::default());
        std::thread::scope(|scope| {
            scope.spawn(|| a.flow(&ours, &links(3, true)));
            scope.spawn(|| b.flow(&theirs, &links(3, false)));
            let begin = std::time::Instant::now();
            let has_none = |side: &Traffic| side.received_bytes.load(Ordering::Relaxed) == 0;
            while (has_none(&a) || has_none(&b)) && begin.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            a.stop.store(true, Ordering::Relaxed);
            b.stop.store(true, Ordering::Relaxed);
        });
        for told in [a.told(), b.told()] {
            assert!(told.received_bytes > 0 && told.lost.is_empty(), "{told:?}");
        }
    }

    #[test]
    fn a_connection_that_ends_is_lost_and_altered_bytes_are_found() {
        let (ours, theirs) = pair(3);
        let a = Traffic::default();
        std::thread::scope(|scope| {
            scope.spawn(|| a.flow(&ours, &links(3, true)));
            let mut frame = encode(0, 0, PAYLOAD_BYTES).to_vec();
            frame.resize(HEADER_BYTES + PAYLOAD_BYTES, 7);
            theirs[&0].send_all(&frame).unwrap();
            theirs[&0].send_all(&encode(0, 1, 0)).unwrap();
            // The second one ends without a last frame, the third one sends a frame of another connection.
            theirs[&1].finish_sending().unwrap();
            theirs[&2].send_all(&encode(1, 0, PAYLOAD_BYTES)).unwrap();
            a.stop.store(true, Ordering::Relaxed);
            let mut rest = [0; 4096];
            while theirs[&0].recv(&mut rest).is_ok_and(|n| n == rest.len()) {}
        });
        let lost: Vec<(u32, bool)> = a.told().lost.iter().map(|l| (l.connection, l.is_unverified)).collect();
        assert_eq!(lost, [(0, true), (1, false), (2, true)]);
    }

    #[test]
    fn files_come_whole_and_one_that_shrank_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> =
            [1usize, 1000, PART_BYTES - 1001, 2 * PART_BYTES + 5].map(|n| vec![n as u8; n]).into();
        let file = |i: usize, data: &Vec<u8>| {
            let path = dir.path().join(i.to_string());
            std::fs::write(&path, data).unwrap();
            SourceFile { path, bytes: data.len() as u64 }
        };
        let files: Vec<SourceFile> = contents.iter().enumerate().map(|(i, data)| file(i, data)).collect();
        let (ours, theirs) = pair(2);
        let (mut sends, mut receives) = (links(2, true), links(2, false));
        sends[1].send = files.clone();
        receives[1].receive = files.iter().map(|file| file.bytes).collect();
        let (a, b) = (Traffic::default(), Traffic::default());
        let arrived = std::thread::scope(|scope| {
            scope.spawn(|| a.transfer(&ours, &sends));
            scope.spawn(|| b.transfer(&theirs, &receives)).join().unwrap()
        });
        let sha256: Vec<String> = contents.iter().map(|data| hex(&Sha256::digest(data))).collect();
        let nothing = Arrived { connection: 0, sha256: vec![] };
        assert_eq!(arrived, [nothing, Arrived { connection: 1, sha256 }]);
        assert!(a.lost().is_empty() && b.lost().is_empty());
        let shrunk = SourceFile { bytes: 10, ..files[0].clone() };
        let error = send_file(ours[&0].as_ref(), &shrunk, &mut [0; 4]).unwrap_err();
        assert!(error.to_string().contains("/0: "), "{error}");
    }
}
