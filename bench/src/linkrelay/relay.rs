//! The relay: takes frames from two ports, asks the model what becomes of each, and hands them over when they are due.
//!
//! Owns the frames under way. It has no clock of its own, and must never change a frame but for a mark of congestion.

use std::io;

use netmodel::{Fate, Link, Schedule};
use serde_json::{Value, json};
use verbs::Time;

use super::ecn;
use super::port::Port;
use super::settings::{FRAME_BYTES_MIN, FRAMING_BYTES, Settings};
use super::stats::{self, Lateness};

/// Longest frame of the link.
const FRAME_MAX: usize = 9_216;
/// Frames taken from one port before the other gets its turn.
const BURST: usize = 64;
/// Bytes under way in one direction: 100 ms at 4 Gbit/s. More are dropped and counted as overrun.
const HELD_BYTES_MAX: usize = 50_000_000;
/// Buffers of frames that are kept for later frames.
const SPARE_MAX: usize = 4_096;

/// One direction.
#[derive(Debug)]
struct Way {
    link: Link,
    line: Schedule<Vec<u8>>,
    held_bytes: usize,
    /// Bytes that were handed over.
    bytes: u64,
    /// Frames that the far port did not take.
    refused: u64,
    /// Frames that were dropped for [`HELD_BYTES_MAX`].
    overrun: u64,
}

impl Way {
    fn new(link: Link) -> Self {
        Self { link, line: Schedule::new(), held_bytes: 0, bytes: 0, refused: 0, overrun: 0 }
    }
}

/// The relay.
#[derive(Debug)]
pub(crate) struct Relay<P> {
    ports: [P; 2],
    /// From the port of the same index to the other one.
    ways: [Way; 2],
    spare: Vec<Vec<u8>>,
    buffer: Box<[u8]>,
    lateness: Lateness,
    /// When the settings were made.
    since: Time,
}

impl<P: Port> Relay<P> {
    /// With settings from time zero on.
    pub(crate) fn new(ports: [P; 2], settings: Settings) -> Self {
        Self {
            ports,
            ways: [0, 1].map(|direction| Way::new(Link::new(settings.shape(direction)))),
            spare: vec![],
            buffer: vec![0; FRAME_MAX].into(),
            lateness: Lateness::new(),
            since: Time::ZERO,
        }
    }

    pub(crate) fn ports(&self) -> &[P; 2] {
        &self.ports
    }

    /// From here on the link is like this. Counts begin anew; frames under way arrive as they would have.
    pub(crate) fn set(&mut self, now: Time, settings: Settings) {
        for (direction, way) in self.ways.iter_mut().enumerate() {
            way.link.set_shape(settings.shape(direction));
            (way.bytes, way.refused, way.overrun) = (0, 0, 0);
        }
        (self.lateness, self.since) = (Lateness::new(), now);
    }

    /// Takes what came and hands over what is due; says whether there was anything.
    pub(crate) fn turn(&mut self, clock: &mut impl FnMut() -> Time) -> io::Result<bool> {
        let mut any = false;
        for from in [0, 1] {
            any |= self.take(from, clock)?;
        }
        for from in [0, 1] {
            any |= self.hand_over(from, clock)?;
        }
        Ok(any)
    }

    /// When the next frame is due.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.ways.iter().filter_map(|way| way.line.next_at()).min()
    }

    /// What happened since the settings were made.
    pub(crate) fn stats(&self, now: Time) -> Value {
        let ways =
            self.ways.each_ref().map(|way| stats::direction(way.link.counts(), way.bytes, way.refused, way.overrun));
        let seconds = now.saturating_since(self.since).as_secs_f64();
        json!({ "seconds": seconds, "there": ways[0], "back": ways[1], "late": self.lateness.to_json() })
    }

    fn take(&mut self, from: usize, clock: &mut impl FnMut() -> Time) -> io::Result<bool> {
        let way = &mut self.ways[from];
        for count in 0..BURST {
            let Some(len) = self.ports[from].receive(&mut self.buffer)? else { return Ok(count > 0) };
            let fate = way.link.offer(clock(), len.max(FRAME_BYTES_MIN) + FRAMING_BYTES);
            let Fate::Arrives { at, mark } = fate else { continue };
            if way.held_bytes + len > HELD_BYTES_MAX {
                way.overrun += 1;
                continue;
            }
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(&self.buffer[..len]);
            if mark {
                ecn::mark(&mut frame);
            }
            way.held_bytes += len;
            way.line.push(at, frame);
        }
        Ok(true)
    }

    fn hand_over(&mut self, from: usize, clock: &mut impl FnMut() -> Time) -> io::Result<bool> {
        let (way, now) = (&mut self.ways[from], clock());
        let mut any = false;
        while way.line.next_at().is_some_and(|at| at <= now)
            && let Some((at, frame)) = way.line.pop()
        {
            any = true;
            way.held_bytes -= frame.len();
            self.lateness.note(now.saturating_since(at));
            if self.ports[1 - from].transmit(&frame)? {
                way.bytes += frame.len() as u64;
            } else {
                way.refused += 1;
            }
            if self.spare.len() < SPARE_MAX {
                self.spare.push(frame);
            }
        }
        Ok(any)
    }
}

#[cfg(test)]
mod tests;
