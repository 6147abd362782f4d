//! The words of a slot, as a new connection or datagram socket finds them.
//!
//! Owns the order in which they are cleared. It must never announce a slot to an application before everything else in
//! it is written.

use std::sync::atomic::Ordering;

use shm::SlotWords;

/// A slot that was taken, as its user finds it.
pub(crate) struct TakenSlot {
    pub(crate) number: u32,
    pub(crate) generation: u32,
    pub(crate) words: Box<SlotWords>,
}

/// Writes the engine's half of a slot for a new connection or socket, and clears the application's.
///
/// The application's half is ignored until it stores the slot's generation in `app_generation`.
pub(crate) fn clear_slot(words: &SlotWords, generation: u32, epoch: u32, state: u32) {
    words.app_generation.store(0, Ordering::Relaxed);
    words.tx_tail.store(0, Ordering::Relaxed);
    words.rx_head.store(0, Ordering::Relaxed);
    words.app_flags.store(0, Ordering::Relaxed);
    words.app_wait.store(0, Ordering::Relaxed);
    words.peer_timeout_ms.store(0, Ordering::Relaxed);
    words.tx_verb.store(0, Ordering::Relaxed);
    words.tx_written.store(0, Ordering::Relaxed);
    words.direct_tx.store(0, Ordering::Relaxed);
    words.direct_rx.store(0, Ordering::Relaxed);
    words.tx_head.store(0, Ordering::Relaxed);
    words.rx_tail.store(0, Ordering::Relaxed);
    words.engine_flags.store(0, Ordering::Relaxed);
    words.reason.store(0, Ordering::Relaxed);
    shm::reset_rest(words);
    words.tx_grown_at.store(0, Ordering::Relaxed);
    words.rx_grown_at.store(0, Ordering::Relaxed);
    words.tx_hold.store(0, Ordering::Relaxed);
    words.epoch.store(epoch.into(), Ordering::Relaxed);
    words.generation.store(generation, Ordering::Relaxed);
    words.state.store(state, Ordering::Release);
}
