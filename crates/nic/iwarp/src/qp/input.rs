//! Frames out of the byte stream, which cuts anywhere.
//!
//! Owns what has come of the current frame, and where the next bytes go. Without CRC, payload goes straight to its
//! place, by the kernel or by a copy if it came behind a header; a word goes there when it is whole. With CRC, a frame is held until it is whole and right.

use rnic::{Device, KeyFault};
use verbs::{Access, Status};

use super::events::Ending;
use super::receive::{Fault, Segment, Target};
use super::{Failing, Qp};
use crate::ddp::{Control, Header};
use crate::limits::{LARGE_PAYLOAD, READ_AHEAD, READ_BEHIND, READ_CHECKED, WORD_BYTES};
use crate::mpa::{CRC_BYTES, FrameKind, LENGTH_BYTES, Parsed, Startup, crc, fpdu_bytes, trailer_bytes};
use crate::rdmap::{Opcode, ReadRequest};
use crate::terminate::{Cause, Offender, Terminate};
use crate::transfer::Scatter;

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A startup frame.
    Startup,
    /// The length and the header of a frame; with CRC, the whole frame.
    Head,
    /// The payload of a segment, of which `done` bytes are placed.
    Payload { segment: Segment, done: usize },
    /// Padding and CRC field, of which so many bytes are missing.
    Trailer { segment: Segment, left: usize },
}

/// The input of a stream.
#[derive(Debug)]
pub(super) struct Input {
    phase: Phase,
    /// What has come of a startup frame, of a header, or of a frame that is checked as a whole.
    pending: Vec<u8>,
    /// Payload of the current segment, if it is RDMAP's own.
    control: Vec<u8>,
    /// What has come of a payload that is placed in one step.
    word: Vec<u8>,
    has_crc: bool,
    /// Payload bytes of the segment before: a guess at the next one's.
    last_payload: usize,
}

/// A broken rule, with the segment at fault if there is one.
struct Refused {
    fault: Fault,
    offender: Option<Offender>,
}

impl From<Cause> for Refused {
    fn from(cause: Cause) -> Self {
        Self { fault: cause.into(), offender: None }
    }
}

impl Input {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Startup,
            pending: Vec::new(),
            control: Vec::new(),
            word: Vec::new(),
            has_crc: false,
            last_payload: 0,
        }
    }

    /// Frames follow.
    pub(super) fn open(&mut self, has_crc: bool) {
        (self.phase, self.has_crc) = (Phase::Head, has_crc);
        self.pending.clear();
    }

    /// Whether the next byte begins a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.phase == Phase::Head && self.pending.is_empty()
    }
}

/// The segment as a Terminate message names it.
fn offender_of(header: Header, payload: u32, control: &[u8]) -> Offender {
    let is_read = matches!(&header, Header::Untagged(_)) && header.ulp() == Opcode::ReadRequest.control();
    let request = if is_read { control.first_chunk().map(ReadRequest::parse) } else { None };
    let ulpdu_bytes = u16::try_from(header.len() + payload as usize).unwrap_or(u16::MAX);
    Offender { ulpdu_bytes, header, request }
}

impl Qp {
    /// Says where the next bytes of the stream go. Nothing: they are not to be read now.
    pub fn want(&mut self, dev: &mut Device, out: &mut Scatter) {
        out.clear();
        if !self.is_connected || self.state.is_over() || self.has_seen_end {
            return;
        }
        if !self.state.receives() {
            // A connection that is closed with unread bytes is reset, and the peer may lose the Terminate message.
            out.buffer_bytes = READ_AHEAD;
            return;
        }
        if self.input.phase == Phase::Startup {
            // Not more than the frame: what follows may go to another place.
            out.buffer_bytes = startup_bytes(&self.input.pending) - self.input.pending.len();
            return;
        }
        if self.input.has_crc {
            out.buffer_bytes = READ_CHECKED;
            return;
        }
        let mut is_large = self.input.last_payload >= LARGE_PAYLOAD;
        if let Phase::Payload { segment, done } = self.input.phase
            && !is_word(&segment)
        {
            let left = (segment.payload as usize).saturating_sub(done);
            is_large = left >= LARGE_PAYLOAD;
            if let Err(fault) = self.places(&segment, done, left, dev, out) {
                out.clear();
                out.buffer_bytes = READ_AHEAD;
                self.on_refused(
                    Refused { fault, offender: Some(offender_of(segment.header, segment.payload, &[])) },
                    dev,
                );
                return;
            }
        }
        out.buffer_bytes = if is_large { READ_BEHIND } else { READ_AHEAD };
    }

