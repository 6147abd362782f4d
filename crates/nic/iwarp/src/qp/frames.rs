//! Frames that are built and not sent: what the socket gets next.
//!
//! Owns the bytes around each payload, the place where sending stopped, and the copies that a CRC or markers need. A
//! frame's own bytes are fixed once it is built, and so is a payload of a word. A longer one without CRC stays where it
//! is: the kernel copies it straight out of registered memory, which is looked up again each time that it is offered.

use std::collections::VecDeque;

use rnic::{Domain, KeyFault};
use verbs::{Access, Rkey, Status};

use super::send_queue::SendQueue;
use crate::ddp::{Header, UNTAGGED_BYTES, Untagged};
use crate::limits::{CONTROL_BYTES_MAX, COPIED_AHEAD_MAX, FRAMES_AHEAD_MAX, WORD_BYTES};
use crate::mpa::{CRC_BYTES, LENGTH_BYTES, Markers, crc, trailer_bytes};
use crate::rdmap::{Opcode, QUEUE_TERMINATE};
use crate::terminate::Terminate;
use crate::transfer::Gather;

const HEAD_MAX: usize = LENGTH_BYTES + UNTAGGED_BYTES + CONTROL_BYTES_MAX;
const TAIL_MAX: usize = 3 + CRC_BYTES;

/// Where a frame's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// There is none besides what is in the head.
    None,
    /// Of a work request.
    Request { number: u64, offset: u32, len: u32 },
    /// Of registered memory that a peer's READ asked for.
    Remote { rkey: Rkey, addr: u64, len: u32 },
}

impl Body {
    pub(super) const fn len(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Request { len, .. } | Self::Remote { len, .. } => len,
        }
    }
}

/// A frame to be built: header, control payload, payload.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) header: Header,
    pub(super) control: &'a [u8],
    pub(super) body: Body,
    /// The work request whose last frame this is.
    pub(super) ends: Option<u64>,
}

#[derive(Debug)]
struct Frame {
    head: [u8; HEAD_MAX],
    head_bytes: usize,
    body: Body,
    /// All bytes of the frame, if they had to be copied; then the other fields are not looked at.
    copy: Option<Vec<u8>>,
    tail_bytes: usize,
    ends: Option<u64>,
    is_fpdu: bool,
    /// Where the stream stood between its markers before this frame.
    markers: Option<Markers>,
}

impl Frame {
    fn bytes(&self) -> usize {
        match &self.copy {
            Some(copy) => copy.len(),
            None => self.head_bytes + self.body.len() as usize + self.tail_bytes,
        }
    }
}

/// This end cannot go on: because of that work request, which ends so, or because of a READ's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalFault {
    pub(super) request: Option<(u64, Status)>,
}

/// What was sent of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// A frame of MPA is out whole; and with it that work request, if it is one's last.
    Frame { ends: Option<u64> },
    /// A startup frame is out whole.
    Startup,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Frames {
    queue: VecDeque<Frame>,
    /// Bytes of the oldest that were sent.
    sent: usize,
    copied_bytes: usize,
    spare: Vec<Vec<u8>>,
    has_crc: bool,
    markers: Option<Markers>,
}

impl Frames {
    /// How frames are built from now on.
    pub(super) fn open(&mut self, has_crc: bool, has_markers: bool) {
        self.has_crc = has_crc;
        self.markers = has_markers.then(Markers::default);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether another frame may be built.
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < FRAMES_AHEAD_MAX && self.copied_bytes < COPIED_AHEAD_MAX
    }

    /// Appends a frame of the startup, as it is.
    pub(super) fn push_startup(&mut self, bytes: Vec<u8>) {
        self.copied_bytes += bytes.len();
        self.queue.push_back(Frame {
            head: [0; HEAD_MAX],
            head_bytes: 0,
            body: Body::None,
            copy: Some(bytes),
            tail_bytes: 0,
            ends: None,
            is_fpdu: false,
            markers: None,
        });
    }

    /// Appends a frame without payload of a work request.
    pub(super) fn push_own(&mut self, plan: &Plan<'_>) {
        let frame = self.frame(plan);
        self.append(frame, |_| Ok(())).unwrap_or_default();
    }

