//! A conversation: whole messages by turns, which go by the connection's own TCP connection where there is one, or by the
//! ring (docs/inside/kernel-tcp.md).
//!
//! Owns whose turn it is, and how long messages are. By which way each goes the client core decides.

use std::io::IoSlice;

use control::Reason;
use raas_core::{End, Endpoint, Incoming, MESSAGE_HEADER_BYTES, Next, ReceiveError, Rx, Tx, message_header};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::Time;

use super::{Conn, Writing};
use crate::check::{Checks, Side};

/// Messages of an end, about.
const MESSAGES: u64 = 60;
const SHORT_MAX: u64 = 12 << 10;
/// Of so many messages one is long, and is no message that goes by TCP.
const MESSAGES_PER_LONG: u32 = 30;
const LONG_MAX: u64 = 40 << 10;
/// Of so many turns one is of several messages.
const TURNS_PER_BURST: u32 = 40;
const BURST: u32 = 3;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Conversation {
    rng: StdRng,
    incoming: Incoming,
    /// Messages that may be sent before the other end has answered.
    turn: u32,
    short_max: u64,
    /// Bytes of the next message, if it found no room so far.
    next: Option<usize>,
}

/// What came.
#[derive(Debug)]
enum Came {
    Nothing,
    /// A message of so many bytes, and whether it was by TCP.
    Message(usize, bool),
    /// No message.
    Wrong(String),
}

impl Conversation {
    pub(super) fn new(side: Side, to_write: u64, rng: &mut StdRng) -> Self {
        Self {
            rng: StdRng::seed_from_u64(rng.random()),
            incoming: Incoming::default(),
            turn: u32::from(side == Side::Connector),
            short_max: (2 * to_write / MESSAGES).clamp(1, SHORT_MAX),
            next: None,
        }
    }

    /// Whether a message may be sent. `is_alone`: nobody answers any more.
    fn may_speak(&self, is_alone: bool) -> bool {
        self.turn > 0 || is_alone
    }

    /// Bytes of the next message.
    fn bytes(&mut self, left: u64, at: &Endpoint, room: usize) -> usize {
        let most = left.min((at.tx_bytes().min(room) - MESSAGE_HEADER_BYTES) as u64);
        let rng = &mut self.rng;
        let bytes = *self.next.get_or_insert_with(|| {
            let max = if rng.random_ratio(1, MESSAGES_PER_LONG) { LONG_MAX } else { self.short_max };
            rng.random_range(1..=max) as usize
        });
        bytes.min(most as usize)
    }

    /// Sends a message. False: it finds no room yet.
    fn send(&mut self, tx: &mut Tx, at: &Endpoint, message: &[u8]) -> Result<bool, End> {
        let Ok(header) = message_header(message.len(), at.tx_bytes()) else { return Ok(false) };
        let bufs = [IoSlice::new(&header), IoSlice::new(message)];
        let is_sent = tx.put_message(at, &bufs, header.len() + message.len(), true)?;
        if is_sent {
            self.next = None;
            self.turn = self.turn.saturating_sub(1);
        }
        Ok(is_sent)
    }

    /// Receives a message, if all of one is there.
    fn receive(&mut self, rx: &mut Rx, at: &Endpoint, buf: &mut [u8]) -> Came {
        loop {
            let mut read = |part: &mut [u8]| match rx.take(at, part) {
                Ok(0) => Err(None),
                Ok(count) => Ok(count),
                Err(end) => Err(Some(end)),
            };
            match self.incoming.next(&mut read) {
                Ok(Some(Next::Bytes(_))) => {}
                Ok(Some(Next::OtherWay)) => match rx.change_way(at) {
                    Ok(()) => continue,
                    Err(end) => return Came::Wrong(format!("the way cannot change: {end:?}")),
                },
                Err(ReceiveError::Read(None)) => return Came::Nothing,
                other => return Came::Wrong(format!("{other:?} in a conversation")),
            }
            return match self.incoming.receive(buf, &mut read) {
                Ok(Some(bytes)) => {
                    self.turn = if self.rng.random_ratio(1, TURNS_PER_BURST) { BURST } else { 1 };
                    Came::Message(bytes, rx.is_direct())
                }
                Err(ReceiveError::Read(None)) => Came::Nothing,
                other => Came::Wrong(format!("{other:?} in a conversation")),
            };
        }
    }
}

impl Conn {
    /// Takes the next message of a conversation. False: there is none.
    pub(super) fn hear(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8]) -> bool {
        let Some(conversation) = &mut self.conversation else { return false };
        let whose = (self.record, self.side);
        match conversation.receive(&mut self.rx, &self.endpoint, buf) {
            Came::Nothing => false,
            Came::Message(bytes, is_by_tcp) => {
                checks.on_said(now, whose, &buf[..bytes], is_by_tcp);
                self.received += bytes as u64;
                self.next_read = now + self.script.read_gap;
                true
            }
            Came::Wrong(why) => {
                checks.fail(now, "messages", format!("connection {}: {why}", whose.0.0));
                false
            }
        }
    }

    /// Says the next message of a conversation. False: it is not this end's turn, or there is no room, or an end.
    pub(super) fn speak(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8]) -> bool {
        let Writing::Free(tx) = &mut self.writing else { return false };
        let Some(conversation) = &mut self.conversation else { return false };
        if !conversation.may_speak(self.eof || self.stop_said) {
            return false;
        }
        let left = self.script.to_write - self.sent;
        let bytes = conversation.bytes(left, &self.endpoint, buf.len());
        checks.fill(self.record, self.side, self.sent, &mut buf[..bytes]);
        match conversation.send(tx, &self.endpoint, &buf[..bytes]) {
            Ok(true) => {}
            Ok(false) | Err(End::Finished | End::Forked(_)) => return false,
            Err(End::Reset(reason)) => {
                if reason == Reason::AppFault {
                    checks.fail(now, "order", "the engine published an impossible cursor".into());
                }
                return false;
            }
        }
        checks.on_say(self.record, self.side, bytes);
        self.sent += bytes as u64;
        self.next_write = now + self.script.write_gap;
        true
    }
}