    /// The places of `left` bytes, `done` bytes into a segment's payload. They are looked up each time, because memory
    /// may have been deregistered since.
    fn places(
        &self,
        segment: &Segment,
        done: usize,
        left: usize,
        dev: &Device,
        out: &mut Scatter,
    ) -> Result<(), Fault> {
        let mut push = |range| out.pieces.push(range);
        match segment.place {
            Target::Memory { rkey, addr } => {
                let range = dev.mrs.of(self.attr.init.pd).remote_range(
                    rkey,
                    addr + done as u64,
                    left as u64,
                    Access::REMOTE_WRITE,
                );
                range.map(push).map_err(|_| Cause::TaggedInvalidStag.into())
            }
            Target::Receive { offset } => {
                let sges = self.receiver.receive_sges();
                let ranges = dev.mrs.of(self.attr.init.pd).local_ranges(
                    sges,
                    offset + done as u64,
                    left,
                    Access::LOCAL_WRITE,
                    &mut push,
                );
                ranges.map_err(|_| Fault { cause: Cause::DdpLocal, receive: Status::LocProtErr })
            }
            Target::Answer { number, offset } => {
                let sges = self.sends.get(number).map_or(&[][..], |wqe| wqe.sges());
                let offset = u64::from(offset) + done as u64;
                let ranges =
                    dev.mrs.of(self.attr.init.pd).local_ranges(sges, offset, left, Access::LOCAL_WRITE, &mut push);
                ranges.map_err(|_| Cause::DdpLocal.into())
            }
            Target::Control => Ok(()),
        }
    }

    /// Bytes came: so many at the places that [`Self::want`] named, and `buffer` behind them.
    pub fn received(&mut self, dev: &mut Device, placed: u64, buffer: &[u8]) {
        if !self.state.receives() {
            return;
        }
        let placed = usize::try_from(placed).unwrap_or(usize::MAX);
        if let Phase::Payload { segment, done } = self.input.phase
            && placed > 0
        {
            let done = done.saturating_add(placed).min(segment.payload as usize);
            self.input.phase = after(segment, done);
        }
        let buffer = if self.input.phase == Phase::Startup { self.take_startup(buffer, dev) } else { buffer };
        let outcome = if self.input.has_crc { self.take_checked(buffer, dev) } else { self.take(buffer, dev) };
        if let Err(refused) = outcome {
            self.on_refused(refused, dev);
        }
        self.close_if_done(dev);
    }

