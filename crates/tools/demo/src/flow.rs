//! Bytes that flow both ways on every connection until the demo says stop, so that something can be broken under them,
//! and each byte compared on arrival.
//!
//! A stream is a row of frames: number of the connection, number of the frame, length of its payload (0: the last
//! frame), and the payload, which both ends compute from these numbers. Threads walk their connections frame by frame
//! in the order (frame, connection), at both ends: see `transfer` for why nobody waits in a circle. A connection that
//! fails is kept with its error and left out from then on; whether it was allowed to fail is for the parent process to
//! say.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::clock::monotonic_ns;
use super::links::Links;
use super::protocol::{AppLink, Flowed, Gap, Lost};
use super::transfer::POOL_THREADS_MAX;
use transport::Duplex;

/// Bytes of payload in a frame. Small, so that a flow on a thousand connections fills no rings: their memory is not
/// what it is about.
const PAYLOAD_BYTES: usize = 1 << 10;
/// A thread sends on this part of its connections, then sleeps for [`PACE`], so that bytes are always under way.
const SLICES: usize = 8;
const PACE: Duration = Duration::from_millis(1);
/// Bytes before the payload.
const HEADER_BYTES: usize = 16;
/// First bytes of a frame.
const MAGIC: u32 = u32::from_le_bytes(*b"RFLW");
/// Shorter times without a byte are not reported.
const GAP_MIN_NS: u64 = 500_000;
/// And so many of them at most.
const GAPS_MAX: usize = 1000;

/// What all threads of an application share while bytes flow.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Senders finish the frames of this round and end their streams.
    pub(super) stop: AtomicBool,
    received_bytes: AtomicU64,
    /// When the last frame came to any thread.
    last_ns: AtomicU64,
    gaps: Mutex<Vec<Gap>>,
    lost: Mutex<Vec<Lost>>,
    findings: Mutex<Vec<String>>,
}

fn push<T>(list: &Mutex<Vec<T>>, item: T, max: usize) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < max {
        list.push(item);
    }
}

impl Flow {
    /// Sends and receives on all of `links` until [`Self::stop`] is set and the peers have ended their streams too.
    pub(super) fn run<S: Duplex>(&self, open: &Links<S>, links: &[AppLink]) {
        self.last_ns.store(monotonic_ns(), Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..POOL_THREADS_MAX {
                let pool: Vec<(Arc<S>, &AppLink)> = links
                    .iter()
                    .filter(|l| l.peer.app as usize % POOL_THREADS_MAX == thread)
                    .filter_map(|l| Some((Arc::clone(open.get(&l.connection)?), l)))
                    .collect();
                if !pool.is_empty() {
                    let theirs = pool.clone();
                    scope.spawn(move || self.send(pool));
                    scope.spawn(move || self.receive(theirs));
                }
            }
        });
    }

    /// What happened.
    pub(super) fn told(self) -> Flowed {
        let inner = |list: Mutex<Vec<String>>| list.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut lost = self.lost.into_inner().unwrap_or_else(PoisonError::into_inner);
        lost.sort_by_key(|lost| (lost.connection, lost.at_ns));
        // The sending and the receiving thread may both have met the end; the first one counts.
        lost.dedup_by_key(|lost| lost.connection);
        Flowed {
            received_bytes: self.received_bytes.into_inner(),
            gaps: self.gaps.into_inner().unwrap_or_else(PoisonError::into_inner),
            lost,
            findings: inner(self.findings),
        }
    }

    fn lose(&self, connection: u32, e: &io::Error) {
        push(&self.lost, Lost { connection, at_ns: monotonic_ns(), error: e.to_string() }, usize::MAX);
    }

    fn send<S: Duplex>(&self, mut pool: Vec<(Arc<S>, &AppLink)>) {
        let mut frame = vec![0; HEADER_BYTES + PAYLOAD_BYTES];
        let mut number = 0u32;
        let mut is_last = false;
        while !is_last && !pool.is_empty() {
            is_last = self.stop.load(Ordering::Relaxed);
            let bytes = if is_last { 0 } else { PAYLOAD_BYTES };
            let slice = pool.len().div_ceil(SLICES);
            let mut turn = 0;
            pool.retain(|(stream, link)| {
                if !is_last && turn % slice == 0 {
                    std::thread::sleep(PACE);
                }
                turn += 1;
                let (header, payload) = frame.split_at_mut(HEADER_BYTES);
                header.copy_from_slice(&encode(link.connection, number, bytes));
                let payload = payload.get_mut(..bytes).unwrap_or_default();
                fill(payload, seed(link.connection, number, link.connects));
                let sent = stream.send_all(frame.get(..HEADER_BYTES + bytes).unwrap_or_default());
                sent.map_err(|e| self.lose(link.connection, &e)).is_ok()
            });
            number = number.wrapping_add(1);
        }
    }

    fn receive<S: Duplex>(&self, mut pool: Vec<(Arc<S>, &AppLink)>) {
        let (mut header, mut payload, mut expected) =
            ([0; HEADER_BYTES], vec![0; PAYLOAD_BYTES], vec![0; PAYLOAD_BYTES]);
        let mut number = 0u32;
        while !pool.is_empty() {
            pool.retain(|(stream, link)| {
                let frame = (|| {
                    stream.recv_exact(&mut header)?;
                    let bytes = decode(&header, link.connection, number)?;
                    let payload = payload.get_mut(..bytes).unwrap_or_default();
                    stream.recv_exact(payload)?;
                    Ok::<usize, io::Error>(bytes)
                })();
                match frame {
                    Ok(0) => false,
                    Ok(bytes) => {
                        self.arrived(bytes);
                        let expected = expected.get_mut(..bytes).unwrap_or_default();
                        fill(expected, seed(link.connection, number, !link.connects));
                        if payload.get(..bytes) != Some(expected) {
                            let what = format!("frame {number} of connection {} came altered", link.connection);
                            push(&self.findings, what, GAPS_MAX);
                        }
                        true
                    }
                    Err(e) => {
                        if e.kind() == io::ErrorKind::InvalidData {
                            push(&self.findings, format!("connection {}: {e}", link.connection), GAPS_MAX);
                        }
                        self.lose(link.connection, &e);
                        false
                    }
                }
            });
            number = number.wrapping_add(1);
        }
    }

    fn arrived(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = monotonic_ns();
        let before = self.last_ns.fetch_max(now, Ordering::Relaxed);
        let length_ns = now.saturating_sub(before);
        if length_ns >= GAP_MIN_NS {
            push(&self.gaps, Gap { begin_ns: before, length_ns }, GAPS_MAX);
        }
    }
}

