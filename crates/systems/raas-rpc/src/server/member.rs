//! A client with turns, as its worker knows it.
//!
//! Owns what it laid down in its own memory, what of that was fetched, and how busy it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raas::{Batch, Pending, RegionError};

use super::slabs::{ClientRing, Slab};
use crate::frame::{FRAME_ALIGN, REQUEST_HEADER_BYTES, RequestHeader};

/// What is being fetched.
pub(super) enum Fetch {
    Nothing,
    Going(Pending, usize),
    Here(Vec<u8>),
}

/// A request out of fetched bytes.
pub(super) struct Fetched<'a> {
    pub(super) header: RequestHeader,
    pub(super) payload: &'a [u8],
    pub(super) arrived: Instant,
}

/// See the head of this file.
pub(super) struct Member {
    pub(super) slab: Arc<Slab>,
    /// How far the client says that its requests go, and since when.
    laid: VecDeque<(u64, Instant)>,
    /// How far they were fetched.
    fetched: u64,
    pub(super) fetch: Fetch,
    /// Its requests may be executed when they are here: its turn has come, or it needs none.
    pub(super) is_admitted: bool,
    /// It gets a seat with its next answer.
    pub(super) sits: bool,
    pub(super) seat: Option<u32>,
    /// The number after the highest that came.
    pub(super) next: u64,
    /// Time between an answer and the next request, on average.
    think: Duration,
    answered: Option<Instant>,
}

impl Member {
    pub(super) fn new(slab: Arc<Slab>) -> Self {
        Self {
            slab,
            laid: VecDeque::new(),
            fetched: 0,
            fetch: Fetch::Nothing,
            is_admitted: false,
            sits: false,
            seat: None,
            next: 1,
            think: Duration::ZERO,
            answered: None,
        }
    }

    fn laid_to(&self) -> u64 {
        self.laid.back().map_or(self.fetched, |(end, _)| *end)
    }

    /// The client says how far its requests go. Says whether that is news.
    pub(super) fn on_word(&mut self, word: u64, now: Instant) -> bool {
        let is_more = word > self.laid_to();
        if is_more {
            self.laid.push_back((word, now));
            self.on_request(now);
        }
        is_more
    }

    /// A request came.
    pub(super) fn on_request(&mut self, now: Instant) {
        if let Some(answered) = self.answered.take() {
            self.think = (3 * self.think + now.saturating_duration_since(answered)) / 4;
        }
    }

    pub(super) fn on_answer(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// How long it usually waits before it calls again.
    pub(super) fn think(&self) -> Duration {
        self.think
    }

    /// Busy clients come first, by at most so much as they are busier.
    pub(super) fn rank(&self, longest: Duration) -> Option<Instant> {
        self.laid.front().map(|(_, since)| *since + 8 * self.think.min(longest))
    }

    pub(super) fn has_more(&self) -> bool {
        self.laid_to() > self.fetched
    }

    /// Begins to fetch what was laid down; how many READs that takes.
    pub(super) fn begin_fetch(&mut self, ring: &ClientRing) -> Result<u64, RegionError> {
        let end = self.laid_to();
        if end - self.fetched > ring.bytes {
            // It lost count, or the first of it is overwritten. It asks again for what it misses.
            self.skip(end);
        }
        if end == self.fetched {
            return Ok(0);
        }
        let (at, len) = (self.fetched % ring.bytes, (end - self.fetched) as usize);
        let first = len.min((ring.bytes - at) as usize);
        let mut batch = Batch::new();
        batch.read(&ring.region, at, first);
        if first < len {
            batch.read(&ring.region, 0, len - first);
        }
        let reads = batch.len();
        self.fetch = Fetch::Going(batch.submit()?, reads);
        Ok(reads as u64)
    }

    fn skip(&mut self, end: u64) {
        self.fetched = end;
        self.laid.retain(|(to, _)| *to > end);
    }

    /// Whether what is fetched is here now.
    pub(super) fn poll_fetch(&mut self) -> Result<bool, RegionError> {
        let Fetch::Going(pending, reads) = &mut self.fetch else { return Ok(matches!(self.fetch, Fetch::Here(_))) };
        let Some(mut ended) = pending.try_take() else { return Ok(false) };
        let reads = *reads;
        self.fetch = Fetch::Nothing;
        let mut bytes = Vec::new();
        for read in 0..reads {
            bytes.extend(ended.take_bytes(read)?);
        }
        self.fetch = Fetch::Here(bytes);
        Ok(true)
    }

    /// Takes what is here.
    pub(super) fn take_fetched(&mut self) -> Option<Requests> {
        let Fetch::Here(bytes) = std::mem::replace(&mut self.fetch, Fetch::Nothing) else { return None };
        let (begin, end) = (self.fetched, self.fetched + bytes.len() as u64);
        let since = self.laid.iter().map(|(to, since)| ((to.min(&end) - begin) as usize, *since)).collect();
        self.skip(end);
        Some(Requests { bytes, since, at: 0 })
    }
}

/// Requests that were fetched together.
pub(super) struct Requests {
    bytes: Vec<u8>,
    /// Since when the client says that they go so far.
    since: Vec<(usize, Instant)>,
    at: usize,
}

impl Requests {
    pub(super) fn is_over(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next one; `None`: none that is whole.
    pub(super) fn next(&mut self) -> Option<Fetched<'_>> {
        let (header, payload) = RequestHeader::decode(self.bytes.get(self.at..)?)?;
        self.at += (REQUEST_HEADER_BYTES + payload.len()).next_multiple_of(FRAME_ALIGN);
        let arrived = self.since.iter().find(|(to, _)| *to >= self.at).map(|(_, since)| *since)?;
        Some(Fetched { header, payload, arrived })
    }
}
