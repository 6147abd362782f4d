//! Writing to a stream's own TCP connection, and the switch to it.
//!
//! Owns in which of the two the next byte goes. It must never go back to the ring, but for a message.

use std::io::IoSlice;
use std::sync::Arc;

use crate::asked::{ANSWERS, Asked};
use crate::direct::Direct;
use crate::direct_messages::{MessagesTx, Way, send_whole};
use crate::switch::{SWITCH_BYTES, switched};
use crate::{End, Endpoint, Side};

/// Writes between two looks whether this side may switch.
const WRITES_PER_LOOK: u32 = 8;
/// Writes of so many bytes, on average, are worth a system call each. Shorter ones are cheaper through the ring, where
/// the daemon sends many of them at once.
pub(crate) const LARGE_WRITE_BYTES: usize = 16 << 10;
/// Buffers of one call at most, with the words of the switch.
const BUFFERS_MAX: usize = 512;

/// Bytes of all buffers.
pub(crate) fn offered(bufs: &[IoSlice<'_>]) -> usize {
    bufs.iter().fold(0, |sum, buf| sum.saturating_add(buf.len()))
}

/// Where the bytes of a direction go.
#[derive(Debug)]
pub(crate) enum DirectTx {
    /// Into the ring, as long as this side may not switch.
    Ring {
        /// Writes since the last look.
        writes: u32,
        /// Mean length of what the last writes offered, mostly of the last eight, in bytes; 0: none was looked at.
        mean_bytes: usize,
        /// Writes in a row that were answers.
        answers: u32,
    },
    /// Into the ring for good: room there was lent.
    Pinned,
    /// Messages: each for itself.
    Messages(MessagesTx),
    /// To TCP.
    Socket {
        direct: Arc<Direct>,
        /// The words of the switch, not sent from `said` on.
        words: [u8; SWITCH_BYTES],
        said: usize,
        sent: u64,
    },
}

impl DirectTx {
    /// As every direction begins.
    pub(crate) const fn ring() -> Self {
        Self::Ring { writes: 0, mean_bytes: 0, answers: 0 }
    }

    /// A write of so many bytes found no room in the ring: what it is like is known before there is a connection.
    #[cold]
    pub(crate) fn on_full(&mut self, at: &Endpoint, offered: usize) {
        if let (Self::Ring { mean_bytes, .. }, None) = (self, at.direct()) {
            *mean_bytes = offered;
        }
    }

    /// Whether this side may switch now: it does with its next large write.
    pub(crate) fn may_switch(&self, at: &Endpoint) -> bool {
        matches!(self, Self::Ring { mean_bytes: LARGE_WRITE_BYTES.., .. })
            && !at.names_verb()
            && at.direct().is_some_and(|direct| direct.may_switch())
    }

    /// Sends by TCP, and switches to it at `tail` if that may be: how many bytes were taken. `None`: they are to go
    /// into the ring.
    #[cold]
    pub(crate) fn put(&mut self, at: &Endpoint, tail: u64, bufs: &[IoSlice<'_>]) -> Result<Option<usize>, End> {
        if let Self::Ring { writes, mean_bytes, answers } = self {
            let Some(direct) = at.direct() else { return Ok(None) };
            *writes = writes.wrapping_add(1);
            let offered = offered(bufs);
            *mean_bytes = match *mean_bytes {
                0 => offered,
                mean => (mean - mean / 8).saturating_add(offered / 8),
            };
            *answers = if at.take_asked() == Asked::No { 0 } else { *answers + 1 };
            if !direct.may_switch() && *writes % WRITES_PER_LOOK == 1 {
                direct.advance();
            }
            // TCP has no verbs: what is to travel by a named one stays on the lane.
            let is_worth_it = *mean_bytes >= LARGE_WRITE_BYTES || *answers >= ANSWERS;
            if !is_worth_it || at.names_verb() || !direct.may_switch() {
                return Ok(None);
            }
            direct.on_switch();
            let (direct, words) = (Arc::clone(direct), switched(tail));
            *self = Self::Socket { direct, words, said: 0, sent: 0 };
        }
        match self {
            Self::Socket { direct, words, said, sent } => {
                let taken = if *said < SWITCH_BYTES {
                    let first = [IoSlice::new(&words[*said..])];
                    let all: Vec<_> = first.iter().chain(bufs).take(BUFFERS_MAX).copied().collect();
                    direct.socket.send(&all)
                } else {
                    direct.socket.send(&bufs[..bufs.len().min(BUFFERS_MAX)])
                };
                let taken = match taken {
                    Ok(taken) => taken,
                    Err(broken) => {
                        direct.on_broken(broken);
                        return Err(at.write_end().unwrap_or(End::Reset(broken.0)));
                    }
                };
                let of_words = taken.min(SWITCH_BYTES - *said);
                *said += of_words;
                let taken = taken - of_words;
                *sent += taken as u64;
                at.count_direct(Side::Write, *sent);
                Ok(Some(taken))
            }
            Self::Ring { .. } | Self::Pinned | Self::Messages(_) => {
                self.leave(at)?;
                Ok(None)
            }
        }
    }

    /// The way of the next message, which has `len` bytes.
    #[cold]
    pub(crate) fn way_of_message(
        &mut self,
        at: &Endpoint,
        direct: &Direct,
        len: usize,
        may_wait: bool,
    ) -> Result<Way, End> {
        if matches!(self, Self::Ring { .. }) {
            *self = Self::Messages(MessagesTx::default());
        }
        match self {
            Self::Messages(messages) => messages.choose(at, direct, len, may_wait),
            Self::Ring { .. } | Self::Pinned | Self::Socket { .. } => Ok(Way::Ring),
        }
    }

    /// Sends a message of `len` bytes by TCP, as [`DirectTx::way_of_message`] said.
    pub(crate) fn send_message(
        &mut self,
        at: &Endpoint,
        direct: &Direct,
        bufs: &[IoSlice<'_>],
        len: usize,
    ) -> Result<(), End> {
        match self {
            Self::Messages(messages) => messages.send(at, direct, bufs, len),
            Self::Ring { .. } | Self::Pinned | Self::Socket { .. } => Ok(()),
        }
    }

    /// Messages go back to the ring, for good.
    pub(crate) fn leave(&mut self, at: &Endpoint) -> Result<(), End> {
        if let Self::Messages(messages) = self {
            messages.leave(at)?;
            *self = Self::Pinned;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn is_socket(&self) -> bool {
        matches!(self, Self::Socket { .. })
    }

    /// Whether TCP has room; `None`: the ring counts.
    #[inline]
    pub(crate) fn has_room(&self) -> Option<bool> {
        match self {
            Self::Socket { direct, .. } => Some(direct.socket.is_ready(Side::Write)),
            Self::Ring { .. } | Self::Pinned | Self::Messages(_) => None,
        }
    }

    /// Room of the ring is lent: this direction stays there, unless it has switched.
    pub(crate) fn pin(&mut self) {
        if let Self::Ring { .. } = self {
            *self = Self::Pinned;
        }
    }

    /// Sends all of `bytes` behind the switch, waiting for room. False: writing ended before.
    pub(crate) fn send_all(&mut self, at: &Endpoint, bytes: &[u8]) -> bool {
        let (Self::Socket { direct, words, said, sent }, false) = (self, bytes.is_empty()) else {
            return bytes.is_empty();
        };
        let all = [IoSlice::new(&words[*said..]), IoSlice::new(bytes)];
        if at.write_end().is_some() || send_whole(direct, at, &all).is_err() {
            return false;
        }
        (*said, *sent) = (SWITCH_BYTES, *sent + bytes.len() as u64);
        at.count_direct(Side::Write, *sent);
        true
    }
}