fn encode(connection: u32, number: u32, bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let words = [MAGIC, connection, number, u32::try_from(bytes).unwrap_or(u32::MAX)];
    for (place, word) in header.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// Bytes of the payload that follows.
fn decode(header: &[u8; HEADER_BYTES], connection: u32, number: u32) -> io::Result<usize> {
    for bytes in [PAYLOAD_BYTES, 0] {
        if *header == encode(connection, number, bytes) {
            return Ok(bytes);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("what should be frame {number} is none")))
}

/// What makes the payload of a frame differ from that of every other frame.
fn seed(connection: u32, number: u32, by_connector: bool) -> u64 {
    (u64::from(connection) << 33) ^ (u64::from(number) << 1) ^ u64::from(by_connector)
}

/// The payload of a frame: splitmix64 from its seed.
fn fill(payload: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    for word in payload.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Seat;
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
        let link = |connection| AppLink { connection, peer: Seat { host: 0, app: 0 }, connects, files: Vec::new() };
        (0..connections).map(link).collect()
    }

    #[test]
    fn bytes_flow_until_told_to_stop_and_are_the_right_ones() {
        let (ours, theirs) = pair(3);
        let (a, b) = (Flow::default(), Flow::default());
        std::thread::scope(|scope| {
            scope.spawn(|| a.run(&ours, &links(3, true)));
            scope.spawn(|| b.run(&theirs, &links(3, false)));
            std::thread::sleep(Duration::from_millis(30));
            a.stop.store(true, Ordering::Relaxed);
            b.stop.store(true, Ordering::Relaxed);
        });
        for told in [a.told(), b.told()] {
            assert!(told.received_bytes > 0 && told.lost.is_empty() && told.findings.is_empty(), "{told:?}");
        }
    }

    #[test]
    fn a_connection_that_ends_is_lost_and_altered_bytes_are_found() {
        let (ours, theirs) = pair(2);
        let a = Flow::default();
        std::thread::scope(|scope| {
            scope.spawn(|| a.run(&ours, &links(2, true)));
            let mut frame = encode(0, 0, PAYLOAD_BYTES).to_vec();
            frame.resize(HEADER_BYTES + PAYLOAD_BYTES, 7);
            theirs[&0].send_all(&frame).unwrap();
            theirs[&0].send_all(&encode(0, 1, 0)).unwrap();
            // The second one ends without a last frame; the first one takes what comes until its last.
            theirs[&1].finish_sending().unwrap();
            a.stop.store(true, Ordering::Relaxed);
            let mut rest = [0; 4096];
            while theirs[&0].recv(&mut rest).is_ok_and(|n| n == rest.len()) {}
        });
        let told = a.told();
        assert_eq!(told.lost.iter().map(|l| l.connection).collect::<Vec<_>>(), [1], "{told:?}");
        assert_eq!(told.findings, ["frame 0 of connection 0 came altered"]);
    }

    #[test]
    fn no_two_frames_are_alike() {
        let frame = |connection, number, by| {
            let mut payload = vec![0; 64];
            fill(&mut payload, seed(connection, number, by));
            payload
        };
        let frames = [frame(0, 0, false), frame(0, 0, true), frame(0, 1, false), frame(1, 0, false)];
        for (i, a) in frames.iter().enumerate() {
            assert!(frames.iter().skip(i + 1).all(|b| a != b));
        }
        assert!(decode(&encode(1, 2, PAYLOAD_BYTES), 1, 2).is_ok_and(|n| n == PAYLOAD_BYTES));
        for wrong in [encode(2, 2, 0), encode(1, 3, 0), encode(1, 2, 5)] {
            assert!(decode(&wrong, 1, 2).is_err());
        }
    }
}
