//! A ring of slots into which one client writes requests.
//!
//! Owns what was seen of each slot. It must never take a request of which a part is missing, or one without the token of
//! the client whose ring it is.

use std::sync::Arc;
use std::time::Instant;

use raas::{Region, RegionError};

use super::slabs::Slab;
use super::work::Work;
use super::{Counters, Shared};
use crate::frame::{REQUEST_HEADER_BYTES, RequestHeader, word};

/// A request that was taken.
pub(super) struct Taken {
    pub(super) header: RequestHeader,
    frame: Vec<u8>,
    pub(super) arrived: Instant,
}

impl Taken {
    pub(super) fn payload(&self) -> &[u8] {
        self.frame.get(REQUEST_HEADER_BYTES..).unwrap_or_default()
    }
}

/// See the head of this file.
pub(super) struct Ring {
    slab: Arc<Slab>,
    /// Where it begins.
    at: u64,
    /// The head of each slot as it was last taken.
    seen: Vec<u64>,
    /// The number after the highest that was taken.
    next: u64,
}

impl Ring {
    /// One that is empty; `next` is the number that the client's next request has.
    pub(super) fn new(slab: Arc<Slab>, at: u64, slots: u16, next: u64) -> Self {
        Self { slab, at, seen: vec![0; slots.into()], next }
    }

    pub(super) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// A request came another way.
    pub(super) fn on_other(&mut self, sequence: u64) {
        self.next = self.next.max(sequence + 1);
    }

    /// The next request that is there. `is_all`: in whatever slot; otherwise in the one where it is expected.
    pub(super) fn take_next(&mut self, work: &Work<'_>, is_all: bool) -> Result<Option<Taken>, RegionError> {
        let expected = work.slabs.layout.slot_of(self.next);
        if !is_all {
            return self.take(work, expected);
        }
        let slots = self.seen.len() as u64;
        for slot in 0..slots {
            if let Some(taken) = self.take(work, (expected + slot) % slots)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    fn take(&mut self, work: &Work<'_>, slot: u64) -> Result<Option<Taken>, RegionError> {
        let (shared, layout, region) = (work.shared, work.slabs.layout, &work.place.region);
        let at = self.at + layout.request_at(slot);
        let head = u64::from_le_bytes(region.load(at)?.to_ne_bytes());
        let Some(seen) = self.seen.get_mut(slot as usize) else { return Ok(None) };
        if head == *seen || head == 0 || self.slab.is_over() {
            return Ok(None);
        }
        let arrived = Instant::now();
        let frame = copy_frame(shared, region, at)?;
        let Some((header, frame)) = frame.and_then(|frame| Some((RequestHeader::decode(&frame)?.0, frame))) else {
            // The rest is on its way; or a client wrote what is no request, which costs this look at each round.
            Counters::add(&shared.counters.torn);
            return Ok(None);
        };
        *seen = word(header.sequence, header.attempt);
        if header.token != self.slab.token || layout.slot_of(header.sequence) != slot {
            Counters::add(&shared.counters.refused);
            return Ok(None);
        }
        self.next = self.next.max(header.sequence + 1);
        Ok(Some(Taken { header, frame, arrived }))
    }
}

/// A request with its payload, as it lies there; `None` if its length cannot be.
fn copy_frame(shared: &Shared, region: &Region, at: u64) -> Result<Option<Vec<u8>>, RegionError> {
    let mut frame = vec![0; REQUEST_HEADER_BYTES];
    region.read(at, &mut frame)?;
    let Some(header) = RequestHeader::peek(&frame) else { return Ok(None) };
    if header.len > shared.settings.request_bytes_max {
        return Ok(None);
    }
    frame.resize(REQUEST_HEADER_BYTES + header.len as usize, 0);
    region.read(at + REQUEST_HEADER_BYTES as u64, &mut frame[REQUEST_HEADER_BYTES..])?;
    Ok(Some(frame))
}