    /// Appends the last frame of the stream.
    pub(super) fn push_terminate(&mut self, terminate: &Terminate) {
        let mut control = [0; Terminate::BYTES_MAX];
        let bytes = terminate.write(&mut control);
        let ulp = Opcode::Terminate.control();
        let header = Untagged { is_last: true, ulp, ulp_word: 0, queue: QUEUE_TERMINATE, msn: 1, offset: 0 };
        let header = Header::Untagged(header);
        self.push_own(&Plan { header, control: &control[..bytes], body: Body::None, ends: None });
    }

    /// Builds a frame and appends it. Nothing is appended if its payload cannot be read, which is asked only where it
    /// is copied: with a CRC or markers, and a word.
    pub(super) fn push(&mut self, plan: &Plan<'_>, requests: &SendQueue, mrs: Domain<'_>) -> Result<(), LocalFault> {
        let mut frame = self.frame(plan);
        let len = plan.body.len() as usize;
        if (1..=WORD_BYTES).contains(&len)
            && let Some(room) = frame.head.get_mut(frame.head_bytes..frame.head_bytes + len)
        {
            read_body(plan.body, room, requests, mrs)?;
            (frame.head_bytes, frame.body) = (frame.head_bytes + len, Body::None);
        }
        let body = frame.body;
        self.append(frame, |payload| read_body(body, payload, requests, mrs))
    }

    fn frame(&self, plan: &Plan<'_>) -> Frame {
        let mut head = [0; HEAD_MAX];
        let header_bytes = plan.header.write(&mut head[LENGTH_BYTES..]);
        let head_bytes = LENGTH_BYTES + header_bytes + plan.control.len();
        head[LENGTH_BYTES + header_bytes..head_bytes].copy_from_slice(plan.control);
        let ulpdu_bytes = header_bytes + plan.control.len() + plan.body.len() as usize;
        let length = u16::try_from(ulpdu_bytes).unwrap_or(u16::MAX);
        head[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        let tail_bytes = trailer_bytes(ulpdu_bytes);
        let (body, ends, markers) = (plan.body, plan.ends, self.markers);
        Frame { head, head_bytes, body, copy: None, tail_bytes, ends, is_fpdu: true, markers }
    }

    fn append(
        &mut self,
        mut frame: Frame,
        read: impl FnOnce(&mut [u8]) -> Result<(), LocalFault>,
    ) -> Result<(), LocalFault> {
        if self.has_crc || self.markers.is_some() {
            let copy = self.copy_of(&frame, read)?;
            self.copied_bytes += copy.len();
            frame.copy = Some(copy);
        }
        self.queue.push_back(frame);
        Ok(())
    }

    fn copy_of(
        &mut self,
        frame: &Frame,
        read: impl FnOnce(&mut [u8]) -> Result<(), LocalFault>,
    ) -> Result<Vec<u8>, LocalFault> {
        let covered = frame.bytes() - CRC_BYTES;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&frame.head[..frame.head_bytes]);
        bytes.resize(covered, 0);
        read(&mut bytes[frame.head_bytes..frame.head_bytes + frame.body.len() as usize])?;
        let has_crc = self.has_crc;
        let field = |covered: &[u8]| if has_crc { crc(covered) } else { [0; CRC_BYTES] };
        let Some(markers) = &mut self.markers else {
            let field = field(&bytes);
            bytes.extend_from_slice(&field);
            return Ok(bytes);
        };
        let mut marked = self.spare.pop().unwrap_or_default();
        marked.clear();
        markers.frame(&bytes, &mut marked, field);
        self.spare.push(bytes);
        Ok(marked)
    }

