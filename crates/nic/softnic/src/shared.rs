//! What the owner's calls and the background thread share: the port under its lock, and which of them sleeps. The owner
//! always takes the lock; the background thread only tries to, and neither waits for anything while it holds it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use shm::SleepFlag;
use verbs::{Provider, Time};

use crate::clock::Clock;
use crate::port::Port;
use crate::{Listener, OpenError};

/// After a CQ was armed the background thread watches the socket until the owner has polled so often that it clearly
/// does not sleep.
const POLLS_OF_AN_AWAKE_OWNER: u32 = 16;

/// The two sides' common state.
#[derive(Debug)]
pub(crate) struct Shared {
    port: Mutex<Port>,
    /// A second descriptor of the port's socket, to wait on without the lock.
    socket: OwnedFd,
    /// Likewise of the set that has all sockets in it: of all addresses and of the TCP wire.
    all: Option<OwnedFd>,
    clock: Clock,
    background: Option<Signals>,
}

/// Signals between the owner and the background thread.
#[derive(Debug)]
pub(crate) struct Signals {
    listener: Option<Arc<dyn Listener>>,
    /// Tells the owner that an armed CQ got its completion.
    event: OwnedFd,
    is_signalled: AtomicBool,
    /// Ends a nap or a watch of the background thread.
    wake: OwnedFd,
    naps: SleepFlag,
    /// Until when the background thread watches the socket at most, in nanoseconds of the port's time; 0 while it does
    /// not. Written with the port locked, or to 0.
    watches_until: AtomicU64,
    stop: AtomicBool,
    /// When the owner was here last, in nanoseconds of the port's time.
    owner_seen: AtomicU64,
    /// 0: no CQ is armed; else 1 and the polls of the owner since.
    polls_since_arming: AtomicU32,
}

impl Shared {
    pub(crate) fn new(port: Port, clock: Clock, background: Option<Signals>) -> Result<Self, OpenError> {
        let socket = port.socket().as_fd().try_clone_to_owned().map_err(|e| OpenError::os("dup", e))?;
        let dup = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|e| OpenError::os("dup", e));
        let all = match &port.tcp {
            Some(tcp) => Some(dup(tcp.epoll())?),
            None => port.sockets().wait_set()?,
        };
        Ok(Self { port: Mutex::new(port), socket, all, clock, background })
    }

    /// The port, for the owner.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Port> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port, for the background thread; `None` while the owner has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Port>> {
        match self.port.try_lock() {
            Ok(port) => Some(port),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn signals(&self) -> Option<&Signals> {
        self.background.as_ref()
    }

    /// What the owner waits on.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.background.as_ref().map_or_else(|| self.input(), |s| s.event.as_fd())
    }

    /// Readable when something arrived on a wire.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.all.as_ref().unwrap_or(&self.socket).as_fd()
    }

    /// The port's socket, to wait for room on.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Signals {
    pub(crate) fn new(listener: Option<Arc<dyn Listener>>) -> Result<Self, OpenError> {
        let make =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| OpenError::os("eventfd", e));
        Ok(Self {
            listener,
            event: make()?,
            is_signalled: AtomicBool::new(false),
            wake: make()?,
            naps: SleepFlag::default(),
            watches_until: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            owner_seen: AtomicU64::new(0),
            polls_since_arming: AtomicU32::new(0),
        })
    }

    /// The owner is in a call that makes progress.
    pub(crate) fn on_owner_call(&self, now: Time) {
        self.owner_seen.store(now.as_nanos(), Ordering::Relaxed);
        let polls = self.polls_since_arming.load(Ordering::Relaxed);
        if polls != 0 && polls <= POLLS_OF_AN_AWAKE_OWNER {
            // Only a hint, so that a lost increment does not matter.
            self.polls_since_arming.store(polls + 1, Ordering::Relaxed);
        }
    }

    /// A call of the owner changed what there is to do: if the background thread watches and would come too late for
    /// it, it is woken. Call with the port locked.
    pub(crate) fn on_changed(&self, port: &Port, now: Time) {
        let until = self.watches_until.load(Ordering::Relaxed);
        if until == 0 || port.sleep_bound(now).is_none_or(|bound| (now + bound).as_nanos() >= until) {
            return;
        }
        self.watches_until.store(0, Ordering::Relaxed);
        self.wake_background();
    }

    /// The background thread is about to watch the socket until then. Call with the port locked.
    pub(crate) fn begin_watch(&self, until: Time) {
        self.watches_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn end_watch(&self) {
        self.watches_until.store(0, Ordering::Relaxed);
    }

    /// The owner armed a CQ and will probably sleep.
    pub(crate) fn on_armed(&self) {
        // Either this thread sees the nap, or the napper sees the arming.
        self.polls_since_arming.store(1, Ordering::Release);
        if self.naps.claim_wake() {
            self.wake_background();
        }
    }

    /// How long the owner has been away; `None` if it armed a CQ and so probably sleeps.
    pub(crate) fn owner_away(&self, now: Time) -> Option<Duration> {
        let polls = self.polls_since_arming.load(Ordering::SeqCst);
        if polls != 0 && polls <= POLLS_OF_AN_AWAKE_OWNER {
            return None;
        }
        Some(now.saturating_since(Time(self.owner_seen.load(Ordering::Relaxed))))
    }

    /// An armed CQ got its completion: the listener is told, or the owner's descriptor turns readable.
    pub(crate) fn signal_owner(&self, port: &mut Port) {
        self.polls_since_arming.store(0, Ordering::Relaxed);
        if let Some(listener) = &self.listener {
            while let Some(cq) = port.nic.poll_cq_event() {
                listener.on_completion(cq);
            }
            while let Some(event) = port.nic.poll_event() {
                listener.on_event(event);
            }
            return;
        }
        if !self.is_signalled.swap(true, Ordering::AcqRel) {
            // It fails only if the counter is full, and then the descriptor is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the owner's descriptor unreadable. Afterwards the caller looks for completions.
    pub(crate) fn clear_owner_signal(&self) {
        if self.is_signalled.load(Ordering::Acquire) {
            // Emptied before the mark is taken back, so that a signal in between is either seen by the caller, who
            // looks for completions next, or written again.
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
            self.is_signalled.store(false, Ordering::Release);
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake_background();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Says that the background thread is about to nap; `false` if a CQ is armed, so that it must not.
    pub(crate) fn begin_nap(&self) -> bool {
        self.naps.prepare_sleep();
        let polls = self.polls_since_arming.load(Ordering::Acquire);
        if polls != 0 && polls <= POLLS_OF_AN_AWAKE_OWNER {
            self.naps.end_sleep();
            return false;
        }
        true
    }

    pub(crate) fn end_nap(&self) {
        self.naps.end_sleep();
    }

    pub(crate) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    fn wake_background(&self) {
        // It fails only if the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
