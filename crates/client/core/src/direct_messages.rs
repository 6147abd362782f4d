//! Messages by their own TCP connection, one at a time: whether the next one goes by it or by the ring.
//!
//! Owns the decision. Where the way changes, a header stands between two messages, on the way that is left. So whatever
//! comes first, the reader follows the order in which they were sent. It must never send a part of a message, and never
//! fill TCP, which holds less than the ring: two ends that both send before they receive would stand still.
//!
//! By TCP go the messages of a conversation alone: short ones, each of which answers all that came. Longer ones and
//! those that follow each other go by the ring, where the daemons carry many at a time.

use std::io::IoSlice;

use crate::asked::{ANSWERS, Asked};
use crate::direct::Direct;
use crate::framing::MESSAGE_HEADER_BYTES;
use crate::loans::OTHER_WAY;
use crate::{End, Endpoint, Side};

/// Longest message that goes by TCP, with its header.
const MESSAGE_MAX: usize = 16 << 10;
/// Bytes by TCP at most since something came by it: what any TCP connection holds.
const UNANSWERED_MAX: usize = 32 << 10;
/// Messages between two looks whether this side may switch.
const MESSAGES_PER_LOOK: u32 = 8;

/// Said between two messages where the way changes.
pub(crate) const CHANGE: [u8; MESSAGE_HEADER_BYTES] = OTHER_WAY.to_le_bytes();

/// The way of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Ring,
    /// `is_new`: [`CHANGE`] is to go by the ring before it.
    Tcp {
        is_new: bool,
    },
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct MessagesTx {
    /// Messages since the connection was there.
    messages: u32,
    /// Messages in a row that were answers.
    answers: u32,
    is_on_tcp: bool,
    /// Bytes by TCP since something came by it.
    unanswered: usize,
    /// Bytes of messages that went by TCP.
    sent: u64,
}

impl MessagesTx {
    /// The way of the next message, which has `len` bytes.
    pub(crate) fn choose(&mut self, at: &Endpoint, direct: &Direct, len: usize, may_wait: bool) -> Result<Way, End> {
        self.messages = self.messages.wrapping_add(1);
        let (asked, may_switch) = (at.take_asked(), direct.may_switch());
        if asked == Asked::ByTcp {
            self.unanswered = 0;
        }
        self.answers = if asked == Asked::No { 0 } else { self.answers.saturating_add(1) };
        if !may_switch && self.messages % MESSAGES_PER_LOOK == 1 {
            direct.advance();
        }
        let is_short = len <= MESSAGE_MAX && self.unanswered + len <= UNANSWERED_MAX;
        let is_turn = asked != Asked::No && is_short && may_wait && !at.names_verb();
        if is_turn && (self.is_on_tcp || self.answers >= ANSWERS && may_switch) {
            return Ok(Way::Tcp { is_new: !self.is_on_tcp });
        }
        self.leave(at)?;
        Ok(Way::Ring)
    }

    /// Sends a message of `len` bytes by TCP.
    pub(crate) fn send(&mut self, at: &Endpoint, direct: &Direct, bufs: &[IoSlice<'_>], len: usize) -> Result<(), End> {
        direct.on_switch();
        self.is_on_tcp = true;
        send_whole(direct, at, bufs)?;
        self.unanswered += len;
        self.count(at, len);
        Ok(())
    }

    /// The next messages go by the ring.
    pub(crate) fn leave(&mut self, at: &Endpoint) -> Result<(), End> {
        if !std::mem::take(&mut self.is_on_tcp) {
            return Ok(());
        }
        self.answers = 0;
        if let Some(direct) = at.direct() {
            send_whole(direct, at, &[IoSlice::new(&CHANGE)])?;
            self.count(at, CHANGE.len());
        }
        Ok(())
    }

    fn count(&mut self, at: &Endpoint, len: usize) {
        self.sent += len as u64;
        at.count_direct(Side::Write, self.sent);
    }
}

/// Sends all. What TCP has no room for is waited for: with [`UNANSWERED_MAX`] only where a host gives its connections
/// less than Linux does, or where the peer sends without reading what it says that it answers.
pub(crate) fn send_whole(direct: &Direct, at: &Endpoint, bufs: &[IoSlice<'_>]) -> Result<(), End> {
    let mut rest: Vec<IoSlice<'_>> = bufs.to_vec();
    let mut rest = &mut rest[..];
    // What is empty is behind it.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match direct.socket.send(rest) {
            Ok(0) => match at.write_end() {
                Some(end) => return Err(end),
                None => direct.socket.wait_room(),
            },
            Ok(taken) => IoSlice::advance_slices(&mut rest, taken),
            Err(broken) => {
                direct.on_broken(broken);
                return Err(at.write_end().unwrap_or(End::Reset(broken.0)));
            }
        }
    }
    Ok(())
}