    /// Takes bytes of the reply, and of what follows it.
    fn take_startup<'b>(&mut self, bytes: &'b [u8], dev: &mut Device) -> &'b [u8] {
        let mut rest = bytes;
        let mut pending = std::mem::take(&mut self.input.pending);
        while self.input.phase == Phase::Startup && self.state.receives() && !rest.is_empty() {
            let wanted = startup_bytes(&pending);
            let (now, later) = rest.split_at(rest.len().min(wanted - pending.len()));
            pending.extend_from_slice(now);
            rest = later;
            self.on_reply(&pending, dev);
        }
        if self.input.phase == Phase::Startup {
            self.input.pending = pending;
        }
        rest
    }

    fn take(&mut self, mut bytes: &[u8], dev: &mut Device) -> Result<(), Refused> {
        while !bytes.is_empty() && self.state.receives() {
            match self.input.phase {
                Phase::Startup => return Ok(()),
                Phase::Head => bytes = self.take_head(bytes, dev)?,
                Phase::Payload { segment, done } => {
                    let left = (segment.payload as usize).saturating_sub(done);
                    let (now, later) = bytes.split_at(bytes.len().min(left));
                    if is_word(&segment) {
                        self.take_word(&segment, now, dev)?;
                    } else {
                        self.place(&segment, done, now, dev)?;
                    }
                    self.counters.tcp_bytes_copied += now.len() as u64;
                    self.input.phase = after(segment, done + now.len());
                    bytes = later;
                }
                Phase::Trailer { segment, left } => {
                    let passed = bytes.len().min(left);
                    bytes = &bytes[passed..];
                    if passed < left {
                        self.input.phase = Phase::Trailer { segment, left: left - passed };
                        continue;
                    }
                    self.input.phase = Phase::Head;
                    self.complete_segment(&segment, dev)?;
                }
            }
        }
        Ok(())
    }

    /// Takes bytes of a payload that is placed when it is whole.
    fn take_word(&mut self, segment: &Segment, bytes: &[u8], dev: &mut Device) -> Result<(), Refused> {
        self.input.word.extend_from_slice(bytes);
        if self.input.word.len() < segment.payload as usize {
            return Ok(());
        }
        let word = std::mem::take(&mut self.input.word);
        let outcome = self.place(segment, 0, &word, dev);
        self.input.word = word;
        self.input.word.clear();
        outcome
    }

    /// Takes bytes of length and header; what is left belongs to what follows.
    fn take_head<'b>(&mut self, bytes: &'b [u8], dev: &mut Device) -> Result<&'b [u8], Refused> {
        let mut rest = bytes;
        loop {
            let pending = &mut self.input.pending;
            let wanted = match pending.get(LENGTH_BYTES) {
                None => LENGTH_BYTES + 1,
                Some(first) => LENGTH_BYTES + Control::parse(*first).header_bytes(),
            };
            if pending.len() >= wanted && pending.len() > LENGTH_BYTES + 1 {
                break;
            }
            if rest.is_empty() {
                return Ok(rest);
            }
            let (now, later) = rest.split_at(rest.len().min(wanted - pending.len()));
            pending.extend_from_slice(now);
            rest = later;
        }
        let head = std::mem::take(&mut self.input.pending);
        let segment = self.judge(&head, dev);
        self.input.pending = head;
        self.input.pending.clear();
        self.input.phase = after(segment?, 0);
        Ok(rest)
    }

    /// Judges the segment of a frame whose length and header are at the front of `head`.
    fn judge(&mut self, head: &[u8], dev: &mut Device) -> Result<Segment, Refused> {
        self.input.control.clear();
        let (length, segment) = head.split_first_chunk::<LENGTH_BYTES>().ok_or(Cause::MarkerMismatch)?;
        let ulpdu_bytes = usize::from(u16::from_be_bytes(*length));
        let control = Control::parse(segment.first().copied().unwrap_or(0));
        let header = Header::parse(segment).ok_or(Cause::MarkerMismatch)?;
        // A length that leaves no room for the header: where the next frame begins is not to be known.
        let payload = ulpdu_bytes.checked_sub(header.len()).ok_or(Cause::MarkerMismatch)?;
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        let judged = self.receiver.judge(control, &header, payload, &self.requests, &self.responses, dev);
        judged.map_err(|fault| Refused { fault, offender: Some(offender_of(header, payload, &[])) })
    }

    fn place(&mut self, segment: &Segment, done: usize, bytes: &[u8], dev: &Device) -> Result<(), Refused> {
        if bytes.is_empty() {
            // The key of a message without bytes need not be one.
            return Ok(());
        }
        let placed = match segment.place {
            Target::Control => {
                self.input.control.extend_from_slice(bytes);
                Ok(())
            }
            Target::Answer { number, offset } => {
                let sges = self.sends.get(number).map_or(&[][..], |wqe| wqe.sges());
                let at = u64::from(offset) + done as u64;
                dev.mrs.of(self.attr.init.pd).scatter(sges, at, bytes).map_err(|_: KeyFault| {
                    self.failing = Some(Failing { number, status: Status::LocProtErr, is_executed_before: false });
                    Fault::from(Cause::DdpLocal)
                })
            }
            place => self.receiver.place(place, done, bytes, dev),
        };
        let offender = || Some(offender_of(segment.header, segment.payload, &[]));
        placed.map_err(|fault| Refused { fault, offender: offender() })
    }

    fn complete_segment(&mut self, segment: &Segment, dev: &mut Device) -> Result<(), Refused> {
        self.counters.tcp_frames_received += 1;
        // Immediate Data behind a large Write says nothing of the next one.
        if segment.place != Target::Control {
            self.input.last_payload = segment.payload as usize;
        }
        self.on_frame();
        let control = std::mem::take(&mut self.input.control);
        let outcome = self.execute(segment, &control, dev);
        let offender = outcome
            .err()
            .map(|fault| Refused { fault, offender: Some(offender_of(segment.header, segment.payload, &control)) });
        self.input.control = control;
        offender.map_or(Ok(()), Err)
    }

    fn take_checked(&mut self, mut bytes: &[u8], dev: &mut Device) -> Result<(), Refused> {
        let length_of = |frame: &[u8]| {
            frame.first_chunk::<LENGTH_BYTES>().map(|length| fpdu_bytes(u16::from_be_bytes(*length).into()))
        };
        while !bytes.is_empty() && self.state.receives() {
            if self.input.pending.is_empty()
                && let Some(frame) = length_of(bytes).and_then(|length| bytes.get(..length))
            {
                bytes = &bytes[frame.len()..];
                self.take_frame(frame, dev)?;
                continue;
            }
            let pending = &mut self.input.pending;
            let wanted = length_of(pending).unwrap_or(LENGTH_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(wanted - pending.len()));
            pending.extend_from_slice(now);
            bytes = later;
            if length_of(pending) == Some(pending.len()) {
                let frame = std::mem::take(pending);
                let outcome = self.take_frame(&frame, dev);
                self.input.pending = frame;
                self.input.pending.clear();
                outcome?;
            }
        }
        Ok(())
    }

    /// Takes a whole frame after its CRC was found right.
    fn take_frame(&mut self, frame: &[u8], dev: &mut Device) -> Result<(), Refused> {
        let (covered, field) = frame.split_at(frame.len().saturating_sub(CRC_BYTES));
        if crc(covered) != field {
            self.counters.tcp_crc_mismatches += 1;
            return Err(Cause::Crc.into());
        }
        let segment = self.judge(covered, dev)?;
        let start = LENGTH_BYTES + segment.header.len();
        let payload = covered.get(start..start + segment.payload as usize).ok_or(Cause::MarkerMismatch)?;
        self.place(&segment, 0, payload, dev)?;
        self.complete_segment(&segment, dev)
    }

    fn on_refused(&mut self, refused: Refused, dev: &mut Device) {
        let Refused { fault: Fault { cause, receive }, offender } = refused;
        let ending = if cause == Cause::DdpLocal { Ending::Local } else { Ending::Violated(cause) };
        self.end(ending, Some(Terminate::new(cause, offender)), receive, dev);
    }
}

/// Whether its payload is placed in one step.
const fn is_word(segment: &Segment) -> bool {
    segment.payload as usize <= WORD_BYTES && !matches!(segment.place, Target::Control)
}

/// Bytes that must be there before more can be said of a reply of which `pending` has come. Always more than have come.
fn startup_bytes(pending: &[u8]) -> usize {
    match Startup::parse(FrameKind::Reply, pending) {
        Ok(Parsed::More(wanted)) => wanted,
        // It was judged when its last byte came.
        Ok(Parsed::Whole(..)) | Err(_) => pending.len() + 1,
    }
}

/// The phase when so many bytes of a segment's payload are placed.
fn after(segment: Segment, done: usize) -> Phase {
    let payload = segment.payload as usize;
    if done < payload {
        return Phase::Payload { segment, done };
    }
    Phase::Trailer { segment, left: trailer_bytes(segment.header.len() + payload) }
}
