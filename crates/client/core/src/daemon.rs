//! The daemon of this host as every connection of a session knows it: whether it is there, and how its engines are woken.
//!
//! Owns which slots of the session are in use. It must never wait for the daemon.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shm::WakeSocket;

use crate::Life;

/// How an engine is woken from its sleep. It must not wait.
pub trait Wake: fmt::Debug + Send + Sync {
    /// Wakes it. An error means that it is gone.
    fn wake(&self) -> io::Result<()>;
}

impl Wake for WakeSocket {
    fn wake(&self) -> io::Result<()> {
        Self::wake(self)
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Daemon {
    life: Arc<Life>,
    /// By engine.
    wakes: Vec<Arc<dyn Wake>>,
    slots: Box<[AtomicBool]>,
}

impl Daemon {
    pub(crate) fn new(life: Life, wakes: Vec<Arc<dyn Wake>>, slots: u32) -> Self {
        Self { life: Arc::new(life), wakes, slots: (0..slots).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Whether the session stands.
    #[inline]
    pub fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Wakes an engine, which was seen asleep.
    #[cold]
    pub(crate) fn wake(&self, engine: u32) {
        // One that is gone is no end yet: the session may go on with the daemon that comes after it, and who follows the
        // control socket knows.
        let _gone = self.wakes.get(engine as usize).map(|wake| wake.wake());
    }

    /// Takes a slot for a connection. False: it is in use, or there is none of that number.
    pub(crate) fn take_slot(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|used| !used.swap(true, Ordering::AcqRel))
    }

    /// Whether a connection, socket or queue has the slot.
    pub(crate) fn is_used(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|used| used.load(Ordering::Acquire))
    }

    /// The connection is about to give the slot back.
    pub(crate) fn free_slot(&self, slot: u32) {
        if let Some(used) = self.slots.get(slot as usize) {
            used.store(false, Ordering::Release);
        }
    }
}
