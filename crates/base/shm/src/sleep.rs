//! The sleep handshake: how a party goes to sleep without losing the wake of another.
//!
//! Owns the two pairs of "store mine, fence, load theirs" on which it rests. It must never block or wake by itself:
//! the caller does, and bounds every block, since the other party may be hostile or dead.
//!
//! Sleeper: store the flag, fence, look for work once more, then block. Waker: publish work, fence, load the flag, wake
//! if set. Both fences are sequentially consistent, so they have an order: the later party sees the store of the
//! earlier. With release and acquire alone both may miss each other (the models in `models` show it, as does x86
//! hardware).
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sync::AtomicWord;
use crate::{RegionError, Word32, waiting};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Stores the sleep flag and fences; the caller then looks for work once more before it blocks (with a bound).
///
/// Panics if the flag lies in a read-only mapping.
#[inline]
pub fn prepare_sleep(flag: &Word32) {
    announce(flag);
}

/// Clears the sleep flag; the caller then looks for work. Panics if the flag lies in a read-only mapping.
#[inline]
pub fn end_sleep(flag: &Word32) {
    retract(flag);
}

/// After work was published: fence, then whether the owner of `flag` sleeps and must be woken.
#[inline]
pub fn must_wake(flag: &Word32) -> bool {
    sleeps(flag)
}

/// As [`must_wake`], and clears the flag if it is set: a caller that gets true must send the wake, and no other one
/// will until the owner goes to sleep again. It is for flags that the waker may write (the engine writes the
/// application's). It saves a wake for each piece of work while the owner has not run yet. Panics if the flag lies in a
/// read-only mapping.
#[inline]
pub fn claim_wake(flag: &Word32) -> bool {
    claim(flag)
}

/// A sleep flag between threads of one process: the same handshake, over memory of their own.
#[derive(Debug, Default)]
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// As [`prepare_sleep`].
    #[inline]
    pub fn prepare_sleep(&self) {
        announce(&self.0);
    }

    /// As [`end_sleep`].
    #[inline]
    pub fn end_sleep(&self) {
        retract(&self.0);
    }

    /// As [`must_wake`].
    #[inline]
    pub fn must_wake(&self) -> bool {
        sleeps(&self.0)
    }

    /// As [`claim_wake`].
    #[inline]
    pub fn claim_wake(&self) -> bool {
        claim(&self.0)
    }
}

/// The waiting end of one connection in a pair segment: its own slot's `waiting` word.
///
/// The peer sees the word, and sends the slot number over the pair socket when it has published what the word asks for.
/// One thread may wait to read and another to write: each arms and disarms its own bit.
#[derive(Debug, Clone)]
pub struct PairWaiter {
    waiting: Word32,
}

impl PairWaiter {
    /// Over the `waiting` word of a slot in the *own* pair segment; [`RegionError::ReadOnly`] for one of the peer's.
    pub fn new(waiting: Word32) -> Result<Self, RegionError> {
        Ok(Self { waiting: waiting.writable()? })
    }

    /// Says that this end is going to sleep until `interest` ([`waiting::READABLE`], [`waiting::WRITABLE`]), then asks
    /// `ready` once more. True: nothing was ready, block on the pair socket, with a bound. False: something is ready,
    /// and the interest is already withdrawn. Each call counts as another sleep (see [`PairSleeper`]): after a wake
    /// that came to nothing, disarm and arm again.
    #[inline]
    pub fn arm(&self, interest: u32, ready: impl FnOnce() -> bool) -> bool {
        arm(&self.waiting, interest, ready)
    }

    /// Withdraws the interest, after the block.
    #[inline]
    pub fn disarm(&self, interest: u32) {
        disarm(&self.waiting, interest);
    }
}

/// After data ([`waiting::READABLE`]) or room ([`waiting::WRITABLE`]) was published to the peer: fence, then whether
/// the peer's `waiting` word asks for that `event` and the slot number must be sent. After FIN, STOP or ABORT give
/// [`waiting::ANY`].
#[inline]
pub fn pair_must_wake(peer_waiting: &Word32, event: u32) -> bool {
    waits_for(peer_waiting, event)
}

