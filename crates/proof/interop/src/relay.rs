//! The wire between two taps: passes frames on, and loses, duplicates and reorders RoCEv2 packets by a seed.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest frame of the link.
const FRAME_MAX: usize = 9_216;
/// Frames taken from one side before the other gets its turn.
const BURST: usize = 64;
/// A held-back frame leaves after this time at the latest.
const HOLD: Duration = Duration::from_millis(2);
/// At most this many others leave before a held-back frame.
const OVERTAKEN_MAX: u32 = 6;
/// Bytes of a capture at most.
const CAPTURE_MAX: u64 = 256 << 20;

/// What the relay does to RoCEv2 packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    seed: u64,
    pub(crate) loss_per_mille: u32,
    duplicate_per_mille: u32,
    reorder_per_mille: u32,
}

impl Faults {
    pub(crate) fn none(seed: u64) -> Self {
        Self::per_mille(seed, 0)
    }

    pub(crate) fn per_mille(seed: u64, n: u32) -> Self {
        Self { seed, loss_per_mille: n, duplicate_per_mille: n, reorder_per_mille: n }
    }

    pub(crate) fn any(&self) -> bool {
        self.loss_per_mille + self.duplicate_per_mille + self.reorder_per_mille > 0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.any() { write!(f, "faults{}-seed{}", self.loss_per_mille, self.seed) } else { f.write_str("clean") }
    }
}

#[derive(Default)]
struct Counts {
    passed: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
}

/// The running relay.
pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(a: File, b: File, faults: Faults, capture: Option<PathBuf>) -> Result<Self> {
        let capture = capture.map(Capture::create).transpose()?;
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let mut wire = Wire {
            ends: [a, b],
            faults,
            rng: SmallRng::seed_from_u64(faults.seed),
            held: [None, None],
            counts: counts.clone(),
            capture,
        };
        let asked = stop.clone();
        let thread = std::thread::Builder::new().name("relay".into()).spawn(move || wire.run(&asked))?;
        Ok(Self { stop, counts, thread: Some(thread) })
    }

    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    pub(crate) fn summary(&self) -> String {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counts;
        format!(
            "{} frames passed, {} lost, {} duplicated, {} reordered",
            n(&c.passed),
            n(&c.lost),
            n(&c.duplicated),
            n(&c.reordered)
        )
    }
}

/// A frame that others may overtake.
struct Held {
    frame: Vec<u8>,
    since: Instant,
    overtaken_by: u32,
}

struct Wire {
    ends: [File; 2],
    faults: Faults,
    rng: SmallRng,
    held: [Option<Held>; 2],
    counts: Arc<Counts>,
    capture: Option<Capture>,
}

impl Wire {
    fn run(&mut self, stop: &AtomicBool) {
        let mut frame = vec![0; FRAME_MAX];
        while !stop.load(Ordering::Relaxed) {
            let mut any = false;
            for from in [0, 1] {
                for _ in 0..BURST {
                    let Ok(len) = self.ends[from].read(&mut frame) else { break };
                    any = true;
                    self.carry(from, &frame[..len]);
                }
                self.release_due(from);
            }
            if !any {
                self.sleep();
            }
        }
        if let Some(capture) = &mut self.capture {
            let _ = capture.file.flush();
        }
    }

    fn sleep(&self) {
        let wait = if self.held.iter().any(Option::is_some) { 1_000_000 } else { 20_000_000 };
        let mut fds = [PollFd::new(&self.ends[0], PollFlags::IN), PollFd::new(&self.ends[1], PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: wait }));
    }

    fn hits(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_range(0..1000) < per_mille
    }

    fn carry(&mut self, from: usize, frame: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.record(frame);
        }
        if !is_roce(frame) {
            self.pass(from, frame);
            return;
        }
        if self.hits(self.faults.loss_per_mille) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.held[from].is_none() && self.hits(self.faults.reorder_per_mille) {
            self.counts.reordered.fetch_add(1, Ordering::Relaxed);
            self.held[from] = Some(Held { frame: frame.to_vec(), since: Instant::now(), overtaken_by: 0 });
            return;
        }
        self.pass(from, frame);
        if self.hits(self.faults.duplicate_per_mille) {
            self.counts.duplicated.fetch_add(1, Ordering::Relaxed);
            self.pass(from, frame);
        }
        if let Some(held) = &mut self.held[from] {
            held.overtaken_by += 1;
        }
        self.release_due(from);
    }

    fn release_due(&mut self, from: usize) {
        let due = |h: &Held| h.overtaken_by >= OVERTAKEN_MAX || h.since.elapsed() >= HOLD;
        if self.held[from].as_ref().is_some_and(due)
            && let Some(held) = self.held[from].take()
        {
            self.pass(from, &held.frame);
        }
    }

    fn pass(&mut self, from: usize, frame: &[u8]) {
        // A full tap queue drops the frame, as any wire may.
        if self.ends[1 - from].write(frame).is_ok() {
            self.counts.passed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether an Ethernet frame carries UDP to port 4791.
fn is_roce(frame: &[u8]) -> bool {
    let (proto, udp) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (frame.get(23), 34),
        Some([0x86, 0xdd]) => (frame.get(20), 54),
        _ => return false,
    };
    proto == Some(&17) && frame.get(udp + 2..udp + 4) == Some(&4791u16.to_be_bytes()[..])
}

/// A classic pcap file of Ethernet frames.
struct Capture {
    file: BufWriter<File>,
    written: u64,
    start: Instant,
}

impl Capture {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut file = BufWriter::new(file);
        // Magic, version 2.4, zone, sigfigs, snap length, LINKTYPE_ETHERNET.
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, FRAME_MAX as u32, 1] {
            file.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { file, written: 24, start: Instant::now() })
    }

    fn record(&mut self, frame: &[u8]) {
        if self.written + frame.len() as u64 > CAPTURE_MAX {
            return;
        }
        let t = self.start.elapsed();
        let len = frame.len() as u32;
        let header = [t.as_secs() as u32, t.subsec_micros(), len, len];
        let bytes: Vec<u8> = header.iter().flat_map(|w| w.to_le_bytes()).collect();
        if self.file.write_all(&bytes).and_then(|()| self.file.write_all(frame)).is_ok() {
            self.written += 16 + frame.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_roce;

    #[test]
    fn only_rocev2_packets_are_hurt() {
        let mut v4 = vec![0; 60];
        v4[12] = 8;
        v4[23] = 17;
        v4[36..38].copy_from_slice(&4791u16.to_be_bytes());
        assert!(is_roce(&v4));
        v4[23] = 6;
        assert!(!is_roce(&v4));
        let mut v6 = vec![0; 80];
        v6[12..14].copy_from_slice(&[0x86, 0xdd]);
        v6[20] = 17;
        v6[56..58].copy_from_slice(&4791u16.to_be_bytes());
        assert!(is_roce(&v6));
        assert!(!is_roce(&v6[..57]));
        assert!(!is_roce(&[]));
    }
}
