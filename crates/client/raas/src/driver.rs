//! What the leading thread does: sleeps on the descriptors, takes the doorbell, reads the sockets, notifies the others.
//!
//! Owns the engine's doorbell on this side and the buffers of the control socket; only the leader has it. It must never
//! hold a table's lock while it drops a connection, and never let one noisy socket keep it from the others.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{ChannelError, Reason, Reply, Request};
use rustix::event::epoll;
use rustix::io::Errno;
use shm::{Doorbell, Drained};

use crate::SessionError;
use crate::attach::{channel_error, timespec};
use crate::inner::Inner;
use crate::pair::{PairLink, WAKES_SUSPICIOUS};
use crate::park::lock;
use crate::poller::Waiter;
use crate::reactor::SLEEP_MAX;

/// The control socket, in the epoll set.
pub(crate) const TOKEN_CONTROL: u64 = 0;
/// The daemon's wake socket.
pub(crate) const TOKEN_WAKE: u64 = 1;
/// A thread that is not the leader has news for it.
pub(crate) const TOKEN_KICK: u64 = 2;
/// A pair's socket has its number plus this.
pub(crate) const TOKEN_PAIRS: u64 = 3;
/// A listener's socket of kernel TCP has its port plus this.
pub(crate) const TOKEN_TCP: u64 = 1 << 63;

/// Descriptors looked at in one round.
const EVENTS_MAX: usize = 64;
/// Doorbell slots taken at once.
const DOORBELL_BUDGET: usize = 256;
/// Control messages handled in one round.
const MESSAGES_MAX: usize = 256;

/// The leader's tools.
#[derive(Debug)]
pub(crate) struct Driver {
    e2a: Doorbell,
    dirty: Vec<u32>,
    /// Tokens of the descriptors that are ready.
    ready: Vec<u64>,
    buffer: Vec<u8>,
    swept: Instant,
}

impl Driver {
    pub(crate) fn new(e2a: Doorbell) -> Self {
        Self { e2a, dirty: Vec::new(), ready: Vec::new(), buffer: Vec::new(), swept: Instant::now() }
    }

    /// Wakes the threads that wait on the slots which the engine marked.
    pub(crate) fn take_doorbells(&mut self, inner: &Inner) {
        // Bounded: the engine may mark slots as fast as they are taken, and the caller looks again anyway.
        for _ in 0..inner.memory.slots().div_ceil(64).max(1) {
            self.dirty.clear();
            if self.e2a.take(&mut self.dirty, DOORBELL_BUDGET) == 0 {
                return;
            }
            let conns: Vec<_> = {
                let slots = lock(&inner.lane_slots);
                self.dirty.iter().filter_map(|&slot| slots.at(slot)?.upgrade()).collect()
            };
            conns.iter().for_each(|c| c.notify());
        }
    }

    /// Sleeps in the kernel. True: some descriptor is ready.
    pub(crate) fn sleep(&mut self, inner: &Inner, bound: Duration) -> bool {
        self.ready.clear();
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&inner.epoll, &mut events, Some(&timespec(bound))) {
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

    /// Reads every descriptor that was ready.
    pub(crate) fn handle_events(&mut self, inner: &Arc<Inner>) {
        let ready = std::mem::take(&mut self.ready);
        if ready.contains(&TOKEN_CONTROL) {
            self.read_control(inner);
        }
        for &token in &ready {
            match token {
                TOKEN_CONTROL => {}
                TOKEN_WAKE => self.read_wake(inner),
                TOKEN_KICK => {
                    // Nothing to read means that a leader before took it.
                    let _ = rustix::io::read(&inner.kick, &mut [0; 8]);
                }
                token if token >= TOKEN_TCP => {
                    let waiters = lock(&inner.tables).waiters_at(u16::try_from(token - TOKEN_TCP).unwrap_or_default());
                    waiters.iter().for_each(Waiter::notify);
                }
                token => {
                    let pair = lock(&inner.tables).pair(token - TOKEN_PAIRS);
                    if let Some(pair) = pair {
                        self.read_pair(inner, &pair);
                    }
                }
            }
        }
        self.ready = ready;
        self.take_doorbells(inner);
    }

    fn read_control(&mut self, inner: &Arc<Inner>) {
        for _ in 0..MESSAGES_MAX {
            if inner.lost().is_some() {
                return;
            }
            match control::receive::<Reply>(inner.control.as_fd(), &mut self.buffer) {
                Ok(received) => {
                    if let Err(e) = inner.on_reply(received) {
                        return inner.lose(e);
                    }
                }
                Err(ChannelError::WouldBlock) => return,
                Err(e) => return inner.lose(channel_error(e)),
            }
        }
    }

    fn read_wake(&mut self, inner: &Inner) {
        self.dirty.clear();
        match inner.wake.drain(&mut self.dirty) {
            Ok(Drained::Hangup) | Err(_) => {
                // The control socket, read before, may still hold the daemon's last words in the next round.
                if inner.lost().is_none() && !control_readable(inner) {
                    inner.lose(SessionError::Lost { reason: Reason::DaemonLost });
                }
            }
            Ok(_) => {}
        }
    }

    fn read_pair(&mut self, inner: &Arc<Inner>, pair: &Arc<PairLink>) {
        self.dirty.clear();
        let hangup = !matches!(pair.socket.drain(&mut self.dirty), Ok(Drained::Empty | Drained::Woken));
        if hangup {
            inner.unwatch_pair(pair);
            pair.mark_dead();
        }
        let all = hangup || self.dirty.len() >= WAKES_SUSPICIOUS;
        let conns = pair.conns(if all { None } else { Some(&self.dirty) });
        conns.iter().for_each(|c| c.notify());
        drop(conns);
        tell_closed(inner, pair);
    }

    /// About once a second: finishes what a lost wake left over.
    pub(crate) fn sweep(&mut self, inner: &Arc<Inner>) {
        if self.swept.elapsed() < SLEEP_MAX {
            return;
        }
        self.swept = Instant::now();
        let pairs = lock(&inner.tables).pairs();
        for pair in &pairs {
            tell_closed(inner, pair);
        }
        lock(&inner.tables).forget_pairs();
    }
}

fn tell_closed(inner: &Inner, pair: &PairLink) {
    for connection in pair.reap() {
        inner.tell(&Request::PairClosed { connection });
    }
}

fn control_readable(inner: &Inner) -> bool {
    use rustix::event::PollFlags;
    crate::attach::wait_for(inner.control.as_fd(), PollFlags::IN, Instant::now()).unwrap_or(false)
}
