//! What the leading thread needs: the doorbell of the engine, buffers, the numbers of the descriptors.
//!
//! Owns the engine's doorbell on this side; only the leader has it. It must never let one noisy socket keep the leader
//! from the others.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use shm::Doorbell;

use crate::descriptor::timespec;

/// The control socket, in the epoll set.
pub(crate) const TOKEN_CONTROL: u64 = 0;
/// The daemon's wake socket.
pub(crate) const TOKEN_WAKE: u64 = 1;
/// A thread that is not the leader has news for it.
pub(crate) const TOKEN_KICK: u64 = 2;
/// A pair's socket has its number plus this.
pub(crate) const TOKEN_PAIRS: u64 = 3;
/// The TCP connection of the stream in a slot has the slot's number plus this.
pub(crate) const TOKEN_DIRECT: u64 = 1 << 62;
/// A listener's socket of kernel TCP has its port plus this.
pub(crate) const TOKEN_TCP: u64 = 1 << 63;

/// Descriptors looked at in one round.
pub(crate) const EVENTS_MAX: usize = 64;
/// Doorbell slots taken at once.
const DOORBELL_BUDGET: usize = 256;

/// The leader's tools.
#[derive(Debug)]
pub(crate) struct Driver {
    e2a: Doorbell,
    /// Takes of the doorbell in one round at most: the engine may mark slots as fast as they are taken.
    takes_max: u32,
    /// Tokens of the descriptors that are ready.
    pub(crate) ready: Vec<u64>,
    /// Slots with news.
    pub(crate) dirty: Vec<u32>,
    /// Of the control socket.
    pub(crate) buffer: Vec<u8>,
    pub(crate) swept: Instant,
}

impl Driver {
    pub(crate) fn new(memory: &shm::Session) -> Self {
        Self {
            e2a: memory.e2a(),
            takes_max: memory.slots().div_ceil(64).max(1),
            ready: Vec::new(),
            dirty: Vec::new(),
            buffer: Vec::new(),
            swept: Instant::now(),
        }
    }

    /// Takes slots which the engine marked and hands them to `notify`.
    pub(crate) fn take_doorbells(&mut self, mut notify: impl FnMut(&[u32])) {
        for _ in 0..self.takes_max {
            self.dirty.clear();
            if self.e2a.take(&mut self.dirty, DOORBELL_BUDGET) == 0 {
                return;
            }
            notify(&self.dirty);
        }
    }

    /// Sleeps in the kernel. True: some descriptor is ready.
    pub(crate) fn sleep(&mut self, set: BorrowedFd<'_>, bound: Duration) -> bool {
        self.ready.clear();
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(set, &mut events, Some(&timespec(bound))) {
            Ok((events, _)) => {
                self.ready.extend(events.iter().map(|e| e.data.u64()));
                !self.ready.is_empty()
            }
            Err(Errno::INTR) => false,
            Err(_) => {
                // No reason is known for this to fail; sleeping on the clock keeps the wait bounded and not busy.
                std::thread::sleep(bound.min(Duration::from_millis(10)));
                true
            }
        }
    }
}
