//! The rest handshake: how the engine gives back the pages of a transmit ring into which the application may begin to
//! write at any time.
//!
//! Owns the order in which each side says what it does and looks at what the other says. It must never make the
//! application pay on the way of a write: it stores a word, loads a word, and needs no fence.
//!
//! Application: store "in use", look whether the engine gives pages back, write, publish the tail, store "unused".
//! Engine: store "giving pages back", pass [`rest_barrier`], look whether the ring is unused, and only then give pages
//! back; then store that it is done. Each stores before it looks, so one of them sees the other, if neither processor
//! moves the load before the store. On the engine's side the barrier's own fence keeps that order; on the application's
//! side it is the barrier, too: the kernel makes each processor that runs a registered process pass a fence between its
//! two steps, wherever they are (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`, membarrier(2)). The engine, which does this once in
//! a second, pays for the fence; the writes do not.
//!
//! An application that does not register, or lies about what it does, loses only bytes of its own ring.
use std::sync::atomic::Ordering;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::AtomicWord;
use crate::{RegionError, SlotWords, Word32};

/// The application takes no part: the engine leaves the ring alone. What a new slot holds.
const APART: u32 = 0;
/// Nothing is being written behind the tail.
const UNUSED: u32 = 1;
/// Something may be.
const IN_USE: u32 = 2;

const AWAKE: u32 = 0;
const RESTING: u32 = 1;

/// Registers this process for [`rest_barrier`]s of others; false if the kernel does not know them, and then the process
/// must not take part. Doing it again costs a short system call.
pub fn join_rest_barrier() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// To be called between [`begin_rest`] and [`is_unused`], once for any number of rings. When it returns, each thread of
/// each registered process has passed a fence since the call. False: the kernel cannot do it, and no transmit ring may
/// be touched.
pub fn rest_barrier() -> bool {
    std::sync::atomic::fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The engine resets both words of a slot for a new connection, before it publishes the slot.
pub fn reset_rest(words: &SlotWords) {
    words.tx_use.store(APART, Ordering::Relaxed);
    words.tx_rest.store(AWAKE, Ordering::Relaxed);
}

/// The engine is about to give back pages of the slot's transmit ring; [`rest_barrier`] is next.
pub fn begin_rest(words: &SlotWords) {
    announce(&words.tx_rest);
}

/// After the barrier: whether the application writes nothing, and will not before [`end_rest`]. All that it wrote
/// before is in its tail.
pub fn is_unused(words: &SlotWords) -> bool {
    unused(&words.tx_use)
}

/// The application may write again. If it waits for room, the caller must wake it.
pub fn end_rest(words: &SlotWords) {
    finish(&words.tx_rest);
}

/// The application's end of the handshake for one transmit ring; part of its [`crate::RingWriter`].
#[derive(Debug)]
pub(crate) struct TxUse {
    tx_use: Word32,
    tx_rest: Word32,
    /// Claimed until it is released, over several calls.
    pub(crate) is_held: bool,
}

impl TxUse {
    /// Takes part from now on.
    pub(crate) fn new(words: &SlotWords) -> Result<Self, RegionError> {
        let tx_use = words.tx_use.clone().writable()?;
        release(&tx_use);
        Ok(Self { tx_use, tx_rest: words.tx_rest.clone(), is_held: false })
    }

    /// Says that something is going to be written. False: not now, the engine gives pages back.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.is_held || claim(&self.tx_use, &self.tx_rest)
    }

    /// What was written is published.
    #[inline]
    pub(crate) fn release(&self) {
        if !self.is_held {
            release(&self.tx_use);
        }
    }

    /// Whether [`TxUse::claim`] would fail now.
    #[inline]
    pub(crate) fn is_resting(&self) -> bool {
        !self.is_held && self.tx_rest.load(Ordering::Relaxed) != AWAKE
    }
}

// The algorithms, over any memory.

#[inline]
pub(crate) fn claim(tx_use: &impl AtomicWord<u32>, tx_rest: &impl AtomicWord<u32>) -> bool {
    tx_use.store(IN_USE, Ordering::Relaxed);
    // PAIRS WITH the fence in `rest_barrier`: either this load sees that the engine gives pages back, or the engine
    // sees the ring in use.
    tx_use.fence_light();
    // PAIRS WITH the release store in `finish`: the pages are gone before anything is written.
    if tx_rest.load(Ordering::Acquire) == AWAKE {
        return true;
    }
    release(tx_use);
    false
}

#[inline]
pub(crate) fn release(tx_use: &impl AtomicWord<u32>) {
    // PAIRS WITH the acquire load in `unused`: a thread that sees it sees the tail of what was written.
    tx_use.store(UNUSED, Ordering::Release);
}

pub(crate) fn announce(tx_rest: &impl AtomicWord<u32>) {
    tx_rest.store(RESTING, Ordering::Relaxed);
}

pub(crate) fn unused(tx_use: &impl AtomicWord<u32>) -> bool {
    tx_use.load(Ordering::Acquire) == UNUSED
}

pub(crate) fn finish(tx_rest: &impl AtomicWord<u32>) {
    tx_rest.store(AWAKE, Ordering::Release);
}