/// After a cursor of a session slot was published to the application: fence, then whether one of its threads said in
/// the slot's `app_wait` that it waits for that `event`. If not, the application need not be woken: a thread that comes
/// to wait later looks at the cursor first (see [`arm_slot`]).
#[inline]
pub fn slot_is_awaited(app_wait: &Word32, event: u32) -> bool {
    waits_for(app_wait, event)
}

/// Says in a session slot's `app_wait` that a thread waits for `interest`; it looks at the cursors once more before it
/// blocks.
#[inline]
pub fn arm_slot(app_wait: &Word32, interest: u32) {
    want(app_wait, interest);
}

/// The peer's waiting word of one connection, and which of its sleeps was answered.
#[derive(Debug)]
pub struct PairSleeper {
    waiting: Word32,
    answered: AtomicU32,
}

impl PairSleeper {
    /// Over the `waiting` word of a slot in the peer's segment.
    pub fn new(waiting: Word32) -> Self {
        Self { waiting, answered: AtomicU32::new(0) }
    }

    /// As [`pair_must_wake`], but true only once for each sleep: a caller that gets true must send the slot number, and
    /// no other one will until the peer has armed again. It saves a message for each piece of work while the peer has
    /// not run yet.
    #[inline]
    pub fn must_wake(&self, event: u32) -> bool {
        claim_sleep(&self.waiting, &self.answered, event)
    }
}

// The algorithms, over any memory.

#[inline]
pub(crate) fn announce(flag: &impl AtomicWord<u32>) {
    flag.store(ASLEEP, Ordering::Relaxed);
    // PAIRS WITH the fence in `sleeps`: either that party sees the flag, or the caller's next look sees its work.
    flag.fence_seq_cst();
}

#[inline]
pub(crate) fn retract(flag: &impl AtomicWord<u32>) {
    // No fence: a waker that still sees the flag wakes once too often.
    flag.store(AWAKE, Ordering::Release);
}

#[inline]
pub(crate) fn sleeps(flag: &impl AtomicWord<u32>) -> bool {
    // PAIRS WITH the fence in `announce`.
    flag.fence_seq_cst();
    flag.load(Ordering::Relaxed) != AWAKE
}

#[inline]
pub(crate) fn claim(flag: &impl AtomicWord<u32>) -> bool {
    // A read-modify-write sees the newest state of the flag: if the owner woke up meanwhile it gets 0, and its next
    // announcement comes with a look at the work of this party.
    sleeps(flag) && flag.fetch_and(AWAKE, Ordering::AcqRel) != AWAKE
}

#[inline]
pub(crate) fn arm(word: &impl AtomicWord<u32>, interest: u32, ready: impl FnOnce() -> bool) -> bool {
    word.fetch_add(waiting::SLEEP, Ordering::Relaxed);
    word.fetch_or(interest & waiting::ANY, Ordering::Relaxed);
    // PAIRS WITH the fence in `waits_for`: either that party sees the interest, or `ready` sees what it published.
    word.fence_seq_cst();
    if ready() {
        disarm(word, interest);
        return false;
    }
    true
}

#[inline]
pub(crate) fn want(word: &impl AtomicWord<u32>, interest: u32) {
    word.fetch_or(interest & waiting::ANY, Ordering::Relaxed);
    // PAIRS WITH the fence in `waits_for`: either that party sees the interest, or the caller's next look its cursor.
    word.fence_seq_cst();
}

#[inline]
pub(crate) fn disarm(word: &impl AtomicWord<u32>, interest: u32) {
    word.fetch_and(!interest, Ordering::Release);
}

#[inline]
pub(crate) fn waits_for(word: &impl AtomicWord<u32>, event: u32) -> bool {
    // PAIRS WITH the fence in `arm`.
    word.fence_seq_cst();
    word.load(Ordering::Relaxed) & event != 0
}

#[inline]
pub(crate) fn claim_sleep(word: &impl AtomicWord<u32>, answered: &AtomicU32, event: u32) -> bool {
    word.fence_seq_cst();
    let seen = word.load(Ordering::Relaxed);
    // An equal word is the same sleep, with the same interest: somebody answered it. If the answer found nothing ready,
    // the sleeper counts on before it looks again, and then sees what was published before this load.
    seen & event != 0 && answered.swap(seen, Ordering::Relaxed) != seen
}
