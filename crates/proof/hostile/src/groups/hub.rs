//! The network between the hosts of a group: a switch of taps, of which each way from one host to another can be cut, be
//! slow, or lose frames. Kernels without netem have it too.
//!
//! Owns the frames on their way. It must never bring a frame to a host that its way does not lead to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Frames that are read of one tap before the next one has its turn.
const AT_A_TIME: usize = 32;
/// Frames that wait in slow ways together, at most: what comes then is lost, as in any queue.
const WAITING_MAX: usize = 8192;
const FRAME_BYTES_MAX: usize = 16 << 10;
/// Longest sleep, so that the end is seen.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Bytes of an address of Ethernet.
const MAC_BYTES: usize = 6;

/// What a way from one host to another is like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Nothing comes through.
    pub(super) is_cut: bool,
    /// Of 1000 frames, those that are lost.
    pub(super) lost: u32,
    /// How late a frame comes.
    pub(super) delay: Duration,
}

/// From one host to another.
type Way = (usize, usize);

/// The switch. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Hub {
    shapes: Arc<Mutex<BTreeMap<Way, Shape>>>,
    struck: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Makes so many taps and joins them. Their names are the answer: they are to be given to the hosts.
    pub(super) fn start(count: usize, seed: u64) -> Result<(Self, Vec<String>)> {
        let names: Vec<String> = (0..count).map(|host| format!("judged{host}")).collect();
        let make = |name: &String| tap::open(name).with_context(|| format!("the tap {name}"));
        let taps = names.iter().map(make).collect::<Result<Vec<File>>>()?;
        let (shapes, struck, is_over) = (Arc::default(), Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut switch = Switch {
            taps,
            shapes: Arc::clone(&shapes),
            struck: Arc::clone(&struck),
            places: BTreeMap::new(),
            late: BinaryHeap::new(),
            number: 0,
            rng: SmallRng::seed_from_u64(seed),
        };
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                switch.turn();
            }
        });
        Ok((Self { shapes, struck, is_over, thread: Some(thread) }, names))
    }

    /// From here on a way is like this.
    pub(super) fn set(&self, way: Way, shape: Shape) {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).insert(way, shape);
    }

    /// Frames that did not come, or came late.
    pub(super) fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// All ways are whole again.
    pub(super) fn heal(&self) {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A frame that is to come later.
type Late = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct Switch {
    taps: Vec<File>,
    shapes: Arc<Mutex<BTreeMap<Way, Shape>>>,
    struck: Arc<AtomicU64>,
    /// Where an address was seen.
    places: BTreeMap<[u8; MAC_BYTES], usize>,
    late: BinaryHeap<Late>,
    /// Frames of one moment keep their order.
    number: u64,
    rng: SmallRng,
}

impl Switch {
    fn turn(&mut self) {
        self.wait();
        let shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut frame = vec![0; FRAME_BYTES_MAX];
        for from in 0..self.taps.len() {
            for _ in 0..AT_A_TIME {
                match self.taps[from].read(&mut frame) {
                    Ok(length) => self.carry(from, &frame[..length], &shapes),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // None is there, or the interface is not up yet.
                    Err(_) => break,
                }
            }
        }
        let now = Instant::now();
        while self.late.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            if let Some(Reverse((_, _, to, frame))) = self.late.pop() {
                self.give(to, &frame);
            }
        }
    }

    fn wait(&self) {
        let next = self.late.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
        let sleep = Timespec::try_from(next.unwrap_or(SLEEP_MAX).min(SLEEP_MAX)).ok();
        let mut fds: Vec<PollFd<'_>> =
            self.taps.iter().map(|tap| PollFd::from_borrowed_fd(tap.as_fd(), PollFlags::IN)).collect();
        // A signal is a turn too.
        let _ = poll(&mut fds, sleep.as_ref());
        // An interface that is not up is always ready and gives nothing.
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn carry(&mut self, from: usize, frame: &[u8], shapes: &BTreeMap<Way, Shape>) {
        let Some((to, source)) = frame.split_first_chunk::<MAC_BYTES>() else { return };
        let Some(source) = source.first_chunk::<MAC_BYTES>() else { return };
        self.places.insert(*source, from);
        let known = self.places.get(to).copied();
        for to in (0..self.taps.len()).filter(|to| *to != from && known.is_none_or(|known| known == *to)) {
            let shape = shapes.get(&(from, to)).copied().unwrap_or_default();
            let is_lost = shape.is_cut || shape.lost > self.rng.random_range(0..1000);
            if !is_lost && shape.delay.is_zero() {
                self.give(to, frame);
                continue;
            }
            self.struck.fetch_add(1, Ordering::Relaxed);
            if !is_lost && self.late.len() < WAITING_MAX {
                self.number += 1;
                self.late.push(Reverse((Instant::now() + shape.delay, self.number, to, frame.to_vec())));
            }
        }
    }

    /// What an interface does not take is lost.
    fn give(&mut self, to: usize, frame: &[u8]) {
        let _ = self.taps[to].write(frame);
    }
}