    /// Number of frames that wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Offers a frame, counted from the oldest, from the first byte that was not sent.
    pub(super) fn offer(
        &self,
        index: usize,
        requests: &SendQueue,
        mrs: Domain<'_>,
        out: &mut Gather,
    ) -> Result<(), LocalFault> {
        let Some(frame) = self.queue.get(index) else { return Ok(()) };
        let mut skip = if index == 0 { self.sent } else { 0 };
        if let Some(copy) = &frame.copy {
            out.push_own(copy.get(skip..).unwrap_or(&[]));
            return Ok(());
        }
        let own = |bytes: &[u8], skip: &mut usize, out: &mut Gather| {
            let passed = (*skip).min(bytes.len());
            out.push_own(&bytes[passed..]);
            *skip -= passed;
        };
        own(&frame.head[..frame.head_bytes], &mut skip, out);
        let len = frame.body.len() as usize;
        let passed = skip.min(len);
        skip -= passed;
        let left = len - passed;
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if left > 0 {
            offer_body(frame.body, passed, left, requests, mrs, out)?;
        }
        own(&[0; TAIL_MAX][..frame.tail_bytes], &mut skip, out);
        Ok(())
    }

    /// So many bytes were sent; says what they finished.
    pub(super) fn sent(&mut self, mut bytes: usize, mut finished: impl FnMut(Sent)) {
        while let Some(frame) = self.queue.front() {
            let left = frame.bytes().saturating_sub(self.sent);
            if bytes < left {
                self.sent += bytes;
                return;
            }
            bytes -= left;
            self.sent = 0;
            let Some(frame) = self.queue.pop_front() else { return };
            self.retire(frame, &mut finished);
        }
    }

    fn retire(&mut self, frame: Frame, finished: &mut impl FnMut(Sent)) {
        if let Some(copy) = frame.copy {
            self.copied_bytes = self.copied_bytes.saturating_sub(copy.len());
            if self.spare.len() < 4 {
                self.spare.push(copy);
            }
        }
        finished(if frame.is_fpdu { Sent::Frame { ends: frame.ends } } else { Sent::Startup });
    }

    /// Drops what was not begun. The rest of a frame that was is copied, because its work request is about to end.
    /// False if it cannot be read: then no frame can follow it, and nothing is left.
    pub(super) fn abandon(&mut self, requests: &SendQueue, mrs: Domain<'_>) -> bool {
        let kept = usize::from(self.sent > 0);
        if let Some(dropped) = self.queue.get(kept) {
            self.markers = dropped.markers;
        }
        self.queue.truncate(kept);
        self.copied_bytes = 0;
        let Some(frame) = self.queue.front_mut() else { return true };
        frame.ends = None;
        if frame.copy.is_none() {
            let mut copy = frame.head[..frame.head_bytes].to_vec();
            copy.resize(frame.head_bytes + frame.body.len() as usize, 0);
            if read_body(frame.body, &mut copy[frame.head_bytes..], requests, mrs).is_err() {
                self.clear();
                return false;
            }
            copy.resize(copy.len() + frame.tail_bytes, 0);
            frame.copy = Some(copy);
        }
        true
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.sent = 0;
        self.copied_bytes = 0;
    }
}

fn read_body(body: Body, dst: &mut [u8], requests: &SendQueue, mrs: Domain<'_>) -> Result<(), LocalFault> {
    match body {
        Body::None => Ok(()),
        Body::Request { number, offset, .. } => {
            let wqe = requests.get(number).ok_or(KeyFault::Key);
            wqe.and_then(|wqe| wqe.read(mrs, offset, dst))
                .map_err(|_| LocalFault { request: Some((number, Status::LocProtErr)) })
        }
        Body::Remote { rkey, addr, .. } => mrs.read_remote(rkey, addr, dst).map_err(|_| LocalFault { request: None }),
    }
}

fn offer_body(
    body: Body,
    passed: u32,
    left: usize,
    requests: &SendQueue,
    mrs: Domain<'_>,
    out: &mut Gather,
) -> Result<(), LocalFault> {
    match body {
        Body::None => Ok(()),
        Body::Request { number, offset, .. } => {
            let wqe = requests.get(number).ok_or(KeyFault::Key);
            wqe.and_then(|wqe| wqe.gather(mrs, offset + passed, left, out))
                .map_err(|_| LocalFault { request: Some((number, Status::LocProtErr)) })
        }
        Body::Remote { rkey, addr, .. } => {
            let range = mrs.remote_range(rkey, addr + u64::from(passed), left as u64, Access::REMOTE_READ);
            range.map(|range| out.push_memory(range)).map_err(|_| LocalFault { request: None })
        }
    }
}
