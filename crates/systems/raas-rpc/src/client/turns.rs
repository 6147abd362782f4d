//! A client's turns: where its requests go while it has one, and where they wait while it has none.
//!
//! Owns the client's ring of requests and the end of its turn. It must never write into a seat when its turn is over.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use raas::{Region, RegionError};

use crate::frame::{FRAME_ALIGN, Turn};
use crate::hello::Seating;
use crate::layout::Layout;
use crate::server::lock;

/// Time without a response after which a request is sent again, at least and at most; in between so many times what
/// clients lately waited for their turn.
const REPEAT_AFTER: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(2));
const REPEAT_WAITS: u32 = 3;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The client's own region.
    ring: Region,
    /// How far it has laid requests down, counted from the first on.
    laid: Mutex<u64>,
    turn: Mutex<Option<(u64, Instant)>>,
    /// The longest wait for a response, which older ones count for ever less.
    wait: Mutex<Duration>,
    seating: Seating,
    seat_bytes: u64,
}

impl Turns {
    pub(crate) fn new(ring: Region, seating: Seating, layout: &Layout) -> Self {
        let seat_bytes = layout.seat_bytes();
        Self { ring, laid: Mutex::default(), turn: Mutex::default(), wait: Mutex::default(), seating, seat_bytes }
    }

    /// Where the client's word is in the server's memory.
    pub(crate) fn word_at(&self) -> u64 {
        self.seating.word
    }

    /// Where the client's seat begins, if it has one now.
    pub(crate) fn seat_at(&self) -> Option<u64> {
        lock(&self.turn).filter(|(_, until)| Instant::now() < *until).map(|(at, _)| at)
    }

    /// The server told of a turn in its answer to a request that was sent at `sent`, which it had later.
    pub(crate) fn on_turn(&self, turn: Turn, sent: Instant) {
        if u32::from(turn.seat) < self.seating.count {
            let at = self.seating.seats + u64::from(turn.seat) * self.seat_bytes;
            *lock(&self.turn) = Some((at, sent + Duration::from_micros(turn.ends_us.into())));
        }
    }

    /// A response took so long.
    pub(crate) fn on_wait(&self, time: Duration) {
        let mut wait = lock(&self.wait);
        *wait = time.max(*wait - *wait / 8);
    }

    pub(crate) fn repeat_after(&self) -> Duration {
        (REPEAT_WAITS * *lock(&self.wait)).clamp(REPEAT_AFTER.0, REPEAT_AFTER.1)
    }

    /// Lays a request down behind those before it, and has `tell` write into the client's word how far they go now. In
    /// turns, so that the word never goes back.
    pub(crate) fn lay<E: From<RegionError>>(
        &self,
        frame: &[u8],
        tell: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut laid = lock(&self.laid);
        let bytes = self.ring.bytes();
        let at = *laid % bytes;
        let (first, rest) = frame.split_at(frame.len().min((bytes - at) as usize));
        self.ring.write(at, first)?;
        if !rest.is_empty() {
            self.ring.write(0, rest)?;
        }
        *laid += frame.len().next_multiple_of(FRAME_ALIGN) as u64;
        tell(*laid)
    }
}
