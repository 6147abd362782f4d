//! How far a connection's rest is.
//!
//! Owns the part of its rings whose turn it is, and what of them has pages. When it rests is decided elsewhere.

use std::ops::Range;

use verbs::Time;

use crate::limits::{REST_BYTES_PER_RUN, REST_SLICE_BYTES, REST_TRIES_MAX, RING_BYTES_MAX};

/// One connection's place among those that are looked at.
#[derive(Debug)]
pub(crate) struct RestTurn {
    /// When it carried something last, or its application rang.
    pub(crate) used_at: Time,
    /// It is among them.
    pub(crate) is_watched: bool,
    /// Bytes of either ring that are done with, of a rest that takes several turns.
    at: u64,
    /// Ticks for which its rest was put off.
    tries: u8,
    /// The bytes before these offsets, of the transmit and of the receive ring, have no pages.
    pub(crate) clean: [u64; 2],
    /// Bytes of its rings that may have pages, as they count.
    pub(crate) held: u64,
}

impl RestTurn {
    pub(crate) fn new(now: Time) -> Self {
        Self { used_at: now, is_watched: false, at: 0, tries: 0, clean: [0; 2], held: 0 }
    }

    /// The part of either ring whose turn it is.
    pub(crate) fn slice(&self) -> Range<u64> {
        // Pages that are not there take no time.
        let most = if self.held <= REST_BYTES_PER_RUN { RING_BYTES_MAX.into() } else { REST_SLICE_BYTES };
        self.at..self.at + most
    }

    /// Bytes of its rings that may have pages.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// What lies before these offsets of either ring has no pages any more.
    pub(crate) fn on_clean(&mut self, tx: Option<u64>, rx: Option<u64>) {
        for (clean, now) in self.clean.iter_mut().zip([tx, rx]) {
            *clean = now.unwrap_or(*clean);
        }
    }

    /// It rests, is over, or is left alone until it is used.
    pub(crate) fn leave(&mut self) {
        self.is_watched = false;
    }

    /// It is not at rest yet: the next rest begins at its rings' start.
    pub(crate) fn begin_anew(&mut self) {
        (self.tries, self.at) = (0, 0);
    }

    /// A part of its rings is done.
    pub(crate) fn next_slice(&mut self) {
        self.at = self.slice().end;
    }

    /// Something was in the way. False: for the last time.
    pub(crate) fn put_off(&mut self) -> bool {
        let again = self.tries < REST_TRIES_MAX;
        self.tries += u8::from(again);
        again
    }

    /// It was used meanwhile.
    pub(crate) fn used(&mut self, now: Time) {
        self.used_at = now;
    }
}
